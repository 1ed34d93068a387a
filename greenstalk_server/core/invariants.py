"""Assertions of the broker's invariants, for tests.

They scan the whole state and run only in tests, so this module is not compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from greenstalk_server.core import job_history
from greenstalk_server.core.job import BURIED, DELAYED, MAX_ID, READY, RESERVED, URGENT_BELOW
from greenstalk_server.core.policy import UniqueFor
from greenstalk_server.core.timers import NEVER
from greenstalk_server.core.transitions import MAX_RECENT_WORKERS, SAFETY_MARGIN
from greenstalk_server.core.tube_rules import buried_at, expires_from

if TYPE_CHECKING:
    from greenstalk_server.core.client import Client
    from greenstalk_server.core.policy_control import PolicyControl
    from greenstalk_server.core.tube import Tube
    from greenstalk_server.core.tube_rules import TubeRules


def check(broker: PolicyControl) -> None:
    """Assert that *broker* is consistent."""
    _check_places(broker)
    _check_totals(broker)
    _check_bodies(broker)
    for tubes, tube_set in broker.tube_sets.items():
        users = [client for client in broker.clients if client.tube_set is tube_set]
        assert tube_set.users == len(users) and tubes == tube_set.tubes
        assert set(tube_set.waiters) == {client for client in users if is_in_reserve(client)}
        tube_set.check()
    for client in broker.clients:
        _check_client(broker, client)
    assert len(broker.recent_workers) <= MAX_RECENT_WORKERS
    waits = {id: set(clients) for id, clients in broker.job_waiters.items()}
    awaited = {client.awaited_id for client in broker.clients if client.awaited_id}
    assert waits == {id: {client for client in broker.clients if client.awaited_id == id} for id in awaited}
    assert all(id in broker.jobs and broker.jobs[id].state != BURIED for id in awaited)


def is_in_reserve(client: Client) -> bool:
    """Whether *client* waits for a ready job."""
    return client.is_waiting and not client.awaited_id


def _check_places(broker: PolicyControl) -> None:
    """Assert that each job is in exactly one place, and that its fields match that place."""
    places: dict[int, int] = {}
    for tube in broker.tubes.values():
        _check_tube(broker, tube, places)
    for job in broker.jobs.values():
        if job.state == RESERVED:
            places[job.id] = places.get(job.id, 0) + 1
            assert job.holder is not None and job.holder.reserved[job.id] is job
            assert job.former_state in (0, BURIED, DELAYED)
            timer_at = job.holder.timer_at  # for a closed client, the time at which its next job is requeued
            is_left_to_next_start = broker.is_stopping and job.holder.is_closed
            assert is_left_to_next_start or (timer_at > 0 and (timer_at <= job.deadline or job.holder.is_closed))
        assert len(job.events) in job_history.SIZES
    assert places == dict.fromkeys(broker.jobs, 1)
    assert all(0 < id < broker.next_id <= MAX_ID and job.id == id for id, job in broker.jobs.items())


def _check_totals(broker: PolicyControl) -> None:
    """Assert that the broker's totals match its tubes, jobs and clients."""
    states = [job.state for job in broker.jobs.values()]
    assert broker.totals.urgent == sum(tube.urgent_count for tube in broker.tubes.values())
    assert broker.totals.reserved == states.count(RESERVED)
    assert broker.totals.delayed == states.count(DELAYED)
    assert broker.totals.buried == states.count(BURIED)
    assert broker.producer_count == sum(client.is_producer for client in broker.clients)
    assert broker.worker_count == sum(client.is_worker for client in broker.clients)
    assert broker.waiting_count == sum(is_in_reserve(client) for client in broker.clients)


def _check_bodies(broker: PolicyControl) -> None:
    """Assert that the sizes of bodies add up."""
    body_bytes = dict.fromkeys(broker.tubes.values(), 0)
    for job in broker.jobs.values():
        body_bytes[job.tube] += job.size
    assert all(tube.body_bytes == size for tube, size in body_bytes.items())
    assert broker.quotas is None or broker.quotas.body_bytes == sum(body_bytes.values())
    if broker.bodies is not None:
        held = [job.size for job in broker.jobs.values() if job.body is not None]
        assert broker.bodies.jobs == len(broker.jobs)
        assert broker.bodies.held == len(held)
        assert broker.bodies.in_memory == sum(held)
        assert broker.bodies.on_disk == sum(body_bytes.values()) - sum(held)


