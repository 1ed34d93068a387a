"""The two servers as subprocesses on free loopback ports, and their reset to a known state.

A Server is used by one thread at a time. Before a conversation `reset` deletes the jobs of the previous one. So each
conversation starts without jobs, with the tube `default` alone, and with the control connection alone.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import forking
from .ports import free_ports
from .processes import end
from .wire import SILENCE, Connection

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0
MAX_IDS = 1000
"""Maximum ids per conversation, more than any conversation uses. A server that exceeds it allocates wrong ids."""

OURS_VARIABLE = "CONFORMANCE_OURS"
"""Environment variable that replaces our server's command; `-l`, `-p` and the flags are appended to it."""


class ServerError(Exception):
    """A server is missing, does not start, or cannot be reset to a known state."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the two servers, and its command line."""

    name: str
    command: tuple[str, ...]
    trailing: tuple[str, ...] = ()

    def arguments(self, port: int, flags: Sequence[str]) -> list[str]:
        return [*self.command, "-l", "127.0.0.1", "-p", str(port), *self.trailing, *flags]


def ours() -> Kind:
    if command := os.environ.get(OURS_VARIABLE):
        return Kind("ours", tuple(shlex.split(command)))
    return Kind("ours", (sys.executable, "-m", "greenstalk_server"), ("--no-web",))


def peer() -> Kind:
    """Return Debian's beanstalkd; raise ServerError if it is not installed."""
    path = shutil.which("beanstalkd", path=os.environ.get("PATH", "") + ":/usr/bin:/usr/sbin")
    if path is None:
        raise ServerError("beanstalkd is missing: apt-get install beanstalkd")
    return Kind("peer", (path,))


@dataclass(frozen=True, slots=True)
class Baseline:
    """Figures of a server just before a conversation; normalise.py reports counters relative to them.

    pids        processes that may reply.
    last_id     last id that the shard of `default` has assigned.
    shards      number of shards, by which the ids of one shard differ.
    """

    pids: frozenset[int]
    last_id: int
    stats: dict[str, str]
    default_tube: dict[str, str]
    shards: int = 1


