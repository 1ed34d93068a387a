"""Eviction of bodies and reading them back, while every body that can be evicted is evicted."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from random import Random

import pytest

from greenstalk_server.core.jobs.body_cache import SMALL, Bodies, resident_body
from greenstalk_server.core.jobs.job import READY, SECOND, Job
from greenstalk_server.core.operations import connecting, editing, finishing, kicking, putting, reserving
from greenstalk_server.journal import rewrite
from greenstalk_server.journal.compaction import READ_BATCH
from greenstalk_server.journal.segment import name_of
from greenstalk_server.net import body_loader
from tests.journal.disk import Chance, Disk, seeded
from tests.journal.workload import SMALL_SEGMENT, Bench, recovered
from tests.support import invariants
from tests.support.world import START, make_broker


@pytest.fixture(autouse=True)
def ignore_warnings(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Suppress the log: the starts of these tests would log thousands of torn tails."""
    with caplog.at_level(logging.CRITICAL):
        yield


def memory_limited_bench(disk: Disk, random: Random, max_size: int = SMALL_SEGMENT) -> Bench:
    """Return a bench that evicts every body that can be evicted."""
    return Bench(disk, random, max_size=max_size, sync_interval=0, is_memory_short=True)


def evicted_jobs(bench: Bench) -> list[Job]:
    """Return the jobs whose bodies are on disk only."""
    return [job for job in bench.broker.jobs.values() if job.body is None]


def filled_bench(jobs: int, size: int = 900, max_size: int = SMALL_SEGMENT) -> Bench:
    """Return a bench with *jobs* jobs of *size* bytes; the bodies in finished segments are on disk only."""
    bench = memory_limited_bench(Disk(), seeded(1), max_size=max_size)
    client = bench.clients[0]
    for _ in range(jobs):
        id = bench.broker.allocate_id()
        assert putting.put(bench.broker, client, id, 0, 0, SECOND, b"%d:" % id + bytes(size), bench.now) > 0
        bench.commit()
        bench.run_maintenance()
    bench.journal.evict(10 * jobs)
    return bench


def read_back(bench: Bench, jobs: list[Job], *, are_ahead: bool = False) -> None:
    """Read back the bodies of *jobs*; with *are_ahead* no client waits for them yet."""
    read = bench.journal.read(jobs)
    read.run()
    bench.journal.complete_read(read, [job.id for job in jobs] if are_ahead else ())


# Durability


def test_start_leaves_bodies_on_disk_that_exceed_memory() -> None:
    """The other bodies are in memory, and each body on disk can be read back."""
    bench = filled_bench(60)
    bodies = {id: b"%d:" % id + bytes(900) for id in bench.broker.jobs}
    after = memory_limited_bench(bench.disk, bench.random)
    invariants.check(after.broker)
    assert not evicted_jobs(after)  # there is room for all
    found = recovered(bench.disk, START, bodies=Bodies(30_000, can_evict=True))
    invariants.check(found)
    evicted = [job for job in found.jobs.values() if job.body is None]
    assert 20 < len(evicted) < 60
    assert found.bodies is not None and found.bodies.taken <= found.bodies.limit + 60 * 300
    read = found.journal.read(found.jobs.values())  # type: ignore[attr-defined]
    read.run()
    assert read.errors == {} and read.bodies == {job.id: bodies[job.id] for job in evicted}


# Eviction and reading back


def test_only_as_many_bodies_as_needed_are_evicted_newest_first() -> None:
    bench = filled_bench(0)
    assert bench.broker.bodies is not None
    bench.broker.bodies.margin = 0
    client = bench.clients[0]
    for _ in range(100):
        id = bench.broker.allocate_id()
        putting.put(bench.broker, client, id, 0, 0, SECOND, bytes(900), bench.now)
        bench.commit()
        bench.run_maintenance()
    bench.broker.bodies.limit = bench.broker.bodies.taken - 20_000
    bench.journal.evict(1000)
    assert bench.broker.bodies.taken <= bench.broker.bodies.limit < bench.broker.bodies.taken + 2000
    evicted = [job.id for job in evicted_jobs(bench)]
    in_memory = [job.id for job in bench.broker.jobs.values() if job.body is not None]
    assert len(evicted) > 15 and min(evicted) > max(id for id in in_memory if id < min(evicted))
    assert all(id > max(evicted) or id < min(evicted) for id in in_memory)


