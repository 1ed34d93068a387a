"""A short run of `make crash-test`."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.crash.rounds import Rounds

SEED = 20
ROUNDS = 8


def test_a_killed_server_has_lost_nothing_acknowledged(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, SEED, ["-f", "0"])
    for number in range(1, ROUNDS + 1):
        print(rounds.run(is_whole=number == ROUNDS))


@pytest.mark.parametrize("syncing", [["-f", "50"], ["-F"]], ids="".join)
def test_what_was_not_synced_outlives_the_process_alone(tmp_path: Path, syncing: list[str]) -> None:
    rounds = Rounds(tmp_path, SEED, syncing)
    for _ in range(2):
        print(rounds.run())


@pytest.mark.parametrize("syncing", [["-f", "0"], ["-f", "50"], ["-F"]], ids="".join)
def test_stopping_in_order_under_load_loses_nothing_acknowledged(tmp_path: Path, syncing: list[str]) -> None:
    rounds = Rounds(tmp_path, SEED, syncing, end=signal.SIGTERM)
    for _ in range(2):
        print(rounds.run())
