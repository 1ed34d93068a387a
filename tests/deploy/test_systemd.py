"""The units of deploy/ are valid, confine the server, and pass it the socket."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from greenstalk_server.config.definitions import DEFINITIONS
from tests.cli.test_command import PUT
from tests.cli.test_listening import activation_command
from tests.support.daemon import COMMAND, REPOSITORY, TIMEOUT, Daemon, ask, environment
from tests.support.pages import block
from tests.support.processes import ending

SERVICE = REPOSITORY / "deploy" / "greenstalk-server.service"
SOCKET = REPOSITORY / "deploy" / "greenstalk-server.socket"
BACKUP = REPOSITORY / "deploy" / "greenstalk-backup.service"
TIMER = REPOSITORY / "deploy" / "greenstalk-backup.timer"
ENVIRONMENT_FILE = REPOSITORY / "deploy" / "greenstalk-server.env"

INSTALLED = "/opt/greenstalk/bin/greenstalk-server"
HIGHEST_EXPOSURE = 1.2
"""Maximum exposure on systemd's scale from 0 (safest) to 10 (least safe); systemd rates values below 2 «OK»."""


@pytest.fixture(scope="module")
def systemd() -> str:
    path = shutil.which("systemd-analyze")
    assert path is not None, "systemd-analyze is missing: apt-get install --no-install-recommends systemd"
    return path


def test_units_are_valid(systemd: str, tmp_path: Path) -> None:
    """Only the path of the command is replaced, because the command is not installed at that path."""
    text = SERVICE.read_text()
    assert INSTALLED in text
    (tmp_path / SERVICE.name).write_text(text.replace(INSTALLED, sys.executable))
    shutil.copy(SOCKET, tmp_path)
    done = run(systemd, "verify", str(tmp_path / SERVICE.name), str(tmp_path / SOCKET.name))
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_backup_units_are_valid(systemd: str, tmp_path: Path) -> None:
    shutil.copy(TIMER, tmp_path)
    (tmp_path / BACKUP.name).write_text(BACKUP.read_text().replace(INSTALLED, sys.executable))
    done = run(systemd, "verify", str(tmp_path / BACKUP.name), str(tmp_path / TIMER.name))
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    (when,) = re.findall(r"^OnCalendar=(.*)$", TIMER.read_text(), re.MULTILINE)
    assert "Next elapse: " in run(systemd, "calendar", when).stdout


def test_backup_writes_a_dated_file_and_removes_the_oldest(tmp_path: Path) -> None:
    """Run the command of the unit, with its directories in *tmp_path*; the exports of earlier days are copies."""
    queue, backups = tmp_path / "greenstalk", tmp_path / "greenstalk-backup"
    for directory in (queue, backups):
        directory.mkdir()
    text = BACKUP.read_text().replace(INSTALLED, " ".join(COMMAND)).replace("/var/lib", str(tmp_path))
    (command,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web", "-b", str(queue)) as daemon:
        assert daemon.ask(PUT) == b"INSERTED 1"
        done = run(*shlex.split(command), cwd=REPOSITORY)
        assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
        (made,) = backups.iterdir()
        earlier = [backups / f"greenstalk-202001{day:02}T030000Z.jsonl" for day in range(1, 16)]
        for name in earlier:
            shutil.copy(made, name)
        made.unlink()
        assert run(*shlex.split(command), cwd=REPOSITORY).returncode == 0
    (newest,) = set(backups.iterdir()) - set(earlier)
    assert '"tube":"default"' in newest.read_text()
    assert [name for name in earlier if name.exists()] == earlier[2:]  # 13 and the new one


def test_second_socket_of_the_page_is_valid(systemd: str, tmp_path: Path) -> None:
    second = tmp_path / "greenstalk-server-plain.socket"
    second.write_text(block("security.md", "ini", "[Unit]"))
    (tmp_path / SERVICE.name).write_text(SERVICE.read_text().replace(INSTALLED, sys.executable))
    shutil.copy(SOCKET, tmp_path)
    done = run(systemd, "verify", str(second), str(tmp_path / SERVICE.name), str(tmp_path / SOCKET.name))
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


SOCKETS = [block("security.md", "ini", "[Socket]"), block("deploy.md", "ini", "[Socket]")]


@pytest.mark.parametrize("lines", SOCKETS)
def test_lines_of_a_page_replace_the_addresses_of_the_socket(systemd: str, lines: str, tmp_path: Path) -> None:
    """`systemctl edit` puts such lines into this directory."""
    (tmp_path / SERVICE.name).write_text(SERVICE.read_text().replace(INSTALLED, sys.executable))
    shutil.copy(SOCKET, tmp_path)
    overrides = tmp_path / f"{SOCKET.name}.d"
    overrides.mkdir()
    (overrides / "override.conf").write_text(lines)
    done = run(systemd, "verify", str(tmp_path / SERVICE.name), str(tmp_path / SOCKET.name))
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    assert re.findall("^ListenStream=.*", lines, re.MULTILINE)[0] == "ListenStream="  # else both addresses are used


REPORT = block("recurring-jobs.md", "ini", "[Unit]\nDescription=Put the job")
REPORT_TIMER = block("recurring-jobs.md", "ini", "[Unit]\nDescription=Daily report")


def test_units_of_a_recurring_job_are_valid(systemd: str, tmp_path: Path) -> None:
    names = [str(tmp_path / f"daily-report.{kind}") for kind in ("service", "timer")]
    for name, unit in zip(names, (REPORT, REPORT_TIMER), strict=True):
        Path(name).write_text(unit)
    done = run(systemd, "verify", *names)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_check_before_the_start_uses_the_same_directory() -> None:
    """A failure of the check is ignored: the exit code of ExecStart decides about a restart."""
    text = SERVICE.read_text()
    (started,) = re.findall(rf"^ExecStart={INSTALLED} (.*)$", text, re.MULTILINE)
    assert f"\nExecStartPre=-{INSTALLED} config --check {started}\n" in text


def test_service_is_confined(systemd: str) -> None:
    done = run(systemd, "security", "--offline=true", "--no-pager", str(SERVICE))
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) <= HIGHEST_EXPOSURE