class Server:
    """One server process and a control connection to it."""

    def __init__(self, kind: Kind, flags: Sequence[str] = ()) -> None:
        self.kind = kind
        self.flags = tuple(flags)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._last_id = 0
        self._is_paused = False
        self._process, self._control, self.address = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def connect(self, timeout: float) -> Connection:
        """Return a new connection, whose reads time out after *timeout* seconds and a barrier."""
        return Connection(self.address, timeout, self.barrier)

    def stop(self) -> None:
        """End the process."""
        self._control.close()
        end(self._process)

    def close(self) -> None:
        """Stop the process, and remove its log."""
        self.stop()
        self._log.close()

    def barrier(self) -> None:
        """Return once the server has handled everything that has reached it.

        An unknown command changes no counter. Its reply proves that the event loop has run. Three replies prove that
        the other events of the same batch, in any order, have been handled too.
        """
        if self._is_paused:
            return
        for _ in range(3):
            reply = self._control.ask(b"barrier")
            if reply != b"UNKNOWN_COMMAND":
                raise ServerError(f"{self.kind.name} answered the barrier with {reply!r}{self.log_tail()}")

    def settle(self) -> None:
        """Return once the server has done what a reply does not wait for: one process does nothing later."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, and return once the server has handled it."""
        self._process.send_signal(number)
        for _ in range(100):  # a signal has no reply; the loop handles it within an iteration or two
            self._control.ask(b"barrier")

    def pause(self) -> None:
        """Stop the process once it sleeps in its event loop, so that no earlier input is left to handle."""
        self.barrier()
        self._await_state(self.pid, "S")
        self._process.send_signal(signal.SIGSTOP)
        self._await_state(self.pid, "T")
        self._is_paused = True

    def resume(self) -> None:
        """Let the process continue, if it is paused."""
        if self._is_paused:
            self._process.send_signal(signal.SIGCONT)
            self._is_paused = False

    def _await_state(self, pid: int, state: str) -> None:
        """Return once the process *pid* is in *state*, a letter of proc(5)."""
        deadline = time.monotonic() + START_SECONDS
        stat = Path(f"/proc/{pid}/stat")
        while (found := stat.read_text().rpartition(") ")[2][0]) != state:
            if time.monotonic() > deadline:
                raise ServerError(f"{self.kind.name} is in state {found}, not {state}{self.log_tail()}")
            time.sleep(0.001)

    def reset(self) -> Baseline:
        """Bring the server to the known state, by a restart if necessary, and return the baseline."""
        try:
            return self._reset()
        except ServerError:
            self.stop()
            self._last_id = 0
            self._process, self._control, self.address = self._start()
            return self._reset()

    def log_tail(self) -> str:
        self._log.seek(0)
        return "\n" + self._log.read()[-2000:].decode(errors="replace")

    def _reset(self) -> Baseline:
        self._delete_all_jobs()
        self._end_pauses()
        deadline = time.monotonic() + 3.0
        while True:
            default_tube = yaml_mapping(self._control.ask(b"stats-tube default"))
            stats = yaml_mapping(self._control.ask(b"stats"))
            if _is_clean(stats):
                return Baseline(frozenset((self.pid,)), self._last_id, stats, default_tube)
            if time.monotonic() > deadline:
                raise ServerError(f"{self.kind.name} cannot be reset: {stats}{self.log_tail()}")
            time.sleep(0.01)
            self._delete_all_jobs()

    def _delete_all_jobs(self) -> None:
        """Delete every job up to a new one. Once the other connections are closed, no job is reserved."""
        reply = self._control.ask(b"put 0 0 1 0\r\n")
        if not (inserted := re.fullmatch(rb"INSERTED (\d+)", reply)):
            raise ServerError(f"{self.kind.name} answered put with {reply!r}{self.log_tail()}")
        first, self._last_id = self._last_id + 1, int(inserted[1])
        if self._last_id - first > MAX_IDS:
            raise ServerError(f"{self.kind.name} allocated the ids {first} to {self._last_id}")
        for job_id in range(first, self._last_id + 1):
            self._control.ask(b"delete %d" % job_id)

    def _end_pauses(self) -> None:
        """End the pauses of all tubes: our server keeps a paused tube."""
        for line in self._control.ask(b"list-tubes").splitlines()[2:]:
            self._control.ask(b"pause-tube %b 0" % line.removeprefix(b"- "))

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection, tuple[str, int]]:
        """Start the process and wait until it accepts connections; retry if another program took its port."""
        command = list[str]()
        for _ in range(5):
            address = ("127.0.0.1", free_ports(1)[0])
            command = self.kind.arguments(address[1], self.flags)
            process = forking.Process(command, cwd=REPOSITORY, stdout=self._log, stderr=self._log)
            deadline = time.monotonic() + START_SECONDS
            while process.poll() is None and time.monotonic() < deadline:
                try:
                    control = Connection(address, timeout=START_SECONDS)  # each of its commands has a reply
                except ConnectionRefusedError:
                    time.sleep(0.01)
                    continue
                control.send(b"barrier\r\n")  # it serves some time after its port has opened
                control.read_reply()
                return process, control, address
            end(process)
        raise ServerError(f"{self.kind.name} does not start: {command!r}{self.log_tail()}")


def _is_clean(stats: dict[str, str]) -> bool:
    jobs = [value for key, value in stats.items() if key.startswith("current-jobs-")]
    return set(jobs) == {"0"} and stats["current-connections"] == "1" and stats["current-tubes"] == "1"


def yaml_mapping(reply: bytes) -> dict[str, str]:
    """Return the keys and values of a stats reply; raise ServerError for a reply of another kind."""
    head, _, body = reply.partition(b"\r\n")
    if not head.startswith(b"OK ") or reply.endswith(SILENCE):
        raise ServerError(f"not a stats reply: {reply!r}")
    pairs = (line.partition(": ") for line in body.decode().splitlines()[1:])
    return {key: value for key, _, value in pairs}
