"""The commands that several shards serve, or whose effect a front session must know. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from greenstalk_server.core.operations import reserving
from greenstalk_server.protocol import replies
from greenstalk_server.protocol import session_commands as sessions
from greenstalk_server.protocol import tube_commands as tubes
from greenstalk_server.protocol.costs import JOB_COST
from greenstalk_server.protocol.gathering import merged_group, merged_stats, summed
from greenstalk_server.protocol.session_state import Command

if TYPE_CHECKING:
    from greenstalk_server.protocol.front_session import FrontSession


def _use(session: FrontSession, command: Command, now: int) -> bytes | None:
    name: bytes = command[1]
    shard = session.routes.shard_of(name)
    if shard != session.own:
        session.broker.counters.cmd_use += 1
        session.use_there(shard, name)
        return None
    reply = tubes.use(session, command, now)
    if reply.startswith(b"USING"):
        session.use(name)
    return reply


def _list_tube_used(session: FrontSession, command: Command, now: int) -> bytes:
    session.broker.counters.cmd_list_tube_used += 1
    return replies.using(session.used)


def _watch(session: FrontSession, command: Command, now: int) -> bytes | None:
    name: bytes = command[1]
    weight: int = command[2] if len(command) > 2 else 1
    if not session.may_watch(name):
        return replies.OUT_OF_MEMORY
    shard = session.routes.shard_of(name)
    if shard != session.own:
        session.broker.counters.cmd_watch += 1
        return session.watch(shard, name, weight, b"")
    return session.watch(shard, name, weight, tubes.watch(session, command, now))


def _ignore(session: FrontSession, command: Command, now: int) -> bytes:
    session.broker.counters.cmd_ignore += 1
    name: bytes = command[1]
    if name in session.watched:
        if len(session.watched) == 1:
            return replies.NOT_IGNORED
        session.ignore(name)
        session.note_watched()
    return replies.watching(len(session.watched))


def _list_tubes_watched(session: FrontSession, command: Command, now: int) -> bytes:
    session.broker.counters.cmd_list_tubes_watched += 1
    return session.count_reply(replies.name_list(session.watched))


def _list_tubes(session: FrontSession, command: Command, now: int) -> bytes | None:
    session.broker.counters.cmd_list_tubes += 1
    session.list_everywhere()
    return None


def _reserve(session: FrontSession, command: Command, now: int) -> bytes | None:
    session.broker.counters.cmd_reserve += 1
    return session.reserve(None, 0, now)


def _reserve_with_timeout(session: FrontSession, command: Command, now: int) -> bytes | None:
    session.broker.counters.cmd_reserve_with_timeout += 1
    return session.reserve(None if command[1] is None else now + command[1], 0, now)


def _reserve_batch(session: FrontSession, command: Command, now: int) -> bytes | None:
    _, size, timeout = command
    return session.reserve(now + timeout, size, now)


def _delete_batch(session: FrontSession, command: Command, now: int) -> bytes | None:
    ids: list[int] = command[1]
    shards = session.routes.ids.shards
    by_shard: dict[int, list[int]] = {}
    for id in ids:
        for shard in [session.shard_of_job(id)] if id >= session.routes.ids.base else range(shards):
            by_shard.setdefault(shard, []).append(id)
    return session.delete(by_shard, len(ids), now)


def _touch_all(session: FrontSession, command: Command, now: int) -> bytes | None:
    own = list(session.client.reserved)
    session.cost += JOB_COST * len(own)
    touched = sum([reserving.touch(session.broker, session.client, id, now) for id in own])

    def merge(parts: list[bytes]) -> bytes:
        return replies.counted(b"TOUCHED_ALL", touched + summed(b"TOUCHED_ALL", parts))

    return session.gather(dict.fromkeys(session.holding_shards(), session.line), merge, [], True)


def _stats(session: FrontSession, command: Command, now: int) -> bytes | None:
    own = sessions.stats(session, command, now)
    return session.everywhere(merged_stats, own, *session.routes.standby_stats(session.broker))


def _stats_group(session: FrontSession, command: Command, now: int) -> bytes | None:
    return session.everywhere(merged_group, sessions.stats_group(session, command, now))


def _drain(session: FrontSession, command: Command, now: int) -> bytes | None:
    return session.everywhere(lambda parts: replies.DRAINING, sessions.drain(session, command, now))


def _undrain(session: FrontSession, command: Command, now: int) -> bytes | None:
    own = sessions.undrain(session, command, now)
    return session.everywhere(lambda parts: replies.DRAINING if replies.DRAINING in parts else parts[0], own)


def _stats_mode(session: FrontSession, command: Command, now: int) -> bytes:
    session.tell_all()
    return sessions.stats_mode(session, command, now)


def _meta(session: FrontSession, command: Command, now: int) -> bytes:
    session.tell_all()
    return sessions.meta(session, command, now)


def _reserve_mode(session: FrontSession, command: Command, now: int) -> bytes:
    reply = tubes.reserve_mode(session, command, now)
    if reply != replies.OUT_OF_MEMORY:
        session.tell_all()
    return reply


COMMANDS: Final[dict[bytes, Callable[[FrontSession, Command, int], bytes | None]]] = {
    b"delete-batch": _delete_batch,
    b"drain": _drain,
    b"ignore": _ignore,
    b"list-tube-used": _list_tube_used,
    b"list-tubes": _list_tubes,
    b"list-tubes-watched": _list_tubes_watched,
    b"meta": _meta,
    b"reserve": _reserve,
    b"reserve-batch": _reserve_batch,
    b"reserve-mode": _reserve_mode,
    b"reserve-with-timeout": _reserve_with_timeout,
    b"stats": _stats,
    b"stats-group": _stats_group,
    b"stats-mode": _stats_mode,
    b"touch-all": _touch_all,
    b"undrain": _undrain,
    b"use": _use,
    b"watch": _watch,
}
"""The commands whose route is MANY or RESERVE."""
