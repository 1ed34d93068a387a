"""A Server in the test's process and event loop."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Sequence

import gevent

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.limits import Limits
from greenstalk_server.net.acceptor import DescriptorBudget
from greenstalk_server.net.listeners import Listener
from greenstalk_server.net.server import Server
from greenstalk_server.net.tls import Certificates
from greenstalk_server.runtime.clock import steady_clock
from tests.support.daemon import TIMEOUT


def listen(is_tls: bool = False) -> Listener:
    """Return a listener on a free port."""
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    return Listener(sock, "here", is_tls)


def start_server(broker: Broker, listeners: Sequence[Listener], certificates: Certificates | None = None) -> Server:
    """Start a server of *broker* without limits; return it."""
    files = DescriptorBudget(1000, broker.limit_counters)
    server = Server(broker, listeners, steady_clock(), files=files, limits=Limits(), certificates=certificates)
    server.start()
    return server


def wait_until(is_so: Callable[[], bool]) -> None:
    """Run the event loop until *is_so* returns True."""
    with gevent.Timeout(TIMEOUT):
        while not is_so():
            gevent.sleep(0.001)


def read_to_end(sock: socket.socket) -> bytes:
    """Read from *sock* to the end of the stream without blocking the event loop."""
    received = bytearray()
    while True:
        wait_until(lambda: is_readable(sock))
        data = sock.recv(1 << 20)
        if not data:
            return bytes(received)
        received += data


def is_readable(sock: socket.socket) -> bool:
    """Return whether *sock* has data or is at its end."""
    return bool(select.select([sock], [], [], 0)[0])