def test_small_body_is_not_evicted() -> None:
    bench = filled_bench(300, size=SMALL // 2)
    assert evicted_jobs(bench) == []


def test_body_read_ahead_is_evicted_only_after_its_reservation() -> None:
    bench = filled_bench(60)
    jobs = evicted_jobs(bench)[:5]
    read_back(bench, jobs, are_ahead=True)
    bench.journal.evict(1000)
    assert all(resident_body(job) == b"%d:" % job.id + bytes(900) for job in jobs)
    assert bench.broker.bodies is not None and bench.broker.bodies.ahead_bytes == sum(job.size for job in jobs)
    for job in jobs:
        reserving.reserve_job(bench.broker, bench.clients[0], job.id, bench.now)
    bench.journal.evict(1000)
    assert all(job.body is None for job in jobs)
    assert bench.broker.bodies.ahead_bytes == 0 and not bench.broker.bodies.back
    invariants.check(bench.broker)


def test_body_read_back_is_evicted_first() -> None:
    bench = filled_bench(60)
    (job,) = evicted_jobs(bench)[:1]
    read_back(bench, [job])
    assert job.body is not None
    bench.journal.evict(1)
    assert job.body is None


def test_newest_body_of_a_job_with_two_records_in_a_segment_is_read_back() -> None:
    bench = filled_bench(1)
    assert editing.edit_job(bench.broker, 1, bench.now, body=b"1+" + bytes(900)) == 0
    for _ in range(40):
        putting.put(bench.broker, bench.clients[0], bench.broker.allocate_id(), 0, 0, SECOND, bytes(900), bench.now)
        bench.commit()
    bench.journal.evict(1000)
    job = bench.broker.jobs[1]
    assert job.body is None
    read = bench.journal.read([job])
    read.run()
    assert read.bodies == {1: b"1+" + bytes(900)}


def test_unused_bodies_read_ahead_are_evicted_for_other_tubes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client reserves from the first tube any longer, so jobs of the second one are read ahead in the end."""
    monkeypatch.setattr(body_loader, "MAX_READ_AHEAD", 5000)
    monkeypatch.setattr(body_loader, "READ_AHEAD_BYTES", 64 * 900)
    bench = filled_bench(40)
    bodies, tube, client = bench.broker.bodies, bench.broker.jobs[1].tube, bench.clients[0]
    assert bodies is not None
    reader = body_loader.Loader(bench.broker, bench.journal, bodies)
    jobs = evicted_jobs(bench)
    read_back(bench, jobs[:8], are_ahead=True)
    before = bodies.ahead_bytes
    assert before > 5000 and reader._next_of(tube) == []
    assert before - 2000 < bodies.ahead_bytes < before
    while bodies.ahead_bytes > 5000:
        assert reader._next_of(tube) == []
    bench.journal.evict(1000)
    assert [job.body is None for job in jobs[:8]] == [True] * 3 + [False] * 5
    assert reader._next_of(tube)[:3] == jobs[:3]
    for job in jobs:
        finishing.delete(bench.broker, client, job.id, bench.now)
    assert bodies.ahead_bytes == 0 and not bodies.ahead and not bodies.back and not bodies.marks
    invariants.check(bench.broker)


def test_read_ahead_is_small_under_a_low_limit() -> None:
    """Bodies that were read ahead stay in memory, so too many of them would cause refused puts."""
    bench = filled_bench(60)
    bodies = bench.broker.bodies
    assert bodies is not None
    bodies.limit = 40_000
    reader, tube = body_loader.Loader(bench.broker, bench.journal, bodies), bench.broker.jobs[1].tube
    while found := reader._next_of(tube):
        read_back(bench, found, are_ahead=True)
    assert 40_000 / 16 < bodies.ahead_bytes < 40_000 / 4


def test_replaced_body_is_no_longer_lost() -> None:
    """Otherwise compaction would wait forever for the body to be read back."""
    bench = filled_bench(60)
    job = evicted_jobs(bench)[0]
    data = bench.disk.cached(name_of(job.segment))
    data[data.index(b"%d:" % job.id + bytes(900))] ^= 1
    read_back(bench, [job])
    assert job.id in bench.journal._eviction.lost
    assert editing.edit_job(bench.broker, job.id, bench.now, body=b"new") == 0
    assert not bench.journal._eviction.lost
    invariants.check(bench.broker)


@pytest.mark.parametrize("part", ["header", "fields", "body"])
def test_body_of_a_damaged_record_is_not_read(part: str) -> None:
    bench = filled_bench(60)
    job, *others = evicted_jobs(bench)
    data = bench.disk.cached(name_of(job.segment))
    at = data.index(b"%d:" % job.id + bytes(900))
    data[at + {"header": -90, "fields": -20, "body": 500}[part]] ^= 1
    read = bench.journal.read([job, *others])
    read.run()
    assert read.errors.keys() == {job.id} and read.bodies.keys() == {other.id for other in others}
    bench.journal.complete_read(read)
    assert job.body is None
    invariants.check(bench.broker)


def test_unreadable_file_does_not_affect_bodies_of_others() -> None:
    bench = filled_bench(60)
    jobs = evicted_jobs(bench)
    read = bench.journal.read(jobs)
    number = jobs[0].segment

    def refuse(name: str, offset: int, size: int) -> bytes:
        if name == name_of(number):
            raise OSError(errno.EIO, "Input/output error")
        return Disk.read_at(bench.disk, name, offset, size)

    bench.disk.read_at = refuse  # type: ignore[method-assign]
    read.run()
    assert read.errors.keys() == {job.id for job in jobs if job.segment == number}
    assert read.bodies.keys() == {job.id for job in jobs if job.segment != number} != set()


def test_body_whose_copy_is_in_doubt_is_not_evicted() -> None:
    """The segment of the copy is full, but its content is unknown after the failure."""
    bench = filled_bench(60)
    job = evicted_jobs(bench)[0]
    bench.journal._log.begin_segment(0)
    assert bench.put(100) and bench.commit()  # clients depend on a record of that segment, so it is not dropped
    read_back(bench, [job])
    assert bench.broker.bodies is not None and job in bench.broker.bodies.back
    bench.journal._compaction._copy_next(bench.journal._log.segments[job.segment])
    bench.journal.note_failure(OSError(errno.EIO, "Input/output error"))
    bench.journal.evict(1000)
    assert resident_body(job) == b"%d:" % job.id + bytes(900)
    assert bench.commit()
    invariants.check(bench.broker)
    bench.check_after_crash(bench.disk.crash(Chance(bench.random, 0.5)))


def test_rewrite_reads_back_a_limited_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All jobs were kicked, and these kicks are in doubt. Jobs beyond the limit get only another UPDATE record."""
    bench = filled_bench(0, max_size=2**20)
    for _ in range(60):
        assert (
            putting.put(
                bench.broker, bench.clients[0], bench.broker.allocate_id(), 0, 9 * SECOND, SECOND, bytes(900), 1
            )
            > 0
        )
        bench.commit()
    bench.journal._log.begin_segment(0)
    bench.commit()
    bench.journal.evict(1000)
    assert len(evicted_jobs(bench)) == 60
    for id in range(1, 61):
        assert kicking.kick_job(bench.broker, id, bench.now)
    bench.commit()
    monkeypatch.setattr(rewrite, "REWRITE_BODIES", 9000)
    bench.journal.note_failure(OSError(errno.EIO, "Input/output error"))
    assert bench.commit()
    assert len(evicted_jobs(bench)) == 50
    invariants.check(bench.broker)
    found = recovered(bench.disk.crash(Chance(bench.random, 0.0)), START)
    assert [(job.state, job.kicks, job.size) for job in found.jobs.values()] == [(READY, 1, 900)] * 60


def test_body_without_a_record_in_its_segment_is_lost() -> None:
    bench = filled_bench(60)
    job, other = evicted_jobs(bench)[:2]
    del bench.journal._log.segments[job.segment].ids[:1]
    assert job.segment == other.segment
    read = bench.journal.read([job])
    read.run()
    assert read.errors == {job.id: f"{name_of(job.segment)} has no record of it"}


# Compaction


class CountingJobs(dict[int, Job]):
    """A table of jobs that counts its lookups."""

    lookups = 0

    def get(self, id: int, default: Job | None = None) -> Job | None:  # type: ignore[override]
        self.lookups += 1
        return super().get(id, default)


def test_compaction_examines_each_deleted_job_once() -> None:
    bench = filled_bench(0)
    bench.journal._log.begin_segment(2**21)
    for _ in range(3000):
        assert putting.put(bench.broker, bench.clients[0], bench.broker.allocate_id(), 0, 0, SECOND, bytes(100), 1) > 0
    bench.commit()
    bench.journal._log.begin_segment(0)
    bench.commit()
    bench.journal.evict(10_000)
    for id in range(1, 3000):
        finishing.delete(bench.broker, None, id, bench.now)
    bench.commit()
    bench.run_maintenance()
    jobs = bench.journal._log.jobs = CountingJobs(bench.broker.jobs)
    assert not bench.journal.compact(10**6)
    assert bench.journal.wants_bodies
    assert 3000 <= jobs.lookups < 3 * 3000


def test_compaction_reads_back_no_more_than_one_batch() -> None:
    bench = filled_bench(0, max_size=4 * READ_BATCH)
    for _ in range(64):
        putting.put(bench.broker, bench.clients[0], bench.broker.allocate_id(), 0, 0, SECOND, bytes(READ_BATCH // 4), 1)
        bench.commit()
        bench.run_maintenance()
    bench.journal.evict(1000)
    for id in range(1, 61):
        if id % 3:
            finishing.delete(bench.broker, None, id, bench.now)
    bench.commit()
    copied = bench.journal.stats().records_migrated
    assert not bench.journal.compact(64 * READ_BATCH) and bench.journal.wants_bodies
    read = bench.journal.read_for_compaction()
    assert read is not None and 1 <= len(read.jobs) <= 4
    read.run()
    bench.journal.complete_read(read)
    bench.journal.compact(READ_BATCH)
    assert bench.journal.stats().records_migrated == copied + len(read.jobs)
    bench.journal.evict(1000)
    invariants.check(bench.broker)


# The memory limit


def test_puts_are_refused_once_no_body_can_be_evicted() -> None:
    bodies = Bodies(100_000, can_evict=True)
    bench = Bench(Disk(), seeded(1), bodies=bodies)
    bodies.margin = 0
    accepted = 0
    while (
        accepted < 2000
        and putting.put(bench.broker, bench.clients[0], bench.broker.allocate_id(), 0, 0, SECOND, bytes(900), 1) > 0
    ):
        accepted += 1
        bench.commit()
        bench.run_maintenance()
        bench.journal.evict(100)
    assert 200 < accepted < 400 and bodies.is_exhausted and len(evicted_jobs(bench)) > accepted / 2
    bench.delete_all()
    assert bench.put(900)
    invariants.check(bench.broker)


def test_puts_without_a_journal_are_refused_at_the_limit() -> None:
    broker = make_broker()
    broker.bodies = Bodies(10_000, can_evict=False)
    client = connecting.connect(broker, lambda: None)
    sizes = [putting.put(broker, client, broker.allocate_id(), 0, 0, SECOND, bytes(1000), 1) > 0 for _ in range(10)]
    assert sizes == [True] * 7 + [False] * 3
    assert (
        finishing.delete(broker, client, 1, 2)
        and putting.put(broker, client, broker.allocate_id(), 0, 0, SECOND, bytes(1000), 3) > 0
    )
    invariants.check(broker)