def test_service_keeps_its_jobs_in_a_writable_directory() -> None:
    text = SERVICE.read_text()
    (flags,) = re.findall(rf"^ExecStart={INSTALLED} (.*)$", text, re.MULTILINE)
    (state,) = re.findall(r"^StateDirectory=(\S+)$", text, re.MULTILINE)
    assert flags.split() == ["-b", f"/var/lib/{state}"]


def test_page_installs_the_paths_of_the_service() -> None:
    page = (REPOSITORY / "docs" / "deploy.md").read_text()
    named = dict(re.findall(r"^(EnvironmentFile|User|ExecStart)=-?(\S+)", SERVICE.read_text(), re.MULTILINE))
    assert f"python3 -m venv {Path(named['ExecStart']).parent.parent}\n" in page
    assert f"{ENVIRONMENT_FILE.name} {named['EnvironmentFile']}\n" in page
    assert re.search(rf"^useradd .* {named['User']}$", page, re.MULTILINE)


def test_every_example_in_the_environment_file_is_valid() -> None:
    """Each line is a commented-out example."""
    examples = dict(re.findall(r"^#([A-Z_]+)=(.*)$", ENVIRONMENT_FILE.read_text(), re.MULTILINE))
    assert examples.keys() <= {definition.variable for definition in DEFINITIONS}
    with Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0", environ=environment(**examples)) as daemon:
        assert daemon.dashboard.startswith("http://0.0.0.0:")
        assert daemon.dashboard.endswith("/queue/")


def test_server_accepts_connections_on_systemd_socket(tmp_path: Path) -> None:
    """systemd-socket-activate listens, and starts the server at the first connection, as a socket unit does."""
    activate = shutil.which("systemd-socket-activate")
    assert activate is not None, "systemd-socket-activate is missing: apt-get install --no-install-recommends systemd"
    path = tmp_path / "socket"
    command = [activate, f"--listen={path}", "--setenv=PYTHONPATH", *COMMAND, "--no-web", "-b", str(tmp_path)]
    environ = environment(PYTHONPATH=str(REPOSITORY))
    with ending(subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"Listening on ")
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(TIMEOUT)
            sock.connect(str(path))
            assert ask(sock, PUT) == b"INSERTED 1"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, said


def test_new_clients_wait_while_the_server_restarts(tmp_path: Path) -> None:
    """The socket unit keeps the port: a client that connects between two servers is served by the second one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = activation_command(listener)
        with Daemon("--no-web", "-b", str(tmp_path), command=command, pass_fds=[listener.fileno()]) as first:
            assert first.ask(PUT) == b"INSERTED 1"
            assert first.stop()[0] == 0
        with socket.create_connection(("127.0.0.1", port), TIMEOUT) as client:
            client.sendall(b"reserve\r\n")
            with Daemon("--no-web", "-b", str(tmp_path), command=command, pass_fds=[listener.fileno()]):
                assert ask(client, b"") == b"RESERVED 1 2"


def run(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT, check=False)
