"""A rewrite after a failed sync: it yields to the event loop, and commands run between its slices."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import Final

import gevent
import pytest

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import finishing, putting, reserving
from greenstalk_server.journal import batch, rewrite, segment, segment_log
from greenstalk_server.journal.segment import LARGE_BODY
from greenstalk_server.net.committer import Committer
from tests.journal.disk import Chance, Disk, Fault, no_fault, seeded
from tests.journal.workload import Bench, recovered

JOBS: Final = 10_000
SEGMENT: Final = 10 * 2**20

MAX_CALLS: Final = 40_000
"""Maximum calls of functions in one iteration of the event loop: about 4 ms without the profiler."""


class CallCounter:
    """Counts the calls of functions in each iteration of the event loop.

    maximum     largest count of an iteration so far.
    """

    def __init__(self) -> None:
        self.maximum: int = 0
        self._calls: int = 0

    def watch(self) -> None:
        """Reset the count in each iteration of the loop. Never returns; switches."""
        while True:
            self._calls = 0
            gevent.sleep(0)
            self.maximum = max(self.maximum, self._calls)

    def count(self, frame: FrameType, event: str, argument: object) -> None:
        """Count one event of the profiler."""
        if event in ("call", "c_call"):
            self._calls += 1


def max_calls_per_iteration(run: Callable[[], object]) -> int:
    """Return the maximum number of calls in one iteration of the event loop while *run* runs. Switches."""
    counter = CallCounter()
    watcher = gevent.spawn(counter.watch)
    gevent.sleep(0)
    sys.setprofile(counter.count)
    try:
        run()
    finally:
        sys.setprofile(None)
        watcher.kill()
    return counter.maximum


@pytest.mark.parametrize("has_updates", [False, True], ids=["puts", "releases"])
def test_rewrite_of_many_jobs_yields_every_few_milliseconds(has_updates: bool) -> None:
    disk = Disk()
    bench = Bench(disk, seeded(0), max_size=SEGMENT, sync_interval=SECOND)
    client = bench.clients[0]
    for _ in range(JOBS):
        putting.put(bench.broker, client, bench.broker.allocate_id(), 0, 0, SECOND, b"body", bench.now)
    if has_updates:
        assert bench.commit()
        assert bench.sync()
        for id in list(bench.broker.jobs):
            assert reserving.reserve_job(bench.broker, client, id, bench.now)
            assert finishing.release(bench.broker, client, id, 7, 0, bench.now)
    assert bench.commit()
    disk.before = Fault(1, errno.EIO, is_lasting=False, calls=("sync",))
    assert not bench.sync()
    committer = Committer(bench.journal)
    committer.start()
    try:
        calls = max_calls_per_iteration(lambda: committer.wait(30))
    finally:
        committer.stop()
    assert bench.journal.write_error is None
    assert bench.journal.safe >= bench.journal.promised
    assert calls < MAX_CALLS
    jobs = recovered(disk.crash(Chance(seeded(0), 0.0)), bench.now).jobs
    assert len(jobs) == JOBS
    assert {job.pri for job in jobs.values()} == {7 if has_updates else 0}


@pytest.mark.parametrize("is_memory_short", [False, True], ids=["", "memory is short"])
@pytest.mark.parametrize("sync_interval", [0, SECOND // 20], ids=["-f 0", "-f 50"])
@pytest.mark.parametrize("capacity", [2**62, 30 * 16384], ids=["", "small disk"])
@pytest.mark.parametrize("large_body", [8, LARGE_BODY], ids=["large bodies", ""])
def test_commands_and_power_loss_between_slices_of_a_rewrite_lose_nothing(
    capacity: int, sync_interval: int, is_memory_short: bool, large_body: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices have one or two jobs here. Calls may fail again during the rewrite, and power may be lost at any call."""
    monkeypatch.setattr(rewrite, "REWRITE_SLICE", 10)
    for module in (segment, segment_log, batch):  # the compiled build reads the first one's
        monkeypatch.setattr(module, "LARGE_BODY", large_body)
    rewrites = 0
    for seed in range(5):
        random = seeded(seed)
        disk = Disk()
        disk.capacity, disk.random = capacity, random
        bench = Bench(disk, random, max_size=16384, sync_interval=sync_interval, is_memory_short=is_memory_short)

        def check(call: str, bench: Bench = bench, disk: Disk = disk, random: Random = random) -> None:
            if bench.journal.wants_rewrite and call in ("sync", "remove"):
                bench.check_after_crash(disk.crash(Chance(random, random.choice((0.0, 0.5, 1.0)))))

        for _ in range(3):
            for _ in range(10):
                bench.step()
            disk.before = Fault(random.randrange(1, 4), errno.EIO, is_lasting=False, calls=("write", "sync"))
            while not bench.journal.wants_rewrite and disk.before.has_triggered is False:
                bench.run_commands(2)
                bench.commit()
                bench.sync()
            disk.before = check
            for _ in range(20):
                if bench.commit(2):
                    rewrites += 1
                    break
                bench.run_maintenance()
            disk.before = no_fault
            bench.settle(3)
            assert bench.journal.write_error is None
            bench.check_recorded()
            bench.check_after_crash(disk.crash(Chance(random, 0.0)))
    assert rewrites > 12
