"""Connections, plain or TLS, that bound each response: its total time, however slowly it arrives, and its bytes.

They are socket objects, so that libraries written for sockets (greenstalk, http.client) can use them.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from time import monotonic
from typing import Any

from greenstalkctl import tls
from greenstalkctl.address import Address, Url
from greenstalkctl.errors import Unreachable


class TooLargeError(Exception):
    """A response is larger than any valid one; str() says what is too large."""


class BoundedSocket(socket.socket):
    """A connected socket with a deadline and a limit on the bytes it reads.

    deadline        time in monotonic seconds after which reads and writes raise TimeoutError.
    budget          bytes that may still be read; the last read may exceed it by the size of its buffer.
    """

    deadline = 0.0
    budget = 0

    def set_limits(self, seconds: float, budget: int) -> None:
        """Allow *seconds* from now for the next request and its response, and *budget* bytes for the response."""
        self.deadline = monotonic() + seconds
        self.budget = budget

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        if self.budget <= 0:
            raise TooLargeError("its response does not end")
        self._set_timeout()
        count = super().recv_into(buffer, nbytes or 0, flags)
        self.budget -= count
        return count

    def sendall(self, data: Any, flags: int = 0) -> None:
        with memoryview(data) as view:
            sent = 0
            while sent < len(view):
                self._set_timeout()
                sent += self.send(view[sent:], flags)

    def _set_timeout(self) -> None:
        """Raise TimeoutError after the deadline."""
        left = self.deadline - monotonic()
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        self.settimeout(left)


class SecureBoundedSocket(BoundedSocket, ssl.SSLSocket):
    """A BoundedSocket with TLS."""


def connect(where: Address | Url, timeout: float, context: ssl.SSLContext | None) -> BoundedSocket:
    """Return a connection to *where*, with TLS if there is a *context*; raise Unreachable.

    Each IP address of the host may take *timeout* seconds, and so may the handshake.
    """
    try:
        sock = where.connect(timeout)
    except (OSError, UnicodeError) as error:  # UnicodeError: the host is not a valid name
        reason = getattr(error, "strerror", None) or str(error) or "no answer"
        raise Unreachable(f"cannot connect to {where}: {reason}; check {where.ADVICE.unreachable}") from error
    with suppress(OSError):  # a Unix socket has no such option
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is None:
        return BoundedSocket(sock.family, sock.type, sock.proto, sock.detach())
    context.sslsocket_class = SecureBoundedSocket
    try:
        secure = context.wrap_socket(sock, server_hostname=where.host)
    except OSError as error:
        sock.close()
        message = tls.failed_handshake(where, error, timeout, where.ADVICE.without_tls)
        raise Unreachable(message) from error
    assert isinstance(secure, SecureBoundedSocket)
    return secure


def closed(where: Address | Url, error: Exception, *, has_answered: bool, doubt: str = "") -> Unreachable:
    """Return the error for a connection to *where* that ended with *error*; *doubt* says what may have happened."""
    if (refusal := tls.refusal(where, error)) is not None:
        return Unreachable(refusal)
    if has_answered:
        advice = "check that it is still running"
    elif where.is_secure:
        advice = "it may require a client certificate (--cert, --key), or have refused the one it received"
    else:
        advice = f"check that it is still running; if it expects TLS, {where.ADVICE.with_tls}"
    return Unreachable(f"{where} closed the connection{doubt}: {error}; {advice}")
