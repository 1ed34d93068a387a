"""The worker loop against both servers: outcomes, touches, batches, stops by real signals, and lost connections."""

# mypy: enable-error-code="unused-ignore"

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import greenstalk
import pytest

from greenstalk_client import Bury, Client, Job, Release, Worker, work
from greenstalk_client.worker import Handler
from tests.support import tls
from tests.support.daemon import MINDING_SIGNALS, REPOSITORY, TIMEOUT, Daemon
from tests.support.peer import eventually
from tests.support.ports import free_ports
from tests.support.processes import ending, join

from .conftest import Address

PROGRAM = Path(__file__).with_name("worker_program.py")


@contextlib.contextmanager
def working(address: Address, handler: Callable[[Job[bytes]], Any], **options: Any) -> Iterator[Worker]:
    """Run a worker of the tube mail in a thread; stop it at the end of the block."""
    worker = Worker("mail", handler, server=address, **options)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        if not worker._is_stopping:  # a second stop would not wait for handlers
            worker.stop()
        join(thread)


@pytest.fixture
def queue(address: Address) -> Iterator[Client[str]]:
    """A client of each of both servers, for the tube mail, which has no jobs after the test."""
    yield from cleaned(address)


@pytest.fixture
def our_queue(ours: Address) -> Iterator[Client[str]]:
    yield from cleaned(ours)


def cleaned(address: Address) -> Iterator[Client[str]]:
    with Client(address, use="mail", watch="mail") as client:
        yield client
        eventually(lambda: count(client, "reserved") == 0, "the connections of the worker are closed")
        while count(client, "buried") or count(client, "delayed"):
            client.kick(1000)
        while count(client, "ready"):
            client.delete(client.reserve(0))


def count(client: Client[str], state: str) -> int:
    stats: Any = client.stats_tube("mail")
    return int(stats[f"current-jobs-{state}"])


def is_empty(client: Client[str]) -> bool:
    return not any(count(client, state) for state in ("ready", "reserved", "delayed", "buried"))


# Outcomes


def test_finished_jobs_are_deleted(queue: Client[str], address: Address) -> None:
    bodies = [f"{number}" for number in range(100)]
    done: list[str] = []
    for body in bodies:
        queue.put(body)
    with working(address, lambda job: done.append(job.body.decode()), concurrency=4):
        eventually(lambda: is_empty(queue), "all jobs are deleted")
    assert sorted(done) == sorted(bodies)


