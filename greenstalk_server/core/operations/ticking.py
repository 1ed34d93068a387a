"""Ticks: process the timers that are due. Pure."""

from __future__ import annotations

from greenstalk_server.core.broker import SLICE, Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.operations.connecting import close_some
from greenstalk_server.core.operations.finishing import time_out
from greenstalk_server.core.operations.policy_changes import sweep_due
from greenstalk_server.core.outcomes import WaitOutcome
from greenstalk_server.core.policies.policy_sweep import PolicySweep
from greenstalk_server.core.tags.concurrency import ConcurrencyKey
from greenstalk_server.core.tags.groups import Group
from greenstalk_server.core.tags.idempotency import MAX_EXPIRED, RetainedKeys
from greenstalk_server.core.tags.tags import NO_DEADLINE
from greenstalk_server.core.transitions.dependents import end_delay, search_on, wake_some
from greenstalk_server.core.transitions.enforcing import policy_due
from greenstalk_server.core.transitions.reservation import update_throttle
from greenstalk_server.core.transitions.waiting import SAFETY_MARGIN, decline_offer, end_wait, offer, wait_cost
from greenstalk_server.core.tubes.tube import Tube


def tick(broker: Broker, now: int) -> int | None:
    """Process one slice of the timers due by *now*; return when to tick next, or None for never.

    The returned time is at or before *now* if work remains: the caller should yield before it ticks again.
    """
    left = SLICE
    while left > 0:
        target = broker.timers.pop_due(now)
        if target is None:
            break
        if isinstance(target, Tube):
            left -= _tube_due(broker, target, left, now)
        elif isinstance(target, Client):
            left -= _client_due(broker, target, now)
        elif isinstance(target, (ConcurrencyKey, Group)):
            target.note()
        elif isinstance(target, RetainedKeys):
            left -= _keys_due(broker, now)
        elif isinstance(target, PolicySweep):
            sweep_due(broker, now)
        left -= 1
        if broker.dependents.targets:
            left -= wake_some(broker, max(left, 1), now)
    return broker.timers.soonest()


def _tube_due(broker: Broker, tube: Tube, limit: int, now: int) -> int:
    """Do the work that is due in *tube*; return its cost. The jobs handed out cost at most *limit*."""
    cost = search = 0
    if tube.paused_until <= now:
        if tube.paused_until:
            tube.pause = tube.paused_until = 0
            broker.journal.pause(tube)
        update_throttle(tube, now)
    policy_state = tube.policy_state
    if policy_state is not None:
        policy_due(broker, tube, policy_state, now)
    if tube.ready.is_unfinished:
        search_on(tube)
        search = SLICE
    if tube.throttled_until <= now:
        cost = offer(broker, tube, limit, now)
    broker.drop_if_unneeded(tube)
    job = tube.delayed.first()
    if job is not None and job.deadline <= now:
        tube.remove(job)
        end_delay(broker, job, now)
        job = tube.delayed.first()
    if job is not None and job.deadline < NO_DEADLINE:
        broker.arm(tube, job.deadline)
    if tube.paused_until:
        broker.arm(tube, tube.paused_until)
    return cost + search


def _client_due(broker: Broker, client: Client, now: int) -> int:
    """Do the work that is due for *client*; return the cost of ending its wait."""
    if client.is_closed:
        close_some(broker, client, 1, now)
        return 0
    if client.is_suspended:
        return 0
    cost = wait_cost(client) if client.is_waiting else 0
    if client.offered is not None and client.offered_until <= now:
        decline_offer(broker, client, now)
        cost += 1
    job = client.soonest()
    is_in_reserve = client.is_waiting and not client.awaited_id
    if is_in_reserve and job is not None and job.deadline - SAFETY_MARGIN <= now:
        end_wait(broker, client, WaitOutcome.DEADLINE_SOON)
    elif client.is_waiting and client.wait_until is not None and client.wait_until <= now:
        end_wait(broker, client, WaitOutcome.TIMED_OUT)
    elif job is not None and job.deadline <= now:
        time_out(broker, job, client, now)
        job = client.soonest()
    if job is not None:
        is_in_reserve = client.is_waiting and not client.awaited_id
        broker.arm(client, job.deadline - SAFETY_MARGIN if is_in_reserve else job.deadline)
    if client.is_waiting and client.wait_until is not None:
        broker.arm(client, client.wait_until)
    if client.offered is not None:
        broker.arm(client, client.offered_until)
    return 0 if client.is_waiting else cost


def _keys_due(broker: Broker, now: int) -> int:
    """Remove some of the keys that are free again; return the cost."""
    broker.retained_keys.drop_expired(now)
    soonest = broker.retained_keys.soonest()
    if soonest is not None:
        broker.arm(broker.retained_keys, soonest)
    return MAX_EXPIRED
