"""--memory-limit, by the real command: bodies that lie on disk are served as all others, and memory stays bounded."""

from __future__ import annotations

import socket
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import psutil
import pytest

from greenstalk_server.core.body_cache import LEAST_LIMIT
from greenstalk_server.runtime.exit_codes import EXIT_USAGE
from tests.support.daemon import PATIENCE, Daemon, run

SIZE = 500_000
COUNT = 120
"""Bodies of 60 MB in all: more than is left of the limit beside the process itself."""

BOUND = LEAST_LIMIT + 2**25
"""Bytes; what is read, and what is on its way to clients, comes on top of what jobs take."""

FLAGS = ("-l", "127.0.0.1", "-p", "0", "--no-web", "-z", "1000000", "--memory-limit", str(LEAST_LIMIT))


def body_of(id: int) -> bytes:
    return zlib.crc32(b"%d" % id).to_bytes(4, "big") * (SIZE // 4)


class Talk:
    """A connection that reads whole replies."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.reader = self.sock.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.reader.close()
        self.sock.close()

    def line(self, request: bytes = b"") -> bytes:
        if request:
            self.sock.sendall(request)
        return self.reader.readline().rstrip(b"\r\n")

    def job(self, request: bytes = b"") -> tuple[bytes, int, bytes]:
        """The word, the id and the body of a reply that brings a job."""
        word, id, size = self.line(request).split()
        data = self.reader.read(int(size) + 2)
        assert data.endswith(b"\r\n")
        return word, int(id), data[:-2]

    def put(self, id: int) -> bytes:
        return self.line(b"put 0 0 600 %d\r\n%b\r\n" % (SIZE, body_of(id)))

    def stats(self) -> dict[str, str]:
        size = int(self.line(b"stats\r\n").split()[1])
        text = self.reader.read(size + 2).decode()
        return dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)

    def on_disk(self) -> int:
        """Bytes of bodies on disk alone."""
        return int(self.stats()["body-bytes-on-disk"])


@contextmanager
def serving(directory: Path) -> Iterator[tuple[Daemon, Talk]]:
    with Daemon(*FLAGS, "-b", str(directory), "-s", "1000000") as daemon, Talk(daemon.port) as talk:
        yield daemon, talk


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[tuple[Daemon, Talk]]:
    """A server with more than its memory takes."""
    with serving(tmp_path) as (daemon, talk):
        for id in range(1, COUNT + 1):
            assert talk.put(id) == b"INSERTED %d" % id
        assert talk.on_disk() > COUNT * SIZE / 4
        yield daemon, talk


def memory(daemon: Daemon) -> int:
    """Bytes that the server has in memory."""
    return int(psutil.Process(daemon.process.pid).memory_info().rss)


def test_all_are_served_in_order_and_memory_is_bounded(filled: tuple[Daemon, Talk]) -> None:
    daemon, talk = filled
    assert memory(daemon) < BOUND
    for first in range(1, COUNT + 1, 8):
        talk.sock.sendall(b"reserve\r\n" * 8)
        for id in range(first, first + 8):
            assert talk.job() == (b"RESERVED", id, body_of(id))
            assert memory(daemon) < BOUND
        for id in range(first, first + 8):
            assert talk.line(b"delete %d\r\n" % id) == b"DELETED"
    stats = talk.stats()
    assert (stats["body-bytes-in-memory"], stats["body-bytes-on-disk"]) == ("0", "0")


def test_commands_behind_one_that_waits_for_its_body_keep_their_order(filled: tuple[Daemon, Talk]) -> None:
    talk = filled[1]
    talk.sock.sendall(b"peek %d\r\nlist-tube-used\r\npeek %d\r\nuse x\r\npeek-ready\r\n" % (COUNT - 5, COUNT - 9))
    assert talk.job() == (b"FOUND", COUNT - 5, body_of(COUNT - 5))
    assert talk.line() == b"USING default"
    assert talk.job() == (b"FOUND", COUNT - 9, body_of(COUNT - 9))
    assert talk.line() == b"USING x"
    assert talk.line() == b"NOT_FOUND"


def test_a_client_that_closes_its_side_gets_what_it_has_asked_for(filled: tuple[Daemon, Talk]) -> None:
    talk = filled[1]
    talk.sock.sendall(b"peek %d\r\npeek %d\r\nreserve-job %d\r\n" % (COUNT - 5, COUNT - 20, COUNT - 6))
    talk.sock.shutdown(socket.SHUT_WR)
    assert talk.job() == (b"FOUND", COUNT - 5, body_of(COUNT - 5))
    assert talk.job() == (b"FOUND", COUNT - 20, body_of(COUNT - 20))
    assert talk.job() == (b"RESERVED", COUNT - 6, body_of(COUNT - 6))
    assert talk.reader.read() == b""


def test_one_that_goes_while_it_waits_leaves_the_job_to_others(filled: tuple[Daemon, Talk]) -> None:
    daemon, talk = filled
    id = COUNT - 5
    for _ in range(20):
        with Talk(daemon.port) as gone:
            gone.sock.sendall(b"reserve-job %d\r\n" % id)
    while talk.line(b"reserve-job %d\r\n" % id) == b"NOT_FOUND":
        pass  # it is on its way back
    assert talk.reader.read(SIZE + 2) == body_of(id) + b"\r\n"


def test_a_waiting_worker_gets_a_job_whose_body_is_on_disk(filled: tuple[Daemon, Talk]) -> None:
    daemon, talk = filled
    id = COUNT - 10
    assert talk.job(b"reserve-job %d\r\n" % id) == (b"RESERVED", id, body_of(id))
    while talk.job(b"reserve\r\n")[1] != COUNT:
        pass
    with Talk(daemon.port) as worker:
        worker.sock.sendall(b"reserve\r\n")
        assert talk.line(b"release %d 0 0\r\n" % id) == b"RELEASED"
        assert worker.job() == (b"RESERVED", id, body_of(id))


def test_files_of_few_jobs_are_compacted_though_memory_is_short(filled: tuple[Daemon, Talk], tmp_path: Path) -> None:
    """What is read back to be copied is not let go again before."""
    talk = filled[1]
    for id in range(COUNT + 1, 3 * COUNT):
        assert talk.put(id) == b"INSERTED %d" % id
        assert talk.line(b"delete %d\r\n" % id) == b"DELETED"
    deadline = time.monotonic() + PATIENCE
    while size_of(tmp_path) > 2.5 * COUNT * SIZE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert talk.on_disk() > COUNT * SIZE / 4
    for id in range(1, COUNT + 1):
        assert talk.job(b"peek %d\r\n" % id) == (b"FOUND", id, body_of(id))


def size_of(directory: Path) -> int:
    """Bytes of the journal's files, of which one may go meanwhile."""
    size = 0
    for path in directory.glob("journal.*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def test_a_restart_under_the_limit_serves_all(filled: tuple[Daemon, Talk], tmp_path: Path) -> None:
    daemon, talk = filled
    assert talk.line(b"delete 7\r\n") == b"DELETED"
    assert daemon.stop()[0] == 0
    with serving(tmp_path) as (again, after):
        assert memory(again) < BOUND
        assert after.on_disk() > COUNT * SIZE / 4
        for id in [*range(1, 7), *range(8, COUNT + 1)]:
            assert after.job(b"reserve\r\n") == (b"RESERVED", id, body_of(id))
            assert after.line(b"delete %d\r\n" % id) == b"DELETED"


def test_a_body_that_is_damaged_is_an_error_and_its_job_is_buried(filled: tuple[Daemon, Talk], tmp_path: Path) -> None:
    """The others are served; and the log says which it was, and where."""
    daemon, talk = filled
    id = COUNT - 10
    damage(tmp_path, body_of(id))
    assert talk.line(b"peek %d\r\n" % id) == b"INTERNAL_ERROR"
    assert talk.line(b"reserve-job %d\r\n" % id) == b"INTERNAL_ERROR"
    assert talk.line(b"kick-job %d\r\n" % id) == b"KICKED"
    assert talk.job(b"peek %d\r\n" % (id - 1)) == (b"FOUND", id - 1, body_of(id - 1))
    assert talk.line(b"delete %d\r\n" % id) == b"DELETED"
    said = daemon.stop()[1]
    assert said.count(f"the body of job {id} cannot be read back: journal.") == 1


def damage(directory: Path, body: bytes) -> None:
    """Turn over one bit of *body* in the journal's file that has it."""
    for path in directory.glob("journal.*"):
        at = -1
        with suppress(FileNotFoundError):  # of one that was made ahead, and has gone
            at = path.read_bytes().find(body)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at + 1000)
                file.write(bytes([body[1000] ^ 1]))
            return
    raise AssertionError("no file holds it")


def test_without_a_journal_puts_are_refused_at_the_limit() -> None:
    with Daemon(*FLAGS) as daemon, Talk(daemon.port) as talk:
        done = 0
        while talk.put(done + 1) != b"OUT_OF_MEMORY":
            done += 1
            assert done < 2 * COUNT
        assert memory(daemon) < BOUND
        assert talk.put(done + 1) == b"OUT_OF_MEMORY"
        assert talk.job(b"reserve\r\n") == (b"RESERVED", 1, body_of(1))
        assert talk.line(b"delete 1\r\n") == b"DELETED"
        assert talk.put(done + 1).startswith(b"INSERTED ")
        assert talk.stats()["body-bytes-in-memory"] == str(done * SIZE)


def test_a_limit_that_is_too_small_is_refused() -> None:
    found = run("--memory-limit", "1000000")
    assert found.returncode == EXIT_USAGE
    assert f"{LEAST_LIMIT} or more, or 0 (no limit)" in found.stderr
