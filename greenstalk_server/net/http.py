"""Read and answer HTTP requests with timeouts, fair turns, and strict parsing.

gevent's own handler has no timeouts. It reads from one client for as long as data arrives, even an endless body that
the application does not want, and the loop serves no other client during that time.

This handler reads `READ_SIZE` bytes at a time. In each iteration of the event loop, the server does one step for all
HTTP connections together: it does one read, and answers the request whose head ends in that read; or it answers one
request that was already read. So other clients wait for one such step at most, and `Readiness` bounds the number of
connections that are woken. Slow clients are disconnected. A request that a proxy and this server could interpret
differently is rejected.
"""

from __future__ import annotations

import errno
import fcntl
import io
import re
import struct
import termios
import time
from contextlib import suppress
from typing import Any, Final

from gevent import get_hub
from gevent.event import Event
from gevent.pywsgi import Input, _InvalidClientInput

from greenstalk_server.runtime import logs
from greenstalk_server.runtime.scheduling import FairQueue
from greenstalk_server.runtime.system import LEVEL_EVENTS, YIELD_DELAY, open_poll

READ_SIZE: Final = 4096
"""Maximum bytes per read. Processing them takes 3 ms if the body is in chunks of one byte."""

MAX_HEAD: Final = 65536
"""Maximum bytes of a request's first line and headers."""

IDLE_TIMEOUT: Final = 75.0
"""Seconds that a connection may be open without a request. Most proxies close idle connections sooner."""

REQUEST_TIMEOUT: Final = 30.0
"""Seconds from the first byte of a request to its last; see `MIN_RATE`."""

TIMEOUT_CHECK_INTERVAL: Final = 0.5
"""Seconds between two searches for connections whose time is over."""

MAX_WAKES: Final = 8
"""Maximum connections with input, and maximum connections past their deadline, that an iteration of the event loop
wakes.
"""

MIN_RATE: Final = 1024
"""Bytes per second. A request has one second more for each MIN_RATE bytes that have arrived."""

SEND_TIMEOUT: Final = 60.0
"""Seconds within which a client must read some bytes of a response."""

_SIOCOUTQ: Final = termios.TIOCOUTQ
"""The ioctl that returns the number of sent bytes that the peer has not acknowledged or read (tcp(7), unix(7))."""

_FIELD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*\r?\n")
"""A header line (RFC 9112, 5). Folded lines and other line ends are rejected, since parsers differ on them."""

_VERSION: Final = re.compile(r"HTTP/1\.[0-9]")

_ABSOLUTE: Final = re.compile(r"https?://", re.IGNORECASE)
_HOST_AND_PATH: Final = re.compile(r"([^/?#@]+)((?:[/?].*)?)")
"""A target in absolute form (RFC 9112, 3.2.2): its scheme, then its host and path."""


