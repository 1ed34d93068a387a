"""The real command: first lines, exit codes compared with those of beanstalkd, passwords, privileges, signals."""

from __future__ import annotations

import base64
import os
import pwd
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from greenstalk_server import BUILD, __version__
from tests.support.daemon import COMMAND, MINDING_SIGNALS, REPOSITORY, TIMEOUT, Daemon, ask, environment, run, run_here
from tests.support.processes import ending

LOOPBACK = ("-l", "127.0.0.1", "-p", "0")
QUIET = (*LOOPBACK, "--no-web")
PUT = b"put 0 0 60 2\r\nhi\r\n"

FROM_ANOTHER_DIRECTORY = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from greenstalk_server.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""Program that runs the command with the package in the directory argv[1]."""

BECOME_NOBODY = """\
import encodings.idna, os, pwd, sys
from greenstalk_server import commands, daemon
from greenstalk_server.cli import main
nobody = pwd.getpwnam("nobody")
os.setgroups([])
os.setgid(nobody.pw_gid)
os.setuid(nobody.pw_uid)
sys.exit(main(sys.argv[1:]))
"""

IS_ROOT = os.geteuid() == 0


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user can reach and write to, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o777)
        yield path


def test_first_lines_have_version_addresses_and_durability() -> None:
    with Daemon(*LOOPBACK, "--web-port", "0") as daemon:
        first, protocol, dashboard, jobs = daemon.first_lines.splitlines()
        assert first == f"greenstalk-server {__version__} ({BUILD.name}), process {daemon.process.pid}"
        assert re.fullmatch(r"beanstalk protocol: 127\.0\.0\.1:\d+", protocol)
        assert re.fullmatch(r"dashboard: http://127\.0\.0\.1:\d+/", dashboard)
        assert jobs == "jobs: in memory only; they do not survive a restart"
        assert daemon.ask(PUT) == b"INSERTED 1"
        with urllib.request.urlopen(daemon.dashboard, timeout=TIMEOUT) as page:  # noqa: S310  our own, on loopback
            assert page.status == 200


@pytest.mark.parametrize("is_abstract", [False, True])
def test_service_manager_is_notified_of_start_and_stop(tmp_path: Path, is_abstract: bool) -> None:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(TIMEOUT)
        manager.bind(f"\0{name}" if is_abstract else name)
        with Daemon(*QUIET, environ=environment(NOTIFY_SOCKET=f"@{name}" if is_abstract else name)) as daemon:
            assert manager.recv(100) == b"READY=1"
            daemon.stop()
        assert manager.recv(100) == b"STOPPING=1"


def test_missing_service_manager_is_only_a_warning(tmp_path: Path) -> None:
    with Daemon(*QUIET, environ=environment(NOTIFY_SOCKET=str(tmp_path / "gone"))) as daemon:
        assert daemon.ask(PUT) == b"INSERTED 1"
        code, stderr = daemon.stop()
    assert code == 0
    assert "gone: No such file or directory; the service manager does not receive READY=1" in stderr


def test_server_without_a_dashboard_has_one_listener() -> None:
    with Daemon(*QUIET) as daemon:
        assert "\ndashboard: off (--no-web)\n" in daemon.first_lines
        assert len(psutil.Process(daemon.process.pid).net_connections()) == 1


def test_help_is_printed() -> None:
    done = run("--help")
    assert done.stdout.startswith("Usage: greenstalk-server [OPTIONS]\n")
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("flags", "exit_code"),
    [
        (["-v"], 0),
        (["-h"], 0),
        (["-vx"], 0),
        (["-hx"], 0),
        (["-xh"], 5),
        (["-x"], 5),
        (["-F-x"], 5),
        (["--"], 5),
        (["-"], 5),
        ([""], 5),
        (["jobs"], 5),
        (["-b"], 5),
        (["-f", "abc"], 5),
        (["-f1.5"], 5),
        (["-s", "10x"], 5),
        (["-z", ""], 5),
        (["-z", "abc"], 5),
        (["-z", "0x10"], 5),
    ],
)
def test_exit_codes_of_the_command_line_match_beanstalkd(beanstalkd: str, flags: list[str], exit_code: int) -> None:
    theirs, ours = run(*flags, command=(beanstalkd,)), run_here(*flags)
    assert (theirs.returncode, ours.returncode) == (exit_code, exit_code)
    assert ours.stderr.count("\n") == bool(exit_code), "the reason is one line"


@pytest.mark.parametrize(
    ("flags", "exit_code"),
    [
        (["-p", "abc"], 111),
        (["-p", "11300x"], 111),
        (["-p", "-1"], 111),
        (["-l", "192.0.2.1"], 111),
        (["-l", ""], 111),
        (["-l", "no..host"], 111),
        (["-l", "unix:/no/such/directory/socket"], 111),
        (["-l", "unix:/"], 111),
        (["-l", "unix:/" + 200 * "x"], 111),
        (["-p", "0", "-u", "no-such-user"], 33),
        (["-p", "0", "-u", ""], 33),
        (["-p", "0", "-b", "/no/such/directory"], 10),
        (["-p", "0", "-b", "/dev/null"], 10),
        (["-l", "192.0.2.1", "-u", "no-such-user", "-b", "/no/such/directory"], 111),
        (["-p", "0", "-u", "no-such-user", "-b", "/no/such/directory"], 33),
    ],
)
def test_exit_codes_of_the_start_match_beanstalkd(beanstalkd: str, flags: list[str], exit_code: int) -> None:
    theirs = run(*flags, command=(beanstalkd,))
    ours = run(*flags, GREENSTALK_WEB_HOST="127.0.0.1", PORT="0")
    assert (theirs.returncode, ours.returncode) == (exit_code, exit_code)
    assert ours.stderr.count("\n") == bool(exit_code), "the reason is one line"


def test_dashboard_port_in_use_is_named(taken_port: int) -> None:
    done = run(*LOOPBACK, "--web-port", str(taken_port))
    assert f"cannot listen on 127.0.0.1:{taken_port}: Address already in use" in done.stderr
    assert "--web-port" in done.stderr
    assert done.returncode == 111


# Passwords and addresses of the dashboard


def visit(daemon: Daemon, path: str = "", login: str = "") -> int:
    """Request *path* of the dashboard as `name:password`; return the status."""
    request = urllib.request.Request(daemon.dashboard + path)  # noqa: S310  our own, on loopback
    if login:
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_passwords_are_read_from_the_environment() -> None:
    environ = environment(
        GREENSTALK_WEB_USER="ada",
        GREENSTALK_WEB_PASSWORD="äöü",  # noqa: S106
        GREENSTALK_WEB_VIEWER_PASSWORD="look",  # noqa: S106
    )
    with Daemon(*LOOPBACK, "--web-port", "0", environ=environ) as daemon:
        logins = ("", "ada:äöü", "bob:äöü", "bob:look")
        assert [visit(daemon, "audit", login) for login in logins] == [401, 200, 401, 403]


def test_password_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_bytes(b" s3cret \r\nnot this\n")
    with Daemon(*LOOPBACK, "--web-port", "0", environ=environment(GREENSTALK_WEB_PASSWORD_FILE=str(path))) as daemon:
        assert [visit(daemon, "", login) for login in ("", "x: s3cret ", "x:s3cret")] == [401, 200, 401]


def test_password_file_is_read_before_privileges_are_dropped() -> None:
    """The file may be readable by root only."""
    done = run(*LOOPBACK, "-u", "no-such-user", GREENSTALK_WEB_PASSWORD_FILE="/no/such/file")  # noqa: S106
    assert done.returncode == 5
    assert "/no/such/file" in done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory; it must be a file with the password as its first line"),
        (b"", "its first line must be the password, of 1 to 1000 bytes"),
        (b"\nsecond", "its first line must be the password, of 1 to 1000 bytes"),
        (b"x" * 1001, "its first line must be the password, of 1 to 1000 bytes"),
        (b"\xff\n", "it is not UTF-8; it must be a file with the password as its first line"),
    ],
)
def test_password_file_without_a_password_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    done = run(*LOOPBACK, "--web-port", "0", GREENSTALK_WEB_PASSWORD_FILE=str(path))
    assert done.stderr == f"greenstalk-server: GREENSTALK_WEB_PASSWORD_FILE {path}: {message}\n"
    assert done.returncode == 5


def test_password_in_a_file_must_differ_from_the_viewer_password(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("same\n")
    done = run(*LOOPBACK, GREENSTALK_WEB_PASSWORD_FILE=str(path), GREENSTALK_WEB_VIEWER_PASSWORD="same")  # noqa: S106
    assert "GREENSTALK_WEB_VIEWER_PASSWORD: must differ from the admin password" in done.stderr
    assert done.returncode == 5


def test_password_file_is_not_read_without_a_dashboard() -> None:
    with Daemon(*QUIET, environ=environment(GREENSTALK_WEB_PASSWORD_FILE="/no/such/file")) as daemon:  # noqa: S106
        assert daemon.ask(PUT) == b"INSERTED 1"


def test_url_prefix_is_in_the_first_lines() -> None:
    with Daemon(*LOOPBACK, "--web-port", "0", "--url-prefix", "/queue/", "--read-only", "--hide-bodies") as daemon:
        assert daemon.dashboard.endswith("/queue/")
        assert visit(daemon) == 200
        assert daemon.ask(PUT) == b"INSERTED 1"
        assert visit(daemon, "job/body?id=1") == 403
        with urllib.request.urlopen(daemon.dashboard.replace("queue/", "healthz"), timeout=TIMEOUT) as answer:  # noqa: S310
            assert answer.status == 200


def test_audit_log_is_complete_on_disk_after_a_stop(tmp_path: Path) -> None:
    with Daemon(*LOOPBACK, "--web-port", "0", "-b", str(tmp_path)) as daemon:
        daemon.ask(PUT)
        form = urllib.parse.urlencode({"tube": "default", "seconds": "600", "reason": "to see"}).encode()
        headers = {"Sec-Fetch-Site": "same-origin"}
        request = urllib.request.Request(f"{daemon.dashboard}tube/pause", form, headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
            assert b"to see" in answer.read()
        assert daemon.stop()[0] == 0
    with closing(sqlite3.connect(tmp_path / "dashboard.sqlite3")) as data:
        assert '"tube/pause"' in data.execute("SELECT CAST(data AS TEXT) FROM row WHERE kind = 'audit'").fetchone()[0]
    with Daemon(*LOOPBACK, "--web-port", "0", "-b", str(tmp_path)) as daemon:
        with urllib.request.urlopen(f"{daemon.dashboard}tube?tube=default", timeout=TIMEOUT) as answer:  # noqa: S310
            assert b"to see" in answer.read()
        assert visit(daemon, "audit?what=pause") == 200


def test_stop_reports_entries_of_the_audit_log_that_are_not_on_disk(tmp_path: Path) -> None:
    (tmp_path / "dashboard.sqlite3").mkdir()
    with Daemon(*LOOPBACK, "--web-port", "0", "-b", str(tmp_path)) as daemon:
        request = urllib.request.Request(f"{daemon.dashboard}tube/pause", b"tube=default", method="POST")  # noqa: S310
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=TIMEOUT)  # noqa: S310
        assert refused.value.code == 403, "the refusal is an entry of the audit log"
        refused.value.close()
        exit_code, stderr = daemon.stop()
    assert exit_code == 0
    assert "ERROR dashboard: stopped; its last changes are not saved" in stderr


def test_warnings_are_logged() -> None:
    with Daemon(*QUIET, "-c", "-z", "2000000000") as daemon:
        exit_code, stderr = daemon.stop()
    assert exit_code == 0
    assert "WARNING -c has no effect" in stderr
    assert "WARNING the maximum job size (-z) was reduced to 1073741824" in stderr


# Privileges and limits


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_privileges_are_dropped_before_the_journal_is_opened(open_directory: Path) -> None:
    with Daemon(*QUIET, "-u", "nobody", "-b", str(open_directory)) as daemon:
        process = psutil.Process(daemon.process.pid)
        nobody = pwd.getpwnam("nobody")
        assert set(process.uids()) == {nobody.pw_uid}
        assert set(process.gids()) == {nobody.pw_gid}
        assert groups_of(process) == set(os.getgrouplist("nobody", nobody.pw_gid))
        assert (open_directory / "lock").owner() == "nobody"


def groups_of(process: psutil.Process) -> set[int]:
    status = Path(f"/proc/{process.pid}/status").read_text()
    groups = re.search(r"^Groups:(.*)$", status, re.MULTILINE)
    assert groups is not None
    return {int(group) for group in groups[1].split()}


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_process_without_root_can_only_become_its_own_user() -> None:
    refused = as_nobody(*QUIET, "-u", "daemon")
    assert (refused.returncode, "only root can become another user" in refused.stderr) == (34, True)
    itself = as_nobody(*QUIET, "-u", "nobody", "-b", "/no/such/directory")
    assert itself.returncode == 10


def as_nobody(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run the command as nobody, after importing it as root: nobody may not be able to read this checkout."""
    return run(*flags, command=(sys.executable, "-c", BECOME_NOBODY))


