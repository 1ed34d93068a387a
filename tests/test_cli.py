"""The real command: first lines, exit codes beside beanstalkd's own, listeners, privileges, signals."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import psutil
import pytest

from greenstalk_server import __version__
from tests.daemon import COMMAND, PATIENCE, Daemon, ask, environment, run

LOOPBACK = ("-l", "127.0.0.1", "-p", "0")
QUIET = (*LOOPBACK, "--no-web")
PUT = b"put 0 0 60 2\r\nhi\r\n"

HAND_OVER = """\
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=sys.argv[2])
os.execv(sys.argv[3], sys.argv[3:])
"""
"""A parent like systemd, which hands the socket argv[1] over as descriptor 3, then becomes argv[3:]."""

BECOME_NOBODY = """\
import encodings.idna, os, pwd, sys
from greenstalk_server.cli import main
nobody = pwd.getpwnam("nobody")
os.setgroups([])
os.setgid(nobody.pw_gid)
os.setuid(nobody.pw_uid)
sys.exit(main(sys.argv[1:]))
"""

IS_ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def beanstalkd() -> str:
    path = shutil.which("beanstalkd", path=f"{os.environ['PATH']}:/usr/sbin")
    assert path is not None, "beanstalkd is missing: apt-get install beanstalkd"
    return path


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield holder.getsockname()[1]


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user can reach and write to, as pytest's own is not."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o777)
        yield path


def handing_over(sock: socket.socket | TextIO, count: str = "1", program: tuple[str, ...] = COMMAND) -> tuple[str, ...]:
    """Return the command that starts *program* by socket activation; *sock* must be passed on to it."""
    return (sys.executable, "-c", HAND_OVER, str(sock.fileno()), count, *program)


def test_first_lines_say_version_where_both_listen_and_whether_jobs_survive() -> None:
    with Daemon(*LOOPBACK, "--web-port", "0") as daemon:
        first, protocol, dashboard, jobs = daemon.first_lines.splitlines()
        assert first == f"greenstalk-server {__version__}, process {daemon.process.pid}"
        assert re.fullmatch(r"beanstalk protocol: 127\.0\.0\.1:\d+", protocol)
        assert re.fullmatch(r"dashboard: http://127\.0\.0\.1:\d+/", dashboard)
        assert jobs == "jobs: in memory only; they do not survive a restart"
        assert daemon.ask(PUT) == b"INSERTED 1"
        with urllib.request.urlopen(daemon.dashboard, timeout=PATIENCE) as page:  # noqa: S310  our own, on loopback
            assert page.status == 200


def test_without_a_dashboard() -> None:
    with Daemon(*QUIET) as daemon:
        assert "\ndashboard: off (--no-web)\n" in daemon.first_lines
        assert len(psutil.Process(daemon.process.pid).net_connections()) == 1


@pytest.mark.parametrize("flags", [["-v"], ["--version"], ["-Vv"]])
def test_version_is_printed(flags: list[str]) -> None:
    done = run(*flags)
    assert (done.stdout, done.stderr, done.returncode) == (f"greenstalk-server {__version__}\n", "", 0)


def test_help_is_printed() -> None:
    done = run("--help")
    assert done.stdout.startswith("Use: greenstalk-server [OPTIONS]\n")
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
        (["-f"], 5),
        (["-s"], 5),
        (["-l"], 5),
        (["-p"], 5),
        (["-u"], 5),
        (["-z"], 5),
        (["-f", "abc"], 5),
        (["-f1.5"], 5),
        (["-s", "10k"], 5),
        (["-z", ""], 5),
        (["-z", "abc"], 5),
        (["-z", "0x10"], 5),
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
def test_exit_codes_are_beanstalkds(beanstalkd: str, flags: list[str], exit_code: int) -> None:
    theirs = run(*flags, command=(beanstalkd,))
    ours = run(*flags, GREENSTALK_WEB_HOST="127.0.0.1", PORT="0")
    assert (theirs.returncode, ours.returncode) == (exit_code, exit_code)
    assert ours.stderr.count("\n") == bool(exit_code), "one line says why"


def test_a_port_in_use_is_named(beanstalkd: str, taken_port: int) -> None:
    flags = ("-l", "127.0.0.1", "-p", str(taken_port))
    ours = run(*flags, "--no-web")
    assert ours.stderr == f"greenstalk-server: cannot listen on 127.0.0.1:{taken_port}: Address already in use\n"
    assert (run(*flags, command=(beanstalkd,)).returncode, ours.returncode) == (111, 111)


def test_a_dashboard_port_in_use_is_named(taken_port: int) -> None:
    done = run(*LOOPBACK, "--web-port", str(taken_port))
    assert f"cannot listen on 127.0.0.1:{taken_port}: Address already in use" in done.stderr
    assert "--web-port" in done.stderr
    assert done.returncode == 111


def test_a_dashboard_on_the_network_needs_a_password() -> None:
    done = run(*LOOPBACK, "--web-host", "0.0.0.0", "--web-port", "0")
    assert "GREENSTALK_WEB_PASSWORD" in done.stderr
    assert done.returncode == 5


def test_warnings_are_logged() -> None:
    with Daemon(*QUIET, "-c", "-z", "2000000000") as daemon:
        exit_code, said = daemon.stop()
    assert exit_code == 0
    assert "WARNING the -c flag was removed" in said
    assert "WARNING the maximum job size (-z) was cut to 1073741824" in said


def test_max_job_size() -> None:
    with Daemon(*QUIET, "-z", "1") as daemon:
        assert daemon.ask(PUT) == b"JOB_TOO_BIG"


@pytest.mark.parametrize("host", ["localhost", "::1"])
def test_host_names_and_ipv6(host: str) -> None:
    if host == "::1" and not has_ipv6():
        pytest.skip("this machine has no IPv6 on loopback")
    with (
        Daemon("-l", host, "-p", "0", "--no-web") as daemon,
        socket.create_connection((host, daemon.port), PATIENCE) as sock,
    ):
        assert ask(sock, PUT) == b"INSERTED 1"


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


# Unix sockets


def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with Daemon("-l", f"unix:{path}", "-p", "1", "--no-web") as daemon:
        assert f"\nbeanstalk protocol: unix:{path}\n" in daemon.first_lines
        assert ask_unix(path) == b"INSERTED 1"


def test_an_existing_unix_socket_is_replaced_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    with Daemon("-l", f"unix:{path}", "--no-web") as daemon:
        assert ask_unix(path) == b"INSERTED 1"
        _, said = daemon.stop()
    assert f"WARNING removing the socket at {path}, to listen there" in said


def test_a_file_that_is_not_a_socket_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    done = run("-l", f"unix:{path}", "--no-web")
    assert done.stderr == (
        f"greenstalk-server: cannot listen on unix:{path}: a file that is not a socket is there already\n"
    )
    assert done.returncode == 111
    assert path.read_text() == "data"


def test_a_unix_socket_without_a_path_is_refused() -> None:
    assert run("-l", "unix:", "--no-web").returncode == 111


def ask_unix(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE)
        sock.connect(str(path))
        return ask(sock, PUT)


# Socket activation


def test_socket_activation_tcp() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        flags = ("-l", "192.0.2.1", "-p", "1", "--no-web")
        with Daemon(*flags, command=handing_over(listener), pass_fds=[listener.fileno()]) as daemon:
            assert daemon.port == port
            assert daemon.ask(PUT) == b"INSERTED 1"
            _, said = daemon.stop()
    assert "WARNING -l 192.0.2.1 is ignored: serving the socket that was handed over" in said
    assert "WARNING -p 1 is ignored: serving the socket that was handed over" in said


def test_socket_activation_unix(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with Daemon("--no-web", command=handing_over(listener), pass_fds=[listener.fileno()]) as daemon:
            assert f"\nbeanstalk protocol: unix:{path}\n" in daemon.first_lines
            assert ask_unix(path) == b"INSERTED 1"
            assert "ignored" not in daemon.stop()[1]


def test_socket_activation_takes_the_first_of_several() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = handing_over(listener, count="2")
        with Daemon("--no-web", command=command, pass_fds=[listener.fileno()]) as daemon:
            assert daemon.port == listener.getsockname()[1]
            assert "WARNING 2 sockets were handed over: serving the first" in daemon.stop()[1]


def test_socket_activation_for_another_process_is_none() -> None:
    with Daemon(*QUIET, environ=environment(LISTEN_PID="1", LISTEN_FDS="1")) as daemon:
        assert daemon.ask(PUT) == b"INSERTED 1"


@pytest.mark.parametrize("kind", ["not listening", "datagram", "file"])
def test_socket_activation_needs_a_listening_stream_socket(beanstalkd: str, kind: str, tmp_path: Path) -> None:
    with (
        socket.socket(type=socket.SOCK_DGRAM if kind == "datagram" else socket.SOCK_STREAM) as sock,
        (tmp_path / "file").open("w") as file,
    ):
        sock.bind(("127.0.0.1", 0))
        passed = file if kind == "file" else sock
        for program in ((beanstalkd,), (*COMMAND, "--no-web")):
            done = run(command=handing_over(passed, program=program), pass_fds=[passed.fileno()])
            assert done.returncode == 111
    assert "cannot listen on the socket handed over as file descriptor 3: " in done.stderr


@pytest.mark.parametrize("count", ["0", "many", "-1"])
def test_socket_activation_with_a_bad_count(count: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = run(command=handing_over(listener, count), pass_fds=[listener.fileno()])
    assert f"LISTEN_FDS {count!r}: must be how many sockets are handed over, at least 1" in done.stderr
    assert done.returncode == 111


# Privileges and limits


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_privileges_are_dropped_after_the_bind_and_before_the_binlog(open_directory: Path) -> None:
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
def test_who_is_not_root_can_only_become_itself() -> None:
    refused = as_nobody(*QUIET, "-u", "daemon")
    assert (refused.returncode, "only root can become another user" in refused.stderr) == (34, True)
    itself = as_nobody(*QUIET, "-u", "nobody", "-b", "/no/such/directory")
    assert itself.returncode == 10


def as_nobody(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run the command as nobody, having imported it as root: nobody may be unable to read this checkout."""
    return run(*flags, command=(sys.executable, "-c", BECOME_NOBODY))


