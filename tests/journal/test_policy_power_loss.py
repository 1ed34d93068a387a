"""Loss of power, failures and a full disk under moves, groups, attributes, policies and unique keys.

In addition to the checks of test_power_loss: each group is complete or absent, and policies and keys survive like jobs.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterator

import pytest

from greenstalk_server.core.job import SECOND
from tests.journal.disk import Chance, Disk, Fault, PowerLostError, no_fault, power_lost_at, seeded
from tests.journal.policy_workload import PolicyBench
from tests.journal.test_power_loss import SEGMENT, SHARES, assert_recovers, run_forever
from tests.journal.workload import ELSEWHERE

sync_intervals = pytest.mark.parametrize("sync_interval", [0, SECOND // 20], ids=["-f 0", "-f 50"])


@pytest.fixture(autouse=True)
def ignore_warnings(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Suppress warnings: the starts of these tests would log thousands of torn tails."""
    with caplog.at_level(logging.ERROR):
        yield


@sync_intervals
@pytest.mark.parametrize("is_memory_short", [False, True], ids=["", "memory short"])
def test_power_loss_at_any_call_loses_nothing_acknowledged(sync_interval: int, is_memory_short: bool) -> None:
    random = seeded(0)
    disk = Disk()
    bench = PolicyBench(disk, random, sync_interval=sync_interval, is_memory_short=is_memory_short)

    def check(call: str) -> None:
        for share in SHARES:
            bench.check_after_crash(disk.crash(Chance(random, share)))

    disk.before = check
    for _ in range(80):
        bench.step()
        bench.check_recorded()
    assert disk.calls > 200
    assert bench.binlog.stats().records_migrated > 0
    assert len(bench.history.groups) > 10
    assert any(job.dead_letter for job in bench.broker.jobs.values())


@pytest.mark.parametrize("seed", range(3))
def test_repeated_power_loss_also_during_recovery_loses_nothing(seed: int) -> None:
    random = seeded(seed)
    bench = PolicyBench(Disk(), random)
    for number in range(100):
        bench.disk.before = power_lost_at(random.randrange(1, 60 if number % 3 else 12))
        with pytest.raises(PowerLostError):
            run_forever(bench)
        bench = restarted(bench)
        bench.check_recorded()
    assert len(bench.broker.jobs) > 10


def restarted(bench: PolicyBench) -> PolicyBench:
    """Return the next server on the disk of *bench*. Power may be lost during its start, which is then repeated."""
    disk, random = bench.disk, bench.random
    while True:
        disk = disk.crash(Chance(random, random.choice(SHARES)))
        disk.before = power_lost_at(random.randrange(1, 12))
        with contextlib.suppress(PowerLostError):
            after = PolicyBench(disk, random, bench.now)
            bench.history.check(after.broker, bench.safe, bench.now)
            bench.history.check_entries(after.binlog.policies, after.binlog.keys, bench.safe, bench.now)
            return after


@sync_intervals
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("is_lasting", [False, True], ids=["once", "lasting"])
def test_failure_of_any_call_loses_nothing_acknowledged(sync_interval: int, code: int, is_lasting: bool) -> None:
    """One call fails, or all calls for some steps. Then service resumes, and power is lost."""
    for at in range(1, 160, 4 if sync_interval == 0 else 8):
        random = seeded(at)
        disk = Disk()
        disk.random = random
        bench = PolicyBench(disk, random, sync_interval=sync_interval)
        fault = Fault(at, code, is_lasting)
        disk.before = fault
        while not fault.has_triggered:
            bench.step()
        for _ in range(random.randrange(8)):
            bench.step()
            bench.check_after_crash(disk.crash(Chance(random, random.choice(SHARES))))
        disk.before = no_fault
        assert_recovers(bench)
        for _ in range(10):
            bench.step()
            bench.check_recorded()
            bench.check_after_crash(disk.crash(Chance(random, random.choice(SHARES))))


class FullDiskBench(PolicyBench):
    """A bench whose moves, policies and keys fit into the space that puts leave: none of them is refused."""

    targets = (b"default", b"mail", ELSEWHERE)
    key_count = 3
    document_size = 50


@sync_intervals
@pytest.mark.parametrize("seed", range(3))
def test_power_loss_on_a_full_disk_loses_nothing_acknowledged(seed: int, sync_interval: int) -> None:
    """The disk is full while jobs get other names and attributes: their copies still have room."""
    random = seeded(seed)
    disk = Disk()
    disk.capacity = (12, 20, 30)[seed] * SEGMENT
    bench = FullDiskBench(disk, random, sync_interval=sync_interval, max_size=SEGMENT)
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
