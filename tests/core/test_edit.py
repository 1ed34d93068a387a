"""Edits and moves of jobs, and forced operations on reserved jobs, by an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.body_cache import held_body
from greenstalk_server.core.jobs.job import BURIED, DELAYED, SECOND, Job
from greenstalk_server.core.transitions import SLICE
from tests.support.world import Actor, DroppedTubes, FullJournal, World, slots

STATES = ("ready", "delayed", "buried", "reserved")

in_each_state = pytest.mark.parametrize("state", STATES)


def put_in(world: World, client: Actor, state: str, pri: int = 7) -> int:
    """Put a job with a TTR of an hour into the tube of *client*, and bring it into *state*; a delay is five seconds."""
    id = client.put(pri, delay=5 if state == "delayed" else 0, ttr=3600, body=b"body")
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
    assert job.size == len(held_body(job))
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
def test_edit_changes_all_fields_together(world: World, state: str) -> None:
    client = world.client()
    id = put_in(world, client, state)
    world.advance(1)
    done = world.edit(id, tube=b"other", pri=1, delay=30, ttr=2, body=b"new", is_forced=True)
    assert done == "DONE"
    job, stats = world.broker.jobs[id], world.stats_job(id)
    assert (job.tube.name, job.pri, job.ttr, job.body) == (b"other", 1, 2 * SECOND, b"new")
    assert (stats.age, job.id) == (1, id)
    if state in ("ready", "delayed"):
        assert (stats.state, stats.delay, stats.time_left) == ("delayed", 30, 29)
    else:
        assert (stats.state, stats.delay) == (state, 0)
    assert world.stats_tube().current_jobs_ready == 0


@in_each_state
def test_edit_keeps_the_counters_of_a_job(world: World, state: str) -> None:
    client = world.client()
    id = put_in(world, client, state)
    job = world.broker.jobs[id]
    job.reserves, job.timeouts, job.releases, job.buries, job.kicks = 11, 12, 13, 14, 15
    assert world.edit(id, tube=b"other", pri=1, is_forced=True) == "DONE"
    stats = world.stats_job(id)
    counts = (stats.reserves, stats.timeouts, stats.releases, stats.buries, stats.kicks)
    assert counts == (11, 12, 13, 14, 15)


@in_each_state
def test_edit_without_fields_is_recorded_and_changes_nothing(world: World, state: str) -> None:
    client = world.client()
    id = put_in(world, client, state)
    before = fields_of(world.broker.jobs[id])
    assert world.edit(id, is_forced=True) == "DONE"
    after = fields_of(world.broker.jobs[id])
    assert job_history.last(events_in(after)).kind == job_history.EDITED
    assert after | {"events": b""} == before | {"events": b""}


def test_edit_to_the_same_tube_is_not_a_move(world: World) -> None:
    id = put_in(world, world.client(), "buried")
    assert world.edit(id, tube=b"default") == "DONE"
    assert [event.kind for event in job_history.unpack(world.broker.jobs[id].events)] == [
        job_history.BURIED,
        job_history.EDITED,
    ]


# Refusals


def test_edit_of_an_unknown_job_is_not_found(world: World) -> None:
    assert world.edit(1, tube=b"other", pri=2) == "NOT_FOUND"
    assert world.tubes() == [b"default"]


def test_edit_of_a_reserved_job_needs_force(world: World) -> None:
    client = world.client()
    id = put_in(world, client, "reserved")
    job, before = world.broker.jobs[id], fields_of(world.broker.jobs[id])
    assert world.edit(id, tube=b"other", pri=1, body=b"new") == "HELD"
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


def test_new_priority_moves_the_job_in_the_queue(world: World) -> None:
    client = world.client()
    first, second, third = (client.put(pri) for pri in (10, 2000, 3000))
    assert world.edit(third, pri=5) == "DONE"
    assert world.ready() == [third, first, second]
    assert world.edit(first, pri=4000) == "DONE"
    assert world.ready() == [third, second, first]
    assert world.stats_tube().current_jobs_urgent == 1
    assert client.take(3) == [third, second, first]


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


def test_job_moved_away_and_back_is_in_the_queue_once(world: World) -> None:
    client = world.client(watch=[b"default", b"other"])
    ids = [client.put(5) for _ in range(4)]
    for _ in range(3):
        assert world.edit(ids[2], tube=b"other") == "DONE"
        assert (world.ready(), world.ready(b"other")) == ([ids[0], ids[1], ids[3]], [ids[2]])
        assert world.edit(ids[2], tube=b"default") == "DONE"
    assert world.ready() == ids
    assert world.ready(b"other") == []
    assert client.take(4) == ids


def test_moved_job_goes_to_a_client_that_waits_on_the_new_tube(world: World) -> None:
    producer, worker, other = world.client(), world.client(watch=[b"other"]), world.client(watch=[b"other"])
    id = producer.put(body=b"old")
    assert (worker.reserve(), other.reserve()) == ("WAITING", "WAITING")
    assert world.edit(id, tube=b"other", body=b"new") == "DONE"
    assert (worker.ended, other.ended) == ([id], [])
    assert worker.client.outcome is world.broker.jobs[id]
    assert world.broker.jobs[id].body == b"new"
    assert world.stats_tube().current_jobs_ready == 0


def test_job_moved_to_a_paused_tube_is_reserved_after_the_pause(world: World) -> None:
    producer, worker = world.client(), world.client(watch=[b"other"])
    id = producer.put()
    worker.pause_tube(b"other", 5)
    assert worker.reserve() == "WAITING"
    assert world.edit(id, tube=b"other") == "DONE"
    assert worker.ended == []
    world.advance(5)
    assert worker.ended == [id]


def test_job_moved_out_of_a_paused_tube_can_be_reserved(world: World) -> None:
    producer, worker = world.client(), world.client(watch=[b"other"])
    id = producer.put()
    producer.pause_tube(b"default", 50)
    assert worker.reserve() == "WAITING"
    assert world.edit(id, tube=b"other") == "DONE"
    assert worker.ended == [id]


def test_edited_job_of_a_paused_tube_is_not_reserved(world: World) -> None:
    client, worker = world.client(), world.client()
    id = client.put()
    client.pause_tube(b"default", 50)
    assert worker.reserve() == "WAITING"
    assert world.edit(id, pri=0) == "DONE"
    assert worker.ended == []
    assert world.ready() == [id]


def test_ready_time_of_an_edited_job_starts_at_the_edit(world: World) -> None:
    """Jobs that were ready before the edit are older, and the wait time is counted from the edit."""
    client = world.client()
    first, second = client.put(), client.put()
    world.advance(3)
    assert world.edit(first, body=b"new") == "DONE"
    oldest = world.broker.tubes[b"default"].oldest_ready()
    assert oldest is world.broker.jobs[second]
    assert client.reserve(0) == first
    assert world.broker.tubes[b"default"].wait_time == 0


# Delays


def test_edited_delay_replaces_the_old_one(world: World) -> None:
    client = world.client()
    sooner, later, ready = client.put(delay=10), client.put(delay=10), client.put()
    assert [world.edit(id, delay=delay) for id, delay in ((sooner, 3), (later, 30), (ready, 20))] == ["DONE"] * 3
    assert world.delayed() == [sooner, ready, later]
    world.advance(3)
    assert world.ready() == [sooner]
    world.advance(16.5)
    assert world.ready() == [sooner]
    world.advance(0.5)
    assert world.ready() == [sooner, ready]
    world.advance(10)
    assert world.ready() == [sooner, later, ready]


def test_delay_edited_to_zero_gives_the_job_to_a_waiting_client(world: World) -> None:
    client, worker = world.client(), world.client()
    id = client.put(delay=10)
    assert worker.reserve() == "WAITING"
    assert world.edit(id, delay=0) == "DONE"
    assert worker.ended == [id]
    assert world.stats_job(id).delay == 0


def test_moved_delayed_job_keeps_its_deadline(world: World) -> None:
    client, worker = world.client(), world.client(watch=[b"other"])
    other = world.broker.put_into(b"other", 7, 2 * SECOND, 60 * SECOND, b"", world.now)
    id = client.put(delay=5)
    world.advance(1)
    assert world.edit(id, tube=b"other", pri=3) == "DONE"
    assert world.delayed(b"other") == [other, id]
    assert worker.reserve() == "WAITING"
    world.advance(1)
    assert worker.ended == [other]
    assert worker.reserve() == "WAITING"
    world.advance(3)
    assert worker.ended == [other, id]


@pytest.mark.parametrize("state", ["buried", "reserved"])
def test_delay_has_no_effect_on_buried_and_reserved_jobs(world: World, state: str) -> None:
    client = world.client()
    id = put_in(world, client, state)
    assert world.edit(id, delay=5, is_forced=True) == "DONE"
    world.advance(10)
    assert (world.state(id), world.stats_job(id).delay) == (state, 0)


# Buried jobs


def test_buried_job_keeps_its_place_unless_it_moves(world: World) -> None:
    client = world.client()
    ids = [put_in(world, client, "buried") for _ in range(3)]
    assert world.edit(ids[0], pri=1, body=b"new") == "DONE"
    assert world.buried() == ids
    assert world.edit(ids[0], tube=b"other") == "DONE"
    assert world.edit(ids[0], tube=b"default") == "DONE"
    assert world.buried() == [ids[1], ids[2], ids[0]]
    assert client.kick(BURIED, 2) == 2
    assert (world.ready(), world.buried()) == ([ids[1], ids[2]], [ids[0]])


def test_moved_buried_job_is_last_in_its_new_tube(world: World) -> None:
    client, other = world.client(), world.client(use=b"other")
    ids = [put_in(world, client, "buried"), put_in(world, other, "buried"), put_in(world, client, "buried")]
    assert world.edit(ids[0], tube=b"other") == "DONE"
    late = put_in(world, other, "buried")
    assert world.buried(b"other") == [ids[1], ids[0], late]
    assert world.buried() == [ids[2]]


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


def test_default_tube_without_jobs_is_not_dropped(world: World) -> None:
    id = world.broker.put_into(b"default", 7, 0, 60 * SECOND, b"", world.now)
    assert world.edit(id, tube=b"other") == "DONE"
    assert world.tubes() == [b"default", b"other"]


# Forced operations on reserved jobs


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


COMMANDS = {
    "delete": (Actor.delete, "deleted"),
    "release": (Actor.release, "ready"),
    "bury": (Actor.bury, "buried"),
    "touch": (Actor.touch, "reserved"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("tube", [None, b"other"])
def test_holder_can_finish_an_edited_job(world: World, command: str, tube: bytes | None) -> None:
    client = world.client()
    id = put_in(world, client, "reserved")
    assert world.edit(id, tube=tube, body=b"new", is_forced=True) == "DONE"
    run, state = COMMANDS[command]
    assert run(client, id)
    assert world.state(id) == state
    if state != "deleted":
        job = world.broker.jobs[id]
        assert (job.body, job.tube.name) == (b"new", tube or b"default")
    assert world.tubes() == [b"default", *([tube] if tube and state != "deleted" else [])]


FORCED: dict[str, tuple[Callable[[World, int], bool], str]] = {
    "delete_job": (lambda world, id: world.delete_job(id, is_forced=True), "deleted"),
    "release_job": (lambda world, id: world.release_job(id), "ready"),
    "bury_job": (lambda world, id: world.bury_job(id, is_forced=True), "buried"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("operation", FORCED)
def test_forced_operation_takes_the_job_from_its_holder(world: World, operation: str, command: str) -> None:
    client, other = world.client(), world.client(watch=[b"nothing"])
    id = put_in(world, client, "reserved")
    force, state = FORCED[operation]
    assert force(world, id)
    assert (world.state(id), client.reserved) == (state, [])
    if command == "delete" and state != "deleted":  # any client may delete it
        assert client.delete(id)
    else:
        assert not COMMANDS[command][0](client, id)
        assert world.state(id) == state
    assert not other.touch(id)


@pytest.mark.parametrize("operation", FORCED)
def test_job_taken_from_its_holder_causes_no_deadline_soon_and_no_timeout(world: World, operation: str) -> None:
    client = world.client(watch=[b"nothing"])
    id = client.put(ttr=3)
    assert client.reserve_job(id)
    assert client.reserve(10) == "WAITING"
    assert FORCED[operation][0](world, id)
    world.advance(5)
    assert client.ended == []
    world.advance(5)
    assert client.ended == ["TIMED_OUT"]
    assert world.stats().job_timeouts == 0


@pytest.mark.parametrize("operation", FORCED)
def test_force_is_needed_for_reserved_jobs_only(world: World, operation: str) -> None:
    """Jobs that no client holds are deleted and buried without force, and cannot be released."""
    client = world.client()
    id = put_in(world, client, "ready")
    assert FORCED[operation][0](world, id) == (operation != "release_job")
    assert not FORCED[operation][0](world, 99)


@pytest.mark.parametrize("act", ["delete_job", "bury_job"])
def test_reserved_job_is_not_taken_without_force(world: World, act: str) -> None:
    client = world.client()
    id = put_in(world, client, "reserved")
    assert not getattr(world, act)(id)
    assert client.reserved == [id]


def test_job_taken_from_its_holder_goes_to_a_waiting_client(world: World) -> None:
    client, worker = world.client(), world.client()
    id = put_in(world, client, "reserved")
    assert worker.reserve() == "WAITING"
    assert world.release_job(id)
    assert worker.ended == [id]
    stats = world.stats_job(id)
    assert (stats.releases, stats.reserves, stats.pri) == (1, 2, 7)


def test_jobs_of_a_disconnected_client_can_be_edited_and_taken_between_slices(world: World) -> None:
    client = world.client()
    with world.in_bulk():
        ids = client.take(len([client.put() for _ in range(SLICE + 8)]))
    world.broker.disconnect(client.client, world.now)
    moved, deleted, released, buried, edited, *rest = ids[SLICE:]
    assert {world.state(id) for id in ids[SLICE:]} == {"reserved"}
    assert world.edit(moved, tube=b"other", is_forced=True) == "DONE"
    assert world.edit(edited, body=b"new", is_forced=True) == "DONE"
    assert world.delete_job(deleted, is_forced=True)
    assert world.release_job(released)
    assert world.bury_job(buried, is_forced=True)
    world.advance(1)
    assert {world.state(id) for id in (edited, released, *rest)} == {"ready"}
    assert (world.ready(b"other"), world.buried()) == ([moved], [buried])
    assert world.broker.tick(world.now) is None


def test_all_jobs_of_a_disconnected_client_can_be_taken(world: World) -> None:
    client = world.client()
    with world.in_bulk():
        ids = client.take(len([client.put() for _ in range(SLICE + 1)]))
    world.broker.disconnect(client.client, world.now)
    assert world.delete_job(ids[-1], is_forced=True)
    world.advance(1)
    assert len(world.ready()) == SLICE
    assert world.broker.tick(world.now) is None


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


def test_edited_delayed_jobs_are_kicked_in_order(world: World) -> None:
    client = world.client()
    ids = [client.put(delay=10 + number) for number in range(3)]
    assert world.edit(ids[0], delay=60) == "DONE"
    assert client.kick(DELAYED, 2) == 2
    assert (world.ready(), world.delayed()) == ([ids[1], ids[2]], [ids[0]])
