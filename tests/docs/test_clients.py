"""The worker of docs/clients.md, run as written: it does jobs, buries failed jobs, reconnects, and stops gracefully."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import greenstalk
import pytest

from tests.support.daemon import MINDING_SIGNALS, REPOSITORY, TIMEOUT, Daemon, environment
from tests.support.peer import eventually
from tests.support.ports import free_ports
from tests.support.processes import ending

PAGE = REPOSITORY / "docs" / "clients.md"


@pytest.fixture
def port() -> int:
    """A free port for consecutive servers."""
    return free_ports(1)[0]


@pytest.fixture
def worker(port: int) -> Iterator[subprocess.Popen[str]]:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    process = subprocess.Popen(
        [*MINDING_SIGNALS, sys.executable, "-c", source],
        env=environment(QUEUE=f"127.0.0.1:{port}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with ending(process):
        yield process


def put(port: int, body: bytes) -> int:
    with greenstalk.Client(("127.0.0.1", port), encoding=None, use="mail") as queue:
        return queue.put(body)


def counts(port: int) -> tuple[int, int]:
    """Return the number of buried jobs of the tube, and of all its jobs."""
    with greenstalk.Client(("127.0.0.1", port)) as queue:
        stats: Any = queue.stats_tube("mail")
    states = ("ready", "reserved", "delayed", "buried")
    return int(stats["current-jobs-buried"]), sum(int(stats[f"current-jobs-{state}"]) for state in states)


def test_worker_survives_failing_jobs_and_a_restart(worker: subprocess.Popen[str], port: int, tmp_path: Path) -> None:
    flags = ("-l", "127.0.0.1", "-p", str(port), "--no-web", "-b", str(tmp_path), "-f", "0")
    assert worker.stdout is not None
    with Daemon(*flags):
        put(port, b"fail")
        put(port, b"\xff")
        put(port, b"one\ntwo")
        assert [worker.stdout.readline() for _ in range(2)] == ["did one\n", "did two\n"]
        eventually(lambda: counts(port) == (2, 2), "the third job is deleted")
    with Daemon(*flags):
        put(port, b"three")
        assert worker.stdout.readline() == "did three\n"
        worker.send_signal(signal.SIGTERM)
        _, log = worker.communicate(timeout=TIMEOUT)
        assert worker.returncode == 0
        assert counts(port) == (2, 2)
    assert "job 1 failed and is buried" in log
    assert "UnicodeDecodeError" in log
    assert "trying again in" in log
    assert log.count("connected to") == 2
