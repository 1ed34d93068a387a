"""Measure the cost of open dashboards to the workers: python -m bench.dashboard. See README.md.

One Greenstalk Server holds a million jobs, 100,000 of them buried with an error, and ten thousand tubes. `cycle` runs
on 20 connections, in turns without viewers and with viewers: ten open tabs, a search that repeatedly scans every job,
and a repeated grouping of the errors. Then each page is loaded.
"""

import argparse
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Final
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from .client import Client
from .cpus import Cpus, choose_cpus
from .errors import BenchError
from .generator import running_generator
from .measure import Sample, speed
from .modes import METRIC_LABELS, Metric, Mode
from .programs import build
from .report import OURS, Figure
from .servers import OURS_COMMAND, Contender, Server, running_server
from .viewer import dashboard_viewer

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

_TASK: Final = re.compile(r"(?:task|id)=([0-9a-f]{16})")


class Dashboard:
    """A client of the dashboard of a server under test, which sends requests as a browser does."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._home = f"http://127.0.0.1:{port}"

    def get(self, path: str, **query: str) -> str:
        """Return the body of a page; raise BenchError if it does not exist."""
        return self._ask(f"{path}?{urlencode(query)}" if query else path)

    def search(self) -> str:
        """Start a search of all jobs; return its page."""
        return self.get("/search", q=SEARCH)

    def group(self) -> str:
        """Start a new grouping of the failed jobs; return its page."""
        return self.get("/tube/errors", tube=FAILED, state="buried", refresh="1")

    def is_running(self, task: str) -> bool:
        shown = json.loads(self.get("/live", page="task", id=task))["shown"]
        return bool(shown["task-running"])

    def cancel(self, task: str) -> None:
        self._ask("/task/cancel", urlencode({"id": task}).encode())

    def _ask(self, path: str, form: bytes | None = None) -> str:
        request = Request(f"{self._home}{path}", form, {"Origin": self._home})  # noqa: S310  it is http
        try:
            with urlopen(request, timeout=30) as response:  # noqa: S310
                text: str = response.read().decode()
        except HTTPError as error:
            raise BenchError(f"{path}: {error.code} {error.reason}") from error
        return text


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
    client = Client(port)
    client.ask_all(b"put-in-tube tube-%04d 1000 0 60 2\r\n{}\r\n" % number for number in range(TUBES))
    client.ask_all(_failed_job(number) for number in range(FAILED_JOBS))
    client.ask_all((b"reserve-job %d\r\nbury %d 0\r\n" % (TUBES + 1 + n, TUBES + 1 + n) for n in range(FAILED_JOBS)), 3)
    body = b"x" * 128
    job = b"put-in-tube %b 1000 0 60 %d\r\n%b\r\n" % (LARGE.encode(), len(body), body)
    client.ask_all([job] * (JOBS - TUBES - FAILED_JOBS))
    client.close()


def _failed_job(number: int) -> bytes:
    """Return a put of a job with one of 20 errors, after normalisation."""
    error = f"{'ABCDEFGHIJKLMNOPQRST'[number % 20]}Error: row {number} of 'batch-{number}.csv' has no field"
    body = json.dumps({"file": f"batch-{number}.csv", "attempt": 3, "error": error}).encode()
    return b"put-in-tube %b 1000 0 60 %d\r\n%b\r\n" % (FAILED.encode(), len(body), body)


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
    """Inside the block, keep TABS open, and restart a search and a grouping of errors whenever they end."""
    is_over = threading.Event()
    with ExitStack() as tabs, ThreadPoolExecutor() as threads:
        for tab in TABS:
            tabs.enter_context(dashboard_viewer(dashboard.port, **tab))
        tasks = [threads.submit(_repeat, dashboard, start, is_over) for start in (dashboard.search, dashboard.group)]
        try:
            time.sleep(1)  # until both tasks are running
            yield
        finally:
            is_over.set()
        for task in tasks:
            task.result()


def _repeat(dashboard: Dashboard, start: Callable[[], str], is_over: threading.Event) -> None:
    """Start a task again and again, and cancel the last one."""
    while True:
        task = _task_of(start())
        while dashboard.is_running(task):
            if is_over.wait(0.25):
                dashboard.cancel(task)
                return


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