def test_the_limit_on_open_files_is_raised() -> None:
    with Daemon(*QUIET, command=("sh", "-c", 'ulimit -Sn 64 && exec "$@"', "sh", *COMMAND)) as daemon:
        soft, hard = psutil.Process(daemon.process.pid).rlimit(psutil.RLIMIT_NOFILE)
        assert soft == hard > 64


# Binlog directory


def test_a_missing_binlog_directory_is_named() -> None:
    done = run(*QUIET, "-b", "/no/such/directory")
    assert done.stderr == (
        "greenstalk-server: -b /no/such/directory: No such file or directory; it must be a writable directory\n"
    )


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_a_binlog_directory_that_cannot_be_written_is_named(open_directory: Path) -> None:
    open_directory.chmod(0o755)
    done = run(*QUIET, "-u", "nobody", "-b", str(open_directory))
    assert f"-b {open_directory}: Permission denied" in done.stderr
    assert done.returncode == 10


def test_a_second_server_on_a_binlog_directory_is_refused(tmp_path: Path) -> None:
    with Daemon(*QUIET, "-b", str(tmp_path)) as daemon:
        done = run(*QUIET, "-b", str(tmp_path))
        assert f"-b {tmp_path}: in use by process {daemon.process.pid}, and one server at a time may be" in done.stderr
        assert done.returncode == 10
        daemon.stop()
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600
    with Daemon(*QUIET, "-b", str(tmp_path)) as daemon:
        assert daemon.stop()[0] == 0


