"""What has happened to a job comes back with it, whatever was copied, edited or lost meanwhile."""

from __future__ import annotations

import pytest

from greenstalk_server.core import job_history
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import BURIED, DELAYED, READY, RESERVED, SECOND
from greenstalk_server.core.job_history import Event
from greenstalk_server.core.outcomes import EditOutcome
from greenstalk_server.journal import record
from greenstalk_server.journal.segment import name_of, numbers
from tests.journal import version1
from tests.journal.disk import Chance, Disk, seeded
from tests.journal.test_binlog import Yard
from tests.journal.workload import recovered
from tests.support.world import START

KEPT_ALL = 1.0


def events(broker: Broker, id: int) -> list[Event]:
    return job_history.unpack(broker.jobs[id].events)


def restarted(yard: Yard) -> Yard:
    """The next life of *yard*'s server, after it was killed: what was written is there."""
    return Yard(yard.disk.crash(Chance(seeded(0), KEPT_ALL)), now=yard.now)


def test_events_of_a_job_survive_a_restart() -> None:
    yard = Yard()
    broker, client, number = yard.broker, yard.client, yard.client.number
    id = yard.add(100)
    assert yard.take_any() == id
    assert broker.release(client, id, 5, 0, START + 1)
    assert broker.reserve_job(client, id, START + 2)
    assert broker.bury(client, id, 5, START + 3)
    assert broker.kick_job(id, START + 4)
    assert broker.edit_job(id, START + 5, pri=9) == EditOutcome.DONE
    assert broker.edit_job(id, START + 6, tube=b"mail") == EditOutcome.DONE
    assert broker.bury_job(id, START + 7)
    yard.tend()
    told = [
        Event(START + 1, job_history.RESERVED, number),
        Event(START + 1, job_history.RELEASED, number),
        Event(START + 2, job_history.RESERVED, number),
        Event(START + 3, job_history.BURIED, number),
        Event(START + 4, job_history.KICKED, job_history.NOBODY),
        Event(START + 5, job_history.EDITED, job_history.NOBODY),
        Event(START + 6, job_history.MOVED, job_history.NOBODY),
        Event(START + 7, job_history.BURIED, job_history.NOBODY),
    ]
    assert events(broker, id) == told
    after = recovered(yard.disk, START + 8)
    assert events(after, id) == told
    job = after.jobs[id]
    assert (job.tube.name, job.state, job.pri) == (b"mail", BURIED, 9)
    assert (job.reserves, job.releases, job.buries, job.kicks) == (2, 1, 2, 1)


def test_end_of_a_reservation_without_command_is_recorded() -> None:
    yard = Yard()
    broker, client = yard.broker, yard.client
    timed_out, given_back = yard.add(10), yard.add(10)
    other = broker.connect(lambda: None)
    assert broker.reserve_job(client, timed_out, START)
    assert broker.tick(START + 60 * SECOND) is None
    assert broker.reserve_job(other, given_back, START + 61 * SECOND)
    broker.disconnect(other, START + 62 * SECOND)
    yard.tend()
    after = recovered(yard.disk, START + 100 * SECOND)
    assert events(after, timed_out) == [
        Event(START, job_history.RESERVED, client.number),
        Event(START + 60 * SECOND, job_history.TIMED_OUT, client.number),
    ]
    assert events(after, given_back) == [
        Event(START + 61 * SECOND, job_history.RESERVED, other.number),
        Event(START + 62 * SECOND, job_history.RETURNED, other.number),
    ]
    assert [after.jobs[id].deadline for id in (timed_out, given_back)] == [START + 60 * SECOND, START + 62 * SECOND]
    oldest = after.tubes[b"default"].oldest_ready()
    assert oldest is not None and oldest.id == timed_out


