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

from collections.abc import Callable
from typing import Final

from greenstalk_server.core.broker import DEFAULT_TUBE, Broker
from greenstalk_server.core.operations import connecting
from greenstalk_server.core.outcomes import Refusal, WaitOutcome
from greenstalk_server.core.transitions import moving
from greenstalk_server.core.tubes.head_watch import NO_HEAD, Head
from greenstalk_server.protocol import codec, replies
from greenstalk_server.protocol.access import Grants
from greenstalk_server.protocol.arguments import RESERVE_MODES
from greenstalk_server.protocol.costs import COMMAND_SLICE, OUTPUT_SLICE
from greenstalk_server.protocol.front_channel import NO_SHARD, Channel, Routes
from greenstalk_server.protocol.front_commands import COMMANDS
from greenstalk_server.protocol.front_works import (
    Deletion,
    ForwardedReserve,
    Gathering,
    JobRun,
    Listing,
    Merge,
    Reserve,
    Run,
    Search,
    Work,
)
from greenstalk_server.protocol.replies import CR, CRLF, LF
from greenstalk_server.protocol.reserve_commands import wait_reply
from greenstalk_server.protocol.restricted_session import RestrictedSession, reply_of_place
from greenstalk_server.protocol.session import POSTPONED, PUT_LENGTH
from greenstalk_server.protocol.session_state import Command
from greenstalk_server.protocol.streams import WholeStream
from greenstalk_server.protocol.verb import HERE, JOB, MANY, RESERVE, USED, Verb

REPEATABLE: Final = frozenset(
    b"peek peek-ready peek-delayed peek-buried peek-reserved stats-job stats-tube touch wait reserve-job pause-tube"
    b" reprioritize".split()
)
"""Commands that change nothing if they are served twice, so they are sent again if their shard dies before it replies:
a reservation whose reply was lost ends."""

ALONE: Final = frozenset((b"wait", b"reserve-job", b"peek"))
"""Commands that are alone in their run: a wait, so that it holds up no reply before it, a command that reserves, so
that its reply shows this, and a command about a job whose reply may have to wait for a body."""

WITH_BODY: Final = frozenset(b"peek-ready peek-delayed peek-buried peek-reserved".split())
"""Commands of which at most one or two are in a run: the front keeps all replies of a run in memory."""

SEVERAL: Final = -2
"""Not a shard, and not NO_SHARD: a session without an own shard compares it with that."""

MAX_UNSUBSCRIBED: Final = 64
"""Watched tubes above which the session always subscribes to their heads."""


