"""Loss of power, failures and a full disk under moves, groups, attributes, policies and unique keys.

In addition to the checks of test_power_loss: each group is complete or absent, and policies and keys survive like jobs.
"""

from __future__ import annotations

import pytest

from tests.journal.disk import Disk, Fault, seeded
from tests.journal.policy_workload import PolicyBench
from tests.journal.power_loss import (
    crash_repeatedly,
    error_codes,
    error_durations,
    fail_calls,
    fill_repeatedly,
    full_disk_bench,
    step_with_crashes,
    sync_intervals,
    sync_intervals_and_memory,
)
from tests.journal.workload import ELSEWHERE

pytestmark = pytest.mark.usefixtures("ignore_warnings")


@sync_intervals_and_memory
def test_power_loss_at_any_call_loses_nothing_acknowledged(sync_interval: int, is_memory_short: bool) -> None:
    bench = PolicyBench(Disk(), seeded(0), sync_interval=sync_interval, is_memory_short=is_memory_short)
    step_with_crashes(bench, 60)
    assert bench.disk.calls > 150
    assert len(bench.history.groups) > 10
    assert any(job.dead_letter for job in bench.broker.jobs.values())


def test_repeated_power_loss_also_during_recovery_loses_nothing() -> None:
    bench = crash_repeatedly(PolicyBench(Disk(), seeded(0)), 100)
    assert len(bench.broker.jobs) > 10


@sync_intervals
@error_codes
@error_durations
def test_failure_of_any_call_loses_nothing_acknowledged(sync_interval: int, code: int, is_lasting: bool) -> None:
    """One call fails, or all calls for some steps. Then service resumes, and power is lost."""
    for at in range(1, 160, 12 if sync_interval == 0 else 24):
        random = seeded(at)
        disk = Disk()
        disk.random = random
        bench = PolicyBench(disk, random, sync_interval=sync_interval)
        fail_calls(bench, Fault(at, code, is_lasting), PolicyBench.step)


class FullDiskBench(PolicyBench):
    """A bench whose moves, policies and keys fit into the space that puts leave: none of them is refused."""

    targets = (b"default", b"mail", ELSEWHERE)
    key_count = 3
    document_size = 50


@sync_intervals
@pytest.mark.parametrize("segments", [12, 20])
def test_power_loss_on_a_full_disk_loses_nothing_acknowledged(segments: int, sync_interval: int) -> None:
    """The disk is full while jobs get other names and attributes: their copies still have room."""
    fill_repeatedly(full_disk_bench(FullDiskBench, seeded(segments), segments, sync_interval))
