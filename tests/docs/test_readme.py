"""The first program of docs/start.md runs as written, and the variables that the README and docs/ name exist."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from greenstalk_server.config.definitions import DEFINITIONS
from greenstalkctl.runner import VARIABLES
from tests.support.daemon import MINDING_SIGNALS, REPOSITORY, TIMEOUT, Daemon
from tests.support.pages import block
from tests.support.processes import ending

OF_THE_BUILD = {"GREENSTALK_COMPILE", "GREENSTALK_PORTABLE", "GREENSTALK_PURE"}
"""The variables that setup.py, greenstalk_server/build.py and greenstalk_server/runtime/system.py read."""

OF_A_JOB = {"GREENSTALK_JOB_ID", *(f"GREENSTALK_JOB_{name}" for name in VARIABLES)}
"""The variables of the commands that greenstalkctl runs for a job."""

PAGES = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]


def first_example() -> tuple[str, str]:
    """Return the first Python example, and its output according to the page."""
    program = block("start.md", "python", "from greenstalk_client import Client, Job, work")
    return program, block("start.md", "text", "made a thumbnail")


def is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def test_first_program_runs() -> None:
    """If another server uses port 11300, as Debian's beanstalkd does, only the port differs."""
    source, expected = first_example()
    with Daemon("-l", "127.0.0.1", "-p", "11300" if is_free(11300) else "0", "--no-web") as daemon:
        source = source.replace("11300", str(daemon.port))
        process = subprocess.Popen(
            [*MINDING_SIGNALS, sys.executable, "-uc", source],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with ending(process):
            assert process.stdout is not None
            printed = "".join(process.stdout.readline() for _ in expected.splitlines())
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=TIMEOUT)
        assert daemon.ask(b"stats-tube thumbnails\r\n") == b"NOT_FOUND", "all jobs are deleted"
    assert (printed, rest, errors, process.returncode) == (expected, "", "", 0)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_variable_on_a_page_exists(page: Path) -> None:
    known = {definition.variable for definition in DEFINITIONS} | OF_THE_BUILD | OF_A_JOB
    assert set(re.findall(r"\bGREENSTALK_[A-Z_]+", page.read_text())) <= known
