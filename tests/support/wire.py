"""One client connection, and the cutting of what the server sends into replies.

A reply is a line, and the body that the line announces: RESERVED, FOUND and OK have one. Nothing else about
the protocol is known here, so a wrong reply is recorded, not rejected.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable

SILENCE = b"<silence>"
"""Stands in a transcript for a reply that did not come in time."""
END = b"<end>"
"""End of the stream, by FIN or by reset."""
QUIET = b"<quiet>"
"""Nothing had arrived."""

MISSING_CRLF = b"<no CRLF>"
"""Follows a reply whose body does not end where its line said."""

SEND_SECONDS = 5.0

_BODY_SIZE = re.compile(rb"(?:OK|(?:RESERVED|FOUND) \d+) (\d{1,9})\Z")


class Connection:
    """A client connection on loopback; replies are read whole, within a time limit.

    A read that has received nothing for *patience* seconds calls *settle*, which returns when the server has
    handled all that reached it, and looks once more. So a short patience is enough where no reply depends on
    time passing.
    """

    def __init__(self, address: tuple[str, int], patience: float, settle: Callable[[], None] = lambda: None) -> None:
        self._patience = patience
        self._settle = settle
        self._socket = socket.create_connection(address, timeout=SEND_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self._at_end = False

    def send(self, data: bytes) -> None:
        """Send all of *data*; a peer that has closed is no error here: the reads will tell."""
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
            if not self._receive(self._patience) and not self._receive_settled():
                return self._unfinished()
        reply = bytes(self._received[:size])
        del self._received[:size]
        return reply[:-2] if reply.endswith(b"\r\n") else reply + MISSING_CRLF

    def read_to_end(self) -> list[bytes]:
        """Every reply up to the end of the stream; the last item is END, or SILENCE if it stays open."""
        replies = [self.read_reply()]
        while not replies[-1].endswith((END, SILENCE)):
            replies.append(self.read_reply())
        return replies

    def read_arrived(self) -> list[bytes]:
        """Return what has already arrived, or QUIET."""
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
        """Bytes of the first reply, CRLF included, or None while it is not whole."""
        line_end = self._received.find(b"\r\n")
        if line_end < 0:
            return None
        size = line_end + 2
        if announced := _BODY_SIZE.match(self._received[:line_end]):
            size += int(announced[1]) + 2
        return size if len(self._received) >= size else None

    def _receive_settled(self) -> bool:
        """Whether more had arrived once the server had nothing left to do."""
        if not self._at_end:
            self._settle()
        return self._receive(seconds=0.0)

    def _receive(self, seconds: float) -> bool:
        """Receive more within *seconds*; false if nothing came, or the stream has ended."""
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
