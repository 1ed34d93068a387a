"""--memory-limit with the real command: evicted bodies are served like all others, and memory stays bounded."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from greenstalk_server.core.jobs.body_cache import LEAST_LIMIT
from greenstalk_server.runtime.exit_codes import EXIT_USAGE
from tests.support.daemon import COMMAND, TIMEOUT, Daemon, run
from tests.support.peer import eventually, rss
from tests.support.servers import yaml_mapping
from tests.support.wire import END, Connection

SIZE = 500_000
COUNT = 120
"""Number of bodies, 60 MB in total: more than the limit minus the memory of the process itself."""

BOUND = LEAST_LIMIT + 2**25
"""Maximum resident bytes: the limit applies to jobs; bodies that are being read or sent come on top."""

FLAGS = ("-l", "127.0.0.1", "-p", "0", "--no-web", "-z", "1000000", "--memory-limit", str(LEAST_LIMIT))

EXECUTED = ("env", *COMMAND)
"""Starts the server with an exec. A fork would count the modules of the dashboard, which it does not use, as memory."""


def body_of(id: int) -> bytes:
    return zlib.crc32(b"%d" % id).to_bytes(4, "big") * (SIZE // 4)


class Talk(Connection):
    """A connection to a server, which reads whole replies."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), TIMEOUT)

    def job(self, request: bytes = b"") -> tuple[bytes, int, bytes]:
        """Send *request*, if any; return the word, the id and the body of the next reply, which has a job."""
        line, _, body = (self.ask(request) if request else self.read_reply()).partition(b"\r\n")
        word, id, _ = line.split()
        return word, int(id), body

    def put(self, id: int) -> bytes:
        return self.ask(b"put 0 0 600 %d\r\n%b" % (SIZE, body_of(id)))

    def stats(self) -> dict[str, str]:
        """Return all statistics of the server."""
        assert self.ask(b"stats-mode extended") == b"USING extended"
        return yaml_mapping(self.ask(b"stats"))

    def on_disk(self) -> int:
        """Return the bytes of evicted bodies, which are on disk only."""
        return int(self.stats()["body-bytes-on-disk"])


@contextmanager
def serving(directory: Path) -> Iterator[tuple[Daemon, Talk]]:
    flags = (*FLAGS, "-b", str(directory), "-s", "1000000")
    with Daemon(*flags, command=EXECUTED) as daemon, closing(Talk(daemon.port)) as talk:
        yield daemon, talk


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[tuple[Daemon, Talk]]:
    """A server whose bodies exceed the memory limit, so that many are evicted."""
    with serving(tmp_path) as (daemon, talk):
        for id in range(1, COUNT + 1):
            assert talk.put(id) == b"INSERTED %d" % id
        assert talk.on_disk() > COUNT * SIZE / 4
        yield daemon, talk


def test_evicted_bodies_are_served_in_order_in_bounded_memory(filled: tuple[Daemon, Talk]) -> None:
    daemon, talk = filled
    assert rss(daemon) < BOUND
    for first in range(1, COUNT + 1, 8):
        talk.send(b"reserve\r\n" * 8)
        for id in range(first, first + 8):
            assert talk.job() == (b"RESERVED", id, body_of(id))
            assert rss(daemon) < BOUND
        for id in range(first, first + 8):
            assert talk.ask(b"delete %d" % id) == b"DELETED"
    stats = talk.stats()
    assert (stats["body-bytes-in-memory"], stats["body-bytes-on-disk"]) == ("0", "0")


def test_commands_after_a_wait_for_a_body_keep_their_order(filled: tuple[Daemon, Talk]) -> None:
    talk = filled[1]
    talk.send(b"peek %d\r\nlist-tube-used\r\npeek %d\r\nuse x\r\npeek-ready\r\n" % (COUNT - 5, COUNT - 9))
    assert talk.job() == (b"FOUND", COUNT - 5, body_of(COUNT - 5))
    assert talk.read_reply() == b"USING default"
    assert talk.job() == (b"FOUND", COUNT - 9, body_of(COUNT - 9))
    assert talk.read_reply() == b"USING x"
    assert talk.read_reply() == b"NOT_FOUND"


def test_half_closed_client_gets_its_replies(filled: tuple[Daemon, Talk]) -> None:
    talk = filled[1]
    talk.send(b"peek %d\r\npeek %d\r\nreserve-job %d\r\n" % (COUNT - 5, COUNT - 20, COUNT - 6))
    talk.half_close()
    assert talk.job() == (b"FOUND", COUNT - 5, body_of(COUNT - 5))
    assert talk.job() == (b"FOUND", COUNT - 20, body_of(COUNT - 20))
    assert talk.job() == (b"RESERVED", COUNT - 6, body_of(COUNT - 6))
    assert talk.read_reply() == END


