"""`greenstalk-server --processes N`: the parent, its children, and their deaths. Real processes, sockets and kills."""

from __future__ import annotations

import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from greenstalk_server.cluster.placement import Placement, ShardPlacement
from greenstalk_server.config.command_line import parse
from greenstalk_server.config.options import Options
from greenstalk_server.core.tube_shards import shard_of_tube
from greenstalk_server.runtime.exit_codes import EXIT_JOURNAL
from tests.support import forking
from tests.support.daemon import COMMAND, MINDING_SIGNALS, REPOSITORY, TIMEOUT, Daemon, ask, environment, run_here

QUIET = ("-l", "127.0.0.1", "-p", "0", "--no-web")


def until(condition: Callable[[], bool]) -> None:
    """Return once *condition* is true: a death of a process and its restart send nothing to the test."""
    limit = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def children(server: Daemon) -> list[psutil.Process]:
    """Return the processes of *server* by their age, without the parent."""
    found = psutil.Process(server.process.pid).children()
    return sorted(found, key=lambda child: child.create_time())


def read(sock: socket.socket, line: bytes) -> bytes:
    """Return the reply to *line*, a command with a YAML reply."""
    sock.sendall(line + b"\r\n")
    reply = b""
    while not reply.endswith(b"\n\r\n"):
        data = sock.recv(65536)
        assert data
        reply += data
    return reply


def pid_behind(sock: socket.socket) -> int:
    return int(re.search(rb"^pid: (\d+)$", read(sock, b"stats"), re.MULTILINE)[1])


def connect(server: Daemon) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), TIMEOUT)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon("--processes", "2", "-b", str(tmp_path), *QUIET, command=(*MINDING_SIGNALS, *COMMAND)) as running:
        yield running


def test_each_process_has_a_shard_and_all_serve_one_port(tmp_path: Path) -> None:
    """The option -u prevents forks of one interpreter: see tests/support/forking.py."""
    command = (COMMAND[0], "-u", *COMMAND[1:])
    with Daemon("--processes", "2", "-b", str(tmp_path), *QUIET, command=command) as server:
        assert "with 2 others" in server.first_lines
        assert f"kept in {tmp_path}" in server.first_lines
        assert len(children(server)) == 2
        with connect(server) as sock:
            assert pid_behind(sock) in {child.pid for child in children(server)}
        ids = {server.ask(b"put 0 0 9 1\r\nx\r\n") for _ in range(4)}
        assert len(ids) == 4
        assert sorted(path.name for path in tmp_path.iterdir()) == ["links", "lock", "shard-0", "shard-1"]
        secret = re.compile(rb"_GREENSTALK_PLACEMENT=\*+$")
        for child in children(server):
            variables = Path(f"/proc/{child.pid}/environ").read_bytes().split(b"\0")
            assert any(secret.fullmatch(variable) for variable in variables)


def test_killed_child_is_restarted_and_the_others_stay(server: Daemon) -> None:
    victim = children(server)[0]
    survivor = children(server)[1]
    victim.send_signal(signal.SIGKILL)
    until(lambda: victim.pid not in {child.pid for child in children(server)} and len(children(server)) == 2)
    new = next(child for child in children(server) if child.pid != survivor.pid)
    survivor.suspend()  # so that the new one serves
    try:
        with connect(server) as sock:
            sock.sendall(b"list-tube-used\r\n")
            assert sock.recv(100) == b"USING default\r\n"
        assert new.is_running()
    finally:
        survivor.resume()
    code, stderr = server.stop()
    assert code == 0
    assert f"process {victim.pid} was ended by SIGKILL; it is restarted in 0.0 s" in stderr


def test_connections_that_wait_survive_a_death(server: Daemon) -> None:
    both = children(server)
    for child in both:
        child.suspend()
    waiting = [connect(server) for _ in range(20)]
    both[0].kill()
    both[1].resume()
    for sock in waiting:
        assert pid_behind(sock) > 0
        sock.close()


def test_claim_is_undone_if_the_connection_of_its_client_is_reset(server: Daemon) -> None:
    front, owner = children(server)
    shard = next(int(each.laddr[-1]) for each in owner.net_connections("unix") if each.laddr)
    tube = next(b"t%d" % n for n in range(99) if shard_of_tube(b"t%d" % n, 2) == shard)
    other = next(b"t%d" % n for n in range(99) if shard_of_tube(b"t%d" % n, 2) != shard)
    owner.suspend()
    with connect(server) as client, connect(server) as probe:

        def await_front() -> None:
            """Return once the front has handled what had reached it before."""
            for _ in range(2):
                assert ask(probe, b"list-tube-used\r\n") == b"USING default"

        await_front()
        client.sendall(b"watch %b\r\nwatch %b\r\nignore default\r\nreserve\r\n" % (tube, other))
        owner.resume()
        until(lambda: b"\ncurrent-waiting: 1\n" in read(probe, b"stats-tube " + tube))
        front.suspend()
        with connect(server) as producer:
            id = ask(producer, b"put-in-tube %b 0 0 9 1\r\nx\r\n" % tube).split()[1]
            assert ask(producer, b"stats-mode extended\r\n") == b"USING extended"
            owner.suspend()
            front.resume()
            await_front()  # it has received the offer, and has sent the claim
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            await_front()
            owner.resume()
            until(lambda: b"\ntotal-reserves: 1\n" in read(producer, b"stats-tube " + tube))
            until(lambda: b"\nstate: ready\n" in read(producer, b"stats-job " + id))
            assert b"\nreserves: 0\n" in read(producer, b"stats-job " + id)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_all(server: Daemon, number: signal.Signals) -> None:
    before = children(server)
    code, stderr = server.stop(number)
    assert code == 0
    assert stderr.count(" INFO stopped ") == 2
    assert not any(child.is_running() for child in before)


