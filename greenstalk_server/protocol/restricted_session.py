"""A session subject to access rules, a rate limit, or timeouts.

Without any of these the server makes a plain Session, which has no overhead.

A client that may not consume `default` cannot watch it. But the protocol has no empty list of watched tubes, so
`default` is listed until the client watches another tube, and until then its reserves are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from greenstalk_server.core.broker import DEFAULT_TUBE, Broker
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import connecting
from greenstalk_server.core.transitions import moving
from greenstalk_server.core.tubes.name_list import CHUNK_SIZE, NameList
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.protocol import replies
from greenstalk_server.protocol.access import Grants
from greenstalk_server.protocol.costs import COMMAND_SLICE, LIST_BATCH, LIST_COST
from greenstalk_server.protocol.link_commands import CONTINUE, DECLINE
from greenstalk_server.protocol.permissions import CONSUME_JOB
from greenstalk_server.protocol.session import PUT_LENGTH, Session
from greenstalk_server.protocol.session_state import Command, SessionState, SlicedCommand
from greenstalk_server.protocol.verb import JOB, Verb

UNSKIPPED: Final = (CONTINUE, DECLINE)
"""Commands that are served while others are skipped. They never have a reply."""


class RestrictedSession(Session):
    """A session with grants, a rate limit, and the times that timeouts need.

    active_at       time of the last input or `resume`, nanoseconds.
    began_at        time of the first byte of the incomplete command, or of a later `resume`, nanoseconds; see
                    `is_incomplete`.

    has_reserved_there  the client may hold a job of another shard (see FrontSession).
    is_timed        there is a rate limit or a timeout, so the times are updated. False saves time.

    `find_idle` sets both to the current time while replies wait for the disk.
    """

    __slots__ = (
        "_ahead_until",
        "_grants",
        "_interval",
        "_producible",
        "_served",
        "_slice",
        "active_at",
        "began_at",
        "has_reserved_there",
        "is_timed",
    )

    def __init__(self, broker: Broker, wake: Callable[[], None], grants: Grants | None, rate: int, now: int) -> None:
        """*grants* None allows everything; *rate* is in commands per second, 0 means no limit."""
        super().__init__(broker, wake)
        self.has_reserved_there: bool = False
        self.is_timed: bool = True
        self.active_at: int = now
        self.began_at: int = now
        self._grants: Grants | None = grants
        self._interval: int = SECOND // rate if rate else 0
        # no pause exceeds a second: a lost peer is noticed only after the pause
        self._slice: int = rate if 0 < rate < COMMAND_SLICE else COMMAND_SLICE
        self._ahead_until: int = now
        self._served: int = 0
        self._producible: Tube | None = None  # the used tube, if it is known to be allowed for puts
        if grants is not None:
            self.may_reserve = grants.may_consume(DEFAULT_TUBE)
            self.may_administer = grants.administers
            self.client.may_inspect = grants.may_inspect

    @property
    def is_incomplete(self) -> bool:
        """Whether a part of a command has arrived, and the rest has not."""
        if self.is_waiting or self.has_more:
            return False
        return self._put is not None or self._skip > 0 or bool(self._long_line) or bool(self._rest)

    def receive(self, data: bytes, now: int, limit: int = COMMAND_SLICE) -> bytes:
        """Serve *data*, as Session does."""
        if not self.is_timed:
            return super().receive(data, now, limit)
        was_incomplete, served = self.is_incomplete, self._served
        self.active_at = now
        reply = super().receive(data, now, limit)
        if not was_incomplete or self._served != served:
            self.began_at = now
        return reply

    def resume(self, now: int, limit: int = COMMAND_SLICE) -> bytes:
        """Continue, as Session does."""
        self.active_at = self.began_at = now
        self.pause = 0.0
        return super().resume(now, limit)

    def _serve(self, data: bytes, pos: int, out: list[bytes], now: int, limit: int) -> bytes:
        """Serve, as Session does, and count the commands served: *out* has one reply for each."""
        if not self.is_timed:
            return super()._serve(data, pos, out, now, limit)
        reply = super()._serve(data, pos, out, now, min(limit, self._slice))
        if out:
            self._note_served(len(out), now)
        return reply

    def _note_served(self, count: int, now: int) -> None:
        """Count commands; pause the client if it is more than one second of commands ahead of its rate."""
        self._served += count
        if not self._interval:
            return
        self._ahead_until = max(self._ahead_until, now) + count * self._interval
        excess = self._ahead_until - now - SECOND
        if excess > 0 and not (self.is_waiting or self.is_closing or self._must_wait()):
            self.has_more = True
            self.pause = excess / SECOND
            self.broker.limit_counters.note("rate", self.client.address)

    # Permissions

    def _handle(self, verb: Verb, command: Command, now: int) -> bytes | None:
        if self.client.is_remote and (reply := _reply_of_moved(self, verb, command)):
            return reply
        refusal = self.refusal(verb, command)
        return super()._handle(verb, command, now) if refusal is None else refusal

    def refusal(self, verb: Verb, command: Command) -> bytes | None:
        """Return the reply to *command* if no rule allows it, else None."""
        if self._grants is not None:
            missing = verb.permission.missing(self._grants, self, command)
            if missing is not None:
                self._note_refusal(verb.name, missing)
                return verb.permission.reply
        return None

    def may_list(self, name: bytes) -> bool:
        """Whether the client may know of the tube *name*."""
        return self._grants is None or self._grants.may_any(name)

    def _may_put(self, command: Command) -> bool:
        used = self.client.used
        if self._grants is None or (len(command) == PUT_LENGTH and used is self._producible):
            return True
        verb: Verb = command[0]
        missing = verb.permission.missing(self._grants, self, command)
        if missing is not None:
            self._note_refusal(verb.name, missing)
        elif len(command) == PUT_LENGTH:
            self._producible = used
        return missing is None

    def may_delete(self, id: int) -> bool:
        """Whether the client may delete the job *id*; note a refusal."""
        missing = None if self._grants is None else CONSUME_JOB.missing(self._grants, self, (None, id))
        if missing is not None:
            self._note_refusal(b"delete-batch", missing)
        return missing is None

    def _note_refusal(self, verb: bytes, missing: bytes) -> None:
        request = (b"%b %b" % (verb, missing) if missing else verb).decode(errors="replace")
        if self.client.name:
            request += f" by {self.client.name}"
        self.broker.limit_counters.note("access", self.client.address, request)

    def note_watched(self) -> None:
        """Ignore `default` once another tube is watched, if the client may not consume `default`."""
        if not self.may_reserve and len(self.client.watched) > 1:
            connecting.ignore(self.broker, self.client, DEFAULT_TUBE)
            self.may_reserve = True
        super().note_watched()

    def tubes_reply(self, now: int) -> bytes | None:
        """Return the reply that lists the tubes for which there is a grant."""
        if self._grants is None:
            return super().tubes_reply(now)
        return self.do_slice(_Listing(self.broker.name_list(), self._grants), now)


class _Listing(SlicedCommand):
    """A list-tubes that lists the tubes for which there is a grant."""

    __slots__ = ("_allowed", "_bytes", "_count", "_grants", "_names", "_position")

    def __init__(self, names: NameList, grants: Grants) -> None:
        self._names: NameList = names
        self._grants: Grants = grants
        self._position: int = 0
        self._allowed: list[Collection[bytes]] = []  # chunks
        self._count: int = 0
        self._bytes: int = 0

    def do_slice(self, session: SessionState, broker: Broker, now: int) -> bytes | None:
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


class RemoteSession(Session):
    """The session of a client of another process, subject to no access rule."""

    __slots__ = ()

    def _handle(self, verb: Verb, command: Command, now: int) -> bytes | None:
        return _reply_of_moved(self, verb, command) or super()._handle(verb, command, now)


def _reply_of_moved(session: Session, verb: Verb, command: Command) -> bytes:
    """Return the reply to *command* of a remote client if it is about a job that has moved, or follows such a one.

    Return an empty reply if the command is to be served. The front repeats the first command at the other shard, and
    then the others here, so that their effects are in order.
    """
    if session.skips:
        return b"" if verb.name in UNSKIPPED else replies.SKIPPED
    if verb.route == JOB and session.broker.moves is not None:
        number, session.known_move = session.known_move, 0
        reply = reply_of_place(moving.find(session.broker, command[1], number))
        session.skips = bool(reply)
        return reply
    return b""


def reply_of_place(place: moving.Place) -> bytes:
    """Return the reply that tells a front that a command is served at *place*; an empty one if it is served here."""
    if place == moving.HERE:
        return b""
    return replies.SKIPPED if place == moving.UNKNOWN else replies.moved(*place)
