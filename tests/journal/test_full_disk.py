"""A full disk on which a segment holds one job: a rewrite needs the last bytes, and they are enough."""

from __future__ import annotations

import errno

import pytest

from greenstalk_server.core.operations import finishing, kicking, reserving
from greenstalk_server.journal.segment import BLOCK
from tests.journal.disk import UNLIMITED, Chance, Disk, Fault, no_fault, seeded
from tests.journal.workload import Bench

SEGMENT = 16384
BODY = SEGMENT - 84
"""Size of a body, whose record and the header of its segment together exceed SEGMENT."""

FULL_TURNS = 5
"""Rounds of the committer's tasks after which nothing is due on a full disk."""

pytestmark = pytest.mark.usefixtures("ignore_warnings")


@pytest.fixture
def bench() -> Bench:
    """A bench whose disk is full of jobs that take a segment each."""
    return full_bench(BODY)


def full_bench(size: int, inodes: int = UNLIMITED) -> Bench:
    """Return a bench whose disk is full of jobs of *size* bytes, and has room for *inodes* files."""
    disk = Disk()
    disk.capacity, disk.block, disk.max_files = 30 * SEGMENT, BLOCK, inodes
    bench = Bench(disk, seeded(0), max_size=SEGMENT)
    while bench.put(size, delay=0):
        assert bench.commit()
        bench.run_maintenance()
    bench.settle(FULL_TURNS)
    assert bench.journal.is_full
    return bench


def bury_and_kick(bench: Bench, id: int) -> None:
    """Reserve, bury and kick the job *id*."""
    client = bench.clients[0]
    assert reserving.reserve_job(bench.broker, client, id, bench.now)
    assert finishing.bury(bench.broker, client, id, 5, bench.now)
    assert kicking.kick_job(bench.broker, id, bench.now)


def test_rewrite_uses_the_space_of_two_segments_ahead_for_a_larger_one(bench: Bench) -> None:
    """The batch has no room for the copy of a job, and returns a segment ahead after the next one was created."""
    disk, journal, jobs = bench.disk, bench.journal, list(bench.broker.jobs)
    while journal.stats().bytes_recorded - journal.stats().bytes_live < SEGMENT:
        bury_and_kick(bench, jobs[0])
        assert bench.commit()
    bench.run_maintenance()
    disk.create("filler", disk.free() - SEGMENT)
    journal.compact(1)
    bench.run_maintenance()
    assert disk.free() == 0
    assert bench.commit()
    bench.settle(FULL_TURNS)
    bench.check_recorded()
    bench.check_after_crash(disk.crash(Chance(bench.random, 0.0)))


@pytest.mark.parametrize("call", ["create", "grow"])
def test_rewrite_continues_after_a_file_had_no_room_though_the_disk_reported_it(bench: Bench, call: str) -> None:
    """Another file took the room meanwhile, and was removed later."""
    jobs = list(bench.broker.jobs)
    fault = Fault(1, errno.ENOSPC, is_lasting=False, calls=(call,))
    while not fault.has_triggered:
        for id in jobs:
            bury_and_kick(bench, id)
        bench.disk.before = lambda name: fault(name) if bench.journal.wants_rewrite else None
        bench.commit()
        bench.run_maintenance()
    assert bench.journal.wants_rewrite
    bench.disk.before = no_fault
    bench.settle(FULL_TURNS)
    assert bench.journal.write_error is None
    bench.check_recorded()
    bench.check_after_crash(bench.disk.crash(Chance(bench.random, 0.0)))


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_server_starts_after_a_crash_on_a_full_disk(share: float) -> None:
    """A rewrite has used the last bytes for the copies of a segment, and the segment is not removed yet."""
    bench = full_bench(2000)
    disk, jobs = bench.disk, list(bench.broker.jobs)
    starts, least = 0, disk.free()

    def start_again(call: str) -> None:
        nonlocal starts, least
        if call != "remove":
            return
        starts, least = starts + 1, min(least, disk.free())
        crashed = disk.crash(Chance(bench.random, share))
        crashed.capacity, crashed.block = disk.capacity, disk.block
        after = Bench(crashed, bench.random, bench.now, max_size=SEGMENT)
        bench.history.check(after.broker, bench.safe, bench.now)
        bury_and_kick(after, jobs[0])
        assert after.commit()

    disk.before = start_again
    for id in jobs * 2:
        bury_and_kick(bench, id)
        assert bench.commit()
        bench.run_maintenance()
    assert starts > 10
    assert least < SEGMENT


def test_disk_with_few_inodes_has_larger_segments() -> None:
    """The inodes suffice until the disk has no bytes left, although compaction leaves segments that are not full."""
    bench = full_bench(2000, inodes=30)
    jobs = list(bench.broker.jobs)
    for id in jobs * 3:
        bury_and_kick(bench, id)
        assert bench.commit()
        bench.run_maintenance()
    assert len(bench.disk.list()) < 30
    bench.check_recorded()
    bench.check_after_crash(bench.disk.crash(Chance(bench.random, 0.0)))
