"""Find connections that are idle, stalled in the middle of a command, or whose peer has disappeared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.limits import Limits
from greenstalk_server.net.connection import Connection
from greenstalk_server.protocol.restricted_session import RestrictedSession


def find_idle(connections: Iterable[Connection], limits: Limits, now: int) -> Iterator[tuple[Connection, str]]:
    """Yield each connection that has exceeded its idle or command timeout, with the name of that limit.

    A connection that waits for a job or holds one is not idle. While replies wait for the disk, both timeouts are
    restarted: a slow disk is not the client's fault.
    """
    idle_since = now - limits.idle_timeout * SECOND
    begun_before = now - limits.command_timeout * SECOND
    for connection in connections:
        session, client = connection.session, connection.client
        if not isinstance(session, RestrictedSession):
            continue
        if connection.awaits_disk:
            session.active_at = session.began_at = now
        elif limits.command_timeout and session.is_incomplete and session.began_at < begun_before:
            yield connection, "command_timeout"
        elif (
            limits.idle_timeout
            and session.active_at < idle_since
            and not (session.is_waiting or client.reserved or session.has_reserved_there)
        ):
            yield connection, "idle_timeout"


def find_dead(connections: Iterable[Connection], limits: Limits, now: int) -> Iterator[tuple[Connection, str]]:
    """Yield each connection whose peer has not acknowledged sent data for too long, with the name of that limit.

    Without this check, TCP would retransmit for about a quarter of an hour. If a peer has nothing to acknowledge,
    keepalive probes it (see listeners.notice_dead_peers).
    """
    for connection in connections:
        if connection.is_unanswered(limits.dead_peer_timeout, now):
            yield connection, "dead_peer_timeout"
