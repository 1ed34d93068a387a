"""Calls between two processes of the queue: a request with one answer, over their link.

A request has a name, a JSON value and a body of bytes; the answer has a value and a body, or is an error. The process
that answers runs the handler of that name in a greenlet of its own. docs/link-protocol.md describes the frames.

Bounds: each side sends one message after the other, and has at most `MAX_CALLS` unanswered requests on a link. The JSON
of a message has at most `MAX_JSON` bytes, and the whole message at most `max_size`. Frames are sent only while the link
is not full, so a large message does not delay the commands of clients. A peer that exceeds a bound loses the link.

Docstrings say which methods may switch greenlets.
"""

from __future__ import annotations

import json
import logging
import struct
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import gevent
from gevent.event import AsyncResult
from gevent.lock import Semaphore
from gevent.timeout import Timeout

from greenstalk_server.net.poller import Handler
from greenstalk_server.protocol.link_frames import ANSWER, CALL, MAX_PAYLOAD, LinkError

CALL_TIMEOUT: Final = 30.0
"""Seconds that a call waits for its answer, unless the caller says otherwise."""

MAX_CALLS: Final = 256
"""Requests of one process to another that are not answered yet. More calls wait."""

MAX_JSON: Final = 2**19
"""Bytes of JSON in a message. Parsing so many takes a few milliseconds; the body may be larger."""

_JSON_SIZE: Final = struct.Struct("<I")

log = logging.getLogger(__name__)


class Message(NamedTuple):
    """The arguments of a call, or its answer.

    value   plain JSON.
    body    bytes.
    """

    value: Any = None
    body: bytes = b""


CallHandler = Callable[[int, Message], Message]
"""Gets the shard that the calling process leads (NO_SHARD if none) and the arguments; returns the answer or raises
CallError. May switch."""


class CallError(Exception):
    """A call has no answer; the message says why.

    may_have_run    the peer may have run the handler, or may run it still.
    """

    def __init__(self, message: str, *, may_have_run: bool = False) -> None:
        super().__init__(message)
        self.may_have_run: bool = may_have_run


class MessageSizeError(CallError):
    """A message is too large for the link, so it was not sent."""


class Carrier(Protocol):
    """The parts of a link that its calls need.

    shard   the shard that the other process leads; NO_SHARD if it leads none.
    """

    shard: int

    @property
    def label(self) -> str:
        """The peer, for messages."""

    @property
    def is_full(self) -> bool:
        """Whether too much output waits."""

    def send_frame(self, kind: int, number: int, payload: bytes) -> None:
        """Send a frame."""

    def note_stalled(self, client: LinkCalls) -> None:
        """Call `pump` of *client* when output has been sent."""


@dataclass(slots=True)
class _Partial:
    """A message of which frames are still to come."""

    kind: int
    number: int
    data: bytearray


