"""The cron line and the systemd unit of docs/recurring-jobs.md put the same job; tests/deploy verifies the units."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.daemon import Daemon
from tests.support.pages import block, path_with_commands, run_in_shell

CRON = block("recurring-jobs.md", "text", "GREENSTALKCTL_SERVER=")
SERVICE = block("recurring-jobs.md", "ini", "[Unit]\nDescription=Put the job")


def command_of_cron() -> str:
    """Return the command as cron runs it: a percent sign has a backslash before it."""
    (command,) = re.findall(r"^0 6 \* \* \* nobody (.*)$", CRON, re.MULTILINE)
    assert not re.search(r"(?<!\\)%", command)
    return command.replace("\\%", "%")


def command_of_systemd() -> str:
    """Return the script for `sh -c`: systemd removes one backslash in quotes too, and replaces %% and $$."""
    (quoted,) = re.findall("^ExecStart=/bin/sh -c '(.*)'$", SERVICE, re.MULTILINE)
    return re.sub(r"\\(.)", r"\1", quoted).replace("%%", "%").replace("$$", "$")


def test_cron_and_systemd_put_the_same_job_once(tmp_path: Path) -> None:
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web") as server:
        (variable,) = re.findall(r"^(GREENSTALKCTL_SERVER)=127\.0\.0\.1:11300$", CRON, re.MULTILINE)
        script = f"{command_of_cron()}\n({command_of_systemd()})\ngreenstalkctl peek 1 --raw\n"
        path = path_with_commands(tmp_path / "bin")
        out, err = run_in_shell(script, tmp_path, path, 60, **{variable: f"127.0.0.1:{server.port}"})
    assert out == '1\n1\n{"report": "daily"}'
    assert err == "job 1 already has this key; its state is ready\n"
