"""The examples of docs/python-client.md, run as written against a real server."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from greenstalk_client import Client
from tests.support.daemon import MINDING_SIGNALS, REPOSITORY, TIMEOUT, Daemon
from tests.support.peer import eventually

PAGE = (REPOSITORY / "docs" / "python-client.md").read_text()
WORKER, SECURE, CLIENT = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(PRINTED,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


def test_worker_buries_and_releases(server: Daemon) -> None:
    source = WORKER.replace("11300", str(server.port))
    with (
        Client(("127.0.0.1", server.port), use="calls") as queue,
        subprocess.Popen(
            [*MINDING_SIGNALS, sys.executable, "-c", source], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True
        ) as worker,
    ):
        ids = [queue.put("no url"), queue.put("http://127.0.0.1:1/")]
        eventually(lambda: queue.stats_job(ids[0])["state"] == "buried", "the invalid job is buried")
        eventually(lambda: queue.stats_job(ids[1])["releases"] > 0, "the failed job is released")
        worker.send_signal(signal.SIGTERM)
        _, log = worker.communicate(timeout=TIMEOUT)
        assert worker.returncode == 0
        assert log == f"job {ids[0]} is buried: 'no url' is not a URL\n"
        queue.flush_tube("calls")


def test_client_prints_what_the_page_shows(server: Daemon) -> None:
    source = CLIENT.replace("11300", str(server.port))
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == (PRINTED, "", 0)


@pytest.mark.parametrize("source", [WORKER, SECURE, CLIENT])
def test_examples_have_the_right_types(source: str) -> None:
    command = [sys.executable, "-m", "mypy", "--config-file=", "--strict", "--command", source]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
