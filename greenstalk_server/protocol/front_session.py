"""A session in a queue of several shards: it serves commands on its own shard, and forwards the others.

The process that holds a connection is its *front*. A command that names a tube or a job is served by the shard that
owns it. The front forwards the line, with the body of a put, over a channel to that shard, where the session of a
remote client serves it (see `link_commands`). The front opens a channel when the client first needs a shard, and then
tells it which of the shard's tubes the client uses and watches.

Replies and effects stay in the order of the commands: consecutive commands for one shard form a *run*, which is
forwarded as one piece; the session is parked until the run's last reply has arrived, and only then serves the next
command. So while a session is parked, `_work` knows what it waits for.

A reserve from tubes of several shards takes the best of the heads that it knows: its own, and those that the other
shards publish. If no tube has a job, it waits at each of the shards, and claims the first job that it is offered.
Before it times out, it asks each of them once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from greenstalk_server.core.broker import DEFAULT_TUBE, Broker
from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.operations import connecting, finishing, reserving
from greenstalk_server.core.outcomes import Refusal, WaitOutcome
from greenstalk_server.core.transitions.waiting import cancel_wait
from greenstalk_server.core.tubes.head_watch import NO_HEAD, Head
from greenstalk_server.protocol import replies
from greenstalk_server.protocol import session_commands as sessions
from greenstalk_server.protocol import tube_commands as tubes
from greenstalk_server.protocol.access import Grants
from greenstalk_server.protocol.arguments import RESERVE_MODES
from greenstalk_server.protocol.costs import COMMAND_SLICE, JOB_COST, OUTPUT_SLICE, RESERVE_COST, SHORT_LIST
from greenstalk_server.protocol.gathering import merged_group, merged_names, merged_stats, summed
from greenstalk_server.protocol.link_frames import LinkError
from greenstalk_server.protocol.replies import CRLF
from greenstalk_server.protocol.reply_reader import ReplyReader
from greenstalk_server.protocol.reserve_commands import ended_wait_reply, fill_batch
from greenstalk_server.protocol.restricted_session import RestrictedSession
from greenstalk_server.protocol.session import POSTPONED, PUT_LENGTH
from greenstalk_server.protocol.session_state import Command
from greenstalk_server.protocol.streams import WholeStream
from greenstalk_server.protocol.verb import HERE, JOB, MANY, RESERVE, USED, Verb

NO_SHARD: Final = -1

REPEATABLE: Final = frozenset(
    b"peek peek-ready peek-delayed peek-buried peek-reserved stats-job stats-tube touch wait".split()
)
"""Commands that change nothing if they are served twice, so they are sent again if their shard dies before it
replies."""


class Wire(Protocol):
    """The bytes of one channel."""

    def send(self, data: bytes) -> None:
        """Send *data*; keep it while the shard cannot be reached. Does not switch."""

    def close(self) -> None:
        """Disconnect the remote client. This must be the last call."""


class Routes(Protocol):
    """The shards of the queue, as a front sees them.

    own         the shard of this process.
    ids         the ids that it assigns.
    heads       the heads of tubes of other shards, as published; tubes without a job are missing.
    """

    own: int
    ids: IdSequence
    heads: dict[bytes, Head]

    def shard_of(self, tube: bytes) -> int:
        """Return the shard that owns *tube*."""

    def is_linked(self, shard: int) -> bool:
        """Return whether *shard* can be reached now."""

    def open(self, shard: int, session: FrontSession, receive: Callable[[bytes | None], None]) -> Wire:
        """Connect a remote client for *session* at *shard*. *receive* gets its replies, and None if they are lost."""


class Channel:
    """The remote client of a session at one shard. It expects one reply to each command that it sends.

    has_reserved    the client may hold a job there.
    is_awaiting     the client waits there, or has an offer.
    """

    def __init__(self, session: FrontSession, shard: int) -> None:
        self.has_reserved: bool = False
        self.is_awaiting: bool = False
        self._session: FrontSession = session
        self._shard: int = shard
        self._reader: ReplyReader = ReplyReader()
        self._expected: deque[bool] = deque()  # for each reply to come, whether the session wants it
        self._wire: Wire = session.routes.open(shard, session, self._receive)

    def ask(self, data: bytes, count: int) -> None:
        """Send *data*, which has *count* commands; pass each reply to the session."""
        self._expected.extend([True] * count)
        self._wire.send(data)

    def tell(self, data: bytes, count: int = 1) -> None:
        """Send *data*, which has *count* commands; ignore the replies."""
        self._expected.extend([False] * count)
        self._wire.send(data)

    def end_await(self) -> None:
        """Ignore the reply to the await, if there was none yet. The caller must send another command, which ends it."""
        self.is_awaiting = False
        self._expected = deque([False] * len(self._expected))

    def close(self) -> None:
        """Disconnect the remote client."""
        self._wire.close()

    def _receive(self, data: bytes | None) -> None:
        if data is None:
            self._session.lose(self._shard)
            return
        for reply in self._reader.feed(data):
            if not self.has_reserved and reply.startswith(b"RESERVED"):
                self.has_reserved = self._session.has_reserved_there = True
                connecting.note_worker(self._session.broker, self._session.client)
            if not self._expected:
                raise LinkError("a reply to no command")
            if self._expected.popleft():
                self._session.receive_reply(self._shard, reply)


class Work:
    """The unfinished work of a parked session.

    has_news    something has arrived since the last `advance`.
    """

    __slots__ = ("has_news",)

    def __init__(self) -> None:
        self.has_news: bool = False

    def is_over(self, session: FrontSession) -> bool:
        """Whether `advance` is due."""
        return self.has_news

    def receive(self, shard: int, reply: bytes) -> None:
        """Keep *reply* of *shard*."""
        raise NotImplementedError

    def needs(self, shard: int) -> bool:
        """Whether the work needs a reply of *shard* to continue."""
        return True

    def lose(self, session: FrontSession, shard: int) -> None:
        """Close the connection: nobody knows what *shard* has done."""
        session.is_closing = True
        self.has_news = True

    def advance(self, session: FrontSession, now: int) -> bytes | None:
        """Return the reply, or None if more is to come."""
        raise NotImplementedError

    def end(self, session: FrontSession, now: int) -> bytes | None:
        """End a wait, since the client has closed its side; return the reply, or None if it is to come."""
        return None


class Run(Work):
    """Commands for one shard, which changes nothing twice if it serves them twice, or may do so."""

    __slots__ = ("_count", "_data", "_is_repeatable", "_note", "_parts", "_shard")

    def __init__(
        self, shard: int, data: bytes, count: int, is_repeatable: bool, note: Callable[[bytes], bytes] | None = None
    ) -> None:
        """*data* has *count* commands. *note* returns what is sent in place of a reply."""
        super().__init__()
        self._shard: int = shard
        self._data: bytes = data
        self._count: int = count
        self._is_repeatable: bool = is_repeatable
        self._parts: list[bytes] = []
        self._note: Callable[[bytes], bytes] | None = note

    def begin(self, session: FrontSession) -> None:
        """Forward the commands."""
        self._parts = []
        session.channel(self._shard).ask(self._data, self._count)

    def lose(self, session: FrontSession, shard: int) -> None:
        """Forward the commands again if that is harmless; else close the connection."""
        if shard != self._shard:
            return
        if self._is_repeatable:
            self.begin(session)
        else:
            super().lose(session, shard)

    def receive(self, shard: int, reply: bytes) -> None:
        """Keep *reply* of *shard*."""
        self._parts.append(reply if self._note is None else self._note(reply))
        self.has_news = len(self._parts) == self._count

    def advance(self, session: FrontSession, now: int) -> bytes | None:
        """Return all replies."""
        return b"".join(self._parts)

    def end(self, session: FrontSession, now: int) -> bytes | None:
        """End the wait for a job, if the run has one."""
        session.end_remote_wait(self._shard)
        return None


Merge: TypeAlias = Callable[[list[bytes]], bytes]


class Gathering(Work):
    """A command for several shards, whose replies *merge* makes one."""

    __slots__ = ("_awaited", "_is_repeatable", "_merge", "_parts")

    def __init__(self, lines: dict[int, bytes], merge: Merge, parts: list[bytes], is_repeatable: bool) -> None:
        """*lines*: the command for each shard. *parts*: the replies that are there already."""
        super().__init__()
        self._awaited: dict[int, bytes] = lines
        self._merge: Merge = merge
        self._parts: list[bytes] = parts
        self._is_repeatable: bool = is_repeatable

    def begin(self, session: FrontSession) -> None:
        """Send the commands."""
        for shard, line in self._awaited.items():
            session.channel(shard).ask(line, 1)

    def receive(self, shard: int, reply: bytes) -> None:
        """Keep *reply* of *shard*."""
        self._parts.append(reply)
        del self._awaited[shard]
        self.has_news = not self._awaited

    def lose(self, session: FrontSession, shard: int) -> None:
        """Send the command again if that is harmless; else close the connection."""
        if shard not in self._awaited:
            return
        if self._is_repeatable:
            session.channel(shard).ask(self._awaited[shard], 1)
        else:
            super().lose(session, shard)

    def advance(self, session: FrontSession, now: int) -> bytes | None:
        """Return the merged reply."""
        return self._merge(self._parts)


class Search(Work):
    """A command about a job whose shard is not known: the shards are asked in turn until one has the job."""

    __slots__ = ("_asked", "_line", "_reply", "_shards")

    def __init__(self, shards: list[int], line: bytes) -> None:
        super().__init__()
        self._shards: list[int] = shards
        self._line: bytes = line
        self._reply: bytes = replies.NOT_FOUND
        self._asked: int = NO_SHARD

    def lose(self, session: FrontSession, shard: int) -> None:
        """Close the connection if *shard* was asked."""
        if shard == self._asked:
            super().lose(session, shard)

    def receive(self, shard: int, reply: bytes) -> None:
        """Keep *reply* of *shard*."""
        self._reply = reply
        self.has_news = True

    def advance(self, session: FrontSession, now: int) -> bytes | None:
        """Return the reply, or ask the next shard."""
        if self._reply != replies.NOT_FOUND or not self._shards:
            return self._reply
        self.has_news = False
        self._asked = self._shards.pop()
        session.channel(self._asked).ask(self._line, 1)
        return None


class Reserve(Work):
    """A reserve from tubes of several shards.

    It is in one of three states: it waits at all shards (`_claimed` is NO_SHARD), it has sent a claim to the shard
    `_claimed`, or it asks each of `_unasked` before it times out (`_is_last`).
    """

    __slots__ = ("_batch", "_claimed", "_is_last", "_offers", "_outcome", "_reply", "_unasked", "_until")

    def __init__(self, until: int | None, batch: int) -> None:
        """*until*: end of the wait in nanoseconds, None for never; *batch*: maximum of jobs, 0 for a single one."""
        super().__init__()
        self._until: int | None = until
        self._batch: int = batch
        self._claimed: int = NO_SHARD
        self._offers: list[int] = []
        self._reply: bytes = b""
        self._is_last: bool = False
        self._unasked: list[int] = []
        self._outcome: int = WaitOutcome.TIMED_OUT

    def begin(self, session: FrontSession, now: int) -> bytes | None:
        """Reserve the best of the known heads; without one, wait."""
        session.cost += RESERVE_COST
        best, shard = session.best_remote_head()
        first = reserving.find(session.broker, session.client, now)
        if first is not None and (shard == NO_SHARD or (first.pri, first.ready_since) <= best):
            return self._take(session, reserving.reserve(session.broker, session.client, now), now)
        if shard != NO_SHARD:
            self._claim(session, shard)
            return None
        return self._wait(session, now)

    def is_over(self, session: FrontSession) -> bool:
        """Whether `advance` is due."""
        return self.has_news or (self._claimed == NO_SHARD and not session.client.is_waiting)

    def receive(self, shard: int, reply: bytes) -> None:
        """Keep *reply* of *shard*: to a claim, or to an await."""
        self.has_news = True
        if shard == self._claimed:
            self._reply = reply
        elif reply == replies.OFFERED:
            self._offers.append(shard)
        elif reply == replies.DEADLINE_SOON:
            self._outcome = WaitOutcome.DEADLINE_SOON

    def needs(self, shard: int) -> bool:
        """Whether a claim was sent to *shard*; a wait continues at the other shards."""
        return shard == self._claimed

    def lose(self, session: FrontSession, shard: int) -> None:
        """Try again: a reservation ends with its shard."""
        self.has_news = True
        if shard == self._claimed:
            self._reply = replies.TIMED_OUT
        elif shard in self._offers:
            self._offers.remove(shard)

    def advance(self, session: FrontSession, now: int) -> bytes | None:
        """Return the reply, or claim, wait or ask on."""
        self.has_news = False
        if self._claimed == NO_SHARD:
            return self._end_wait(session, now)
        if not self._reply:
            return None  # an offer of another shard, which may be claimed next
        claimed, self._claimed, reply, self._reply = self._claimed, NO_SHARD, self._reply, b""
        if reply.startswith(b"RESERVED") and reply != b"RESERVED_BATCH 0\r\n":
            session.decline_all(claimed)
            return reply
        session.pass_heads(claimed)
        if reply == replies.DEADLINE_SOON:
            self._outcome = WaitOutcome.DEADLINE_SOON
        elif reply == replies.OUT_OF_MEMORY or reply == replies.INTERNAL_ERROR:
            session.decline_all(claimed)
            return reply
        if self._is_last:
            return self._ask_next(session, now)
        if self._offers:
            self._claim(session, self._offers.pop(0))
            return None
        return self.begin(session, now)

    def end(self, session: FrontSession, now: int) -> bytes | None:
        """End the wait, since the client has closed its side."""
        self._until = now
        if self._claimed != NO_SHARD:
            return None
        cancel_wait(session.broker, session.client)
        return self._ask(session, now)

    def _take(self, session: FrontSession, job: Job | None, now: int) -> bytes | None:
        """Reply with *job* of the own shard, or begin again if it was not to be had."""
        session.decline_all(NO_SHARD)
        if job is None:
            return self._wait(session, now)
        if self._batch:
            session.batch_size = self._batch
            return fill_batch(session, job, now)
        return session.job_reply(job, False, now)

    def _claim(self, session: FrontSession, shard: int) -> None:
        line = b"claim-batch %d\r\n" % self._batch if self._batch else b"claim\r\n"
        self._claimed = shard
        session.claim(shard, line)

    def _wait(self, session: FrontSession, now: int) -> bytes | None:
        """Wait at the own shard and at the others, unless the time is up."""
        if self._until is not None and self._until <= now:
            return self._ask(session, now)
        outcome = reserving.wait(session.broker, session.client, self._until, now)
        if outcome != WaitOutcome.WAITING:
            self._outcome = outcome
            return self._ask(session, now)
        session.await_all()
        return None

    def _end_wait(self, session: FrontSession, now: int) -> bytes | None:
        """The wait at the own shard has ended, or another shard has made an offer, or said that a deadline is near."""
        client = session.client
        if not client.is_waiting:
            outcome, client.outcome = client.outcome, None
            if isinstance(outcome, Job):
                return self._take(session, outcome, now)
            if isinstance(outcome, int):
                self._outcome = outcome
            return self._ask(session, now)
        if not self._offers and self._outcome == WaitOutcome.TIMED_OUT:
            session.await_all()  # a shard was lost
            return None
        cancel_wait(session.broker, client)
        if not self._offers:
            return self._ask(session, now)
        self._claim(session, self._offers.pop(0))
        return None

    def _ask(self, session: FrontSession, now: int) -> bytes | None:
        """Ask each shard once more, so that no job is missed whose put was acknowledged before the wait ends."""
        self._is_last = True
        self._unasked = [shard for shard in session.waited_shards() if session.routes.is_linked(shard)]
        return self._ask_next(session, now)

    def _ask_next(self, session: FrontSession, now: int) -> bytes | None:
        if self._unasked:
            self._claim(session, self._unasked.pop())
            return None
        job = reserving.reserve(session.broker, session.client, now)
        if job is not None:
            return self._take(session, job, now)
        if self._outcome == WaitOutcome.TIMED_OUT:  # a reservation of the own shard may be about to end
            self._outcome = reserving.wait(session.broker, session.client, now, now)
        session.decline_all(NO_SHARD)
        session.batch_size = self._batch
        return ended_wait_reply(session, self._outcome)


class FrontSession(RestrictedSession):
    """The session of a connection in a queue of several shards.

    routes              the shards.
    """

    __slots__ = (
        "_base",
        "_channels",
        "_is_run_repeatable",
        "_own",
        "_passed",
        "_put_line",
        "_remote_watches",
        "_run",
        "_run_shard",
        "_run_size",
        "_shards",
        "_used",
        "_used_shard",
        "_watched",
        "_work",
        "origin",
        "routes",
    )

    def __init__(
        self,
        broker: Broker,
        wake: Callable[[], None],
        grants: Grants | None,
        rate: int,
        now: int,
        routes: Routes,
        origin: tuple[str, list[str]],
        is_timed: bool,
    ) -> None:
        """See RestrictedSession. *origin*: name of the listener, and names in the client's certificate."""
        super().__init__(broker, wake, grants, rate, now)
        self.routes: Routes = routes
        self.is_timed = is_timed
        self._own: int = routes.own
        self._base: int = routes.ids.base
        self._shards: int = routes.ids.shards
        self.origin: tuple[str, list[str]] = origin
        self._channels: dict[int, Channel] = {}
        self._work: Work | None = None
        self._put_line: bytes = b""
        self._run: list[bytes] = []
        self._run_size: int = 0
        self._is_run_repeatable: bool = True
        self._run_shard: int = NO_SHARD
        self._used: bytes = DEFAULT_TUBE
        self._used_shard: int = routes.shard_of(DEFAULT_TUBE)
        self._watched: dict[bytes, int] = {DEFAULT_TUBE: 1}
        self._passed: dict[bytes, Head] = {}
        self._remote_watches: int = 0
        if self._used_shard != routes.own:
            self._remote_watches = 1
            connecting.leave(broker, self.client)
            connecting.unwatch(broker, self.client, DEFAULT_TUBE)

    # The state of the session

    @property
    def is_woken(self) -> bool:
        """Whether `resume` is due."""
        work = self._work
        return work.is_over(self) if work is not None else self.is_wait_over()

    @property
    def is_blocked(self) -> bool:
        """Whether the session is parked for something that the end of its input does not end."""
        return self.awaited is not None or (self._work is not None and not self.client.is_waiting)

    def resume(self, now: int, limit: range = COMMAND_SLICE) -> bytes:
        """Continue, as RestrictedSession does, or after a reply of another shard."""
        work = self._work
        if work is None:
            return super().resume(now, limit)
        self.active_at = self.began_at = now
        self.pause = 0.0
        self.cost = 0
        self.reports = isinstance(work, Reserve)
        self.is_waiting = False
        if self.is_closing:
            return b""
        return self._reply(work.advance(self, now), now, limit)

    def end_wait(self, now: int, limit: range = COMMAND_SLICE) -> bytes:
        """End a wait, as Session does."""
        work = self._work
        if work is None:
            return super().end_wait(now, limit)
        if self.is_woken:
            return self.resume(now, limit)
        self.is_waiting = False
        return self._reply(work.end(self, now), now, limit)

    def _reply(self, reply: bytes | None, now: int, limit: range) -> bytes:
        """Return *reply* of the work, and serve what follows; with None, park again."""
        if reply is None and self.is_eof and self._work is not None:
            reply = self._work.end(self, now)  # the input has ended, and the work had other news
        if reply is None:
            self.is_waiting = True
            if self.awaited is not None:  # the work is done; the body of its job is being read
                self._work = None
            return b""
        self._work = None
        if self.stream is not None:
            self.has_more = True
            return reply
        if len(reply) > OUTPUT_SLICE:
            self.stream = WholeStream(reply)
            self.has_more = True
            return b""
        return self._serve(self._rest, self._position, [reply], now, limit)

    def close(self, now: int) -> None:
        """Disconnect the client, here and at the other shards."""
        self._work = None
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()
        super().close(now)

    def receive_reply(self, shard: int, reply: bytes) -> None:
        """Keep *reply* of *shard* for the work, and have `resume` called if it is complete."""
        work = self._work
        if work is not None:
            work.receive(shard, reply)
            if work.is_over(self):
                self.client.wake()

    def needs(self, shard: int) -> bool:
        """Whether the session is parked until *shard* replies."""
        return self._work is not None and self._work.needs(shard)

    def lose(self, shard: int) -> None:
        """Forget the channel to *shard*, which was lost with all that the client held there."""
        if self._channels.pop(shard, None) is None:
            return
        work = self._work
        if work is not None:
            work.lose(self, shard)
            if work.is_over(self):
                self.client.wake()

    # Channels

    def channel(self, shard: int) -> Channel:
        """Return the channel to *shard*; open it if there is none."""
        channel = self._channels.get(shard)
        if channel is None:
            channel = self._channels[shard] = Channel(self, shard)
            lines = [b"watch %b %d" % each for each in self._watched.items() if self.routes.shard_of(each[0]) == shard]
            if self._used_shard == shard:
                lines.append(b"use " + self._used)
            if self.meta:
                lines.append(b"meta " + b" ".join(self.meta))
            if self.client.weighting is not None:
                lines.append(b"reserve-mode " + RESERVE_MODES[self.client.weighting.mode])
            lines.append(b"stats-mode " + (b"extended" if self.extends_stats else b"standard"))
            channel.tell(b"\r\n".join(lines) + CRLF, len(lines))
        return channel

    def end_remote_wait(self, shard: int) -> None:
        """End the wait for a job in the run for *shard*, if there is one. The reply to this itself is not wanted."""
        channel = self._channels.get(shard)
        if channel is not None:
            channel.tell(b"decline\r\n")

    def tell_all(self) -> None:
        """Send the line, a command that changes the session, to all shards that have a channel; ignore the replies."""
        for channel in self._channels.values():
            channel.tell(self.line + CRLF)

    def holding_shards(self) -> list[int]:
        """Return the other shards where the client may hold a job."""
        return [shard for shard, channel in self._channels.items() if channel.has_reserved]

    def _others(self) -> list[int]:
        return [shard for shard in range(self._shards) if shard != self._own]

    # Runs

    def _serve(self, data: bytes, pos: int, out: list[bytes], now: int, limit: range) -> bytes:
        """Serve, as RestrictedSession does, and forward the run at the end."""
        reply = super()._serve(data, pos, out, now, limit)
        if self._run:
            shard, run = self._run_shard, self._run
            work = Run(shard, b"".join(run), len(run), self._is_run_repeatable)
            self._run, self._run_size, self._run_shard, self._is_run_repeatable = [], 0, NO_SHARD, True
            self._begin(work)
            if self.is_eof:
                self.end_remote_wait(shard)
            self.is_closing = self.has_more = False
        return reply

    def _park(self, work: Work) -> None:
        self._work = work
        self.is_waiting = True

    def _begin(self, work: Run | Gathering) -> None:
        """Park until *work* is done, and begin it."""
        self._park(work)
        work.begin(self)

    def _forward(self, shard: int, data: bytes, is_repeatable: bool) -> bytes:
        """Add *data*, a command, to the run for *shard*; return an empty reply."""
        if self._run and (shard != self._run_shard or self._run_size > OUTPUT_SLICE):
            raise POSTPONED
        self._run.append(data)
        self._is_run_repeatable &= is_repeatable
        self._run_size += len(data)
        self._run_shard = shard
        return b""

    def _must_wait(self) -> bool:
        return bool(self._run)

    def _end_run(self) -> None:
        """Raise Postponed while there is a run: the command must not overtake it."""
        if self._run:
            raise POSTPONED

    def _handle(self, verb: Verb, command: Command, now: int) -> bytes | None:
        route, own = verb.route, self._own
        if route == HERE:
            shard = own
        elif route == JOB:
            id: int = command[1]
            if id < self._base:
                return self._search(verb, command, now)
            shard = (id - self._base) % self._shards
        elif route == RESERVE and self.is_local:
            shard = own
        elif route in (MANY, RESERVE):
            self._end_run()
            refusal = self.refusal(verb, command)
            return COMMANDS[verb.name](self, command, now) if refusal is None else refusal
        else:
            shard = self._used_shard if route == USED else self.routes.shard_of(command[1])
        if shard != own:
            if verb.name == b"wait":  # alone in its run, so that it holds up no reply before it
                self._end_run()
                self._forward(shard, self.line + CRLF, True)
                return None
            return self._forward(shard, self.line + CRLF, verb.name in REPEATABLE)
        self._end_run()
        return super()._handle(verb, command, now)

    def _search(self, verb: Verb, command: Command, now: int) -> bytes | None:
        """Serve a command about a job with an id from before the queue had several shards."""
        self._end_run()
        reply = super()._handle(verb, command, now)
        if reply != replies.NOT_FOUND:
            return reply
        work = Search(self._others(), self.line + CRLF)
        reply = work.advance(self, now)
        if reply is None:
            self._park(work)
        return reply

    # Puts

    def _put_shard(self, command: Command) -> int:
        name: bytes = command[6] if len(command) > PUT_LENGTH else b""
        return self.routes.shard_of(name) if name else self._used_shard

    def _may_put(self, command: Command) -> bool:
        """Whether an access rule allows the put; another shard decides about its own tubes."""
        return self._put_shard(command) != self._own or super()._may_put(command)

    def _begin_put(self, command: Command, data: bytes, pos: int, out: list[bytes], now: int) -> int:
        shard = self._put_shard(command)
        if shard == self._own:
            self._end_run()
            return super()._begin_put(command, data, pos, out, now)
        size: int = command[4]
        if self._run and not (
            shard == self._run_shard
            and command[5]
            and size <= self.broker.max_job_size
            and data.startswith(CRLF, pos + size)
        ):
            raise POSTPONED  # a refusal must not overtake the run, nor a put that is not whole
        verb: Verb = command[0]
        if not verb.is_extension:
            self.broker.counters.cmd_put += 1
        end = self._refuse_put(command, data, pos, out)
        return end if end >= 0 else self._read_body(command, 0, data, pos, out, now)

    def _end_put(self, command: Command, id: int, body: bytes, now: int) -> bytes:
        if id:
            return super()._end_put(command, id, body, now)
        line, self._put_line = self._put_line, b""
        return self._forward(self._put_shard(command), b"".join((line, CRLF, body, CRLF)), False)

    def _read_body(self, command: Command, id: int, data: bytes, pos: int, out: list[bytes], now: int) -> int:
        if not id:
            self._put_line = self.line
        return super()._read_body(command, id, data, pos, out, now)

    # Tubes

    def use(self, name: bytes) -> None:
        """Note that *name* is the used tube, and leave the one before."""
        before, self._used_shard, self._used = self._used_shard, self.routes.shard_of(name), name
        if before != self._used_shard:
            if before == self._own:
                connecting.leave(self.broker, self.client)
            elif before in self._channels:
                self._channels[before].tell(b"leave\r\n")

    def use_there(self, shard: int, name: bytes) -> None:
        """Have *shard* create the tube *name*, and use it if a limit or a rule does not forbid it."""
        self._begin(Run(shard, self.line + CRLF, 1, True, lambda reply: self._note_use(name, reply)))

    def _note_use(self, name: bytes, reply: bytes) -> bytes:
        if reply.startswith(b"USING"):
            self.use(name)
        return reply

    @property
    def used(self) -> bytes:
        """Name of the used tube."""
        return self._used

    @property
    def watched(self) -> dict[bytes, int]:
        """Names of the watched tubes, in the order of watching, with their weights."""
        return self._watched

    def may_watch(self, name: bytes) -> bool:
        """Whether the limit of watched tubes allows one more, *name*; else count that it was hit."""
        limit = self.broker.max_watched
        if not limit or name in self._watched or len(self._watched) < limit:
            return True
        self.broker.refuse(Refusal.WATCHED, self.client, name)
        return False

    def watch(self, name: bytes, weight: int) -> bytes:
        """Note that *name* is watched; return the reply."""
        if name not in self._watched and self.routes.shard_of(name) != self._own:
            self._remote_watches += 1
        self._watched[name] = weight
        self.note_watched()
        return replies.watching(len(self._watched))

    def watch_there(self, shard: int, name: bytes, weight: int) -> None:
        """Have *shard* create the tube *name*, and watch it if a limit or a rule does not forbid it."""

        def note(reply: bytes) -> bytes:
            return self.watch(name, weight) if reply.startswith(b"WATCHING") else reply

        self._begin(Run(shard, self.line + CRLF, 1, True, note))

    def ignore(self, name: bytes) -> None:
        """Stop watching the tube *name*, which is watched."""
        del self._watched[name]
        self._passed.pop(name, None)
        shard = self.routes.shard_of(name)
        if shard == self._own:
            connecting.unwatch(self.broker, self.client, name)
            return
        self._remote_watches -= 1
        if shard in self._channels:
            self._channels[shard].tell(b"unwatch %b\r\n" % name)

    def note_watched(self) -> None:
        """Ignore `default` once another tube is watched, if the client may not consume `default`."""
        if not self.may_reserve and len(self._watched) > 1:
            if DEFAULT_TUBE in self._watched:
                self.ignore(DEFAULT_TUBE)
            self.may_reserve = True
        super().note_watched()

    # Reserves

    @property
    def is_local(self) -> bool:
        """Whether the client watches tubes of the own shard only, and holds no job of another."""
        return not (self._remote_watches or self.has_reserved_there)

    def reserve(self, until: int | None, batch: int, now: int) -> bytes | None:
        """Reserve from tubes of several shards; see Reserve."""
        connecting.note_worker(self.broker, self.client)
        work = Reserve(now if self.is_eof else until, batch)
        reply = work.begin(self, now)
        if reply is None:
            self.is_waiting = True
            if self.awaited is None:
                self._work = work
        return reply

    def best_remote_head(self) -> tuple[Head, int]:
        """Return the best known head of the watched tubes of other shards, and its shard; NO_SHARD if there is none."""
        best, shard, heads = NO_HEAD, NO_SHARD, self.routes.heads
        if heads:
            for name in self._watched:
                head = heads.get(name)
                if head is None or self._passed.get(name) == head:
                    continue
                if shard == NO_SHARD or head < best:
                    best, shard = head, self.routes.shard_of(name)
        return best, shard

    def pass_heads(self, shard: int) -> None:
        """Pass over the heads of *shard*, from which nothing could be reserved, until it publishes others."""
        heads = self.routes.heads
        for name in self._watched:
            head = heads.get(name)
            if head is not None and self.routes.shard_of(name) == shard:
                self._passed[name] = head

    def waited_shards(self) -> list[int]:
        """Return the other shards at which a reserve waits: for a job, or for the deadline of a reservation."""
        found = {self.routes.shard_of(name) for name in self._watched}
        found.update([shard for shard, channel in self._channels.items() if channel.has_reserved])
        found.discard(self._own)
        return sorted(found)

    def await_all(self) -> None:
        """Ask the other shards to offer a job when they have one."""
        for shard in self.waited_shards():
            channel = self.channel(shard)
            if not channel.is_awaiting:
                channel.is_awaiting = True
                channel.ask(b"await\r\n", 1)

    def claim(self, shard: int, line: bytes) -> None:
        """Send the claim *line* to *shard*; this ends the wait there."""
        channel = self.channel(shard)
        channel.end_await()
        channel.ask(line, 1)

    def decline_all(self, claimed: int) -> None:
        """End the waits at all shards but *claimed*, and decline their offers."""
        for shard, channel in self._channels.items():
            if channel.is_awaiting and shard != claimed:
                channel.end_await()
                channel.tell(b"decline\r\n")

    # Commands for several shards

    def gather(self, lines: dict[int, bytes], merge: Merge, parts: list[bytes], is_repeatable: bool) -> bytes | None:
        """Send each of *lines* to its shard; reply with all replies, merged with *parts*."""
        if not lines:
            return merge(parts)
        self._begin(Gathering({shard: line + CRLF for shard, line in lines.items()}, merge, parts, is_repeatable))
        return None

    def everywhere(self, merge: Merge, own: bytes) -> bytes | None:
        """Send the line to all other shards; reply with their replies, merged with *own*."""
        return self.gather(dict.fromkeys(self._others(), self.line), merge, [own], True)


