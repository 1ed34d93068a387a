"""TCP ports for servers whose port a test must know before they start, or that restart on their port.

All are below the range from which the kernel takes ports for connections and for port 0. So no other program gets one
of them by chance while its server is not listening.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

FIRST = 10_000
MIN_LAST = 20_000
"""The last port is at least this one, even if the kernel's ephemeral ports begin below it."""


def _candidates() -> Iterator[int]:
    """Yield the ports again and again, from a random one on: several processes of pytest take ports."""
    lowest_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(FIRST, max(lowest_ephemeral, MIN_LAST))
    begin = secrets.randbelow(len(ports))
    return cycle([*ports[begin:], *ports[:begin]])


_CANDIDATES = _candidates()


def free_ports(count: int) -> list[int]:
    """Return *count* free TCP ports of loopback, which differ from those that earlier calls returned."""
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            port = next(_CANDIDATES)
            try:
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:  # it is in use
                continue
            found.append(port)
    return found
