"""Connected sockets, plain or by TLS, on which an answer is bounded: in time, however slowly it comes, and in bytes.

They are sockets like any other: what is written for sockets (greenstalk, http.client) can use them.
"""

from __future__ import annotations

import socket
import ssl
from time import monotonic
from typing import Any


class TooLargeError(Exception):
    """An answer is larger than any that there can be; str() says what is."""


class Link(socket.socket):
    """A connected socket that neither reads nor writes after `deadline`, in monotonic seconds.

    It reads `budget` more bytes at most, and what comes in one piece with the last of them.
    """

    deadline = 0.0
    budget = 0

    def allow(self, seconds: float, budget: int) -> None:
        """Give the next request *seconds* from now, with its answer, and *budget* bytes for that."""
        self.deadline = monotonic() + seconds
        self.budget = budget

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        if self.budget <= 0:
            raise TooLargeError("its answer does not end")
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


class SecureLink(Link, ssl.SSLSocket):
    """The same by TLS."""


def plain(sock: socket.socket) -> Link:
    """Return *sock*, which is used up, as a link."""
    return Link(sock.family, sock.type, sock.proto, sock.detach())


def secured(sock: socket.socket, timeout: float, context: ssl.SSLContext, host: str) -> SecureLink:
    """Return *sock*, which is used up, as a link by TLS; the certificate must be that of *host*.

    Raise OSError if the handshake fails, or takes more than *timeout* seconds.
    """
    context.sslsocket_class = SecureLink
    sock.settimeout(timeout)
    try:
        secure = context.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise
    assert isinstance(secure, SecureLink)
    return secure
