"""Loss of power while the broker applies policies: a restart shows only recorded states, and all safe ones."""

from __future__ import annotations

import pytest

from tests.journal.disk import Chance, Disk, PowerLostError, power_lost_at, seeded
from tests.journal.power_loss import SHARES, run_forever, step_with_crashes, sync_intervals_and_memory
from tests.journal.ruled_workload import RuledBench

pytestmark = pytest.mark.usefixtures("ignore_warnings")


@sync_intervals_and_memory
def test_power_loss_at_any_call_loses_nothing_acknowledged(sync_interval: int, is_memory_short: bool) -> None:
    bench = RuledBench(Disk(), seeded(1), sync_interval=sync_interval, is_memory_short=is_memory_short)
    step_with_crashes(bench, 50, bench.broker.check)
    assert bench.disk.calls > 100
    assert len(bench.history.groups) > 3
    assert bench.history.keys
    snapshots = [snapshot for entries in bench.history.jobs.values() for _, snapshot in entries]
    assert any(snapshot is not None and snapshot.dead_letter for snapshot in snapshots)


def test_repeated_power_loss_loses_nothing() -> None:
    """Each server starts on the disk that the last crash left, and applies its policies to the jobs that it finds."""
    random = seeded(0)
    bench = RuledBench(Disk(), random)
    for number in range(60):
        bench.disk.before = power_lost_at(random.randrange(4, 60 if number % 3 else 12))
        with pytest.raises(PowerLostError):
            run_forever(bench)
        disk = bench.disk.crash(Chance(random, random.choice(SHARES)))
        bench.check_after_crash(disk.crash(Chance(random, 1.0)))
        bench = RuledBench(disk, random, bench.now)
        bench.check_recorded()
        bench.broker.check()
    assert len(bench.broker.jobs) > 3
