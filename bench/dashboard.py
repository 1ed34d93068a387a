"""What open dashboards cost the workers: python -m bench.dashboard. See README.md.

One server of ours, with a million jobs in one tube and two thousand tubes besides. In turns: `cycle` on 20
connections while nobody looks; and the same while ten tabs are open, a search passes over every job again and again,
and a bulk action over all of the large tube.
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
from .onlooker import open_tab
from .programs import build
from .report import OURS, Figure
from .servers import OURS_COMMAND, Contender, Server, running_server

JOBS: Final = 1_000_000
TUBES: Final = 2_000
LARGE: Final = "large"
PAGES: Final = 20
"""How often the first page of the large tube is asked for."""

P99_AT_MOST: Final = 1.5
PAGE_MS_AT_MOST: Final = 50.0

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
"""What ten people look at."""

SEARCH: Final = "body:there-is-none-such"
BULK: Final = {"scope": "all", "q": f"tube:{LARGE}", "tube": LARGE, "state": "ready", "action": "pri"}

_CHUNK: Final = 1_000
_TASK: Final = re.compile(r"(?:task|id)=([0-9a-f]{16})")


class Dashboard:
    """The dashboard of a server under test, as a browser asks it."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str, **query: str) -> str:
        """The body of a page that has to be there."""
        return self._ask("GET", f"{path}?{urlencode(query)}")[1]

    def post(self, path: str, **form: str) -> str:
        """Where a change leads to."""
        return self._ask("POST", path, urlencode(form))[0]

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


class Over(Exception):
    """The measurement has ended."""


class Onlookers:
    """Ten open tabs; and a search and a bulk action, each begun anew when it ends."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._watch, self._search, self._change)]
        self._tabs = [open_tab(dashboard.port, **tab) for tab in TABS]
        self.received = 0
        self.begun = {"search": 0, "bulk": 0}
        self.error: Exception | None = None

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Close the tabs, and end what runs; raise what went wrong meanwhile."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        for tab in self._tabs:
            tab.close()
        if self.error is not None:
            raise BenchError(f"dashboard: {self.error}") from self.error
        if not (self.received and all(self.begun.values())):
            raise BenchError("dashboard: nothing was received, searched or changed")

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for tab in self._tabs:
                selector.register(tab, selectors.EVENT_READ, tab)
            while not self._is_over.is_set():
                for key, _ in selector.select(0.2):
                    data = key.data.recv(65536)
                    if not data:
                        self.error = BenchError("a stream of events has ended")
                        return
                    self.received += len(data)

    def _search(self) -> None:
        self._repeat(self._search_once)

    def _search_once(self) -> None:
        self.begun["search"] += 1
        self._await_task(self._dashboard.get("/search", q=SEARCH))

    def _change(self) -> None:
        self._repeat(self._change_once)

    def _change_once(self) -> None:
        """The dry run, and then the run, of another priority for every job of the large tube."""
        self.begun["bulk"] += 1
        dry_run = self._dashboard.post("/bulk/preview", **BULK, pri=str(1_000 + self.begun["bulk"] % 2))
        self._await_task(dry_run)
        self._await_task(self._dashboard.post("/bulk/run", task=_task_of(dry_run)))

    def _await_task(self, text: str) -> None:
        """Return when the task that *text* names has ended; cancel it, and raise Over, when all this has."""
        task = _task_of(text)
        while json.loads(self._dashboard.get("/live", page="task", id=task))["shown"]["task-running"]:
            if self._is_over.wait(0.25):
                self._dashboard.post("/task/cancel", id=task)
                raise Over

    def _repeat(self, do: Callable[[], None]) -> None:
        try:
            while not self._is_over.is_set():
                do()
        except Over:
            pass
        except Exception as error:  # noqa: BLE001  it is raised where the onlookers are stopped
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
            page_ms = _page_ms(server, dashboard)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(_table(alone, watched, options))
    print(f"  first page of the large tube: {page_ms:.1f} ms of server CPU, to be at most {PAGE_MS_AT_MOST:g}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns for each (5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="per measurement (3)")
    return parser


def _fill(port: int) -> None:
    """Put a job into each tube but the large one, and the rest of them there; end once all are acknowledged."""
    puts = [b"use tube-%04d\r\nput 1000 0 60 2\r\n{}\r\n" % number for number in range(TUBES)]
    body = b"x" * 128
    job = b"put 1000 0 60 %d\r\n%b\r\n" % (len(body), body)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        _converse(sock, b"".join(puts), 2 * TUBES)
        _converse(sock, f"use {LARGE}\r\n".encode(), 1)
        for _ in range(0, JOBS - TUBES, _CHUNK):
            _converse(sock, job * _CHUNK, _CHUNK)


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
    """Samples of the server alone and of the server watched, in turns."""
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
    onlookers = Onlookers(dashboard)
    onlookers.start()
    try:
        time.sleep(1)  # for the search and the bulk action to be under way
        yield
    finally:
        onlookers.stop()


def _page_ms(server: Server, dashboard: Dashboard) -> float:
    spent = []
    for _ in range(PAGES):
        before = server.cpu_ns()
        dashboard.get("/tube", tube=LARGE)
        spent.append((server.cpu_ns() - before) / 1e6)
    return median(spent)


def _table(alone: list[Sample], watched: list[Sample], options: argparse.Namespace) -> str:
    lines = [
        f"dashboard: {CYCLE.about}; {JOBS:,} jobs, {TUBES:,} tubes",
        f"  {CYCLE.conditions}; median (lowest..highest) of {options.rounds} rounds of {options.seconds:g} s",
        f"  {'':30}{'nobody looks':>28}{'10 tabs, search, bulk':>28}{'ratio':>8}",
    ]
    for metric in COMPARED:
        before, after = ([sample[metric] for sample in samples] for samples in (alone, watched))
        ratio = median(after) / median(before) if median(before) else 0.0
        lines.append(f"  {METRIC_LABELS[metric]:30}{Figure.of(before)!s:>28}{Figure.of(after)!s:>28}{ratio:8.2f}")
    p99 = median([sample["p99_us"] for sample in watched]) / median([sample["p99_us"] for sample in alone])
    word = "reached" if p99 <= P99_AT_MOST else "MISSED"
    lines.append(f"  {word}: p99 is {p99:.2f} times that of the server alone, to be at most {P99_AT_MOST:g}")
    return "\n".join(lines)


def _task_of(text: str) -> str:
    found = _TASK.search(text)
    if found is None:
        raise BenchError("dashboard: no task was started")
    return found[1]


if __name__ == "__main__":
    sys.exit(main())
