"""The large backlog: jobs arrive unchanged and in order, and a wrong job is detected."""

from __future__ import annotations

import subprocess
import sys

import greenstalk
import pytest

from bench.backlog import Client
from bench.errors import BenchError


def test_small_backlog() -> None:
    argv = [sys.executable, "-m", "bench.backlog", "--jobs", "2100", "--body", "1024", "--no-dashboard"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stderr
    assert "2,100 jobs of 1,024 bytes, server with -b {dir} -f 50" in done.stdout
    assert "every job arrived once, in order, with its body unchanged" in done.stdout


@pytest.mark.parametrize(
    "body",
    [
        b"another",
        b"%016d" % 1 + b"x" * 48,  # of the right size
    ],
)
def test_foreign_job_is_an_error(port: int, body: bytes) -> None:
    with greenstalk.Client(("127.0.0.1", port), encoding=None) as other:
        other.put(body, priority=0)
        client = Client(port, 10, 64, lambda: None)
        try:
            client.put()
            with pytest.raises(BenchError, match="expected job 0,"):
                client.drain()
        finally:
            client.close()
        while (job := next_job(other)) is not None:
            other.delete(job)


def test_missing_job_is_an_error(port: int) -> None:
    client = Client(port, 10, 64, lambda: None)
    client.put()
    with greenstalk.Client(("127.0.0.1", port), encoding=None) as other:
        other.delete(other.peek_ready())
        with pytest.raises(BenchError, match="expected job 0,"):
            client.drain()
        client.close()
        while (job := next_job(other)) is not None:
            other.delete(job)


def next_job(client: greenstalk.Client) -> greenstalk.Job | None:
    try:
        return client.reserve(timeout=0)
    except greenstalk.TimedOutError:
        return None
