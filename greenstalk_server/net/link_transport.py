"""The sockets of links: connect to the address of another process, and check who may link to this one.

A Unix socket needs no TLS: its peer runs as the same user, or as root. TCP without TLS is for loopback addresses.
"""

from __future__ import annotations

import os
import socket
import ssl
from typing import Final

from gevent import socket as gsocket

from greenstalk_server.config.tables.addresses import is_loopback
from greenstalk_server.net.listeners import UNIX_PREFIX
from greenstalk_server.net.tls import Certificates, reason_of, shake_hands
from greenstalk_server.protocol.link_frames import LinkError
from greenstalk_server.runtime.system import peer_user

_NOT_TLS: Final = {"HTTP_REQUEST", "RECORD_LAYER_FAILURE", "WRONG_VERSION_NUMBER"}
"""Reasons that OpenSSL gives for an error if the peer does not use TLS."""


def connect(address: str, certificates: Certificates | None) -> socket.socket:
    """Return a non-blocking socket that is connected to *address*; raise OSError, or LinkError. Switches.

    *certificates* are for TCP; None: without TLS.
    """
    if not is_remote(address):
        connecting = gsocket.socket(socket.AF_UNIX)
        try:
            connecting.connect(address.removeprefix(UNIX_PREFIX))
        except BaseException:
            connecting.close()
            raise
    else:
        try:
            connecting = gsocket.create_connection(_host_and_port(address))
        except (ValueError, OverflowError):  # such as a..b as the host, or no number as the port
            raise LinkError(f"{address!r} is no address") from None
    sock = plain(connecting)
    try:
        return secure(sock, certificates, is_client=True)
    except BaseException:
        sock.close()
        raise


def plain(sock: gsocket.socket) -> socket.socket:
    """Return the socket of *sock* as a non-blocking one that gevent does not wait for."""
    found = socket.socket(fileno=sock.detach())
    found.setblocking(False)
    if found.family != socket.AF_UNIX:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def secure(sock: socket.socket, certificates: Certificates | None, is_client: bool) -> socket.socket:
    """Return *sock*, with TLS if it needs that. Raise OSError, or LinkError if the peer may not be linked to.

    Switches.
    """
    if sock.family == socket.AF_UNIX:
        user = peer_user(sock)
        if user not in (os.geteuid(), 0):
            raise LinkError(f"the peer runs as user {user}, this process as user {os.geteuid()}")
    elif certificates is not None:
        try:
            return shake_hands(certificates, sock, is_client)
        except ssl.SSLError as error:
            if error.reason not in _NOT_TLS:
                raise
            fix = "set --link-cert, --link-key and --link-ca at all servers, or at none"
            raise LinkError(f"the peer does not use TLS ({reason_of(error)}): {fix}") from None
    elif not (is_loopback(sock.getsockname()[0]) and is_loopback(sock.getpeername()[0])):
        raise LinkError("a link between machines needs TLS: set --link-cert, --link-key and --link-ca")
    return sock


def is_remote(address: str) -> bool:
    """Return whether the process at *address* can be on another machine."""
    return not address.startswith(UNIX_PREFIX)


def host_of(address: object) -> str:
    """Return the host of the *address* from which a link was accepted; empty for a Unix socket."""
    return str(address[0]) if isinstance(address, tuple) else ""


def origin(address: object) -> str:
    """Return the *address* from which a link was accepted, for the log; empty for a Unix socket."""
    return f" from {address[0]} port {address[1]}" if isinstance(address, tuple) else ""


def _host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of HOST:PORT or [ADDRESS]:PORT; raise ValueError."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