def test_job_of_a_client_that_disconnects_during_a_read_is_ready_again(filled: tuple[Daemon, Talk]) -> None:
    daemon, talk = filled
    id = COUNT - 5
    for _ in range(20):
        with closing(Talk(daemon.port)) as gone:
            gone.send(b"reserve-job %d\r\n" % id)
    eventually(lambda: talk.ask(b"reserve-job %d" % id).endswith(body_of(id)), "the job is ready again")


def test_waiting_worker_gets_a_job_with_an_evicted_body(filled: tuple[Daemon, Talk]) -> None:
    daemon, talk = filled
    id = COUNT - 10
    assert talk.job(b"reserve-job %d" % id) == (b"RESERVED", id, body_of(id))
    while talk.job(b"reserve")[1] != COUNT:
        pass
    with closing(Talk(daemon.port)) as worker:
        worker.send(b"reserve\r\n")
        assert talk.ask(b"release %d 0 0" % id) == b"RELEASED"
        assert worker.job() == (b"RESERVED", id, body_of(id))


def test_sparse_segments_are_compacted_under_the_memory_limit(filled: tuple[Daemon, Talk], tmp_path: Path) -> None:
    """A body that is read back to be copied is not evicted before the copy."""
    talk = filled[1]

    def put_and_delete() -> bool:
        reply = talk.put(0)
        if reply == b"OUT_OF_MEMORY":
            return False
        assert talk.ask(b"delete " + reply.split()[1]) == b"DELETED"
        return True

    for _ in range(2 * COUNT):
        eventually(put_and_delete, "bodies are copied, and then evicted")
    eventually(lambda: size_of(tmp_path) <= 2.5 * COUNT * SIZE, "the sparse segments are compacted")
    assert talk.on_disk() > COUNT * SIZE / 4
    for id in range(1, COUNT + 1):
        assert talk.job(b"peek %d" % id) == (b"FOUND", id, body_of(id))


def size_of(directory: Path) -> int:
    """Return the size in bytes of the journal's files; the server may remove one of them at the same time."""
    size = 0
    for path in directory.glob("journal.*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def test_restart_under_the_memory_limit_serves_all_jobs(filled: tuple[Daemon, Talk], tmp_path: Path) -> None:
    daemon, talk = filled
    assert talk.ask(b"delete 7") == b"DELETED"
    assert daemon.stop()[0] == 0
    with serving(tmp_path) as (again, after):
        assert rss(again) < BOUND
        assert after.on_disk() > COUNT * SIZE / 4
        for id in [*range(1, 7), *range(8, COUNT + 1)]:
            assert after.job(b"reserve") == (b"RESERVED", id, body_of(id))
            assert after.ask(b"delete %d" % id) == b"DELETED"


def test_job_with_a_damaged_body_is_buried(filled: tuple[Daemon, Talk], tmp_path: Path) -> None:
    """Other jobs are served, and the log names the job and the segment."""
    daemon, talk = filled
    id = COUNT - 10
    damage(tmp_path, body_of(id))
    assert talk.ask(b"peek %d" % id) == b"INTERNAL_ERROR"
    assert talk.ask(b"reserve-job %d" % id) == b"INTERNAL_ERROR"
    assert talk.ask(b"kick-job %d" % id) == b"KICKED"
    assert talk.job(b"peek %d" % (id - 1)) == (b"FOUND", id - 1, body_of(id - 1))
    assert talk.ask(b"delete %d" % id) == b"DELETED"
    stderr = daemon.stop()[1]
    assert stderr.count(f"the body of job {id} cannot be read back: journal.") == 1


def damage(directory: Path, body: bytes) -> None:
    """Flip one bit of *body* in the segment that contains it."""
    for path in directory.glob("journal.*"):
        offset = -1
        with suppress(FileNotFoundError):  # the server may remove an empty segment
            offset = path.read_bytes().find(body)
        if offset >= 0:
            with path.open("r+b") as file:
                file.seek(offset + 1000)
                file.write(bytes([body[1000] ^ 1]))
            return
    raise AssertionError("no segment contains the body")


def test_puts_without_a_journal_are_refused_at_the_memory_limit() -> None:
    with Daemon(*FLAGS, command=EXECUTED) as daemon, closing(Talk(daemon.port)) as talk:
        count = 0
        while talk.put(count + 1) != b"OUT_OF_MEMORY":
            count += 1
            assert count < 2 * COUNT
        assert rss(daemon) < BOUND
        assert talk.put(count + 1) == b"OUT_OF_MEMORY"
        assert talk.job(b"reserve") == (b"RESERVED", 1, body_of(1))
        assert talk.ask(b"delete 1") == b"DELETED"
        assert talk.put(count + 1).startswith(b"INSERTED ")
        assert talk.stats()["body-bytes-in-memory"] == str(count * SIZE)


def test_memory_limit_below_the_minimum_is_refused() -> None:
    found = run("--memory-limit", "1000000")
    assert found.returncode == EXIT_USAGE
    assert f"{LEAST_LIMIT} or more, or 0 (no limit)" in found.stderr
