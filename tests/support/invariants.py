"""Assertions of the broker's invariants, for tests.

They scan the whole state and run only in tests, so this module is not compiled.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, DELAYED, MAX_ID, READY, RESERVED, URGENT_BELOW
from greenstalk_server.core.operations.connecting import MAX_RECENT_WORKERS
from greenstalk_server.core.policies.policy import UniqueFor
from greenstalk_server.core.policies.tube_policy_state import buried_at, expires_from
from greenstalk_server.core.tags.groups import WAITING
from greenstalk_server.core.tags.tags import NO_DEADLINE, TaggedJob
from greenstalk_server.core.timers import NEVER
from greenstalk_server.core.transitions.waiting import SAFETY_MARGIN
from greenstalk_server.core.travel import NOWHERE, Travel, is_moving
from greenstalk_server.core.tubes.ready_queue import is_withheld

if TYPE_CHECKING:
    from greenstalk_server.core.broker import Broker
    from greenstalk_server.core.client import Client
    from greenstalk_server.core.jobs.job import Job
    from greenstalk_server.core.policies.tube_policy_state import TubePolicyState
    from greenstalk_server.core.tags.tags import Tags
    from greenstalk_server.core.tubes.tube import Tube


def check(broker: Broker) -> None:
    """Assert that *broker* is consistent."""
    jobs = list(broker.jobs.values())
    _check_places(broker, jobs)
    _check_totals(broker, jobs)
    _check_moves(broker, jobs)
    _check_bodies(broker, jobs)
    _check_groups(broker, jobs)
    _check_concurrency(broker, jobs)
    _check_keys(broker, jobs)
    for tubes, tube_set in broker.tube_sets.items():
        users = [client for client in broker.clients if client.tube_set is tube_set]
        assert tube_set.users == len(users) and tubes == set(tube_set.tubes)
        assert set(tube_set.waiters) == {client for client in users if is_in_reserve(client)}
        tube_set.check()
    for client in broker.clients:
        _check_client(broker, client)
    found = {client for clients in broker.suspended.values() for client in clients.values()}
    assert found == {client for client in broker.clients if client.is_suspended}
    _check_subscriptions(broker)
    assert not broker.dependents.targets or broker.dependents.timer_at, "a tick is due to handle the dependents"
    assert len(broker.recent_workers) <= MAX_RECENT_WORKERS
    waits = {id: set(clients) for id, clients in broker.job_waiters.items()}
    awaited = {client.awaited_id for client in broker.clients if client.awaited_id}
    assert waits == {id: {client for client in broker.clients if client.awaited_id == id} for id in awaited}
    left = broker.moves.locations if broker.moves is not None else {}
    assert all(id in left or (id in broker.jobs and broker.jobs[id].state != BURIED) for id in awaited)


def is_in_reserve(client: Client) -> bool:
    """Whether *client* waits for a ready job."""
    return client.is_waiting and not client.awaited_id


def offers_of(tube: Tube) -> dict[int, Client]:
    """Return the client of each offered job of *tube*, by the job's id."""
    return tube.ready._offers or {}


def _check_places(broker: Broker, jobs: list[Job]) -> None:
    """Assert that each job is in exactly one place, and that its fields match that place."""
    places: dict[int, int] = {}
    census = _Census(broker, jobs)
    for tube in broker.tubes.values():
        _check_tube(broker, tube, census, places)
    for job in jobs:
        if job.state == RESERVED:
            places[job.id] = places.get(job.id, 0) + 1
            assert job.holder is not None and job.holder.reserved[job.id] is job
            if is_moving(job.travel):
                continue
            assert job.former_state in (0, BURIED, DELAYED)
            timer_at = job.holder.timer_at  # for a closed client, the time at which its next job is requeued
            is_left_to_next_start = broker.is_stopping and job.holder.is_closed
            assert (
                is_left_to_next_start
                or job.holder.is_suspended
                or (timer_at > 0 and (timer_at <= job.deadline or job.holder.is_closed))
            )
        assert len(job.events) in job_history.SIZES
    assert places == dict.fromkeys(broker.jobs, 1)
    assert broker.ids.owns(broker.next_id) and broker.next_id <= MAX_ID
    assert [job.id for job in jobs] == list(broker.jobs)
    assert all(job.id > 0 and broker.ids.is_older(job.id, broker.next_id) for job in jobs)