# Commands that several shards serve, or whose effect the session must know


def _use(session: FrontSession, command: Command, now: int) -> bytes | None:
    name: bytes = command[1]
    shard = session.routes.shard_of(name)
    if shard != session.routes.own:
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
    if shard != session.routes.own:
        session.broker.counters.cmd_watch += 1
        session.watch_there(shard, name, weight)
        return None
    reply = tubes.watch(session, command, now)
    return session.watch(name, weight) if reply.startswith(b"WATCHING") else reply


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
    names = [name for name in session.broker.tubes if session.may_list(name)]
    session.cost += OUTPUT_SLICE if len(names) > SHORT_LIST else 0
    return session.everywhere(merged_names, replies.name_list(names))


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
    routes = session.routes
    by_shard: dict[int, list[int]] = {}
    for id in ids:
        homes = range(routes.ids.shards) if id < routes.ids.base else (routes.ids.home(id),)
        for shard in homes:
            by_shard.setdefault(shard, []).append(id)
    own = by_shard.pop(routes.own, [])
    session.cost += JOB_COST * len(own)
    deleted = sum([session.may_delete(id) and finishing.delete(session.broker, session.client, id, now) for id in own])

    def merge(parts: list[bytes]) -> bytes:
        total = deleted + summed(b"DELETED_BATCH", parts)
        return replies.deleted_batch(total, len(ids) - total)

    lines = {shard: b" ".join((b"delete-batch", *[b"%d" % id for id in of])) for shard, of in by_shard.items()}
    return session.gather(lines, merge, [], False)


def _touch_all(session: FrontSession, command: Command, now: int) -> bytes | None:
    own = list(session.client.reserved)
    session.cost += JOB_COST * len(own)
    touched = sum([reserving.touch(session.broker, session.client, id, now) for id in own])

    def merge(parts: list[bytes]) -> bytes:
        return replies.counted(b"TOUCHED_ALL", touched + summed(b"TOUCHED_ALL", parts))

    return session.gather(dict.fromkeys(session.holding_shards(), session.line), merge, [], True)


def _stats(session: FrontSession, command: Command, now: int) -> bytes | None:
    return session.everywhere(merged_stats, sessions.stats(session, command, now))


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
