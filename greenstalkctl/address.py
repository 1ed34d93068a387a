"""Where a server listens: HOST:PORT, or unix:PATH."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import Final

DEFAULT_PORT: Final = 11300
_HOST_AND_PORT: Final = re.compile(r"(?:\[(?P<ipv6>[^\]]+)\]|(?P<host>[^:\[\]\s]+))(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Address:
    """The path of a Unix socket if it is one, else host and port."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def connect(self, timeout: float) -> socket.socket:
        """Return a connected socket whose operations take *timeout* seconds at most; raise OSError."""
        if not self.path:
            return socket.create_connection((self.host, self.port), timeout)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout)
            sock.connect(self.path)
        except OSError:
            sock.close()
            raise
        return sock


def parse(text: str) -> Address:
    """Return the address that *text* names; raise ValueError, with what is allowed, if it is none."""
    if text.startswith("unix:") and len(text) > len("unix:"):
        return Address(path=text.removeprefix("unix:"))
    match = _HOST_AND_PORT.fullmatch(text)
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ValueError(f"{text!r} is not HOST:PORT (a port is 1 to 65535) or unix:PATH")
    return Address(host=match["ipv6"] or match["host"], port=port)
