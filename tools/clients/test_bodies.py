"""The dashboard's API shows the class, the arguments and the exception of jobs that the real frameworks put."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon

from .programs import PROGRAMS, TIMEOUT

pytestmark = pytest.mark.timeout(600)

URL = "http://127.0.0.1:1/"
"""A page that no server sends."""

MESSAGES: Mapping[str, Mapping[str, object]] = {
    "laravel": {"framework": "Laravel", "class": "App\\Jobs\\FetchPages"},
    "symfony": {"framework": "Symfony Messenger", "class": "App\\Message\\FetchPages"},
}


def message(server: Daemon, job: int) -> dict[str, Any]:
    """Return the decoded body of *job*."""
    with urllib.request.urlopen(f"{server.dashboard}api/v1/jobs/{job}", timeout=TIMEOUT) as reply:  # noqa: S310
        found: dict[str, Any] = json.load(reply)["message"]
    return found


@pytest.mark.parametrize("name", MESSAGES)
def test_api_shows_class_and_arguments(name: str, tmp_path: Path) -> None:
    program, expected = PROGRAMS[name], MESSAGES[name]
    program.install(tmp_path)
    with Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0") as server:
        program.put(tmp_path, f"127.0.0.1:{server.port}", URL)
        found = message(server, 1)
    assert {key: found[key] for key in expected} == expected
    assert found["arguments"]["urls"] == [URL]


def test_api_shows_the_exception_of_a_retried_message(tmp_path: Path) -> None:
    program = PROGRAMS["symfony"]
    program.install(tmp_path)
    with Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0") as server:
        address = f"127.0.0.1:{server.port}"
        program.put(tmp_path, address, URL)
        command = [*program.worker, "--limit=1"]
        subprocess.run(command, cwd=tmp_path, env=program.environ(address), check=True, timeout=TIMEOUT)
        found = message(server, 2)
    assert found["class"] == "App\\Message\\FetchPages"
    assert "Connection refused" in found["exception"]
