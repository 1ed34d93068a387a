"""Servers under test: each is started on a free port, observed from outside, and always stopped."""

import os
import shlex
import signal
import socket
import subprocess
import sys
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
OURS_COMMAND: Final = f"{shlex.quote(sys.executable)} -m greenstalk_server -l 127.0.0.1 -p {{port}} {{web}}"
POLICY_FILE: Final = "policies.toml"
_START_SECONDS: Final = 20.0
_STOP_SECONDS: Final = 10.0
_REPLY_SECONDS: Final = 60.0
_SETTLE_SECONDS: Final = 5.0
_LOG_TAIL_BYTES: Final = 1_000
_CPUCLOCK_SCHED: Final = 2  # Linux: a process's CPU clock is (~pid << 3) | 2, see clock_getcpuclockid(3)


@dataclass(frozen=True)
class Contender:
    """A column of the table, and the command of its server.

    *command* contains {port}. It may contain {web}, which is replaced by the options that enable or disable the
    dashboard.
    """

    name: str
    command: str
    is_plain: bool = False  # Greenstalk Server without the policies of the mode

    def supports(self, mode: Mode) -> bool:
        if mode.policies or not mode.has_base:
            return mode.has_base if self.is_plain else "{web}" in self.command
        return not self.is_plain

    def argv(self, mode: Mode, port: int, directory: str, web_port: int | None) -> list[str]:
        web = "--no-web" if web_port is None else f"--web-port {web_port}"
        words = [*shlex.split(self.command.replace("{web}", web)), *mode.server_args]
        if mode.policies and not self.is_plain:
            words += ["--config", f"{{dir}}/{POLICY_FILE}"]
        return [word.replace("{port}", str(port)).replace("{dir}", directory) for word in words]


class Server:
    """A running server process, seen from outside."""

    def __init__(self, pid: int, port: int, web_port: int | None, directory: str) -> None:
        self.pid = pid
        self.port = port
        self.web_port = web_port
        self._directory = directory
        self._cpu_clock = (~pid << 3) | _CPUCLOCK_SCHED
        self._memory = Path("/proc") / str(pid) / "smaps_rollup"

    def set_policies(self, policies: str) -> None:
        """Replace the configuration file by *policies*, and make the server reload it."""
        Path(self._directory, POLICY_FILE).write_text(policies)
        os.kill(self.pid, signal.SIGHUP)

    def cpu_ns(self) -> int:
        """Return the user and system time of all its threads, including ended ones."""
        return time.clock_gettime_ns(self._cpu_clock)

    def connect(self) -> socket.socket:
        """Return a new connection whose calls time out."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=_REPLY_SECONDS)

    def wait_for_reply(self) -> None:
        """Wait until the server answers a command: it may listen before it has read its files."""
        try:
            with self.connect() as client:
                client.sendall(b"list-tube-used\r\n")
                if not client.recv(64):
                    raise BenchError("closed the connection instead of answering")
        except OSError as error:
            raise BenchError(f"no reply: {error}") from error

    def private_bytes(self) -> int:
        """Return the private memory of the process: written pages, including swapped ones."""
        lines = self._memory.read_text().splitlines()[1:]
        sizes = {key: value.split()[0] for key, value in (ln.split(":") for ln in lines)}
        return (int(sizes["Private_Dirty"]) + int(sizes["Swap"])) * 1024

    def peak_bytes(self) -> int:
        """Return the peak resident memory of the process."""
        (line,) = [line for line in self._memory.with_name("status").read_text().splitlines() if "VmHWM" in line]
        return int(line.split()[1]) * 1024

    def settled_private_bytes(self, quiet_seconds: float = 0.25) -> int:
        """Return private_bytes() once it has changed by less than 1 % for *quiet_seconds*, or after a timeout."""
        deadline = time.monotonic() + _SETTLE_SECONDS + 2 * quiet_seconds
        last, since = self.private_bytes(), time.monotonic()
        while time.monotonic() < min(since + quiet_seconds, deadline):
            time.sleep(0.25)
            current = self.private_bytes()
            if abs(current - last) > last / 100:
                last, since = current, time.monotonic()
        return self.private_bytes()


@contextmanager
def data_directory() -> Iterator[str]:
    """Create an empty directory for a server's files, on the disk of the checkout."""
    with tempfile.TemporaryDirectory(dir=make_build_dir()) as directory:
        yield directory


@contextmanager
def running_server(
    contender: Contender, mode: Mode, directory: str, cpu: int | None, *, has_dashboard: bool
) -> Iterator[Server]:
    """Start the server of *contender* on *directory*; it listens when the block starts."""
    if mode.policies and not contender.is_plain:
        Path(directory, POLICY_FILE).write_text(mode.policies)
    with tempfile.TemporaryFile() as log:
        port = free_port()
        web_port = free_port() if has_dashboard and "{web}" in contender.command else None
        argv = contender.argv(mode, port, directory, web_port)
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
            _wait_until_listening(process, port)
            yield Server(process.pid, port, web_port, directory)
        except BenchError as error:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _LOG_TAIL_BYTES))
            output = log.read().decode(errors="replace").strip() or "none"
            raise BenchError(f"{contender.name}: {error}\noutput of the server: {output}") from error
        finally:
            _stop(process)


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_listening(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchError(f"exited at start with status {process.returncode}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise BenchError(f"not listening on port {port} after {_START_SECONDS:g} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate *process*, and kill it after a timeout or an error."""
    try:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
    finally:
        process.kill()
        process.wait()
