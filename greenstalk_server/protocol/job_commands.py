"""Commands that finish, change or show jobs."""

from __future__ import annotations

from greenstalk_server.core.jobs.job import BURIED, DELAYED
from greenstalk_server.core.operations import editing, finishing, kicking, reserving
from greenstalk_server.core.outcomes import EditOutcome
from greenstalk_server.protocol import replies, stats
from greenstalk_server.protocol.session_state import Command, SessionState
from greenstalk_server.protocol.sliced_commands import DeleteBatch, FindReserved, Kick, TouchAll


def delete(session: SessionState, command: Command, now: int) -> bytes:
    """Delete a job."""
    session.broker.counters.cmd_delete += 1
    _, id = command
    return replies.DELETED if finishing.delete(session.broker, session.client, id, now) else replies.NOT_FOUND


def release(session: SessionState, command: Command, now: int) -> bytes:
    """Release a reserved job."""
    session.broker.counters.cmd_release += 1
    _, id, pri, delay = command
    is_released = finishing.release(session.broker, session.client, id, pri, delay, now)
    return replies.RELEASED if is_released else replies.NOT_FOUND


def bury(session: SessionState, command: Command, now: int) -> bytes:
    """Bury a reserved job."""
    session.broker.counters.cmd_bury += 1
    _, id, pri = command
    return replies.BURIED if finishing.bury(session.broker, session.client, id, pri, now) else replies.NOT_FOUND


def touch(session: SessionState, command: Command, now: int) -> bytes:
    """Restart the ttr of a reserved job."""
    session.broker.counters.cmd_touch += 1
    _, id = command
    return replies.TOUCHED if reserving.touch(session.broker, session.client, id, now) else replies.NOT_FOUND


def kick(session: SessionState, command: Command, now: int) -> bytes | None:
    """Kick jobs of the used tube: the buried ones if there are any, else the delayed ones."""
    session.broker.counters.cmd_kick += 1
    _, bound = command
    tube = session.client.used
    state = BURIED if tube.buried else DELAYED
    present = len(tube.buried) or tube.delayed.count
    return session.do_slice(Kick(tube, state, min(bound, present)), now)


def kick_job(session: SessionState, command: Command, now: int) -> bytes:
    """Kick a job."""
    _, id = command
    return replies.KICKED if kicking.kick_job(session.broker, id, now) else replies.NOT_FOUND


def peek(session: SessionState, command: Command, now: int) -> bytes | None:
    """Show a job."""
    session.broker.counters.cmd_peek += 1
    _, id = command
    return session.peek_reply(session.broker.jobs.get(id), now)


def peek_ready(session: SessionState, command: Command, now: int) -> bytes | None:
    """Show the first ready job of the used tube."""
    session.broker.counters.cmd_peek_ready += 1
    return session.peek_reply(session.client.used.ready.peek(), now)


def peek_delayed(session: SessionState, command: Command, now: int) -> bytes | None:
    """Show the first delayed job of the used tube."""
    session.broker.counters.cmd_peek_delayed += 1
    return session.peek_reply(session.client.used.delayed.first(), now)


def peek_buried(session: SessionState, command: Command, now: int) -> bytes | None:
    """Show the first buried job of the used tube."""
    session.broker.counters.cmd_peek_buried += 1
    return session.peek_reply(session.client.used.first_buried(), now)


def stats_job(session: SessionState, command: Command, now: int) -> bytes:
    """Show the statistics of a job."""
    session.broker.counters.cmd_stats_job += 1
    _, id = command
    job = session.broker.jobs.get(id)
    return replies.NOT_FOUND if job is None else session.stats_reply(stats.job_stats(job, now), job, now)


# Extensions


def delete_batch(session: SessionState, command: Command, now: int) -> bytes | None:
    """Delete jobs."""
    _, ids = command
    return session.do_slice(DeleteBatch(ids), now)


def touch_all(session: SessionState, command: Command, now: int) -> bytes | None:
    """Restart the ttr of all jobs that the client holds."""
    return session.do_slice(TouchAll(list(session.client.reserved)), now)


def peek_reserved(session: SessionState, command: Command, now: int) -> bytes | None:
    """Show a reserved job of the used tube."""
    return session.do_slice(FindReserved(session.broker, session.client.used), now)


def reprioritize(session: SessionState, command: Command, now: int) -> bytes:
    """Change the priority of a job that is not reserved."""
    _, id, pri = command
    outcome = editing.reprioritize(session.broker, id, pri, now)
    if outcome == EditOutcome.DONE:
        return replies.REPRIORITIZED
    return replies.ALREADY_RESERVED if outcome == EditOutcome.RESERVED else replies.NOT_FOUND