def test_limit_on_open_files_is_raised() -> None:
    with Daemon(*QUIET, command=("sh", "-c", 'ulimit -Sn 64 && exec "$@"', "sh", *COMMAND)) as daemon:
        soft, hard = psutil.Process(daemon.process.pid).rlimit(psutil.RLIMIT_NOFILE)
        assert soft == hard > 64


# Journal directory


@pytest.mark.parametrize("name", ["journal.9", "binlog.1"])
def test_fifo_in_the_journal_directory_is_named_without_blocking(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    done = run(*QUIET, "-b", str(tmp_path))
    assert done.stderr == f"greenstalk-server: journal: {tmp_path / name}: not a regular file\n"
    assert done.returncode == 10
    done = run("journal", "check", str(tmp_path))
    assert done.stderr == f"greenstalk-server: journal check: {tmp_path / name}: not a regular file\n"
    assert done.returncode == 10


def test_lock_that_is_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    done = run(*QUIET, "-b", str(tmp_path))
    assert done.stderr == f"greenstalk-server: -b {tmp_path}: the file 'lock' in it is a symbolic link; remove it\n"
    assert done.returncode == 10
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(("mode", "warns"), [(0o777, True), (0o1777, True), (0o775, False), (0o700, False)])
def test_world_writable_journal_directory_logs_a_warning(tmp_path: Path, mode: int, warns: bool) -> None:
    tmp_path.chmod(mode)
    with Daemon(*QUIET, "-b", str(tmp_path)) as daemon:
        _, stderr = daemon.stop()
    warning = f"every user of this machine can add and replace files in -b {tmp_path}; run: chmod o-w {tmp_path}"
    assert (warning in stderr) == warns


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_dashboard_is_refused_if_its_user_cannot_read_the_code(tmp_path: Path) -> None:
    """Otherwise the compilation of the templates would fail with a traceback."""
    tmp_path.chmod(0o700)
    for package in ("greenstalk_server", "web", "templates", "static"):
        shutil.copytree(REPOSITORY / package, tmp_path / package, symlinks=True)
    command = (sys.executable, "-c", FROM_ANOTHER_DIRECTORY, str(tmp_path))
    done = run(*LOOPBACK, "--web-port", "0", "-u", "nobody", command=command)
    assert re.fullmatch(
        r"greenstalk-server: -u nobody: that user cannot read /\S+\.py, which the dashboard needs;"
        r" install the server where every user can read it\n",
        done.stderr,
    )
    assert done.returncode == 34


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_unwritable_journal_directory_is_named(open_directory: Path) -> None:
    open_directory.chmod(0o755)
    done = run(*QUIET, "-u", "nobody", "-b", str(open_directory))
    assert f"-b {open_directory}: Permission denied" in done.stderr
    assert done.returncode == 10


def test_journal_directory_in_use_by_beanstalkd_is_refused(beanstalkd: str, tmp_path: Path) -> None:
    with Daemon(*QUIET, "-b", str(tmp_path)):
        assert run(*LOOPBACK, "-b", str(tmp_path), command=(beanstalkd,)).returncode == 10


# Signals


def test_ctrl_c_during_the_imports_ends_the_process_without_a_traceback() -> None:
    command = (*MINDING_SIGNALS, sys.executable, "-X", "importtime", "-m", "greenstalk_server", *QUIET)
    process = subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stderr=subprocess.PIPE, text=True)
    with ending(process):
        assert process.stderr is not None
        for line in process.stderr:
            if line.endswith(" gevent._util\n"):
                break
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == -signal.SIGINT
    assert "Traceback" not in stderr
    assert "greenstalk_server.cli" not in stderr  # the signal arrived during the imports


