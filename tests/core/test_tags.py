"""Tags: idempotency keys, groups, and concurrency keys."""

from __future__ import annotations

from itertools import pairwise

import pytest

from greenstalk_server.core.broker import SLICE
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, SECOND, Job
from greenstalk_server.core.operations import editing, finishing, policy_changes, reserving, ticking
from greenstalk_server.core.outcomes import Refusal
from greenstalk_server.core.policies.policy import PolicySet, parse_policy
from greenstalk_server.core.tags.concurrency import ConcurrencyKey
from greenstalk_server.core.tags.tags import TaggedJob, Tags, tags_of
from greenstalk_server.core.tubes.ready_queue import MAX_STALE
from greenstalk_server.protocol.extended_stats import group_stats
from tests.support.world import FullJournal, World


@pytest.fixture
def world() -> World:
    return World()


def counts(world: World, name: str) -> tuple[int, int, int, int, int] | None:
    """Return the numbers of stats-group: ready, reserved, delayed, buried, waiting; None if there is no group."""
    found = world.broker.group_counts(name.encode())
    if found is None:
        return None
    stats = group_stats(name.encode(), found)
    assert stats.name == name
    return stats.ready, stats.reserved, stats.delayed, stats.buried, stats.waiting_jobs


class TestIdempotencyKey:
    def test_duplicate_adds_nothing(self, world: World) -> None:
        client = world.client()
        first = client.put_tagged("idp:k", pri=5)
        assert client.put_tagged("idp:k", pri=5) == (first, "ready")
        assert client.put_tagged("idp:k", pri=6) == (first, "ready")
        assert world.ready() == [first]
        assert world.stats().total_jobs == 1

    def test_forget_frees_kept_keys(self, world: World) -> None:
        client = world.client()
        for name in ("a", "b", "c"):
            client.put_tagged(f"idp:{name}:9", tube=b"t")
        client.put_tagged("idp:a:9")
        for id in (1, 2, 3, 4):
            client.delete(id)
        assert editing.forget_keys(world.broker, b"t", 2) == 2
        assert editing.forget_keys(world.broker, b"t", 2) == 1
        assert editing.forget_keys(world.broker, b"t", 2) == 0
        assert client.put_tagged("idp:a", tube=b"t") == 5
        assert client.put_tagged("idp:a") == (4, "deleted")

    def test_tick_removes_few_expired_keys(self, world: World) -> None:
        client, table = world.client(), world.broker.retained_keys.table
        with world.in_bulk():
            for number in range(1000):
                client.put_tagged(f"idp:{number}:9")
                client.delete(number + 1)
        world.now += 9 * SECOND
        left = []
        while table:
            ticking.tick(world.broker, world.now)
            left.append(len(table))
        assert left == [*range(1000 - SLICE, 0, -SLICE), 0]

    def test_edit_keeps_the_tags(self, world: World) -> None:
        client = world.client()
        client.put_tagged("idp:k:4 grp:g con:c:2")
        world.edit(1, body=b"new")
        tags = tags_of(world.broker.jobs[1])
        assert (tags.idempotency_key, tags.group, tags.concurrency_key, tags.concurrency_limit) == (b"k", b"g", b"c", 2)
        assert client.put_tagged("idp:k") == (1, "ready")
        assert counts(world, "g") == (1, 0, 0, 0, 0)

    def test_refused_put_takes_no_key(self, world: World) -> None:
        client = world.client()
        journal, world.broker.journal = world.broker.journal, FullJournal()
        assert client.put_tagged("idp:k grp:g con:c") == Refusal.JOURNAL
        world.broker.journal = journal
        assert not world.broker.groups and not world.broker.concurrency_keys
        assert client.put_tagged("idp:k") == 2


class TestGroup:
    def test_many_jobs_are_released_in_slices(self, world: World) -> None:
        client = world.client()
        client.put_tagged("grp:g")
        with world.in_bulk():
            for _ in range(3 * SLICE):
                client.put_tagged("aft:g")
        client.delete(1)
        assert len(world.ready()) == SLICE
        member = client.put_tagged("grp:g", tube=b"other")  # stops the release
        world.advance(1)
        assert len(world.ready()) == SLICE
        assert isinstance(member, int)
        client.delete(member)
        world.advance(1)
        assert len(world.ready()) == 3 * SLICE
        assert not world.broker.groups


