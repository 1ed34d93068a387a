"""Rounds: while clients use a server with several processes, some of these are killed, paused or restarted."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Final, Protocol

from greenstalk_server.journal.layout import directory_of
from greenstalk_server.journal.lock import holder_of
from tests.processes.clients import (
    ALL_TUBES,
    HOLD_TTR,
    HOLD_TUBES,
    SHARDS,
    WAIT_TUBES,
    WORKERS,
    Cut,
    Holder,
    Probe,
    Record,
    Waiter,
    Worker,
)
from tests.support import forking
from tests.support.daemon import COMMAND, MINDING_SIGNALS, REPOSITORY, environment, run
from tests.support.history import DELETE, PUT, RESERVE, Disturbance, Step
from tests.support.load import TTR, Connection, Gone
from tests.support.nodes import wait_until
from tests.support.ports import free_ports
from tests.support.processes import end, join

WORK_SECONDS: Final = (0.2, 0.8)
PAUSE_SECONDS: Final = (0.1, 3.0)
SYNCING: Final = (("-f", "0"), ("-f", "50"), ("-F",))
SEGMENT_SIZES: Final = (65_536, 1_000_000)
"""Small, so that segments are created and removed."""

BESIDE_PAUSE: Final = "kill beside a pause"
"""Its time without service is not measured: a new connection asks for `stats`, which waits for the paused process."""

KILLS: Final = ("kill", "kill two")
"""In these rounds no process is paused, so the clients that hold jobs can touch them in time."""

STATES: Final = tuple([b"current-jobs-" + state for state in (b"ready", b"delayed", b"buried", b"reserved")])


class Server:
    """A server with SHARDS processes on *directory*; its log is in *log_file*."""

    def __init__(self, directory: Path, log_file: Path) -> None:
        self.directory: Path = directory
        (self.port,) = free_ports(1)
        self._log_file: Path = log_file
        self._process: subprocess.Popen[bytes]

    def start(self, flags: Sequence[str]) -> None:
        """Start the parent; return before it serves."""
        where = ("-l", "127.0.0.1", "-p", str(self.port), "--no-web", "-b", str(self.directory))
        with self._log_file.open("ab") as log:
            self._process = forking.Process(
                [*MINDING_SIGNALS, *COMMAND, "--processes", str(SHARDS), *where, *flags],
                cwd=REPOSITORY,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait(self) -> None:
        """Wait until each shard has a process, and clients are served."""
        wait_until(
            lambda: all(self.pid(shard) for shard in range(SHARDS)), lambda: f"a shard is not served: {self.log}"
        )
        wait_until(self._serves, lambda: f"no client is served: {self.log}")

    def _serves(self) -> bool:
        try:
            with Connection(self.port, 5) as connection:
                return bool(connection.stats(b"stats"))
        except (OSError, Gone):
            return False

    def pid(self, shard: int) -> int:
        """Return the id of the process that has locked *shard*; 0 if there is none."""
        found = re.search("[0-9]+", holder_of(directory_of(str(self.directory), shard)))
        return int(found[0]) if found else 0

    def end(self, number: signal.Signals) -> int:
        """End the parent by a signal; return its exit code."""
        self._process.send_signal(number)
        return self._process.wait(60)

    def close(self) -> None:
        """End all processes."""
        end(self._process)

    @property
    def ports(self) -> Sequence[int]:
        """The ports to which clients connect."""
        return [self.port]

    def check(self) -> None:
        """Check the journals of a stopped server."""
        for shard in range(SHARDS):
            found = run("journal", "check", directory_of(str(self.directory), shard))
            assert found.returncode == 0, found.stdout + found.stderr

    @property
    def log(self) -> str:
        """The log so far."""
        return self._log_file.read_text()


@dataclass(frozen=True, slots=True)
class Report:
    """One round.

    outages     seconds without service of each shard whose process was killed, or of all after a restart; see
                BESIDE_PAUSE.
    others      the longest put on another shard during the fault, in seconds.
    cuts        connections that the server closed.
    """

    number: int
    kind: str
    flags: Sequence[str]
    replies: int
    acknowledged: int
    drained: int
    cuts: int
    outages: Sequence[float]
    others: float

    def __str__(self) -> str:
        outages = ", ".join([f"{outage:.2f}" for outage in self.outages]) or "0"
        return (
            f"round {self.number}: {self.kind} ({' '.join(self.flags)}): {self.replies} replies, {self.acknowledged}"
            f" acknowledgements, {self.drained} jobs left, {self.cuts} connections closed, {outages} s without service,"
            f" longest put elsewhere {self.others:.2f} s"
        )


def summary(reports: Sequence[Report]) -> str:
    """Return the seconds without service, by kind of round."""
    lines = []
    for kind in dict.fromkeys([report.kind for report in reports]):
        of = [report for report in reports if report.kind == kind]
        line = f"{kind}: {len(of)} rounds"
        if outages := [outage for report in of for outage in report.outages]:
            line += f", shard without service median {statistics.median(outages):.2f} s, longest {max(outages):.2f} s"
        others = [report.others for report in of]
        lines.append(
            f"{line}; longest put elsewhere median {statistics.median(others):.2f} s, most {max(others):.2f} s"
        )
    return "\n".join(lines)


class Queue(Protocol):
    """The processes that serve the queue of the rounds, as `Server` describes."""

    @property
    def port(self) -> int: ...
    @property
    def ports(self) -> Sequence[int]: ...
    @property
    def log(self) -> str: ...
    def start(self, flags: Sequence[str]) -> None: ...
    def wait(self) -> None: ...
    def pid(self, shard: int) -> int: ...
    def end(self, number: signal.Signals) -> int: ...
    def check(self) -> None: ...
    def close(self) -> None: ...


class Rounds:
    """Rounds on *server*. The same seed gives the same load and faults, but not the same timing.

    kind    of the last round that was begun.
    keeps_reservations  as of History.
    """

    keeps_reservations: bool = True

    def __init__(self, server: Queue, seed: int, flags: Sequence[str] | None = None) -> None:
        """*flags* are those of each server; None for random ones."""
        self.reports: list[Report] = []
        self.kind: str = ""
        self._seed: int = seed
        self._random: random.Random = random.Random(seed)  # noqa: S311  a seed, no secret
        self._fixed: Sequence[str] | None = flags
        self._flags: Sequence[str] = ()
        self._ids: set[int] = set()
        self._ends: dict[int, float] = {}  # when each process was ended in this round
        self._struck: set[int] = set()  # shards whose time without service is measured
        self._server: Queue = server
        self._ways: dict[str, Callable[[], None]] = {
            "kill": lambda: self._kill(1),
            "kill two": lambda: self._kill(2),
            "pause": self._pause,
            BESIDE_PAUSE: self._kill_beside_pause,
            "kill parent": lambda: self._restart(signal.SIGKILL),
            "stop": lambda: self._restart(signal.SIGTERM),
        }
        self._record: Record
        self._workers: list[Worker]
        self._holders: list[Holder]
        self._waiters: list[Waiter]
        self._probes: list[Probe]

    def begin(self) -> None:
        """Start the server."""
        self._start()
        self._server.wait()

    def run(self, kind: str | None = None) -> Report:
        """Run one round of *kind*, or of any kind; raise AssertionError with all errors in it."""
        self.kind = kind = kind or self._random.choice(list(self._ways))
        number, flags = len(self.reports) + 1, self._flags
        self._load(f"{self._seed}-{number}", HOLD_TTR if kind in KILLS else TTR)
        self._work()
        begun = time.monotonic()
        self._ways[kind]()
        self._await_service()
        ended = time.monotonic()
        for each in self._disturbances:
            each.ended = min(each.ended, ended)
        self._work()
        self._feed_waiters()
        drained = self._audit()
        struck = self._struck
        report = Report(
            number,
            kind,
            flags,
            self._record.replies,
            self._record.history.acknowledged,
            drained,
            len(self._record.cuts),
            [probe.longest_gap(begun) for probe in self._probes if probe.shard in struck and kind != BESIDE_PAUSE],
            max([probe.longest_put(begun) for probe in self._probes if probe.shard not in struck], default=0.0),
        )
        self.reports.append(report)
        return report

    def finish(self) -> None:
        """Stop the server; check its log and its directory."""
        code = self._server.end(signal.SIGTERM)
        assert code == 0, f"exit code {code}: {self._server.log}"
        self._server.check()
        self._check_log()

    def close(self) -> None:
        """End all processes."""
        self._server.close()

    # The load

    @property
    def _disturbances(self) -> list[Disturbance]:
        return self._record.history.disturbances

    def _load(self, seed: str, hold_ttr: int) -> None:
        """Start the clients of a round. Those that hold jobs come first, and have held them for longer than the ttr."""
        record, ports = Record(), self._rotated_ports()
        record.history.keeps_reservations = self.keeps_reservations
        self._record, self._ends, self._struck = record, {}, set()
        self._holders = [Holder(number, next(ports), record, seed, hold_ttr) for number in range(len(HOLD_TUBES))]
        for holder in self._holders:
            holder.start()
        held_for = hold_ttr if hold_ttr == HOLD_TTR else 0
        wait_until(
            lambda: all(time.monotonic() - holder.held_since > held_for for holder in self._holders),
            lambda: "clients hold no job",
        )
        self._workers = [Worker(f"worker-{number}", next(ports), record, seed) for number in range(WORKERS)]
        self._waiters = [Waiter(number, next(ports), record, seed) for number in range(len(WAIT_TUBES))]
        self._probes = [Probe(shard, next(ports), record, seed) for shard in range(SHARDS)]
        for client in (*self._workers, *self._waiters, *self._probes):
            client.start()

    def _rotated_ports(self) -> Iterator[Sequence[int]]:
        """Yield the ports of the server for one client after the other, which begin with different ports."""
        ports = self._server.ports
        for number in itertools.count():
            first = number % len(ports)
            yield [*ports[first:], *ports[:first]]

    def _work(self) -> None:
        time.sleep(self._random.uniform(*WORK_SECONDS))

    def _await_service(self) -> None:
        """Wait until each shard acknowledges a put that is sent from now on."""
        now = time.monotonic()
        for probe in self._probes:
            wait_until(
                lambda probe=probe: isfinite(probe.service_after(now)),  # type: ignore[misc]
                lambda probe=probe: f"shard {probe.shard} does not serve: {self._server.log[-3000:]}",  # type: ignore[misc]
            )

    def _feed_waiters(self) -> None:
        """Put a job into each tube where clients wait, and wait until all of them are reserved."""
        history = self._record.history
        tokens = []
        with Connection(self._server.port) as connection:
            for number, tube in enumerate(WAIT_TUBES):
                token = f"{self._seed}-{len(self.reports) + 1}/feed/{number}".encode()
                history.tubes[token], self._record.sizes[token] = tube, 0
                step = history.add(Step("feed", PUT, token, time.monotonic()))
                line = connection.ask(b"put-in-tube %b 0 0 %d %d\r\n%b:" % (tube, TTR, len(token) + 1, token))
                step.ended, step.is_done = time.monotonic(), True
                history.name(int(line.split()[1]), token)
                tokens.append(token)
        wait_until(
            lambda: all(map(history.is_delivered, tokens)),
            lambda: f"not delivered to the clients that wait: {[t for t in tokens if not history.is_delivered(t)]}",
        )

    # Faults

    def _start(self) -> None:
        self._flags = self._fixed or (*self._random.choice(SYNCING), "-s", str(self._random.choice(SEGMENT_SIZES)))
        self._server.start(self._flags)

    def _strike(self, shard: int, number: signal.Signals) -> None:
        """Kill the process of *shard*."""
        pid = self._server.pid(shard)
        self._note_end(shard, pid)
        os.kill(pid, number)

    def _note_end(self, shard: int, pid: int) -> None:
        """Note that the process *pid* is about to end."""
        self._ends[pid] = time.monotonic()
        self._struck.add(shard)
        self._disturbances.append(Disturbance(f"end of process {pid}", time.monotonic(), shard=shard))

    def _kill(self, count: int) -> None:
        for shard in self._random.sample(range(SHARDS), count):
            self._strike(shard, signal.SIGKILL)

    def _pause(self) -> None:
        """Pause a process: it is late, and nothing ends."""
        pid = self._server.pid(self._random.randrange(SHARDS))
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._random.uniform(*PAUSE_SECONDS))
        os.kill(pid, signal.SIGCONT)

    def _kill_beside_pause(self) -> None:
        paused, killed = self._random.sample(range(SHARDS), 2)
        pid = self._server.pid(paused)
        os.kill(pid, signal.SIGSTOP)
        self._strike(killed, signal.SIGKILL)
        time.sleep(self._random.uniform(*PAUSE_SECONDS))
        os.kill(pid, signal.SIGCONT)

    def _restart(self, number: signal.Signals) -> None:
        """End the parent by a signal, and start a new one at once."""
        for shard in range(SHARDS):
            self._note_end(shard, self._server.pid(shard))
        code = self._server.end(number)
        assert code == (0 if number == signal.SIGTERM else -number), f"exit code {code}: {self._server.log[-3000:]}"
        self._start()

    # The audit

    def _audit(self) -> int:
        """Stop the clients, check all that is known, and delete all jobs; return how many there were."""
        record, history = self._record, self._record.history
        clients: list[Worker | Probe | Holder] = [*self._workers, *self._probes, *self._holders]
        for client in clients:
            client.is_over.set()
        self._await_settled(clients)
        with Connection(self._server.port) as connection:
            for tube in WAIT_TUBES:
                self._await(connection, b"current-jobs-ready", 0, b"stats-tube " + tube)
            self._await(connection, b"current-jobs-reserved", sum([len(client.held) for client in clients]))
            for waiter in self._waiters:
                waiter.stop()
            self._await_settled(self._waiters)
            for each in (*clients, *self._waiters):
                each.may_leave.set()
                join(each)
                if each.failure is not None:
                    raise AssertionError(f"{each.name}: {each.failure!r}") from each.failure
            self._await(connection, b"current-jobs-reserved", 0)
            self._await(connection, b"current-waiting", 0)
            self._await(connection, b"current-connections", 1)
            drained = self._drain(connection)
        ids = history.ids
        if both := ids & self._ids:
            history.wrong.append(f"ids of earlier rounds: {sorted(both)}")
        self._ids |= ids
        history.wrong += [f"connection closed without a reason: {cut}" for cut in record.cuts if not self._is_due(cut)]
        history.check()
        self._check_log()
        return drained

    @staticmethod
    def _await_settled(clients: Sequence[Worker | Waiter | Probe | Holder]) -> None:
        for client in clients:
            assert client.is_settled.wait(60), f"{client.name} does not end"

    def _await(self, connection: Connection, name: bytes, expected: int, request: bytes = b"stats") -> None:
        """Wait until *expected* is the value of *name* in the reply to *request*: much ends a little later."""
        found = b""

        def is_reached() -> bool:
            nonlocal found
            found = connection.stats(request)[name]
            return int(found) == expected

        wait_until(is_reached, lambda: f"{request!r}: {name.decode()} is {found.decode()}, not {expected}", 30)

    def _drain(self, connection: Connection) -> int:
        """Reserve and delete all jobs; check that the counts of the tubes and of the server add up to them."""
        history = self._record.history
        before = self._counts(connection.stats(b"stats"))
        tubes = []
        for tube in ALL_TUBES:
            connection.ask(b"watch " + tube)
            connection.ask(b"use " + tube)
            tubes.append(self._counts(connection.stats(b"stats-tube " + tube)))
        moved = [sum(column) for column in zip(*tubes, strict=True)]
        if sum(moved) != sum(before):
            history.wrong.append(f"stats: {before} jobs, of the tubes: {moved}")
        drained = 0
        while sum(self._counts(connection.stats(b"stats"))):
            for tube in ALL_TUBES:
                connection.ask(b"use " + tube)
                while connection.ask(b"kick 1000") != b"KICKED 0":
                    pass
            count = self._delete_ready(connection)
            drained += count
            if not count:
                history.wrong.append(f"jobs cannot be reserved: {self._counts(connection.stats(b'stats'))}")
                break
        if drained != sum(before):
            history.wrong.append(f"{drained} jobs were reserved of {sum(before)}")
        return drained

    @staticmethod
    def _counts(stats: dict[bytes, bytes]) -> list[int]:
        return [int(stats[name]) for name in STATES]

    def _delete_ready(self, connection: Connection) -> int:
        """Reserve and delete all jobs that are ready; return how many."""
        history, count = self._record.history, 0
        while (job := connection.reserve()) is not None:
            history.deliver(Step("audit", RESERVE, job[1], time.monotonic()), job[0])
            reserves = int(connection.stats(b"stats-job %d" % job[0])[b"reserves"])
            history.counts.append((job[1], reserves, time.monotonic()))
            step = history.add(Step("audit", DELETE, job[1], time.monotonic()))
            assert connection.ask(b"delete %d" % job[0]) == b"DELETED"
            step.ended, step.is_done = time.monotonic(), True
            count += 1
        return count

    def _is_due(self, cut: Cut) -> bool:
        """Whether the server had a reason to close the connection."""
        if self._ends.get(cut.front, cut.at) < cut.at:
            return True
        return any(self._record.history.is_disturbed(shard, cut.since, cut.at) for shard in cut.shards)

    def _check_log(self) -> None:
        log = self._server.log
        assert "Traceback" not in log and "internal error" not in log, log[-5000:]
