"""Commands about the connection or the whole server."""

from __future__ import annotations

from greenstalk_server.core.operations import draining
from greenstalk_server.protocol import replies
from greenstalk_server.protocol.arguments import UnknownCommand
from greenstalk_server.protocol.extended_stats import group_stats
from greenstalk_server.protocol.session_state import Command, SessionState
from greenstalk_server.protocol.stats import server_stats


def quit(session: SessionState, command: Command, now: int) -> None:
    """Close the connection."""
    session.is_closing = True


def stats(session: SessionState, command: Command, now: int) -> bytes:
    """Show the statistics of the server."""
    session.broker.counters.cmd_stats += not session.client.is_remote  # its front counts the command
    return session.stats_reply(server_stats(session.broker, now), None, now)


# Extensions


def stats_group(session: SessionState, command: Command, now: int) -> bytes:
    """Count the jobs of a group."""
    _, key = command
    counts = session.broker.group_counts(key)
    return replies.NOT_FOUND if counts is None else session.count_reply(replies.stats(group_stats(key, counts)))


def stats_mode(session: SessionState, command: Command, now: int) -> bytes:
    """Select the keys of statistics."""
    _, name = command
    session.extends_stats = name == b"extended"
    return replies.using(name)


def meta(session: SessionState, command: Command, now: int) -> bytes:
    """Select the fields that follow the size of each job."""
    _, session.meta = command
    return replies.counted(b"META", len(session.meta))


def drain(session: SessionState, command: Command, now: int) -> bytes:
    """Refuse puts."""
    if not session.may_administer:
        raise UnknownCommand
    draining.drain_for(session.broker, session.client)
    return replies.DRAINING


def undrain(session: SessionState, command: Command, now: int) -> bytes:
    """Accept puts again, if a client has begun the drain."""
    if not session.may_administer:
        raise UnknownCommand
    return replies.NOT_DRAINING if draining.undrain_for(session.broker, session.client) else replies.DRAINING
