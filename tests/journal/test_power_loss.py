"""Power lost, a full disk and a failing one, at every single thing that a journal asks of a disk.

Whatever the disk makes of what was not synced: a restart shows every acknowledged change, no job in two states,
and nothing that never was.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.journal.disk import Chance, Disk
from tests.journal.workload import Bench

KEPT = (0.0, 0.5, 0.9, 1.0)
"""Shares of the unsynced that survive."""


@pytest.mark.parametrize("seed", range(20))
def test_power_lost_at_every_call_loses_nothing_acknowledged(seed: int) -> None:
    random = Random(seed)
    disk = Disk()
    bench = Bench(disk, random)

    def lose_power(call: str) -> None:
        for share in KEPT:
            bench.check_after_crash(disk.crash(Chance(random, share)), is_strict=False)

    disk.before = lose_power
    for _ in range(250):
        bench.turn()
        bench.check_told()
    assert disk.calls > 200
