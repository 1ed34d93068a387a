"""A session subject to access rules, a rate limit, or timeouts.

Without any of these the server makes a plain Session, which has no overhead.

Replies to forbidden commands are ones that every client library can read: UNKNOWN_COMMAND for a command that names or
implies a tube, since any command may get this reply; NOT_FOUND for a command that names a job, so that a client cannot
find out which ids exist. docs/security.md has the table of commands.

A client that may not consume `default` cannot watch it. But the protocol has no empty list of watched tubes, so
`default` is listed until the client watches another tube, and until then its reserves are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.core.tags.tags import Tags
from greenstalk_server.core.transitions import DEFAULT_TUBE
from greenstalk_server.core.tubes.name_list import CHUNK_SIZE, NameList
from greenstalk_server.protocol import codec, replies
from greenstalk_server.protocol.access import Grants
from greenstalk_server.protocol.codec import TAGGED_LENGTH, Command
from greenstalk_server.protocol.costs import COMMAND_SLICE, LIST_COST
from greenstalk_server.protocol.extended_session import EXTENDED_HANDLERS, ExtendedSession
from greenstalk_server.protocol.framing import PUT_LENGTH
from greenstalk_server.protocol.session import Session
from greenstalk_server.protocol.work import Work

REFUSED: Final = codec.UnknownCommand.reply

LIST_BATCH: Final = 3 * CHUNK_SIZE
"""Tubes that a list-tubes examines in one slice."""


class RestrictedSession(ExtendedSession):
    """A session with grants, a rate limit, and the times that timeouts need.

    active_at       time of the last input or `resume`, nanoseconds.
    began_at        time of the first byte of the incomplete command, or of a later `resume`, nanoseconds; see
                    `is_incomplete`.

    `find_idle` sets both to the current time while replies wait for the disk.
    """

    __slots__ = ("_ahead_until", "_grants", "_interval", "_may_reserve", "_served", "active_at", "began_at")

    def __init__(self, broker: Broker, wake: Callable[[], None], grants: Grants | None, rate: int, now: int) -> None:
        """*grants* None allows everything; *rate* is in commands per second, 0 means no limit."""
        super().__init__(broker, wake)
        self.active_at: int = now
        self.began_at: int = now
        self._grants: Grants | None = grants
        self._interval: int = SECOND // rate if rate else 0
        if 0 < rate < len(COMMAND_SLICE):
            self._slice = range(rate)  # so no pause exceeds a second: a lost peer is noticed only after the pause
        self._ahead_until: int = now
        self._served: int = 0
        self._may_reserve: bool = True
        if grants is not None:
            self._handlers = _GUARDED
            self._may_reserve = grants.may_consume(DEFAULT_TUBE)
            self.client.may_inspect = grants.may_inspect
            self._update_put_permission()

    @property
    def is_incomplete(self) -> bool:
        """Whether a part of a command has arrived, and the rest has not."""
        if self.is_waiting or self.has_more:
            return False
        return self._put is not None or self._skip > 0 or bool(self._long_line) or bool(self._rest)

    def receive(self, data: bytes, now: int, limit: range = COMMAND_SLICE) -> bytes:
        """Serve *data*, as Session does."""
        was_incomplete, served = self.is_incomplete, self._served
        self.active_at = now
        reply = super().receive(data, now, limit)
        if not was_incomplete or self._served != served:
            self.began_at = now
        return reply

    def resume(self, now: int, limit: range = COMMAND_SLICE) -> bytes:
        """Continue, as Session does."""
        self.active_at = self.began_at = now
        self.pause = 0.0
        return super().resume(now, limit)

    def _serve(self, data: bytes, pos: int, out: list[bytes], now: int, limit: range) -> bytes:
        """Serve, as Session does, and count the commands served: *out* has one reply for each."""
        reply = super()._serve(data, pos, out, now, limit if len(limit) <= len(self._slice) else self._slice)
        self._served += len(out)
        if self._interval and out:
            self._limit_rate(len(out), now)
        return reply

    def _limit_rate(self, served: int, now: int) -> None:
        """Pause the client if it is more than one second of commands ahead of its rate."""
        self._ahead_until = max(self._ahead_until, now) + served * self._interval
        excess = self._ahead_until - now - SECOND
        if excess > 0 and not (self.is_waiting or self.is_closing):
            self.has_more = True
            self.pause = excess / SECOND
            self._broker.limit_counters.note("rate", self.client.address)

    # Permissions

    def _begin_put(self, command: Command, data: bytes, pos: int, out: list[bytes], now: int) -> int:
        if self._grants is None or (len(command) == PUT_LENGTH and self._max_body >= 0):
            return super()._begin_put(command, data, pos, out, now)
        tube = self.client.used.name if len(command) == PUT_LENGTH else command[6] or self.client.used.name
        is_allowed, max_body = self._grants.may_produce(tube), self._max_body
        if not is_allowed:
            self._refuse(codec.PUT, tube)
        elif len(command) == TAGGED_LENGTH:
            is_allowed = self._may_tag(command[7])
        self._max_body = self._broker.max_job_size if is_allowed else -1
        try:
            return super()._begin_put(command, data, pos, out, now)
        finally:
            self._max_body = max_body

    def _may_tag(self, tags: Tags) -> bool:
        """Whether a put may have *tags*; note a refusal. Idempotency keys need no grant: each tube has its own."""
        assert self._grants is not None
        for tag, key in ((b"grp", tags.group), (b"aft", tags.after), (b"con", tags.concurrency_key)):
            if key and not self._grants.may_use_key(key):
                self._refuse(codec.PUT, b"%b:%b" % (tag, key))
                return False
        return True

    def _refuse(self, verb: bytes, what: bytes, reply: bytes = REFUSED) -> bytes:
        request = (b"%b %b" % (verb, what) if what else verb).decode(errors="replace")
        if self.client.name:
            request += f" by {self.client.name}"
        self._broker.limit_counters.note("access", self.client.address, request)
        return reply

    def _refuse_job(self, command: Command) -> bytes:
        return self._refuse(command[0], b"%d" % command[1], replies.NOT_FOUND)

    def _update_put_permission(self) -> None:
        """Allow or forbid puts, by the tube that the client uses."""
        assert self._grants is not None
        is_allowed = self._grants.may_produce(self.client.used.name)
        self._max_body = self._broker.max_job_size if is_allowed else -1

    def _may_consume_job(self, id: int) -> bool:
        """Whether the client may reserve, delete or kick job *id*.

        True if it holds the job. True if there is no such job: the broker then finds none, and the reply is NOT_FOUND.
        """
        assert self._grants is not None
        job: Job | None = self._broker.jobs.get(id)
        return job is None or job.holder is self.client or self._grants.may_consume(job.tube.name)

    def may_delete(self, id: int) -> bool:
        """Whether the client may delete the job *id*; note a refusal."""
        if self._grants is None or self._may_consume_job(id):
            return True
        self._refuse_job((codec.DELETE_BATCH, id))
        return False

    def _may_inspect_job(self, id: int) -> bool:
        """Whether the client may inspect job *id*. True if it holds the job, or if there is no such job."""
        assert self._grants is not None
        job: Job | None = self._broker.jobs.get(id)
        return job is None or job.holder is self.client or self._grants.may_inspect(job.tube.name)

    # Verbs

    def _refuse_unlisted(self, command: Command, now: int) -> bytes | None:
        return self._refuse(command[0], b"")

    def _guarded_use(self, command: Command, now: int) -> bytes | None:
        assert self._grants is not None
        if not self._grants.may_any(command[1]):
            return self._refuse(command[0], command[1])
        reply = self._use(command, now)
        self._update_put_permission()
        return reply

    def _guarded_watch(self, command: Command, now: int) -> bytes | None:
        assert self._grants is not None
        if not self._grants.may_consume(command[1]):
            return self._refuse(command[0], command[1])
        reply = self._watch(command, now)
        if self._may_reserve or reply == replies.OUT_OF_MEMORY:
            return reply
        self._may_reserve = True
        return replies.watching(self._broker.ignore(self.client, DEFAULT_TUBE))

    def _guarded_reserve(self, command: Command, now: int) -> bytes | None:
        if not self._may_reserve:
            return self._refuse(command[0], b"")
        return EXTENDED_HANDLERS[command[0]](self, command, now)

    def _guarded_consume_job(self, command: Command, now: int) -> bytes | None:
        if not self._may_consume_job(command[1]):
            return self._refuse_job(command)
        return EXTENDED_HANDLERS[command[0]](self, command, now)

    def _guarded_inspect_job(self, command: Command, now: int) -> bytes | None:
        if not self._may_inspect_job(command[1]):
            return self._refuse_job(command)
        return EXTENDED_HANDLERS[command[0]](self, command, now)

    def _guarded_kick(self, command: Command, now: int) -> bytes | None:
        assert self._grants is not None
        used = self.client.used.name
        return self._begin_kick(command, now) if self._grants.may_consume(used) else self._refuse(command[0], used)

    def _guarded_peek_used(self, command: Command, now: int) -> bytes | None:
        assert self._grants is not None
        used = self.client.used.name
        if not self._grants.may_inspect(used):
            return self._refuse(command[0], used)
        return EXTENDED_HANDLERS[command[0]](self, command, now)

    def _guarded_pause_tube(self, command: Command, now: int) -> bytes | None:
        assert self._grants is not None
        if not self._grants.may_consume(command[1]):
            return self._refuse(command[0], command[1])
        return self._pause_tube(command, now)

    def _guarded_flush(self, command: Command, now: int) -> bytes | None:
        assert self._grants is not None
        if not self._grants.may_consume(command[1]):
            return self._refuse(command[0], command[1])
        return EXTENDED_HANDLERS[command[0]](self, command, now)

    def _guarded_stats(self, command: Command, now: int) -> bytes | None:
        assert self._grants is not None
        return self._stats(command, now) if self._grants.inspects else self._refuse(command[0], b"")

    def _guarded_stats_group(self, command: Command, now: int) -> bytes | None:
        assert self._grants is not None
        if not self._grants.may_inspect_group(command[1]):
            return self._refuse(command[0], command[1])
        return EXTENDED_HANDLERS[command[0]](self, command, now)

    def _guarded_stats_tube(self, command: Command, now: int) -> bytes | None:
        assert self._grants is not None
        if not self._grants.may_inspect(command[1]):
            return self._refuse(command[0], command[1])
        return self._stats_tube(command, now)

    def _guarded_drain(self, command: Command, now: int) -> bytes | None:
        if self._grants is None or not self._grants.administers:
            return self._refuse(command[0], b"")
        if command[0] == codec.DRAIN:
            self._broker.drain_for(self.client)
            return replies.DRAINING
        return replies.NOT_DRAINING if self._broker.undrain_for(self.client) else replies.DRAINING

    def _guarded_list_tubes(self, command: Command, now: int) -> bytes | None:
        assert self._grants is not None
        self._broker.counters.cmd_list_tubes += 1
        return self._do_work(_Listing(self._broker.name_list(), self._grants), now)


class _Listing(Work):
    """A list-tubes that lists the tubes for which there is a grant."""

    __slots__ = ("_allowed", "_bytes", "_count", "_grants", "_names", "_position")

    def __init__(self, names: NameList, grants: Grants) -> None:
        self._names: NameList = names
        self._grants: Grants = grants
        self._position: int = 0
        self._allowed: list[Collection[bytes]] = []  # chunks
        self._count: int = 0
        self._bytes: int = 0

    def do_slice(self, session: Session, broker: Broker, now: int) -> bytes | None:
        """Examine one slice of the tubes."""
        start, end = self._position, self._position + LIST_BATCH // CHUNK_SIZE
        self._position = end
        for chunk in self._names.chunks[start:end]:
            session.cost += LIST_COST * len(chunk)
            allowed = [name for name in chunk if self._grants.may_any(name)]
            if allowed:
                self._allowed.append(allowed)
                self._count += len(allowed)
                self._bytes += sum(map(len, allowed))
        if end < len(self._names.chunks):
            return None
        return session.list_names(NameList(self._allowed, self._count, self._bytes, broker.listed_names))


_CHECKED: Final[dict[bytes, Any]] = {
    codec.PEEK: RestrictedSession._guarded_inspect_job,
    codec.PEEK_READY: RestrictedSession._guarded_peek_used,
    codec.PEEK_DELAYED: RestrictedSession._guarded_peek_used,
    codec.PEEK_BURIED: RestrictedSession._guarded_peek_used,
    codec.RESERVE: RestrictedSession._guarded_reserve,
    codec.RESERVE_WITH_TIMEOUT: RestrictedSession._guarded_reserve,
    codec.RESERVE_JOB: RestrictedSession._guarded_consume_job,
    codec.DELETE: RestrictedSession._guarded_consume_job,
    codec.KICK: RestrictedSession._guarded_kick,
    codec.KICK_JOB: RestrictedSession._guarded_consume_job,
    codec.STATS: RestrictedSession._guarded_stats,
    codec.STATS_JOB: RestrictedSession._guarded_inspect_job,
    codec.STATS_TUBE: RestrictedSession._guarded_stats_tube,
    codec.STATS_GROUP: RestrictedSession._guarded_stats_group,
    codec.USE: RestrictedSession._guarded_use,
    codec.WATCH: RestrictedSession._guarded_watch,
    codec.LIST_TUBES: RestrictedSession._guarded_list_tubes,
    codec.PAUSE_TUBE: RestrictedSession._guarded_pause_tube,
    codec.RESERVE_BATCH: RestrictedSession._guarded_reserve,
    codec.FLUSH_TUBE: RestrictedSession._guarded_flush,
    codec.FLUSH_BURIED: RestrictedSession._guarded_flush,
    codec.TRUNCATE: RestrictedSession._guarded_flush,
    codec.PEEK_RESERVED: RestrictedSession._guarded_peek_used,
    codec.DRAIN: RestrictedSession._guarded_drain,
    codec.UNDRAIN: RestrictedSession._guarded_drain,
    codec.REPRIORITIZE: RestrictedSession._guarded_consume_job,
    codec.WAIT: RestrictedSession._guarded_inspect_job,
}
"""Verbs whose handler checks the grants."""

_NEED_NO_GRANT: Final = (
    codec.RELEASE,
    codec.BURY,
    codec.TOUCH,
    codec.IGNORE,
    codec.LIST_TUBE_USED,
    codec.LIST_TUBES_WATCHED,
    codec.QUIT,
    codec.TOUCH_ALL,
    codec.META,
    codec.RESERVE_MODE,
    codec.STATS_MODE,
    codec.DELETE_BATCH,
)
"""Verbs that affect only the client's own replies, the jobs that it holds, and the tubes that it uses and watches; and
delete-batch, which asks `may_delete` for each job."""


def guard(handlers: dict[bytes, Any]) -> dict[bytes, Any]:
    """Return the handlers to use under access rules. A verb that is in neither table above is refused.

    `put` has no handler; see `_begin_put`.
    """
    guarded: dict[bytes, Any] = dict.fromkeys(handlers, RestrictedSession._refuse_unlisted)
    guarded.update({verb: handlers[verb] for verb in _NEED_NO_GRANT})
    guarded.update(_CHECKED)
    return guarded


_GUARDED: Final[dict[bytes, Any]] = guard(EXTENDED_HANDLERS)