def test_ctrl_c_during_the_start_ends_the_process_without_a_traceback(tmp_path: Path) -> None:
    password = tmp_path / "password"
    os.mkfifo(password, 0o600)
    process = subprocess.Popen(
        [*MINDING_SIGNALS, *COMMAND, *LOOPBACK, "--web-port", "0"],
        cwd=REPOSITORY,
        env=environment(GREENSTALK_WEB_PASSWORD_FILE=str(password)),
        stderr=subprocess.PIPE,
        text=True,
    )
    with (
        ending(process),
        password.open("w"),
    ):  # open() returns when the server opens the FIFO, and the server then waits for the password
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_server_in_order(number: signal.Signals) -> None:
    with Daemon(*LOOPBACK, "--web-port", "0") as daemon:
        port = daemon.port
        with socket.create_connection(("127.0.0.1", port), TIMEOUT) as sock:
            assert ask(sock, PUT) == b"INSERTED 1"
            sock.sendall(b"watch jobs\r\nignore default\r\nreserve\r\n")
            exit_code, stderr = daemon.stop(number)
            assert exit_code == 0
            assert "Traceback" not in stderr
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), TIMEOUT)


def test_sigusr1_drains_the_server() -> None:
    with Daemon(*QUIET) as daemon, socket.create_connection(("127.0.0.1", daemon.port), TIMEOUT) as sock:
        assert ask(sock, PUT) == b"INSERTED 1"
        daemon.process.send_signal(signal.SIGUSR1)
        replies = iter(lambda: ask(sock, b"put 0 0 60 2\r\nhi\r\n"), b"DRAINING")
        assert all(reply.startswith(b"INSERTED ") for reply in replies)
        assert ask(sock, b"reserve\r\n") == b"RESERVED 1 2"
