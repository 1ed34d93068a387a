"""Listeners of the real command: addresses, Unix sockets, and sockets passed by systemd."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

import pytest

from greenstalk_server.config.command_line import parse
from greenstalk_server.config.options import Options
from greenstalk_server.net.listeners import open_listeners
from greenstalk_server.runtime.exit_codes import StartError
from tests.cli.test_command import PUT, QUIET
from tests.support.daemon import COMMAND, TIMEOUT, Daemon, ask, environment, run
from tests.support.ports import free_ports

SYSTEMD_SCRIPT = """\
import os, sys
for place, fd in enumerate(map(int, sys.argv[1].split(",")), 3):
    os.dup2(fd, place)
    os.set_inheritable(place, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=sys.argv[2])
os.execv(sys.argv[3], sys.argv[3:])
"""
"""A parent like systemd: it passes the file descriptors in argv[1] as 3, 4 and so on, and executes argv[3:]."""


def activation_command(sock: socket.socket | TextIO, program: tuple[str, ...] = COMMAND) -> tuple[str, ...]:
    """Return the command that starts *program* by socket activation; *sock* must be passed to it."""
    return (sys.executable, "-c", SYSTEMD_SCRIPT, str(sock.fileno()), "1", *program)


@pytest.mark.parametrize("host", ["localhost", "::1"])
def test_server_listens_on_host_names_and_ipv6(host: str) -> None:
    if host == "::1" and not has_ipv6():
        pytest.skip("this machine has no IPv6 on loopback")
    with (
        Daemon("-l", host, "-p", "0", "--no-web") as daemon,
        socket.create_connection((host, daemon.port), TIMEOUT) as sock,
    ):
        assert ask(sock, PUT) == b"INSERTED 1"


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


# Addresses that are equal, or cover one another


def listening(caplog: pytest.LogCaptureFixture, *addresses: str) -> tuple[str, list[str]]:
    """Open listeners on *addresses*; return their names, and the addresses that warnings say are ignored."""
    words = [word for address in addresses for word in ("-l", address)]
    options = parse([*words, "--no-web"], {})
    assert isinstance(options, Options)
    caplog.clear()
    with ExitStack() as stack:
        opened = [stack.enter_context(listener) for listener in open_listeners(options, {})]
        return ", ".join(listener.described() for listener in opened), [
            record.getMessage() for record in caplog.records
        ]


@pytest.mark.parametrize(
    ("addresses", "where"),
    [
        ("127.0.0.1 127.0.0.1 127.0.0.1", "127.0.0.1"),
        ("127.0.0.1 plain:127.0.0.1", "127.0.0.1"),
        ("0.0.0.0 127.0.0.1", "0.0.0.0"),
        ("127.0.0.1 0.0.0.0", "0.0.0.0"),
        ("127.0.0.1 127.0.0.2", "127.0.0.1 127.0.0.2"),
        ("127.0.0.1 localhost localhost", "127.0.0.1"),
        ("[::1] [::1]", "[::1]"),
        ("[::1] [::]", "[::]"),
        ("0.0.0.0 [::]", "[::]"),
        ("[::] 127.0.0.1", "[::]"),
        ("[::ffff:127.0.0.1] 0.0.0.0", "0.0.0.0"),
        ("[::1] 127.0.0.1", "[::1] 127.0.0.1"),
    ],
)
def test_address_covered_by_another_is_ignored(addresses: str, where: str, caplog: pytest.LogCaptureFixture) -> None:
    if "::" in addresses and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    if "localhost" in addresses and socket.gethostbyname("localhost") != "127.0.0.1":
        pytest.skip("localhost is another address")
    (port,) = free_ports(1)
    found, warnings = listening(caplog, *[f"{address}:{port}" for address in addresses.split()])
    assert found == ", ".join(f"{name}:{port}" for name in where.split())
    assert len(warnings) == len(addresses.split()) - len(where.split())
    assert all(warning.endswith(f":{port} is ignored: {found} covers it") for warning in warnings)


def test_address_may_be_repeated_with_a_separate_port() -> None:
    port = str(free_ports(1)[0])
    with Daemon("-l", "127.0.0.1", "-p", port, "-l", "127.0.0.1", "--no-web") as daemon:
        with socket.create_connection(("127.0.0.1", int(port)), TIMEOUT) as sock:
            assert ask(sock, PUT) == b"INSERTED 1"
        daemon.stop()


def test_repeated_unix_socket_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    path = tmp_path / "socket"
    found, warnings = listening(caplog, f"unix:{path}", f"unix:{tmp_path}/link/socket")
    assert found == f"unix:{path}"
    assert warnings == [f"-l unix:{tmp_path}/link/socket is ignored: unix:{path} covers it"]


def test_repeated_address_with_port_0_gets_two_ports(caplog: pytest.LogCaptureFixture) -> None:
    found, warnings = listening(caplog, "127.0.0.1:0", "127.0.0.1:0")
    assert (len(set(found.split(", "))), warnings) == (2, [])


def test_repeated_address_and_port_of_another_server_is_in_use(taken_port: int) -> None:
    done = run("-l", "127.0.0.1", "-p", str(taken_port), "-l", "127.0.0.1", "--no-web")
    assert done.stderr == f"greenstalk-server: cannot listen on 127.0.0.1:{taken_port}: Address already in use\n"
    assert done.returncode == 111


# Unix sockets


def test_server_listens_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with Daemon("-l", f"unix:{path}", "-p", "1", "--no-web") as daemon:
        assert f"\nbeanstalk protocol: unix:{path}\n" in daemon.first_lines
        assert ask_unix(path) == b"INSERTED 1"


def test_stale_unix_socket_is_replaced_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    assert listening(caplog, f"unix:{path}") == (
        f"unix:{path}",
        [f"removing the stale socket at {path}: no server listens on it"],
    )


def test_unix_socket_of_a_starting_or_running_server_is_not_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server binds its socket at once, and listens when it has read its journal."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as client:
        other.bind(str(path))
        for _ in range(2):
            with pytest.raises(StartError, match=f"cannot listen on unix:{path}: a server listens there already"):
                listening(caplog, f"unix:{path}")
            other.listen()
        client.connect(str(path))


def test_file_that_is_not_a_socket_is_not_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "file"
    path.write_text("data")
    with pytest.raises(StartError, match=f"cannot listen on unix:{path}: a file that is not a socket exists there"):
        listening(caplog, f"unix:{path}")
    assert path.read_text() == "data"


def test_unix_socket_without_a_path_is_refused() -> None:
    assert run("-l", "unix:", "--no-web").returncode == 111


def ask_unix(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(TIMEOUT)
        sock.connect(str(path))
        return ask(sock, PUT)


# Socket activation


def test_socket_activation_with_a_tcp_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        flags = ("-l", "192.0.2.1", "-p", "1", "--no-web")
        with Daemon(*flags, command=activation_command(listener), pass_fds=[listener.fileno()]) as daemon:
            assert daemon.port == port
            assert daemon.ask(PUT) == b"INSERTED 1"
            _, stderr = daemon.stop()
    assert "WARNING -l 192.0.2.1 is ignored: serving the inherited socket" in stderr
    assert "WARNING -p 1 is ignored: serving the inherited socket" in stderr


def test_socket_activation_with_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with Daemon("--no-web", command=activation_command(listener), pass_fds=[listener.fileno()]) as daemon:
            assert f"\nbeanstalk protocol: unix:{path}\n" in daemon.first_lines
            assert ask_unix(path) == b"INSERTED 1"
            assert "ignored" not in daemon.stop()[1]


def test_socket_activation_uses_all_sockets(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.create_server(("127.0.0.1", 0)) as first, socket.socket(socket.AF_UNIX) as second:
        second.bind(str(path))
        second.listen()
        command = (sys.executable, "-c", SYSTEMD_SCRIPT, f"{first.fileno()},{second.fileno()}", "2", *COMMAND)
        with Daemon("--no-web", command=command, pass_fds=[first.fileno(), second.fileno()]) as daemon:
            port = first.getsockname()[1]
            assert f"\nbeanstalk protocol: 127.0.0.1:{port}, unix:{path}\n" in daemon.first_lines
            assert ask_unix(path) == b"INSERTED 1"
            with socket.create_connection(("127.0.0.1", port), TIMEOUT) as sock:
                assert ask(sock, PUT) == b"INSERTED 2"


def test_sockets_for_another_process_are_ignored() -> None:
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
            done = run(command=activation_command(passed, program=program), pass_fds=[passed.fileno()])
            assert done.returncode == 111
    assert "cannot listen on the inherited socket, file descriptor 3: " in done.stderr


@pytest.mark.parametrize("count", ["0", "many", "-1"])
def test_socket_activation_with_a_bad_count_is_refused(count: str) -> None:
    options = parse(["--no-web"], {})
    assert isinstance(options, Options)
    with pytest.raises(StartError, match=f"LISTEN_FDS {count!r}: must be the number of inherited sockets, at least 1"):
        next(open_listeners(options, {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count}))


# The moment at which the server begins to listen

LISTENING_SCRIPT = """\
import socket, sys
from greenstalk_server import cli

