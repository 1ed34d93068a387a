"""HTTP requests, read and answered within bounds.

gevent's own handler waits for ever, for what a client has to send and for it to read; and it serves one client for as
long as there is something from it to be read, be it a body without end that nobody wants, while nobody else has a turn.

Here what comes is read in portions, and in one round of the loop one portion is read or one request answered, whoever
has sent it: so others wait for one of those at most. What takes too long ends. And a request that two programs could
understand in two ways, such as a proxy and this server, is none.
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

from gevent.pywsgi import Input, _InvalidClientInput

from greenstalk_server.runtime import logs
from greenstalk_server.runtime.scheduling import FairQueue

PORTION: Final = 4096
"""Bytes read in one turn. As chunks of one byte they take 3 ms."""

LARGEST_HEAD: Final = 65536
"""Bytes of a request's first line and headers."""

IDLE: Final = 75.0
"""Seconds that a connection may be open without a request: longer than proxies keep theirs, as a rule."""

GRACE: Final = 30.0
SLOWEST: Final = 1024
"""Seconds in which a request has to have come, and bytes for each of which it has a part of a second more."""

SEND_TIMEOUT: Final = 60.0
"""Seconds in which a client that is being answered has to read something."""

_SIOCOUTQ: Final = termios.TIOCOUTQ
"""Asks for the bytes that were sent and not read, or not acknowledged (tcp(7), unix(7))."""

_FIELD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*\r?\n")
"""A header's line (RFC 9112, 5); what is folded, or ends otherwise, others may understand otherwise."""

_VERSION: Final = re.compile(r"HTTP/1\.[0-9]")

_ABSOLUTE: Final = re.compile(r"https?://", re.IGNORECASE)
_HOST_AND_PATH: Final = re.compile(r"([^/?#@]+)((?:[/?].*)?)")
"""A target in absolute form (RFC 9112, 3.2.2), and what is behind its scheme."""


class RequestHandler(logs.RequestHandler):
    """One connection, and the requests that come by it."""

    request_version: str
    wsgi_input: Any
    code: int

    def __init__(self, sock: Any, address: object, server: Any) -> None:
        self._incoming: _Incoming = _Incoming(sock, server.turns)
        super().__init__(sock, address, server, io.BufferedReader(self._incoming))

    def handle(self) -> None:
        try:
            with suppress(OSError):  # it is gone, and does not hear what is wrong with its request
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
        """Take host and path from *target*, of which the absolute form is without the scheme; raise ValueError.

        The host in the target counts, whatever the header Host says.
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
            raise ValueError("its first line has no version of HTTP/1")
        head = _Lines(rfile)
        headers = super().MessageClass(head, *args)
        self._incoming.end_head()
        if not (head.lines[-1] and all(_FIELD.fullmatch(line) for line in head.lines[:-1])):
            raise ValueError("its head is not made of whole headers")
        _refuse_ambiguous(headers, self.request_version)
        return headers

    def run_application(self) -> None:
        self.server.turns.take()
        super().run_application()

    def _check_http_version(self) -> bool:
        return _VERSION.fullmatch(self.request_version) is not None

    def _connection_upgrade_requested(self) -> bool:
        """No: there are no web sockets here, so what asks for one is read like all else."""
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
        """Send as much of *data* as the system takes; raise OSError if it is gone, or has read nothing for too long.

        A socket is writable only once a third of its buffer is free: on loopback that is a megabyte to be read. So we
        look whether the client has read anything.
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
    """gevent's, of which every failure to read a body is the client's mistake: 400 if possible, and the end.

    A size of a chunk that is no number is a ValueError there, and a body that breaks off an OSError without a number;
    either would be logged as an error of the server, with a traceback.
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
        """Have the rest not be read; raise the error that says so, unless the connection itself has failed."""
        self._chunked_input_error = True
        if not isinstance(error, OSError) or error.errno is None:
            raise _InvalidClientInput(str(error)) from error


class _Lines:
    """Gives the lines of *file*, and keeps them."""

    def __init__(self, file: Any) -> None:
        self.lines: list[bytes] = []
        self._file: Any = file

    def readline(self, limit: int = -1) -> bytes:
        line: bytes = self._file.readline(limit)
        self.lines.append(line)
        return line


class _Incoming(io.RawIOBase):
    """What comes by one connection; it ends where that takes too long.

    is_late     it has ended so, in the middle of a request.
    """

    def __init__(self, sock: Any, turns: FairQueue) -> None:
        self.is_late: bool = False
        self._sock: Any = sock
        self._turns: FairQueue = turns
        self._came: int = 0  # bytes of this request
        self._began: float = 0.0  # when the first of them came
        self._is_head: bool = True
        self._is_over: bool = False

    def begin(self) -> None:
        """Wait for another request."""
        self._came, self._is_head = 0, True

    def end_head(self) -> None:
        """Note that the headers have come."""
        self._is_head = False

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._sock.fileno())

    def readinto(self, buffer: Any, /) -> int:
        """Read a portion; 0 is the end. Raises OSError, also if it comes too slowly. Switches."""
        if self._is_over:
            return 0
        if self._came:
            self._turns.take()
        try:
            size = int(self._receive(memoryview(buffer)[:PORTION]))
        except TimeoutError:
            self._is_over, self.is_late = True, self._came > 0
            self._sock.settimeout(SEND_TIMEOUT)
            raise BrokenPipeError(errno.EPIPE, "the client does not send") from None  # which gevent takes for no error
        if not self._came:
            self._began = time.monotonic()
        self._came += size
        if self._is_head and self._came > LARGEST_HEAD:
            self._is_over = True
            raise ValueError(f"its head is of more than {LARGEST_HEAD} bytes")
        return size

    def _receive(self, buffer: memoryview) -> Any:
        left = IDLE
        if self._came:
            left = self._began + GRACE + self._came / SLOWEST - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._sock.recv_into(buffer)


def _unread(sock: Any) -> int:
    """Bytes sent by *sock* that the peer has not taken yet."""
    return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), _SIOCOUTQ, bytes(4)))[0])


def _refuse_ambiguous(headers: Any, version: str) -> None:
    """Raise ValueError if it is open where a request with these *headers* ends (RFC 9112, 6.1, 6.3 and 11.2)."""
    lengths, encodings = headers.get_all("content-length", []), headers.get_all("transfer-encoding", [])
    if len(lengths) + len(encodings) > 1:
        raise ValueError("it says more than once how long it is")
    if encodings and version == "HTTP/1.0":
        raise ValueError("HTTP/1.0 has no chunks, and a proxy may have passed them on unread")
    if any(encoding.lower() != "chunked" for encoding in encodings):
        raise ValueError("its body is encoded as nobody can read it here")
    if any(not (length.isascii() and length.isdigit()) for length in lengths):
        raise ValueError("its length is no number")
