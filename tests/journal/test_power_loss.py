"""Power lost, a full disk and a failing one, at every single thing that a journal asks of a disk.

Whatever the disk makes of what was not synced: a restart shows every acknowledged change, no job in two states,
and nothing that never was; and nothing of it counts as damage.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterator
from random import Random

import pytest

from greenstalk_server.core.job import SECOND
from tests.journal.disk import Chance, Disk, Fault, PowerLostError, nothing, power_lost_at, seeded
from tests.journal.workload import Bench

KEPT = (0.0, 0.5, 0.9, 1.0)
"""Shares of the unsynced that survive."""

SEGMENT = 16384

PATIENCE = 10
"""Turns within which service resumes once the disk is well."""

sync_intervals = pytest.mark.parametrize("sync_interval", [0, SECOND // 20], ids=["-f 0", "-f 50"])


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Torn tails by the thousand are news to nobody."""
    with caplog.at_level(logging.ERROR):
        yield


# Power


@sync_intervals
@pytest.mark.parametrize("seed", range(2))
def test_power_loss_at_any_call_loses_nothing_acknowledged(seed: int, sync_interval: int) -> None:
    random = seeded(seed)
    disk = Disk()
    bench = Bench(disk, random, sync_interval=sync_interval)

    def check(call: str) -> None:
        for share in KEPT:
            bench.check_after_crash(disk.crash(Chance(random, share)))

    disk.before = check
    for _ in range(80):
        bench.turn()
        bench.check_told()
    assert disk.calls > 200
    assert bench.binlog.stats().records_migrated > 0


@pytest.mark.parametrize("seed", range(3))
def test_repeated_power_loss_also_during_recovery_loses_nothing(seed: int) -> None:
    """Each life starts on what the last crash left, and ends at some call, the first ones included."""
    random = seeded(seed)
    bench = Bench(Disk(), random)
    for life in range(100):
        bench.disk.before = power_lost_at(random.randrange(1, 60 if life % 3 else 12))
        with pytest.raises(PowerLostError):
            work_on(bench)
        bench = restarted(bench, random)
        bench.check_told()
    assert len(bench.broker.jobs) > 10
    assert bench.disk.list()[-1] > "journal.2"


def work_on(bench: Bench) -> None:
    while True:
        bench.turn()


def restarted(bench: Bench, random: Random) -> Bench:
    """The next life after the power is back; it may be lost again before the start is done."""
    disk = bench.disk
    while True:
        disk = disk.crash(Chance(random, random.choice(KEPT)))
        disk.before = power_lost_at(random.randrange(1, 12))
        with contextlib.suppress(PowerLostError):
            after = Bench(disk, random, bench.now)
            bench.history.check(after.broker, bench.safe, bench.now)
            return after


# A disk that fails


@sync_intervals
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("is_lasting", [False, True], ids=["once", "lasting"])
def test_failure_of_any_call_loses_nothing_acknowledged(sync_interval: int, code: int, is_lasting: bool) -> None:
    """Calls fail, once or for some turns; then service goes on as before, and power is lost at last."""
    for at in range(1, 160, 4 if sync_interval == 0 else 8):
        random = seeded(at)
        disk = Disk()
        disk.random = random
        bench = Bench(disk, random, sync_interval=sync_interval)
        fault = Fault(at, code, is_lasting)
        disk.before = fault
        while not fault.has_struck:
            bench.turn()
        for _ in range(random.randrange(8)):
            work_in_trouble(bench)
            bench.check_after_crash(disk.crash(Chance(random, random.choice(KEPT))))
        disk.before = nothing
        resume(bench)
        for _ in range(10):
            bench.turn()
            bench.check_told()
            bench.check_after_crash(disk.crash(Chance(random, random.choice(KEPT))))


def work_in_trouble(bench: Bench) -> None:
    """A turn; while nothing can be written no put is accepted, and nothing is acknowledged."""
    safe, is_in_trouble = bench.binlog.safe, bench.binlog.trouble is not None
    bench.work(5)
    if is_in_trouble:
        assert not bench.put(1)
        assert bench.binlog.safe == safe
        assert not bench.binlog.has_records
        assert bench.binlog.stats().current_index == 0
    bench.turn()


def resume(bench: Bench) -> None:
    """Assert that a disk that is well is used again without a restart, and all that was held back is safe."""
    for _ in range(PATIENCE):
        bench.commit()
        bench.sync()
        bench.compact()
        bench.keep_up()
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
    """More records come at a time than there is room for, also between the steps of a rewrite."""
    random = seeded(seed)
    disk = Disk()
    disk.capacity = (12, 20, 30)[seed] * SEGMENT
    bench = Bench(disk, random, sync_interval=sync_interval, max_size=SEGMENT)
    for turn in range(8):
        bench.fill_and_release(50, turn)
        for _ in range(3):
            bench.compact()
            bench.keep_up()
            assert bench.commit()
        bench.sync()
        bench.check_told()
        bench.check_after_crash(disk.crash(Chance(random, random.choice(KEPT))))
    assert bench.refused > 0
    assert bench.binlog.trouble is None
