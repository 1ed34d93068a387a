"""The conversation of one connection, sans-IO: bytes in, bytes out, and the broker in between.

A session is in one of these states:

- at a command line: `_rest` holds the beginning of the line, if some of it has arrived;
- in the body of a put: `_put` is the command, `_partial` has the bytes so far, `_missing` is the number of bytes
  still to come;
- in the body of a put that is refused: `_skip` bytes are still to be discarded, then `_refusal` is sent;
- in a line that is too long: `_is_long_line`;
- parked in a reserve: `is_waiting`; input that arrives during the wait is kept in `_rest`, from `_position` on;
- parked because the body of the job `_awaited` is on disk: `is_waiting` too;
- at the end of a slice, with input or work left: `has_more`, and `_rest` as above;
- in the middle of a large reply: `has_more`, and `stream` holds the rest of the reply, to be sent before `resume`;
- closing: `is_closing`; the caller closes the connection once it has sent what was returned.

One call serves what has arrived, up to a slice, and returns the replies as one piece. A slice bounds the cost of a
call. The returned replies have at most 2 * OUTPUT_SLICE bytes, plus at most 208 bytes for each command: short
replies, and the first line of a reply with a body, do not add to the cost.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any, Final, TypeAlias

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.job import BURIED, DELAYED, Job
from greenstalk_server.core.name_list import NameList, list_of
from greenstalk_server.core.outcomes import Refusal, WaitOutcome
from greenstalk_server.core.transitions import SLICE
from greenstalk_server.protocol import codec, stats
from greenstalk_server.protocol.codec import CRLF, MAX_LINE, Command
from greenstalk_server.protocol.costs import (
    COMMAND_COST,
    COMMAND_SLICE,
    DISCONNECT_COST,
    NAME_COST,
    NEW_TUBE_COST,
    OUTPUT_SLICE,
    SHORT_LIST,
    WATCHED_BATCH,
    WATCHED_COST,
)
from greenstalk_server.protocol.streams import BodyStream, NameStream, Stream
from greenstalk_server.protocol.work import Kick, Work

INPUT_LIMIT: Final = 65536
"""Bytes of input kept while parked at which the caller should stop reading. The last read may exceed it."""

GROWN_BODY: Final = 2**20
"""Size in bytes above which the buffer of a body is allocated whole when the put begins. A buffer that grows is copied,
which takes 15 ms for 30 MB. The system provides the pages of such a large buffer when they are written, so a put whose
body does not arrive takes no memory."""

TOO_BIG: Final = 0
FORBIDDEN: Final = 1
NO_MEMORY: Final = 2
REFUSALS: Final = (codec.JOB_TOO_BIG, codec.UnknownCommand.reply, codec.OUT_OF_MEMORY)
"""Replies to a put whose body is discarded. TOO_BIG, FORBIDDEN and NO_MEMORY are the indices."""


class Session:
    """The conversation of one connection with the broker.

    client      the broker's client for the connection.
    is_waiting  parked; `wake` announces that `resume` is due.
    has_more    work is left: call `resume` after `pause` seconds, when other connections have had their turn.
    is_closing  close the connection once the returned bytes are sent.
    stream      the rest of the last reply, or None; send it before `resume`.
    cost        cost of the current or last slice; see costs.py.
    refused     called with the client, a command, and the error reply that the command gets.

    Subclasses may set `_handlers`, `_max_body` and `_slice`, and override `_serve`, `_begin_put` and the public
    methods. They may call `_do_work` and the methods of verbs, and read `_broker`, `_rest`, `_put`, `_skip` and
    `_is_long_line`. See `RestrictedSession`.
    """

    __slots__ = (
        "_awaited",
        "_body",
        "_broker",
        "_handlers",
        "_is_body_here",
        "_is_eof",
        "_is_long_line",
        "_is_peek",
        "_max_body",
        "_missing",
        "_partial",
        "_position",
        "_put",
        "_put_id",
        "_refusal",
        "_reserve_cost",
        "_rest",
        "_skip",
        "_slice",
        "_work",
        "client",
        "cost",
        "has_more",
        "is_closing",
        "is_waiting",
        "pause",
        "refused",
        "stream",
    )

    def __init__(self, broker: Broker, wake: Callable[[], None]) -> None:
        """Connect a client. *wake* is called when a parked session can continue: call `resume` then."""
        self._broker: Broker = broker
        self.client: Client = broker.connect(wake)
        self.is_waiting: bool = False
        self.has_more: bool = False
        self.is_closing: bool = False
        self.pause: float = 0.0
        self.stream: Stream | None = None
        self.cost: int = 0
        self.refused: Callable[[Client, bytes, bytes], None] = _ignore_refused
        self._is_eof: bool = False
        self._is_long_line: bool = False
        self._rest: bytes = b""
        self._position: int = 0
        self._put: Command | None = None
        self._put_id: int = 0
        self._partial: BytesIO | None = None
        self._missing: int = 0
        self._skip: int = 0
        self._refusal: int = TOO_BIG  # index of REFUSALS: reply to the put whose body is discarded
        self._max_body: int = broker.max_job_size  # maximum size of a body in bytes; negative: no put is allowed
        self._handlers: dict[bytes, _Handler] = HANDLERS
        self._work: Work | None = None
        self._slice: range = COMMAND_SLICE
        self._reserve_cost: int = 0
        self._awaited: Job | None = None
        self._is_peek: bool = False
        self._is_body_here: bool = False
        self._body: bytes | None = None

    @property
    def wants_input(self) -> bool:
        """Whether to read more: no slice is left to do, the peer may still send, and less than INPUT_LIMIT is kept."""
        return not self.has_more and not self._is_eof and len(self._rest) - self._position < INPUT_LIMIT

    @property
    def is_woken(self) -> bool:
        """Whether the event that the session is parked for has happened, so `resume` is due."""
        if self._awaited is not None:
            return self._is_body_here
        return self.is_waiting and not self.client.is_waiting

    def receive(self, data: bytes, now: int, limit: range = COMMAND_SLICE) -> bytes:
        """Serve up to len(*limit*) commands of *data*, which is not empty, and return their replies."""
        if self.is_waiting:
            self._rest = self._rest[self._position :] + data
            self._position = 0
            return b""
        self.cost = 0
        out: list[bytes] = []
        pos = 0
        if self._put is not None:
            pos = self._continue_body(self._put, data, out, now)
        elif self._skip:
            pos = self._continue_skip(data, 0, out)
        elif self._rest:
            data = self._rest + data
            self._rest = b""
        return self._serve(data, pos, out, now, limit)

    def receive_eof(self, now: int, limit: range = COMMAND_SLICE) -> bytes:
        """Note that the peer has closed its side. Input that has arrived is still served."""
        self._is_eof = True
        if self.is_woken:
            return self.resume(now, limit)
        out: list[bytes] = []
        if self._awaited is not None:
            return b""  # the input is served once the body is read
        if self.is_waiting:
            self._broker.cancel_wait(self.client)
            self.is_waiting = False
            out.append(codec.TIMED_OUT)
        self.cost = 0
        return self._serve(self._rest, self._position, out, now, limit)

    def resume(self, now: int, limit: range = COMMAND_SLICE) -> bytes:
        """Continue after `wake`, or after a call that left `has_more` and whose stream, if any, has been sent."""
        out: list[bytes] = []
        self.cost = 0
        if self.is_waiting:
            self.is_waiting = False
            reply = self._wait_reply() if self._awaited is None else self._awaited_reply(now)
            if reply is None:
                return b""
            out.append(reply)
        elif self._work is not None:
            reply = self._do_work(self._work, now)
            if reply is None:
                return b""
            out.append(reply)
        if self.stream is not None:
            self.has_more = True
            return out[0]
        return self._serve(self._rest, self._position, out, now, limit)

    def close(self, now: int) -> None:
        """Disconnect the client, and set `cost`. Call it exactly once, last."""
        client = self.client
        self.cost = self._reserve_cost + DISCONNECT_COST * min(len(client.reserved) + len(client.watched), 2 * SLICE)
        self._awaited = None
        self.end_stream()
        self._broker.disconnect(self.client, now)

    def end_stream(self) -> None:
        """Close the stream, if there is one. Call this when the stream has been sent or is abandoned."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None

    # Framing

    def _serve(self, data: bytes, pos: int, out: list[bytes], now: int, limit: range) -> bytes:
        """Serve the lines of *data* from *pos* on, up to a slice; keep the rest; return the joined *out*."""
        known, handlers = codec.known, self._handlers
        self.has_more = False
        if self._is_long_line:
            pos = self._continue_long_line(data, pos, out)
        size = len(data)
        for _ in limit:
            if pos == size:
                break
            end = data.find(CRLF, pos, pos + MAX_LINE)
            if end < 0:
                if size - pos < MAX_LINE:
                    break
                self._is_long_line = True
                pos = self._continue_long_line(data, pos, out)
                continue
            line = data[pos:end]
            pos = end + 2
            try:
                command = known.get(line) or codec.parse(line)
                if command[0] == codec.PUT:
                    pos = self._begin_put(command, data, pos, out, now)
                    continue
                reply = handlers[command[0]](self, command, now)
            except codec.ProtocolError as error:
                reply = error.reply
                self.refused(self.client, line, reply)
            if reply is None:
                break
            out.append(reply)
            if self.cost > OUTPUT_SLICE:
                self.has_more = True
                break
        else:
            self.has_more = pos < size
            self.cost += COMMAND_COST * len(limit)
        self._keep_from(data, pos)
        if self._is_eof and not self.has_more and self._awaited is None:
            self.is_closing = True
        return out[0] if len(out) == 1 else b"".join(out)

    def _keep_from(self, data: bytes, pos: int) -> None:
        """Keep *data* from *pos* on, without a copy if the next slice follows soon and the rest is large."""
        if pos < len(data) - pos and (self.has_more or self.is_waiting):
            self._rest, self._position = data, pos
        else:
            self._rest, self._position = data[pos:], 0

    def _continue_long_line(self, data: bytes, pos: int, out: list[bytes]) -> int:
        end = data.find(CRLF, pos)
        if end < 0:
            return len(data) - data.endswith(b"\r")
        self._is_long_line = False
        out.append(codec.BadFormat.reply)
        return end + 2

    # Put

    def _begin_put(self, command: Command, data: bytes, pos: int, out: list[bytes], now: int) -> int:
        """Begin the put whose line ends before *pos*; finish it if its body has arrived; return the next position."""
        broker = self._broker
        size: int = command[4]
        broker.counters.cmd_put += 1
        if size > self._max_body:
            refusal = FORBIDDEN if size <= broker.max_job_size else TOO_BIG
            return self._begin_skip(size, refusal, data, pos, out)
        if not command[5]:
            raise codec.BadFormat
        if not self.client.is_producer:
            broker.note_producer(self.client)
        id = broker.allocate_id()
        end = pos + size
        if len(data) < end + 2:
            try:
                self._partial = BytesIO(bytes(size + 2)) if size > GROWN_BODY else BytesIO()
            except MemoryError:
                return self._begin_skip(size, NO_MEMORY, data, pos, out)
            self._put = command
            self._put_id = id
            self._partial.write(memoryview(data)[pos:])
            self._missing = end + 2 - len(data)
            return len(data)
        out.append(self._end_put(command, id, data[pos:end], data.startswith(CRLF, end), now))
        return end + 2

    def _continue_body(self, command: Command, data: bytes, out: list[bytes], now: int) -> int:
        partial, taken = self._partial, min(self._missing, len(data))
        assert partial is not None
        partial.write(memoryview(data)[:taken])
        self._missing -= taken
        if not self._missing:
            self._put = self._partial = None
            size: int = command[4]
            partial.seek(size)
            is_terminated = partial.read() == CRLF
            partial.truncate(size)  # then `getvalue` returns the buffer itself, not a copy
            out.append(self._end_put(command, self._put_id, partial.getvalue(), is_terminated, now))
        return taken

    def _end_put(self, command: Command, id: int, body: bytes, is_terminated: bool, now: int) -> bytes:
        if not is_terminated:
            self.refused(self.client, b"put of %d bytes" % command[4], codec.EXPECTED_CRLF)
            return codec.EXPECTED_CRLF
        if self._broker.is_draining:
            return codec.DRAINING
        _, pri, delay, ttr, _, _ = command
        result = self._broker.put(self.client, id, pri, delay, ttr, body, now)
        if result > 0:
            return codec.inserted(result)
        return codec.JOB_TOO_BIG if result == Refusal.TOO_BIG else codec.OUT_OF_MEMORY

    def _begin_skip(self, size: int, refusal: int, data: bytes, pos: int, out: list[bytes]) -> int:
        """Discard the body of a put, *size* bytes from *pos* on, then reply *refusal*; return the next position."""
        self._skip = size + 2
        self._refusal = refusal
        self.refused(self.client, b"put of %d bytes" % size, REFUSALS[refusal])
        return self._continue_skip(data, pos, out)

    def _continue_skip(self, data: bytes, pos: int, out: list[bytes]) -> int:
        skipped = min(self._skip, len(data) - pos)
        self._skip -= skipped
        if not self._skip:
            out.append(REFUSALS[self._refusal])
        return pos + skipped

    # Verbs: each returns its reply, or None if the commands after it have to wait

    def _reserve(self, command: Command, now: int) -> bytes | None:
        self._broker.counters.cmd_reserve += 1
        return self._reserve_until(None, now)

    def _reserve_with_timeout(self, command: Command, now: int) -> bytes | None:
        self._broker.counters.cmd_reserve_with_timeout += 1
        _, timeout = command
        return self._reserve_until(None if timeout is None else now + timeout, now)

    def _reserve_until(self, until: int | None, now: int) -> bytes | None:
        broker, client = self._broker, self.client
        if not client.is_worker:
            broker.note_worker(client)
        if self._reserve_cost:
            self.cost += self._reserve_cost
        job = broker.reserve(client, now)
        if job is not None:
            return self._job_reply(job, is_peek=False)
        outcome = broker.wait(client, now if self._is_eof else until, now)
        if outcome == WaitOutcome.WAITING:
            self.is_waiting = True
            return None
        return _ended_wait_reply(outcome)

    def _wait_reply(self) -> bytes | None:
        """Return the reply that ends the client's wait."""
        outcome, self.client.outcome = self.client.outcome, None  # else a deleted job would stay in memory
        return self._job_reply(outcome, is_peek=False) if isinstance(outcome, Job) else _ended_wait_reply(outcome)

    def _job_reply(self, job: Job, is_peek: bool) -> bytes | None:
        """Return the reply with *job*, RESERVED or, if *is_peek*, FOUND; None if it has to wait for the body."""
        body = job.body
        if body is None:
            self._await_body(job, is_peek)
            return None
        return self._body_reply(job, body, is_peek)

    def _body_reply(self, job: Job, body: bytes, is_peek: bool) -> bytes:
        self.cost += len(body)
        if len(body) > OUTPUT_SLICE:
            self.stream = BodyStream(body)
            return codec.found_line(job.id, body) if is_peek else codec.reserved_line(job.id, body)
        return codec.found(job.id, body) if is_peek else codec.reserved(job.id, body)

    def _await_body(self, job: Job, is_peek: bool) -> None:
        """Park until the body of *job* is read back."""
        bodies = self._broker.bodies
        assert bodies is not None
        self.is_waiting = True
        self._awaited, self._is_peek = job, is_peek
        self._is_body_here = False
        bodies.fetch(job, self._take_body)

    def _take_body(self, body: bytes | None) -> None:
        """Take the body that the session waits for, None if it is lost, and have `resume` called."""
        if self._awaited is not None:
            self._body = body
            self._is_body_here = True
            self.client.wake()

    def _awaited_reply(self, now: int) -> bytes:
        """Return the reply that waited for a body."""
        job, body = self._awaited, self._body
        assert job is not None
        self._awaited = self._body = None
        if body is not None:
            return self._body_reply(job, body, self._is_peek)
        if self._is_peek:
            return codec.INTERNAL_ERROR if job.id in self._broker.jobs else codec.NOT_FOUND
        self._broker.bury(self.client, job.id, job.pri, now)  # else later reserves would fail on the same job
        return codec.INTERNAL_ERROR

    def _reserve_job(self, command: Command, now: int) -> bytes | None:
        _, id = command
        job = self._broker.reserve_job(self.client, id, now)
        if job is None:
            return codec.NOT_FOUND
        self._broker.note_worker(self.client)
        return self._job_reply(job, is_peek=False)

    def _delete(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_delete += 1
        _, id = command
        return codec.DELETED if self._broker.delete(self.client, id, now) else codec.NOT_FOUND

    def _release(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_release += 1
        _, id, pri, delay = command
        is_released = self._broker.release(self.client, id, pri, delay, now)
        return codec.RELEASED if is_released else codec.NOT_FOUND

    def _bury(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_bury += 1
        _, id, pri = command
        return codec.BURIED if self._broker.bury(self.client, id, pri, now) else codec.NOT_FOUND

    def _touch(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_touch += 1
        _, id = command
        return codec.TOUCHED if self._broker.touch(self.client, id, now) else codec.NOT_FOUND

    def _peek(self, command: Command, now: int) -> bytes | None:
        self._broker.counters.cmd_peek += 1
        _, id = command
        return self._peek_reply(self._broker.jobs.get(id))

    def _peek_ready(self, command: Command, now: int) -> bytes | None:
        self._broker.counters.cmd_peek_ready += 1
        return self._peek_reply(self.client.used.ready.first())

    def _peek_delayed(self, command: Command, now: int) -> bytes | None:
        self._broker.counters.cmd_peek_delayed += 1
        return self._peek_reply(self.client.used.delayed.first())

    def _peek_buried(self, command: Command, now: int) -> bytes | None:
        self._broker.counters.cmd_peek_buried += 1
        return self._peek_reply(self.client.used.first_buried())

    def _peek_reply(self, job: Job | None) -> bytes | None:
        if job is None:
            return codec.NOT_FOUND
        return self._job_reply(job, is_peek=True)

    def _begin_kick(self, command: Command, now: int) -> bytes | None:
        self._broker.counters.cmd_kick += 1
        _, bound = command
        tube = self.client.used
        state = BURIED if tube.buried else DELAYED
        present = len(tube.buried) or tube.delayed.count
        return self._do_work(Kick(tube, state, min(bound, present)), now)

    def _do_work(self, work: Work, now: int) -> bytes | None:
        """Do a slice of *work*; return the reply when it is done, else None, with `has_more` set."""
        reply = work.do_slice(self, self._broker, now)
        self._work = None if reply is not None else work
        self.has_more = reply is None
        return reply

    def _kick_job(self, command: Command, now: int) -> bytes:
        _, id = command
        return codec.KICKED if self._broker.kick_job(id, now) else codec.NOT_FOUND

    def _use(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_use += 1
        _, name = command
        self._add_tube_cost(name)
        return codec.using(name) if self._broker.use(self.client, name) else codec.OUT_OF_MEMORY

    def _watch(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_watch += 1
        _, name = command
        self._add_tube_cost(name)
        count = self._broker.watch(self.client, name)
        self._reserve_cost = len(self.client.watched) // WATCHED_BATCH * WATCHED_COST
        return codec.watching(count) if count > 0 else codec.OUT_OF_MEMORY

    def _ignore(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_ignore += 1
        _, name = command
        count = self._broker.ignore(self.client, name)
        self._reserve_cost = len(self.client.watched) // WATCHED_BATCH * WATCHED_COST
        return codec.watching(count) if count else codec.NOT_IGNORED

    def _pause_tube(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_pause_tube += 1
        _, name, delay, is_valid_name = command
        if not is_valid_name:
            raise codec.BadFormat
        return codec.PAUSED if self._broker.pause_tube(name, delay, now) else codec.NOT_FOUND

    def _stats(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_stats += 1
        return self._count_reply(codec.stats(stats.server_stats(self._broker, now)))

    def _stats_job(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_stats_job += 1
        _, id = command
        job = self._broker.jobs.get(id)
        return codec.NOT_FOUND if job is None else self._count_reply(codec.stats(stats.job_stats(job, now)))

    def _stats_tube(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_stats_tube += 1
        _, name = command
        tube = self._broker.tubes.get(name)
        return codec.NOT_FOUND if tube is None else self._count_reply(codec.stats(stats.tube_stats(tube, now)))

    def _list_tubes(self, command: Command, now: int) -> bytes:
        broker = self._broker
        broker.counters.cmd_list_tubes += 1
        if len(broker.tubes) <= SHORT_LIST:
            return self._count_reply(codec.name_list(broker.tubes))
        return self.list_names(broker.name_list())

    def _list_tube_used(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_list_tube_used += 1
        return codec.using(self.client.used.name)

    def _list_tubes_watched(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_list_tubes_watched += 1
        watched = self.client.watched
        if len(watched) <= SHORT_LIST:
            return self._count_reply(codec.name_list(watched))
        self.cost += NAME_COST * len(watched)
        return self.list_names(list_of(watched, self._broker.listed_names))

    def list_names(self, names: NameList) -> bytes:
        """Return the reply that lists *names*. If it is long, return its first line, and set `stream` to the rest."""
        if names.size <= OUTPUT_SLICE:
            return self._count_reply(codec.name_list(names.names()))
        self.cost += OUTPUT_SLICE + len(names.chunks)  # ends the slice
        if not names.acquire():
            self._broker.limit_counters.note("listings", self.client.address)
            return codec.OUT_OF_MEMORY
        self.stream = NameStream(names)
        return codec.ok_line(names.size)

    def _add_tube_cost(self, tube: bytes) -> None:
        if tube not in self._broker.tubes:
            self.cost += NEW_TUBE_COST

    def _count_reply(self, reply: bytes) -> bytes:
        self.cost += len(reply)
        return reply

    def _quit(self, command: Command, now: int) -> None:
        self.is_closing = True


def _ignore_refused(client: Client, command: bytes, reply: bytes) -> None:
    """Stand in for `Session.refused` where errors are not logged."""


def _ended_wait_reply(outcome: int | None) -> bytes:
    """Return the reply to a wait that ended without a job."""
    return codec.DEADLINE_SOON if outcome == WaitOutcome.DEADLINE_SOON else codec.TIMED_OUT


_Handler: TypeAlias = Callable[[Any, Command, int], bytes | None]
"""A command handler: takes the session, the command and the time. The session's type is Any, since a subclass registers
its own methods."""

HANDLERS: Final[dict[bytes, _Handler]] = {
    codec.PEEK: Session._peek,
    codec.PEEK_READY: Session._peek_ready,
    codec.PEEK_DELAYED: Session._peek_delayed,
    codec.PEEK_BURIED: Session._peek_buried,
    codec.RESERVE: Session._reserve,
    codec.RESERVE_WITH_TIMEOUT: Session._reserve_with_timeout,
    codec.RESERVE_JOB: Session._reserve_job,
    codec.DELETE: Session._delete,
    codec.RELEASE: Session._release,
    codec.BURY: Session._bury,
    codec.KICK: Session._begin_kick,
    codec.KICK_JOB: Session._kick_job,
    codec.TOUCH: Session._touch,
    codec.STATS: Session._stats,
    codec.STATS_JOB: Session._stats_job,
    codec.STATS_TUBE: Session._stats_tube,
    codec.USE: Session._use,
    codec.WATCH: Session._watch,
    codec.IGNORE: Session._ignore,
    codec.LIST_TUBES: Session._list_tubes,
    codec.LIST_TUBE_USED: Session._list_tube_used,
    codec.LIST_TUBES_WATCHED: Session._list_tubes_watched,
    codec.QUIT: Session._quit,
    codec.PAUSE_TUBE: Session._pause_tube,
}