@pytest.mark.parametrize("is_copied", [False, True])
def test_reservation_ended_by_a_crash_is_returned_at_the_start(is_copied: bool) -> None:
    """Also where compaction has copied the reserved job, and the record of its reservation is gone."""
    yard = Yard()
    id = yard.add(10)
    assert yard.take_any() == id
    yard.tend()
    if is_copied:
        job = yard.broker.jobs[id]
        while job.segment == 1:
            yard.broker.delete(None, yard.add(5000), yard.now)
            yard.tend()
        yard.settle()
        assert min(numbers(yard.disk.list())) > 1
    after = recovered(yard.disk, START + 9 * SECOND)
    assert events(after, id) == [
        Event(START + 1, job_history.RESERVED, yard.client.number),
        Event(START + 9 * SECOND, job_history.RETURNED, job_history.NOBODY),
    ]
    assert (after.jobs[id].state, after.jobs[id].deadline) == (READY, START + 9 * SECOND)


def buried(yard: Yard) -> int:
    """A job that was buried, and another that was buried after it."""
    ids = [yard.add(10), yard.add(10)]
    for id in ids:
        assert yard.broker.reserve_job(yard.client, id, yard.now)
        assert yard.broker.bury(yard.client, id, 5, yard.now)
    return ids[0]


def compact_away(yard: Yard, id: int) -> None:
    """Have compaction copy the job *id*, and remove all records of it before that."""
    while yard.broker.jobs[id].segment == 1:
        yard.broker.delete(None, yard.add(5000), yard.now)
        yard.tend()
    yard.settle()
    assert min(numbers(yard.disk.list())) > 1


@pytest.mark.parametrize("is_copied", [False, True])
@pytest.mark.parametrize("is_edited", [False, True])
def test_reserved_buried_job_is_buried_after_a_restart(is_copied: bool, is_edited: bool) -> None:
    """In its old place among the buried; also where compaction or an edit has recorded the held job whole."""
    yard = Yard()
    id = buried(yard)
    assert yard.broker.reserve_job(yard.client, id, yard.now)
    if is_edited:
        assert yard.broker.edit_job(id, yard.now, pri=9, is_forced=True) == EditOutcome.DONE
    yard.tend()
    if is_copied:
        compact_away(yard, id)
    for _ in range(2):
        yard = restarted(yard)
        yard.broker.check()
        assert list(yard.broker.tubes[b"default"].buried) == [id, id + 1]
        assert [event.kind for event in events(yard.broker, id)][-2:] == [job_history.RESERVED, job_history.RETURNED]
        assert yard.broker.jobs[id].pri == (9 if is_edited else 5)
        yard.tend()


@pytest.mark.parametrize("is_copied", [False, True])
def test_reserved_delayed_job_is_delayed_after_a_restart_until_its_deadline(is_copied: bool) -> None:
    yard = Yard()
    id = yard.add(10, delay=1000)
    deadline = yard.broker.jobs[id].deadline
    assert yard.broker.reserve_job(yard.client, id, yard.now)
    yard.tend()
    if is_copied:
        compact_away(yard, id)
    before = recovered(yard.disk, deadline - 1)
    assert (before.jobs[id].state, before.jobs[id].deadline) == (DELAYED, deadline)
    after = recovered(yard.disk, deadline)
    assert (after.jobs[id].state, after.jobs[id].deadline) == (READY, deadline)


@pytest.mark.parametrize("ending", ["released", "timed out", "disconnected", "kicked"])
def test_buried_job_whose_reservation_has_ended_is_ready_after_a_restart(ending: str) -> None:
    yard = Yard()
    id = buried(yard)
    broker, client = yard.broker, yard.client
    assert broker.reserve_job(client, id, yard.now)
    yard.tend()
    if ending == "released":
        assert broker.release(client, id, 5, 0, yard.now)
    elif ending == "timed out":
        broker.tick(yard.now + 60 * SECOND)
    elif ending == "disconnected":
        yard.give_back()
    else:
        assert broker.bury(client, id, 5, yard.now)
        assert broker.kick_job(id, yard.now)
    assert broker.jobs[id].former_state == 0
    assert broker.reserve(yard.client, yard.now) is broker.jobs[id]
    yard.tend()
    assert recovered(yard.disk, yard.now + 100 * SECOND).jobs[id].state == READY


