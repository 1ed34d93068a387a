"""Edits and moves of jobs, and forced operations on reserved jobs, by an operator."""

from __future__ import annotations

from typing import Any

import pytest

from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.body_cache import resident_body
from greenstalk_server.core.jobs.job import SECOND, Job
from tests.support.world import Actor, DroppedTubes, FullJournal, World, slots

STATES = ("ready", "delayed", "buried", "reserved")

in_each_state = pytest.mark.parametrize("state", STATES)


def put_in(world: World, client: Actor, state: str) -> int:
    """Put a job with a TTR of an hour into the tube of *client*, and bring it into *state*; a delay is five seconds."""
    id = client.put(7, delay=5 if state == "delayed" else 0, ttr=3600, body=b"body")
    if state == "reserved":
        assert client.reserve_job(id)
    elif state == "buried":
        assert world.bury_job(id)
    assert world.state(id) == state
    return id


def fields_of(job: Job) -> dict[str, object]:
    """Return the fields of *job*: those in `cold` included, and packed ones by the names of their properties."""
    names = [name for name in slots(job) + slots(job.cold) if not name.startswith("_")]
    plain = {name: getattr(job, name) for name in names if name not in ("tube", "holder", "cold", "size")}
    assert job.size == len(resident_body(job))
    return plain | {"tube": job.tube.name, "holder": job.holder}


# Each field in each state


@in_each_state
@pytest.mark.parametrize(
    ("field", "value", "stored"),
    [
        ("pri", 2**32 - 1, 2**32 - 1),
        ("pri", 0, 0),
        ("ttr", 9, 9 * SECOND),
        ("body", b"", b""),
        ("body", b"another body", b"another body"),
        ("tube", b"other", b"other"),
    ],
)
def test_edit_changes_one_field_only(world: World, state: str, field: str, value: Any, stored: int | bytes) -> None:
    client = world.client()
    id = put_in(world, client, state)
    before = fields_of(world.broker.jobs[id])
    world.advance(1)
    assert world.edit(id, is_forced=True, **{field: value}) == "DONE"
    after = fields_of(world.broker.jobs[id])
    kind = job_history.MOVED if field == "tube" else job_history.EDITED
    expected = before | {
        field: stored,
        "events": job_history.add(events_in(before), kind, world.now, job_history.NOBODY),
    }
    if state == "ready":
        expected["deadline"] = world.now
    if state == "buried" and field == "tube":
        expected["deadline"] = 2
    assert after == expected


def events_in(fields: dict[str, object]) -> bytes:
    events = fields["events"]
    assert isinstance(events, bytes)
    return events


@in_each_state
def test_edit_without_fields_is_recorded_and_changes_nothing(world: World, state: str) -> None:
    client = world.client()
    id = put_in(world, client, state)
    before = fields_of(world.broker.jobs[id])
    assert world.edit(id, is_forced=True) == "DONE"
    after = fields_of(world.broker.jobs[id])
    assert job_history.last(events_in(after)).kind == job_history.EDITED
    assert after | {"events": b""} == before | {"events": b""}


# Refusals


def test_edit_of_a_reserved_job_needs_force(world: World) -> None:
    client = world.client()
    id = put_in(world, client, "reserved")
    job, before = world.broker.jobs[id], fields_of(world.broker.jobs[id])
    assert world.edit(id, tube=b"other", pri=1, body=b"new") == "RESERVED"
    assert world.broker.jobs[id] is job
    assert fields_of(job) == before
    assert world.tubes() == [b"default"]


@in_each_state
def test_edit_without_room_in_the_journal_changes_nothing(world: World, state: str) -> None:
    client = world.client()
    id = put_in(world, client, state)
    for _ in range(2):
        put_in(world, client, state)
    job, before = world.broker.jobs[id], fields_of(world.broker.jobs[id])
    order = (world.ready(), world.delayed(), world.buried(), client.reserved)
    world.broker.journal = FullJournal()
    assert world.edit(id, tube=b"other", pri=1, delay=9, ttr=1, body=b"new", is_forced=True) == "NO_ROOM"
    assert world.edit(id, body=b"new", is_forced=True) == "NO_ROOM"
    assert world.broker.jobs[id] is job
    assert fields_of(job) == before
    assert (world.ready(), world.delayed(), world.buried(), client.reserved) == order
    assert world.tubes() == [b"default"]


