"""A session of a client that may not do everything, or not as fast as it likes, or not take for ever.

It is a Session in all else; where nothing of this is set, a plain one is made, which pays for nothing.

What the client may not do is answered so that every client library can read it: UNKNOWN_COMMAND where a tube is
meant, which is among the replies that any command may get; NOT_FOUND where a job is meant by its id, so that nobody
learns which ids there are. docs/security.md has the table of commands.

A client that may not consume `default` does not watch it: the protocol has no empty list of watched tubes, so it is in
the list until another is watched, and until then there is no reserve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import SECOND, Job
from greenstalk_server.core.name_list import NameList
from greenstalk_server.core.transitions import DEFAULT_TUBE
from greenstalk_server.protocol import codec
from greenstalk_server.protocol.access import Grants
from greenstalk_server.protocol.codec import Command
from greenstalk_server.protocol.session import COMMAND_SLICE, HANDLERS, Session, Work

REFUSED: Final = codec.UnknownCommand.reply

LISTED_PER_SLICE: Final = 1000
LISTING_WEIGHT: Final = 64
"""Tubes that a list-tubes looks at in one slice, and the cost of each; see session.OUTPUT_SLICE."""


class RestrictedSession(Session):
    """A session within *grants* and at a *rate*.

    active_at       when something came last, nanoseconds.
    began_at        when what is not whole yet began to come, nanoseconds; see `is_incomplete`.
    """

    __slots__ = ("_ahead_until", "_grants", "_interval", "_may_reserve", "_served", "active_at", "began_at")

    def __init__(self, broker: Broker, wake: Callable[[], None], grants: Grants | None, rate: int, now: int) -> None:
        """*grants* of None are all; *rate* is in commands a second, 0 for any."""
        super().__init__(broker, wake)
        self.active_at: int = now
        self.began_at: int = now
        self._grants: Grants | None = grants
        self._interval: int = SECOND // rate if rate else 0
        if 0 < rate < len(COMMAND_SLICE):
            self._slice = range(rate)  # so that no pause is longer than a second, and a peer that is gone is noticed
        self._ahead_until: int = now
        self._served: int = 0
        self._may_reserve: bool = True
        if grants is not None:
            self._handlers = _GUARDED
            self._may_reserve = grants.may_consume(DEFAULT_TUBE)
            self._note_used()

    @property
    def is_incomplete(self) -> bool:
        """Whether the rest of a command is still to come."""
        if self.is_waiting or self.has_more:
            return False
        return self._put is not None or self._skip > 0 or self._is_long_line or bool(self._rest)

    def receive(self, data: bytes, now: int, limit: range = COMMAND_SLICE) -> bytes:
        """Take *data*, as Session does."""
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
        """Serve, as Session does; and count, since each reply is that of one command."""
        reply = super()._serve(data, pos, out, now, limit if len(limit) <= len(self._slice) else self._slice)
        self._served += len(out)
        if self._interval and out:
            self._hold_up(len(out), now)
        return reply

    def _hold_up(self, served: int, now: int) -> None:
        """Have the client wait if it is more than a second's worth of commands ahead of its rate."""
        self._ahead_until = max(self._ahead_until, now) + served * self._interval
        too_far = self._ahead_until - now - SECOND
        if too_far > 0 and not (self.is_waiting or self.is_closing):
            self.has_more = True
            self.pause = too_far / SECOND
            self._broker.limit_counters.note("rate", self.client.address)

    # What it may do

    def _begin_put(self, command: Command, data: bytes, pos: int, out: list[bytes], now: int) -> int:
        if self._largest < 0:
            self._refuse(codec.PUT, self.client.used.name)
        return super()._begin_put(command, data, pos, out, now)

    def _refuse(self, verb: bytes, what: bytes, reply: bytes = REFUSED) -> bytes:
        told = (b"%b %b" % (verb, what) if what else verb).decode(errors="replace")
        if self.client.name:
            told += f" by {self.client.name}"
        self._broker.limit_counters.note("access", self.client.address, told)
        return reply

    def _refuse_job(self, command: Command) -> bytes:
        return self._refuse(command[0], b"%d" % command[1], codec.NOT_FOUND)

    def _note_used(self) -> None:
        """Have a put be refused where the client may not put into the tube that it uses."""
        assert self._grants is not None
        is_allowed = self._grants.may_produce(self.client.used.name)
        self._largest = self._broker.max_job_size if is_allowed else -1

    def _may_consume_job(self, id: int) -> bool:
        """Whether it may do to job *id* what a worker does; also if there is none such, which the broker says."""
        assert self._grants is not None
        job: Job | None = self._broker.jobs.get(id)
        return job is None or job.holder is self.client or self._grants.may_consume(job.tube.name)

    def _may_inspect_job(self, id: int) -> bool:
        """Whether it may look at job *id*: one that it holds, too."""
        assert self._grants is not None
        job: Job | None = self._broker.jobs.get(id)
        return job is None or job.holder is self.client or self._grants.may_inspect(job.tube.name)

    # Verbs

    def _refuse_unlisted(self, command: Command, now: int) -> bytes | None:
        return self._refuse(command[0], b"")

    def _guarded_use(self, command: Command, now: int) -> bytes | None:
        assert self._grants is not None
        if not self._grants.may_something(command[1]):
            return self._refuse(command[0], command[1])
        reply = self._use(command, now)
        self._note_used()
        return reply

    def _guarded_watch(self, command: Command, now: int) -> bytes | None:
        assert self._grants is not None
        if not self._grants.may_consume(command[1]):
            return self._refuse(command[0], command[1])
        reply = self._watch(command, now)
        if self._may_reserve or reply == codec.OUT_OF_MEMORY:
            return reply
        self._may_reserve = True
        return codec.watching(self._broker.ignore(self.client, DEFAULT_TUBE))

    def _guarded_reserve(self, command: Command, now: int) -> bytes | None:
        if not self._may_reserve:
            return self._refuse(command[0], b"")
        return HANDLERS[command[0]](self, command, now)

    def _guarded_consume_job(self, command: Command, now: int) -> bytes | None:
        if not self._may_consume_job(command[1]):
            return self._refuse_job(command)
        return HANDLERS[command[0]](self, command, now)

    def _guarded_inspect_job(self, command: Command, now: int) -> bytes | None:
        if not self._may_inspect_job(command[1]):
            return self._refuse_job(command)
        return HANDLERS[command[0]](self, command, now)

    def _guarded_kick(self, command: Command, now: int) -> bytes | None:
        assert self._grants is not None
        used = self.client.used.name
        return self._begin_kick(command, now) if self._grants.may_consume(used) else self._refuse(command[0], used)

    def _guarded_peek_used(self, command: Command, now: int) -> bytes | None:
        assert self._grants is not None
        used = self.client.used.name
        if not self._grants.may_inspect(used):
            return self._refuse(command[0], used)
        return HANDLERS[command[0]](self, command, now)

    def _guarded_pause_tube(self, command: Command, now: int) -> bytes | None:
        assert self._grants is not None
        if not self._grants.may_consume(command[1]):
            return self._refuse(command[0], command[1])
        return self._pause_tube(command, now)

    def _guarded_stats(self, command: Command, now: int) -> bytes | None:
        assert self._grants is not None
        return self._stats(command, now) if self._grants.inspects else self._refuse(command[0], b"")

    def _guarded_stats_tube(self, command: Command, now: int) -> bytes | None:
        assert self._grants is not None
        if not self._grants.may_inspect(command[1]):
            return self._refuse(command[0], command[1])
        return self._stats_tube(command, now)

    def _guarded_list_tubes(self, command: Command, now: int) -> bytes | None:
        assert self._grants is not None
        self._broker.counters.cmd_list_tubes += 1
        return self._go_on_working(_Listing(list(self._broker.tubes), self._grants), now)


