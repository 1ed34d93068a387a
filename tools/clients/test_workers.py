"""Each worker of the pages, with this server and with beanstalkd: how jobs end, restarts of the server, and SIGTERM."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.daemon import MINDING_SIGNALS, TIMEOUT
from tests.support.peer import eventually
from tests.support.processes import end, ending

from .programs import PROGRAMS, Program
from .servers import KINDS, QueueServer
from .website import Website

pytestmark = pytest.mark.timeout(600)

TUBE = "pages"


@pytest.fixture(scope="module", params=PROGRAMS)
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
    """The program's worker, and its producer."""

    def __init__(self, program: Program, server: QueueServer, website: Website, directory: Path, log: Path) -> None:
        self._program, self._server, self._website, self._directory = program, server, website, directory
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*MINDING_SIGNALS, *program.command()],
                cwd=directory,
                env=program.environ(server.address),
                stdout=output,
                stderr=output,
                start_new_session=True,
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


@pytest.fixture(scope="module")
def directory(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which the program is installed."""
    installed = tmp_path_factory.mktemp("program")
    program.install(installed)
    return installed


@pytest.fixture
def worker(
    program: Program, server: QueueServer, website: Website, directory: Path, tmp_path: Path
) -> Iterator[Worker]:
    log = tmp_path / "worker.log"
    started = Worker(program, server, website, directory, log)
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and its supervisor too
            os.killpg(started.process.pid, signal.SIGKILL)
        end(started.process)
        print(log.read_text(errors="replace"))  # pytest shows it if the test fails


def expect(server: QueueServer, counts: Mapping[str, int], tube: str = TUBE) -> None:
    """Wait until *tube* has exactly *counts* jobs, by state."""
    try:
        eventually(lambda: server.counts(tube) == counts, f"the jobs are {counts}")
    except AssertionError as error:
        raise AssertionError(f"{error}, but {server.counts(tube)}") from None


def only(condition: Callable[[Program], bool]) -> pytest.MarkDecorator:
    """Select the programs that meet *condition*."""
    names = [name for name, program in PROGRAMS.items() if condition(program)]
    return pytest.mark.parametrize("program", names, indirect=True, scope="module")


def test_successful_job_is_deleted(worker: Worker, server: QueueServer, website: Website) -> None:
    worker.put("/page/1", "/page/2")
    assert [website.next_request() for _ in range(2)] == ["/page/1", "/page/2"]
    expect(server, {})
    assert server.stats()["cmd-delete"] == 1


def test_failed_job_is_kept(worker: Worker, program: Program, server: QueueServer, website: Website) -> None:
    tube, state = program.failed
    worker.put("/missing/1")
    expect(server, {state: 1}, tube)
    worker.put("/page/1")
    assert [website.next_request() for _ in range(2)] == ["/missing/1", "/page/1"]
    expect(server, {state: 1}, tube)


def test_job_with_an_invalid_body_does_not_stop_the_worker(
    worker: Worker, program: Program, server: QueueServer, website: Website
) -> None:
    with server.client(TUBE) as queue:
        queue.put(b"\xff")
    worker.put("/page/1")
    assert website.next_request() == "/page/1"
    expect(server, {"buried": 1} if program.keeps_invalid_bodies else {})


def test_job_is_tried_again_after_a_temporary_error(
    worker: Worker, program: Program, server: QueueServer, website: Website
) -> None:
    worker.put("/busy/1")
    expect(server, {"delayed": 1})
    website.finish("/busy/1")
    with server.client(TUBE) as queue:
        assert queue.kick(10) == 1
    expect(server, {})
    assert server.stats()["cmd-release"] == program.releases


@only(lambda program: program.touches)
def test_job_is_touched_between_steps(worker: Worker, server: QueueServer, website: Website) -> None:
    worker.put("/page/1", "/slow/2")
    assert [website.next_request() for _ in range(2)] == ["/page/1", "/slow/2"]
    assert server.stats()["cmd-touch"] == 1
    website.finish("/slow/2")
    expect(server, {})


def test_worker_reconnects_to_a_restarted_server(worker: Worker, server: QueueServer, website: Website) -> None:
    worker.put("/page/1")
    assert website.next_request() == "/page/1"
    expect(server, {})
    eventually(lambda: server.stats()["current-waiting"] == 1, "the worker waits for a job")
    server.kill()
    server.start()
    worker.put("/page/2")
    assert website.next_request() == "/page/2"
    expect(server, {})


def test_job_outlives_a_restart_of_the_server(worker: Worker, server: QueueServer, website: Website) -> None:
    worker.put("/slow/1")
    assert website.next_request() == "/slow/1"
    server.kill()
    server.start()
    website.finish("/slow/1")
    expect(server, {})
    worker.put("/page/2")
    eventually(lambda: website.next_request() == "/page/2", "the worker does the next job")
    expect(server, {})


@only(lambda program: program.is_supervised)
def test_worker_ends_when_it_cannot_reconnect(
    program: Program, server: QueueServer, directory: Path, tmp_path: Path
) -> None:
    with (tmp_path / "worker.log").open("wb") as log:
        environ = program.environ(server.address)
        with ending(subprocess.Popen(program.worker, cwd=directory, env=environ, stdout=log, stderr=log)) as process:
            eventually(lambda: server.stats()["current-waiting"] == 1, "the worker waits for a job")
            server.kill()
            process.wait(TIMEOUT)


def test_worker_finishes_its_job_after_sigterm(worker: Worker, server: QueueServer, website: Website) -> None:
    worker.put("/slow/1")
    assert website.next_request() == "/slow/1"
    worker.put("/page/2")
    worker.terminate()
    website.finish("/slow/1")
    assert worker.exit_code() == 0
    assert website.requested.empty()
    expect(server, {"ready": 1})


def test_idle_worker_stops_after_sigterm(worker: Worker, server: QueueServer) -> None:
    eventually(lambda: server.stats()["current-waiting"] == 1, "the worker waits for a job")
    worker.terminate()
    assert worker.exit_code() == 0