# Ready jobs


@pytest.mark.parametrize("edit", [{"body": b"new"}, {"pri": 5}, {"ttr": 9}])
def test_job_that_returns_to_the_rank_of_its_dead_entry_is_counted_once(world: World, edit: dict[str, int]) -> None:
    """A job that is removed from the middle leaves a dead entry, and returns with an equal entry."""
    client = world.client()
    ids = [client.put(5) for _ in range(5)]
    for id in (ids[2], ids[4], ids[2]):
        assert world.edit(id, **edit) == "DONE"  # type: ignore[arg-type]
    assert world.ready() == ids
    assert world.stats_tube().current_jobs_ready == 5
    assert client.take(5) == ids
    assert client.reserve(0) == "TIMED_OUT"


def test_moved_job_goes_to_a_client_that_waits_on_the_new_tube(world: World) -> None:
    producer, worker, other = world.client(), world.client(watch=[b"other"]), world.client(watch=[b"other"])
    id = producer.put(body=b"old")
    assert (worker.reserve(), other.reserve()) == ("WAITING", "WAITING")
    assert world.edit(id, tube=b"other", body=b"new") == "DONE"
    assert (worker.ended, other.ended) == ([id], [])
    assert worker.client.outcome is world.broker.jobs[id]
    assert world.broker.jobs[id].body == b"new"
    assert world.stats_tube().current_jobs_ready == 0


# Delays


# Buried jobs


# Tubes


@pytest.mark.parametrize("state", ["ready", "delayed", "buried", "reserved"])
def test_tube_is_dropped_when_its_last_job_moves_away(world: World, state: str) -> None:
    dropped = DroppedTubes(world.broker)
    client = world.client(use=b"old")
    id = put_in(world, client, state)
    client.use(b"default")
    assert world.edit(id, tube=b"new", is_forced=True) == "DONE"
    assert world.tubes() == [b"default", b"new"]
    assert dropped.names == [b"old"]
    assert world.edit(id, tube=b"default", is_forced=True) == "DONE"
    assert world.tubes() == [b"default"]
    assert world.state(id) == state


# Forced operations on reserved jobs


def test_soonest_deadline_is_right_after_edits_and_forced_operations(world: World) -> None:
    """A client with more than about 32 jobs keeps their deadlines in a heap."""
    client = world.client()
    with world.in_bulk():
        ids = client.take(len([client.put(ttr=100 + number) for number in range(50)]))
        assert world.edit(ids[0], ttr=500, is_forced=True) == "DONE"
        assert client.touch(ids[0])
        assert world.delete_job(ids[1], is_forced=True)
        assert world.bury_job(ids[2], is_forced=True)
        assert world.release_job(ids[3])
    world.advance(104)
    assert {id for id in ids if world.state(id) == "ready"} == {ids[3], ids[4]}


def test_holder_keeps_an_edited_job_and_its_deadline(world: World) -> None:
    client = world.client()
    first, second, third = (put_in(world, client, "reserved") for _ in range(3))
    assert world.edit(second, ttr=2, body=b"new", tube=b"other", is_forced=True) == "DONE"
    assert client.reserved == [first, second, third]
    assert world.stats_job(second).time_left == 3599
    assert (world.stats_tube().current_jobs_reserved, world.stats_tube(b"other").current_jobs_reserved) == (2, 1)
    assert client.touch(second)
    world.advance(2)
    assert (world.state(second), world.ready(b"other")) == ("ready", [second])
    assert world.broker.tubes[b"other"].total_timeouts == 1
