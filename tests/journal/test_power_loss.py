"""Loss of power, a full disk and I/O errors at every call of the disk.

Whatever unsynced data the disk loses, a restart shows every acknowledged change and only recorded states. It reports no
damage.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterator
from random import Random

import pytest

from greenstalk_server.core.job import SECOND
from tests.journal.disk import Chance, Disk, Fault, PowerLostError, no_fault, power_lost_at, seeded
from tests.journal.workload import Bench

SHARES = (0.0, 0.5, 0.9, 1.0)
"""Shares of the unsynced changes that survive a loss of power."""

SEGMENT = 16384

RECOVERY_STEPS = 10
"""Rounds of the committer's tasks within which service resumes once the disk works again."""

sync_intervals = pytest.mark.parametrize("sync_interval", [0, SECOND // 20], ids=["-f 0", "-f 50"])


@pytest.fixture(autouse=True)
def ignore_warnings(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Suppress warnings: the starts of these tests would log thousands of torn tails."""
    with caplog.at_level(logging.ERROR):
        yield


# Loss of power


@sync_intervals
@pytest.mark.parametrize("seed", range(2))
def test_power_loss_at_any_call_loses_nothing_acknowledged(seed: int, sync_interval: int) -> None:
    random = seeded(seed)
    disk = Disk()
    bench = Bench(disk, random, sync_interval=sync_interval)

    def check(call: str) -> None:
        for share in SHARES:
            bench.check_after_crash(disk.crash(Chance(random, share)))

    disk.before = check
    for _ in range(80):
        bench.step()
        bench.check_recorded()
    assert disk.calls > 200
    assert bench.binlog.stats().records_migrated > 0


@pytest.mark.parametrize("seed", range(3))
def test_repeated_power_loss_also_during_recovery_loses_nothing(seed: int) -> None:
    """Each server starts on the disk that the last crash left, and loses power at a random call, also the first."""
    random = seeded(seed)
    bench = Bench(Disk(), random)
    for number in range(100):
        bench.disk.before = power_lost_at(random.randrange(1, 60 if number % 3 else 12))
        with pytest.raises(PowerLostError):
            run_forever(bench)
        bench = restarted(bench, random)
        bench.check_recorded()
    assert len(bench.broker.jobs) > 10
    assert bench.disk.list()[-1] > "journal.2"


def run_forever(bench: Bench) -> None:
    while True:
        bench.step()


def restarted(bench: Bench, random: Random) -> Bench:
    """Return the next server on the disk of *bench*. Power may be lost during its start, which is then repeated."""
    disk = bench.disk
    while True:
        disk = disk.crash(Chance(random, random.choice(SHARES)))
        disk.before = power_lost_at(random.randrange(1, 12))
        with contextlib.suppress(PowerLostError):
            after = Bench(disk, random, bench.now)
            bench.history.check(after.broker, bench.safe, bench.now)
            return after


# Disk errors


@sync_intervals
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("is_lasting", [False, True], ids=["once", "lasting"])
def test_failure_of_any_call_loses_nothing_acknowledged(sync_interval: int, code: int, is_lasting: bool) -> None:
    """One call fails, or all calls for some steps. Then service resumes, and power is lost."""
    for at in range(1, 160, 4 if sync_interval == 0 else 8):
        random = seeded(at)
        disk = Disk()
        disk.random = random
        bench = Bench(disk, random, sync_interval=sync_interval)
        fault = Fault(at, code, is_lasting)
        disk.before = fault
        while not fault.has_triggered:
            bench.step()
        for _ in range(random.randrange(8)):
            step_in_trouble(bench)
            bench.check_after_crash(disk.crash(Chance(random, random.choice(SHARES))))
        disk.before = no_fault
        assert_recovers(bench)
        for _ in range(10):
            bench.step()
            bench.check_recorded()
            bench.check_after_crash(disk.crash(Chance(random, random.choice(SHARES))))


def step_in_trouble(bench: Bench) -> None:
    """Run a step. While the disk fails, assert that puts are refused, and that no record is acknowledged."""
    safe, is_in_trouble = bench.binlog.safe, bench.binlog.trouble is not None
    bench.run_commands(5)
    if is_in_trouble:
        assert not bench.put(1)
        assert bench.binlog.safe == safe
        assert not bench.binlog.has_records
        assert bench.binlog.stats().current_index == 0
    bench.step()


def assert_recovers(bench: Bench) -> None:
    """Assert that a server uses a disk that works again without a restart, and that all promised records are safe."""
    for _ in range(RECOVERY_STEPS):
        bench.commit()
        bench.sync()
        bench.compact()
        bench.run_upkeep()
    assert bench.binlog.trouble is None
    assert not bench.binlog.is_full
    assert bench.put(1)
    assert bench.commit()
    assert bench.sync()
    assert bench.safe >= bench.binlog.promised


# A full disk


@sync_intervals
@pytest.mark.parametrize("seed", range(3))
def test_power_loss_on_a_full_disk_loses_nothing_acknowledged(seed: int, sync_interval: int) -> None:
    """A batch has more records than fit on the disk, also between two steps of a rewrite."""
    random = seeded(seed)
    disk = Disk()
    disk.capacity = (12, 20, 30)[seed] * SEGMENT
    bench = Bench(disk, random, sync_interval=sync_interval, max_size=SEGMENT)
    for turn in range(8):
        bench.fill_and_release(50, turn)
        for _ in range(3):
            bench.compact()
            bench.run_upkeep()
            assert bench.commit()
        bench.sync()
        bench.check_recorded()
        bench.check_after_crash(disk.crash(Chance(random, random.choice(SHARES))))
    assert bench.refused > 0
    assert bench.binlog.trouble is None
