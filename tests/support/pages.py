"""Run commands of the documentation in a shell."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.support.daemon import REPOSITORY, environment


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
