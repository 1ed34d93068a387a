"""Rounds with tagged jobs: clients use a server continuously, which is killed and restarted again and again."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Final

from tests.support.daemon import Daemon
from tests.support.load import Load
from tests.support.ports import free_ports

LOAD_SECONDS: Final = (0.2, 0.8)
SEGMENT_SIZES: Final = (16_384, 131_072)
"""Small, so that each round compacts, creates and removes segments."""


class TaggedRounds:
    """Rounds on *directory*; every acknowledged change is synced."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory: Path = directory
        self._rng: random.Random = random.Random(seed)  # noqa: S311  a seed, no secret
        (self._port,) = free_ports(1)
        self.load: Load = Load([self._port], str(seed))

    def run(self) -> str:
        """Start the server, and kill it; return the numbers so far."""
        with self._start() as server:
            self.load.start()
            time.sleep(self._rng.uniform(*LOAD_SECONDS))
            code, said = server.stop(signal.SIGKILL)
            assert code == -signal.SIGKILL, f"exit code {code}: {said}"
            assert "Traceback" not in said, said
        assert not self.load.history.wrong, "\n".join(self.load.history.wrong[:20])
        return str(self.load)

    def finish(self) -> None:
        """Raise AssertionError with every error, after a last restart."""
        with self._start() as server:
            self.load.audit(self._port)
            code, said = server.stop()
            assert code == 0, said

    def _start(self) -> Daemon:
        size = str(self._rng.choice(SEGMENT_SIZES))
        where = ("-l", "127.0.0.1", "-p", str(self._port), "--no-web", "-b", str(self._directory))
        return Daemon(*where, "-f", "0", "-s", size)
