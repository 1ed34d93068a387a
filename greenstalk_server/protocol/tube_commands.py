"""Commands that use, watch, change or show tubes."""

from __future__ import annotations

from greenstalk_server.core.operations import connecting, editing
from greenstalk_server.core.tags.idempotency import scope_of
from greenstalk_server.core.tubes.name_list import list_of
from greenstalk_server.protocol import replies, stats
from greenstalk_server.protocol.arguments import RESERVE_MODES, BadFormat
from greenstalk_server.protocol.costs import NAME_COST, SHORT_LIST, UNPAUSE_COST
from greenstalk_server.protocol.session_state import Command, SessionState
from greenstalk_server.protocol.sliced_commands import Flush, Truncate


def use(session: SessionState, command: Command, now: int) -> bytes:
    """Use a tube."""
    session.broker.counters.cmd_use += not session.client.is_remote  # its front counts the command
    _, name = command
    session.add_tube_cost(name)
    return replies.using(name) if connecting.use(session.broker, session.client, name) else replies.OUT_OF_MEMORY


def watch(session: SessionState, command: Command, now: int) -> bytes:
    """Watch a tube, and set its weight, 1 by default."""
    session.broker.counters.cmd_watch += not session.client.is_remote  # its front counts the command
    name = command[1]
    session.add_tube_cost(name)
    if connecting.watch(session.broker, session.client, name) <= 0:
        return replies.OUT_OF_MEMORY
    connecting.set_weight(session.client, name, command[2] if len(command) > 2 else 1)
    session.note_watched()
    return replies.watching(len(session.client.watched))


def ignore(session: SessionState, command: Command, now: int) -> bytes:
    """Stop watching a tube."""
    session.broker.counters.cmd_ignore += 1
    _, name = command
    count = connecting.ignore(session.broker, session.client, name)
    session.add_tube_cost(name)
    session.note_watched()
    return replies.watching(count) if count else replies.NOT_IGNORED


def pause_tube(session: SessionState, command: Command, now: int) -> bytes:
    """Pause a tube, or end its pause."""
    session.broker.counters.cmd_pause_tube += 1
    _, name, delay, is_valid_name = command
    if not is_valid_name:
        raise BadFormat
    if not delay:
        session.cost += UNPAUSE_COST
    return replies.PAUSED if editing.pause_tube(session.broker, name, delay, now) else replies.NOT_FOUND


def stats_tube(session: SessionState, command: Command, now: int) -> bytes:
    """Show the statistics of a tube."""
    session.broker.counters.cmd_stats_tube += 1
    _, name = command
    tube = session.broker.tubes.get(name)
    return replies.NOT_FOUND if tube is None else session.stats_reply(stats.tube_stats(tube, now), tube, now)


def list_tubes(session: SessionState, command: Command, now: int) -> bytes | None:
    """List all tubes, or only the tubes that the client may know of."""
    session.broker.counters.cmd_list_tubes += not session.client.is_remote  # its front counts the command
    return session.tubes_reply(now)


def list_tube_used(session: SessionState, command: Command, now: int) -> bytes:
    """Name the used tube."""
    session.broker.counters.cmd_list_tube_used += 1
    return replies.using(session.client.used.name)


def list_tubes_watched(session: SessionState, command: Command, now: int) -> bytes:
    """List the watched tubes."""
    session.broker.counters.cmd_list_tubes_watched += 1
    watched = session.client.watched
    if len(watched) <= SHORT_LIST:
        return session.count_reply(replies.name_list(watched))
    session.cost += NAME_COST * len(watched)
    return session.list_names(list_of(watched, session.broker.listed_names))


# Extensions


def flush_tube(session: SessionState, command: Command, now: int) -> bytes | None:
    """Delete all jobs of a tube."""
    _, name = command
    broker = session.broker
    if name not in broker.tubes and not broker.retained_keys.count(scope_of(name)):
        return replies.NOT_FOUND
    return session.do_slice(Flush(broker, name, is_whole=True), now)


def flush_buried(session: SessionState, command: Command, now: int) -> bytes | None:
    """Delete the buried jobs of a tube."""
    _, name = command
    if name not in session.broker.tubes:
        return replies.NOT_FOUND
    return session.do_slice(Flush(session.broker, name, is_whole=False), now)


def truncate(session: SessionState, command: Command, now: int) -> bytes | None:
    """Delete all jobs of a tube; a reserved job is deleted when its reservation ends."""
    _, name = command
    if name not in session.broker.tubes:
        return replies.NOT_FOUND
    return session.do_slice(Truncate(session.broker, name, is_whole=True), now)


def reserve_mode(session: SessionState, command: Command, now: int) -> bytes:
    """Select how reserves choose a tube."""
    _, name = command
    if not connecting.set_reserve_mode(session.broker, session.client, RESERVE_MODES.index(name)):
        return replies.OUT_OF_MEMORY
    session.note_watched()
    return replies.using(name)