def test_stop_leaves_reserved_jobs_to_the_next_start() -> None:
    yard = Yard()
    id = buried(yard)
    ready = yard.add(10)
    waiting = yard.broker.connect(lambda: None)
    assert yard.broker.reserve_job(yard.client, id, yard.now)
    assert yard.broker.reserve_job(yard.client, ready, yard.now)
    yard.broker.wait(waiting, None, yard.now)
    yard.broker.stop()
    yard.broker.disconnect(yard.client, yard.now)
    assert waiting.outcome is None
    yard.tend()
    after = recovered(yard.disk, yard.now)
    assert (after.jobs[id].state, after.jobs[ready].state) == (BURIED, READY)


def test_job_is_returned_by_only_one_start() -> None:
    yard = Yard()
    id = yard.add(10)
    assert yard.take_any() == id
    yard.tend()
    first = restarted(yard)
    told = events(first.broker, id)
    assert [event.kind for event in told] == [job_history.RESERVED, job_history.RETURNED]
    first.tend()
    again = recovered(first.disk, START + 3600 * SECOND)
    assert events(again, id) == told
    assert again.jobs[id].deadline == told[-1].at == first.now


def test_unwritten_return_is_recorded_by_the_next_start() -> None:
    yard = Yard()
    id = yard.add(10)
    assert yard.take_any() == id
    yard.tend()
    restarted(yard)
    assert events(recovered(yard.disk, START + 5), id)[-1] == Event(START + 5, job_history.RETURNED, job_history.NOBODY)


def test_client_numbers_continue_above_those_in_events() -> None:
    yard = Yard()
    numbers_before = set()
    id = yard.add(10)
    for _ in range(5):
        client = yard.broker.connect(lambda: None)
        numbers_before.add(client.number)
        assert yard.broker.reserve_job(client, id, yard.now)
        yard.broker.disconnect(client, yard.now)
    yard.tend()
    after = recovered(yard.disk, START)
    client = after.connect(lambda: None)
    assert client.number == max(numbers_before) + 1
    assert after.counters.total_connections == 1


def test_client_numbers_wrap_around() -> None:
    yard = Yard()
    id = yard.add(10)
    job = yard.broker.jobs[id]
    job.events = job_history.add(b"", job_history.RESERVED, START, job_history.LAST_CLIENT)
    yard.binlog.lapse(job)
    yard.tend()
    assert recovered(yard.disk, START).connect(lambda: None).number == 1


# Room


def full_of_events(yard: Yard, count: int) -> None:
    """So many small jobs, each with all the events that it may have: these take more than the jobs."""
    for _ in range(count):
        id = yard.add(0)
        for _ in range(job_history.MAX_EVENTS):
            assert yard.broker.bury_job(id, yard.now)
            assert yard.broker.kick_job(id, yard.now)
        yard.tend()


def test_events_count_as_live_bytes_and_compaction_ends() -> None:
    yard = Yard()
    full_of_events(yard, 300)
    yard.settle()
    yard.check_told()
    migrated = yard.binlog.stats().records_migrated
    assert migrated > 300
    yard.settle()
    assert not yard.binlog.compact(10**9)
    assert yard.binlog.stats().records_migrated == migrated
    yard.check_after_crash(yard.disk.crash(Chance(seeded(0), 0.5)))


def test_events_count_as_live_bytes_after_a_restart() -> None:
    yard = Yard()
    full_of_events(yard, 100)
    yard.settle()
    after = restarted(yard)
    after.check_told()
    assert after.live_bytes == sum(record.recorded_size(job) for job in yard.broker.jobs.values())
    after.delete_all()
    assert after.binlog.live_bytes == 0