def test_second_signal_kills_children_that_do_not_stop(server: Daemon) -> None:
    both = children(server)
    for child in both:
        child.suspend()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.stderr is not None
    while b"stopping 2 processes" not in server.process.stderr.readline():
        pass
    code, _ = server.stop()
    assert code == 0
    assert not any(child.is_running() for child in both)


def test_children_stop_when_the_parent_is_killed_and_the_next_one_waits_for_them(
    server: Daemon, tmp_path: Path
) -> None:
    before = children(server)
    server.process.kill()
    server.process.wait(TIMEOUT)
    with Daemon("--processes", "2", "-b", str(tmp_path), *QUIET) as following:
        assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in before)
        assert following.ask(b"put 0 0 9 1\r\nx\r\n").startswith(b"INSERTED")


def test_no_second_server_opens_the_directory_or_one_of_its_shards(server: Daemon, tmp_path: Path) -> None:
    for flags, directory in ((("--processes", "2"), tmp_path), ((), tmp_path / "shard-1")):
        second = run(*flags, "-b", str(directory))
        assert second.returncode == EXIT_JOURNAL
        assert f"-b {directory}: in use by process " in second.stderr


def test_drain_reaches_all_and_outlives_a_restart(server: Daemon) -> None:
    server.process.send_signal(signal.SIGUSR1)
    put = b"put 0 0 9 1\r\nx\r\n"
    until(lambda: all(server.ask(put).startswith(b"DRAINING") for _ in range(8)))
    before = {child.pid for child in children(server)}
    for child in children(server):
        child.kill()
    until(lambda: len({child.pid for child in children(server)} - before) == 2)
    until(lambda: server.ask(put).startswith(b"DRAINING"))


def run(*flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *QUIET, *flags]
    return forking.run(command, cwd=REPOSITORY, env=environment(**variables), text=True, timeout=TIMEOUT)


def test_other_number_of_processes_is_refused_with_the_command_that_converts(tmp_path: Path) -> None:
    with Daemon("--processes", "2", "-b", str(tmp_path), *QUIET):
        pass
    for count, phrase in (("1", "1 process was"), ("3", "3 processes were")):
        done = run("--processes", count, "-b", str(tmp_path))
        assert done.returncode == 10
        assert done.stderr == (
            f"greenstalk-server: -b {tmp_path}: has the journals of 2 processes, but {phrase} requested;"
            f" to convert it, run: greenstalk-server journal reshard {tmp_path} --processes {count}\n"
        )


def test_journal_of_one_process_is_refused(tmp_path: Path) -> None:
    with Daemon("-b", str(tmp_path), *QUIET):
        pass
    done = run("-b", str(tmp_path), GREENSTALK_PROCESSES="2")
    assert done.returncode == 10
    assert "has the journal of one process, but 2 processes were requested; to convert it, run: " in done.stderr


def test_child_that_cannot_start_ends_the_parent_with_its_code(tmp_path: Path) -> None:
    with Daemon("--processes", "2", "-b", str(tmp_path), *QUIET):
        pass
    newest = max((tmp_path / "shard-1").glob("journal.*"))
    newest.write_bytes(b"GSJOURN\xff" + newest.read_bytes()[8:])
    first = min((tmp_path / "shard-1").glob("journal.*"))
    first.write_bytes(b"damage" * 1000)
    done = run("--processes", "2", "-b", str(tmp_path), "--strict-recovery")
    assert done.returncode == 10
    assert done.stderr.count("CRITICAL shard 1 cannot start: the server exits: --strict-recovery") == 1


def test_sockets_of_systemd_are_passed_on_and_it_is_told_when_all_are_ready(tmp_path: Path) -> None:
    address = tmp_path / "notify"
    activate = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()));"
        " os.execv(sys.executable, [sys.executable, '-m', 'greenstalk_server', *sys.argv[2:]])"
    )
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        manager.bind(str(address))
        manager.settimeout(TIMEOUT)
        with Daemon(
            "--processes",
            "2",
            "--no-web",
            command=(sys.executable, "-c", activate, str(listener.fileno())),
            environ=environment(NOTIFY_SOCKET=str(address)),
            pass_fds=[listener.fileno()],
        ) as server:
            assert server.port == listener.getsockname()[1]
            assert manager.recv(100) == b"READY=1"
            assert server.ask(b"put 0 0 9 1\r\nx\r\n").startswith(b"INSERTED")
            server.stop()
            assert manager.recv(100) == b"STOPPING=1"


def test_config_check_reports_the_layout_and_every_shard(tmp_path: Path) -> None:
    with Daemon("--processes", "2", "-b", str(tmp_path), *QUIET):
        pass

    def check(count: str) -> subprocess.CompletedProcess[str]:
        return run_here("config", "--check", *QUIET, "--processes", count, "-b", str(tmp_path))

    assert check("2").returncode == 0
    (tmp_path / "shard-1" / "shard.json").unlink()
    broken = check("2")
    assert (broken.returncode, "shard.json is missing" in broken.stderr) == (10, True)
    assert "journal reshard" in check("1").stderr


def test_limits_of_the_server_are_divided() -> None:
    options = parse(["--max-jobs", "10", "--max-tube-jobs", "10", "--processes", "4", "--memory-limit", "1g"], {})
    assert isinstance(options, Options)
    shard = ShardPlacement("0" * 32, 4, 2, 0, (), "", None, 4, ())
    place = Placement(2, 4, "", (), 5, shard)
    share = place.share_of(options)
    assert (share.limits.jobs, share.limits.tube_jobs, share.limits.tubes) == (3, 10, 0)
    assert share.memory_limit == 2**28