listen_in_c = socket.socket.listen

def listen(sock, backlog):
    if sock.getsockname()[1] == TAKEN_PORT:
        other = socket.socket()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(sock.getsockname())
        listen_in_c(other)
    is_loaded = "greenstalk_server.web.features.tubes.pages.views" in sys.modules
    print("listening,", "dashboard loaded" if is_loaded else "no dashboard", file=sys.stderr)
    listen_in_c(sock, backlog)

socket.socket.listen = listen
sys.exit(cli.main(sys.argv[1:]))
"""
"""Runs the server, which writes a line before it listens on a socket."""


def listening_command(taken_port: int = 0) -> tuple[str, ...]:
    """Return the command of a server; another socket begins to listen on *taken_port* just before the server does."""
    return (sys.executable, "-c", LISTENING_SCRIPT.replace("TAKEN_PORT", str(taken_port)))


FLAGS = ("-l", "127.0.0.1", "-p", "0", "--web-port", "0")


def test_server_listens_when_the_journal_is_read_and_the_dashboard_is_loaded(tmp_path: Path) -> None:
    with Daemon(*FLAGS, "-b", str(tmp_path)) as daemon:
        assert daemon.ask(PUT) == b"INSERTED 1"
    with Daemon(*FLAGS, "-b", str(tmp_path), command=listening_command()) as daemon:
        assert daemon.ask(PUT) == b"INSERTED 2"
        _, stderr = daemon.stop()
    listens = [line for line in stderr.splitlines() if line.startswith("listening")]
    assert listens == ["listening, dashboard loaded"] * 2
    assert stderr.index("records read in") < stderr.index("listening")


def test_server_that_refuses_its_journal_never_listens(later_journal: Path) -> None:
    done = run(*FLAGS, "-b", str(later_journal), command=listening_command())
    assert done.returncode == 10
    assert "a later version of the server has written the journal" in done.stderr
    assert "listening" not in done.stderr


@pytest.mark.parametrize("flags", [("-p", "PORT", "--no-web"), ("-p", "0", "--web-port", "PORT")])
def test_port_that_is_taken_during_the_start_is_reported(flags: tuple[str, ...]) -> None:
    (port,) = free_ports(1)
    arguments = [flag.replace("PORT", str(port)) for flag in flags]
    done = run("-l", "127.0.0.1", *arguments, command=listening_command(port))
    assert done.returncode == 111
    assert f"greenstalk-server: cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr
