"""Loss of power, a full disk and I/O errors at every call of the disk, under every command, policy and tag.

A restart shows all acknowledged changes of jobs, pauses, policies and keys, and only recorded states; each group is
complete or absent; and the restart reports no damage.
"""

from __future__ import annotations

import pytest

from tests.journal.disk import Chance, Disk, Fault, PowerLostError, power_lost_at, seeded
from tests.journal.policy_workload import PolicyBench
from tests.journal.power_loss import (
    SHARES,
    crash_repeatedly,
    error_codes,
    error_durations,
    fail_calls,
    fill_repeatedly,
    full_disk_bench,
    run_forever,
    step_with_crashes,
    sync_intervals,
    sync_intervals_and_memory,
)
from tests.journal.ruled_workload import RuledBench, RuntimeBench
from tests.journal.tagged_workload import TaggedBench
from tests.journal.workload import ELSEWHERE
from tests.support import invariants

pytestmark = pytest.mark.usefixtures("ignore_warnings")


@sync_intervals_and_memory
@pytest.mark.parametrize(("kind", "steps"), [(PolicyBench, 80), (RuntimeBench, 50), (TaggedBench, 40)])
def test_power_loss_at_any_call_loses_nothing_acknowledged(
    kind: type[PolicyBench | RuntimeBench | TaggedBench], steps: int, sync_interval: int, is_memory_short: bool
) -> None:
    bench = kind(Disk(), seeded(1), sync_interval=sync_interval, is_memory_short=is_memory_short)
    evicted = step_with_crashes(bench, steps)
    assert bench.disk.calls > 2 * steps
    assert bool(evicted) == is_memory_short
    assert bench.history.keys
    if kind is TaggedBench:
        assert bench.broker.groups
    else:
        assert len(bench.history.groups) > 2
        snapshots = [snapshot for entries in bench.history.jobs.values() for _, snapshot in entries]
        assert any(snapshot is not None and snapshot.dead_letter for snapshot in snapshots)


@pytest.mark.parametrize(("kind", "times"), [(PolicyBench, 100), (TaggedBench, 60)])
def test_repeated_power_loss_also_during_recovery_loses_nothing(
    kind: type[PolicyBench | TaggedBench], times: int
) -> None:
    """Each server starts on the disk that the last crash left, and loses power at a random call, also the first."""
    bench = crash_repeatedly(kind(Disk(), seeded(0)), times)
    assert len(bench.broker.jobs) > 10
    assert "journal.1" not in bench.disk.list()


def test_repeated_power_loss_under_policies_of_the_broker_loses_nothing() -> None:
    """Each server applies its policies to the jobs that it finds."""
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
        invariants.check(bench.broker)
    assert len(bench.broker.jobs) > 3


@sync_intervals_and_memory
@error_codes
@error_durations
def test_failure_of_any_call_loses_nothing_acknowledged(
    sync_interval: int, is_memory_short: bool, code: int, is_lasting: bool
) -> None:
    """One call fails, or all calls for some steps. Then service resumes, and power is lost."""
    for at in range(1, 160, 8 if sync_interval == 0 else 16):
        random = seeded(at)
        disk = Disk()
        disk.random = random
        bench = PolicyBench(disk, random, sync_interval=sync_interval, is_memory_short=is_memory_short)
        fail_calls(bench, Fault(at, code, is_lasting), step_after_fault)


def step_after_fault(bench: PolicyBench) -> None:
    """Run a step. While the disk fails, assert that puts are refused, and that no record is acknowledged."""
    safe, is_failing = bench.journal.safe, bench.journal.write_error is not None
    bench.run_commands(5)
    if is_failing:
        assert not bench.put(1)
        assert bench.journal.safe == safe
        assert not bench.journal.has_records
        assert bench.journal.stats().current_index == 0
    bench.step()


class FullDiskBench(PolicyBench):
    """A bench whose moves, policies and keys fit into the space that puts leave: none of them is refused."""

    targets = (b"default", b"mail", ELSEWHERE)
    key_count = 3
    document_size = 50


@sync_intervals
@pytest.mark.parametrize("segments", [12, 20])
def test_power_loss_on_a_full_disk_loses_nothing_acknowledged(segments: int, sync_interval: int) -> None:
    """A batch has more records than fit on the disk, also between two steps of a rewrite."""
    fill_repeatedly(full_disk_bench(FullDiskBench, seeded(segments), segments, sync_interval))
