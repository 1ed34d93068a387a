"""HTTP requests from the server to addresses of its configuration: alerts, and the figures of other servers.

A request, DNS query included, runs in a native thread of a dedicated pool, so neither the event loop nor the journal's
threads wait for it. Every request has one deadline, after which the connection is shut down and the thread ends. The
response is bounded, redirects are not followed, and proxies of the environment are ignored.

The name is resolved once, each address is checked, and the connection goes to a checked address, with the name in Host
and for TLS. So no DNS response can redirect a request to an address that the configuration does not allow.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult

import gevent
from gevent.threadpool import ThreadPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from greenstalk_server.config.tables.targets import ENVIRONMENT, Secret, Target, parse_url
from greenstalk_server.core.jobs.job import SECOND

MAX_REQUESTS: Final = 8
"""Maximum requests at the same time. Further requests wait; the wait counts towards their timeouts."""

CONNECT_TIMEOUT: Final = 5.0
"""Timeout of a connection attempt to one address of a host, seconds."""

MAX_ADDRESSES: Final = 4
"""Maximum addresses of a host that are tried."""

MAX_RESPONSE: Final = 64 * 1024
"""Maximum bytes read of a response's body."""

MAX_CONTEXTS: Final = 64
"""Maximum cached TLS contexts, one for each file of authorities."""

SYSTEM_CA_TIME: Final = 3600
"""Seconds after which the system's authorities are loaded again."""

MAX_SECRET: Final = 4096
"""Maximum bytes of a file with a secret."""

NO_RESPONSE: Final = "the response is incomplete, or not valid HTTP"

USER_AGENT: Final = "greenstalk-server"

IPAddress = IPv4Address | IPv6Address

METADATA: Final = (
    ip_network("169.254.0.0/16"),
    ip_network("fe80::/10"),
    ip_network("fd00:ec2::/32"),
    ip_network("100.100.100.200/32"),
    ip_network("192.0.0.192/32"),
)
"""Link-local addresses, and addresses at which clouds serve credentials. `allow_private = true` does not allow them."""

_NAT64: Final = ip_network("64:ff9b::/96")
_COMPATIBLE: Final = ip_network("::/96")
"""Networks whose addresses end with an IPv4 address."""

_LOCAL_NAT64: Final = ip_network("64:ff9b:1::/48")
_TEREDO: Final = ip_network("2001::/32")
"""Networks of tunnels and translators, whose addresses may contain any IPv4 address; no host has its own
address there."""