def _check_moves(broker: Broker, jobs: list[Job]) -> None:
    """Assert that the outbox has the jobs that are moving, and that a job is here or has a location, not both."""
    moves = broker.moves
    moving = {job.id: job for job in jobs if is_moving(job.travel)}
    if moves is None:
        assert not moving
        return
    assert moves.outbox == moving == moves.holder.reserved
    leaving = [(shard, id) for shard, found in moves.leaving.items() for id in found]
    targets = {id: Travel.unpack(job.travel).target for id, job in moving.items()}
    assert sorted(leaving) == sorted([(broker.tube_shards.shard_of(tube), id) for id, tube in targets.items()])
    for tube in broker.tubes.values():
        assert tube.moving_count == sum(job.tube is tube for job in moving.values())
    assert not [id for id in moves.locations if id in broker.jobs]
    assert all(id in moves.locations for ids in moves.untold.values() for id in ids)
    for id, location in moves.locations.items():
        assert moves.is_untold(id) or (moves.is_home_of(id) and location.shard != NOWHERE)


def _check_totals(broker: Broker, jobs: list[Job]) -> None:
    """Assert that the broker's totals match its tubes, jobs and clients."""
    states = [job.state for job in jobs]
    assert broker.totals.urgent == sum(tube.urgent_count for tube in broker.tubes.values())
    assert broker.totals.reserved == states.count(RESERVED)
    assert broker.totals.delayed == states.count(DELAYED)
    assert broker.totals.buried == states.count(BURIED)
    assert broker.producer_count == sum(client.is_producer and not client.is_remote for client in broker.clients)
    assert broker.worker_count == sum(client.is_worker and not client.is_remote for client in broker.clients)
    assert broker.waiting_count == sum(is_in_reserve(client) and not client.takes_offers for client in broker.clients)
    assert broker.remote_count == sum(client.is_remote for client in broker.clients)


def _check_bodies(broker: Broker, jobs: list[Job]) -> None:
    """Assert that the sizes of bodies add up."""
    body_bytes = dict.fromkeys(broker.tubes.values(), 0)
    for job in jobs:
        body_bytes[job.tube] += job.size
    assert all(tube.body_bytes == size for tube, size in body_bytes.items())
    assert broker.quotas is None or broker.quotas.body_bytes == sum(body_bytes.values())
    if broker.bodies is not None:
        resident = [job.size for job in jobs if job.body is not None]
        assert broker.bodies.jobs == len(jobs)
        assert broker.bodies.resident == len(resident)
        assert broker.bodies.in_memory == sum(resident)
        assert broker.bodies.on_disk == sum(body_bytes.values()) - sum(resident)


def _tagged(jobs: list[Job]) -> list[tuple[Job, Tags]]:
    """Return all jobs that have tags other than an idempotency key, and their tags."""
    return [(job, job.more_tags) for job in jobs if isinstance(job, TaggedJob) and job.more_tags is not None]


def _check_groups(broker: Broker, jobs: list[Job]) -> None:
    """Assert that each group has the jobs whose tags name it, and that no job waits for an empty group forever."""
    found = _tagged(jobs)
    for job, tags in found:
        group = broker.groups.get(job.tube.scope + tags.group) if tags.group else None
        assert tags.member_of is group and bool(tags.group) == (group is not None)
        assert (tags.awaited is not None) == (job.state == DELAYED and job.deadline == NO_DEADLINE)
        assert tags.awaited is None or tags.awaited is broker.groups[job.tube.scope + tags.after]
    assert not [job for job in jobs if job.deadline == NO_DEADLINE and not isinstance(job, TaggedJob)]
    for name, group in broker.groups.items():
        members = [job for job, tags in found if tags.member_of is group]
        assert group.scope + group.name == name and group.members == len(members)
        counts = broker.group_counts(group.name)
        assert counts is group.counts
        namesakes = [each for each in broker.groups.values() if each.name == group.name]
        assert counts[WAITING] == sum(each.waiting.count for each in namesakes)
        for state in range(1, len(counts)):
            assert counts[state] == sum(job.state == state for job, tags in found if tags.member_of in namesakes)
        waiting = sorted([job for job, tags in found if tags.awaited is group], key=lambda job: job.id)
        group.waiting.check(waiting)
        assert members or waiting or group in broker.dependents.targets
        is_due = group.timer_at or group in broker.dependents.targets
        assert members or is_due, "a tick is due to release the waiting jobs"