class RequestHandler(logs.RequestHandler):
    """Serves the requests of one connection."""

    request_version: str
    wsgi_input: Any
    code: int

    def __init__(self, sock: Any, address: object, server: Any) -> None:
        self._incoming: _Incoming = _Incoming(sock, server.turns, server.readiness)
        super().__init__(sock, address, server, io.BufferedReader(self._incoming))

    def handle(self) -> None:
        try:
            with suppress(OSError):  # the client is gone; the error response cannot be sent
                super().handle()
        finally:
            if self._incoming.is_late:
                address = self.client_address[0] if isinstance(self.client_address, tuple) else ""
                self.server.files.limit_counters.note("request_timeout", address)

    def read_requestline(self) -> str:
        """Read the line that begins a request; skip one empty line before it (RFC 9112, 2.2)."""
        self._incoming.begin()
        line = str(super().read_requestline())
        if line == "\r\n":
            self._incoming.begin()
            line = str(super().read_requestline())
        return line

    def read_request(self, raw_requestline: str) -> Any:
        result = super().read_request(raw_requestline)
        absolute = _ABSOLUTE.match(self.path)
        if absolute is not None:
            self._take_target(self.path[absolute.end() :])
        return result

    def _take_target(self, target: str) -> None:
        """Set host and path from *target*, an absolute form without its scheme; raise ValueError if it has no host.

        The host in the target overrides the Host header.
        """
        match = _HOST_AND_PATH.fullmatch(target)
        if match is None:
            raise ValueError("its target has no host")
        self.path = match[2] if match[2].startswith("/") else "/" + match[2]
        del self.headers["Host"]
        self.headers["Host"] = match[1]

    def get_environ(self) -> Any:
        environ = super().get_environ()
        body = self.wsgi_input
        if isinstance(body, Input):
            environ["wsgi.input"] = self.wsgi_input = _Body(
                self.rfile, body.content_length, body.socket, body.chunked_input
            )
        return environ

    def MessageClass(self, rfile: Any, *args: Any) -> Any:  # noqa: N802  gevent's name
        if not self._check_http_version():
            raise ValueError("its first line has no HTTP/1 version")
        head = _Lines(rfile)
        headers = super().MessageClass(head, *args)
        self._incoming.end_head()
        if not (head.lines[-1] and all(_FIELD.fullmatch(line) for line in head.lines[:-1])):
            raise ValueError("its head has a malformed header line")
        _refuse_ambiguous(headers, self.request_version)
        return headers

    def run_application(self) -> None:
        if not self._incoming.use_turn():
            self.server.turns.take()
        super().run_application()

    def _check_http_version(self) -> bool:
        return _VERSION.fullmatch(self.request_version) is not None

    def _connection_upgrade_requested(self) -> bool:
        """Return False: web sockets are not supported, so the request is an ordinary one."""
        return False

    def _sendall(self, data: Any) -> None:
        view = memoryview(data)
        self.socket.settimeout(SEND_TIMEOUT)
        try:
            while view:
                sent = self._send(view)
                self.response_length += sent
                view = view[sent:]
        except OSError as error:
            self.status, self.code = f"socket error: {error}", -abs(self.code)
            raise

    def _send(self, data: memoryview) -> int:
        """Send as much of *data* as the socket accepts; raise OSError if the client is gone or does not read.

        A socket becomes writable only when a third of its buffer is free. On loopback, the client has to read a
        megabyte before that. So after SEND_TIMEOUT this method checks whether the client has read anything.
        """
        unread = _unread(self.socket)
        while True:
            try:
                return int(self.socket.send(data))
            except TimeoutError:
                before, unread = unread, _unread(self.socket)
                if unread >= before:
                    self._incoming.is_late = True
                    raise BrokenPipeError(errno.EPIPE, "the client does not read") from None


class _Body(Input):  # type: ignore[misc]
    """gevent's Input, but an unreadable body is a client error: 400 if possible, then the connection closes.

    gevent raises ValueError for an invalid chunk size, and OSError without an errno for a body that ends early, and
    would log both as server errors with a traceback.
    """

    def read(self, length: int | None = None) -> bytes:
        try:
            return bytes(super().read(length))
        except (OSError, ValueError) as error:
            self._fail(error)
            raise

    def readline(self, size: int | None = None) -> bytes:
        try:
            return bytes(super().readline(size))
        except (OSError, ValueError) as error:
            self._fail(error)
            raise

    def _fail(self, error: OSError | ValueError) -> None:
        """Leave the rest of the input unread; raise the error that causes a 400, unless the connection has failed."""
        self._chunked_input_error = True
        if not isinstance(error, OSError) or error.errno is None:
            raise _InvalidClientInput(str(error)) from error


class _Lines:
    """Returns the lines of *file*, and records them in `lines`."""

    def __init__(self, file: Any) -> None:
        self.lines: list[bytes] = []
        self._file: Any = file

    def readline(self, limit: int = -1) -> bytes:
        line: bytes = self._file.readline(limit)
        self.lines.append(line)
        return line


