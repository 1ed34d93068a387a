"""Loss of power while the broker applies policies: a restart shows only recorded states, and all safe ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from greenstalk_server.core.job import SECOND
from tests.journal.disk import Chance, Disk, PowerLostError, power_lost_at, seeded
from tests.journal.ruled_workload import RuledBench
from tests.journal.test_power_loss import SHARES, run_forever

sync_intervals = pytest.mark.parametrize("sync_interval", [0, SECOND // 20], ids=["-f 0", "-f 50"])


@pytest.fixture(autouse=True)
def ignore_warnings(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Suppress warnings: the starts of these tests would log thousands of torn tails."""
    with caplog.at_level(logging.ERROR):
        yield


@sync_intervals
@pytest.mark.parametrize("is_memory_short", [False, True], ids=["", "memory short"])
def test_power_loss_at_any_call_loses_nothing_acknowledged(sync_interval: int, is_memory_short: bool) -> None:
    random = seeded(1)
    disk = Disk()
    bench = RuledBench(disk, random, sync_interval=sync_interval, is_memory_short=is_memory_short)

    def check(call: str) -> None:
        for share in SHARES:
            bench.check_after_crash(disk.crash(Chance(random, share)))

    disk.before = check
    for _ in range(50):
        bench.step()
        bench.check_recorded()
        bench.broker.check()
    assert disk.calls > 100
    assert bench.binlog.stats().records_migrated > 0
    assert len(bench.history.groups) > 3
    assert bench.history.keys
    assert any(job.dead_letter for job in bench.broker.jobs.values())


@pytest.mark.parametrize("seed", range(2))
def test_repeated_power_loss_loses_nothing(seed: int) -> None:
    """Each server starts on the disk that the last crash left, and applies its policies to the jobs that it finds."""
    random = seeded(seed)
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
