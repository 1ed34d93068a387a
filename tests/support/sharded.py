"""Our server with several processes, and a cluster, as the conformance tests play conversations to them."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Final

import psutil

from . import forking
from .ports import free_ports
from .processes import end
from .servers import REPOSITORY, START_SECONDS, Baseline, Kind, Server, ServerError, yaml_mapping
from .wire import Connection

BARRIER_ROUNDS: Final = 2
"""Rounds of a barrier. In each, every process and every link handles what has reached it; a put that ends the wait of a
client takes two."""

EACH: Final = -1
ANY: Final = -2
"""Instead of the number of a process: the processes in turn, or whichever accepts a connection first."""


COMMIT_SECONDS: Final = 0.5
"""Seconds in which a commit ends. A barrier does not wait for the commits of a cluster, so a read does."""


class ShardedServer(Server):
    """A server with several processes, and a control connection to each of them."""

    def __init__(self, kind: Kind, flags: Sequence[str]) -> None:
        """`front` is the number of the process that accepts the connections of `connect`, or EACH or ANY."""
        self.front = EACH
        self._connected = 0
        self._processes: list[psutil.Process] = []
        self._controls: list[Connection] = []
        super().__init__(kind, flags)

    def connect(self, timeout: float) -> Connection:
        """Return a new connection to the process that is due; while the server is paused, to any one."""
        if self._is_paused or self.front == ANY:
            return super().connect(timeout)
        return self._connect_to(self._due(), timeout)

    def _due(self) -> int:
        """Return the number of the process that accepts the next connection; the front is not ANY."""
        if self.front != EACH:
            return self.front
        self._connected += 1
        return self._connected % len(self._processes)

    def settle(self) -> None:
        self.barrier()

    def stop(self) -> None:
        for control in self._controls:
            control.close()
        super().stop()

    def barrier(self) -> None:
        if self._is_paused:
            return
        for _ in range(BARRIER_ROUNDS):
            # The command counts nothing, and goes to all shards.
            for control in self._controls:
                control.send(b"stats-group barrier\r\n")
            for control in self._controls:
                reply = control.read_reply()
                if reply != b"NOT_FOUND":
                    raise ServerError(f"{self.kind.name} answered the barrier with {reply!r}{self.log_tail()}")

    def signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            process.send_signal(number)
        for _ in range(100):
            self.barrier()

    def pause(self) -> None:
        self.barrier()
        for process in self._processes:
            self._await_state(process.pid, "S")
            process.suspend()
            self._await_state(process.pid, "T")
        self._is_paused = True

    def resume(self) -> None:
        if self._is_paused:
            for process in self._processes:
                process.resume()
            self._is_paused = False

    def _reset(self) -> Baseline:
        self._connected = 0
        deadline = time.monotonic() + 3.0
        while True:
            self._delete_all_jobs()
            self.barrier()
            stats = yaml_mapping(self._control.ask(b"stats"))
            if self._is_clean(stats):
                break
            if time.monotonic() > deadline:
                raise ServerError(f"{self.kind.name} cannot be reset: {stats}{self.log_tail()}")
            time.sleep(0.01)
        last_id = self._use_an_id(b"default")
        default_tube = yaml_mapping(self._control.ask(b"stats-tube default"))
        stats = yaml_mapping(self._control.ask(b"stats"))
        pids = frozenset(process.pid for process in self._processes)
        return Baseline(pids, last_id, stats, default_tube, len(pids))

    def _delete_all_jobs(self) -> None:
        for line in self._control.ask(b"list-tubes").splitlines()[2:]:
            name = line.removeprefix(b"- ")
            self._control.ask(b"pause-tube %b 0" % name)
            self._control.ask(b"flush-tube " + name)

    def _use_an_id(self, tube: bytes) -> int:
        reply = self._control.ask(b"put-in-tube %b 0 0 1 0\r\n" % tube)
        if not (inserted := re.fullmatch(rb"INSERTED (\d+)", reply)):
            raise ServerError(f"{self.kind.name} answered put with {reply!r}{self.log_tail()}")
        self._control.ask(b"delete " + inserted[1])
        return int(inserted[1])

    def _is_clean(self, stats: dict[str, str]) -> bool:
        jobs = [value for key, value in stats.items() if key.startswith("current-jobs-")]
        is_alone = stats["current-connections"] == str(len(self._controls)) and stats["current-tubes"] == "1"
        return set(jobs) == {"0"} and is_alone

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection, tuple[str, int]]:
        process, first, self.address = super()._start()
        first.ask(b"stats-group barrier")  # all processes serve: the reply has the jobs of all shards
        first.close()
        self._processes = sorted(psutil.Process(process.pid).children(), key=_link_path)
        self._controls = [self._connect_to(shard, START_SECONDS) for shard in range(len(self._processes))]
        return process, self._controls[0], self.address

    def _connect_to(self, shard: int, timeout: float) -> Connection:
        """Connect while only the process of *shard* runs, so that it accepts the connection."""
        with self._suspended([each for each in self._processes if each is not self._processes[shard]]):
            connection = Connection(self.address, START_SECONDS, self.barrier)
            if connection.ask(b"barrier") != b"UNKNOWN_COMMAND":
                raise ServerError(f"process {shard} does not serve{self.log_tail()}")
        connection.timeout = timeout
        return connection

    @contextlib.contextmanager
    def _suspended(self, processes: list[psutil.Process]) -> Iterator[None]:
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in processes:
                process.resume()


class ClusterServer(ShardedServer):
    """Servers of one queue in a database, one for each shard. ANY is a random one of them."""

    def __init__(self, kind: Kind, flags: Sequence[str], url: str, servers: int) -> None:
        self._url = url
        self._ports = free_ports(servers)
        self._random = random.Random(servers)  # noqa: S311 (it selects a server)
        super().__init__(kind, flags)

    def connect(self, timeout: float) -> Connection:
        shard = self._random.randrange(len(self._ports)) if self.front == ANY else self._due()
        return self._connect_to(shard, max(timeout, COMMIT_SECONDS))

    def stop(self) -> None:
        super().stop()
        for process in self._servers:
            end(process)

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection, tuple[str, int]]:
        count = str(len(self._ports))
        queue = ("--journal", self._url, "--journal-name", uuid.uuid4().hex, "--shards", count, "--link", "127.0.0.1:0")
        self._servers = [
            forking.Process(
                self.kind.arguments(port, (*queue, *self.flags)), cwd=REPOSITORY, stdout=self._log, stderr=self._log
            )
            for port in self._ports
        ]
        self._processes = [psutil.Process(process.pid) for process in self._servers]
        self._is_paused = False
        self._controls = [self._connect_once_it_listens(shard) for shard in range(len(self._ports))]
        self.barrier()
        # Each server leads a shard now. `stats` does not count connections from before.
        for control in self._controls:
            control.close()
        self._controls = [self._connect_to(shard, START_SECONDS) for shard in range(len(self._ports))]
        return self._servers[0], self._controls[0], ("127.0.0.1", self._ports[0])

    def _connect_once_it_listens(self, shard: int) -> Connection:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self._connect_to(shard, START_SECONDS)
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _connect_to(self, shard: int, timeout: float) -> Connection:
        return Connection(("127.0.0.1", self._ports[shard]), timeout, self.barrier)


def _link_path(process: psutil.Process) -> str:
    """Return the path of the link socket of *process*, which ends with the number of its shard."""
    return next(each.laddr for each in process.net_connections("unix") if each.laddr)
