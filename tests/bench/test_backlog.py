"""The large backlog: it comes as it was put, and it is noticed if it does not."""

from __future__ import annotations

import subprocess
import sys

import greenstalk
import pytest

from bench.backlog import Client
from bench.errors import BenchError


def test_a_small_one_by_the_command() -> None:
    argv = [sys.executable, "-m", "bench.backlog", "--jobs", "2100", "--body", "1024", "--no-dashboard"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stderr
    assert "2,100 jobs of 1,024 bytes, server with -b {dir} -f 50" in done.stdout
    assert "every job came once, in order, with the body that was put" in done.stdout


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"another", "job 0 was due"),
        (b"%016d" % 1 + b"x" * 48, "job 0 was due"),  # of the right size
    ],
)
def test_a_job_that_was_not_put_ends_it(port: int, body: bytes, complaint: str) -> None:
    with greenstalk.Client(("127.0.0.1", port), encoding=None) as other:
        other.put(body, priority=0)
        client = Client(port, 10, 64, lambda: None)
        try:
            client.put()
            with pytest.raises(BenchError, match=complaint):
                client.drain()
        finally:
            client.close()
        while (job := next_job(other)) is not None:
            other.delete(job)


def test_a_job_that_is_missing_ends_it(port: int) -> None:
    client = Client(port, 10, 64, lambda: None)
    client.put()
    with greenstalk.Client(("127.0.0.1", port), encoding=None) as other:
        other.delete(other.peek_ready())
        with pytest.raises(BenchError, match="job 0 was due"):
            client.drain()
        client.close()
        while (job := next_job(other)) is not None:
            other.delete(job)


def next_job(client: greenstalk.Client) -> greenstalk.Job | None:
    try:
        return client.reserve(timeout=0)
    except greenstalk.TimedOutError:
        return None