def _check_concurrency(broker: Broker, jobs: list[Job]) -> None:
    """Assert that the state of each concurrency key matches its jobs, and that no free slot stays unused."""
    found = _tagged(jobs)
    for job, tags in found:
        limiter = broker.concurrency_keys.get(job.tube.scope + tags.concurrency_key)
        assert tags.limiter is (limiter if tags.concurrency_key else None)
        assert bool(tags.concurrency_key) == (tags.limiter is not None)
    for name, limiter in broker.concurrency_keys.items():
        holders = [(job, tags) for job, tags in found if tags.limiter is limiter]
        assert limiter.scope + limiter.name == name and limiter.jobs == len(holders) > 0
        assert limiter.limit == min(tags.concurrency_limit for _, tags in holders)
        assert limiter.reserved == sum(job.state == RESERVED for job, _ in holders)
        assert set(limiter.queues) == {job.tube for job, _ in holders if job.state == READY}
        assert set(limiter.pending) == {tube for tube, queue in limiter.queues.items() if queue.front is None}
        is_due = limiter.timer_at or limiter in broker.dependents.targets
        assert not (limiter.is_free and limiter.pending) or is_due, "a tick is due to place fronts"


def _check_keys(broker: Broker, jobs: list[Job]) -> None:
    """Assert that of all jobs of a tube with an idempotency key, the one with the lowest id holds it."""
    ids: dict[tuple[Tube, bytes], list[int]] = {}
    for job in sorted(jobs, key=lambda job: job.id):
        if isinstance(job, TaggedJob) and job.idempotency_key:
            ids.setdefault((job.tube, job.idempotency_key), []).append(job.id)
    for tube in broker.tubes.values():
        if tube.idempotency is not None:
            for key, holder in tube.idempotency.holders.items():
                others = tube.idempotency.others.get(key, [])
                assert holder is broker.jobs[holder.id] and ids.pop((tube, key)) == [holder.id, *others]
            assert tube.idempotency.others.keys() <= tube.idempotency.holders.keys()
            assert all(tube.idempotency.others.values())
    assert not ids


class _Census:
    """Reserved jobs and clients by tube, counted once for all tubes.

    waiting     clients that wait for a ready job, by each tube that they watch.
    """

    def __init__(self, broker: Broker, jobs: list[Job]) -> None:
        clients = list(broker.clients)
        self.reserved = Counter([job.tube for job in jobs if job.state == RESERVED])
        self.using = Counter([client.used for client in clients])
        self.watching = Counter([name for client in [*clients, *broker.closing_clients] for name in client.watched])
        self.waiting: dict[bytes, list[Client]] = {}
        for client in filter(is_in_reserve, clients):
            for name in client.watched:
                self.waiting.setdefault(name, []).append(client)


def _check_tube(broker: Broker, tube: Tube, census: _Census, places: dict[int, int]) -> None:
    """Assert that *tube* is consistent, and count its jobs in *places*."""
    assert broker.tubes[tube.name] is tube
    if tube.is_unneeded() and tube is not broker.default_tube:
        awaits_burst = tube.policy_state is not None and 0 < tube.timer_at <= tube.policy_state.full_at
        assert awaits_burst or (tube.paused_until and tube in broker._empty_paused)
    ready, delayed, buried = list(tube.ready.walk()), list(tube.delayed.walk()), list(tube.buried.values())
    for state, jobs in ((READY, ready), (DELAYED, delayed), (BURIED, buried)):
        for job in jobs:
            assert job.state == state and job.tube is tube and job.holder is None and not job.former_state
            assert not job.is_truncated
            places[job.id] = places.get(job.id, 0) + 1
    if ready:
        assert [(job.pri, job.id) for job in ready] == sorted((job.pri, job.id) for job in ready)
    if delayed:
        assert [(job.deadline, job.id) for job in delayed] == sorted((job.deadline, job.id) for job in delayed)
    tube.ready.check(ready)
    tube.delayed.check(delayed)
    assert tube.urgent_count == sum([job.pri < URGENT_BELOW for job in ready])
    assert tube.reserved_count == census.reserved[tube]
    assert tube.using == census.using[tube]
    assert tube.watching == census.watching[tube.name]
    assert tube.total_reserves == sum(tube.queue_times.counts().values())
    waiting = census.waiting.get(tube.name, [])
    assert set(tube.waiters) == {client for client in waiting if client.tube_set is None}
    assert tube.waiting_count == len(waiting)
    assert tube.first_waiter() is min(waiting, key=lambda client: client.wait_number, default=None)
    for id, client in offers_of(tube).items():
        assert client.offered is broker.jobs[id] and client.is_remote and not client.is_closed
        assert client.offered.state == READY and client.offered.tube is tube
    if waiting and not tube.throttled_until:
        runnable = [job for job in ready if not is_withheld(job) and job.id not in offers_of(tube)]
        assert not runnable or tube.timer_at or tube in broker.dependents.targets
    if delayed and delayed[0].deadline < NO_DEADLINE:
        assert 0 < tube.timer_at <= delayed[0].deadline
    if tube.paused_until:
        assert 0 < tube.timer_at <= tube.paused_until <= tube.throttled_until
    if tube.policy_state is not None:
        _check_rules(broker, tube, tube.policy_state)
    else:
        assert tube.throttled_until == tube.paused_until


