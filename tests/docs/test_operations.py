"""Commands for cron and systemd in docs/backup.md and docs/upgrade.md, run in other directories."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.daemon import REPOSITORY, Daemon
from tests.support.pages import block, path_with_commands, run_in_shell

TIMEOUT = 60.0
"""Maximum run time of the commands in seconds."""

PUT = b"put 0 0 60 5\r\nhello\r\n"


def shell(commands: str, directory: Path) -> tuple[str, str]:
    """Run *commands* with bash in *directory*; return stdout and stderr."""
    return run_in_shell(commands, directory, path_with_commands(directory / "bin"), TIMEOUT)


def test_cron_line_exports_to_a_dated_file(tmp_path: Path) -> None:
    line = block("backup.md", "text", "17 3 * * * greenstalk ").removeprefix("17 3 * * * greenstalk ").rstrip("\n")
    queue, backups = tmp_path / "queue", tmp_path / "backups"
    for directory in (queue, backups):
        directory.mkdir()
    assert "%" not in line  # cron ends the command at it
    command = line.replace("/var/lib/greenstalk", str(queue)).replace("/var/backups/greenstalk", str(backups))
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web", "-b", str(queue)) as server:
        assert server.ask(PUT) == b"INSERTED 1"
        out, err = shell(f"{command}; ls {backups}", tmp_path)
    assert re.fullmatch(r"greenstalk-\d{8}T\d{6}Z\.jsonl\n", out)
    assert err == ""
    assert '"body":"hello"' in (backups / out.strip()).read_text()


@pytest.mark.parametrize(
    ("variables", "printed"),
    [
        ("GREENSTALK_LOG_FORMAT=json\nGREENSTALK_WEB_PASSWORD='two words & $more'\n", "is valid\nrestarted\n"),
        ("GREENSTALK_LOG_FORMAT=xml\n", ""),
    ],
)
def test_upgrade_restarts_the_server_only_if_the_check_succeeds(variables: str, printed: str, tmp_path: Path) -> None:
    """The commands run as the current user, and a message replaces the restart by systemd."""
    page = (REPOSITORY / "docs" / "upgrade.md").read_text()
    (command,) = re.findall(r"^(\( set -a; .*?restart greenstalk-server)$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "queue").mkdir()
    (tmp_path / "file.env").write_text(variables)
    for written, local in {
        "runuser -u greenstalk -- /opt/greenstalk/bin/greenstalk-server": "greenstalk-server",
        "/etc/greenstalk-server.env": shlex.quote(str(tmp_path / "file.env")),
        "/var/lib/greenstalk": shlex.quote(str(tmp_path / "queue")),
        "systemctl restart greenstalk-server": "echo restarted",
        "-b ": "-l 127.0.0.1 -p 0 --web-port 0 -b ",
    }.items():
        assert command.count(written) == 1
        command = command.replace(written, local)
    out, err = shell(command, tmp_path)
    assert out.endswith(printed) and bool(out) == bool(printed)
    assert bool(err) != bool(printed), err
