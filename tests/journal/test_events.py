"""The events of a job survive restarts, compaction, edits and full disks."""

from __future__ import annotations

import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, READY, SECOND
from greenstalk_server.core.jobs.job_history import Event
from greenstalk_server.core.operations import (
    connecting,
    draining,
    finishing,
    kicking,
    putting,
    reserving,
)
from greenstalk_server.journal import record
from greenstalk_server.journal.segment import numbers
from tests.journal.disk import Chance, Disk, seeded
from tests.journal.test_binlog import PacedBench
from tests.journal.workload import recovered
from tests.support.world import START

ALL_SURVIVES = 1.0
"""Share of unsynced changes that survive a kill of the process, which loses none."""


def events(broker: Broker, id: int) -> list[Event]:
    return job_history.unpack(broker.jobs[id].events)


def restarted(bench: PacedBench) -> PacedBench:
    """Return a server on the disk of *bench* after a kill, which loses no written byte."""
    return PacedBench(bench.disk.crash(Chance(seeded(0), ALL_SURVIVES)), now=bench.now)


def compact_away(bench: PacedBench, id: int) -> None:
    """Make compaction copy the job *id*, and remove the segment with its first JOB record."""
    while bench.broker.jobs[id].segment == 1:
        finishing.delete(bench.broker, None, bench.put_job(5000), bench.now)
        bench.commit_and_compact()
    bench.settle()
    assert min(numbers(bench.disk.list())) > 1


@pytest.mark.parametrize("is_copied", [False, True])
def test_reservation_ended_by_a_crash_is_returned_at_the_start(is_copied: bool) -> None:
    """Compaction may have copied the reserved job and removed the segment with its RESERVE record."""
    bench = PacedBench()
    id = bench.put_job(10)
    assert bench.reserve_any() == id
    bench.commit_and_compact()
    if is_copied:
        compact_away(bench, id)
    after = recovered(bench.disk, START + 9 * SECOND)
    assert events(after, id) == [
        Event(START + 1, job_history.RESERVED, bench.client.number),
        Event(START + 9 * SECOND, job_history.RETURNED, job_history.NOBODY),
    ]
    assert (after.jobs[id].state, after.jobs[id].deadline) == (READY, START + 9 * SECOND)


def bury_two_jobs(bench: PacedBench) -> int:
    """Put and bury two jobs; return the id of the first. The other has the next id."""
    ids = [bench.put_job(10), bench.put_job(10)]
    for id in ids:
        assert reserving.reserve_job(bench.broker, bench.client, id, bench.now)
        assert finishing.bury(bench.broker, bench.client, id, 5, bench.now)
    return ids[0]


def test_stop_leaves_reserved_jobs_to_the_next_start() -> None:
    bench = PacedBench()
    id = bury_two_jobs(bench)
    ready = bench.put_job(10)
    waiting = connecting.connect(bench.broker, lambda: None)
    assert reserving.reserve_job(bench.broker, bench.client, id, bench.now)
    assert reserving.reserve_job(bench.broker, bench.client, ready, bench.now)
    reserving.wait(bench.broker, waiting, None, bench.now)
    draining.stop(bench.broker)
    connecting.disconnect(bench.broker, bench.client, bench.now)
    assert waiting.outcome is None
    bench.commit_and_compact()
    after = recovered(bench.disk, bench.now)
    assert (after.jobs[id].state, after.jobs[ready].state) == (BURIED, READY)


def test_job_is_returned_by_only_one_start() -> None:
    bench = PacedBench()
    id = bench.put_job(10)
    assert bench.reserve_any() == id
    bench.commit_and_compact()
    first = restarted(bench)
    found = events(first.broker, id)
    assert [event.kind for event in found] == [job_history.RESERVED, job_history.RETURNED]
    first.commit_and_compact()
    again = recovered(first.disk, START + 3600 * SECOND)
    assert events(again, id) == found
    assert again.jobs[id].deadline == found[-1].at == first.now


