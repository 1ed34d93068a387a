"""Each method of Client, with the real server, and with a server without the extensions."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import greenstalk
import pytest

from greenstalk_client import AlreadyReservedError, BodyDecodeError, Client
from tests.support.daemon import Daemon
from tests.support.processes import join

from .conftest import Address


@pytest.fixture
def old(plain: Address) -> Iterator[Client[str]]:
    """A client of plain beanstalkd."""
    with Client(plain) as client:
        yield client


def test_methods_of_greenstalk_work_on_both_servers(address: Address) -> None:
    with Client(address, use="mail", watch=["mail", "sms"]) as client:
        id = client.put("hellö", priority=3, delay=0, ttr=9)
        assert id.is_new
        job = client.reserve(timeout=5)
        assert (job.id, job.body, dict(job.meta)) == (id, "hellö", {})
        client.touch(job)
        client.release(job, priority=4)
        assert client.stats_job(id)["pri"] == 4
        client.bury(client.reserve_job(id))
        client.kick_job(id)
        client.pause_tube("mail", 1)
        client.delete(id)
        assert sorted(client.watching()) == ["mail", "sms"]


def test_extensions_are_detected(client: Client[str], old: Client[str]) -> None:
    assert client.has_extensions()
    assert not old.has_extensions()


CALLS: list[Callable[[Client[str]], object]] = [
    lambda client: client.put("delete 1", delay=0.5),
    lambda client: client.put("delete 1", ttr=0.5),
    lambda client: client.put("delete 1", tube="mail"),
    lambda client: client.put("delete 1", idempotency_key="key"),
    lambda client: client.put("delete 1", group="key"),
    lambda client: client.put("delete 1", after="key"),
    lambda client: client.put("delete 1", concurrency_key="key"),
    lambda client: client.reserve(0.5),
    lambda client: client.reserve_batch(1),
    lambda client: client.delete_batch([1]),
    lambda client: client.touch_all(),
    lambda client: client.meta("tube"),
    lambda client: client.watch("mail", weight=2),
    lambda client: client.reserve_mode("weighted"),
    lambda client: client.wait(1),
    lambda client: client.reprioritize(1, 1),
    lambda client: client.peek_reserved(),
    lambda client: client.flush_tube("mail"),
    lambda client: client.flush_buried("mail"),
    lambda client: client.truncate("mail"),
    lambda client: client.pause_tube("default", 0.5),
    lambda client: client.stats_group("key"),
    lambda client: client.stats_mode("extended"),
    lambda client: client.drain(),
    lambda client: client.undrain(),
]


@pytest.mark.parametrize("call", CALLS)
def test_extension_is_an_unknown_command_of_plain_beanstalkd(
    call: Callable[[Client[str]], object], old: Client[str]
) -> None:
    """In particular, no body is read as a command: the next reply belongs to the next command."""
    with pytest.raises(greenstalk.UnknownCommandError):
        call(old)
    assert old.using() == "default"


def test_put_with_fractions(client: Client[str]) -> None:
    began = time.monotonic()
    id = client.put("soon", delay=0.25, ttr=1.5)
    assert client.stats_job(id)["state"] == "delayed"
    client.meta("ttr")
    assert client.reserve(30).meta["ttr"] == 1.5
    assert 0.25 <= time.monotonic() - began < 20


def test_put_into_another_tube(client: Client[str]) -> None:
    id = client.put("hello", tube="mail")
    assert client.stats_job(id)["tube"] == "mail"
    assert client.using() == "default"


def test_batch_is_reserved_and_deleted(client: Client[str]) -> None:
    ids = [client.put(f"body {number}") for number in range(5)]
    assert [job.id for job in client.reserve_batch(3)] == ids[:3]
    assert [(job.id, job.body) for job in client.reserve_batch(1000, timeout=0.5)] == [
        (ids[3], "body 3"),
        (ids[4], "body 4"),
    ]
    assert client.reserve_batch(1, 0.01) == []
    assert client.delete_batch([*ids, ids[0]]) == (5, 1)
    assert client.delete_batch([]) == (0, 0)


def test_largest_batch_fits_the_command_line(client: Client[str]) -> None:
    assert client.delete_batch([2**64 - 1 - number for number in range(1000)]) == (0, 1000)


def test_batch_with_an_undecodable_body_loses_no_job(client: Client[str], ours: Address) -> None:
    with Client(ours, encoding=None) as raw:
        ids = [raw.put(b"good"), raw.put(b"\xff"), raw.put(b"good")]
    with pytest.raises(BodyDecodeError) as caught:
        client.reserve_batch(10)
    assert [(job.id, job.body) for job in caught.value.jobs] == list(zip(ids, [b"good", b"\xff", b"good"], strict=True))
    assert client.delete_batch(job.id for job in caught.value.jobs) == (3, 0)


def test_body_that_reserve_cannot_decode_stays_reserved(client: Client[str], ours: Address) -> None:
    with Client(ours, encoding=None) as raw:
        id = raw.put(b"\xff")
    with pytest.raises(UnicodeDecodeError):
        client.reserve()
    assert client.stats_job(id)["state"] == "reserved"
    client.delete(id)


def test_touch_all_counts_the_jobs(client: Client[str]) -> None:
    client.put("one", ttr=100)
    client.put("two", ttr=100)
    assert len(client.reserve_batch(2)) == 2
    assert client.touch_all() == 2


def test_meta_gives_facts_of_reserved_and_peeked_jobs(client: Client[str]) -> None:
    id = client.put("hello", priority=7, ttr=2.5, tube="mail")
    client.watch("mail")
    client.meta("tube", "pri", "age", "ttr", "reserves", "timeouts", "releases", "attempts")
    (job,) = client.reserve_batch(1)
    age = job.meta["age"]
    assert isinstance(age, float) and age < 60
    counts = {"reserves": 1, "timeouts": 0, "releases": 0, "attempts": 1}
    assert dict(job.meta) == {"tube": "mail", "pri": 7, "age": age, "ttr": 2.5, **counts}
    client.meta("attempts")
    peeked: Any = client.peek(id)
    assert peeked.meta == {"attempts": 1}
    client.meta()
    client.release(job)
    assert dict(client.reserve(0).meta) == {}


def test_wait_returns_how_the_job_ended(client: Client[str], ours: Address) -> None:
    deleted, buried = client.put("one"), client.put("two")
    with pytest.raises(greenstalk.TimedOutError):
        client.wait(deleted, 0.01)
    with Client(ours) as waiting:
        timer = threading.Timer(0.5, lambda: client.delete(client.reserve()))
        timer.daemon = True
        timer.start()
        assert waiting.wait(deleted) == "deleted"
        join(timer)
        client.bury(client.reserve())
        assert waiting.wait(buried, timeout=5) == "buried"
        with pytest.raises(greenstalk.NotFoundError):
            waiting.wait(deleted)


def test_reprioritize(client: Client[str]) -> None:
    first, second = client.put("one", priority=5), client.put("two", priority=6)
    client.reprioritize(second, 4)
    assert client.reserve(0).id == second
    with pytest.raises(AlreadyReservedError):
        client.reprioritize(second, 1)
    client.delete(second)
    with pytest.raises(greenstalk.NotFoundError):
        client.reprioritize(second, 1)
    assert client.stats_job(first)["pri"] == 5


def test_peek_reserved(client: Client[str]) -> None:
    with pytest.raises(greenstalk.NotFoundError):
        client.peek_reserved()
    id = client.put("hello")
    client.reserve()
    assert client.peek_reserved().id == id


def test_flush(client: Client[str], ours: Address) -> None:
    for _ in range(4):
        client.put("hello", tube="mail")
    with Client(ours, watch="mail") as other:
        other.bury(other.reserve())
        held = other.reserve()
        assert client.flush_buried("mail") == 1
        assert client.flush_tube("mail") == 3
        with pytest.raises(greenstalk.NotFoundError):
            other.delete(held)
    for flush in (client.flush_tube, client.flush_buried):
        with pytest.raises(greenstalk.NotFoundError):
            flush("nothing")


def test_truncate_lets_reserved_jobs_end(client: Client[str]) -> None:
    for _ in range(3):
        client.put("hello", tube="mail")
    client.watch("mail")
    held = client.reserve()
    assert client.truncate("mail") == 2
    client.release(held)
    with pytest.raises(greenstalk.NotFoundError):
        client.stats_job(held)
    with pytest.raises(greenstalk.NotFoundError):
        client.truncate("nothing")


def test_drain_refuses_puts(tmp_path: Path) -> None:
    (tmp_path / "greenstalk.toml").write_text('[[access]]\nadminister = true\nproduce = ["*"]\n')
    with (
        Daemon("-l", "127.0.0.1", "-p", "0", "--no-web", "--config", str(tmp_path / "greenstalk.toml")) as server,
        Client(("127.0.0.1", server.port), use="mail") as client,
    ):
        client.drain()
        with pytest.raises(greenstalk.DrainingError):
            client.put("hello")
        client.undrain()
        client.put("hello")


def test_duplicate_of_an_idempotency_key_returns_the_existing_job(client: Client[str]) -> None:
    first = client.put("one", priority=10, idempotency_key="order-7", idempotency_ttl=60)
    assert (first.is_new, first.state, first.priority) == (True, None, None)
    second = client.put("two", priority=10, idempotency_key="order-7")
    assert (int(second), second.is_new, second.state, second.priority) == (first, False, "ready", None)
    third = client.put("three", priority=5, idempotency_key="order-7")
    assert (int(third), third.state, third.priority) == (first, "ready", 5)
    client.delete(client.reserve(0))
    assert client.put("four", idempotency_key="order-7").state == "deleted"
    assert client.put("five", idempotency_key="order-7", tube="mail").is_new


def test_idempotency_ttl_may_have_a_fraction() -> None:
    near, far = socket.socketpair()
    with near, far, far.makefile("rwb") as server:
        server.write(b"META\r\nINSERTED 1\r\n")
        server.flush()
        Client(near).put("hello", idempotency_key="order-7", idempotency_ttl=1.5)
        assert server.readline() == b"meta\r\n"
        assert server.readline() == b"put 65536 0 60 5 idp:order-7:1.5\r\n"


def test_job_waits_for_its_group(client: Client[str]) -> None:
    members = [client.put("member", group="import") for _ in range(2)]
    last = client.put("last", after="import")
    group = client.stats_group("import")
    assert (group["name"], group["ready"], group["waiting-jobs"]) == ("import", 2, 1)
    assert [job.id for job in client.reserve_batch(10)] == members
    client.delete_batch(members)
    assert client.reserve(5).id == last
    with pytest.raises(greenstalk.NotFoundError):
        client.stats_group("import")


def test_concurrency_key_limits_reserved_jobs(client: Client[str]) -> None:
    ids = [client.put("hello", concurrency_key="user-5", concurrency_limit=2) for _ in range(3)]
    held = client.reserve_batch(10)
    assert [job.id for job in held] == ids[:2]
    client.delete(held[0])
    assert client.reserve(0).id == ids[2]


def test_tube_and_keys_of_the_maximum_length(client: Client[str]) -> None:
    name, most = "n" * 200, 2**32 - 1
    tags: Any = {"idempotency_key": name, "group": name, "after": "a" * 200, "concurrency_key": name}
    numbers: Any = {"idempotency_ttl": most, "concurrency_limit": most}
    id = client.put("hello", most, most - 0.001, most - 0.001, tube=name, **tags, **numbers)
    stats: Any = client.stats_job(id)
    found = (stats["tube"], stats["idempotency-key"], stats["group"], stats["after-group"], stats["concurrency-key"])
    assert found == (name, name, name, "a" * 200, name)
    assert stats["concurrency-limit"] == most
    client.delete(id)


def test_statistics_have_all_keys_of_the_server_unless_the_mode_is_standard(
    client: Client[str], old: Client[str], address: Address
) -> None:
    assert "bury-rate" in client.stats_tube("default")
    standard = old.stats_tube("default").keys()
    assert len(standard) == 14
    with Client(address) as other:
        if other.has_extensions():
            other.stats_mode("standard")
        assert other.stats_tube("default").keys() == standard


def test_pause_with_a_fraction(client: Client[str]) -> None:
    client.put("hello")
    client.pause_tube("default", 0.2)
    with pytest.raises(greenstalk.TimedOutError):
        client.reserve(0)
    began = time.monotonic()
    client.reserve(30)
    assert time.monotonic() - began < 20


def test_release_with_a_fraction(client: Client[str]) -> None:
    id = client.put("hello")
    client.release(client.reserve(), delay=0.1)
    assert client.stats_job(id)["state"] == "delayed"
    assert client.reserve(30).id == id


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.put("hello", tube="two words"),
        lambda client: client.put("hello", group="a\r\ndelete 1"),
        lambda client: client.put("hello", idempotency_key=""),
        lambda client: client.put("hello", idempotency_key="a:1"),
        lambda client: client.put("hello", idempotency_key="key", idempotency_ttl=-1),
        lambda client: client.put("hello", idempotency_ttl=60),
        lambda client: client.put("hello", concurrency_key="key", concurrency_limit=0),
        lambda client: client.put("hello", concurrency_limit=1),
        lambda client: client.put("hello", group="g" * 201),
        lambda client: client.put("hello", priority=-1),
        lambda client: client.put("hello", delay=-1),
        lambda client: client.put("hello", ttr=float("nan")),
        lambda client: client.put("hello", ttr=2**32),
        lambda client: client.reserve_batch(0),
        lambda client: client.reserve_batch(1001),
        lambda client: client.reserve(-0.1),
        lambda client: client.delete_batch(range(1001)),
        lambda client: client.meta("tube", "tube"),
        lambda client: client.meta("body"),
        lambda client: client.watch("mail", weight=0),
        lambda client: client.watch("mail", weight=10_000),
        lambda client: client.flush_tube("-"),
    ],
)
def test_argument_out_of_range_is_not_sent(call: Callable[[Client[str]], object], client: Client[str]) -> None:
    jobs = client.stats()["total-jobs"]
    with pytest.raises(ValueError, match=r".+"):
        call(client)
    assert client.stats()["total-jobs"] == jobs


def test_body_that_is_no_text_is_a_type_error(client: Client[str]) -> None:
    body: Any = {"to": "a@example.org"}
    with pytest.raises(TypeError, match="a body is str or bytes, not dict"):
        client.put(body)


def test_text_needs_an_encoding(ours: Address) -> None:
    with Client(ours, encoding=None) as client, pytest.raises(TypeError):
        client.put("text")  # type: ignore[arg-type]


@pytest.mark.parametrize("reply", [b"", b"RESERVED 1", b"RESERVED 1 5\r\nhel"])
def test_connection_that_ends_within_a_reply_is_a_connection_error(reply: bytes) -> None:
    near, far = socket.socketpair()
    with far, Client(near, encoding=None) as client:
        far.sendall(reply)
        far.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionError):
            client.reserve()
