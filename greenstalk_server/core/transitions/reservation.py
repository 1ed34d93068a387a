"""The start and the end of a reservation, and the time before which a tube hands out no job. Pure."""

from __future__ import annotations

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import RESERVED, Job
from greenstalk_server.core.policies.tube_policy_state import TubePolicyState
from greenstalk_server.core.tags.tags import TaggedJob
from greenstalk_server.core.timers import NEVER
from greenstalk_server.core.tubes.tube import Tube


def add_reserved(broker: Broker, job: Job, client: Client, now: int) -> None:
    """Have *client* hold the detached *job*, whose `ready_since` is set."""
    tube = job.tube
    tube.queue_times.add(now - job.deadline)  # ready_since
    tube.total_reserves += 1
    tube.reserved_count += 1
    broker.totals.reserved += 1
    if broker.bodies is not None:
        broker.bodies.reserved(job)
    job.state = RESERVED
    if isinstance(job, TaggedJob):
        job.count_reserved(1)
    job.holder = client
    job.reserves += 1
    job.reserved_at = now
    job.deadline = now + job.ttr
    client.hold(job)
    if client.remote is not None:
        client.remote.note_reserved(job.id)
    if not 0 < client.timer_at <= job.deadline:
        broker.arm(client, job.deadline)
    if tube.policy_state is not None:
        _note_start(broker, tube, tube.policy_state, now)
    broker.journal.reserve(job)


def restore_reserved(broker: Broker, job: Job, client: Client) -> None:
    """Have *client* hold the detached *job*, whose deadline is set, as before a restart; count and record nothing."""
    job.tube.reserved_count += 1
    broker.totals.reserved += 1
    job.state = RESERVED
    if isinstance(job, TaggedJob):
        job.count_reserved(1)
    job.holder = client
    client.hold(job)


def remove_reserved(broker: Broker, job: Job, now: int) -> None:
    """Detach the reserved *job* from its holder.

    The caller must call `dispatch_freed` afterwards, since this may end the throttling of the tube.
    """
    assert job.holder is not None
    job.holder.drop(job)
    job.holder = None
    tube = job.tube
    tube.reserved_count -= 1
    broker.totals.reserved -= 1
    if isinstance(job, TaggedJob):
        job.count_reserved(-1)
    if tube.policy_state is not None and tube.throttled_until == NEVER:
        update_throttle(tube, now)


def update_throttle(tube: Tube, now: int) -> None:
    """Set `throttled_until` of *tube* from its pause and its policy."""
    until, policy_state = tube.paused_until, tube.policy_state
    if policy_state is not None:
        until = max(until, policy_state.starts_at())
        if 0 < policy_state.policy.max_reserved <= tube.reserved_count - tube.moving_count:
            until = NEVER
    before, tube.throttled_until = tube.throttled_until, until
    if tube.head_watch is not None:
        tube.head_watch.note(tube)
    if until < before:
        for tube_set in tube.tube_sets:
            tube_set.resume(tube, now)


def _note_start(broker: Broker, tube: Tube, policy_state: TubePolicyState, now: int) -> None:
    """Count the reservation of a job against the limits of *tube*."""
    policy_state.note_start(now)
    was_throttled = tube.throttled_until > now
    update_throttle(tube, now)
    if now < tube.throttled_until < NEVER:
        broker.arm(tube, tube.throttled_until)
    if tube.throttled_until > now and not was_throttled:
        if tube.throttled_until == NEVER:
            tube.counts().reserved_holds += 1
        else:
            tube.counts().rate_holds += 1
