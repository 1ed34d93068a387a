"""One client connection, which splits the server's output into replies.

A reply is a line, and the body that the line announces: RESERVED, FOUND and OK have one. This module knows nothing
else about the protocol, so it records a wrong reply and does not reject it.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable

SILENCE = b"<silence>"
"""In a transcript: no reply arrived in time."""
END = b"<end>"
"""In a transcript: the end of the stream, by FIN or by reset."""
QUIET = b"<quiet>"
"""In a transcript: nothing had arrived when the player looked."""

MISSING_CRLF = b"<no CRLF>"
"""Follows a reply whose body has a different size from the one in its line."""

SEND_SECONDS = 5.0

_BODY_SIZE = re.compile(rb"(?:OK|(?:RESERVED|FOUND) \d+) (\d{1,9})\Z")


class Connection:
    """A client connection on loopback. Its reads return whole replies, and time out.

    A read that has received nothing for *timeout* seconds calls *settle*, which returns once the server has handled
    all its input, and then receives once more. So a short timeout is enough if no reply depends on time.
    """

    def __init__(self, address: tuple[str, int], timeout: float, settle: Callable[[], None] = lambda: None) -> None:
        self.timeout = timeout
        self._settle = settle
        self._socket = socket.create_connection(address, timeout=SEND_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self._at_end = False

    def send(self, data: bytes) -> None:
        """Send all of *data*. A closed peer is not an error: the next read returns END."""
        self._socket.settimeout(SEND_SECONDS)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def half_close(self) -> None:
        with contextlib.suppress(OSError):  # the server may have reset the connection already
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()

    def ask(self, line: bytes) -> bytes:
        """Send one command line and return its reply."""
        self.send(line + b"\r\n")
        return self.read_reply()

    def read_reply(self) -> bytes:
        """Return the next reply without its last CRLF; if it is incomplete, its bytes and why the rest is missing."""
        while (size := self._reply_size()) is None:
            if not self._receive(self.timeout) and not self._receive_settled():
                return self._unfinished()
        reply = bytes(self._received[:size])
        del self._received[:size]
        return reply[:-2] if reply.endswith(b"\r\n") else reply + MISSING_CRLF

    def read_to_end(self) -> list[bytes]:
        """Return every reply up to the end of the stream. The last item is END, or SILENCE if the stream stays open."""
        replies = [self.read_reply()]
        while not replies[-1].endswith((END, SILENCE)):
            replies.append(self.read_reply())
        return replies

    def read_arrived(self) -> list[bytes]:
        """Return the replies that have already arrived, or QUIET."""
        while self._receive(seconds=0.0):
            pass
        replies = []
        while self._reply_size() is not None:
            replies.append(self.read_reply())
        if self._received or self._at_end:
            replies.append(self._unfinished())
        return replies or [QUIET]

    def _unfinished(self) -> bytes:
        """Return the result of a read that cannot finish: the incomplete bytes, and why the rest is missing."""
        left = bytes(self._received)
        self._received.clear()
        return left + (END if self._at_end else SILENCE)

    def _reply_size(self) -> int | None:
        """Return the bytes of the first reply with its CRLF, or None while it is incomplete."""
        line_end = self._received.find(b"\r\n")
        if line_end < 0:
            return None
        size = line_end + 2
        if announced := _BODY_SIZE.match(self._received[:line_end]):
            size += int(announced[1]) + 2
        return size if len(self._received) >= size else None

    def _receive_settled(self) -> bool:
        """Return whether more had arrived once the server had handled all its input."""
        if not self._at_end:
            self._settle()
        return self._receive(seconds=0.0)

    def _receive(self, seconds: float) -> bool:
        """Receive more within *seconds*; return False if nothing arrived, or the stream has ended."""
        if self._at_end:
            return False
        self._socket.settimeout(seconds)
        try:
            data = self._socket.recv(1 << 18)
        except (TimeoutError, BlockingIOError):
            return False
        except ConnectionResetError:
            data = b""
        self._received += data
        self._at_end = not data
        return bool(data)
