"""Commands and options that need the protocol extensions; beanstalkd refuses them."""

from __future__ import annotations

import threading
import time

import greenstalk
import pytest

from tests.ctl.world import Client, WithApi, connect, ctl
from tests.support.processes import join
from tests.support.servers import Server

OURS = pytest.mark.parametrize("server", ["ours"], indirect=True)


@OURS
def test_put_and_pause_with_fractions(server: Server, mail: Client) -> None:
    began = time.monotonic()
    job_id = int(ctl(server, "put", "hello", "--tube", "mail", "--delay", "250ms", "--ttr", "1.5").text)
    assert mail.stats_job(job_id)["state"] == "delayed"
    mail.delete(mail.reserve(60))
    assert time.monotonic() - began >= 0.25
    done = ctl(server, "pause", "mail", "0.25", "--json")
    assert done.json == {"tube": "mail", "pause": 0.25}


@pytest.mark.parametrize("server", ["ours", "api"], indirect=True)
def test_put_with_tags(server: Server, mail: Client) -> None:
    first = ctl(server, "put", "one", "--tube", "mail", "--idempotency-key", "order-7", "--group", "import", "--json")
    job_id = first.json["id"]
    assert first.json == {"id": job_id, "tube": "mail", "existing": None}
    again = ctl(server, "put", "two", "--tube", "mail", "--idempotency-key", "order-7")
    assert (again.code, again.text) == (0, f"{job_id}\n")
    assert f"job {job_id} already has this key; its state is ready" in again.err
    after = ctl(server, "put", "three", "--tube", "mail", "--after", "import").json
    assert mail.stats_job(after)["state"] == "delayed"
    mail.delete(mail.reserve(0))
    assert mail.reserve(5).id == after
    limited = ("put", "four", "--tube", "mail", "--concurrency-key", "user-5", "--limit", "1")
    one, two = (ctl(server, *limited).json for _ in range(2))
    job = mail.reserve(0)
    assert job.id == one
    with pytest.raises(greenstalk.TimedOutError):
        mail.reserve(0)
    mail.delete(job)
    assert mail.reserve(0).id == two


@OURS
def test_flush_deletes_reserved_jobs_too(server: Server, mail: Client) -> None:
    for _ in range(4):
        mail.put(b"hello")
    mail.bury(mail.reserve())
    held = mail.reserve()
    done = ctl(server, "flush", "mail")
    assert (done.code, "--yes" in done.err) == (2, True)
    assert ctl(server, "--yes", "flush", "mail", "--buried", "--json").json == {"flushed": 1}
    done = ctl(server, "--yes", "flush", "mail")
    assert (done.code, done.text) == (0, "flushed 3 jobs\n")
    with pytest.raises(greenstalk.NotFoundError):
        mail.delete(held)
    done = ctl(server, "--yes", "flush", "nothing")
    assert (done.code, "no tube nothing" in done.err) == (1, True)


@OURS
def test_truncate_lets_reserved_jobs_end(server: Server, mail: Client) -> None:
    for _ in range(4):
        mail.put(b"hello")
    held = mail.reserve()
    assert ctl(server, "truncate", "mail").code == 2
    done = ctl(server, "--yes", "truncate", "mail")
    assert (done.code, done.text) == (0, "deleted 3 jobs now\n")
    mail.release(held)
    with pytest.raises(greenstalk.NotFoundError):
        mail.stats_job(held)
    done = ctl(server, "--yes", "truncate", "nothing")
    assert (done.code, "no tube nothing" in done.err) == (1, True)


@OURS
def test_wait_shows_how_the_job_ended(server: Server, mail: Client) -> None:
    job_id = mail.put(b"hello")
    timer = threading.Timer(0.3, lambda: mail.delete(mail.reserve()))
    timer.daemon = True
    timer.start()
    done = ctl(server, "wait", str(job_id))
    join(timer)
    assert (done.code, done.text) == (0, f"job {job_id} is deleted\n")
    job_id = mail.put(b"hello")
    mail.bury(mail.reserve())
    done = ctl(server, "wait", str(job_id), "--json")
    assert (done.code, done.json) == (1, {"id": job_id, "end": "buried"})
    done = ctl(server, "wait", str(job_id - 1))
    assert (done.code, "it may have been deleted" in done.err) == (1, True)


@OURS
def test_wait_ends_after_its_timeout(server: Server, mail: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("greenstalkctl.server.WAIT_SLICE", 0.1)
    job_id = mail.put(b"hello")
    began = time.monotonic()
    done = ctl(server, "wait", str(job_id), "--timeout", "350ms")
    assert (done.code, f"job {job_id} was neither deleted nor buried within 0.35 s" in done.err) == (1, True)
    assert time.monotonic() - began >= 0.35


@pytest.mark.parametrize("server", ["beanstalkd"], indirect=True)
@pytest.mark.parametrize(
    "arguments",
    [
        "put hello --delay 0.5",
        "put hello --ttr 1.5",
        "put hello --idempotency-key a",
        "put hello --group a",
        "put hello --after a",
        "put hello --concurrency-key a",
        "pause default 0.5",
        "flush default",
        "flush default --buried",
        "truncate default",
        "wait 1",
    ],
)
def test_beanstalkd_refuses_extensions(server: Server, arguments: str) -> None:
    jobs = total_jobs(server)
    done = ctl(server, "--yes", *arguments.split())
    assert (done.code, "UNKNOWN_COMMAND" in done.err, "protocol extensions" in done.err) == (4, True, True), done.err
    assert total_jobs(server) == jobs


def total_jobs(server: Server) -> int:
    with connect(server) as client:
        return client.stats()["total-jobs"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("put hello --idempotency-key a:1", "is not a valid key"),
        ("put hello --limit 3", "--limit needs --concurrency-key KEY"),
        ("put hello --idempotency-ttl 3", "--idempotency-ttl needs --idempotency-key KEY"),
        ("put hello --concurrency-key a --limit 0", "is not in the range"),
    ],
)
def test_invalid_tag_is_exit_code_2(server: Server, arguments: str, message: str) -> None:
    done = ctl(server, *arguments.split())
    assert (done.code, message in done.err) == (2, True), done.err


def test_flush_and_wait_need_the_protocol(with_api: WithApi) -> None:
    for command in ("flush", "truncate", "wait"):
        done = ctl(with_api, "--yes", command, "1")
        assert (done.code, "uses the beanstalk protocol" in done.err) == (2, True)


@OURS
def test_group_is_counted(server: Server, mail: Client) -> None:
    ctl(server, "put", "one", "--tube", "mail", "--group", "import")
    assert ctl(server, "stats-group", "import", "--json").json["ready"] == 1
    assert ctl(server, "stats-group", "other").code == 1


@pytest.mark.parametrize("server", ["ours", "api"], indirect=True)
def test_priority_is_changed_unless_the_job_is_reserved(server: Server, mail: Client) -> None:
    held, free = mail.put(b"", priority=1), mail.put(b"", priority=2)
    mail.reserve(0)
    done = ctl(server, "reprioritize", str(held), str(free), "--pri", "9", "--json")
    assert (done.code, done.json) == (1, {"reprioritized": 1, "missed": [held]})
    assert mail.stats_job(free)["pri"] == 9