class TestConcurrencyKey:
    def test_tubes_get_the_slot_in_turn(self, world: World) -> None:
        client = world.client()
        first, second = world.client(watch=[b"a"]), world.client(watch=[b"b"])
        for _ in range(3):
            client.put_tagged("con:k", tube=b"a", pri=1)
            client.put_tagged("con:k", tube=b"b", pri=2)
        first.reserve()
        order = []
        second.reserve()
        for _ in range(6):
            holder = first if first.reserved else second
            id = holder.reserved[0]
            order.append(id % 2)
            holder.delete(id)
            holder.reserve()
        assert order.count(1) == 3 and order[:4] in ([1, 0, 1, 0], [0, 1, 0, 1])

    @pytest.mark.parametrize("end", ["disconnect", "timeout"])
    def test_free_slot_goes_to_a_better_job_than_others_that_are_ready_then(self, world: World, end: str) -> None:
        holder, waiter = world.client(), world.client()
        for _ in range(2):
            holder.put_tagged("con:k", ttr=5)
        holder.put(pri=1000, ttr=5)
        assert holder.take(2) == [1, 3]
        assert waiter.reserve() == "WAITING"
        if end == "disconnect":
            holder.disconnect()
        else:
            world.now += 10 * SECOND
            ticking.tick(world.broker, world.now)
        assert waiter.ended == [1]

    @pytest.mark.parametrize("end", ["release", "bury", "delete"])
    def test_free_slot_goes_to_a_better_job_than_one_that_the_limit_of_its_tube_held_back(
        self, world: World, end: str
    ) -> None:
        policy_changes.set_policies(
            world.broker, PolicySet([parse_policy("p", {"tubes": ["default"], "max_reserved": 1})]), world.now
        )
        world.advance(0)
        holder, waiter = world.client(), world.client()
        holder.put_tagged("con:k")
        holder.put_tagged("con:k")
        holder.put(pri=1000)
        assert holder.reserve() == 1
        assert waiter.reserve() == "WAITING"
        operations = {"release": holder.release, "bury": holder.bury, "delete": holder.delete}
        assert operations[end](1)
        assert waiter.ended == [1 if end == "release" else 2]

    def test_put_that_evicts_a_job_gives_the_best_job_to_the_client_that_waits(self, world: World) -> None:
        keys = {"tubes": ["default"], "max_jobs": 4, "overflow": "drop-oldest"}
        policy_changes.set_policies(world.broker, PolicySet([parse_policy("p", keys)]), world.now)
        world.advance(0)
        holder, waiter = world.client(), world.client()
        holder.put_tagged("con:k:1", delay=60)
        for _ in range(3):
            holder.put_tagged("con:k:2")
        assert holder.reserve() == 2
        assert waiter.reserve() == "WAITING"
        holder.put(pri=1000)
        assert world.state(1) == "deleted"
        assert waiter.ended == [3]

    def test_deletion_that_frees_a_slot_and_a_group_offers_the_best_job_first(self, world: World) -> None:
        holder = world.client()
        waiters = [world.client(watch=[b"default", b"b"]) for _ in range(3)]
        holder.put_tagged("con:k grp:g")
        holder.put_tagged("con:k", pri=2)
        for tube, pri in ((b"default", 3), (b"b", 1), (b"b", 4)):
            holder.put_tagged("aft:g", pri=pri, tube=tube)
        assert holder.reserve() == 1
        assert [waiter.reserve() for waiter in waiters] == ["WAITING"] * 3
        holder.delete(1)
        assert [waiter.ended for waiter in waiters] == [[4], [2], [3]]

    def test_withheld_jobs_are_listed_in_order(self, world: World) -> None:
        client = world.client()
        for pri in (5, 3, 9, 1):
            client.put_tagged("con:k", pri=pri)
            world.advance(1)
            client.put(pri=pri)
        client.put_tagged("con:other", pri=2)
        assert [world.broker.jobs[id].pri for id in world.ready()] == [1, 1, 2, 3, 3, 5, 5, 9, 9]
        queue = world.broker.tubes[b"default"].ready
        assert sorted(queue.ids()) == sorted(world.ready())
        oldest = queue.oldest()
        assert oldest is not None and oldest.id == 1

    def test_peek_shows_a_withheld_job_if_there_is_no_other(self, world: World) -> None:
        client = world.client()
        client.put_tagged("con:k", pri=2)
        client.put_tagged("con:k", pri=1)
        client.put_tagged("con:k", pri=3)
        client.reserve(0)
        queue = world.broker.tubes[b"default"].ready
        found = queue.peek()
        assert found is not None and found.id == 1
        plain = client.put(pri=9)
        found = queue.peek()
        assert found is not None and found.id == plain

    def test_clear_deletes_withheld_jobs(self, world: World) -> None:
        client = world.client()
        for _ in range(5):
            client.put_tagged("con:k grp:g")
        client.reserve(0)
        tube = world.broker.tubes[b"default"]
        assert finishing.clear(world.broker, tube, READY, 10, world.broker.next_id, world.now) == 4
        world.check()
        assert counts(world, "g") == (0, 1, 0, 0, 0)

    def test_fronts_of_many_tubes_are_placed_in_slices(self, world: World) -> None:
        client = world.client()
        client.put_tagged("con:k", tube=b"first")
        holder = world.client(watch=[b"first"])
        holder.reserve(0)
        total = 2 * SLICE + 10
        with world.in_bulk():
            for number in range(total):
                client.put_tagged("con:k", tube=b"t%d" % number)
        last = world.client(watch=[b"t%d" % (total - 1)])
        last.reserve()
        holder.delete(1)
        assert not last.ended
        world.advance(1)
        assert last.ended == [total + 1]

    def test_many_stale_fronts_are_withheld_in_slices(self, world: World) -> None:
        client, worker = world.client(), world.client(watch=[b"a"])
        total = 300
        with world.in_bulk():
            for number in range(total):
                client.put_tagged(f"con:k{number}", tube=b"a")
                client.put_tagged(f"con:k{number}", tube=b"b")
            holder = world.client(watch=[b"b"])
            holder.take(total)
            plain = client.put_in_tube(b"a", pri=9)
        assert worker.reserve() == "WAITING"
        world.advance(1)
        assert worker.ended == [plain]

    def test_many_stale_fronts_and_many_watched_tubes(self, world: World) -> None:
        client = world.client()
        names = [b"w%d" % number for number in range(20)]
        worker = world.client(watch=[b"a", *names])
        assert worker.reserve(0) == "TIMED_OUT"
        with world.in_bulk():
            for number in range(300):
                client.put_tagged(f"con:k{number}", tube=b"a")
                client.put_tagged(f"con:k{number}", tube=b"b")
            world.client(watch=[b"b"]).take(300)
            plain = client.put_in_tube(b"a", pri=9)
        outcome = worker.reserve()
        world.advance(1)
        assert [outcome, *worker.ended][-1] == plain

    def test_slot_reaches_a_client_that_watches_many_tubes(self, world: World) -> None:
        client = world.client()
        worker = world.client(watch=[b"w%d" % number for number in range(20)])
        assert worker.reserve(0) == "TIMED_OUT"
        client.put_tagged("con:k", tube=b"x")
        client.reserve_job(1)
        client.put_tagged("con:k", tube=b"w3")
        assert worker.reserve() == "WAITING"
        client.delete(1)
        assert worker.ended == [2]


