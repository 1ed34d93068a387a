"""Servers under test: started on a free port, observed from outside, always ended."""

import os
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .cpus import started_on
from .errors import BenchError
from .modes import Mode
from .programs import make_build_dir

REPOSITORY: Final = Path(__file__).parent.parent
_START_SECONDS: Final = 20.0
_STOP_SECONDS: Final = 10.0
_REPLY_SECONDS: Final = 60.0
_SETTLE_SECONDS: Final = 5.0
_LOG_TAIL_BYTES: Final = 1_000
_CPUCLOCK_SCHED: Final = 2  # Linux: a process's CPU clock is (~pid << 3) | 2, see clock_getcpuclockid(3)


@dataclass(frozen=True)
class Contender:
    """A column of the table, and how to start its server.

    *command* holds {port}, and may hold {body}, the mode's body size.
    """

    name: str
    command: str
    is_floor: bool = False  # answers canned bytes; takes no server options

    def takes_part_in(self, mode: Mode) -> bool:
        return mode.has_floor or not self.is_floor

    def argv(self, mode: Mode, port: int, directory: str) -> list[str]:
        words = shlex.split(self.command)
        if not self.is_floor:
            words += mode.server_args
        fields = {"{port}": str(port), "{body}": str(mode.body), "{dir}": directory}
        for field, value in fields.items():
            words = [word.replace(field, value) for word in words]
        return words


class Server:
    """A running server process, seen from outside."""

    def __init__(self, pid: int, port: int) -> None:
        self.port = port
        self._cpu_clock = (~pid << 3) | _CPUCLOCK_SCHED
        self._memory = Path("/proc") / str(pid) / "smaps_rollup"

    def cpu_ns(self) -> int:
        """User and system time of all its threads, those that have ended included."""
        return time.clock_gettime_ns(self._cpu_clock)

    def await_reply(self) -> None:
        """Return once it has answered a command: it may listen before it has read its files."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=_REPLY_SECONDS) as client:
                client.sendall(b"list-tube-used\r\n")
                if not client.recv(64):
                    raise BenchError("closed the connection instead of answering")
        except OSError as error:
            raise BenchError(f"no reply: {error}") from error

    def private_bytes(self) -> int:
        """Memory that is this process's own: written pages, swapped ones included."""
        lines = self._memory.read_text().splitlines()[1:]
        sizes = {key: value.split()[0] for key, value in (ln.split(":") for ln in lines)}
        return (int(sizes["Private_Dirty"]) + int(sizes["Swap"])) * 1024

    def settled_private_bytes(self) -> int:
        """private_bytes(), once it no longer changes."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        last, current = -1, self.private_bytes()
        while current != last and time.monotonic() < deadline:
            time.sleep(0.25)
            last, current = current, self.private_bytes()
        return current


@contextmanager
def data_directory() -> Iterator[str]:
    """An empty directory for a server's files, on the disk of the checkout."""
    with tempfile.TemporaryDirectory(dir=make_build_dir()) as directory:
        yield directory


@contextmanager
def running_server(contender: Contender, mode: Mode, directory: str, cpu: int | None) -> Iterator[Server]:
    """A server of *contender*'s on *directory*, listening when the body starts."""
    with tempfile.TemporaryFile() as log:
        port = free_port()
        argv = contender.argv(mode, port, directory)
        try:
            with started_on(cpu):
                process = subprocess.Popen(
                    argv,
                    cwd=REPOSITORY,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
        except OSError as error:
            raise BenchError(f"{contender.name}: {argv[0]}: {error}") from error
        try:
            _await_listening(process, port)
            yield Server(process.pid, port)
        except BenchError as error:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _LOG_TAIL_BYTES))
            said = log.read().decode(errors="replace").strip() or "nothing"
            raise BenchError(f"{contender.name}: {error}\nserver said: {said}") from error
        finally:
            _stop(process)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_listening(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchError(f"exited at start with status {process.returncode}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise BenchError(f"not listening on port {port} after {_START_SECONDS:g} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End *process*: politely, but whatever happens meanwhile it is gone afterwards."""
    try:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
    finally:
        process.kill()
        process.wait()
