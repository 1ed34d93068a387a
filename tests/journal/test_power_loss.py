"""Loss of power, a full disk and I/O errors at every call of the disk. A restart also reports no damage."""

from __future__ import annotations

import pytest

from tests.journal.disk import Disk, Fault, seeded
from tests.journal.power_loss import (
    crash_repeatedly,
    error_codes,
    error_durations,
    fail_calls,
    fill_repeatedly,
    full_disk_bench,
    step_with_crashes,
    sync_intervals,
)
from tests.journal.workload import Bench

pytestmark = pytest.mark.usefixtures("ignore_warnings")


@sync_intervals
def test_power_loss_at_any_call_loses_nothing_acknowledged(sync_interval: int) -> None:
    bench = Bench(Disk(), seeded(0), sync_interval=sync_interval)
    step_with_crashes(bench, 80)
    assert bench.disk.calls > 200


def test_repeated_power_loss_also_during_recovery_loses_nothing() -> None:
    """Each server starts on the disk that the last crash left, and loses power at a random call, also the first."""
    bench = crash_repeatedly(Bench(Disk(), seeded(0)), 100)
    assert len(bench.broker.jobs) > 10
    assert bench.disk.list()[-1] > "journal.2"


@sync_intervals
@error_codes
@error_durations
def test_failure_of_any_call_loses_nothing_acknowledged(sync_interval: int, code: int, is_lasting: bool) -> None:
    """One call fails, or all calls for some steps. Then service resumes, and power is lost."""
    for at in range(1, 160, 8 if sync_interval == 0 else 16):
        random = seeded(at)
        disk = Disk()
        disk.random = random
        fail_calls(Bench(disk, random, sync_interval=sync_interval), Fault(at, code, is_lasting), step_in_trouble)


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


@sync_intervals
@pytest.mark.parametrize("segments", [12, 20])
def test_power_loss_on_a_full_disk_loses_nothing_acknowledged(segments: int, sync_interval: int) -> None:
    """A batch has more records than fit on the disk, also between two steps of a rewrite."""
    fill_repeatedly(full_disk_bench(Bench, seeded(segments), segments, sync_interval))
