"""The command `greenstalk-server config`, and docs/configuration.md, which lists every option."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from greenstalk_server.config.command_line import parse
from greenstalk_server.config.definitions import DEFINITIONS
from greenstalk_server.config.options import Options
from tests.support.daemon import REPOSITORY, run_here
from tests.support.pages import block

PAGE = REPOSITORY / "docs" / "configuration.md"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "greenstalk.toml"
    path.touch(mode=0o600)
    path.write_text(
        f'data_dir = "{tmp_path}"\n[web]\npassword = "pa55word"\ntrusted_proxies = ["::1", "10.0.0.0/8"]\n'
        'user = "Ada \\u001b[31m"\n'
    )
    return path


def test_table_has_each_value_and_its_origin(file: Path, tmp_path: Path) -> None:
    variables = {"GREENSTALK_LISTEN": "::1", "GREENSTALK_API_TOKEN": "t0k"}
    done = run_here("config", "--config", str(file), "-F", "--no-web", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    head, *lines = done.stdout.partition("\n\n")[0].splitlines()
    columns = [head.index(name) for name in ("key", "value", "set by")]
    cells = {line[: columns[1]].strip(): (line[columns[1] : columns[2]].strip(), line[columns[2] :]) for line in lines}
    assert list(cells) == [row.key for row in DEFINITIONS if row.key]
    assert cells["data_dir"] == (str(tmp_path), f"{file}:1")
    assert cells["sync_ms"] == ("never", "-F")
    assert cells["listen"] == ("::1", "GREENSTALK_LISTEN")
    assert cells["port"] == ("11300", "default")
    assert cells["user"] == ("(none)", "default")
    assert cells["web.enabled"] == ("false", "--no-web")
    assert cells["web.user"] == ("'Ada \\x1b[31m'", f"{file}:5")
    assert cells["web.password"] == ("(set)", f"{file}:3")
    assert cells["web.trusted_proxies"] == ("::1/128, 10.0.0.0/8", f"{file}:4")
    assert cells["web.api_token"] == ("(set)", "GREENSTALK_API_TOKEN")
    assert cells["web.metrics_token"] == ("(none)", "default")
    assert done.stdout.endswith(f"\n\nconfiguration file: {file} (set by --config)\n")
    assert not re.search("pa55word|t0k", done.stdout)


def test_json_has_each_value_and_its_origin(file: Path) -> None:
    done = run_here("config", "--json", "-p", "1", GREENSTALK_CONFIG=str(file))
    shown = json.loads(done.stdout)
    assert shown["config_file"] == str(file)
    assert shown["settings"]["port"] == {"value": 1, "origin": "-p"}
    assert shown["settings"]["sync_ms"] == {"value": 50, "origin": "default"}
    assert shown["settings"]["web.read_only"] == {"value": False, "origin": "default"}
    assert shown["settings"]["web.trusted_proxies"] == {"value": ["::1/128", "10.0.0.0/8"], "origin": f"{file}:4"}
    assert shown["settings"]["web.password"] == {"value": "(set)", "origin": f"{file}:3"}
    assert shown["settings"]["web.api_token"] == {"value": None, "origin": "default"}


def test_access_rules_are_counted_in_the_table_and_listed_in_json(tmp_path: Path) -> None:
    path = tmp_path / "greenstalk.toml"
    path.write_text(
        '[[access]]\nclient = "mail-*"\nconsume = ["mail"]\n[[access]]\ninspect = ["*"]\nadminister = true\n'
    )
    assert re.search(
        r"^access  +2 \(--json shows them\) ", run_here("config", "--config", str(path)).stdout, re.MULTILINE
    )
    shown = json.loads(run_here("config", "--json", "--config", str(path)).stdout)["settings"]["access"]
    assert shown == {
        "value": [{"client": "mail-*", "consume": ["mail"]}, {"inspect": ["*"], "administer": True}],
        "origin": f"{path}:1",
    }


def test_warnings_are_printed_to_stderr(file: Path) -> None:
    file.chmod(0o644)
    done = run_here("config", "--config", str(file), "-z", "2000000000")
    first, second = done.stderr.splitlines()
    assert first.startswith(f"greenstalk-server: warning: {file}:3: every user of this machine can read web.password;")
    assert (
        second == "greenstalk-server: warning: the maximum job size (-z) was reduced to 1073741824, the largest allowed"
    )
    assert re.search(r"^max_job_size  +1073741824  ", done.stdout, re.MULTILINE)


# docs/configuration.md


def test_table_on_the_page_is_up_to_date() -> None:
    script = REPOSITORY / "docs" / "configuration_table.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_example_file_on_the_page_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "greenstalk.toml"
    path.write_text(block("configuration.md", "toml", "data_dir = "))
    assert isinstance(parse(["--config", str(path)], {}), Options)


def test_example_of_policies_on_the_page_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "greenstalk.toml"
    path.write_text(block("configuration.md", "toml", "[policies.mail]"))
    parsed = parse(["--config", str(path)], {})
    assert isinstance(parsed, Options)
    assert [policy.name for policy in parsed.policies] == ["mail", "bulk", "import"]


def test_example_output_on_the_page_is_correct(tmp_path: Path) -> None:
    """The page shows the output for this file and this environment."""
    command = block("configuration.md", "sh", "greenstalk-server config --config")
    shown = block("configuration.md", "text", "key ")
    path = tmp_path / "greenstalk.toml"
    path.write_text('data_dir = "/var/lib/greenstalk"\n\n[web]\nhost = "127.0.0.1"\npassword = "secret"\n')
    command, shown = (text.replace("/etc/greenstalk.toml", str(path)) for text in (command, shown))
    done = run_here(*shlex.split(command)[1:], GREENSTALK_LISTEN="127.0.0.1")
    assert done.returncode == 0, done.stderr
    printed = [line.split() for line in done.stdout.splitlines()]
    assert [row for row in map(str.split, shown.splitlines()) if row not in printed] == []
