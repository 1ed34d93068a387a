"""Losses of power, disk errors and a full disk, for the tests of every kind of bench.

Whatever unsynced data the disk loses, a restart shows every acknowledged change and only recorded states.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from random import Random
from typing import Final, TypeVar

import pytest

from greenstalk_server.core.jobs.job import SECOND
from tests.journal.disk import Chance, Disk, Fault, PowerLostError, no_fault, power_lost_at
from tests.journal.workload import Bench
from tests.support import invariants

AnyBench = TypeVar("AnyBench", bound=Bench)

SHARES: Final = (0.0, 0.5, 0.9, 1.0)
"""Shares of the unsynced changes that survive a loss of power."""

SEGMENT: Final = 16384

RECOVERY_STEPS: Final = 10
"""Rounds of the committer's tasks within which service resumes once the disk works again."""

sync_intervals = pytest.mark.parametrize("sync_interval", [0, SECOND // 20], ids=["-f 0", "-f 50"])
sync_intervals_and_memory = pytest.mark.parametrize(
    ("sync_interval", "is_memory_short"), [(0, True), (SECOND // 20, False)], ids=["-f 0, memory short", "-f 50"]
)
error_codes = pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
error_durations = pytest.mark.parametrize("is_lasting", [False, True], ids=["once", "lasting"])


def step_with_crashes(bench: Bench, steps: int) -> int:
    """Run *steps* random steps; before each call of the disk, check restarts after a loss of power.

    For each call, two of the SHARES are taken at random; a restart that finds the same files is checked once.

    Return the number of bodies that were on disk only, summed over the steps.
    """

    def check_crashes(call: str) -> None:
        checked: list[dict[str, bytes]] = []
        for share in bench.random.sample(SHARES, 2):
            disk = bench.disk.crash(Chance(bench.random, share))
            if (files := disk.contents()) not in checked:
                checked.append(files)
                bench.check_after_crash(disk)

    evicted = 0
    bench.disk.before = check_crashes
    for _ in range(steps):
        bench.step()
        bench.check_recorded()
        invariants.check(bench.broker)
        evicted += sum(job.body is None for job in bench.broker.jobs.values())
    assert bench.journal.stats().records_migrated > 0
    return evicted


def crash_repeatedly(bench: AnyBench, times: int) -> AnyBench:
    """Run *bench* until its disk loses power, restart it, and so on; return the last server."""
    random = bench.random
    for number in range(times):
        bench.disk.before = power_lost_at(random.randrange(1, 60 if number % 3 else 12))
        with pytest.raises(PowerLostError):
            run_forever(bench)
        bench = restarted(bench)
        bench.check_recorded()
        invariants.check(bench.broker)
    return bench


def run_forever(bench: Bench) -> None:
    while True:
        bench.step()


def restarted(bench: AnyBench) -> AnyBench:
    """Return the next server on the disk of *bench*. Power may be lost during its start, which is then repeated."""
    disk, random = bench.disk, bench.random
    while True:
        disk = disk.crash(Chance(random, random.choice(SHARES)))
        disk.before = power_lost_at(random.randrange(1, 12))
        with contextlib.suppress(PowerLostError):
            after = type(bench)(disk, random, bench.now)
            bench.history.check(after.broker, bench.safe, bench.now)
            bench.history.check_entries(after.journal.policies, after.journal.keys, bench.safe, bench.now)
            return after


def crash_at_random(bench: Bench) -> None:
    """Check a restart after a loss of power in which a random share of the unsynced changes survives."""
    bench.check_after_crash(bench.disk.crash(Chance(bench.random, bench.random.choice(SHARES))))


def fail_calls(bench: AnyBench, fault: Fault, step_after_fault: Callable[[AnyBench], None]) -> None:
    """Run *bench* until *fault* occurs, then some steps; repair the disk, and assert that service resumes.

    Check a restart after each of the later steps.
    """
    bench.disk.before = fault
    while not fault.has_triggered:
        bench.step()
    for _ in range(bench.random.randrange(8)):
        step_after_fault(bench)
        crash_at_random(bench)
    bench.disk.before = no_fault
    assert_recovers(bench)
    for _ in range(10):
        bench.step()
        bench.check_recorded()
        crash_at_random(bench)


def assert_recovers(bench: Bench) -> None:
    """Assert that a server uses a disk that works again without a restart, and that all promised records are safe."""
    for _ in range(RECOVERY_STEPS):
        bench.commit()
        bench.sync()
        bench.compact()
        bench.run_maintenance()
    assert bench.journal.write_error is None
    assert not bench.journal.is_full
    assert bench.put(1)
    assert bench.commit()
    assert bench.sync()
    assert bench.safe >= bench.journal.promised


def full_disk_bench(kind: type[AnyBench], random: Random, segments: int, sync_interval: int) -> AnyBench:
    """Return a bench of *kind* on a disk with room for *segments* segments."""
    disk = Disk()
    disk.capacity = segments * SEGMENT
    return kind(disk, random, sync_interval=sync_interval, max_size=SEGMENT)


def fill_repeatedly(bench: Bench) -> None:
    """Fill the disk of *bench* eight times with puts and releases; check a restart after each time."""
    for turn in range(8):
        bench.fill_and_release(50, turn)
        for _ in range(3):
            bench.compact()
            bench.run_maintenance()
            assert bench.commit()
        bench.sync()
        bench.check_recorded()
        crash_at_random(bench)
    assert bench.refused > 0
    assert bench.journal.write_error is None
