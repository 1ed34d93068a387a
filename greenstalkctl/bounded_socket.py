"""Connected sockets, plain or TLS, that bound each response: its total time, however slowly it arrives, and its bytes.

They are socket objects, so that libraries written for sockets (greenstalk, http.client) can use them.
"""

from __future__ import annotations

import socket
import ssl
from time import monotonic
from typing import Any


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


def wrap_plain(sock: socket.socket) -> BoundedSocket:
    """Return *sock* as a BoundedSocket; *sock* itself is detached."""
    return BoundedSocket(sock.family, sock.type, sock.proto, sock.detach())


def wrap_tls(sock: socket.socket, timeout: float, context: ssl.SSLContext, host: str) -> SecureBoundedSocket:
    """Return *sock* with TLS as a SecureBoundedSocket; the certificate must be valid for *host*. *sock* is detached.

    Raise OSError if the handshake fails, or takes more than *timeout* seconds.
    """
    context.sslsocket_class = SecureBoundedSocket
    sock.settimeout(timeout)
    try:
        secure = context.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise
    assert isinstance(secure, SecureBoundedSocket)
    return secure
