"""`config --check` reports the same errors as a start, and changes nothing."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_command import as_nobody
from tests.support.daemon import COMMAND, Daemon, run, run_here
from tests.support.tls import make_certificates

LOOPBACK = ("-l", "127.0.0.1", "-p", "0", "--web-port", "0")
VALID = "greenstalk-server: the configuration is valid\n"
IS_ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory)
    return directory


@pytest.fixture
def closed_directory() -> Iterator[Path]:
    """A directory that every user can read, and only its owner can write to."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Return the bytes and the time of each file in *directory* and below."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_valid_configuration_passes_and_nothing_is_changed(certificates: Path, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text("secret\n")
    queue = tmp_path / "queue"
    queue.mkdir()
    os.utime(queue, (1, 1))
    tls = [f"--tls-cert={certificates}/server.pem", f"--tls-key={certificates}/server.key"]
    tls += [f"--tls-client-ca={certificates}/authority.pem", "-l", f"unix:{tmp_path}/socket"]
    done = run_here("config", "--check", *LOOPBACK, *tls, "-b", str(queue), GREENSTALK_WEB_PASSWORD_FILE=str(password))
    assert (done.returncode, done.stdout, done.stderr) == (0, VALID, "")
    assert contents(queue) == {}
    assert queue.stat().st_mtime == 1
    assert not (tmp_path / "socket").exists()


def test_check_does_not_disturb_a_running_server(tmp_path: Path) -> None:
    with Daemon(*LOOPBACK, "-b", str(tmp_path)) as daemon:
        assert daemon.ask(b"put 0 0 60 2\r\nhi\r\n") == b"INSERTED 1"
        daemon.process.send_signal(signal.SIGSTOP)  # else it saves its history each minute
        os.waitid(os.P_PID, daemon.process.pid, os.WSTOPPED)
        before = contents(tmp_path)
        port, web = str(daemon.port), daemon.dashboard.rpartition(":")[2].strip("/")
        done = run_here("config", "--check", "-l", "127.0.0.1", "-p", port, "--web-port", web, "-b", str(tmp_path))
        assert (done.returncode, done.stdout) == (0, VALID)
        assert [line.removeprefix("greenstalk-server: note: ") for line in done.stderr.splitlines()] == [
            f"127.0.0.1, port {port}, is in use; expected if a server or its socket unit runs there now",
            f"127.0.0.1, port {web}, is in use; expected if a server or its socket unit runs there now",
            f"-b {tmp_path} is in use by process {daemon.process.pid}; expected if that is the server to be restarted",
        ]
        assert contents(tmp_path) == before
        assert run(*LOOPBACK, "-b", str(tmp_path)).returncode == 10  # the server still has the lock
        daemon.process.send_signal(signal.SIGCONT)
        assert daemon.ask(b"peek 1\r\n") == b"FOUND 1 2"


def invalid_certificate(directory: Path) -> tuple[str, ...]:
    (directory / "a.pem").write_text("no certificate")
    return ("--tls-cert", str(directory / "a.pem"))


def no_authority(directory: Path) -> tuple[str, ...]:
    pair = ("--tls-cert", str(directory / "server.pem"), "--tls-key", str(directory / "server.key"))
    return (*pair, "--tls-client-ca", str(directory / "server.key"))


def rule_of_unknown_listener(directory: Path) -> tuple[str, ...]:
    (directory / "rules.toml").write_text('[[access]]\nlistener = "unix:/x"\nproduce = ["*"]\n')
    return ("--config", str(directory / "rules.toml"))


def blocked_path(directory: Path) -> tuple[str, ...]:
    return ("-l", f"unix:{directory}/server.pem")


@pytest.mark.parametrize(
    "flags_for",
    [
        lambda _: ("-b", "/no/such/directory"),
        lambda directory: ("-b", str(directory / "server.pem")),
        lambda _: ("-u", "no-such-user"),
        lambda _: ("-l", "localhost:abc"),
        lambda _: ("-l", "127.0.0.1:70000"),
        lambda _: ("-l", "192.0.2.1:0"),
        lambda _: ("-l", "no-such-host.invalid"),
        lambda _: ("-l", "unix:/no/such/directory/socket"),
        lambda _: ("-l", "unix:/" + "x" * 200),
        lambda _: ("--web-host", "no-such-host.invalid"),
        lambda _: ("--tls-key", "x"),
        lambda _: ("-p", "70000"),
        lambda _: ("--memory-limit", "1"),
        lambda _: ("--config", "/no/such/file"),
        lambda _: ("--journal", "postgresql://host:port:1/x"),
        invalid_certificate,
        no_authority,
        rule_of_unknown_listener,
        blocked_path,
    ],
)
def test_check_reports_the_error_of_the_start(certificates: Path, flags_for: Callable[[Path], tuple[str, ...]]) -> None:
    flags = (*LOOPBACK, *flags_for(certificates))
    variables: dict[str, Any] = {"GREENSTALK_WEB_PASSWORD": "x"}
    started, checked = run(*flags, **variables), run_here("config", "--check", *flags, **variables)
    assert started.returncode != 0
    assert (checked.returncode, checked.stdout) == (started.returncode, "")
    assert checked.stderr.splitlines()[-1] == started.stderr.splitlines()[-1]


def test_check_and_start_refuse_the_journal_of_a_later_version(later_journal: Path) -> None:
    flags = (*LOOPBACK, "-b", str(later_journal))
    started, checked = run(*flags), run_here("config", "--check", *flags)
    assert (started.returncode, checked.returncode) == (10, 10)
    assert checked.stderr == started.stderr.splitlines(keepends=True)[-1]


def test_each_problem_is_reported_on_a_line(tmp_path: Path) -> None:
    done = run_here(
        "config", "--check", *LOOPBACK, "-b", "/no/such/directory", "-l", "localhost:abc", "--tls-cert", "/no/cert",
        "--tls-client-ca", "/no/ca", GREENSTALK_WEB_PASSWORD_FILE="/no/password", GREENSTALK_API_TOKEN="a b",  # noqa: S106
    )  # fmt: skip
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == [
        "GREENSTALK_API_TOKEN",
        "GREENSTALK_WEB_PASSWORD_FILE /no/password",
        "--tls-cert /no/cert",
        "--tls-client-ca /no/ca",
        "cannot listen on localhost:abc",
        "-b /no/such/directory",
    ]
    assert (done.returncode, done.stdout) == (5, "")


def test_each_invalid_value_is_reported_on_a_line(tmp_path: Path) -> None:
    file = tmp_path / "greenstalk.toml"
    file.write_text('port = "x"\nunknown = 1\n[web]\nport = 8081\nread_only = 2\n')
    wrong = {"GREENSTALK_SYNC_MS": "soon", "GREENSTALK_USR": "x"}
    done = run_here("config", "--check", "--nope", "-z", "x", "--config", str(file), **wrong)
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == [
        "unknown flag --nope",
        "-z x",
        "GREENSTALK_SYNC_MS soon",
        f"{file}:1",
        f"{file}:2",
        f"{file}:5",
        "unknown variable GREENSTALK_USR",
    ]
    assert done.returncode == 5


def test_each_mistake_in_each_policy_is_reported_on_a_line(tmp_path: Path) -> None:
    file = tmp_path / "greenstalk.toml"
    file.write_text(
        '[policies.mail]\ntubes = ["mail.*"]\nmax_attempts = -5\nretry_dely = 1\n\n[policies.sms]\nmax_jobs = "x"\n'
    )
    done = run_here("config", "--check", "--config", str(file))
    assert [line.removeprefix(f"greenstalk-server: {file}:")[:40] for line in done.stderr.splitlines()] == [
        "4: policy mail: unknown key retry_dely: ",
        "3: policy mail: max_attempts -5: must be",
        "6: policy sms: tubes is missing: it must",
        "7: policy sms: max_jobs x: must be a who",
    ]
    assert (done.returncode, done.stdout) == (5, "")


def test_check_before_the_start_of_a_unit_ignores_the_sockets(tmp_path: Path) -> None:
    flags = ["-l", "192.0.2.1", "--web-port", "0", *rule_of_unknown_listener(tmp_path)]
    assert run_here("config", "--check", *flags).returncode == 111
    before_start = ("sh", "-c", 'SYSTEMD_EXEC_PID=$$ exec "$@"', "sh", *COMMAND)
    done = run("config", "--check", *flags, command=before_start, GREENSTALK_WEB_PASSWORD="x")  # noqa: S106
    assert (done.returncode, done.stdout, done.stderr) == (0, VALID, "")


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_directory_is_checked_with_the_permissions_of_the_user(closed_directory: Path) -> None:
    for flags in (("-b", str(closed_directory)), ("-b", str(closed_directory), "-u", "root")):
        assert run("config", "--check", *LOOPBACK, *flags).returncode == 0
    forbidden = (*LOOPBACK, "-b", str(closed_directory), "-u", "nobody", "--no-web")
    started, checked = run(*forbidden), run("config", "--check", *forbidden)
    assert (checked.returncode, checked.stderr) == (started.returncode, started.stderr) == (10, started.stderr)
    closed_directory.chmod(0o777)
    assert run("config", "--check", *forbidden).returncode == 0
    (closed_directory / "lock").touch(mode=0o600)
    assert "lock: Permission denied" in run("config", "--check", *forbidden).stderr


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_only_root_may_become_another_user(closed_directory: Path) -> None:
    for user, code in (("root", 34), ("nobody", 0)):
        done = as_nobody("config", "--check", *LOOPBACK, "--no-web", "-u", user)
        assert done.returncode == code, done.stderr


def test_warnings_are_printed(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o644)
    done = run_here("config", "--check", *LOOPBACK, "-n", GREENSTALK_WEB_PASSWORD_FILE=str(password))
    assert [line.partition(": ")[2][:30] for line in done.stderr.splitlines()] == [
        "warning: -n has no effect: the",
        "warning: every user of this ma",
    ]
    assert done.returncode == 0