class FrontSession(RestrictedSession):
    """The session of a connection in a queue of several shards.

    routes              the shards.
    own                 the shard that `broker` has, as long as the connection lives; NO_SHARD if it has none.
    number              number of the session; no other session of this process has it.

    Private attributes:

    _watched            names of the watched tubes, with their weights.
    _watches            number of watched tubes of each shard that has any.
    _reserve_shard      the shard of all watched tubes; SEVERAL if they are not on one.
    _is_subscribed      the other shards publish the heads of the watched tubes.
    _holding            other shards where the client may hold a job.
    _near               the channel that `channel` returned last, which it finds without a lookup in `_channels`.
    """

    __slots__ = (
        "_base",
        "_channels",
        "_has_job",
        "_holding",
        "_is_counted",
        "_is_run_repeatable",
        "_is_subscribed",
        "_near",
        "_passed",
        "_put_line",
        "_reserve_shard",
        "_run",
        "_run_shard",
        "_run_size",
        "_shards",
        "_used",
        "_used_shard",
        "_watched",
        "_watches",
        "_work",
        "number",
        "origin",
        "own",
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
        self.number: int = routes.new_session()
        self.is_timed = is_timed
        self.own: int = routes.own
        self._base: int = routes.ids.base
        self._shards: int = routes.ids.shards
        self.origin: tuple[str, list[str]] = origin
        self._channels: dict[int, Channel] = {}
        self._near: Channel | None = None
        self._work: Work | None = None
        self._put_line: bytes = b""
        self._run: list[bytes] = []
        self._run_size: int = 0
        self._is_run_repeatable: bool = True
        self._is_counted: bool = False  # the commands of the work are counted for the rate limit
        self._has_job: bool = False
        self._run_shard: int = NO_SHARD
        self._used: bytes = DEFAULT_TUBE
        self._used_shard: int = routes.shard_of(DEFAULT_TUBE)
        self._watched: dict[bytes, int] = {DEFAULT_TUBE: 1}
        self._watches: dict[int, int] = {self._used_shard: 1}
        self._reserve_shard: int = self._used_shard
        self._is_subscribed: bool = False
        self._holding: set[int] = set()
        self._passed: dict[bytes, Head] = {}
        if self._used_shard != self.own:
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
        return self.awaited is not None or (self._work is not None and self._work.is_endless(self))

    def resume(self, now: int, limit: int = COMMAND_SLICE) -> bytes:
        """Continue, as RestrictedSession does, or after a reply of another shard."""
        work = self._work
        if work is None and self.job_wait and self.client.outcome == WaitOutcome.MOVED:
            work = self._work = self._next_wait(now)
        if work is None:
            return super().resume(now, limit)
        self.active_at = self.began_at = now
        self.pause = 0.0
        self.cost = 0
        self.reports = isinstance(work, Reserve)
        self.is_waiting = self.has_more = False
        if self.is_closing:
            return b""
        return self._reply(work.advance(self, now), now, limit)

    def end_wait(self, now: int, limit: int = COMMAND_SLICE) -> bytes:
        """End a wait, as Session does."""
        work = self._work
        if work is None:
            return super().end_wait(now, limit)
        if self.is_woken:
            return self.resume(now, limit)
        self.is_waiting = False
        return self._reply(work.end(self, now), now, limit)

    def _reply(self, reply: bytes | None, now: int, limit: int) -> bytes:
        """Return *reply* of the work, and serve what follows; with None, park again."""
        if reply is None and self.is_eof and self._work is not None:
            reply = self._work.end(self, now)  # the input has ended, and the work had other news
        if reply is None and self.has_more:
            return b""  # the work has more slices
        if reply is None:
            self.is_waiting = True
            if self.awaited is not None:  # the work is done; the body of its job is being read
                self._work = None
            return b""
        is_counted, self._work = self._is_counted, None
        self._is_counted = False
        if self.is_timed:
            self._note_served(0 if is_counted else 1, now)
        if self.stream is not None:
            self.has_more = True
            return reply
        if len(reply) > OUTPUT_SLICE:
            self.stream = WholeStream(reply)
            self.has_more = True
            return b""
        if self.has_more:
            return reply  # the client is ahead of its rate
        if not (self._rest or self.is_eof):
            return reply
        later = self._serve(self._rest, self._position, [], now, limit)
        return reply + later if later else reply

    def close(self, now: int) -> None:
        """Disconnect the client, here and at the other shards."""
        self._work = None
        channels, self._channels, self._near = self._channels, {}, None
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

    def receive_offer(self, shard: int, is_offered: bool) -> None:
        """Note that *shard* has ended the wait: see Work."""
        work = self._work
        if work is not None:
            work.receive_offer(shard, is_offered)
            if work.is_over(self):
                self.client.wake()

    def replace_work(self, work: Work) -> None:
        """Do *work*, which is not begun, in place of the work that the session is parked for."""
        work.has_news = True
        self._work = work

    def needs(self, shard: int) -> bool:
        """Whether the session is parked until *shard* replies."""
        return self._work is not None and self._work.needs(shard)

    def lose(self, shard: int, *, is_ended: bool, is_unserved: bool) -> None:
        """Open the channel to *shard*, whose link was lost, again. Forget it if *is_ended*: the owner has ended it.

        *is_unserved*: a request without a reply has had no effect. A channel that is not needed is opened too, since it
        tells the shard which tubes the client uses and watches.
        """
        if is_ended:
            del self._channels[shard]
            self._near = None
            self._holding.discard(shard)
        else:
            self._channels[shard].reopen()
        if self._work is not None:
            self._work.lose(self, shard, is_unserved)
            if self._work.is_over(self):
                self.client.wake()

    # Channels

    def channel(self, shard: int) -> Channel:
        """Return the channel to *shard*; open it if there is none."""
        near = self._near
        if near is not None and near.shard == shard:
            return near
        channel = self._channels.get(shard)
        if channel is None:
            channel = self._channels[shard] = Channel(self, shard)
        self._near = channel
        return channel

    def state_at(self, shard: int) -> bytes:
        """Return the commands that tell *shard* the state of the session."""
        lines = [
            b"watch %b %d" % (name, weight) if weight > 1 else b"watch " + name  # --strict-protocol has no weights
            for name, weight in self._watched.items()
            if self.routes.shard_of(name) == shard
        ]
        if self._used_shard == shard:
            lines.append(b"use " + self._used)
        if self.meta:
            lines.append(b"meta " + b" ".join(self.meta))
        if self.client.weighting is not None:
            lines.append(b"reserve-mode " + RESERVE_MODES[self.client.weighting.mode])
        lines.append(b"stats-mode " + (b"extended" if self.extends_stats else b"standard"))
        if self._is_subscribed:
            lines.append(b"subscribe")
        return b"\r\n".join(lines) + CRLF

    def end_remote_wait(self, shard: int) -> None:
        """End the wait for a job in the run for *shard*, if there is one. The reply to this itself is not wanted."""
        channel = self._channels.get(shard)
        if channel is not None:
            channel.send(b"decline")

    def tell_all(self) -> None:
        """Send the line, a command that changes the session, to all shards that have a channel; ignore the replies."""
        for channel in self._channels.values():
            channel.tell(self.line + CRLF)

    def holding_shards(self) -> list[int]:
        """Return the other shards where the client may hold a job."""
        return list(self._holding)

    def note_holding(self, shard: int) -> None:
        """Note that the client may hold a job of *shard*."""
        if shard not in self._holding:
            self._holding.add(shard)
            self.has_reserved_there = True
        if not self.client.is_worker:
            connecting.note_worker(self.broker, self.client)

    def _others(self) -> list[int]:
        return [shard for shard in range(self._shards) if shard != self.own]

    # Runs

    def _serve(self, data: bytes, pos: int, out: list[bytes], now: int, limit: int) -> bytes:
        """Serve, as RestrictedSession does, and forward the run at the end."""
        reply = super()._serve(data, pos, out, now, limit)
        if self._run:
            run = self._run
            data = run[0] if len(run) == 1 else b"".join(run)
            if self._has_job:
                work: Run = JobRun(self._run_shard, data, self._is_run_repeatable, run)
                self._has_job, self._run = False, []
            else:
                work = Run(self._run_shard, data, self._is_run_repeatable)
                run.clear()
            self._run_size, self._run_shard, self._is_run_repeatable = 0, NO_SHARD, True
            self._begin(work)
            self._is_counted = True
            self.is_closing = self.has_more = False
        return reply

    def _park(self, work: Work) -> None:
        self._work = work
        self.is_waiting = True

    def _begin(self, work: Run | Gathering) -> None:
        """Park until *work* is done, and begin it."""
        self._park(work)
        work.begin(self)
        if self.is_eof:
            work.end(self, 0)

    def _forward(self, shard: int, data: bytes, is_repeatable: bool, size: int) -> bytes:
        """Add *data*, a command, to the run for *shard*; return an empty reply. *size*: maximum bytes of its reply."""
        if self._run and (shard != self._run_shard or self._run_size > OUTPUT_SLICE):
            raise POSTPONED
        self._run.append(data)
        self._is_run_repeatable &= is_repeatable
        self._run_size += len(data) + size
        self._run_shard = shard
        return b""

    def _must_wait(self) -> bool:
        return bool(self._run)

    def _end_run(self) -> None:
        """Raise Postponed while there is a run: the command must not overtake it."""
        if self._run:
            raise POSTPONED

    def _handle(self, verb: Verb, command: Command, now: int) -> bytes | None:
        route, own = verb.route, self.own
        if route == HERE:
            shard = own
        elif route == JOB:
            id: int = command[1]
            if id < self._base:
                return self._search(verb, command, now)
            shard = self.shard_of_job(id)
            if shard == own and self.broker.moves is not None:
                place = moving.find(self.broker, id)
                if place != moving.HERE:
                    self._end_run()
                    return self._follow(verb, command, place, now)
        elif route == RESERVE and self._reserve_shard == own and not self.has_reserved_there:
            shard = own
        elif route >= MANY:
            self._end_run()
            refusal = self.refusal(verb, command)
            return COMMANDS[verb.name](self, command, now) if refusal is None else refusal
        else:
            shard = self._used_shard if route == USED else self.routes.shard_of(command[1])
        if shard != own:
            if route == JOB and verb.name in ALONE:
                self._end_run()
                self._begin(self._run_of(shard, verb, command, now))
                return None
            self._has_job |= route == JOB
            size = self.broker.max_job_size if route == USED and verb.name in WITH_BODY else 0
            return self._forward(shard, self.line + CRLF, verb.name in REPEATABLE, size)
        if self._run:
            raise POSTPONED
        if self._grants is not None:
            return super()._handle(verb, command, now)
        assert verb.handle is not None
        return verb.handle(self, command, now)

    def shard_of_job(self, id: int) -> int:
        """Return the shard that has the job *id*, or knows where it is."""
        shard = (id - self._base) % self._shards
        jobs = self.broker.jobs
        return self.own if shard != self.own and jobs.foreign and id in jobs else shard

    @property
    def sees_all(self) -> bool:
        """Whether the client may look at each tube, so that NOT_FOUND means that there is no such job."""
        return self._grants is None

    def home_of(self, line: bytes) -> int:
        """Return the home shard of the job that *line*, a command, is about."""
        id: int = codec.parse(line)[1]
        return self.routes.ids.home(id)

    def _run_of(self, shard: int, verb: Verb, command: Command, now: int) -> JobRun:
        """Return a run for *shard* of the line alone, which is *command*, about a job."""
        line = self.line + CRLF
        return JobRun(shard, line, verb.name in REPEATABLE, [line], _end_of_wait(verb, command, now))

    def _next_wait(self, now: int) -> JobRun:
        """Return the rest of the wait for a job of the own shard, which has moved."""
        until = self.client.wait_until
        line = b"wait %d 0\r\n" % self.job_wait if until is not None else b"wait %d\r\n" % self.job_wait
        run = JobRun(self.own, line, True, [line], until)
        run.receive(self.own, wait_reply(self, now) or b"")
        return run

    def _follow(self, verb: Verb, command: Command, place: moving.Place, now: int) -> bytes | None:
        """Park until the line, which is *command*, is served at *place*, or where that sends it."""
        run = self._run_of(self.own, verb, command, now)
        run.receive(self.own, replies.moved(*place))
        self._park(run)
        return run.advance(self, now)

    def serve_again(self, line: bytes, number: int, now: int) -> bytes | None:
        """Serve *line*, a command about a job that has come to this shard, or may have, with its move *number*.

        Return None if the reply has to wait; the work of the session is done then.
        """
        command = codec.parse(line)
        verb: Verb = command[0]
        reply: bytes | None = reply_of_place(moving.find(self.broker, command[1], number))
        if not reply:
            self.reports |= verb.awaits_journal
            reply = super()._handle(verb, command, now)
            if reply is None:
                self._work = None
        return reply

    def _search(self, verb: Verb, command: Command, now: int) -> bytes | None:
        """Serve a command about a job with an id from before the queue had several shards."""
        self._end_run()
        if self.broker.moves is not None:
            place = moving.find(self.broker, command[1])
            if place != moving.HERE:
                return self._follow(verb, command, place, now)
        reply = super()._handle(verb, command, now)
        if reply != replies.NOT_FOUND:
            return reply
        until = _end_of_wait(verb, command, now)
        work = Search(self._others(), self.own, self.line + CRLF, verb.name in REPEATABLE, until)
        work.receive(self.own, reply)
        self._park(work)
        reply = work.advance(self, now)
        if self.is_eof:
            work.end(self, now)
        return reply

    # Puts

    def _put_shard(self, command: Command) -> int:
        name: bytes = command[6] if len(command) > PUT_LENGTH else b""
        return self.routes.shard_of(name) if name else self._used_shard

    def _may_put(self, command: Command) -> bool:
        """Whether an access rule allows the put; another shard decides about its own tubes."""
        return self._grants is None or self._put_shard(command) != self.own or super()._may_put(command)

    def _begin_put(self, command: Command, data: bytes, pos: int, out: list[bytes], now: int) -> int:
        shard = self._used_shard if len(command) == PUT_LENGTH else self._put_shard(command)
        if shard == self.own:
            if self._run:
                raise POSTPONED
            return super()._begin_put(command, data, pos, out, now)
        size: int = command[4]
        end = pos + size
        is_whole = end + 2 <= len(data) and data[end] == CR and data[end + 1] == LF
        if self._run and not (
            shard == self._run_shard and command[5] and size <= self.broker.max_job_size and is_whole
        ):
            raise POSTPONED  # a refusal must not overtake the run, nor a put that is not whole
        verb: Verb = command[0]
        if not verb.is_extension:
            self.broker.counters.cmd_put += 1
        refused = self._refuse_put(command, data, pos, out)
        if refused >= 0:
            return refused
        if not is_whole:
            self._put_line = self.line
            return self._read_body(command, 0, data, pos, out, now)
        out.append(self._forward(shard, data[pos - len(self.line) - 2 : end + 2], False, 0))
        return end + 2

    def _end_put(self, command: Command, id: int, body: bytes, now: int) -> bytes:
        if id:
            return super()._end_put(command, id, body, now)
        line, self._put_line = self._put_line, b""
        return self._forward(self._put_shard(command), b"".join((line, CRLF, body, CRLF)), False, 0)

    # Tubes

    def use(self, name: bytes) -> None:
        """Note that *name* is the used tube, and leave the one before."""
        before, self._used_shard, self._used = self._used_shard, self.routes.shard_of(name), name
        if before != self._used_shard:
            if before == self.own:
                connecting.leave(self.broker, self.client)
            elif before in self._channels:
                self._channels[before].send(b"leave")

    def use_there(self, shard: int, name: bytes) -> None:
        """Have *shard* create the tube *name*, and use it if a limit or a rule does not forbid it."""
        self._begin(Run(shard, self.line + CRLF, True, lambda reply: self._note_use(name, reply)))

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

    def watch(self, shard: int, name: bytes, weight: int, reply: bytes) -> bytes | None:
        """Watch the tube *name* of *shard*, and subscribe to the heads of all tubes if needed; return the reply.

        *reply* is that of the own shard; without it, *shard* creates the tube if a limit or a rule does not forbid it.
        """

        def note(replied: list[bytes]) -> bytes:
            last = b"".join([part.removeprefix(replies.SUBSCRIBED) for part in replied])
            return self._note_watch(shard, name, weight) if last.startswith(b"WATCHING") else last

        if reply and not reply.startswith(b"WATCHING"):
            return reply
        lines = {} if reply else {shard: self.line}
        if not self._is_subscribed and self._needs_heads({shard, *self._watches}):
            self._is_subscribed = True
            for other in {shard, *self._watches}:
                if other != self.own:
                    lines[other] = b"subscribe\r\n" + lines[other] if other in lines else b"subscribe"
        return self.gather(lines, note, [reply], True)

    def _note_watch(self, shard: int, name: bytes, weight: int) -> bytes:
        """Note that *name* is watched; return the reply."""
        if name not in self._watched:
            self._watches[shard] = self._watches.get(shard, 0) + 1
            self._note_shards()
        self._watched[name] = weight
        self.note_watched()
        return replies.watching(len(self._watched))

    def _note_shards(self) -> None:
        """Update what depends on the shards of the watched tubes."""
        shards = list(self._watches)
        self._reserve_shard = shards[0] if len(shards) == 1 else SEVERAL
        if self._is_subscribed and not self._needs_heads(set(shards)):
            self._is_subscribed = False
            for channel in self._channels.values():
                channel.send(b"unsubscribe")

    def _needs_heads(self, shards: set[int]) -> bool:
        """Whether to subscribe to the heads of the watched tubes, which *shards* own.

        Also if they are many: each change of the subscription takes as long as there are tubes.
        """
        return len(shards) > 1 or len(self._watched) > MAX_UNSUBSCRIBED

    def ignore(self, name: bytes) -> None:
        """Stop watching the tube *name*, which is watched."""
        del self._watched[name]
        self._passed.pop(name, None)
        shard = self.routes.shard_of(name)
        if shard == self.own:
            connecting.unwatch(self.broker, self.client, name)
        elif shard in self._channels:
            self._channels[shard].send(b"unwatch " + name)
        self._watches[shard] -= 1
        if not self._watches[shard]:
            del self._watches[shard]
            self._note_shards()

    def note_watched(self) -> None:
        """Ignore `default` once another tube is watched, if the client may not consume `default`."""
        if not self.may_reserve and len(self._watched) > 1:
            if DEFAULT_TUBE in self._watched:
                self.ignore(DEFAULT_TUBE)
            self.may_reserve = True
        super().note_watched()

    # Reserves

    def reserve(self, until: int | None, batch: int, now: int) -> bytes | None:
        """Reserve from tubes of another shard, or of several; see ForwardedReserve and Reserve."""
        connecting.note_worker(self.broker, self.client)
        shard = self._reserve_shard
        if shard not in (SEVERAL, self.own) and self._holds_only(shard) and self._is_linked(shard):
            self._begin(ForwardedReserve(shard, self.line + CRLF, until, batch))
            return None
        work = Reserve(now if self.is_eof else until, batch)
        reply = work.begin(self, now)
        if reply is None and self.has_more:
            return b""  # the work has more slices
        if reply is None:
            self.is_waiting = True
            if self.awaited is None:
                self._work = work
        return reply

    def _is_linked(self, shard: int) -> bool:
        """Whether *shard* can be reached now. A channel that is attached costs less to ask than the routes."""
        near = self._near
        return (near is not None and near.shard == shard and near.is_attached) or self.routes.is_linked(shard)

    def _holds_only(self, shard: int) -> bool:
        """Whether the client holds no job of a shard other than *shard*."""
        holding = self._holding
        return not self.client.reserved and (not holding or (len(holding) == 1 and shard in holding))

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
        found = self._holding.union(self._watches)
        found.discard(self.own)
        return sorted(found)

    def await_all(self) -> None:
        """Ask the other shards to offer a job when they have one."""
        for shard in self.waited_shards():
            channel = self.channel(shard)
            if not channel.is_awaiting:
                channel.begin_await()

    def claim(self, shard: int, line: bytes) -> None:
        """Send the claim *line* to *shard*; this ends the wait there."""
        channel = self.channel(shard)
        channel.end_await()
        channel.ask(line)

    def decline_all(self, claimed: int) -> None:
        """End the waits at all shards but *claimed*, and decline their offers."""
        for shard, channel in self._channels.items():
            if channel.is_awaiting and shard != claimed:
                channel.end_await()
                channel.send(b"decline")

    # Commands for several shards

    def gather(self, lines: dict[int, bytes], merge: Merge, parts: list[bytes], is_repeatable: bool) -> bytes | None:
        """Send each of *lines* to its shard; reply with all replies, merged with *parts*."""
        if not lines:
            return merge(parts)
        self._begin(Gathering({shard: line + CRLF for shard, line in lines.items()}, merge, parts, is_repeatable))
        return None

    def delete(self, by_shard: dict[int, list[int]], count: int, now: int) -> bytes | None:
        """Delete the jobs *by_shard*, whose ids are *count* of a delete-batch; return the reply, or park."""
        work = Deletion(by_shard, count)
        reply = work.advance(self, now)
        if reply is None:
            self._park(work)
        return reply

    def everywhere(self, merge: Merge, *parts: bytes) -> bytes | None:
        """Send the line to all other shards; reply with their replies, merged with *parts*, the own one first."""
        return self.gather(dict.fromkeys(self._others(), self.line), merge, list(parts), True)

    def list_everywhere(self) -> None:
        """Reply with the tubes of all shards."""
        lines = dict.fromkeys(self._others(), self.line + CRLF)
        self._begin(Listing(lines, self.broker.name_list()))


def _end_of_wait(verb: Verb, command: Command, now: int) -> int | None:
    """Return the end of the wait that *command* is, nanoseconds; None if it is none, or has no timeout."""
    timeout: int | None = command[2] if verb.name == b"wait" else None
    return None if timeout is None else now + timeout
