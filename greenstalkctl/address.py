"""Parse server addresses (HOST:PORT, tls:HOST:PORT, unix:PATH) and dashboard URLs."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, NamedTuple, TypeAlias

Scheme: TypeAlias = Literal["", "plain", "tls"]

DEFAULT_PORT: Final = 11300
API_ROOT: Final = "/api/v1"
_HOST_AND_PORT: Final = re.compile(r"(?:\[(?P<ipv6>[^\]]+)\]|(?P<host>[^:\[\]\s]+))(?::(?P<port>[0-9]{1,5}))?")
_SCHEME: Final = re.compile(r"(plain|tls):(?![0-9]+$)")
"""A word followed only by a port is a host: `tls:11300` is port 11300 of the host `tls`."""

_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>[A-Za-z0-9._~/-]*)"
)


class Advice(NamedTuple):
    """Advice to the user about a connection that failed: what to check, and how to connect with and without TLS."""

    unreachable: str
    with_tls: str
    without_tls: str


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server: a Unix socket if `path` is set, else host and port.

    scheme          `tls` or `plain` if the address has one; empty if --tls decides. Always empty for Unix sockets.
    """

    ADVICE: ClassVar = Advice(
        "that it is running and --server is right", "add --tls", "remove --tls, or write plain:HOST:PORT"
    )

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    path: str = ""
    scheme: Scheme = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}{':' if self.scheme else ''}{host}:{self.port}"

    @property
    def is_secure(self) -> bool:
        """Whether connections to this address use TLS."""
        return self.scheme == "tls"

    def connect(self, timeout: float) -> socket.socket:
        """Return a connected socket; raise OSError. Each IP address of the host is tried for *timeout* seconds."""
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
    """Return the address in *text*; raise ValueError, whose message lists the allowed forms."""
    if text.startswith("unix:") and len(text) > len("unix:"):
        return Address(path=text.removeprefix("unix:"))
    scheme, rest = _split(text)
    match = _HOST_AND_PORT.fullmatch(rest)
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ValueError(f"{text!r} is not HOST:PORT (a port is 1 to 65535), tls:HOST:PORT or unix:PATH")
    return Address(match["ipv6"] or match["host"], port, scheme=scheme)


def _split(text: str) -> tuple[Scheme, str]:
    """Return the scheme of *text*, and the remainder."""
    match = _SCHEME.match(text)
    if match is None:
        return "", text
    return "tls" if match[1] == "tls" else "plain", text[match.end() :]


@dataclass(frozen=True, slots=True)
class Url:
    """The URL of an API; `root` is its path, which ends with API_ROOT."""

    ADVICE: ClassVar = Advice(
        "that the dashboard is running and --api is right",
        "write https://",
        "check whether the URL should be http:// instead of https://",
    )

    host: str
    port: int
    root: str = API_ROOT
    is_secure: bool = False

    def __str__(self) -> str:
        """The URL of the dashboard, without API_ROOT."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_default_port = self.port == (443 if self.is_secure else 80)
        port = "" if is_default_port else f":{self.port}"
        return f"http{'s' if self.is_secure else ''}://{host}{port}{self.root.removesuffix(API_ROOT)}"

    def connect(self, timeout: float) -> socket.socket:
        """Return a connected socket; raise OSError. Each IP address of the host is tried for *timeout* seconds."""
        return socket.create_connection((self.host, self.port), timeout)


def parse_url(text: str) -> Url:
    """Return the API's URL from *text*, in which API_ROOT may be missing; raise ValueError if *text* is not a URL.

    A URL with a user name or password is refused, and the message does not repeat it: every user of a machine can read
    the command lines of all processes.
    """
    match = _URL.fullmatch(text)
    if match is not None:
        is_secure = match["scheme"] == "https"
        port = int(match["port"] or (443 if is_secure else 80))
        if 0 < port < 65536:
            path = match["path"].rstrip("/").removesuffix(API_ROOT).rstrip("/")
            return Url(match["ipv6"] or match["host"], port, f"{path}{API_ROOT}", is_secure)
    raise ValueError("the URL of an API must be http://HOST[:PORT][/PREFIX] or https://HOST[:PORT][/PREFIX]")
