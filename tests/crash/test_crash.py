"""A short run of `make crash-test`."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.crash.rounds import Rounds
from tests.crash.tagged import TaggedRounds
from tests.support.load import LIMITS

SEED = 20
ROUNDS = 5


def test_killed_server_loses_no_acknowledged_change(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, SEED, ["-f", "0"])
    for number in range(1, ROUNDS + 1):
        print(rounds.run(is_whole=number == ROUNDS))


@pytest.mark.parametrize("syncing", [["-f", "50"], ["-F"]], ids="".join)
def test_unsynced_changes_survive_a_kill_of_the_process(tmp_path: Path, syncing: list[str]) -> None:
    rounds = Rounds(tmp_path, SEED, syncing)
    for _ in range(2):
        print(rounds.run())


@pytest.mark.parametrize("syncing", [["-f", "0"], ["-F"]], ids="".join)
def test_stop_under_load_loses_no_acknowledged_change(tmp_path: Path, syncing: list[str]) -> None:
    rounds = Rounds(tmp_path, SEED, syncing, end=signal.SIGTERM)
    for _ in range(2):
        print(rounds.run())


def test_killed_server_keeps_the_promises_of_tags(tmp_path: Path) -> None:
    rounds = TaggedRounds(tmp_path, SEED)
    for _ in range(3):
        print(rounds.run())
    rounds.finish()
    history = rounds.load.history
    assert history.most_held == LIMITS
    assert history.duplicates > 0 and history.waited > 0