def test_failed_job_is_buried_with_its_priority(
    queue: Client[str], address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(job: Job[bytes]) -> None:
        if job.body == b"exit":
            sys.exit(1)
        if job.body == b"bury":
            raise Bury("no such address", priority=9)
        raise RuntimeError("it is broken")

    ids = [queue.put(body, priority=7) for body in ("raise", "exit", "bury")]
    with working(address, fail):
        eventually(lambda: count(queue, "buried") == 3, "the jobs are buried")
    assert [queue.stats_job(id)["pri"] for id in ids] == [7, 7, 9]
    assert f"job {ids[2]} is buried: no such address" in caplog.messages
    (record,) = [one for one in caplog.records if one.exc_text is not None and "it is broken" in one.exc_text]
    assert record.levelno == logging.ERROR


class Callee:
    """A class whose methods and instances only create a coroutine or a generator when they are called."""

    async def __call__(self, job: Job[bytes]) -> None:
        raise AssertionError("nothing runs this")

    async def method(self, job: Job[bytes]) -> None:
        raise AssertionError("nothing runs this")

    @staticmethod
    async def generate_later(job: Job[bytes]) -> AsyncIterator[int]:
        yield 1

    @classmethod
    def generate(cls, job: Job[bytes], *options: object) -> Iterator[int]:
        yield 1


TYPED: Handler = Callee().method  # type: ignore[assignment]  # type checkers reject it

UNFINISHED: list[Any] = [
    Callee(),
    Callee().method,
    Callee.generate_later,
    Callee.generate,
    functools.partial(functools.partial(Callee())),
    functools.partial(Callee().method),
    functools.partial(Callee().generate),
]


@pytest.mark.parametrize("handler", [*UNFINISHED, None])
def test_handler_that_would_not_run_is_refused(handler: Any) -> None:
    with pytest.raises(TypeError, match=r"is async: pass|is a generator function: pass|is not a function"):
        Worker("mail", handler)
    with pytest.raises(TypeError):
        work("mail", handler)


@pytest.mark.parametrize("handler", [print, Callee, functools.partial(print, end=""), "".join])
def test_handler_may_be_any_other_callable(handler: Any) -> None:
    Worker("mail", handler)


def test_job_whose_handler_returns_an_unfinished_object_is_buried(
    our_queue: Client[str], ours: Address, caplog: pytest.LogCaptureFixture
) -> None:
    job: Any = None
    made: list[Any] = [Callee().method(job), Callee.generate(job), Callee.generate_later(job)]
    ids = [our_queue.put(f"{number}") for number in range(len(made))]
    with working(ours, lambda job: made[int(job.body)]):
        eventually(lambda: count(our_queue, "buried") == len(ids), "the jobs are buried")
    made[0].close()  # otherwise Python warns that it was never awaited
    for id, each in zip(ids, made, strict=True):
        assert f"job {id} is buried: the handler returned {each!r}, which nothing runs; " in caplog.text


def test_body_of_any_bytes_is_passed_to_the_handler(queue: Client[str], address: Address) -> None:
    id = queue.put(b"\xff")  # type: ignore[arg-type]
    with working(address, lambda job: job.body.decode()):
        eventually(lambda: count(queue, "buried") == 1, "the handler cannot decode it, and the job is buried")
    queue.delete(id)


def test_job_is_released_with_a_delay_and_its_priority(queue: Client[str], address: Address) -> None:
    def release(job: Job[bytes]) -> None:
        raise Release(delay=99.5)

    id = queue.put("later", priority=7)
    with working(address, release):
        eventually(lambda: count(queue, "delayed") == 1, "the job is delayed")
    stats = queue.stats_job(id)
    assert stats["pri"] == 7
    assert stats["delay"] in (99, 100)  # plain beanstalkd has whole seconds


@pytest.mark.parametrize("arguments", [{"delay": -1}, {"delay": float("inf")}, {"priority": 2**32}])
def test_release_out_of_range_is_a_value_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not"):
        Release(**arguments)


def test_job_has_facts_if_the_server_has_the_extensions(our_queue: Client[str], ours: Address) -> None:
    found: list[object] = []
    our_queue.put("facts", priority=5, ttr=2.5)
    with working(ours, lambda job: found.append(job.meta)):
        eventually(lambda: is_empty(our_queue), "the job is deleted")
    assert found == [{"tube": "mail", "pri": 5, "ttr": 2.5, "attempts": 1}]


def test_job_has_no_facts_on_plain_beanstalkd(plain: Address) -> None:
    found: list[object] = []
    with Client(plain, use="mail") as queue, working(plain, lambda job: found.append(job.meta)):
        queue.put("facts")
        eventually(lambda: found == [{}], "the job has run")


def test_job_has_facts_on_every_server_on_request(queue: Client[str], address: Address) -> None:
    found: list[object] = []
    queue.use("007")
    queue.put("facts", priority=5, ttr=3)
    queue.use("mail")
    work("007", lambda job: found.append(job.meta), server=address, max_jobs=1, always_meta=True)
    assert found == [{"tube": "007", "pri": 5, "ttr": 3, "attempts": 1}]


def test_worker_returns_after_a_number_of_jobs(queue: Client[str], address: Address) -> None:
    done: list[bytes] = []
    for number in range(5):
        queue.put(f"{number}")
    work("mail", lambda job: done.append(job.body), server=address, max_jobs=3, concurrency=2)
    assert sorted(done) == [b"0", b"1", b"2"]
    assert count(queue, "ready") == 2
    assert queue.stats_tube("mail")["current-jobs-reserved"] == 0


def test_worker_returns_when_no_job_is_ready(queue: Client[str], address: Address) -> None:
    done: list[bytes] = []

    def handle(job: Job[bytes]) -> None:
        done.append(job.body)
        if job.body == b"0":
            queue.put("another")

    queue.put("0")
    work("mail", handle, server=address, until_empty=True)
    assert done == [b"0", b"another"]


def test_worker_selects_tubes_by_weight(ours: Address) -> None:
    """A batch that is released has most jobs of the heavy tube."""
    with Client(ours) as queue:
        for number in range(200):
            queue.put(f"{number}", tube="often")
            queue.put(f"{number}", tube="seldom")
        done: list[object] = []
        worker = Worker({"often": 9999, "seldom": 1}, lambda job: done.append(job.meta["tube"]), server=ours)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        eventually(lambda: len(done) >= 100, "jobs are done")
        worker.stop()
        join(thread)
        assert done[:100].count("often") > 80
        for tube in ("often", "seldom"):
            with contextlib.suppress(greenstalk.NotFoundError):  # the worker has done all of its jobs
                queue.flush_tube(tube)


# Time


def test_running_and_prefetched_jobs_are_touched(queue: Client[str], address: Address) -> None:
    """Each job takes more than twice its TTR; another worker waits for jobs, and gets none."""
    runs: list[bytes] = []

    def take_long(job: Job[bytes]) -> None:
        runs.append(job.body)
        time.sleep(2.5)

    ids = [queue.put(body, ttr=1) for body in ("a", "b", "c")]
    others: list[bytes] = []
    with working(address, take_long, concurrency=2, prefetch=1):
        eventually(lambda: count(queue, "reserved") == 3, "all jobs are reserved")
        with working(address, lambda job: others.append(job.body)):
            eventually(lambda: is_empty(queue), "all jobs are deleted")
    assert (sorted(runs), others, len(ids)) == ([b"a", b"b", b"c"], [], 3)


def test_slow_job_does_not_hold_up_others(queue: Client[str], address: Address) -> None:
    """Other jobs are also deleted meanwhile, although the worker is waiting for more jobs."""
    slow, done = threading.Event(), threading.Event()

    def handle(job: Job[bytes]) -> None:
        assert (slow if job.body == b"slow" else done).wait(TIMEOUT)

    queue.put("slow")
    with working(address, handle, concurrency=3):
        eventually(lambda: count(queue, "reserved") == 1, "the slow job runs")
        for body in ("one", "two"):
            queue.put(body)
        eventually(lambda: count(queue, "reserved") == 3, "all jobs run")
        began = time.monotonic()
        done.set()
        eventually(lambda: count(queue, "reserved") == 1, "the others are deleted")
        assert time.monotonic() - began < 5, "the worker waits 20 seconds for jobs"
        slow.set()


def test_concurrency_is_the_number_of_handlers(queue: Client[str], address: Address) -> None:
    together, finish = threading.Barrier(5), threading.Event()

    def handle(job: Job[bytes]) -> None:
        together.wait(TIMEOUT)
        assert finish.wait(TIMEOUT)

    for number in range(6):
        queue.put(f"{number}")
    with working(address, handle, concurrency=4):
        together.wait(TIMEOUT)  # four handlers, and this thread
        assert (count(queue, "reserved"), count(queue, "ready")) == (4, 2)
        together.abort()
        finish.set()


def test_jobs_are_reserved_and_deleted_in_batches(our_queue: Client[str], ours: Address) -> None:
    before = our_queue.stats()
    for number in range(2000):
        our_queue.put(f"{number}")
    done: list[int] = []
    with working(ours, lambda job: done.append(int(job.body)), concurrency=8, prefetch=100):
        eventually(lambda: is_empty(our_queue), "all jobs are deleted")
    after = our_queue.stats()
    assert sorted(done) == list(range(2000))
    assert after["cmd-reserve"] == before["cmd-reserve"]
    assert after["cmd-reserve-with-timeout"] == before["cmd-reserve-with-timeout"]


def test_idle_connections_closed_by_the_server_are_replaced(caplog: pytest.LogCaptureFixture) -> None:
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web", "--idle-timeout", "1") as server:
        address = ("127.0.0.1", server.port)
        together = threading.Barrier(3)
        with Client(address, use="mail") as queue, working(address, lambda job: together.wait(TIMEOUT), concurrency=3):
            for _ in range(2):
                for number in range(3):
                    queue.put(f"{number}")
                    eventually(lambda: count(queue, "ready") == 0, "each job comes over a connection of its own")
                eventually(lambda: is_empty(queue), "all jobs are deleted")
                with Client(address) as other:
                    deadline = time.monotonic() + TIMEOUT
                    while other.stats()["current-connections"] > 3:  # one of the worker, `queue` and `other`
                        assert time.monotonic() < deadline
                        queue.using()  # this one is not idle
                        time.sleep(0.1)
    assert not [message for message in caplog.messages if "cannot reserve" in message]


# Stops


def test_stop_finishes_running_jobs_and_releases_others(queue: Client[str], address: Address) -> None:
    began, finish = threading.Event(), threading.Event()

    def handle(job: Job[bytes]) -> None:
        began.set()
        assert finish.wait(TIMEOUT)

    ids = [queue.put(f"{number}", priority=number) for number in range(4)]
    with working(address, handle, prefetch=2) as worker:
        assert began.wait(TIMEOUT)
        eventually(lambda: count(queue, "reserved") == 3, "two jobs are prefetched")
        worker.stop()
        eventually(lambda: count(queue, "ready") == 3, "they are released")
        assert count(queue, "reserved") == 1
        finish.set()
    assert [queue.stats_job(id)["pri"] for id in ids[1:]] == [1, 2, 3]
    assert queue.stats_tube("mail")["current-jobs-ready"] == 3


def test_stop_does_not_wait_for_a_reserve(address: Address) -> None:
    began = time.monotonic()
    with working(address, lambda job: None), Client(address) as client:
        eventually(lambda: client.stats()["current-waiting"] == 1, "the worker waits")
    assert time.monotonic() - began < 10, "a reserve waits 20 seconds"


def test_stop_waits_for_a_hung_handler_for_a_limited_time(
    queue: Client[str], address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    began, finish = threading.Event(), threading.Event()

    def hang(job: Job[bytes]) -> None:
        began.set()
        finish.wait(TIMEOUT)

    id = queue.put("hang", ttr=1000)
    with working(address, hang, stop_timeout=0.2):
        assert began.wait(TIMEOUT)
    assert queue.reserve(5).id == id, "the closed connection has released it"
    assert f"stopping while jobs [{id}] are running; the server makes them ready again" in caplog.messages
    finish.set()
    eventually(lambda: any(f"job {id} is not done" in each for each in caplog.messages), "the handler ends")
    queue.delete(id)  # only the client that holds the job can delete it


@contextlib.contextmanager
def program(thread: str, port: int, concurrency: int, prefetch: int, stop_timeout: float) -> Iterator[Popen[str]]:
    """Start worker_program.py; *thread* is the one that receives signals."""
    command = [*MINDING_SIGNALS, sys.executable, "-m", f"tests.client.{PROGRAM.stem}"]
    arguments = [thread, str(port), str(concurrency), str(prefetch), str(stop_timeout)]
    with ending(Popen([*command, *arguments], cwd=REPOSITORY, stdout=PIPE, stderr=PIPE, text=True)) as process:
        yield process


@pytest.mark.parametrize(
    ("thread", "number"), [("main", signal.SIGTERM), ("main", signal.SIGINT), ("other", signal.SIGTERM)]
)
def test_signal_finishes_running_jobs(
    number: signal.Signals, thread: str, our_queue: Client[str], ours: Address
) -> None:
    queue = our_queue
    queue.put("1.0")
    queue.put("0.0")
    with program(thread, ours[1], 1, 1, 60) as process:
        assert process.stdout.readline() == "begin 1.0\n"
        process.send_signal(number)
        out, log = process.communicate(timeout=TIMEOUT)
    assert (out, log, process.returncode) == ("end 1.0\nreturned\n", "", 0)
    assert (count(queue, "ready"), count(queue, "reserved")) == (1, 0)


@pytest.mark.parametrize("thread", ["main", "other"])
def test_second_signal_ends_immediately(thread: str, our_queue: Client[str], ours: Address) -> None:
    queue = our_queue
    id = queue.put("100", priority=1)
    queue.put("0")
    with program(thread, ours[1], 1, 1, 90) as process:
        assert process.stdout.readline() == "begin 100\n"
        eventually(lambda: count(queue, "reserved") == 2, "the other job is prefetched")
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        eventually(lambda: count(queue, "ready") == 1, "the first signal has released the other job")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        out, log = process.communicate(timeout=TIMEOUT)
    assert (out, process.returncode) == ("returned\n", 0)
    assert f"stopping while jobs [{id}] are running" in log
    assert time.monotonic() - began < 60
    eventually(lambda: count(queue, "ready") == 2, "the server has released the running job")


# Lost connections


def test_no_job_is_lost_when_the_server_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)
    address = ("127.0.0.1", port)
    flags = ("-l", "127.0.0.1", "-p", str(port), "--no-web", "-b", str(tmp_path), "-f", "0")
    began, finish = threading.Semaphore(0), threading.Event()
    runs: list[int] = []

    def handle(job: Job[bytes]) -> None:
        runs.append(int(job.body))
        began.release()
        assert finish.wait(TIMEOUT)

    with Daemon(*flags) as first:
        with Client(address, use="mail") as queue:
            for number in range(20):
                queue.put(f"{number}", ttr=600)
        with working(address, handle, concurrency=3, prefetch=5):
            for _ in range(3):
                assert began.acquire(timeout=TIMEOUT)
            first.stop(signal.SIGKILL)
            with Daemon(*flags), Client(address, use="mail") as queue:
                assert count(queue, "ready") == 20
                finish.set()
                eventually(lambda: is_empty(queue), "all jobs are deleted")
                assert queue.stats_tube("mail")["cmd-delete"] == 20
    assert set(runs) == set(range(20))
    assert sorted(runs) == sorted([*range(20), *runs[:3]]), "those that ran have run twice, and no other"
    assert sum("not done: " in each for each in caplog.messages) == 3


def test_worker_waits_for_a_server_that_starts_later(caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)
    done: list[bytes] = []
    with working(("127.0.0.1", port), lambda job: done.append(job.body)):
        eventually(lambda: len(caplog.messages) >= 3, "the worker has tried")
        with Daemon("-l", "127.0.0.1", "-p", str(port), "--no-web"), Client(("127.0.0.1", port), use="mail") as queue:
            queue.put("hello")
            eventually(lambda: done == [b"hello"] and is_empty(queue), "the job is done")
    attempts = [each for each in caplog.messages if "trying again in" in each]
    pauses = [float(each.rpartition("in ")[2].removesuffix(" s")) for each in attempts]
    assert max(pauses) <= 10
    assert f"cannot reserve from 127.0.0.1:{port}: [Errno 111] Connection refused; trying again in" in caplog.text


def test_worker_that_may_not_consume_raises(tmp_path: Path) -> None:
    (tmp_path / "greenstalk.toml").write_text('[[access]]\nproduce = ["mail"]\n')
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web", "--config", str(tmp_path / "greenstalk.toml")) as server:
        errors: list[BaseException] = []

        def run() -> None:
            """The worker runs in another thread, which cannot handle signals."""
            with pytest.raises(greenstalk.UnknownCommandError) as caught:
                work("mail", lambda job: None, server=("127.0.0.1", server.port))
            errors.append(caught.value)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        join(thread)
        assert len(errors) == 1


def test_worker_over_tls(tmp_path: Path) -> None:
    """A wait for jobs over TLS ends at once when the worker stops."""
    tls.make_certificates(tmp_path)
    secured = tls.context(tmp_path)
    files = ("--tls-cert", f"{tmp_path}/server.pem", "--tls-key", f"{tmp_path}/server.key")
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web", *files) as server:
        port = int(server.first_lines.partition(" (TLS)")[0].rpartition(":")[2])

        def connect() -> socket.socket:
            return tls.connect(port, secured)

        done: list[bytes] = []
        with Client(connect(), use="mail") as queue:
            for number in range(50):
                queue.put(f"{number}", ttr=1)
            began = time.monotonic()
            with working(connect, lambda job: done.append(job.body), concurrency=4):  # type: ignore[arg-type]
                eventually(lambda: is_empty(queue), "all jobs are deleted")
            assert time.monotonic() - began < 15, "a reserve waits 20 seconds"
    assert len(done) == 50


@pytest.mark.parametrize(
    "options", [{"concurrency": 0}, {"concurrency": 1001}, {"prefetch": -1}, {"stop_timeout": float("nan")}]
)
def test_option_out_of_range_is_a_value_error(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"0 or more|not 1 to 1000|1 or more"):
        Worker("mail", lambda job: None, **options)


@pytest.mark.parametrize("tubes", [[], "two words", ["mail", "a\r\nquit"], {"mail": 0}, {"mail": 10_000}])
def test_tubes_that_are_not_names_are_a_value_error(tubes: Any) -> None:
    with pytest.raises(ValueError, match=r"no tube|is not a name|is not 1 to 9999"):
        Worker(tubes, lambda job: None)
