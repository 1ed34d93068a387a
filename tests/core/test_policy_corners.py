"""Policies in corner cases: full tubes, keys of several jobs, tubes without clients, and holds."""

from __future__ import annotations

import pytest

from greenstalk_server.core.broker import MAX_EMPTY_PAUSED
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import editing, finishing, ticking
from greenstalk_server.core.outcomes import EditOutcome, Refusal
from tests.support import invariants
from tests.support.policies import fail, job_of, put, set_policies
from tests.support.world import World


@pytest.fixture
def world() -> World:
    return World()


# Timers


def test_end_of_a_rate_hold_without_a_waiting_client_requests_one_tick(world: World) -> None:
    set_policies(world, slow={"tubes": ["mail"], "rate": 2, "rate_burst": 2})
    ids = [put(world) for _ in range(3)]
    worker = world.client(watch=[b"mail"])
    assert worker.take(2) == ids[:2]
    world.advance(0.6)
    due = ticking.tick(world.broker, world.now)
    assert due is not None and due > world.now
    assert worker.take(1) == ids[2:]


def test_empty_paused_tubes_of_a_policy_with_a_rate_are_limited_too(world: World) -> None:
    """A tube is kept until a whole burst may start again. From then on, it counts towards the limit."""
    set_policies(world, slow={"tubes": ["mail.*"], "rate": 1})
    client = world.client()
    with world.in_bulk():
        for number in range(MAX_EMPTY_PAUSED + 5):
            name = b"mail.%d" % number
            client.use(name)
            client.put()
            client.reserve_job(number + 1)
            client.pause_tube(name, 10**9)
            client.delete(number + 1)
        client.use(b"default")
    assert len(world.tubes()) == 1 + MAX_EMPTY_PAUSED + 5
    world.advance(2)
    assert len(world.tubes()) == 1 + MAX_EMPTY_PAUSED


def test_expired_job_that_is_moved_into_a_full_tube_expires_at_the_next_tick(world: World) -> None:
    set_policies(world, old={"tubes": ["mail"], "expire_after": 10, "max_jobs": 1, "overflow": "drop-oldest"})
    client = world.client(use=b"other")
    job = client.put()
    world.advance(20)
    client.use(b"mail")
    kept = client.put()
    assert editing.edit_job(world.broker, job, world.now, tube=b"mail") == EditOutcome.DONE
    world.check()
    world.advance(0)
    assert list(world.broker.jobs) == [kept]


def test_rate_hold_with_a_burst_of_one_ends_after_the_policies_have_changed(world: World) -> None:
    """The hold ends exactly when the whole burst is available again, and the tube has a later timer, for an expiry."""
    slow = {"tubes": ["mail"], "rate": 2, "rate_burst": 1}
    set_policies(world, slow=slow)
    ids = [put(world), put(world)]
    worker = world.client(watch=[b"mail"])
    assert worker.take(1) == ids[:1]
    set_policies(world, slow=slow | {"expire_after": 60})
    world.advance(0.1)
    assert worker.reserve() == "WAITING"
    world.advance(0.4)
    assert worker.ended == ids[1:]


def test_buried_job_that_an_edit_moves_expires_in_its_new_tube(world: World) -> None:
    set_policies(world, old={"tubes": ["b"], "buried_expire_after": 5})
    id = put(world, b"a")
    world.bury_job(id)
    world.advance(10)
    assert world.edit(id, tube=b"b") == "DONE"
    world.advance(4)
    assert id in world.broker.jobs
    world.advance(1)
    assert id not in world.broker.jobs


def test_waiting_client_does_not_get_a_job_that_expired_before_its_move(world: World) -> None:
    set_policies(world, old={"tubes": ["b"], "expire_after": 5})
    id = put(world, b"a")
    world.advance(6)
    worker = world.client(watch=[b"b"])
    worker.reserve()
    world.edit(id, tube=b"b")
    world.advance(0.1)
    assert worker.is_waiting
    assert id not in world.broker.jobs


# Limits of reservations


def test_max_reserved_lets_workers_wait_until_a_slot_is_free(world: World) -> None:
    set_policies(world, few={"tubes": ["mail"], "max_reserved": 1})
    first, second = put(world), put(world)
    one, two = world.client(watch=[b"mail"]), world.client(watch=[b"mail"])
    assert one.reserve() == first
    assert two.reserve() == "WAITING"
    finishing.delete(world.broker, one.client, first, world.now)
    assert two.client.outcome is job_of(world, second)


# Caps


def test_full_tube_without_clients_takes_another_job(world: World) -> None:
    set_policies(world, last={"tubes": ["last"], "max_jobs": 1, "overflow": "drop-oldest"})
    first, second = put(world, b"last"), put(world, b"last")
    assert list(world.broker.jobs) == [second] != [first]
    assert world.ready(b"last") == [second]
    world.check()


