"""Run the command blocks of a page in docs/ in one shell, as written."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.support.daemon import REPOSITORY, environment
from tests.support.ports import free_ports

PORTS = ("11310", "11311", "8090")
"""The ports in the pages. Each is replaced by a free port, because it may be in use."""

TIMEOUT = 60.0
"""Maximum run time of a page in seconds."""

_END = "--- end of block ---"

_LISTENS = "import psutil, sys; sys.exit(not psutil.Process(int(sys.argv[1])).net_connections('tcp'))"
_SLEEP = f"""\
sleep() {{
    until {shlex.quote(sys.executable)} -c {shlex.quote(_LISTENS)} $! 2>/dev/null; do
        kill -0 $! || exit
        command sleep 0.05
    done
}}
"""
"""Replaces `sleep` of a page: wait until the last started server listens; exit if it has ended."""


class Block(NamedTuple):
    """Commands, and their output as shown on the page."""

    commands: str
    output: str


def blocks(page: str, heading: str) -> list[Block]:
    """Return the blocks under the second-level *heading* of docs/*page*."""
    text = (REPOSITORY / "docs" / page).read_text()
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [Block(*found) for found in re.findall(r"```sh\n(.*?)```\n(?:\n```text\n(.*?)```)?", section, re.DOTALL)]


def follow(page: list[Block], directory: Path) -> tuple[list[str], str]:
    """Run all blocks of *page* in *directory*; return the output of each block, and stderr.

    The output of a server goes to a file, because pages do not show it.
    """
    script = _SLEEP + "".join(f"{block.commands}echo {_END!r}\n" for block in page)
    script = re.sub(r"(greenstalk-server -.*) &", r"\1 > log 2>&1 &", script)
    for written, free in zip(PORTS, free_ports(len(PORTS)), strict=True):
        script = script.replace(written, str(free))
    work = directory / "work"
    work.mkdir()
    out, err = run_in_shell(script, work, path_with_commands(directory / "bin"), TIMEOUT)
    *printed, rest = out.split(f"{_END}\n")
    assert rest == "", f"the page ends early: {rest}{err}"
    return printed, err


def run_in_shell(script: str, work: Path, path: str, timeout: float, **variables: str) -> tuple[str, str]:
    """Run *script* with bash in *work* for at most *timeout* seconds; return stdout and stderr; leave no process."""
    with subprocess.Popen(
        ["bash", "-uc", script],
        cwd=work,
        env=environment(PATH=path, PYTHONPATH=str(REPOSITORY), **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            return shell.communicate(timeout=timeout)
        finally:
            with suppress(ProcessLookupError):  # no process is left
                os.killpg(shell.pid, signal.SIGKILL)


def without_ports(text: str) -> str:
    """Return *text* with each port of the loopback address replaced by PORT."""
    return re.sub(r"(?<=127\.0\.0\.1:)\d+", "PORT", text)


def path_with_commands(directory: Path) -> str:
    """Create *directory* with the two commands of this checkout; return a PATH with them and beanstalkd."""
    path = f"{directory}:{os.environ['PATH']}:/usr/sbin"
    assert shutil.which("beanstalkd", path=path), "beanstalkd is missing: apt-get install beanstalkd"
    directory.mkdir()
    for name, module in (("greenstalk-server", "greenstalk_server"), ("greenstalkctl", "greenstalkctl")):
        command = directory / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        command.chmod(0o755)
    return path
