"""The manual pages and the completion have every option and command that `--help` has."""

from __future__ import annotations

import datetime as dt
import subprocess
from pathlib import Path

import pytest

from greenstalk_server.config.definitions import DEFINITIONS
from greenstalkctl.cli import cli
from tests.support.daemon import TIMEOUT
from tools.manual import completion, pages, roff

DAY = dt.date(2026, 11, 24)
FLAGS = [flag for row in DEFINITIONS for flag in row.flags]


def test_server_page_has_each_option_variable_and_key() -> None:
    page = pages.server_page(DAY)
    for row in DEFINITIONS:
        assert all(roff.escape(name) in page for name in (*row.flags, row.variable, row.key) if name)
    for section in ("SYNOPSIS", "OPTIONS", "ENVIRONMENT", "SIGNALS", "EXIT STATUS", "EXAMPLES"):
        assert f"\n.SH {section}\n" in page


def test_ctl_page_has_each_command_and_option() -> None:
    page = pages.ctl_page(DAY)
    for name, command in cli.commands.items():
        assert f"\n.SS {roff.escape(name)}" in page
        assert all(roff.escape(param.opts[0]) in page for param in command.params if param.param_type_name == "option")
    assert "  0    done\n" in page  # lines that --help does not wrap either


def test_text_cannot_become_a_request_of_roff() -> None:
    assert roff.escape(".TH\n'x\\n-b") == "\\&.TH\n\\&'x\\en\\-b"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--max-tu"], {"--max-tube-jobs", "--max-tube-bytes", "--max-tubes"}),
        (["--log-level", ""], {"debug", "info", "warning", "error"}),
        (["-V", "-"], set(FLAGS)),
        (["j"], {"journal"}),
        (["journal", "ex"], {"export"}),
        (["--port-of-nothing"], set()),
        (["-b", "direc"], {"directory"}),
        (["--config", "fi"], {"file.toml"}),
    ],
)
def test_bash_completes(words: list[str], expected: set[str], tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file.toml").touch()
    script = (
        f'{completion.server_bash()}\nCOMP_WORDS=(greenstalk-server "$@"); COMP_CWORD=$#\n'
        'complete -p greenstalk-server >/dev/null && _greenstalk_server && printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ("bash", "-c", script, "bash", *words)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.stderr == ""
    assert set(done.stdout.split()) == expected