def test_copy_makes_room_in_a_full_tube_without_clients(world: World) -> None:
    set_policies(
        world,
        fan={"tubes": ["mail"], "copy_to": ["last"]},
        last={"tubes": ["last"], "max_jobs": 1, "overflow": "drop-oldest"},
    )
    for _ in range(2):
        put(world)
    assert (len(world.ready(b"mail")), len(world.ready(b"last"))) == (2, 1)
    world.check()


def test_copies_and_evictions_meet_in_one_full_tube(world: World) -> None:
    """The copy and the evicted job both need room in the dead-letter tube, which evicts its oldest job for each."""
    set_policies(
        world,
        mail={"tubes": ["mail"], "max_jobs": 1, "overflow": "dead-letter-oldest", "dead_letter": "d", "copy_to": ["d"]},
        last={"tubes": ["d"], "max_jobs": 1, "overflow": "drop-oldest"},
    )
    for _ in range(3):
        put(world)
        world.check()
    assert (len(world.ready(b"mail")), len(world.ready(b"d"))) == (1, 1)


def test_put_is_refused_if_not_all_jobs_that_must_go_have_room(world: World) -> None:
    set_policies(
        world,
        mail={"tubes": ["mail"], "max_bytes": 4, "overflow": "dead-letter-oldest", "dead_letter": "d"},
        last={"tubes": ["d"], "max_jobs": 1},
    )
    ids = [put(world, body=b"xx"), put(world, body=b"yy")]
    assert put(world, body=b"1234") == Refusal.TUBE_FULL
    assert world.ready(b"mail") == ids
    assert put(world, body=b"12") > 0
    assert world.ready(b"d") == ids[:1]


def test_redriven_job_finds_room_while_a_hold_has_just_ended(world: World) -> None:
    """The pause has ended, but no tick has run: at the move, the waiting client gets a job that is not evicted."""
    set_policies(
        world,
        mail={
            "tubes": ["mail"],
            "max_attempts": 1,
            "dead_letter": "d",
            "max_jobs": 1,
            "overflow": "drop-oldest",
        },
    )
    id = put(world)
    fail(world, 1)
    world.edit(id, pri=5)
    other = put(world, body=b"other")
    editing.pause_tube(world.broker, b"mail", SECOND, world.now)
    worker = world.client(watch=[b"mail"])
    worker.reserve()
    assert editing.redrive(world.broker, id, world.now + SECOND) == EditOutcome.DONE
    assert other not in world.broker.jobs
    assert worker.reserved == [id]
    world.check()


def test_tube_above_its_cap_loses_a_job_as_soon_as_one_waits(world: World) -> None:
    ids = [put(world) for _ in range(2)]
    worker = world.client(watch=[b"mail"])
    worker.take(2)
    set_policies(world, full={"tubes": ["mail"], "max_jobs": 1, "overflow": "drop-oldest"})
    worker.release(ids[1])
    world.advance(0)
    assert list(world.broker.jobs) == ids[:1]


# Keys


@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("unique_for", ["waiting", "unfinished"])
def test_body_is_unique_while_any_of_several_jobs_has_it(world: World, unique_for: str, at: int) -> None:
    ids = [put(world) for _ in range(3)]
    set_policies(world, once={"tubes": ["mail"], "unique": "body", "unique_for": unique_for})
    while ids:
        assert put(world) in ids
        finishing.delete(world.broker, None, ids.pop(at), world.now)
    assert put(world) not in ids


def test_released_job_keeps_its_body_unique_after_another_was_reserved(world: World) -> None:
    set_policies(world, once={"tubes": ["mail"], "unique": "body", "unique_for": "waiting"})
    worker = world.client(watch=[b"mail"])
    first = put(world)
    worker.reserve()
    second = put(world)
    worker.release(first, pri=5)
    assert put(world) in (first, second)
    assert worker.reserve() == second
    assert put(world) == first
    worker.reserve()
    assert put(world) > second


def test_redriven_job_is_unique_again(world: World) -> None:
    set_policies(world, mail={"tubes": ["mail"], "unique": "body", "max_attempts": 1, "dead_letter": "d"})
    id = put(world)
    fail(world, 1)
    assert editing.redrive(world.broker, id, world.now) == EditOutcome.DONE
    assert put(world) == id


def test_finished_job_does_not_shorten_the_time_of_a_later_one(world: World) -> None:
    policy = {"tubes": ["mail"], "unique": "body", "unique_for": 5}
    set_policies(world, once=policy)
    worker = world.client(watch=[b"mail"])
    first = put(world)
    world.advance(6)
    second = put(world)
    assert second > first
    set_policies(world, once=policy | {"unique_for": 100})
    assert worker.take(2) == [first, second]
    worker.delete(second)
    worker.delete(first)
    world.advance(96)  # 102 seconds after the first put, 96 after the second
    assert put(world) == second


