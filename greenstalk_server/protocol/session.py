"""The conversation of one connection, without I/O: bytes in, commands to their handlers, replies out as bytes.

A session is in one of these states:

- at a command line: `_rest` holds the beginning of the line, if some of it has arrived;
- in the body of a put: `_put` is the command, `_partial` has the bytes so far, `_missing` is the number of bytes
  still to come;
- in the body of a put that is refused: `_skip` bytes are still to be discarded, then `_refusal` is sent;
- in a line that is too long: `_long_line` has its first MAX_PUT_LINE bytes;
- parked in a reserve: `is_waiting`; input that arrives during the wait is kept in `_rest`, from `_position` on;
- parked because the body of the job `awaited` is on disk: `is_waiting` too;
- at the end of a slice, with input or work left: `has_more`, and `_rest` as above;
- in the middle of a large reply: `has_more`, and `stream` holds the rest of the reply, to be sent before `resume`;
- closing: `is_closing`; the caller closes the connection once it has sent the returned bytes.

One call serves what has arrived, up to a slice, and returns the replies as one piece. A slice bounds the cost of a
call. The returned replies have at most 2 * OUTPUT_SLICE bytes, plus at most 208 bytes for each command: short
replies, and the first line of a reply with a body, do not add to the cost. With extensions, the replies of one
reserve-batch have at most 1000 first lines of at most 400 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Final

from greenstalk_server.core.broker import SLICE, Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.operations import connecting, putting, suspending
from greenstalk_server.core.outcomes import Refusal, WaitOutcome
from greenstalk_server.core.tags.tags import Duplicate
from greenstalk_server.core.transitions import waiting
from greenstalk_server.core.transitions.dependents import wake_dependents
from greenstalk_server.protocol import codec, replies
from greenstalk_server.protocol.arguments import MAX_PUT_LINE, TAGGED_LENGTH, BadFormat, ProtocolError, mode
from greenstalk_server.protocol.costs import (
    CLOSE_COST,
    COMMAND_COST,
    COMMAND_SLICE,
    DISCONNECT_COST,
    OUTPUT_SLICE,
)
from greenstalk_server.protocol.replies import CR, CRLF, LF
from greenstalk_server.protocol.reserve_commands import awaited_reply, ended_wait_reply, wait_reply
from greenstalk_server.protocol.session_state import Command, SessionState
from greenstalk_server.protocol.verb import MAX_LINE, Verb


class Postponed(Exception):
    """The command must wait; the session serves its line again later."""


PUT_LENGTH: Final = 6
"""Number of members of a put. put-in-tube adds the tube; a put with tags adds the tube and the tags."""

INPUT_LIMIT: Final = 65536
"""Bytes of input kept while parked. When more is kept, the caller should stop reading; the last read may exceed the
limit."""

GROWN_BODY: Final = 2**20
"""Size in bytes above which the buffer of a body is allocated whole when the put begins. A buffer that grows is copied,
which takes 15 ms for 30 MB. The system provides the pages of such a large buffer when they are written, so a put whose
body does not arrive takes no memory."""

TOO_LONG: Final = -1
INCOMPLETE: Final = -2
"""Results of `_end_of_long_line` that are not positions."""

TOO_BIG: Final = 0
FORBIDDEN: Final = 1
NO_MEMORY: Final = 2
REFUSALS: Final = (replies.JOB_TOO_BIG, replies.UNKNOWN_COMMAND, replies.OUT_OF_MEMORY)
"""Replies to a put after its body is discarded. TOO_BIG, FORBIDDEN and NO_MEMORY are the indices."""

POSTPONED: Final = Postponed()
"""The only instance."""

REPLIED: Final = -1
"""Value of `_refusal` if the reply was sent before the body is discarded."""


class Session(SessionState):
    """The conversation of one connection with the broker.

    line        line of the command that is served now, without CRLF.
    pause       seconds to wait before `resume`; see `has_more`.
    reports     a reply of the current or last slice waits for the journal; see `Verb.awaits_journal`.
    refused     called with the client, a command, and the error reply that the command gets.

    `RestrictedSession` overrides `_handle` and `_may_put`.
    """

    __slots__ = (
        "_long_line",
        "_missing",
        "_partial",
        "_position",
        "_put",
        "_put_id",
        "_refusal",
        "_rest",
        "_skip",
        "line",
        "pause",
        "refused",
        "reports",
    )

    def __init__(self, broker: Broker, wake: Callable[[], None]) -> None:
        """See SessionState."""
        super().__init__(broker, wake, mode.extends_stats and not mode.is_strict)
        self.line: bytes = b""
        self.pause: float = 0.0
        self.reports: bool = False
        self.refused: Callable[[Client, bytes, bytes], None] = _ignore_refused
        self._long_line: bytes = b""
        self._rest: bytes = b""
        self._position: int = 0
        self._put: Command | None = None
        self._put_id: int = 0
        self._partial: BytesIO | None = None
        self._missing: int = 0
        self._skip: int = 0
        self._refusal: int = TOO_BIG  # index of REFUSALS: reply to the put whose body is discarded

    @property
    def wants_input(self) -> bool:
        """Whether to read more: no slice is left to do, the peer may still send, and less than INPUT_LIMIT is kept."""
        return not self.has_more and not self.is_eof and len(self._rest) - self._position < INPUT_LIMIT

    def receive(self, data: bytes, now: int, limit: int = COMMAND_SLICE) -> bytes:
        """Serve up to *limit* commands of *data*, which is not empty, and return their replies."""
        if self.is_waiting:
            self._rest = self._rest[self._position :] + data
            self._position = 0
            return self.end_wait(now, limit) if self.client.is_remote else b""
        self.cost = 0
        self.reports = False
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

    def receive_eof(self, now: int, limit: int = COMMAND_SLICE) -> bytes:
        """Handle the end of the input: the peer has closed its side. Input that has arrived is still served."""
        self.is_eof = True
        return self.end_wait(now, limit)

    def end_wait(self, now: int, limit: int = COMMAND_SLICE) -> bytes:
        """End the wait for a job, if there is one: the peer has closed its side. Serve the input that has arrived."""
        if self.is_woken:
            return self.resume(now, limit)
        out: list[bytes] = []
        if self.awaited is not None:
            return b""  # the input is served once the body is read
        if self.is_waiting:
            waiting.cancel_wait(self.broker, self.client)
            self.is_waiting = False
            out.append(ended_wait_reply(self, WaitOutcome.TIMED_OUT))
        self.cost = 0
        self.reports = False
        return self._serve(self._rest, self._position, out, now, limit)

    def resume(self, now: int, limit: int = COMMAND_SLICE) -> bytes:
        """Continue after `wake`, or after a call that left `has_more` and whose stream, if any, has been sent."""
        out: list[bytes] = []
        self.cost = 0
        self.reports = self.is_waiting or self.sliced is not None
        if self.is_waiting:
            self.is_waiting = False
            reply = wait_reply(self, now) if self.awaited is None else awaited_reply(self, now)
            if reply is None:
                return b""
            out.append(reply)
        elif self.sliced is not None:
            reply = self.do_slice(self.sliced, now)
            if reply is None:
                return b""
            out.append(reply)
        if self.stream is not None:
            self.has_more = True
            return out[0]
        return self._serve(self._rest, self._position, out, now, limit)

    def close(self, now: int) -> None:
        """Disconnect the client, and set `cost`. Call this or `suspend` exactly once, after all other methods."""
        self._end_work()
        connecting.disconnect(self.broker, self.client, now)

    def suspend(self, now: int) -> None:
        """Suspend the client, whose link is lost. See `close`."""
        self._end_work()
        suspending.suspend(self.broker, self.client, now)

    def _end_work(self) -> None:
        """End all that the session does or waits for, and set the `cost` of the end of the client."""
        client = self.client
        left = min(len(client.reserved) + len(client.watched), 2 * SLICE)
        self.cost = CLOSE_COST + self.reserve_cost + DISCONNECT_COST * left
        self.awaited = None
        self.end_stream()

    def end_stream(self) -> None:
        """Close the stream, if there is one. Call this when the stream has been sent or is abandoned."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None

    # Lines

    def _serve(self, data: bytes, pos: int, out: list[bytes], now: int, limit: int) -> bytes:
        """Serve the lines of *data* from *pos* on, up to a slice; keep the rest; return the joined *out*."""
        self.has_more = False
        if self._long_line:
            pos = self._continue_long_line(data, pos, out)
        size = len(data)
        for _ in range(limit):
            wake_dependents(self.broker, now)
            if pos == size:
                break
            found = codec.next_command(data, pos)
            if found is None:
                line_end = INCOMPLETE if size - pos < MAX_LINE else self._end_of_long_line(data, pos)
                if line_end == INCOMPLETE:
                    break
                if line_end == TOO_LONG:
                    self._long_line = data[pos : pos + MAX_PUT_LINE]
                    pos = self._continue_long_line(data, pos, out)
                    continue
                found = data[pos:line_end], None
            line = found[0]
            self.line = line
            pos += len(line) + 2
            try:
                command = found[1] or codec.parse(line)
                verb: Verb = command[0]
                if verb.handle is None:
                    pos = self._begin_put(command, data, pos, out, now)
                    continue
                self.reports |= verb.awaits_journal
                reply = self._handle(verb, command, now)
            except (Postponed, ProtocolError) as error:
                if isinstance(error, Postponed) or self._must_wait():
                    pos -= len(line) + 2
                    break
                reply = error.reply
                self.refused(self.client, line, reply)
                pos = self._skip_announced(line + b" ", data, pos, out)
            if reply is None and (pos == size or (reply := self._end_await()) is None):
                break
            out.append(reply)
            if self.cost > OUTPUT_SLICE:
                self.has_more = True
                break
        else:
            self.has_more = pos < size
            self.cost += COMMAND_COST * limit
        self.line = b""
        self._keep_from(data, pos)
        self.is_closing |= self.is_eof and not (self.has_more or self.is_waiting)
        return out[0] if len(out) == 1 else b"".join(out)

    def _end_await(self) -> bytes | None:
        """End the wait of a remote client, as more input is there; return the reply, or None."""
        client = self.client
        if not (client.is_remote and client.is_waiting):
            return None
        waiting.cancel_wait(self.broker, client)
        self.is_waiting = False
        return ended_wait_reply(self, WaitOutcome.TIMED_OUT)

    def _keep_from(self, data: bytes, pos: int) -> None:
        """Keep *data* from *pos* on, without a copy if the next slice follows soon and the rest is large."""
        if pos < len(data) - pos and (self.has_more or self.is_waiting):
            self._rest, self._position = data, pos
        else:
            self._rest, self._position = data[pos:] if pos < len(data) else b"", 0

    def _handle(self, verb: Verb, command: Command, now: int) -> bytes | None:
        """Return the reply to *command*, or None if the commands after it have to wait."""
        assert verb.handle is not None
        return verb.handle(self, command, now)

    def _must_wait(self) -> bool:
        """Whether the replies to earlier commands are still to come, so that no error may be replied now."""
        return False

    def _end_of_long_line(self, data: bytes, pos: int) -> int:
        """Return the end of the line at *pos*, which is longer than MAX_LINE; or INCOMPLETE or TOO_LONG."""
        limit = codec.max_line(data, pos)
        end = data.find(CRLF, pos, pos + limit)
        return end if end >= 0 else INCOMPLETE if len(data) - pos < limit or self._must_wait() else TOO_LONG

    def _continue_long_line(self, data: bytes, pos: int, out: list[bytes]) -> int:
        end = data.find(CRLF, pos)
        if end < 0:
            return len(data) - data.endswith(b"\r")
        line, self._long_line = self._long_line, b""
        out.append(BadFormat.reply)
        if codec.hides_size(line):
            return self._close_early(data)
        return self._skip_announced(line, data, end + 2, out)

    def _close_early(self, data: bytes) -> int:
        """Close the connection, because the rest of the stream may be part of a body; return the next position."""
        self.is_closing = True
        return len(data)

    # Put

    def _may_put(self, command: Command) -> bool:
        """Whether an access rule allows the put."""
        return True

    def _begin_put(self, command: Command, data: bytes, pos: int, out: list[bytes], now: int) -> int:
        """Begin the put whose line ends before *pos*; finish it if its body has arrived; return the next position."""
        verb: Verb = command[0]
        if not (verb.is_extension or self.client.is_remote):
            self.broker.counters.cmd_put += 1
        end = self._refuse_put(command, data, pos, out)
        return end if end >= 0 else self._read_body(command, self.broker.allocate_id(), data, pos, out, now)

    def _refuse_put(self, command: Command, data: bytes, pos: int, out: list[bytes]) -> int:
        """Refuse the put whose line ends before *pos*, and return the next position; return -1 if it is allowed."""
        broker = self.broker
        size: int = command[4]
        if not self._may_put(command):
            return self._begin_skip(size, FORBIDDEN if size <= broker.max_job_size else TOO_BIG, data, pos, out)
        if size > broker.max_job_size:
            return self._begin_skip(size, TOO_BIG, data, pos, out)
        if not command[5]:
            raise BadFormat  # as in beanstalkd, the body is served as commands
        if not self.client.is_producer:
            connecting.note_producer(broker, self.client)
        return -1

    def _read_body(self, command: Command, id: int, data: bytes, pos: int, out: list[bytes], now: int) -> int:
        """Read the body of the put *id* from *pos* on, and finish the put if it is whole; return the next position."""
        size: int = command[4]
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
        if data[end] != CR or data[end + 1] != LF:
            return self._refuse_unterminated(command, data, end + 2, out)
        out.append(self._end_put(command, id, data[pos:end], now))
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
            if partial.read() != CRLF:
                return self._refuse_unterminated(command, data, taken, out)
            partial.truncate(size)  # then `getvalue` returns the buffer itself, not a copy
            out.append(self._end_put(command, self._put_id, partial.getvalue(), now))
        return taken

    def _refuse_unterminated(self, command: Command, data: bytes, pos: int, out: list[bytes]) -> int:
        """Refuse a put whose body, with two more bytes, ends before *pos* without CRLF; return the next position.

        The client has announced a wrong size, so what follows may be the rest of the body.
        """
        self.refused(self.client, b"put of %d bytes" % command[4], replies.EXPECTED_CRLF)
        out.append(replies.EXPECTED_CRLF)
        return pos if mode.is_strict else self._close_early(data)

    def _end_put(self, command: Command, id: int, body: bytes, now: int) -> bytes:
        """Put the job *id*, and return the reply."""
        if self.skips:
            return replies.SKIPPED
        return self._put_job(command, id, body, now)

    def _put_job(self, command: Command, id: int, body: bytes, now: int) -> bytes:
        if self.broker.is_draining:
            return replies.DRAINING
        if len(command) == PUT_LENGTH:
            _, pri, delay, ttr, _, _ = command
            result = putting.put(self.broker, self.client, id, pri, delay, ttr, body, now)
        elif len(command) < TAGGED_LENGTH:
            _, pri, delay, ttr, _, _, name = command
            result = putting.put_in_tube(self.broker, self.client, name, id, pri, delay, ttr, body, now)
        else:
            _, pri, delay, ttr, _, _, name, tags = command
            outcome = putting.put_tagged(self.broker, self.client, name, id, pri, delay, ttr, body, tags, now)
            if isinstance(outcome, Duplicate):
                self.reports = True
                return replies.duplicate(outcome.id, outcome.state, outcome.pri)
            result = outcome
        if result > 0:
            self.reports = True  # a policy may have returned an earlier job
            return replies.inserted(result)
        return replies.JOB_TOO_BIG if result == Refusal.TOO_BIG else replies.OUT_OF_MEMORY

    def _begin_skip(self, size: int, refusal: int, data: bytes, pos: int, out: list[bytes]) -> int:
        """Discard the body of a put, *size* bytes from *pos* on, then reply *refusal*; return the next position."""
        self._skip = size + 2
        self._refusal = refusal
        self.refused(self.client, b"put of %d bytes" % size, REFUSALS[refusal])
        return self._continue_skip(data, pos, out)

    def _skip_announced(self, line: bytes, data: bytes, pos: int, out: list[bytes]) -> int:
        """Discard the body that the refused *line* announces (see `announced_size`); return the next position."""
        size = codec.announced_size(line)
        if size == codec.NO_BODY:
            return pos
        self._skip = size + 2
        self._refusal = REPLIED
        return self._continue_skip(data, pos, out)

    def _continue_skip(self, data: bytes, pos: int, out: list[bytes]) -> int:
        skipped = min(self._skip, len(data) - pos)
        self._skip -= skipped
        if not self._skip and self._refusal != REPLIED:
            out.append(REFUSALS[self._refusal])
        return pos + skipped


def _ignore_refused(client: Client, command: bytes, reply: bytes) -> None:
    """Stand in for `Session.refused` where errors are not logged."""
