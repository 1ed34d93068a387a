"""Offers to remote clients that are claimed, declined or lapse, and changes of offered jobs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from greenstalk_server.core.jobs.job import BURIED, SECOND
from greenstalk_server.core.operations import connecting
from greenstalk_server.core.transitions.waiting import OFFER_TIME
from greenstalk_server.core.tubes.head_watch import NO_HEAD
from greenstalk_server.core.tubes.weighting import WEIGHTED
from tests.support.policies import set_policies
from tests.support.world import START, Actor, World

LAPSE = OFFER_TIME / SECOND


@pytest.fixture
def producer(world: World) -> Actor:
    """A client that keeps the tube `default` in use, and reserves nothing."""
    return world.client()


def offered(world: World, producer: Actor, pri: int = 5) -> tuple[Actor, int]:
    """Return a remote client, and the job that has been offered to it."""
    remote = world.remote()
    assert remote.await_offer() == "WAITING"
    id = producer.put(pri)
    assert remote.ended == ["OFFERED"] and remote.offered == id
    return remote, id


class TestEnds:
    def test_claimed_offer_is_reserved(self, world: World, producer: Actor) -> None:
        remote, id = offered(world, producer)
        assert world.state(id) == "ready"
        assert remote.claim() == id
        assert remote.reserved == [id] and world.state(id) == "reserved"

    def test_declined_offer_is_ready_for_others(self, world: World, producer: Actor) -> None:
        remote, id = offered(world, producer)
        assert producer.reserve(0) == "TIMED_OUT"
        remote.decline()
        assert producer.reserve(0) == id

    def test_offer_lapses_after_fifty_milliseconds(self, world: World, producer: Actor) -> None:
        remote, id = offered(world, producer)
        world.advance_to(START + OFFER_TIME - 1)
        assert producer.reserve(0) == "TIMED_OUT"
        world.advance_to(START + OFFER_TIME)
        assert remote.offered == 0
        assert producer.reserve(0) == id

    def test_lapsed_offer_can_be_claimed_if_nobody_has_taken_the_job(self, world: World, producer: Actor) -> None:
        remote, id = offered(world, producer)
        world.advance(LAPSE)
        assert remote.claim() == id

    def test_claim_that_comes_too_late_gets_the_next_job_or_none(self, world: World, producer: Actor) -> None:
        remote, id = offered(world, producer)
        world.advance(LAPSE)
        assert producer.reserve(0) == id
        assert remote.claim() == "TIMED_OUT"
        other = producer.put()
        assert remote.claim() == other

    def test_disconnect_frees_the_offered_job(self, world: World, producer: Actor) -> None:
        remote, id = offered(world, producer)
        remote.disconnect()
        assert producer.reserve(0) == id

    def test_disconnect_passes_the_offered_job_to_the_next_client(self, world: World, producer: Actor) -> None:
        remote, id = offered(world, producer)
        next_remote, local = world.remote(), world.client()
        assert (next_remote.await_offer(), local.reserve()) == ("WAITING", "WAITING")
        remote.disconnect()
        assert next_remote.offered == id and local.is_waiting
        world.advance(LAPSE)
        assert local.reserved == [id]

    def test_second_await_declines_the_first_offer(self, world: World, producer: Actor) -> None:
        remote, id = offered(world, producer)
        assert remote.await_offer() == "OFFERED"  # the same job, the only one
        assert remote.offered == id
        local = world.client()
        assert local.reserve() == "WAITING"
        assert remote.await_offer() == "WAITING"  # `local` has waited longer
        assert local.reserved == [id]

    def test_unwatched_tube_keeps_the_offer(self, world: World, producer: Actor) -> None:
        remote, id = offered(world, producer)
        remote.unwatch(b"default")
        assert remote.offered == id
        assert remote.claim() == "TIMED_OUT"
        assert producer.reserve(0) == id

    def test_claim_reserves_a_better_job_and_frees_the_offered_one(self, world: World, producer: Actor) -> None:
        remote, id = offered(world, producer)
        better = producer.put(pri=1)
        local = world.client()
        assert local.watch(b"default") == 1
        assert remote.claim() == better
        assert local.reserve(0) == id

    def test_claim_passes_the_offered_job_to_a_client_that_waits(self, world: World, producer: Actor) -> None:
        remote = world.remote([b"default", b"other"])
        remote.await_offer()
        id = producer.put(pri=5)
        local = world.client()
        assert local.reserve() == "WAITING"
        better = producer.put_in_tube(b"other", pri=1)
        assert remote.claim() == better
        assert local.reserved == [id]


CHANGES: dict[str, Callable[[World, int], object]] = {
    "deleted": lambda world, id: world.delete_job(id),
    "buried": lambda world, id: world.bury_job(id),
    "moved": lambda world, id: world.edit(id, tube=b"other"),
    "delayed": lambda world, id: world.edit(id, delay=10),
    "truncated": lambda world, id: world.truncate(b"default"),
    "paused": lambda world, id: world.client().pause_tube(b"default", 10),
}


class TestChanges:
    @pytest.mark.parametrize("name", CHANGES)
    def test_claim_of_a_job_that_is_gone_gets_none(self, world: World, producer: Actor, name: str) -> None:
        remote, id = offered(world, producer)
        CHANGES[name](world, id)
        assert remote.claim() == "TIMED_OUT"
        assert world.client().reserve(0) == "TIMED_OUT"

    @pytest.mark.parametrize("name", CHANGES)
    def test_offer_of_a_job_that_is_gone_lapses(self, world: World, producer: Actor, name: str) -> None:
        remote, id = offered(world, producer)
        CHANGES[name](world, id)
        world.advance(LAPSE)
        assert remote.client.offered is None
        world.advance(20)
        assert remote.await_offer() == ("WAITING" if name in ("deleted", "buried", "moved", "truncated") else "OFFERED")

    def test_kicked_job_after_a_burial_is_offered_again(self, world: World, producer: Actor) -> None:
        remote, id = offered(world, producer)
        world.bury_job(id)
        other = world.remote()
        assert other.await_offer() == "WAITING"
        assert producer.kick(BURIED, 1) == 1
        assert (remote.offered, other.offered) == (0, id)
        world.advance(LAPSE / 2)
        remote.decline()  # of an offer that has ended
        assert other.offered == id and other.claim() == id

    def test_reprioritized_job_is_free(self, world: World, producer: Actor) -> None:
        remote, id = offered(world, producer)
        assert world.reprioritize(id, 9) == "DONE"
        assert remote.offered == 0
        assert producer.reserve(0) == id

    def test_edited_job_is_free(self, world: World, producer: Actor) -> None:
        remote, id = offered(world, producer)
        assert world.edit(id, body=b"new") == "DONE"
        assert remote.offered == 0
        assert remote.claim() == id

    def test_reserve_job_takes_an_offered_job(self, world: World, producer: Actor) -> None:
        remote, id = offered(world, producer)
        assert producer.reserve_job(id)
        assert remote.claim() == "TIMED_OUT"
        assert producer.release(id)
        assert remote.await_offer() == "OFFERED"

    def test_expired_job_is_not_claimed(self, world: World, producer: Actor) -> None:
        set_policies(world, rules={"tubes": ["default"], "expire_after": 0.02})
        remote, id = offered(world, producer)
        world.advance(0.03)
        assert world.state(id) == "deleted"
        assert remote.claim() == "TIMED_OUT"

    def test_evicted_job_is_not_claimed(self, world: World, producer: Actor) -> None:
        set_policies(world, rules={"tubes": ["default"], "max_jobs": 1, "overflow": "drop-oldest"})
        remote, id = offered(world, producer)
        newer = producer.put()
        assert world.state(id) == "deleted"
        assert remote.claim() == newer

    def test_tube_that_reached_its_maximum_of_reserved_jobs_withholds_the_offered_one(
        self, world: World, producer: Actor
    ) -> None:
        set_policies(world, rules={"tubes": ["default"], "max_reserved": 1})
        remote, id = offered(world, producer)
        other = producer.put()
        assert producer.reserve(0) == other
        assert remote.claim() == "TIMED_OUT"
        assert remote.await_offer() == "WAITING"
        assert producer.delete(other)
        assert remote.offered == id


class TestRecords:
    def test_offer_is_not_counted(self, world: World, producer: Actor) -> None:
        remote = world.remote()
        remote.await_offer()
        id = producer.put()
        before = world.stats(), world.stats_tube(), world.stats_job(id)
        assert before[1].current_jobs_ready == 1 and before[1].current_jobs_reserved == 0
        remote.decline()
        assert (world.stats(), world.stats_tube(), world.stats_job(id)) == before
        assert remote.await_offer() == "OFFERED"
        world.advance(LAPSE)
        assert (world.stats(), world.stats_tube(), world.stats_job(id)) == before
        assert world.stats_job(id).reserves == 0 and world.broker.jobs[id].events == b""

    def test_remote_client_is_not_counted(self, world: World, producer: Actor) -> None:
        before = world.stats()
        remote = world.remote()
        remote.await_offer()
        connecting.note_worker(world.broker, remote.client)
        connecting.note_producer(world.broker, remote.client)
        assert world.stats() == before
        assert world.stats_tube().current_waiting == 1
        remote.disconnect()
        assert world.stats() == before

    def test_peek_shows_an_offered_job(self, world: World, producer: Actor) -> None:
        _, id = offered(world, producer)
        later = producer.put(pri=7)
        job = world.broker.tubes[b"default"].ready.peek()
        assert job is not None and job.id == id
        assert world.ready() == [id, later]


class TestOrder:
    def test_offered_job_keeps_its_place(self, world: World, producer: Actor) -> None:
        first, second, third = (producer.put(pri=5) for _ in range(3))
        remote = world.remote()
        assert remote.await_offer() == "OFFERED" and remote.offered == first
        assert producer.reserve(0) == second
        remote.decline()
        assert producer.take(2) == [first, third]

    def test_clients_get_jobs_in_the_order_of_waiting(self, world: World, producer: Actor) -> None:
        first, second, third = world.remote(), world.client(), world.remote()
        assert first.await_offer() == second.reserve() == third.await_offer() == "WAITING"
        one, two, three = (producer.put() for _ in range(3))
        assert (first.offered, second.reserved, third.offered) == (one, [two], three)

    def test_remote_client_that_lets_offers_lapse_does_not_hold_up_others(self, world: World, producer: Actor) -> None:
        lazy, local = world.remote(), world.client()
        assert lazy.await_offer() == local.reserve() == "WAITING"
        id = producer.put()
        assert lazy.offered == id and not local.reserved
        world.advance(LAPSE)
        assert local.reserved == [id]
        assert not lazy.is_waiting  # it has to wait again, behind others

    def test_offer_takes_the_best_of_all_watched_tubes(self, world: World, producer: Actor) -> None:
        for name, pri in ((b"a", 5), (b"b", 1), (b"c", 3)):
            producer.put_in_tube(name, pri)
        remote = world.remote([b"a", b"b", b"c"])
        order = []
        for _ in range(3):
            assert remote.await_offer() == "OFFERED"
            order.append(remote.claim())
        assert order == [2, 3, 1]
        assert remote.await_offer() == "WAITING"

    def test_client_of_many_tubes_gets_offers(self, world: World, producer: Actor) -> None:
        names = [b"tube-%d" % number for number in range(20)]
        first, second, local = world.remote(names), world.remote(names), world.client(watch=names)
        for client in (first, second):
            assert client.await_offer() == "WAITING"
        assert local.reserve() == "WAITING"
        one, two = producer.put_in_tube(names[3]), producer.put_in_tube(names[3])
        three = producer.put_in_tube(names[4])
        assert (first.offered, second.offered, local.reserved) == (one, two, [three])
        first.decline()
        assert local.reserve(0) == one
        world.advance(LAPSE)
        assert local.reserve(0) == two

    def test_weighted_client_is_offered_the_job_of_the_chosen_tube(self, world: World, producer: Actor) -> None:
        one, two = producer.put_in_tube(b"a", pri=1), producer.put_in_tube(b"b", pri=9)
        remote = world.remote([b"a", b"b"])
        assert connecting.set_reserve_mode(world.broker, remote.client, WEIGHTED)
        world.broker.random = lambda: 0.9
        assert remote.await_offer() == "OFFERED" and remote.offered == two
        world.broker.random = lambda: 0.1
        assert remote.claim() == one
        assert remote.await_offer() == "OFFERED" and remote.claim() == two


class TestDeadlines:
    def test_await_ends_a_second_before_a_deadline(self, world: World, producer: Actor) -> None:
        producer.put(ttr=3)
        remote = world.remote()
        assert isinstance(remote.claim(), int)
        assert remote.await_offer() == "WAITING"
        world.advance(1.9)
        assert remote.is_waiting
        world.advance(0.1)
        assert remote.ended == ["DEADLINE_SOON"]
        assert remote.await_offer() == remote.claim() == "DEADLINE_SOON"

    def test_ready_job_is_offered_even_if_a_deadline_is_near(self, world: World, producer: Actor) -> None:
        producer.put(ttr=1)
        remote = world.remote()
        assert isinstance(remote.claim(), int)
        id = producer.put()
        assert remote.await_offer() == "OFFERED"
        assert remote.claim() == id

    def test_reservation_times_out_during_an_offer(self, world: World, producer: Actor) -> None:
        first = producer.put(ttr=1)
        remote = world.remote()
        assert remote.claim() == first
        world.advance(0.98)
        second = producer.put()
        assert remote.await_offer() == "OFFERED" and remote.offered == second
        world.advance(0.02)
        assert world.state(first) == "ready" and remote.offered == second
        world.advance(0.03)
        assert remote.offered == 0


class TestTags:
    def test_offered_job_with_a_concurrency_key_takes_no_slot(self, world: World, producer: Actor) -> None:
        one, two = producer.put_tagged("con:k"), producer.put_tagged("con:k")
        remote = world.remote()
        assert remote.await_offer() == "OFFERED" and remote.offered == one
        assert producer.reserve(0) == "TIMED_OUT"  # `two` is behind `one`
        assert remote.claim() == one
        assert producer.reserve(0) == "TIMED_OUT"
        assert remote.delete(one)
        assert producer.reserve(0) == two

    def test_slot_taken_in_another_tube_withholds_the_offered_job(self, world: World, producer: Actor) -> None:
        one = producer.put_tagged("con:k", tube=b"a")
        two = producer.put_tagged("con:k", tube=b"b")
        remote, local = world.remote([b"a"]), world.client(watch=[b"b"])
        assert remote.await_offer() == "OFFERED" and remote.offered == one
        assert local.reserve(0) == two
        assert remote.claim() == "TIMED_OUT"
        assert remote.await_offer() == "WAITING"
        assert local.delete(two)
        assert remote.offered == one

    def test_better_job_with_the_key_replaces_the_offered_one(self, world: World, producer: Actor) -> None:
        one = producer.put_tagged("con:k", pri=5)
        remote = world.remote()
        assert remote.await_offer() == "OFFERED" and remote.offered == one
        better = producer.put_tagged("con:k", pri=1)
        assert remote.offered == 0
        assert remote.claim() == better

    def test_deleted_offered_front_makes_the_next_job_the_front(self, world: World, producer: Actor) -> None:
        one, two = producer.put_tagged("con:k"), producer.put_tagged("con:k")
        remote, other = world.remote(), world.remote()
        assert remote.await_offer() == "OFFERED" and other.await_offer() == "WAITING"
        assert world.delete_job(remote.offered)
        assert other.offered == two != one

    def test_job_of_a_group_is_offered_when_the_group_is_empty(self, world: World, producer: Actor) -> None:
        first = producer.put_tagged("grp:g")
        assert producer.reserve(0) == first
        after = producer.put_tagged("aft:g")
        remote = world.remote()
        assert remote.await_offer() == "WAITING"
        assert producer.delete(first)
        assert remote.offered == after and remote.claim() == after


class TestHeads:
    def test_head_follows_the_first_job(self, world: World, producer: Actor) -> None:
        remote = world.remote()
        assert world.heads() == {b"default": NO_HEAD}
        one = producer.put(pri=5)
        assert world.heads() == {b"default": (5, START)}
        world.advance(1)
        producer.put(pri=1)
        assert world.heads() == {b"default": (1, START + SECOND)}
        assert remote.await_offer() == "OFFERED"
        assert world.heads() == {b"default": (5, START)}
        assert producer.reserve(0) == one
        assert world.heads() == {b"default": NO_HEAD}
        remote.decline()
        assert world.heads() == {b"default": (1, START + SECOND)}

    def test_paused_tube_has_no_head(self, world: World, producer: Actor) -> None:
        world.remote()
        producer.put()
        producer.pause_tube(b"default", 1)
        assert world.heads() == {b"default": NO_HEAD}
        world.advance(1)
        assert world.heads() == {b"default": (0, START)}

    def test_head_of_a_tube_that_is_not_watched_is_not_noted(self, world: World, producer: Actor) -> None:
        producer.put()
        assert world.heads() == {}
        remote = world.remote()
        world.heads()
        remote.unwatch(b"default")
        world.heads()
        producer.put()
        assert world.heads() == {}

    def test_process_subscribes_once_for_each_client(self, world: World) -> None:
        clients = [world.remote(front=front) for front in ("one", "one", "two")]
        assert [subscribers for _, subscribers in world.broker.heads.take()] == [["one", "two"]]
        clients[0].disconnect()
        clients[2].disconnect()
        world.client().put()
        assert [subscribers for _, subscribers in world.broker.heads.take()] == [["one"]]
        clients[1].disconnect()
        assert world.broker.default_tube.head_watch is None

    def test_free_slot_of_a_concurrency_key_changes_the_head(self, world: World, producer: Actor) -> None:
        world.remote()
        one, _ = producer.put_tagged("con:k"), producer.put_tagged("con:k")
        assert producer.reserve(0) == one
        assert world.heads() == {b"default": NO_HEAD}
        assert producer.delete(one)
        assert world.heads() == {b"default": (0, START)}

    def test_slot_taken_in_another_tube_changes_the_head(self, world: World, producer: Actor) -> None:
        remote = world.remote([b"a"])
        producer.put_tagged("con:k", tube=b"a")
        two = producer.put_tagged("con:k", tube=b"b")
        assert world.heads() == {b"a": (0, START)}
        local = world.client(watch=[b"b"])
        assert local.reserve(0) == two
        assert remote.claim() == "TIMED_OUT"  # the first look at the stale head
        assert world.heads() == {b"a": NO_HEAD}
        assert local.delete(two)
        assert world.heads() == {b"a": (0, START)}


class TestTubes:
    def test_remote_client_uses_and_watches_no_tube_at_first(self, world: World) -> None:
        remote = world.remote([])
        assert (world.stats_tube().current_using, world.stats_tube().current_watching) == (0, 0)
        assert remote.await_offer() == "WAITING"
        assert remote.claim() == "TIMED_OUT"

    def test_used_tube_exists_until_the_client_leaves_it(self, world: World) -> None:
        remote = world.remote([])
        remote.use(b"work")
        assert world.tubes() == [b"default", b"work"]
        remote.leave()
        remote.leave()
        assert world.tubes() == [b"default"]

    def test_watched_tube_exists_until_it_is_unwatched(self, world: World) -> None:
        remote = world.remote([b"work"])
        remote.unwatch(b"work")
        remote.unwatch(b"unknown")
        assert world.tubes() == [b"default"] and not remote.client.watched

    def test_disconnect_removes_the_last_traces(self, world: World) -> None:
        remote = world.remote([b"work"])
        remote.use(b"other")
        remote.await_offer()
        remote.disconnect()
        assert world.tubes() == [b"default"] and world.broker.remote_count == 0
