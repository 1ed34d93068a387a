"""Each worker of the pages, with this server and with beanstalkd: how jobs end, restarts of the server, and SIGTERM."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import MINDING_SIGNALS, TIMEOUT
from tests.support.peer import eventually
from tests.support.processes import end

from .programs import PROGRAMS, Program
from .servers import KINDS, QueueServer
from .website import Website

pytestmark = pytest.mark.timeout(600)

TUBE = "pages"


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> Program:
    return PROGRAMS[request.param]


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QueueServer]:
    directory = tmp_path / "journal"
    directory.mkdir()
    with QueueServer(request.param, directory) as started:
        yield started


@pytest.fixture
def website() -> Iterator[Website]:
    with Website() as started:
        yield started


class Worker:
    """The program's worker in a directory of its own, and its producer."""

    def __init__(self, program: Program, server: QueueServer, website: Website, directory: Path) -> None:
        self._program, self._server, self._website, self._directory = program, server, website, directory
        program.install(directory)
        self.log = directory / "worker.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*MINDING_SIGNALS, *program.worker],
                cwd=directory,
                env=program.environ(server.address),
                stdout=log,
                stderr=log,
            )

    def put(self, *paths: str) -> None:
        """Put one job with the producer of the page."""
        self._program.put(self._directory, self._server.address, *map(self._website.url, paths))

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def exit_code(self) -> int:
        """Wait for the end of the worker."""
        return self.process.wait(TIMEOUT)


@pytest.fixture
def worker(program: Program, server: QueueServer, website: Website, tmp_path: Path) -> Iterator[Worker]:
    (tmp_path / "work").mkdir()
    started = Worker(program, server, website, tmp_path / "work")
    try:
        yield started
    finally:
        started.process.kill()
        end(started.process)
        print(started.log.read_text(errors="replace"))  # pytest shows it if the test fails


def expect(server: QueueServer, **counts: int) -> None:
    """Wait until the tube has exactly these jobs."""
    try:
        eventually(lambda: server.counts(TUBE) == counts, f"the jobs are {counts}")
    except AssertionError as error:
        raise AssertionError(f"{error}, but {server.counts(TUBE)}") from None


def test_successful_job_is_deleted(worker: Worker, server: QueueServer, website: Website) -> None:
    worker.put("/page/1", "/page/2")
    assert [website.next_request() for _ in range(2)] == ["/page/1", "/page/2"]
    expect(server)
    assert server.stats()["cmd-delete"] == 1


def test_failed_job_is_buried(worker: Worker, server: QueueServer, website: Website) -> None:
    worker.put("/missing/1")
    expect(server, buried=1)
    worker.put("/page/1")
    assert [website.next_request() for _ in range(2)] == ["/missing/1", "/page/1"]
    expect(server, buried=1)


def test_invalid_job_is_buried(worker: Worker, server: QueueServer) -> None:
    with server.client(TUBE) as queue:
        queue.put(b"\xff")
    expect(server, buried=1)


def test_job_is_released_after_a_temporary_error(worker: Worker, server: QueueServer, website: Website) -> None:
    worker.put("/busy/1")
    expect(server, delayed=1)
    website.finish("/busy/1")
    with server.client(TUBE) as queue:
        assert queue.kick(10) == 1
    expect(server)
    assert server.stats()["cmd-release"] == 1


@pytest.mark.parametrize("program", [name for name, one in PROGRAMS.items() if one.touches], indirect=True)
def test_job_is_touched_between_steps(worker: Worker, server: QueueServer, website: Website) -> None:
    worker.put("/page/1", "/slow/2")
    assert [website.next_request() for _ in range(2)] == ["/page/1", "/slow/2"]
    assert server.stats()["cmd-touch"] == 1
    website.finish("/slow/2")
    expect(server)


def test_worker_reconnects_to_a_restarted_server(worker: Worker, server: QueueServer, website: Website) -> None:
    worker.put("/page/1")
    assert website.next_request() == "/page/1"
    expect(server)
    eventually(lambda: server.stats()["current-waiting"] == 1, "the worker waits for a job")
    server.kill()
    server.start()
    worker.put("/page/2")
    assert website.next_request() == "/page/2"
    expect(server)


def test_job_outlives_a_restart_of_the_server(worker: Worker, server: QueueServer, website: Website) -> None:
    worker.put("/slow/1")
    assert website.next_request() == "/slow/1"
    server.kill()
    server.start()
    website.finish("/slow/1")
    expect(server)
    worker.put("/page/2")
    eventually(lambda: website.next_request() == "/page/2", "the worker does the next job")
    expect(server)


def test_worker_finishes_its_job_after_sigterm(worker: Worker, server: QueueServer, website: Website) -> None:
    worker.put("/slow/1")
    assert website.next_request() == "/slow/1"
    worker.put("/page/2")
    worker.terminate()
    website.finish("/slow/1")
    assert worker.exit_code() == 0
    assert website.requested.empty()
    expect(server, ready=1)


def test_idle_worker_stops_after_sigterm(worker: Worker, server: QueueServer) -> None:
    eventually(lambda: server.stats()["current-waiting"] == 1, "the worker waits for a job")
    worker.terminate()
    assert worker.exit_code() == 0