class LinkCalls(Handler):
    """The calls over one link, in both directions."""

    def __init__(self, link: Carrier, handlers: Mapping[str, CallHandler], max_size: int) -> None:
        super().__init__()
        self._link: Carrier = link
        self._handlers: Mapping[str, CallHandler] = handlers
        self._max_size: int = max_size
        self._is_lost: bool = False
        self._slots: Semaphore = Semaphore(MAX_CALLS)
        self._last: int = 0
        self._unanswered: dict[int, AsyncResult[Message]] = {}
        self._running: set[int] = set()
        self._outgoing: deque[tuple[int, int, memoryview]] = deque()  # kind, number, rest of the message
        self._partial: _Partial | None = None

    def call(self, name: str, arguments: Message, timeout: float) -> Message:
        """Return the answer of the peer; raise CallError if there is none within *timeout* seconds. Switches."""
        facts = {"name": name, "timeout": timeout, "value": arguments.value}
        data = _encode(facts, arguments.body, self._max_size)
        result: AsyncResult[Message] | None = None
        expired = Timeout.start_new(timeout)
        try:
            self._slots.acquire()
            if self._is_lost:
                self._slots.release()
                raise CallError(f"the link to {self._link.label} is lost")
            self._last = (self._last + 1) % 2**32
            result = self._unanswered[self._last] = AsyncResult()
            self._send(CALL, self._last, data)
            answer: Message = result.get()
        except Timeout as error:
            if error is not expired:
                raise
            message = f"{self._link.label} has not answered within {timeout:g} s"
            raise CallError(message, may_have_run=result is not None) from None
        finally:
            expired.close()
        return answer

    def receive_frame(self, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame of the peer, CALL or ANSWER; raise LinkError if it may not send it. Does not switch."""
        partial = self._partial
        if partial is None:
            partial = self._partial = _Partial(kind, number, bytearray())
        elif (partial.kind, partial.number) != (kind, number):
            raise LinkError("a message begins before the previous one ends")
        partial.data += payload
        if len(partial.data) > self._max_size:
            raise LinkError(f"a message of more than {self._max_size} bytes")
        if len(payload) < MAX_PAYLOAD:
            self._partial = None
            facts, body = _decode(partial.data)
            if kind == CALL:
                self._start(number, facts, body)
            else:
                self._finish(number, facts, body)

    def pump(self) -> None:
        """Send messages as far as there is room. Does not switch."""
        while self._outgoing:
            if self._link.is_full:
                self._link.note_stalled(self)
                return
            kind, number, rest = self._outgoing[0]
            if len(rest) < MAX_PAYLOAD:
                self._outgoing.popleft()
            else:
                self._outgoing[0] = (kind, number, rest[MAX_PAYLOAD:])
            self._link.send_frame(kind, number, bytes(rest[:MAX_PAYLOAD]))

    def resume(self, now: int, limit: int) -> bytes:
        """Do nothing: `pump` has sent what there was room for."""
        return b""

    def close(self) -> None:
        """Raise CallError in all callers: the link is lost. Handlers that run end by themselves. Does not switch."""
        self._is_lost = True
        self._outgoing.clear()
        error = CallError(f"the link to {self._link.label} was lost before the answer", may_have_run=True)
        for number in list(self._unanswered):
            self._unanswered.pop(number).set_exception(error)
            self._slots.release()

    def _send(self, kind: int, number: int, data: bytes) -> None:
        self._outgoing.append((kind, number, memoryview(data)))
        if len(self._outgoing) == 1:
            self.pump()

    def _finish(self, number: int, facts: Mapping[str, Any], body: bytes) -> None:
        """Pass the answer of the peer to the caller, unless the caller has given up."""
        result = self._unanswered.pop(number, None)
        if result is None:
            raise LinkError(f"an answer to call {number}, which was not made")
        self._slots.release()
        if "error" in facts:
            result.set_exception(CallError(str(facts["error"]), may_have_run=facts.get("ran") is not False))
        else:
            result.set(Message(facts.get("value"), body))

    def _start(self, number: int, facts: Mapping[str, Any], body: bytes) -> None:
        """Run the handler of a request of the peer."""
        name, timeout = facts.get("name"), facts.get("timeout")
        if not isinstance(name, str) or not isinstance(timeout, int | float) or not 0 < timeout < 2**31:
            raise LinkError("a call without name or timeout")
        if number in self._running or len(self._running) >= MAX_CALLS:
            raise LinkError(f"more than {MAX_CALLS} calls at a time, or two with one number")
        handler = self._handlers.get(name)
        if handler is None:
            self._answer(number, {"error": f"unknown call {name}", "ran": False})
            return
        self._running.add(number)
        gevent.spawn(self._run, handler, number, timeout, Message(facts.get("value"), body))

    def _run(self, handler: CallHandler, number: int, timeout: float, arguments: Message) -> None:
        """Run *handler*, and send its answer. Switches."""
        expired = Timeout.start_new(timeout)
        body = b""
        try:
            value, body = handler(self._link.shard, arguments)
            facts: dict[str, Any] = {"value": value}
        except CallError as error:
            facts = {"error": str(error), "ran": error.may_have_run}
        except Timeout as error:
            if error is not expired:
                raise
            facts = {"error": f"the call took more than {timeout:g} s"}
        except Exception:
            log.exception("internal error in a call of %s", self._link.label)
            facts = {"error": "internal error of the process that was called"}
        finally:
            expired.close()
            self._running.discard(number)
        if not self._is_lost:
            self._answer(number, facts, body)

    def _answer(self, number: int, facts: Mapping[str, Any], body: bytes = b"") -> None:
        try:
            data = _encode(facts, body, self._max_size)
        except MessageSizeError as error:
            data = _encode({"error": str(error)}, b"", self._max_size)
        self._send(ANSWER, number, data)


def _encode(facts: Mapping[str, Any], body: bytes, max_size: int) -> bytes:
    """Return a message; raise MessageSizeError if it is too large."""
    value = json.dumps(facts, separators=(",", ":")).encode()
    if len(value) > MAX_JSON or _JSON_SIZE.size + len(value) + len(body) > max_size:
        raise MessageSizeError(f"the message is too large: {len(value)} bytes of JSON, {len(body)} bytes of body")
    return b"".join((_JSON_SIZE.pack(len(value)), value, body))


def _decode(data: bytearray) -> tuple[dict[str, Any], bytes]:
    """Return the facts and the body of a message; raise LinkError if it is malformed."""
    if len(data) < _JSON_SIZE.size:
        raise LinkError("a message without JSON")
    end = _JSON_SIZE.size + int(_JSON_SIZE.unpack_from(data)[0])
    if end > min(len(data), _JSON_SIZE.size + MAX_JSON):
        raise LinkError("a message with too much JSON")
    try:
        facts = json.loads(data[_JSON_SIZE.size : end])
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise LinkError("a message with malformed JSON")
    return facts, bytes(memoryview(data)[end:])
