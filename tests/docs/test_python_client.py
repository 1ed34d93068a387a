"""The examples of docs/python-client.md, run as written against a real server."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from subprocess import PIPE, Popen

import pytest

from greenstalk_client import Client
from tests.support.daemon import MINDING_SIGNALS, REPOSITORY, TIMEOUT, Daemon
from tests.support.pages import block
from tests.support.peer import eventually
from tests.support.processes import ending

WORKER = block("python-client.md", "python", "import urllib.request")
COROUTINE = block("python-client.md", "python", "import asyncio")
SECURE = block("python-client.md", "python", "import socket")
CLIENT = block("python-client.md", "python", "from greenstalk_client import Client")
PRINTED = block("python-client.md", "text", "[(")


@contextlib.contextmanager
def worker(source: str, server: Daemon) -> Iterator[Popen[str]]:
    command = [*MINDING_SIGNALS, sys.executable, "-c", source.replace("11300", str(server.port))]
    with ending(Popen(command, cwd=REPOSITORY, stderr=PIPE, text=True)) as process:
        yield process


def test_worker_buries_and_releases(server: Daemon) -> None:
    with Client(("127.0.0.1", server.port), use="calls") as queue, worker(WORKER, server) as process:
        ids = [queue.put("no url"), queue.put("http://127.0.0.1:1/")]
        eventually(lambda: queue.stats_job(ids[0])["state"] == "buried", "the invalid job is buried")
        eventually(lambda: queue.stats_job(ids[1])["releases"] > 0, "the failed job is released")
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0
        assert log == f"job {ids[0]} is buried: 'no url' is not a URL\n"
        queue.flush_tube("calls")


def test_worker_runs_a_coroutine(server: Daemon) -> None:
    source = COROUTINE.replace('work("mail", handle,', f'work("mail", handle, server=("127.0.0.1", {server.port}),')
    with Client(("127.0.0.1", server.port), use="mail") as queue, worker(source, server):
        id = queue.put("somebody@example.org")
        assert queue.wait(id, TIMEOUT) == "deleted"


def test_client_prints_what_the_page_shows(server: Daemon) -> None:
    source = CLIENT.replace("11300", str(server.port))
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == (PRINTED, "", 0)


@pytest.mark.parametrize("source", [WORKER, COROUTINE, SECURE, CLIENT])
def test_examples_have_the_right_types(source: str) -> None:
    command = [sys.executable, "-m", "mypy", "--config-file=", "--strict", "--command", source]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
