"""Commands that reserve jobs or wait for them, and the replies that end their waits."""

from __future__ import annotations

from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.operations import connecting, finishing, reserving
from greenstalk_server.core.outcomes import WaitOutcome
from greenstalk_server.core.transitions import moving
from greenstalk_server.core.travel import NOWHERE
from greenstalk_server.protocol import replies
from greenstalk_server.protocol.costs import OUTPUT_SLICE, RESERVE_COST
from greenstalk_server.protocol.session_state import Command, SessionState


def reserve(session: SessionState, command: Command, now: int) -> bytes | None:
    """Reserve a job; wait for it without a limit."""
    session.broker.counters.cmd_reserve += not session.client.is_remote  # its front counts the command
    return _reserve_until(session, None, now)


def reserve_with_timeout(session: SessionState, command: Command, now: int) -> bytes | None:
    """Reserve a job; wait for it until the timeout."""
    session.broker.counters.cmd_reserve_with_timeout += not session.client.is_remote  # its front counts the command
    _, timeout = command
    return _reserve_until(session, None if timeout is None else now + timeout, now)


def _reserve_until(session: SessionState, until: int | None, now: int) -> bytes | None:
    broker, client = session.broker, session.client
    if not client.is_worker:
        connecting.note_worker(broker, client)
    if session.reserve_cost:
        session.add_reserve_cost()
    job = reserving.reserve(broker, client, now)
    if job is not None:
        return session.job_reply(job, False, now)
    return _wait_for_any(session, until, now)


def _wait_for_any(session: SessionState, until: int | None, now: int) -> bytes | None:
    outcome = reserving.wait(session.broker, session.client, now if session.is_eof else until, now)
    if outcome == WaitOutcome.WAITING:
        session.is_waiting = True
        return None
    return ended_wait_reply(session, outcome)


def reserve_job(session: SessionState, command: Command, now: int) -> bytes | None:
    """Reserve a job by its id."""
    _, id = command
    job = reserving.reserve_job(session.broker, session.client, id, now)
    if job is None:
        return replies.NOT_FOUND
    connecting.note_worker(session.broker, session.client)
    return session.job_reply(job, False, now)


def reserve_batch(session: SessionState, command: Command, now: int) -> bytes | None:
    """Reserve several jobs; wait for the first one until the timeout."""
    _, session.batch_size, timeout = command
    connecting.note_worker(session.broker, session.client)
    if session.reserve_cost:
        session.add_reserve_cost()
    job = reserving.reserve(session.broker, session.client, now)
    if job is not None:
        return fill_batch(session, job, now)
    return _wait_for_any(session, now + timeout, now)


def wait(session: SessionState, command: Command, now: int) -> bytes | None:
    """Wait until a job is deleted or buried."""
    _, id, timeout = command
    until = now if session.is_eof else None if timeout is None else now + timeout
    outcome = reserving.wait_for_job(session.broker, session.client, id, until, now)
    if outcome == WaitOutcome.WAITING:
        session.is_waiting = True
        session.job_wait = id
        return None
    return _job_wait_reply(session, outcome, id)


def fill_batch(session: SessionState, job: Job, now: int) -> bytes | None:
    """Reserve further ready jobs for the batch that begins with *job*, up to a slice of output; return the reply.

    Return None if the reply has to wait for the body of the last job. A job whose body is on disk ends the batch.
    """
    batch: list[tuple[Job, bytes]] = []
    size, session.batch_size = session.batch_size, 0
    total = 0
    while True:
        body = job.body
        session.cost += session.reserve_cost + RESERVE_COST
        if body is None:
            session.batch = batch
            session.await_body(job, False)
            return None
        batch.append((job, body))
        total += len(body) + session.reserve_cost
        is_full = len(batch) >= size or total > OUTPUT_SLICE
        found = None if is_full else reserving.reserve(session.broker, session.client, now)
        if found is None:
            return _batch_reply(session, batch, now)
        job = found


def _batch_reply(session: SessionState, batch: list[tuple[Job, bytes]], now: int) -> bytes:
    """Return the reply with the jobs of *batch*. Only its last body may be sent as a stream."""
    parts = [replies.reserved_batch(len(batch))]
    parts += [session.body_reply(job, body, False, now) for job, body in batch]
    return b"".join(parts)


def _job_wait_reply(session: SessionState, outcome: int | None, id: int) -> bytes:
    """Return the reply to a wait for the job *id* that has ended; MOVED is for the front, which has to wait again."""
    if outcome == WaitOutcome.DELETED:
        return replies.finished(b"DELETED", id)
    if outcome == WaitOutcome.BURIED:
        return replies.finished(b"BURIED", id)
    if outcome == WaitOutcome.MOVED:
        shard, number = moving.find_again(session.broker, id)
        return replies.NOT_FOUND if shard == NOWHERE else replies.moved(shard, number, has_waited=True)
    return replies.NOT_FOUND if outcome == WaitOutcome.NOT_FOUND else replies.TIMED_OUT


# Replies that end a wait


def wait_reply(session: SessionState, now: int) -> bytes | None:
    """Return the reply that ends the client's wait; None if it has to wait for a body."""
    outcome, session.client.outcome = session.client.outcome, None  # else a deleted job would stay in memory
    if not isinstance(outcome, Job):
        return ended_wait_reply(session, outcome)
    return fill_batch(session, outcome, now) if session.batch_size else session.job_reply(outcome, False, now)


def ended_wait_reply(session: SessionState, outcome: int | None) -> bytes:
    """Return the reply to a wait that ended without a job."""
    if session.job_wait:
        id, session.job_wait = session.job_wait, 0
        return _job_wait_reply(session, outcome, id)
    if session.await_number:
        number, session.await_number = session.await_number, 0
        return _await_reply(outcome, number)
    is_batch, session.batch_size = session.batch_size > 0, 0
    if outcome == WaitOutcome.DEADLINE_SOON:
        return replies.DEADLINE_SOON
    return replies.reserved_batch(0) if is_batch and outcome == WaitOutcome.TIMED_OUT else replies.TIMED_OUT


def _await_reply(outcome: int | None, number: int) -> bytes:
    """Return the reply to the await *number*, which is empty if further input has ended it."""
    if outcome == WaitOutcome.OFFERED:
        return replies.offered(number)
    return replies.near_deadline(number) if outcome == WaitOutcome.DEADLINE_SOON else b""


def awaited_reply(session: SessionState, now: int) -> bytes:
    """Return the reply that waited for a body."""
    batch, session.batch = session.batch, None
    job, body = session.awaited, session.take_body()
    assert job is not None
    if body is None and not session.is_peek:  # else later reserves would fail on the same job
        finishing.bury(session.broker, session.client, job.id, job.pri, now)
        if session.client.remote is not None:
            session.client.remote.reserved -= 1  # its front counts the jobs that it receives
    if batch is not None:
        return _batch_reply(session, batch if body is None else [*batch, (job, body)], now)
    if body is not None:
        return session.body_reply(job, body, session.is_peek, now)
    return replies.NOT_FOUND if session.is_peek and job.id not in session.broker.jobs else replies.INTERNAL_ERROR