def test_duplicate_that_raises_the_priority_leaves_its_concurrency_key_usable(world: World) -> None:
    set_policies(world, once={"tubes": ["mail"], "unique": "body"})
    client = world.client(use=b"mail", watch=[b"mail"])
    first = client.put_tagged("con:k", pri=5, body=b"one")
    client.put_tagged("con:k", pri=6, body=b"two")
    assert client.put_tagged("con:k", pri=1, body=b"one") == first
    assert client.reserve(0) == first


def test_dependents_of_a_change_outside_a_session_are_handled_by_a_tick(world: World) -> None:
    client, worker = world.client(), world.client()
    first, second = client.put_tagged("con:k"), client.put_tagged("con:k")
    assert (worker.reserve(), client.reserve()) == (first, "WAITING")
    assert finishing.delete_job(world.broker, worker.reserved[0], world.now, is_forced=True)
    world.advance(0)
    assert client.ended == [second]


def test_duplicate_of_a_finished_job_leaves_no_empty_tube(world: World) -> None:
    set_policies(world, once={"tubes": ["mail"], "unique": "body", "unique_for": 100})
    id = put(world)
    worker = world.client(watch=[b"mail"])
    worker.reserve()
    worker.delete(id)
    worker.disconnect()
    assert put(world) == id
    assert world.tubes() == [b"default"]
    world.check()


# Attempts


def test_timeout_without_a_retry_delay_keeps_the_delay_of_the_put(world: World) -> None:
    set_policies(world, mail={"tubes": ["mail"], "max_attempts": 9})
    id = put(world, delay=3)
    world.advance(3)
    worker = world.client(watch=[b"mail"])
    worker.reserve()
    world.advance(61)
    assert (world.state(id), world.stats_job(id).delay) == ("ready", 3)


def test_job_that_an_edit_moves_has_all_attempts_of_its_new_tube(world: World) -> None:
    set_policies(world, strict={"tubes": ["b"], "max_attempts": 2})
    id = put(world, b"a")
    fail(world, 3, b"a")
    world.edit(id, tube=b"b")
    fail(world, 1, b"b")
    assert world.state(id) == "ready"
    fail(world, 1, b"b")
    assert world.state(id) == "buried"


def test_held_job_that_an_edit_moves_is_in_its_first_attempt(world: World) -> None:
    set_policies(world, strict={"tubes": ["b"], "max_attempts": 1})
    id = put(world, b"a")
    fail(world, 3, b"a")
    worker = world.client(watch=[b"a"])
    worker.reserve()
    world.edit(id, tube=b"b", is_forced=True)
    worker.release(id)
    assert world.state(id) == "buried"


@pytest.mark.parametrize("is_buried", [False, True])
def test_job_taken_while_it_was_not_ready_fails_like_any_other(world: World, is_buried: bool) -> None:
    set_policies(world, mail={"tubes": ["mail"], "max_attempts": 1, "dead_letter": "d"})
    id = put(world, delay=100)
    if is_buried:
        world.bury_job(id)
    worker = world.client()
    assert worker.reserve_job(id)
    world.advance(60)
    assert job_of(world, id).tube.name == b"d"
    assert world.ready(b"d") == [id]


def test_copy_that_makes_room_in_the_same_put_leaves_the_counts_of_clients(world: World) -> None:
    """The oldest job of "mail" moves to "b", whose only job, the new copy, then moves to "c"."""
    full = {"max_jobs": 1, "overflow": "dead-letter-oldest"}
    mail = {"tubes": ["mail"], "dead_letter": "b", "copy_to": ["b"], **full}
    set_policies(world, mail=mail, b={"tubes": ["b"], "dead_letter": "c", **full})
    assert put(world) == 1
    assert put(world) == 3
    invariants.check(world.broker)
    assert {job.id: job.tube.name for job in world.broker.jobs.values()} == {1: b"b", 2: b"c", 3: b"mail", 4: b"c"}


def test_edit_of_a_reserved_job_that_exceeds_a_cap_evicts_the_oldest_waiting_job(world: World) -> None:
    set_policies(world, mail={"tubes": ["mail"], "max_bytes": 10, "overflow": "drop-oldest"})
    held, waiting = put(world), put(world)
    worker = world.client(watch=[b"mail"])
    assert worker.take(1) == [held]
    assert editing.edit_job(world.broker, held, world.now, body=b"longer", is_forced=True) == EditOutcome.DONE
    world.advance(0.001)
    assert list(world.broker.jobs) == [held]
    assert waiting not in world.broker.jobs
