"""Rounds: a server starts on the directory of the previous round, is used, and is killed at a random moment."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.crash.agent import LARGE, Agent
from tests.crash.audit import Audit
from tests.crash.ledger import Ledger
from tests.support.daemon import COMMAND, REPOSITORY, Daemon, environment, run
from tests.support.peer import eventually
from tests.support.ports import free_ports
from tests.support.processes import ending

BATCHES: Final = (1, 1, 1, 8, 30, 60)
"""Maximum number of commands in flight of each client."""

LOAD_SECONDS: Final = (0.05, 0.8)
"""Seconds of load; on a small disk, after the first put that was refused."""

SEGMENT_SIZES: Final = (4096, 32_768, 131_072)
"""Small, so that each round creates and removes segments, and a large job is larger than one."""

RECORD: Final = 120
"""Approximate bytes of a record without its body."""

DRAIN: Final = 0.2
"""Probability that a server drains in the last third of a round: it refuses puts."""

SECOND_KILL: Final = 0.15
"""Probability that a server is also killed during its start."""


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one round."""

    number: int
    flags: tuple[str, ...]
    acknowledged: int
    live: int
    next_id: int
    refused: int
    longest_wait: float

    def __str__(self) -> str:
        return (
            f"round {self.number}: {' '.join(self.flags)}: {self.acknowledged} replies,"
            f" {self.live} jobs came back, next id {self.next_id}, {self.refused} puts refused,"
            f" longest wait {self.longest_wait:.2f} s"
        )


class Rounds:
    """Rounds on *directory* with one ledger. The same seed gives the same load, but not the same timing."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        *syncing: Sequence[str],
        end: signal.Signals = signal.SIGKILL,
        segment_sizes: Sequence[int] = SEGMENT_SIZES,
        is_disk_small: bool = False,
    ) -> None:
        """*syncing* has a sequence of flags for each round to choose from; *end* ends the servers.

        A put may be refused only if *is_disk_small*, and the size of the directory is checked only if not.
        """
        self._directory: Path = directory
        self._seed: int = seed
        self._syncing: tuple[Sequence[str], ...] = syncing
        self._end: signal.Signals = end
        self._rng: random.Random = random.Random(seed)  # noqa: S311  a seed, no secret
        self._segment_sizes: Sequence[int] = segment_sizes
        self._ledger: Ledger = Ledger(is_disk_small=is_disk_small)
        (self._port,) = free_ports(1)
        self._next_id: int = 1
        self._number: int = 0

    def run(self, is_whole: bool = False) -> Report:
        """Run one round; raise AssertionError with all errors in it. *is_whole* audits the ids of all rounds."""
        self._number += 1
        flags = self._flags()
        before, refused = self._ledger.acknowledged, self._ledger.refused
        with self._start(flags) as server:
            agents = [self._agent(number) for number in range(len(BATCHES))]
            for agent in agents:
                agent.start()
            if self._ledger.is_disk_small:
                eventually(lambda: self._ledger.refused > refused, "the disk is full")
            seconds = self._rng.uniform(*LOAD_SECONDS)
            time.sleep(seconds * 2 / 3)
            if not self._ledger.is_disk_small and self._rng.random() < DRAIN:
                self._ledger.is_draining = True
                server.process.send_signal(signal.SIGUSR1)
            time.sleep(seconds / 3)
            said = self._stop(server)
            ended_at = time.time()
        for agent in agents:
            agent.join()
        self._ledger.is_draining = False
        self._ledger.overtaken.clear()
        assert "Traceback" not in said, said
        if self._ledger.is_disk_small:
            found = run("journal", "check", str(self._directory))
            assert found.returncode == 0, found.stdout + found.stderr
        self._kill_while_it_starts(flags)
        self._audit(ended_at, is_whole)
        return Report(
            self._number,
            flags,
            self._ledger.acknowledged - before,
            len(self._ledger.jobs),
            self._next_id,
            self._ledger.refused,
            self._ledger.longest_wait,
        )

    def _flags(self) -> tuple[str, ...]:
        return (*self._rng.choice(self._syncing), "-s", str(self._rng.choice(self._segment_sizes)))

    def _start(self, flags: Sequence[str]) -> Daemon:
        return Daemon(*self._all_flags(flags))

    def _all_flags(self, flags: Sequence[str]) -> tuple[str, ...]:
        return ("-l", "127.0.0.1", "-p", str(self._port), "--no-web", "-b", str(self._directory), *flags)

    def _agent(self, number: int) -> Agent:
        return Agent(self._port, number, BATCHES[number], self._ledger, f"{self._seed}/{self._number}")

    def _stop(self, server: Daemon) -> str:
        """End *server*; return its log."""
        code, said = server.stop(self._end)
        assert code == (0 if self._end == signal.SIGTERM else -self._end), f"exit code {code}: {said}"
        return said

    def _kill_while_it_starts(self, flags: Sequence[str]) -> None:
        """With some probability, start one more server and kill it during recovery."""
        if self._end != signal.SIGKILL or self._rng.random() > SECOND_KILL:
            return
        command = [*COMMAND, *self._all_flags(flags)]
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        with ending(process):
            time.sleep(self._rng.uniform(0.1, 0.4))
            process.kill()

    def _audit(self, ended_at: float, is_whole: bool) -> None:
        """Start a server, audit every job, and check the size of the directory."""
        with self._start(self._flags()) as server:
            self._next_id = Audit(server, self._ledger, ended_at, len(BATCHES)).run(is_whole, self._next_id)
            wrong = self._ledger.wrong
            assert not wrong, "\n".join([f"{len(wrong)} wrong, seed {self._seed}, round {self._number}:", *wrong[:20]])
            if not self._ledger.is_disk_small:
                eventually(lambda: self._size() <= self._most(), "the directory is within its bound")
            self._stop(server)

    def _size(self) -> int:
        return sum([path.stat().st_size for path in self._directory.iterdir() if path.is_file()])

    def _most(self) -> float:
        """Return the maximum size: 2.5 times the live bytes, and three segments, each for one large job."""
        live = sum([len(job.body) + RECORD for job in self._ledger.jobs.values()])
        return 2.5 * live + 3 * max(LARGE + RECORD, *SEGMENT_SIZES)