def test_a_binlog_directory_is_shared_with_no_beanstalkd(beanstalkd: str, tmp_path: Path) -> None:
    with Daemon(*QUIET, "-b", str(tmp_path)):
        assert run(*LOOPBACK, "-b", str(tmp_path), command=(beanstalkd,)).returncode == 10


# Signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_order(number: signal.Signals) -> None:
    with Daemon(*LOOPBACK, "--web-port", "0") as daemon:
        port = daemon.port
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as sock:
            assert ask(sock, PUT) == b"INSERTED 1"
            sock.sendall(b"watch jobs\r\nignore default\r\nreserve\r\n")
            exit_code, said = daemon.stop(number)
            assert exit_code == 0
            assert "Traceback" not in said
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), PATIENCE)


def test_sigusr1_drains() -> None:
    with Daemon(*QUIET) as daemon, socket.create_connection(("127.0.0.1", daemon.port), PATIENCE) as sock:
        assert ask(sock, PUT) == b"INSERTED 1"
        daemon.process.send_signal(signal.SIGUSR1)
        replies = iter(lambda: ask(sock, b"put 0 0 60 2\r\nhi\r\n"), b"DRAINING")
        assert all(reply.startswith(b"INSERTED ") for reply in replies)
        assert ask(sock, b"reserve\r\n") == b"RESERVED 1 2"