def test_unwritten_return_is_recorded_by_the_next_start() -> None:
    bench = PacedBench()
    id = bench.put_job(10)
    assert bench.reserve_any() == id
    bench.commit_and_compact()
    restarted(bench)
    assert events(recovered(bench.disk, START + 5), id)[-1] == Event(
        START + 5, job_history.RETURNED, job_history.NOBODY
    )


def test_client_numbers_continue_above_those_in_events() -> None:
    bench = PacedBench()
    numbers_before = set()
    id = bench.put_job(10)
    for _ in range(5):
        client = connecting.connect(bench.broker, lambda: None)
        numbers_before.add(client.number)
        assert reserving.reserve_job(bench.broker, client, id, bench.now)
        connecting.disconnect(bench.broker, client, bench.now)
    bench.commit_and_compact()
    after = recovered(bench.disk, START)
    client = connecting.connect(after, lambda: None)
    assert client.number == max(numbers_before) + 1
    assert after.counters.total_connections == 1


def test_client_numbers_wrap_around() -> None:
    bench = PacedBench()
    id = bench.put_job(10)
    job = bench.broker.jobs[id]
    job.events = job_history.add(b"", job_history.RESERVED, START, job_history.LAST_CLIENT)
    bench.journal.expire_reservation(job)
    bench.commit_and_compact()
    assert connecting.connect(recovered(bench.disk, START), lambda: None).number == 1


# Space


def put_jobs_with_all_events(bench: PacedBench, count: int) -> None:
    """Put *count* empty jobs with MAX_EVENTS events each, which take more space than the jobs."""
    for _ in range(count):
        id = bench.put_job(0)
        for _ in range(job_history.MAX_EVENTS):
            assert finishing.bury_job(bench.broker, id, bench.now)
            assert kicking.kick_job(bench.broker, id, bench.now)
        bench.commit_and_compact()


def test_events_count_as_live_bytes_and_compaction_ends() -> None:
    bench = PacedBench()
    put_jobs_with_all_events(bench, 300)
    bench.settle()
    bench.check_recorded()
    migrated = bench.journal.stats().records_migrated
    assert migrated > 300
    bench.settle()
    assert not bench.journal.compact(10**9)
    assert bench.journal.stats().records_migrated == migrated
    bench.check_after_crash(bench.disk.crash(Chance(seeded(0), 0.5)))


def test_events_count_as_live_bytes_after_a_restart() -> None:
    bench = PacedBench()
    put_jobs_with_all_events(bench, 100)
    bench.settle()
    after = restarted(bench)
    after.check_recorded()
    assert after.live_bytes == sum(record.recorded_size(job) for job in bench.broker.jobs.values())
    after.delete_all()
    assert after.journal.live_bytes == 0


def test_copies_on_a_full_disk_do_not_grow_by_events() -> None:
    """Longer copies would take the space that is reserved for DELETE records and for compaction."""
    disk = Disk()
    disk.capacity = 20 * 16384
    bench = PacedBench(disk)
    ids = []
    while putting.put(bench.broker, bench.client, bench.broker.allocate_id(), 10, 0, 60 * SECOND, b"", bench.now) > 0:
        ids.append(bench.broker.next_id - 1)
        bench.commit_on_full_disk()
    assert bench.journal.is_full
    for id in ids[::8]:
        for _ in range(job_history.MAX_EVENTS // 2):
            assert finishing.bury_job(bench.broker, id, bench.now)
            bench.commit_on_full_disk()
            assert kicking.kick_job(bench.broker, id, bench.now)
            bench.commit_on_full_disk()
    bench.check_after_crash(disk.crash(Chance(seeded(0), 0.5)))
    found = recovered(disk.crash(Chance(seeded(0), ALL_SURVIVES)), bench.now)
    assert any(len(found.jobs[id].events) < len(bench.broker.jobs[id].events) for id in ids)
    for id in ids[1:]:
        assert finishing.delete(bench.broker, None, id, bench.now)
        bench.commit_on_full_disk()
    bench.settle()
    assert not bench.journal.is_full
    found = recovered(disk.crash(Chance(seeded(0), ALL_SURVIVES)), bench.now)
    assert found.jobs[ids[0]].events == bench.broker.jobs[ids[0]].events
