"""A short run of `make processes-test`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.processes.rounds import BESIDE_PAUSE, Rounds, Server, summary

SEED: Final = 23
KINDS: Final = (BESIDE_PAUSE, "stop")
"""`make processes-test` also kills two processes, and the parent."""


def test_faults_of_processes_lose_no_acknowledged_change(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rounds = Rounds(Server(data, tmp_path / "log"), SEED)
    try:
        rounds.begin()
        for kind in KINDS:
            print(rounds.run(kind))
        rounds.finish()
        print(summary(rounds.reports))
    finally:
        rounds.close()