def _check_tube(broker: PolicyControl, tube: Tube, places: dict[int, int]) -> None:
    """Assert that *tube* is consistent, and count its jobs in *places*."""
    assert broker.tubes[tube.name] is tube
    if tube.is_unneeded() and tube is not broker.default_tube and not tube.paused_until:
        assert tube.rules is not None and 0 < tube.timer_at <= tube.rules.full_at, "kept until a whole burst may start"
    ready, delayed, buried = list(tube.ready.walk()), list(tube.delayed.walk()), list(tube.buried.values())
    for state, jobs in ((READY, ready), (DELAYED, delayed), (BURIED, buried)):
        for job in jobs:
            assert job.state == state and job.tube is tube and job.holder is None and not job.former_state
            assert not job.is_truncated
            places[job.id] = places.get(job.id, 0) + 1
    assert [(job.pri, job.id) for job in ready] == sorted((job.pri, job.id) for job in ready)
    assert [(job.deadline, job.id) for job in delayed] == sorted((job.deadline, job.id) for job in delayed)
    tube.ready.check(ready)
    tube.delayed.check(delayed)
    assert tube.urgent_count == sum(job.pri < URGENT_BELOW for job in ready)
    clients = list(broker.clients)
    assert tube.reserved_count == sum(job.tube is tube and job.state == RESERVED for job in broker.jobs.values())
    assert tube.using == sum(client.used is tube for client in clients)
    assert tube.watching == sum(tube.name in client.watched for client in [*clients, *broker.closing_clients])
    assert tube.total_reserves == sum(tube.waits.values())
    waiting = [client for client in clients if is_in_reserve(client) and tube.name in client.watched]
    assert set(tube.waiters) == {client for client in waiting if client.tube_set is None}
    assert tube.waiting_count == len(waiting)
    assert tube.first_waiter() is min(waiting, key=lambda client: client.wait_number, default=None)
    assert not (waiting and ready) or tube.held_until or tube.timer_at
    if delayed:
        assert 0 < tube.timer_at <= delayed[0].deadline
    if tube.paused_until:
        assert 0 < tube.timer_at <= tube.paused_until <= tube.held_until
    if tube.rules is not None:
        _check_rules(broker, tube, tube.rules)
    else:
        assert tube.held_until == tube.paused_until


def _check_rules(broker: PolicyControl, tube: Tube, rules: TubeRules) -> None:
    """Assert that the state of *rules* matches the jobs of *tube*."""
    is_exhausted = 0 < rules.policy.max_reserved <= tube.reserved_count
    assert broker.is_sweeping or is_exhausted == (tube.held_until == NEVER)
    assert is_exhausted or tube.held_until >= rules.starts_at()
    for key, id in (rules.keys or {}).items():
        job = broker.jobs[id]
        assert job.tube is tube and job.unique_key == key
        assert rules.policy.unique_for != UniqueFor.WAITING or job.state in (READY, DELAYED)
    for key, others in rules.other_holders.items():
        assert rules.keys is not None and rules.keys[key] not in others
        assert others and all(broker.jobs[id].tube is tube and broker.jobs[id].unique_key == key for id in others)
    if not broker.is_sweeping:
        if rules.waiting is not None:
            waiting = sorted([*tube.ready.walk(), *tube.delayed.walk()], key=lambda job: (expires_from(job), job.id))
            rules.waiting.check(waiting)
        times = [rules.next_expiry()]
        if tube.buried and rules.policy.buried_expire_after:
            times.append(buried_at(next(iter(tube.buried.values()))) + rules.policy.buried_expire_after)
        assert min(times) == NEVER or 0 < tube.timer_at <= min(times)


def _check_client(broker: PolicyControl, client: Client) -> None:
    """Assert that the connected *client* is consistent."""
    assert client.tube_set is None or client.tube_set.tubes == set(client.watched.values())
    assert all(broker.jobs[id] is job and job.holder is client for id, job in client.reserved.items())
    assert client.watched and broker.tubes[client.used.name] is client.used
    assert all(broker.tubes[name] is tube for name, tube in client.watched.items())
    assert client.is_waiting or not client.awaited_id
    if client.is_waiting:
        assert client.outcome is None
        if client.wait_until is not None:
            assert 0 < client.timer_at <= client.wait_until
        if client.reserved and is_in_reserve(client):
            soonest = min(job.deadline for job in client.reserved.values())
            assert 0 < client.timer_at <= soonest - SAFETY_MARGIN