class _Listing(Work):
    """A list of those of the tubes *names* that *grants* concern."""

    __slots__ = ("_allowed", "_grants", "_names", "_position")

    def __init__(self, names: list[bytes], grants: Grants) -> None:
        self._names: list[bytes] = names
        self._grants: Grants = grants
        self._position: int = 0
        self._allowed: list[bytes] = []

    def go_on(self, session: Session, broker: Broker, now: int) -> bytes | None:
        """Look at a slice of the tubes."""
        start, end = self._position, self._position + LISTED_PER_SLICE
        names = self._names[start:end]
        session.cost += LISTING_WEIGHT * len(names)
        self._position = end
        self._allowed += [name for name in names if self._grants.may_something(name)]
        if end < len(self._names):
            return None
        return session.list_names(NameList(self._allowed, broker.listed_names))


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
    codec.USE: RestrictedSession._guarded_use,
    codec.WATCH: RestrictedSession._guarded_watch,
    codec.LIST_TUBES: RestrictedSession._guarded_list_tubes,
    codec.PAUSE_TUBE: RestrictedSession._guarded_pause_tube,
}
"""Verbs whose handler looks for a grant."""

_NEED_NO_GRANT: Final = (
    codec.RELEASE,
    codec.BURY,
    codec.TOUCH,
    codec.IGNORE,
    codec.LIST_TUBE_USED,
    codec.LIST_TUBES_WATCHED,
    codec.QUIT,
)
"""Verbs that concern only jobs that the client holds, and what it uses and watches."""


def guard(handlers: dict[bytes, Any]) -> dict[bytes, Any]:
    """Return the handlers under access rules. A verb of *handlers* that has no row above is refused.

    `put` has no handler; see `_begin_put`.
    """
    guarded: dict[bytes, Any] = dict.fromkeys(handlers, RestrictedSession._refuse_unlisted)
    guarded.update({verb: handlers[verb] for verb in _NEED_NO_GRANT})
    guarded.update(_CHECKED)
    return guarded


_GUARDED: Final[dict[bytes, Any]] = guard(HANDLERS)
