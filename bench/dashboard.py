"""Measure what open dashboards cost the workers: python -m bench.dashboard. See README.md.

One Greenstalk Server holds a million jobs, 100,000 of them buried with an error, and ten thousand tubes. In turns,
`cycle` runs on 20 connections without viewers; and with ten open tabs, a search that repeatedly scans every job, and a
grouping of the errors that is repeated too. Then each page is loaded.
"""

import argparse
import json
import re
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from statistics import median
from typing import Final
from urllib.parse import urlencode

from .cpus import Cpus, choose_cpus
from .errors import BenchError
from .generator import running_generator
from .measure import Sample, speed
from .modes import METRIC_LABELS, Metric, Mode
from .programs import build
from .report import OURS, Figure
from .servers import OURS_COMMAND, Contender, Server, running_server
from .viewer import open_tab

JOBS: Final = 1_000_000
TUBES: Final = 10_000
FAILED_JOBS: Final = 100_000
LARGE: Final = "large"
FAILED: Final = "failed"
REQUESTS: Final = 5
"""Number of requests for each page."""

MAX_P99_RATIO: Final = 1.3
MAX_PAGE_MS: Final = 100.0

CYCLE: Final = Mode("cycle", "cycle", "put, reserve, delete; one command in flight", connections=20)
COMPARED: Final[tuple[Metric, ...]] = ("cpu_us", "rate", "p50_us", "p99_us", "p999_us", "others_busy")

TABS: Final = (
    *[{"page": "overview"}] * 3,
    {"page": "overview", "sort": "ready", "desc": "1"},
    *[{"page": "tube", "tube": LARGE}] * 3,
    {"page": "tube", "tube": "default"},
    {"page": "tube", "tube": "tube-0001"},
    {"page": "connections"},
)
"""The pages that ten viewers have open."""

PAGES: Final = (
    "/",
    "/?sort=ready&desc=1",
    f"/tube?tube={LARGE}",
    f"/tube?tube={FAILED}&state=buried",
    "/job?id=1",
    "/connections",
    "/search",
    "/policies",
    "/audit",
)
SEARCH: Final = "body:matches-no-job"

_CHUNK: Final = 1_000
_TASK: Final = re.compile(r"(?:task|id)=([0-9a-f]{16})")


class Dashboard:
    """A client of the dashboard of a server under test, which sends requests as a browser does."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str, **query: str) -> str:
        """Return the body of a page; raise BenchError if it does not exist."""
        return self._ask("GET", f"{path}?{urlencode(query)}" if query else path)[1]

    def post(self, path: str, **form: str) -> str:
        """Submit a form; return the location it redirects to."""
        return self._ask("POST", path, urlencode(form))[0]

    def start_grouping(self) -> str:
        """Start a new grouping of the failed jobs; return its page."""
        return self.get("/tube/errors", tube=FAILED, state="buried", refresh="1")

    def is_running(self, task: str) -> bool:
        shown = json.loads(self.get("/live", page="task", id=task))["shown"]
        return bool(shown["task-running"])

    def _ask(self, method: str, path: str, body: str | None = None) -> tuple[str, str]:
        host = f"127.0.0.1:{self.port}"
        connection = HTTPConnection(host, timeout=30)
        headers = {"Origin": f"http://{host}", "Content-Type": "application/x-www-form-urlencoded"}
        try:
            connection.request(method, path, body, headers if body is not None else {})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.status not in (200, 303):
            raise BenchError(f"{method} {path}: {response.status} {response.reason}")
        return response.getheader("Location", ""), text


class MeasurementEnded(Exception):
    """The measurement has ended."""


class Viewers:
    """Ten open tabs; and a search and a grouping of errors, each restarted when it ends."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._watch, self._search, self._group)]
        self._tabs = [open_tab(dashboard.port, **tab) for tab in TABS]
        self.received = 0
        self.started = {"search": 0, "grouping": 0}
        self.error: Exception | None = None

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Close the tabs and stop the threads; raise BenchError if any of them failed."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        for tab in self._tabs:
            tab.close()
        if self.error is not None:
            raise BenchError(f"dashboard: {self.error}") from self.error
        if not (self.received and all(self.started.values())):
            raise BenchError("dashboard: nothing was received, searched or grouped")

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for tab in self._tabs:
                selector.register(tab, selectors.EVENT_READ, tab)
            while not self._is_over.is_set():
                for key, _ in selector.select(0.2):
                    data = key.data.recv(65536)
                    if not data:
                        self.error = BenchError("an event stream ended")
                        return
                    self.received += len(data)

    def _search(self) -> None:
        self._repeat(self._search_once)

    def _search_once(self) -> None:
        self.started["search"] += 1
        self._wait_for_task(self._dashboard.get("/search", q=SEARCH))

    def _group(self) -> None:
        self._repeat(self._group_once)

    def _group_once(self) -> None:
        self.started["grouping"] += 1
        self._wait_for_task(self._dashboard.start_grouping())

    def _wait_for_task(self, text: str) -> None:
        """Wait until the task in *text* has ended; when the measurement ends, cancel it and raise MeasurementEnded."""
        task = _task_of(text)
        while self._dashboard.is_running(task):
            if self._is_over.wait(0.25):
                self._dashboard.post("/task/cancel", id=task)
                raise MeasurementEnded

    def _repeat(self, do: Callable[[], None]) -> None:
        try:
            while not self._is_over.is_set():
                do()
        except MeasurementEnded:
            pass
        except Exception as error:  # noqa: BLE001  `stop` raises it
            self.error = error