class Readiness:
    """Wakes greenlets whose sockets have input, or whose time is over: MAX_WAKES in each iteration of the event loop.

    gevent's loop wakes all of them in one iteration: three thousand take 50 ms.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Event, float]] = {}  # with the times at which their waits end
        loop = get_hub().loop
        self._poll, self._watcher = open_poll(loop, ref=False)
        self._watcher.start(self._wake)
        self._timer: Any = loop.timer(TIMEOUT_CHECK_INTERVAL, TIMEOUT_CHECK_INTERVAL)  # runs while greenlets wait
        self._soon: Any = loop.timer(YIELD_DELAY)

    def wait(self, descriptor: int, seconds: float) -> None:
        """Wait until the socket *descriptor* has input; raise TimeoutError soon after *seconds*. Switches."""
        ready = Event()
        self._waiting[descriptor] = ready, time.monotonic() + seconds
        self._poll.register(descriptor, LEVEL_EVENTS)
        if not self._timer.active:
            self._timer.start(self._end_late)
        try:
            ready.wait()
            if descriptor not in self._waiting:
                raise TimeoutError
        finally:
            self._waiting.pop(descriptor, None)
            with suppress(OSError):  # already closed
                self._poll.unregister(descriptor)

    def _wake(self) -> None:
        for descriptor, _ in self._poll.poll(0, MAX_WAKES):
            if descriptor in self._waiting:
                self._waiting[descriptor][0].set()

    def _end_late(self) -> None:
        """Remove up to MAX_WAKES waits whose time is over, and wake their greenlets."""
        if not self._waiting:
            self._timer.stop()
        now = time.monotonic()
        late = [descriptor for descriptor, (_, until) in self._waiting.items() if until <= now]
        for descriptor in late[:MAX_WAKES]:
            self._waiting.pop(descriptor)[0].set()
        if len(late) > MAX_WAKES:
            self._soon.start(self._end_late)


class _Incoming(io.RawIOBase):
    """The input of one connection. It ends when the client is too slow.

    is_late   whether a timeout has ended the input in the middle of a request.
    """

    def __init__(self, sock: Any, turns: FairQueue, readiness: Readiness) -> None:
        self.is_late: bool = False
        self._sock: Any = sock
        self._turns: FairQueue = turns
        self._readiness: Readiness = readiness
        self._received: int = 0  # bytes of this request
        self._began: float = 0.0  # time of its first byte
        self._is_head: bool = True
        self._is_over: bool = False
        self._turn: int = -1  # the iteration of the event loop whose turn the last read took; -1 without one

    def begin(self) -> None:
        """Expect a new request."""
        self._received, self._is_head = 0, True

    def end_head(self) -> None:
        """Mark the headers as completely read."""
        self._is_head = False

    def use_turn(self) -> bool:
        """Return whether the turn of the last read is still valid, and end it."""
        turn, self._turn = self._turn, -1
        return turn == self._turns.iteration

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._sock.fileno())

    def readinto(self, buffer: Any, /) -> int:
        """Read up to `READ_SIZE` bytes into *buffer*; return their number, 0 at the end of the stream.

        Raise OSError if the client is too slow. Switches.
        """
        if self._is_over:
            return 0
        try:
            size = int(self._receive(memoryview(buffer)[:READ_SIZE]))
        except TimeoutError:
            self._is_over, self.is_late = True, self._received > 0
            self._sock.settimeout(SEND_TIMEOUT)
            raise BrokenPipeError(errno.EPIPE, "the client does not send") from None  # gevent does not log this one
        if not self._received:
            self._began = time.monotonic()
        self._received += size
        if self._is_head and self._received > MAX_HEAD:
            self._is_over = True
            raise ValueError(f"its head exceeds {MAX_HEAD} bytes")
        return size

    def _receive(self, buffer: Any) -> Any:
        left = IDLE_TIMEOUT
        if self._received:
            left = self._began + REQUEST_TIMEOUT + self._received / MIN_RATE - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if self._take_free_turn():  # the request of a new connection has often arrived, which saves the wait
            self._sock.settimeout(0.0)
            try:
                return self._sock.recv_into(buffer)
            except BlockingIOError:
                pass
            finally:
                self._sock.settimeout(SEND_TIMEOUT)
        self._readiness.wait(self._sock.fileno(), left)
        if not self._take_free_turn():
            self._turns.take()
        self._sock.settimeout(SEND_TIMEOUT)
        return self._sock.recv_into(buffer)

    def _take_free_turn(self) -> bool:
        is_taken = self._turns.take_if_free()
        self._turn = self._turns.iteration if is_taken else -1
        return is_taken


def _unread(sock: Any) -> int:
    """Return the number of bytes sent on *sock* that the peer has not read or acknowledged."""
    return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), _SIOCOUTQ, bytes(4)))[0])


def _refuse_ambiguous(headers: Any, version: str) -> None:
    """Raise ValueError if the end of a request with *headers* is ambiguous (RFC 9112, 6.1, 6.3 and 11.2)."""
    lengths, encodings = headers.get_all("content-length", []), headers.get_all("transfer-encoding", [])
    if len(lengths) + len(encodings) > 1:
        raise ValueError("it states its length more than once")
    if encodings and version == "HTTP/1.0":
        raise ValueError("HTTP/1.0 has no chunked encoding")
    if any(encoding.lower() != "chunked" for encoding in encodings):
        raise ValueError("its transfer encoding is not supported")
    if any(not (length.isascii() and length.isdigit()) for length in lengths):
        raise ValueError("its length is not a number")