class TestLimits:
    def test_smallest_of_many_limits(self) -> None:
        key = ConcurrencyKey(b"k", b"", World().broker.dependents)
        present: list[int] = []
        for step in range(2000):
            limit = step * 7919 % 131 + 1
            if step % 3 == 2:
                key.remove_job(present.pop(step * 31 % len(present)))
            else:
                key.add_job(limit)
                present.append(limit)
            assert key.limit == min(present) and key.jobs == len(present)
        assert len(key._heap) <= 2 * 131 + 65

    def test_alternating_limits_take_no_memory(self) -> None:
        key = ConcurrencyKey(b"k", b"", World().broker.dependents)
        key.add_job(1)
        for _ in range(10_000):
            key.add_job(5)
            key.remove_job(5)
            key.add_job(9)
            key.add_job(5)
            key.remove_job(9)
            key.remove_job(5)
        assert len(key._heap) < 200


def test_key_alone_takes_no_object_of_its_own(world: World) -> None:
    client = world.client()
    client.put_tagged("idp:k")
    client.put_tagged("idp:k2:1")
    job, other = world.broker.jobs[1], world.broker.jobs[2]
    assert isinstance(job, TaggedJob) and job.tags == b"k"
    assert isinstance(other, TaggedJob) and isinstance(other.tags, Tags)


def test_untagged_job_is_a_plain_job(world: World) -> None:
    world.client().put()
    assert type(world.broker.jobs[1]) is Job
    assert tags_of(world.broker.jobs[1]).packed() == b""
    assert {READY, RESERVED, BURIED, DELAYED} == set(range(1, 5))


def test_tick_withholds_few_stale_fronts(world: World) -> None:
    keys = 6 * MAX_STALE
    with world.in_bulk():
        for tube in (b"one", b"two"):
            for key in range(keys):
                world.client().put_tagged(f"con:k{key}", tube=tube)
        world.client(watch=[b"one"]).take(keys)
        fronts = world.broker.tubes[b"two"].ready._out_of_order
        assert fronts is not None
        left = [fronts.count]
        assert reserving.reserve(world.broker, world.client(watch=[b"two"]).client, world.now) is None
        while left[-1]:
            left.append(fronts.count)
            ticking.tick(world.broker, world.now)
    assert max(before - after for before, after in pairwise(left)) <= 2 * MAX_STALE + 2