def _check_rules(broker: Broker, tube: Tube, policy_state: TubePolicyState) -> None:
    """Assert that *policy_state* matches the jobs of *tube*."""
    is_exhausted = 0 < policy_state.policy.max_reserved <= tube.reserved_count
    assert broker.is_sweeping or is_exhausted == (tube.throttled_until == NEVER)
    assert is_exhausted or tube.throttled_until >= policy_state.starts_at()
    for key, id in (policy_state.keys or {}).items():
        job = broker.jobs[id]
        assert job.tube is tube and job.unique_key == key
        assert policy_state.policy.unique_for != UniqueFor.WAITING or job.state in (READY, DELAYED)
    for key, others in policy_state.other_holders.items():
        assert policy_state.keys is not None and policy_state.keys[key] not in others
        assert others and all(broker.jobs[id].tube is tube and broker.jobs[id].unique_key == key for id in others)
    if not broker.is_sweeping:
        if policy_state.waiting is not None:
            waiting = sorted([*tube.ready.walk(), *tube.delayed.walk()], key=lambda job: (expires_from(job), job.id))
            policy_state.waiting.check(waiting)
        times = [policy_state.next_expiry()]
        if tube.buried and policy_state.policy.buried_expire_after:
            times.append(buried_at(next(iter(tube.buried.values()))) + policy_state.policy.buried_expire_after)
        assert min(times) >= NEVER or 0 < tube.timer_at <= min(times)


def _check_subscriptions(broker: Broker) -> None:
    """Assert that each process subscribes to the heads of the tubes that its clients watch, once for each client."""
    expected: dict[Tube, dict[object, int]] = {}
    for client in [*broker.clients, *broker.closing_clients]:
        for tube in client.watched.values() if client.is_subscribed else ():
            counts = expected.setdefault(tube, {})
            counts[client.front] = counts.get(client.front, 0) + 1
    assert broker.heads._subscribers == expected
    assert all((tube.head_watch is broker.heads) == (tube in expected) for tube in broker.tubes.values())


def _check_client(broker: Broker, client: Client) -> None:
    """Assert that the connected *client* is consistent."""
    assert client.tube_set is None or set(client.tube_set.tubes) == set(client.watched.values())
    assert all(broker.jobs[id] is job and job.holder is client for id, job in client.reserved.items())
    assert client.watched or client.is_remote or broker.ids.shards > 1
    assert broker.tubes.get(client.used.name, broker.no_tube) is client.used
    if client.offered is not None:
        assert client.is_remote and not client.is_closed and not is_in_reserve(client)
        assert 0 < client.timer_at <= client.offered_until
    assert all(broker.tubes[name] is tube for name, tube in client.watched.items())
    assert client.is_waiting or not client.awaited_id
    if client.remote is not None:
        assert client.remote.numbers.keys() == client.reserved.keys()
        assert max(client.remote.numbers.values(), default=0) <= client.remote.reserved or client.is_suspended
    if client.is_suspended:
        assert client.remote is not None and not client.is_waiting and client.offered is None
        assert broker.suspended[client.remote.front][client.remote.session] is client
    if client.is_waiting:
        assert client.outcome is None
        if client.wait_until is not None:
            assert 0 < client.timer_at <= client.wait_until
        if client.reserved and is_in_reserve(client):
            soonest = min(job.deadline for job in client.reserved.values())
            assert 0 < client.timer_at <= soonest - SAFETY_MARGIN