def main() -> int:
    """Run the benchmark; return its exit status: 0, or 1 if it failed."""
    options = _parser().parse_args()
    cpus, ours = choose_cpus(), Contender(OURS, OURS_COMMAND)
    try:
        with running_server(ours, CYCLE, "", cpus.server, has_dashboard=True) as server:
            _fill(server.port)
            assert server.web_port is not None
            dashboard = Dashboard(server.web_port)
            alone, watched = _rounds(cpus, server, dashboard, options.rounds, options.seconds)
            pages = {page: _page_ms(server, dashboard, page) for page in PAGES}
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(_table(alone, watched, options))
    for page, ms in pages.items():
        print(f"  {page:40} {ms:8.1f} ms of server CPU", _target(ms, MAX_PAGE_MS, "ms"))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="measurements with and without viewers (5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a measurement (3)")
    return parser


def _fill(port: int) -> None:
    """Put one job into each small tube, bury the failed jobs, and put the rest into the large tube."""
    puts = [b"use tube-%04d\r\nput 1000 0 60 2\r\n{}\r\n" % number for number in range(TUBES)]
    body = b"x" * 128
    job = b"put 1000 0 60 %d\r\n%b\r\n" % (len(body), body)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        for begin in range(0, TUBES, _CHUNK):
            _converse(sock, b"".join(puts[begin : begin + _CHUNK]), 2 * _CHUNK)
        _converse(sock, f"use {FAILED}\r\n".encode(), 1)
        for begin in range(0, FAILED_JOBS, _CHUNK):
            failed = [_failed_job(number) for number in range(begin, begin + _CHUNK)]
            _converse(sock, b"".join(failed), _CHUNK)
        first = TUBES + 1
        for begin in range(first, first + FAILED_JOBS, _CHUNK):
            ids = range(begin, begin + _CHUNK)
            _converse(sock, b"".join([b"reserve-job %d\r\nbury %d 0\r\n" % (id, id) for id in ids]), 3 * _CHUNK)
        _converse(sock, f"use {LARGE}\r\n".encode(), 1)
        for _ in range(0, JOBS - TUBES - FAILED_JOBS, _CHUNK):
            _converse(sock, job * _CHUNK, _CHUNK)


def _failed_job(number: int) -> bytes:
    """Return a put of a job with one of 20 errors, after normalisation."""
    error = f"{'ABCDEFGHIJKLMNOPQRST'[number % 20]}Error: row {number} of 'batch-{number}.csv' has no field"
    body = json.dumps({"file": f"batch-{number}.csv", "attempt": 3, "error": error}).encode()
    return b"put 1000 0 60 %d\r\n%b\r\n" % (len(body), body)


def _converse(sock: socket.socket, commands: bytes, replies: int) -> None:
    sock.sendall(commands)
    while replies > 0:
        data = sock.recv(65536)
        if not data:
            raise BenchError("the server closed the connection")
        replies -= data.count(b"\n")


def _rounds(
    cpus: Cpus, server: Server, dashboard: Dashboard, rounds: int, seconds: float
) -> tuple[list[Sample], list[Sample]]:
    """Return samples without and with viewers, taken in turns."""
    alone, watched = [], []
    for _ in range(rounds):
        alone.append(_sample(cpus, server, seconds))
        with _watched(dashboard):
            watched.append(_sample(cpus, server, seconds))
    return alone, watched


def _sample(cpus: Cpus, server: Server, seconds: float) -> Sample:
    arguments = CYCLE.load_arguments(seconds)
    with running_generator(build("load"), server.port, arguments, seconds, cpus.load) as generator:
        return speed(cpus, server, generator)


@contextmanager
def _watched(dashboard: Dashboard) -> Iterator[None]:
    viewers = Viewers(dashboard)
    viewers.start()
    try:
        time.sleep(1)  # until the search and the bulk action are running
        yield
    finally:
        viewers.stop()


def _page_ms(server: Server, dashboard: Dashboard, page: str) -> float:
    spent = []
    for _ in range(REQUESTS):
        before = server.cpu_ns()
        dashboard.get(page)
        spent.append((server.cpu_ns() - before) / 1e6)
    return median(spent)


def _target(value: float, most: float, unit: str) -> str:
    return f"({'reached' if value <= most else 'MISSED'}: at most {most:g} {unit})"


def _table(alone: list[Sample], watched: list[Sample], options: argparse.Namespace) -> str:
    lines = [
        f"dashboard: {CYCLE.about}; {JOBS:,} jobs, {TUBES:,} tubes",
        f"  {CYCLE.conditions}; median (lowest..highest) of {options.rounds} rounds of {options.seconds:g} s",
        f"  {'':30}{'no viewers':>28}{'10 tabs, search, errors':>28}{'ratio':>8}",
    ]
    for metric in COMPARED:
        before, after = ([sample[metric] for sample in samples] for samples in (alone, watched))
        ratio = median(after) / median(before) if median(before) else 0.0
        lines.append(f"  {METRIC_LABELS[metric]:30}{Figure.of(before)!s:>28}{Figure.of(after)!s:>28}{ratio:8.2f}")
    p99 = median([sample["p99_us"] for sample in watched]) / median([sample["p99_us"] for sample in alone])
    lines.append(f"  p99 is {p99:.2f} times that without viewers {_target(p99, MAX_P99_RATIO, 'times')}")
    return "\n".join(lines)


def _task_of(text: str) -> str:
    found = _TASK.search(text)
    if found is None:
        raise BenchError("dashboard: no task was started")
    return found[1]


if __name__ == "__main__":
    sys.exit(main())