def test_copies_on_a_full_disk_do_not_grow_by_events() -> None:
    """Else these would take the room that the DELETEs need, and that compaction needs: nothing would go on."""
    disk = Disk()
    disk.capacity = 20 * 16384
    yard = Yard(disk)
    ids = []
    while yard.broker.put(yard.client, yard.broker.allocate_id(), 10, 0, 60 * SECOND, b"", yard.now) > 0:
        ids.append(yard.broker.next_id - 1)
        yard.tend_full()
    assert yard.binlog.is_full
    for id in ids[::8]:
        for _ in range(job_history.MAX_EVENTS // 2):
            assert yard.broker.bury_job(id, yard.now)
            yard.tend_full()
            assert yard.broker.kick_job(id, yard.now)
            yard.tend_full()
    yard.check_after_crash(disk.crash(Chance(seeded(0), 0.5)))
    found = recovered(disk.crash(Chance(seeded(0), KEPT_ALL)), yard.now)
    assert any(len(found.jobs[id].events) < len(yard.broker.jobs[id].events) for id in ids)
    for id in ids[1:]:
        assert yard.broker.delete(None, id, yard.now)
        yard.tend_full()
    yard.settle()
    assert not yard.binlog.is_full
    found = recovered(disk.crash(Chance(seeded(0), KEPT_ALL)), yard.now)
    assert found.jobs[ids[0]].events == yard.broker.jobs[ids[0]].events


# Version 1


LATER = START + 10 * SECOND


def test_journal_of_version_1_is_read() -> None:
    broker = recovered(Disk(version1.files()), LATER)
    broker.check()
    jobs = broker.jobs
    assert {id: (job.tube.name, job.body[:20], job.pri, job.state) for id, job in jobs.items()} == {
        1: (b"default", b"imported", 100, READY),
        2: (b"mail", b"ready", 100, READY),
        3: (b"mail", b"reserved", 1, READY),
        4: (b"mail", b"timed out", 2, READY),
        5: (b"mail", b"buried", 31, BURIED),
        6: (b"mail", b"released", 40, DELAYED),
        7: (b"mail", b"delayed", 5, DELAYED),
        9: (b"mail", b"x" * 20, 7, READY),
        10: (b"default", b"after a restart", 9, READY),
    }
    counts = {id: (job.reserves, job.timeouts, job.releases, job.buries, job.kicks) for id, job in jobs.items()}
    assert {id: count for id, count in counts.items() if any(count)} == {
        1: (1, 2, 3, 4, 5),
        3: (1, 0, 0, 0, 0),
        4: (1, 1, 0, 0, 0),
        5: (2, 0, 0, 2, 1),
        6: (1, 0, 1, 0, 0),
    }
    assert jobs[6].deadline == START + 7201 * SECOND
    assert (jobs[2].deadline, jobs[3].deadline) == (START, LATER)
    assert broker.tubes[b"mail"].paused_until == START + 86401 * SECOND
    assert not any(job.events for job in jobs.values())
    assert broker.next_id == 11


def test_journal_of_an_older_version_continues_in_version_3() -> None:
    """The files of version 1 stay as they are till compaction comes to them, and nothing of either is lost."""
    files = version1.files()
    yard = Yard(Disk(files))
    assert yard.broker.kick_job(5, START + 1)
    assert yard.broker.reserve_job(yard.client, 3, START + 2)
    assert yard.broker.delete(None, 2, START + 3)
    yard.commit()
    assert files.items() - yard.disk.everything().items() <= {("journal.4", files["journal.4"])}
    found = [yard.disk.read(name_of(number)) for number in numbers(yard.disk.list())]
    assert [data[8] for data in found if data.strip(b"\0")] == [1, 1, 1, 3]
    after = recovered(yard.disk, START + 4)
    assert after.jobs.keys() == {1, 3, 4, 5, 6, 7, 9, 10}
    assert {id: [event.kind for event in events(after, id)] for id in after.jobs if events(after, id)} == {
        5: [job_history.KICKED],
        3: [job_history.RESERVED, job_history.RETURNED],
    }
    assert after.jobs[5].state == READY
    assert RESERVED not in {job.state for job in after.jobs.values()}


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_power_loss_during_the_migration_of_version_1_loses_nothing(share: float) -> None:
    yard = Yard(Disk(version1.files()), now=LATER, max_size=4096, random=seeded(4))
    yard.disk.before = lambda call: yard.check_after_crash(yard.disk.crash(Chance(yard.random, share)))
    for _ in range(40):
        yard.work(3)
        yard.tend()
    assert min(numbers(yard.disk.list())) > 4
