"""The unfinished work of a parked front session: what it has sent to other shards, and waits for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.core.operations import reserving
from greenstalk_server.core.outcomes import WaitOutcome
from greenstalk_server.core.transitions.waiting import cancel_wait
from greenstalk_server.core.tubes.name_list import CHUNK_SIZE, NameList
from greenstalk_server.protocol import codec, replies
from greenstalk_server.protocol.costs import JOB_COST, LIST_BATCH, LIST_COST, OUTPUT_SLICE, RESERVE_COST
from greenstalk_server.protocol.front_channel import NO_SHARD
from greenstalk_server.protocol.gathering import YAML, merged_names
from greenstalk_server.protocol.link_commands import CONTINUE
from greenstalk_server.protocol.replies import CRLF
from greenstalk_server.protocol.reserve_commands import ended_wait_reply, fill_batch
from greenstalk_server.protocol.sliced_commands import delete_here
from greenstalk_server.protocol.streams import PartsStream

if TYPE_CHECKING:
    from greenstalk_server.protocol.front_session import FrontSession


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

    def is_endless(self, session: FrontSession) -> bool:
        """Whether `end` would be of no use."""
        return not session.client.is_waiting

    def receive(self, shard: int, reply: bytes) -> None:
        """Keep *reply* of *shard*."""
        raise NotImplementedError

    def receive_offer(self, shard: int, is_offered: bool) -> None:
        """Note that *shard* offers a job; or, if not *is_offered*, that a reservation there is about to end."""

    def needs(self, shard: int) -> bool:
        """Whether the work needs a reply of *shard* to continue."""
        raise NotImplementedError

    def lose(self, session: FrontSession, shard: int, is_unserved: bool) -> None:
        """Close the connection: nobody knows what *shard* has done. If *is_unserved*, a request had no effect."""
        session.is_closing = True
        self.has_news = True

    def advance(self, session: FrontSession, now: int) -> bytes | None:
        """Return the reply, or None if more is to come."""
        raise NotImplementedError

    def end(self, session: FrontSession, now: int) -> bytes | None:
        """End a wait, since the client has closed its side; return the reply, or None if it is to come."""
        return None


MAX_CHASES: Final = 8
"""Shards that are asked for a job that moves between them."""


def _may_have_moved(reply: bytes, commands: list[bytes]) -> bool:
    """Whether *reply*, to *commands*, may say of one of them that its job has moved. `in` takes 2,000 instructions."""
    return reply.startswith(replies.MOVED) if len(commands) == 1 else replies.MOVED in reply


class Run(Work):
    """Commands for one shard, none of them about a job."""

    __slots__ = ("_data", "_is_ending", "_is_repeatable", "_note", "_reply", "_shard")

    def __init__(
        self, shard: int, data: bytes, is_repeatable: bool, note: Callable[[bytes], bytes] | None = None
    ) -> None:
        """*is_repeatable*: *data* may be served twice. *note* takes the replies; it returns what the client gets."""
        super().__init__()
        self._shard: int = shard
        self._data: bytes = data
        self._is_repeatable: bool = is_repeatable
        self._note: Callable[[bytes], bytes] | None = note
        self._reply: bytes = b""
        self._is_ending: bool = False

    def begin(self, session: FrontSession) -> None:
        """Forward the commands."""
        session.channel(self._shard).ask(self._data)

    def is_endless(self, session: FrontSession) -> bool:
        """Whether `end` would be of no use: it was called."""
        return self._is_ending

    def needs(self, shard: int) -> bool:
        """Whether the commands were forwarded to *shard*."""
        return shard == self._shard

    def lose(self, session: FrontSession, shard: int, is_unserved: bool) -> None:
        """Forward the commands again if that is harmless; else close the connection. Keep replies that are there."""
        if shard != self._shard or self.has_news:
            return
        if self._is_repeatable or is_unserved:
            self.begin(session)
        else:
            super().lose(session, shard, is_unserved)

    def receive(self, shard: int, reply: bytes) -> None:
        """Keep all replies."""
        self._reply = reply
        self.has_news = True

    def advance(self, session: FrontSession, now: int) -> bytes | None:
        """Return all replies."""
        return self._reply if self._note is None else self._note(self._reply)

    def end(self, session: FrontSession, now: int) -> bytes | None:
        """End the wait for a job, if the run has one."""
        self._is_ending = True
        session.end_remote_wait(self._shard)
        return None


class JobRun(Run):
    """Commands for one shard, at least one of them about a job.

    If a job has moved to another shard, or may have, the shard replies MOVED, and skips the commands that follow. The
    front sends the command to the other shard, behind the number of the move. If that shard does not know the move, it
    replies SKIPPED; the front sends the command to the first shard again, which then knows that the job has not
    arrived. Finally the front sends the skipped commands again.
    """

    __slots__ = (
        "_chases",
        "_commands",
        "_done",
        "_has_waited",
        "_home",
        "_is_chasing",
        "_number",
        "_origin",
        "_until",
    )

    def __init__(
        self, shard: int, data: bytes, is_repeatable: bool, commands: list[bytes], until: int | None = None
    ) -> None:
        """*commands*: those of *data*. *until*: end of the wait in nanoseconds, if they are a wait with a timeout."""
        super().__init__(shard, data, is_repeatable)
        self._home: int = shard
        self._commands: list[bytes] = commands  # without a reply
        self._done: list[bytes] | None = None  # replies to those before; None while there are none
        self._is_chasing: bool = False
        self._chases: int = 0
        self._origin: int = NO_SHARD  # shard that sent the first command elsewhere; NO_SHARD once it was asked again
        self._number: int = 0  # of the move
        self._until: int | None = until
        self._has_waited: bool = False  # the command is a wait that has begun

    def advance(self, session: FrontSession, now: int) -> bytes | None:
        """Return all replies, or repeat the command about a job that has moved."""
        reply, commands = self._reply, self._commands
        if self._is_chasing or _may_have_moved(reply, commands):
            return self._chase(session, commands, now)
        return reply

    def _chase(self, session: FrontSession, commands: list[bytes], now: int) -> bytes | None:
        """Note the replies, and send what is to be repeated; return all replies once they are there."""
        reply = self._reply
        done = self._done = self._done or []
        while True:
            parts = replies.split(reply) if self._shard == self._home else [reply]
            at = 0
            while at < len(parts) and not parts[at].startswith((replies.MOVED, replies.SKIPPED)):
                at += 1
            if at:
                done += self._told(session, parts[:at], commands)
                del commands[:at]
                self._chases = 0
            if at < len(parts) and self._shard != session.own:
                session.channel(self._shard).send(CONTINUE)
            if not commands:
                return b"".join(done)
            if at == len(parts):
                self._send(session, self._home, b"".join(commands))
                return None
            self._chases += 1
            if self._chases > MAX_CHASES:
                reply, self._shard = replies.NOT_FOUND, NO_SHARD
                continue
            shard, number = self._next_place(session, parts[at], commands[0])
            line = commands[0] if self._until is None else _wait_again(commands[0], self._until - now)
            if shard != session.own:
                self._send(session, shard, b"expect %d\r\n%b" % (number, line) if number else line)
                return None
            self._shard = shard
            served = session.serve_again(line[:-2], number, now)
            if served is None:
                return None
            reply = served

    def _told(self, session: FrontSession, parts: list[bytes], commands: list[bytes]) -> list[bytes]:
        """Return *parts*, replies to the first of *commands*, as the client gets them.

        A job that was deleted before a wait for it had followed it was there when the wait began.
        """
        if self._has_waited and parts == [replies.NOT_FOUND] and session.sees_all:
            return [replies.finished(b"DELETED", codec.parse(commands[0][:-2])[1])]
        return parts

    def _next_place(self, session: FrontSession, reply: bytes, command: bytes) -> tuple[int, int]:
        """Return the shard to ask after *reply*, MOVED or SKIPPED, and the number of the move to announce, or 0."""
        if reply != replies.SKIPPED:
            self._origin = self._shard
            shard, self._number = replies.place_of(reply)
            if reply.endswith(replies.WAITED + CRLF):
                self._has_waited = True
                self._chases = 0
        elif self._origin != NO_SHARD:
            shard, self._origin = self._origin, NO_SHARD
        else:  # the job has moved on, or is deleted
            return session.home_of(command[:-2]), 0
        return shard, self._number

    def _send(self, session: FrontSession, shard: int, data: bytes) -> None:
        """Send *data* to *shard*."""
        self._shard, self._data, self._is_chasing, self.has_news = shard, data, True, False
        self.begin(session)
        if session.is_eof:
            self.end(session, 0)


def _wait_again(line: bytes, left: int) -> bytes:
    """Return *line*, a wait with a timeout, with the timeout *left*, nanoseconds, in whole seconds."""
    return b"%b %d\r\n" % (line.rpartition(b" ")[0], max(0, -(-left // SECOND)))


class ForwardedReserve(Run):
    """A reserve of a client that watches tubes of one other shard only, and holds no job elsewhere.

    If the shard is lost, the front itself waits: see Reserve.
    """

    __slots__ = ("_batch", "_until")

    def __init__(self, shard: int, data: bytes, until: int | None, batch: int) -> None:
        """*until* and *batch* as of Reserve."""
        super().__init__(shard, data, True)
        self._until: int | None = until
        self._batch: int = batch

    def lose(self, session: FrontSession, shard: int, is_unserved: bool) -> None:
        """Begin a Reserve with the rest of the time."""
        if shard == self._shard and not self.has_news:
            session.replace_work(Reserve(self._until, self._batch))


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
            session.channel(shard).ask(line)

    def needs(self, shard: int) -> bool:
        """Whether *shard* has not replied."""
        return shard in self._awaited

    def receive(self, shard: int, reply: bytes) -> None:
        """Keep *reply* of *shard*."""
        self._parts.append(reply)
        del self._awaited[shard]
        self.has_news = not self._awaited

    def lose(self, session: FrontSession, shard: int, is_unserved: bool) -> None:
        """Send the command again if that is harmless; else close the connection."""
        if shard not in self._awaited:
            return
        if self._is_repeatable or is_unserved:
            session.channel(shard).ask(self._awaited[shard])
        else:
            super().lose(session, shard, is_unserved)

    def advance(self, session: FrontSession, now: int) -> bytes | None:
        """Return the merged reply."""
        return self._merge(self._parts)


class Deletion(Gathering):
    """A delete-batch. Shards tell where jobs are that have moved; these are deleted in further rounds."""

    __slots__ = ("_by_shard", "_count", "_deleted", "_followed")

    def __init__(self, by_shard: dict[int, list[int]], count: int) -> None:
        """*by_shard*: the jobs to delete, and the shards that may have them. *count*: number of ids in the command."""
        super().__init__({}, b"".join, [], is_repeatable=False)
        self._by_shard: dict[int, list[int]] = by_shard
        self._count: int = count
        self._deleted: int = 0
        self._followed: set[tuple[int, int]] = set()  # ids, and shards that were asked since the job has moved there

    def advance(self, session: FrontSession, now: int) -> bytes | None:
        """Count what the shards have deleted, and begin the next round; return the reply after the last one."""
        parts, self._parts, self.has_news = self._parts, [], False
        for part in parts:
            numbers = [int(word) for word in part.split()[1:]]
            self._deleted += numbers[0]
            self._note_moved(zip(numbers[2::2], numbers[3::2], strict=True))
        while self._by_shard:
            by_shard, self._by_shard = self._by_shard, {}
            own = by_shard.pop(session.own, [])
            session.cost += JOB_COST * len(own)
            session.reports |= bool(own)
            deleted, moved = delete_here(session, own, now)
            self._deleted += deleted
            self._note_moved(moved)
            if by_shard:
                self._awaited = {shard: _batch_line(ids) for shard, ids in by_shard.items()}
                self.begin(session)
                return None
        return replies.deleted_batch(self._deleted, self._count - self._deleted)

    def _note_moved(self, places: Iterable[tuple[int, int]]) -> None:
        """Note the jobs that have moved: ids, and shards that may have them. Each is asked once more for a job."""
        for id, shard in places:
            if (id, shard) not in self._followed:
                self._followed.add((id, shard))
                self._by_shard.setdefault(shard, []).append(id)


def _batch_line(ids: list[int]) -> bytes:
    return b"delete-batch %b\r\n" % b" ".join([b"%d" % id for id in ids])


class Listing(Gathering):
    """A list-tubes. When the other shards have replied, the names of the own shard are added in slices."""

    __slots__ = ("_chunks", "_own", "_position")

    def __init__(self, lines: dict[int, bytes], own: NameList) -> None:
        """*own*: the tubes of the own shard, also those that the client may not list."""
        super().__init__(lines, b"".join, [], is_repeatable=True)
        self._chunks: list[Collection[bytes]] = own.chunks
        self._position: int = 0
        self._own: list[bytes] = []

    def advance(self, session: FrontSession, now: int) -> bytes | None:
        """Add a slice; after the last one, return the reply, or its beginning if the rest is a stream."""
        start, end = self._position, self._position + LIST_BATCH // CHUNK_SIZE
        self._position = end
        names: list[bytes] = []
        for chunk in self._chunks[start:end]:
            session.cost += LIST_COST * len(chunk)
            names += [name for name in chunk if session.may_list(name)]
        if names:
            self._own.append(b"- %b\n" % b"\n- ".join(names))
        if end < len(self._chunks):
            session.has_more = True
            return None
        for part in self._parts:
            if not part.startswith(b"OK "):
                return part
        lines = merged_names(self._own, self._parts)
        size = len(YAML) + sum(map(len, lines))
        head = replies.ok_line(size) + YAML
        if size <= OUTPUT_SLICE:
            return b"".join([head, *lines, CRLF])
        session.stream = PartsStream([*lines, memoryview(CRLF)])
        return head


class Search(JobRun):
    """A command about a job whose shard is not known: the shards are asked in turn until one has the job."""

    __slots__ = ("_shards",)

    def __init__(self, shards: list[int], own: int, line: bytes, is_repeatable: bool, until: int | None) -> None:
        """The shard *own* does not have the job. *until* as of JobRun."""
        super().__init__(own, line, is_repeatable, [line], until)
        self._shards: list[int] = shards

    def advance(self, session: FrontSession, now: int) -> bytes | None:
        """Return the reply, or ask the next shard."""
        if self._is_chasing or self._reply != replies.NOT_FOUND or not self._shards:
            return super().advance(session, now)
        self.has_news = False
        self._shard = self._shards.pop()
        self.begin(session)
        return None


class Reserve(Work):
    """A reserve from tubes of several shards.

    It is in one of four states: not begun (`_is_begun`), it waits at all shards (`_claimed` is NO_SHARD), it has sent a
    claim to the shard `_claimed`, or it asks each of `_unasked` before it times out (`_is_last`).
    """

    __slots__ = ("_batch", "_claimed", "_is_begun", "_is_last", "_offers", "_outcome", "_reply", "_unasked", "_until")

    def __init__(self, until: int | None, batch: int) -> None:
        """*until*: end of the wait in nanoseconds, None for never; *batch*: maximum of jobs, 0 for a single one."""
        super().__init__()
        self._until: int | None = until
        self._batch: int = batch
        self._claimed: int = NO_SHARD
        self._offers: list[int] = []
        self._reply: bytes = b""
        self._is_begun: bool = False
        self._is_last: bool = False
        self._unasked: list[int] = []
        self._outcome: int = WaitOutcome.TIMED_OUT

    def begin(self, session: FrontSession, now: int) -> bytes | None:
        """Reserve the best of the known heads; without one, wait."""
        self._is_begun = True
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
        return self.has_news or (self._claimed == NO_SHARD and self._is_begun and not session.client.is_waiting)

    def receive(self, shard: int, reply: bytes) -> None:
        """Keep *reply* of *shard* to the claim."""
        self.has_news = True
        self._reply = reply

    def receive_offer(self, shard: int, is_offered: bool) -> None:
        """Note the offer, or that the wait must end soon."""
        self.has_news = True
        if is_offered:
            self._offers.append(shard)
        else:
            self._outcome = WaitOutcome.DEADLINE_SOON

    def needs(self, shard: int) -> bool:
        """Whether a claim was sent to *shard*; a wait continues at the other shards."""
        return shard == self._claimed

    def lose(self, session: FrontSession, shard: int, is_unserved: bool) -> None:
        """Try again: if *shard* has reserved a job whose reply was lost, that reservation ends."""
        self.has_news = True
        if shard == self._claimed:
            self._reply = self._reply or replies.TIMED_OUT
        elif shard in self._offers:
            self._offers.remove(shard)

    def advance(self, session: FrontSession, now: int) -> bytes | None:
        """Return the reply, or claim, wait or ask on."""
        self.has_news = False
        if not self._is_begun:
            return self.begin(session, now)
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
