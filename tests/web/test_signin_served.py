"""Users and roles of a real server, from the configuration file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import requests

from tests.support.daemon import COMMAND, REPOSITORY, TIMEOUT, Daemon, environment

from .visit import FLAGS

OPERATOR = "0perate"

FILE = """
[roles.billing]
operate = ["billing.*"]
[roles.operator]
view = ["*"]
operate = ["billing.*", "mail"]
[users.bea]
password_hash = "{hash}"
role = "billing"
[web]
session_idle = "1h"
"""


def hashed(password: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "hash-password"],
        input=password,
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def configured(directory: Path) -> str:
    """Write a configuration with a user; return its path."""
    file = directory / "greenstalk.toml"
    file.write_text(FILE.format(hash=hashed("tea-time\n").stdout.strip()))
    file.chmod(0o600)
    return str(file)


def served(directory: Path, file: str) -> Daemon:
    return Daemon(*FLAGS, "-b", str(directory), "--config", file, environ=environment(
        GREENSTALK_WEB_OPERATOR_PASSWORD=OPERATOR, GREENSTALK_API_OPERATOR_TOKEN="t0ken"))  # noqa: S106  # fmt: skip


def test_roles_of_the_file_limit_passwords_tokens_and_users(tmp_path: Path) -> None:
    file = configured(tmp_path)
    with served(tmp_path, file) as daemon:
        api = f"{daemon.dashboard}api/v1"

        def put(tube: str, **credentials: object) -> int:
            body = {"tube": tube, "body": "x"}
            found = requests.post(f"{api}/jobs", json=body, timeout=TIMEOUT, **credentials)  # type: ignore[arg-type]
            return found.status_code

        token = {"headers": {"Authorization": "Bearer t0ken"}}
        assert [put(tube, **token) for tube in ("mail", "billing.a", "other")] == [201, 201, 403]
        assert [put(tube, auth=("x", OPERATOR)) for tube in ("mail", "other")] == [201, 403]
        assert [put(tube, auth=("bea", "tea-time")) for tube in ("billing.b", "mail")] == [201, 403]
        assert put("billing.b", auth=("bea", OPERATOR)) == 401
        tubes = requests.get(f"{api}/tubes", auth=("bea", "tea-time"), timeout=TIMEOUT).json()["tubes"]
        assert [tube["name"] for tube in tubes] == ["billing.a", "billing.b"]
        everything = requests.get(f"{api}/tubes", timeout=TIMEOUT, **token).json()["tubes"]  # type: ignore[arg-type]
        assert "mail" in [tube["name"] for tube in everything]


def test_empty_password_has_no_hash() -> None:
    done = hashed("\n")
    assert (done.returncode, done.stdout) == (5, "")
    assert "must be a password of 1 to 1000 characters" in done.stderr