class RequestFailed(Exception):
    """A request got no response; the message gives the reason, without the address."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request: *path* is appended to the address of the target."""

    method: str = "POST"
    path: str = ""
    body: bytes = b""
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """A response.

    headers         by name in lower case.
    body            at most MAX_RESPONSE bytes.
    is_cut          whether the body was longer.
    seconds         from the DNS query to the last byte read.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_cut: bool
    seconds: float


Secrets = Mapping[str, str]
"""The secrets of a request by name."""


def send(
    target: Target, build: Callable[[Secrets], Request], secrets: Mapping[str, Secret | None] | None = None
) -> Response:
    """Send the request that *build* returns to *target*; raise RequestFailed if there is no response. Switches.

    *build* runs in a native thread, after the *secrets* have been read there. It must not use the event loop.
    """
    call = _Call(target, build, secrets or {})
    timeout = gevent.Timeout(target.timeout / SECOND)
    with timeout:
        try:
            result = _pool().spawn(call.run).get()
        except gevent.Timeout as error:
            if error is not timeout:
                raise
            call.abort()
            raise RequestFailed(call.late) from None
        except BaseException:
            call.abort()
            raise
    if isinstance(result, Response):
        return result
    raise RequestFailed(str(result))


def read_secret(secret: Secret) -> str:
    """Return *secret*: the first line of its file, or its variable. Raise RequestFailed. Blocks."""
    if secret.kind == ENVIRONMENT:
        text = os.environ.get(secret.place, "")
        if not text:
            raise RequestFailed(f"the environment variable {secret.place} is not set")
        return _checked(text, secret.place)
    try:
        with Path(secret.place).open("rb") as file:
            line = file.read(MAX_SECRET).partition(b"\n")[0].strip()
    except OSError as error:
        raise RequestFailed(f"cannot read {secret.place}: {error.strerror}") from error
    if not line:
        raise RequestFailed(f"the first line of {secret.place} is empty")
    return _checked(line.decode(errors="replace"), secret.place)


def refusal(address: IPAddress, target: Target) -> str:
    """Return the reason why *target* may not use *address*; empty if it may."""
    real = _embedded(address)
    if any(real in network for network in target.networks):
        return ""
    if real.is_multicast or real.is_unspecified or real in _LOCAL_NAT64 or real in _TEREDO:
        return "it is not the address of one host"
    if any(real in network for network in METADATA):
        return "it is link-local or a metadata service of a cloud: list its network in allow_private"
    if not target.allows_private and not _is_public(real):
        return "it is a private or reserved address: set allow_private"
    return ""


def _is_public(address: IPAddress) -> bool:
    """Return whether *address* is of the public Internet. Python counts some special IPv6 networks as global."""
    is_site_local = isinstance(address, IPv6Address) and address.is_site_local
    return address.is_global and not address.is_reserved and not is_site_local


def _embedded(address: IPAddress) -> IPAddress:
    """Return the IPv4 address that is embedded in *address*, an IPv6 address; *address* if there is none."""
    if isinstance(address, IPv6Address):
        if address in _NAT64 or (address in _COMPATIBLE and int(address) > 0xFFFF):
            return IPv4Address(int(address) & 0xFFFF_FFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


def _tls_context(ca_file: str) -> ssl.SSLContext:
    """Return a context that trusts the authorities in *ca_file*, or the system's if it is empty. Blocks."""
    changed_at = Path(ca_file).stat().st_mtime_ns if ca_file else int(time.monotonic() // SYSTEM_CA_TIME)
    return _loaded_context(ca_file, changed_at)


@lru_cache(maxsize=MAX_CONTEXTS)
def _loaded_context(ca_file: str, changed_at: int) -> ssl.SSLContext:
    """Load the authorities. Those of the operating system take 20 ms of CPU."""
    return ssl.create_default_context(cafile=ca_file or None)


@cache
def _pool() -> ThreadPool:
    """Return the pool, whose threads start when they are needed."""
    return ThreadPool(MAX_REQUESTS)


class _Call:
    """One request. `run` is called in a native thread; `abort` may be called in the event loop meanwhile."""

    def __init__(
        self, target: Target, build: Callable[[Secrets], Request], secrets: Mapping[str, Secret | None]
    ) -> None:
        self._target: Target = target
        self._build: Callable[[Secrets], Request] = build
        self._secrets: Mapping[str, Secret | None] = secrets
        self._until: float = time.monotonic() + target.timeout / SECOND
        self._is_aborted: bool = False
        self._handle: socket.socket | None = None

    @property
    def late(self) -> str:
        """The reason for a failure at the deadline, which may end the request in either thread."""
        return f"no complete response within {self._target.timeout / SECOND:g} s"

    def abort(self) -> None:
        """Shut the connection down, so that `run` ends. Does not block."""
        self._is_aborted = True
        if self._handle is not None:
            with suppress(OSError):  # it was closed meanwhile
                self._handle.shutdown(socket.SHUT_RDWR)

    def run(self) -> Response | str:
        """Return the response, or the reason for the failure. Blocks."""
        try:
            return self._run()
        except RequestFailed as error:
            reason = str(error)
        except (OSError, HTTPError, http.client.HTTPException, ValueError) as error:
            reason = _reason(error)
        finally:
            if self._handle is not None:
                self._handle.close()
        return reason if time.monotonic() < self._until else self.late

    def _run(self) -> Response:
        target = self._target
        url = target.url or (read_secret(target.secret_url) if target.secret_url is not None else "")
        try:
            parts = parse_url(url)
        except ValueError:
            raise RequestFailed("the address is not valid: it must begin with https:// or http://") from None
        if parts.scheme == "http" and not target.allows_plain:
            raise RequestFailed("the address begins with http://: set allow_plain")
        request = self._build({name: read_secret(place) for name, place in self._secrets.items() if place is not None})
        headers = {"User-Agent": USER_AGENT, "Host": parts.netloc, "Accept-Encoding": "identity", "Connection": "close"}
        headers |= request.headers or {}
        if target.token is not None:
            headers["Authorization"] = f"Bearer {read_secret(target.token)}"
        context = _tls_context(target.ca_file) if parts.scheme == "https" else None
        began = time.monotonic()
        connection = self._connection(parts, self._open(parts), context)
        try:
            path = (parts.path.rstrip("/") + request.path if request.path else parts.path) or "/"
            address = f"{path}?{parts.query}" if parts.query else path
            body = request.body or None
            connection.request(request.method, address, body, headers, preload_content=False, decode_content=False)
            response = connection.getresponse()
            data = _read(response)
            names = {name.lower(): value for name, value in response.headers.items()}
            return Response(
                response.status, names, data[:MAX_RESPONSE], len(data) > MAX_RESPONSE, time.monotonic() - began
            )
        finally:
            connection.close()

    def _connection(self, parts: SplitResult, sock: socket.socket, context: ssl.SSLContext | None) -> HTTPConnection:
        """Return a connection to the host of *parts* that uses *sock*, with TLS if there is a *context*."""
        host, left = parts.hostname or "", sock.gettimeout()
        if context is None:
            return _PlainConnection(sock, host, timeout=left)
        return _TlsConnection(sock, host, timeout=left, ssl_context=context, server_hostname=host)

    def _open(self, parts: SplitResult) -> socket.socket:
        """Return a socket that is connected to an allowed address of the host of *parts*."""
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            raise RequestFailed(f"cannot resolve {host}: {getattr(error, 'strerror', None) or error}") from error
        refused, failed = "", ""
        for family, kind, protocol, _, address in found[:MAX_ADDRESSES]:
            ip = ip_address(str(address[0]).partition("%")[0])
            if why := refusal(ip, self._target):
                refused = f"{host} is at {ip}, to which no connection is allowed: {why}"
                continue
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(min(CONNECT_TIMEOUT, self._left()))
                self._watch(sock)
                sock.connect(address)
            except OSError as error:
                sock.close()
                failed = f"cannot connect to {host} at {ip}: {_reason(error)}"
                continue
            sock.settimeout(self._left())
            return sock
        raise RequestFailed(failed or refused or f"{host} has no address")

    def _watch(self, sock: socket.socket) -> None:
        """Let `abort` shut *sock* down, by a duplicate, since TLS takes over the file descriptor of *sock*."""
        before, self._handle = self._handle, sock.dup()
        if before is not None:
            before.close()
        if self._is_aborted:
            raise RequestFailed("aborted")

    def _left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class _PlainConnection(HTTPConnection):
    """A connection over a socket that is already connected."""

    def __init__(self, sock: socket.socket, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._connected: socket.socket = sock

    def _new_conn(self) -> socket.socket:
        return self._connected


class _TlsConnection(HTTPSConnection):
    """A TLS connection over a socket that is already connected. It verifies that the certificate is for *host*."""

    def __init__(self, sock: socket.socket, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._connected: socket.socket = sock

    def _new_conn(self) -> socket.socket:
        return self._connected


def _read(response: Any) -> bytes:
    """Return the body of *response*, at most one byte more than MAX_RESPONSE."""
    data = b""
    while len(data) <= MAX_RESPONSE:
        part = response.read(MAX_RESPONSE + 1 - len(data), decode_content=False)
        if not part:
            break
        data += part
    return data


def _reason(error: Exception) -> str:
    """Return a description of *error* without an address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not valid: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "no response in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, HTTPError | http.client.HTTPException):
        return NO_RESPONSE
    return str(error)[:200] or type(error).__name__


def _checked(text: str, place: str) -> str:
    """Return *text*, a secret; raise RequestFailed if it cannot be sent in a header."""
    if not text.isascii() or not text.isprintable():
        raise RequestFailed(f"the secret in {place} must have printable ASCII characters only")
    return text
