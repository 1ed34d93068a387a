"""The real command: first lines, exit codes beside beanstalkd's own, listeners, privileges, signals."""

from __future__ import annotations

import base64
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
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import psutil
import pytest

from greenstalk_server import __version__
from tests.daemon import COMMAND, MINDING_SIGNALS, PATIENCE, REPOSITORY, Daemon, ask, environment, run

LOOPBACK = ("-l", "127.0.0.1", "-p", "0")
QUIET = (*LOOPBACK, "--no-web")
PUT = b"put 0 0 60 2\r\nhi\r\n"

HAND_OVER = """\
import os, sys
for place, fd in enumerate(map(int, sys.argv[1].split(",")), 3):
    os.dup2(fd, place)
    os.set_inheritable(place, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=sys.argv[2])
os.execv(sys.argv[3], sys.argv[3:])
"""
"""A parent like systemd, which hands the sockets argv[1] over as descriptors from 3 on, then becomes argv[3:]."""

FROM_ELSEWHERE = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from greenstalk_server.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""The command, with the package that is in the directory argv[1]."""

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


@pytest.mark.parametrize("is_abstract", [False, True])
def test_systemd_is_told_when_it_serves_and_when_it_stops(tmp_path: Path, is_abstract: bool) -> None:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(PATIENCE)
        manager.bind(f"\0{name}" if is_abstract else name)
        with Daemon(*QUIET, environ=environment(NOTIFY_SOCKET=f"@{name}" if is_abstract else name)) as daemon:
            assert manager.recv(100) == b"READY=1"
            daemon.stop()
        assert manager.recv(100) == b"STOPPING=1"


def test_a_manager_that_has_gone_stops_nothing(tmp_path: Path) -> None:
    with Daemon(*QUIET, environ=environment(NOTIFY_SOCKET=str(tmp_path / "gone"))) as daemon:
        assert daemon.ask(PUT) == b"INSERTED 1"
        code, said = daemon.stop()
    assert code == 0
    assert "gone: No such file or directory; the service manager does not receive READY=1" in said


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
        (["-f"], 5),
        (["-s"], 5),
        (["-l"], 5),
        (["-p"], 5),
        (["-u"], 5),
        (["-z"], 5),
        (["-f", "abc"], 5),
        (["-f1.5"], 5),
        (["-s", "10x"], 5),
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


# Passwords, and where the dashboard is


def visit(daemon: Daemon, path: str = "", login: str = "") -> int:
    """Ask the dashboard for *path*, as `name:password`; return the status."""
    request = urllib.request.Request(daemon.dashboard + path)  # noqa: S310  our own, on loopback
    if login:
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_passwords_by_the_environment() -> None:
    environ = environment(
        GREENSTALK_WEB_USER="ada",
        GREENSTALK_WEB_PASSWORD="äöü",  # noqa: S106
        GREENSTALK_WEB_VIEWER_PASSWORD="look",  # noqa: S106
    )
    with Daemon(*LOOPBACK, "--web-port", "0", environ=environ) as daemon:
        logins = ("", "ada:äöü", "bob:äöü", "bob:look")
        assert [visit(daemon, "audit", login) for login in logins] == [401, 200, 401, 403]


def test_a_password_file(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_bytes(b" s3cret \r\nnot this\n")
    with Daemon(*LOOPBACK, "--web-port", "0", environ=environment(GREENSTALK_WEB_PASSWORD_FILE=str(path))) as daemon:
        assert [visit(daemon, "", login) for login in ("", "x: s3cret ", "x:s3cret")] == [401, 200, 401]


def test_a_password_file_is_read_before_privileges_are_dropped() -> None:
    """So it may be readable by root alone."""
    done = run(*LOOPBACK, "-u", "no-such-user", GREENSTALK_WEB_PASSWORD_FILE="/no/such/file")  # noqa: S106
    assert done.returncode == 5
    assert "/no/such/file" in done.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory; it must be a file with the password as its first line"),
        (b"", "its first line must be the password, of 1 to 1000 bytes"),
        (b"\nsecond", "its first line must be the password, of 1 to 1000 bytes"),
        (b"x" * 1001, "its first line must be the password, of 1 to 1000 bytes"),
        (b"\xff\n", "it is not UTF-8; it must be a file with the password as its first line"),
    ],
)
def test_a_password_file_without_a_password(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    done = run(*LOOPBACK, "--web-port", "0", GREENSTALK_WEB_PASSWORD_FILE=str(path))
    assert done.stderr == f"greenstalk-server: GREENSTALK_WEB_PASSWORD_FILE {path}: {said}\n"
    assert done.returncode == 5


def test_a_password_file_must_differ_from_the_viewers_password(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("same\n")
    done = run(*LOOPBACK, GREENSTALK_WEB_PASSWORD_FILE=str(path), GREENSTALK_WEB_VIEWER_PASSWORD="same")  # noqa: S106
    assert "GREENSTALK_WEB_VIEWER_PASSWORD: must differ from the admins' password" in done.stderr
    assert done.returncode == 5


def test_without_a_dashboard_no_password_file_is_read() -> None:
    with Daemon(*QUIET, environ=environment(GREENSTALK_WEB_PASSWORD_FILE="/no/such/file")) as daemon:  # noqa: S106
        assert daemon.ask(PUT) == b"INSERTED 1"


def test_a_prefix_is_in_the_first_lines() -> None:
    with Daemon(*LOOPBACK, "--web-port", "0", "--url-prefix", "/queue/", "--read-only", "--hide-bodies") as daemon:
        assert daemon.dashboard.endswith("/queue/")
        assert visit(daemon) == 200
        assert daemon.ask(PUT) == b"INSERTED 1"
        assert visit(daemon, "job/body?id=1") == 403
        with urllib.request.urlopen(daemon.dashboard.replace("queue/", "healthz"), timeout=PATIENCE) as answer:  # noqa: S310
            assert answer.status == 200


def test_a_viewers_password_alone_warns() -> None:
    environ = environment(GREENSTALK_WEB_VIEWER_PASSWORD="look")  # noqa: S106
    with Daemon(*LOOPBACK, "--web-port", "0", environ=environ) as daemon:
        assert "WARNING GREENSTALK_WEB_VIEWER_PASSWORD is set without GREENSTALK_WEB_PASSWORD" in daemon.stop()[1]


def test_what_was_noted_last_is_on_disk_after_a_stop(tmp_path: Path) -> None:
    with Daemon(*LOOPBACK, "--web-port", "0", "-b", str(tmp_path)) as daemon:
        daemon.ask(PUT)
        form = urllib.parse.urlencode({"tube": "default", "seconds": "600", "reason": "to see"}).encode()
        headers = {"Sec-Fetch-Site": "same-origin"}
        request = urllib.request.Request(f"{daemon.dashboard}tube/pause", form, headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            assert b"to see" in answer.read()
        assert daemon.stop()[0] == 0
    assert '"tube/pause"' in (tmp_path / "audit.jsonl").read_text()
    with Daemon(*LOOPBACK, "--web-port", "0", "-b", str(tmp_path)) as daemon:
        with urllib.request.urlopen(f"{daemon.dashboard}tube?tube=default", timeout=PATIENCE) as answer:  # noqa: S310
            assert b"to see" in answer.read()
        assert visit(daemon, "audit?what=pause") == 200


def test_a_stop_tells_what_of_the_audit_log_is_not_on_disk(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    with Daemon(*LOOPBACK, "--web-port", "0", "-b", str(tmp_path)) as daemon:
        request = urllib.request.Request(f"{daemon.dashboard}tube/pause", b"tube=default", method="POST")  # noqa: S310
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=PATIENCE)  # noqa: S310
        assert refused.value.code == 403, "a refusal, which is noted"
        refused.value.close()
        exit_code, said = daemon.stop()
    assert exit_code == 0
    assert "ERROR audit log: stopped with entries that are not on disk" in said


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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


# Addresses that are the same, or cover one another


def listening(*addresses: str) -> tuple[str, str]:
    """Serve on *addresses*; return where it says that it listens, and the warnings."""
    with Daemon(*[word for address in addresses for word in ("-l", address)], "--no-web") as daemon:
        where = daemon.first_lines.partition("beanstalk protocol: ")[2].partition("\n")[0]
        _, said = daemon.stop()
    return where, "\n".join(line.partition("WARNING ")[2] for line in said.splitlines() if "WARNING" in line)


@pytest.mark.parametrize(
    ("addresses", "where", "ignored"),
    [
        (["127.0.0.1:{}", "127.0.0.1:{}"], "127.0.0.1:{}", ["127.0.0.1:{}"]),
        (["127.0.0.1:{}", "127.0.0.1:{}", "127.0.0.1:{}"], "127.0.0.1:{}", ["127.0.0.1:{}", "127.0.0.1:{}"]),
        (["127.0.0.1:{}", "plain:127.0.0.1:{}"], "127.0.0.1:{}", ["127.0.0.1:{}"]),
        (["0.0.0.0:{}", "127.0.0.1:{}"], "0.0.0.0:{}", ["127.0.0.1:{}"]),
        (["127.0.0.1:{}", "0.0.0.0:{}"], "0.0.0.0:{}", ["127.0.0.1:{}"]),
        (["127.0.0.1:{}", "127.0.0.2:{}"], "127.0.0.1:{}, 127.0.0.2:{}", []),
    ],
)
def test_address_that_another_covers_is_listened_on_once(addresses: list[str], where: str, ignored: list[str]) -> None:
    port = free_port()
    found, warnings = listening(*[address.format(port) for address in addresses])
    assert found == where.replace("{}", str(port))
    assert warnings.splitlines() == [f"-l {name.format(port)} is ignored: {found} covers it" for name in ignored]


@pytest.mark.parametrize(
    ("addresses", "where"),
    [
        (["[::1]:{}", "[::1]:{}"], "[::1]:{}"),
        (["[::1]:{}", "[::]:{}"], "[::]:{}"),
        (["0.0.0.0:{}", "[::]:{}"], "[::]:{}"),
        (["[::]:{}", "127.0.0.1:{}"], "[::]:{}"),
        (["[::ffff:127.0.0.1]:{}", "0.0.0.0:{}"], "0.0.0.0:{}"),
        (["[::1]:{}", "127.0.0.1:{}"], "[::1]:{}, 127.0.0.1:{}"),
    ],
)
def test_address_of_ipv6_that_another_covers_is_listened_on_once(addresses: list[str], where: str) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    port = free_port()
    found, warnings = listening(*[address.format(port) for address in addresses])
    assert found == where.replace("{}", str(port))
    assert len(warnings.splitlines()) == len(addresses) - len(where.split(", "))


def test_host_name_of_an_address_that_is_listened_on_is_ignored() -> None:
    port = free_port()
    host = socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)[0][4][0]
    address = f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    found, warnings = listening(address, f"localhost:{port}", f"localhost:{port}")
    assert found == address
    assert warnings.splitlines() == [f"-l localhost:{port} is ignored: {address} covers it"] * 2


def test_address_may_be_given_twice_with_the_port_apart() -> None:
    port = str(free_port())
    with Daemon("-l", "127.0.0.1", "-p", port, "-l", "127.0.0.1", "--no-web") as daemon:
        with socket.create_connection(("127.0.0.1", int(port)), PATIENCE) as sock:
            assert ask(sock, PUT) == b"INSERTED 1"
        daemon.stop()


def test_same_unix_socket_twice_is_listened_on_once(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    path = tmp_path / "socket"
    found, warnings = listening(f"unix:{path}", f"unix:{tmp_path}/link/socket")
    assert found == f"unix:{path}"
    assert warnings == f"-l unix:{tmp_path}/link/socket is ignored: unix:{path} covers it"


def test_same_address_with_port_0_gets_a_port_each_time() -> None:
    found, warnings = listening("127.0.0.1:0", "127.0.0.1:0")
    assert len(set(found.split(", "))) == 2
    assert warnings == ""


def test_repeated_address_and_port_of_another_server_is_in_use(taken_port: int) -> None:
    done = run("-l", "127.0.0.1", "-p", str(taken_port), "-l", "127.0.0.1", "--no-web")
    assert done.stderr == f"greenstalk-server: cannot listen on 127.0.0.1:{taken_port}: Address already in use\n"
    assert done.returncode == 111


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


def test_a_unix_socket_at_which_a_server_listens_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with Daemon("-l", f"unix:{path}", "--no-web"):
        done = run("-l", f"unix:{path}", "--no-web")
        assert (done.returncode, done.stderr) == (
            111,
            f"greenstalk-server: cannot listen on unix:{path}: a server listens there already\n",
        )
        assert ask_unix(path) == b"INSERTED 1"


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


def test_socket_activation_takes_all_of_several(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.create_server(("127.0.0.1", 0)) as first, socket.socket(socket.AF_UNIX) as second:
        second.bind(str(path))
        second.listen()
        command = (sys.executable, "-c", HAND_OVER, f"{first.fileno()},{second.fileno()}", "2", *COMMAND)
        with Daemon("--no-web", command=command, pass_fds=[first.fileno(), second.fileno()]) as daemon:
            port = first.getsockname()[1]
            assert f"\nbeanstalk protocol: 127.0.0.1:{port}, unix:{path}\n" in daemon.first_lines
            assert ask_unix(path) == b"INSERTED 1"
            with socket.create_connection(("127.0.0.1", port), PATIENCE) as sock:
                assert ask(sock, PUT) == b"INSERTED 2"


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


@pytest.mark.parametrize("name", ["journal.9", "binlog.1"])
def test_a_fifo_among_the_files_is_named_and_not_waited_for(tmp_path: Path, name: str) -> None:
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
    assert done.stderr == f"greenstalk-server: -b {tmp_path}: its file lock is a symbolic link; remove it\n"
    assert done.returncode == 10
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(("mode", "warns"), [(0o777, True), (0o1777, True), (0o775, False), (0o700, False)])
def test_binlog_directory_that_every_user_can_write_to_is_warned_of(tmp_path: Path, mode: int, warns: bool) -> None:
    tmp_path.chmod(mode)
    with Daemon(*QUIET, "-b", str(tmp_path)) as daemon:
        _, said = daemon.stop()
    warning = f"every user of this machine can add and replace files in -b {tmp_path}; run: chmod o-w {tmp_path}"
    assert (warning in said) == warns


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_user_who_cannot_read_the_program_is_refused_a_dashboard(tmp_path: Path) -> None:
    """To compile the templates would fail, with a traceback."""
    tmp_path.chmod(0o700)
    for package in ("greenstalk_server", "web", "templates", "static"):
        shutil.copytree(REPOSITORY / package, tmp_path / package, symlinks=True)
    command = (sys.executable, "-c", FROM_ELSEWHERE, str(tmp_path))
    done = run(*LOOPBACK, "--web-port", "0", "-u", "nobody", command=command)
    assert re.fullmatch(
        r"greenstalk-server: -u nobody: that user cannot read /\S+\.py, from where the dashboard loads code;"
        r" install it where every user can read it\n",
        done.stderr,
    )
    assert done.returncode == 34


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_a_binlog_directory_that_cannot_be_written_is_named(open_directory: Path) -> None:
    open_directory.chmod(0o755)
    done = run(*QUIET, "-u", "nobody", "-b", str(open_directory))
    assert f"-b {open_directory}: Permission denied" in done.stderr
    assert done.returncode == 10


def test_a_second_server_on_a_binlog_directory_is_refused(tmp_path: Path) -> None:
    with Daemon(*QUIET, "-b", str(tmp_path)) as daemon:
        done = run(*QUIET, "-b", str(tmp_path))
        held = f"-b {tmp_path}: in use by process {daemon.process.pid}; only one server may use a directory at a time"
        assert held in done.stderr
        assert done.returncode == 10
        daemon.stop()
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600
    with Daemon(*QUIET, "-b", str(tmp_path)) as daemon:
        assert daemon.stop()[0] == 0


def test_a_binlog_directory_is_shared_with_no_beanstalkd(beanstalkd: str, tmp_path: Path) -> None:
    with Daemon(*QUIET, "-b", str(tmp_path)):
        assert run(*LOOPBACK, "-b", str(tmp_path), command=(beanstalkd,)).returncode == 10


# Signals


def test_ctrl_c_during_the_imports_ends_it_without_a_traceback() -> None:
    command = (*MINDING_SIGNALS, sys.executable, "-X", "importtime", "-m", "greenstalk_server", *QUIET)
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.endswith(" gevent._util\n"):
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == -signal.SIGINT
    assert "Traceback" not in said
    assert "greenstalk_server.cli" not in said  # it was still importing


def test_ctrl_c_during_the_start_ends_it_without_a_traceback(tmp_path: Path) -> None:
    password = tmp_path / "password"
    os.mkfifo(password, 0o600)
    with (
        subprocess.Popen(
            [*MINDING_SIGNALS, *COMMAND, *LOOPBACK, "--web-port", "0"],
            cwd=REPOSITORY,
            env=environment(GREENSTALK_WEB_PASSWORD_FILE=str(password)),
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
        password.open("w"),
    ):  # once the server reads it, which then waits for the password
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said) == (-signal.SIGINT, "")


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
