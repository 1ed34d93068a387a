"""Pages of docs/ that can be followed: their blocks of commands, run in one shell as they stand."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from tests.support.daemon import REPOSITORY, environment

PORTS = ("11310", "11311", "8090")
"""The ports that pages use, which may be taken: each is replaced by a free one."""

LONGEST = 60.0
"""Seconds that a page may take."""

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
"""Where a page gives a server some seconds, wait until the one that was started last listens, or has ended."""


class Block(NamedTuple):
    """Commands, and what the page says that they print."""

    commands: str
    output: str


def blocks(page: str, heading: str) -> list[Block]:
    """The blocks under the *heading* of the second level in docs/*page*."""
    text = (REPOSITORY / "docs" / page).read_text()
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [Block(*found) for found in re.findall(r"```sh\n(.*?)```\n(?:\n```text\n(.*?)```)?", section, re.DOTALL)]


def follow(page: list[Block], directory: Path) -> tuple[list[str], str]:
    """Run all of *page* in *directory*; return what each block has printed, and what went to stderr.

    A server's own first lines and log go to a file, as they are no part of what a page shows.
    """
    script = _SLEEP + "".join(f"{block.commands}echo {_END!r}\n" for block in page)
    script = re.sub(r"(greenstalk-server -.*) &", r"\1 > log 2>&1 &", script)
    for written, free in zip(PORTS, free_ports(len(PORTS)), strict=True):
        script = script.replace(written, str(free))
    work = directory / "work"
    work.mkdir()
    out, err = in_shell(script, work, path_with_commands(directory / "bin"), LONGEST)
    *printed, rest = out.split(f"{_END}\n")
    assert rest == "", f"the page ends early: {rest}{err}"
    return printed, err


def in_shell(script: str, work: Path, path: str, longest: float, **variables: str) -> tuple[str, str]:
    """Run *script* with bash in *work* for at most *longest* seconds; return stdout and stderr; leave no process."""
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
            return shell.communicate(timeout=longest)
        finally:
            with suppress(ProcessLookupError):  # nobody is left, as it should be
                os.killpg(shell.pid, signal.SIGKILL)


def without_ports(text: str) -> str:
    """*text* with a mark instead of each port of the loopback address."""
    return re.sub(r"(?<=127\.0\.0\.1:)\d+", "PORT", text)


def free_ports(count: int) -> list[int]:
    """Return *count* different TCP ports of loopback that nobody uses."""
    with ExitStack() as stack:
        return [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


def path_with_commands(directory: Path) -> str:
    """Return a PATH with beanstalkd and this tree's two commands; write the two to *directory*, which is made."""
    everything = f"{directory}:{os.environ['PATH']}:/usr/sbin"
    assert shutil.which("beanstalkd", path=everything), "beanstalkd is missing: apt-get install beanstalkd"
    directory.mkdir()
    for name, module in (("greenstalk-server", "greenstalk_server"), ("greenstalkctl", "greenstalkctl")):
        command = directory / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        command.chmod(0o755)
    return everything
