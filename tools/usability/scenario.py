"""A queue with problems: 45 tubes, 30 connections, and some 220,000 jobs.

billing.invoices    ready jobs grow old: its one worker holds a job
imports             failed jobs with three kinds of errors, the most common one a KeyError
exports.csv         ready jobs, and no workers
search.index        100,000 ready jobs
quiet.01 and so on  tubes without problems
"""

from __future__ import annotations

import json
import socket
import time
from types import TracebackType
from typing import Final, Self
from urllib.request import urlopen

import greenstalk

from tests.support.daemon import TIMEOUT, Daemon

QUIET_TUBES: Final = 39
BACKLOG: Final = 100_000
FAILED: Final = {"KeyError": 300, "TimeoutError": 40, "ValueError": 10}
"""Number of buried jobs of `imports` by class of their error."""

PROBLEMS: Final = frozenset({"billing.invoices", "imports", "exports.csv", "search.index"})

CUSTOMER: Final = 316430
"""A customer with 7 jobs in `orders`."""

CUSTOMER_JOBS: Final = 7
CHUNK: Final = 1000

ATTENTION: Final = """
[attention]
no_consumers = "1s"
oldest_ready = "1s"
held_job = "1s"
"""
"""Configuration: short times, so that the conditions begin soon after the start."""


class Scenario:
    """Connections to the server, and the ids that the tasks need.

    held        id of the job that the worker of `billing.invoices` holds.
    worker      the local port of that worker, by which the dashboard names it.
    """

    def __init__(self, daemon: Daemon, backlog: int = BACKLOG) -> None:
        """*backlog* is the number of ready jobs of `search.index`, at least 1000."""
        self._backlog: int = backlog
        self._daemon: Daemon = daemon
        self._clients: list[greenstalk.Client] = []
        self.held: int = 0
        self.worker: int = 0

    def __enter__(self) -> Self:
        self._fill()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.close()

    def connect(self, use: str = "default", watch: str | list[str] = "default") -> greenstalk.Client:
        """Return a new client, which stays connected until the end."""
        client = greenstalk.Client(("127.0.0.1", self._daemon.port), use=use, watch=watch, encoding=None)
        self._clients.append(client)
        return client

    def wait_for_conditions(self) -> None:
        """Wait until every problem is on the overview."""
        until = time.monotonic() + TIMEOUT
        while True:
            with urlopen(f"{self._daemon.dashboard}api/v1/attention", timeout=TIMEOUT) as response:  # noqa: S310  http
                tubes = {one["tube"] for one in json.load(response)["conditions"]}
            if tubes >= PROBLEMS:
                return
            assert time.monotonic() < until, f"conditions for {tubes} only"
            time.sleep(0.2)

    def _fill(self) -> None:
        for number in range(QUIET_TUBES):
            tube = f"quiet.{number:02}"
            self.connect(use=tube, watch=tube)
        failed = [_failed_import(error, number) for error, count in FAILED.items() for number in range(count)]
        self._put("imports", failed)
        importer = self.connect(use="imports", watch="imports")
        for _ in failed:
            importer.bury(importer.reserve(timeout=0))
        self._put("search.index", [b"{}"] * self._backlog)
        self._put("exports.csv", [b'{"format": "csv"}'] * 200)
        orders = [
            json.dumps({"customer": {"id": CUSTOMER + number // CUSTOMER_JOBS}}).encode() for number in range(700)
        ]
        self._put("orders", orders)
        self.connect(watch=["orders", "search.index"])
        self._put("billing.invoices", [b'{"invoice": 1}'] * 50)
        worker = self.connect(watch="billing.invoices")
        self.held = worker.reserve(timeout=0).id
        self.worker = worker._sock.getsockname()[1]

    def _put(self, tube: str, bodies: list[bytes]) -> None:
        with socket.create_connection(("127.0.0.1", self._daemon.port), TIMEOUT) as sock, sock.makefile("rb") as reader:
            sock.sendall(b"use %b\r\n" % tube.encode())
            assert reader.readline().startswith(b"USING")
            for start in range(0, len(bodies), CHUNK):
                chunk = bodies[start : start + CHUNK]
                sock.sendall(b"".join([b"put 1000 0 3600 %d\r\n%b\r\n" % (len(body), body) for body in chunk]))
                for _ in chunk:
                    assert reader.readline().startswith(b"INSERTED")


def _failed_import(error: str, number: int) -> bytes:
    message = f"{error}: row {number} of 'batch-{number}.csv' has no field \"sku\""
    return json.dumps({"file": f"batch-{number}.csv", "padding": "x" * 60, "error": message}).encode()
