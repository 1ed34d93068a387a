"""The outbox: the jobs that leave this shard for a tube of another one (see greenstalk_server.core.moves). Pure.

Each step is recorded before anything is sent that depends on it, so the process may end at any moment.
"""

from __future__ import annotations

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, Job
from greenstalk_server.core.moves import Moves
from greenstalk_server.core.outcomes import WaitOutcome
from greenstalk_server.core.tags.tags import TaggedJob
from greenstalk_server.core.transitions.placing import (
    add_buried,
    add_delayed,
    add_ready,
    record_departure,
    remove_from_tables,
)
from greenstalk_server.core.transitions.tagging import free_key
from greenstalk_server.core.transitions.waiting import end_job_waits
from greenstalk_server.core.travel import Travel


def begin_move(broker: Broker, job: Job, target: bytes, kind: int, reason: int, now: int) -> None:
    """Put the detached *job* into the outbox, for the tube *target* of another shard.

    *kind* is the event of the move, *reason* that of a dead letter. The job returns to its present state if the other
    shard refuses it; a MOVED job has that state there too, any other is ready.
    """
    before = Travel.unpack(job.travel)
    job.travel = Travel(before.hops, before.source, target, kind, reason, now).pack()
    job.events = job_history.add(job.events, kind, now, job_history.NOBODY)
    broker.journal.move(job, job.tube)
    hold(broker, job)


def hold(broker: Broker, job: Job) -> None:
    """Have the outbox hold the detached *job*, whose move is recorded."""
    moves, tube = moves_of(broker), job.tube
    job.former_state, job.former_deadline = job.state, job.deadline
    tube.reserved_count += 1
    tube.moving_count += 1
    broker.totals.reserved += 1
    job.state, job.deadline = RESERVED, 0
    if isinstance(job, TaggedJob):
        job.count(1)
    job.holder = moves.holder
    moves.add(job, broker.tube_shards.shard_of(Travel.unpack(job.travel).target))


def finish_move(broker: Broker, id: int, hops: int, shard: int, now: int) -> None:
    """Remove the job *id*, whose move number *hops* the shard *shard* has accepted; do nothing if that is done."""
    moves = moves_of(broker)
    job = moves.outbox.get(id)
    if job is None:
        return
    travel = Travel.unpack(job.travel)
    if travel.hops + 1 != hops:
        return
    _release(broker, job)
    if travel.kind == job_history.DEAD_LETTERED:
        job.tube.counts().dead_lettered += 1
    free_key(job)
    if broker.job_waiters:
        end_job_waits(broker, id, WaitOutcome.MOVED)
    tube = job.tube
    remove_from_tables(broker, job, now)
    record_departure(broker, moves, job, shard)
    if not tube.using and not tube.watching:
        broker.drop_if_unneeded(tube)


def refuse(broker: Broker, id: int, hops: int, now: int) -> None:
    """Return the job *id*, whose move number *hops* the other shard has refused, to its tube.

    A dead letter is buried, as if there were no dead-letter tube. Any other job has the state that it had before.
    """
    job = moves_of(broker).outbox.get(id)
    if job is None or Travel.unpack(job.travel).hops + 1 != hops:
        return
    stay(broker, job, now)


def stay(broker: Broker, job: Job, now: int) -> None:
    """End the move of *job*, which is in the outbox; see `refuse`."""
    travel = Travel.unpack(job.travel)
    _release(broker, job)
    job.travel = Travel(travel.hops, travel.source).pack()
    if travel.kind == job_history.DEAD_LETTERED:
        job.tube.counts().buried += 1
        job.events = job_history.add(job.events, job_history.BURIED, now, job_history.NOBODY)
        broker.journal.move(job, job.tube)
        add_buried(broker, job)
        return
    job.events = job_history.add(job.events, job_history.EDITED, now, job_history.NOBODY)
    if job.state == BURIED:
        broker.burials += 1
        job.burial_number = broker.burials
    elif job.state == READY:
        job.ready_since = now
    broker.journal.move(job, job.tube)
    if job.state == READY:
        add_ready(broker, job, now)
    elif job.state == DELAYED:
        add_delayed(broker, job)
    else:
        job.tube.add_buried(job)


def moves_of(broker: Broker) -> Moves:
    """Return the moves of *broker*, whose queue has several shards."""
    assert broker.moves is not None
    return broker.moves


def _release(broker: Broker, job: Job) -> None:
    """Take *job* out of the outbox; it is detached, and has the state that it had before."""
    moves, tube = moves_of(broker), job.tube
    moves.remove(job, broker.tube_shards.shard_of(Travel.unpack(job.travel).target))
    job.holder = None
    tube.reserved_count -= 1
    tube.moving_count -= 1
    broker.totals.reserved -= 1
    if isinstance(job, TaggedJob):
        job.count(-1)
    job.state, job.deadline = job.former_state, job.former_deadline
    job.former_state = job.former_deadline = 0
