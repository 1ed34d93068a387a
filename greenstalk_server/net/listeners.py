"""Open the listening sockets, bound here or inherited from systemd, and decide which of them use TLS.

Each socket is returned bound and non-blocking, with the options set that accepted connections inherit. It refuses
connections until `listen` is called, when the server can serve them; an inherited socket accepts them into the kernel's
queue before that. A failure raises StartError with the address.

Binding happens before privileges are dropped, and reports most conflicts at once. Resolving host names blocks, which is
harmless before the server serves.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from greenstalk_server.config.options import Options
from greenstalk_server.runtime.exit_codes import EXIT_LISTEN, StartError
from greenstalk_server.runtime.process import FIRST_INHERITED_FD
from greenstalk_server.runtime.system import MAX_UNIX_PATH, is_bound, peer_process, set_keepalive

BACKLOG: Final = 4096
"""Connections in the accept queue; the kernel limits it to net.core.somaxconn."""

MAX_PORT: Final = 65535

UNIX_PREFIX: Final = "unix:"
PLAIN_PREFIX: Final = "plain:"
PLAIN_NAME: Final = "plain"
"""FileDescriptorName= (systemd.socket(5)) of an inherited socket that does not use TLS."""

KEEPALIVE_PROBES: Final = 4
"""Unanswered TCP keepalive probes after which the peer is considered lost."""

NOT_A_SOCKET: Final = "a file that is not a socket exists there"

_WITH_PORT: Final = re.compile(r"(?:\[([^]]*)\]|([^:]*)):([0-9]{1,5})")
"""`HOST:PORT`, or `[ADDRESS]:PORT` where the address has colons."""

log = logging.getLogger(__name__)


class Listener(NamedTuple):
    """A socket for the beanstalk protocol.

    name    the address as in -l, without `plain:`, or the name given by systemd; access rules refer to it.
    is_tls  whether connections must use TLS.
    """

    sock: socket.socket
    name: str
    is_tls: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.sock.close()

    def described(self) -> str:
        """Return the address as an operator writes it."""
        return describe(self.sock) + (" (TLS)" if self.is_tls else "")


def open_listeners(options: Options, environ: Mapping[str, str]) -> Iterator[Listener]:
    """Yield the listeners for the beanstalk protocol: the inherited sockets, or else those of -l and -p."""
    has_tls = options.tls_cert is not None
    inherited = _inherited(environ)
    for sock, name in inherited:
        yield Listener(sock, name, has_tls and sock.family != socket.AF_UNIX and name != PLAIN_NAME)
    if inherited:
        for field, value in (("listen", ",".join(options.listen)), ("port", options.port)):
            if field in options.origins:
                log.warning("%s %s is ignored: serving the inherited socket", options.label_of(field), value)
        return
    yield from _bind_each(options, has_tls)


def adopt_listeners(environ: Mapping[str, str], described: Sequence[tuple[str, bool]]) -> Iterator[Listener]:
    """Yield the listeners that the parent of this process has opened; *described* has the name and TLS of each."""
    for (sock, _), (name, is_tls) in zip(_inherited(environ), described, strict=True):
        yield Listener(sock, name, is_tls)


def listen(sock: socket.socket) -> None:
    """Start to accept connections to *sock*; raise StartError if another program has begun to listen on the address."""
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        raise _cannot_listen(describe(sock), error) from error


def notice_dead_peers(sock: socket.socket, timeout: int) -> None:
    """Enable keepalive: connections accepted from *sock* fail if the peer does not answer for *timeout* seconds.

    Keepalive probes a connection only while all data sent on it is acknowledged; idle.find_dead checks the others. A
    *timeout* of 0 keeps the system's defaults, which probe after two hours.
    """
    if sock.family == socket.AF_UNIX or not timeout:
        return
    interval = max(1, timeout // (2 * KEEPALIVE_PROBES))
    idle = min(max(1, timeout - KEEPALIVE_PROBES * interval), 32767)
    set_keepalive(sock, idle, min(interval, 32767), KEEPALIVE_PROBES)


def open_web_listener(options: Options) -> socket.socket:
    """Return the socket for the dashboard."""
    host, port = options.web_host, options.web_port
    try:
        target = _Target(0, host, False, _host_and_port(host, port), _resolve(host, port))
        sock = _bind(target, ())
    except StartError as error:
        raise of_dashboard(error) from error.__cause__
    assert isinstance(sock, socket.socket)
    return sock


def open_link_listener(options: Options) -> tuple[socket.socket, str]:
    """Return the listening socket for links, and the address at which the other servers reach it."""
    assert options.link is not None
    try:
        sock = _bind(_target(0, options.link_listen or options.link, 0, has_tls=False), ())
        assert isinstance(sock, socket.socket)
        listen(sock)
    except StartError as error:
        raise of_links(error) from error.__cause__
    if options.link.startswith(UNIX_PREFIX):
        return sock, options.link
    host, _, port = options.link.rpartition(":")
    return sock, options.link if int(port) else f"{host}:{sock.getsockname()[1]}"


def of_links(error: StartError) -> StartError:
    """Return *error*, which is about an address, with the note that the address is that of the links."""
    return StartError(f"{error} (the other servers: see --link, --link-listen)", error.exit_code)


def of_dashboard(error: StartError) -> StartError:
    """Return *error*, which is about an address, with the note that the address is the dashboard's."""
    return StartError(f"{error} (the dashboard: see --web-host, --web-port, --no-web)", error.exit_code)


def try_listening(where: str, port: int) -> None:
    """Raise StartError unless a server could listen on *where*, an address as in -l. No connection is accepted.

    The `__cause__` of the error is the OSError, if there was one. No Unix socket is created: only its path is checked.
    """
    target = _target(0, where, port, has_tls=False)
    family, address = target.addresses[0]
    if family == socket.AF_UNIX:
        try:
            _check_path(Path(address))
        except OSError as error:
            raise _cannot_listen(target.shown, error) from error
        return
    sock = _bind(target, ())
    assert isinstance(sock, socket.socket)
    sock.close()


def _check_path(path: Path) -> None:
    """Raise OSError if no Unix socket could be created at *path*."""
    if len(os.fsencode(path)) > MAX_UNIX_PATH:
        raise OSError(errno.ENAMETOOLONG, "AF_UNIX path too long")  # the message of Python's bind()
    if path.exists() and not path.is_socket():
        raise FileExistsError(errno.EEXIST, NOT_A_SOCKET)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        path.parent.stat()  # raises an error that gives the reason if the directory does not exist
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def describe(sock: socket.socket) -> str:
    """Return the address of *sock* as an operator writes it: `127.0.0.1:11300`, `[::1]:11300`, `unix:PATH`."""
    address = sock.getsockname()
    match sock.family:
        case socket.AF_UNIX:
            return UNIX_PREFIX + _unix_name(address)
        case socket.AF_INET6:
            return _host_and_port(address[0], address[1])
        case _:
            return f"{address[0]}:{address[1]}"


class _Target(NamedTuple):
    """One address of -l, resolved.

    place       index of the address in -l.
    shown       the address in messages.
    addresses   pairs of family and address; the first one that can be bound is used.
    """

    place: int
    name: str
    is_tls: bool
    shown: str
    addresses: list[tuple[int, Any]]

    def width(self) -> int:
        """Return the sort key for binding: addresses that may cover others come first."""
        family, address = self.addresses[0]
        if family == socket.AF_UNIX or not _ip(address).is_unspecified:
            return 2
        return 0 if family == socket.AF_INET6 else 1


def _bind_each(options: Options, has_tls: bool) -> list[Listener]:
    """Bind a socket to each address of -l, except those that another one, such as a wildcard address, covers."""
    targets = [_target(place, where, options.port, has_tls) for place, where in enumerate(options.listen)]
    opened: dict[int, Listener] = {}
    with ExitStack() as on_failure:
        for target in sorted(targets, key=lambda target: (target.width(), target.place)):
            found = _bind(target, list(opened.values()))
            if isinstance(found, Listener):
                where = found.described()
                log.warning("%s %s is ignored: %s covers it", options.label_of("listen"), target.name, where)
            else:
                opened[target.place] = on_failure.enter_context(Listener(found, target.name, target.is_tls))
        on_failure.pop_all()
    return [opened[place] for place in sorted(opened)]


def _target(place: int, where: str, port: int, has_tls: bool) -> _Target:
    """Resolve *where*, an address as in -l; raise StartError. Blocks."""
    name = where.removeprefix(PLAIN_PREFIX)
    if name.startswith(UNIX_PREFIX):
        path = name.removeprefix(UNIX_PREFIX)
        if not path:
            raise StartError("cannot listen on 'unix:': the path is empty", EXIT_LISTEN)
        return _Target(place, name, False, name, [(socket.AF_UNIX, path)])
    host, port = _host_port(name, port)
    return _Target(place, name, has_tls and name == where, _host_and_port(host, port), _resolve(host, port))


def _host_port(where: str, port: int) -> tuple[str, int]:
    """Return the host and port of *where*, with *port* as the default; raise StartError."""
    with_port = _WITH_PORT.fullmatch(where)
    if with_port is None:
        if ":" in where and not _is_address(where):
            raise _invalid_address(where)
        return where, port
    if int(with_port[3]) > MAX_PORT:
        raise _invalid_address(where)
    return with_port[1] or with_port[2], int(with_port[3])


def _invalid_address(where: str) -> StartError:
    allowed = f"HOST:PORT or [ADDRESS]:PORT, with a port from 0 to {MAX_PORT}"
    return StartError(f"cannot listen on {where}: must be {allowed}", EXIT_LISTEN)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _resolve(host: str, port: int) -> list[tuple[int, Any]]:
    """Return the families and addresses of *host*; raise StartError if it has none. Blocks."""
    if not host:
        raise StartError("cannot listen on an empty address", EXIT_LISTEN)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(_host_and_port(host, port), error) from error
    return [(family, address) for family, _, _, _, address in found]


def _covers(sock: socket.socket, family: int, address: Any) -> bool:
    """Return whether the bound *sock* receives the connections to *address*.

    No socket covers port 0: each address with port 0 gets a free port of its own.
    """
    own = sock.getsockname()
    if socket.AF_UNIX in (sock.family, family):
        return sock.family == family and os.path.realpath(own) == os.path.realpath(address)
    if own[1] != address[1]:
        return False
    bound, wanted = _ip(own), _ip(address)
    if not bound.is_unspecified:
        return bound == wanted and own[3:] == address[3:]
    if bound.version == wanted.version:
        return True
    return bound.version == 6 and not sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)


def _ip(address: Any) -> IPv4Address | IPv6Address:
    """Return the IP address in a socket's *address*; an IPv4-mapped one as IPv4."""
    found = ip_address(address[0].partition("%")[0])
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def _bind(target: _Target, opened: Sequence[Listener]) -> socket.socket | Listener:
    """Return a socket at the first address of *target* that can be bound, or the one of *opened* that covers it.

    Raise StartError if no address can be bound, or if a socket covers *target* and only one of the two uses TLS.
    """
    failure: Exception | None = None
    for family, address in target.addresses:
        covering = next((one for one in opened if _covers(one.sock, family, address)), None)
        if covering is not None:
            if covering.is_tls != target.is_tls:
                wanted = f"{target.shown} for {'TLS' if target.is_tls else 'plain connections'}"
                reason = f"{covering.described()} covers it; use another port for one of them"
                raise StartError(f"cannot listen on {wanted}: {reason}", EXIT_LISTEN)
            return covering
        try:
            return _bound(family, address)
        except OSError as error:
            failure = error
    raise _cannot_listen(target.shown, failure) from failure


def _bound(family: int, address: Any) -> socket.socket:
    """Return a socket at *address*, after removing the Unix socket of an earlier server. Raises OSError."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_UNIX:
            _remove_socket(Path(address))
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        return _configured(sock)
    except OSError:
        sock.close()
        raise


def describe_peer(sock: socket.socket, address: object) -> tuple[str, str]:
    """Return the address and the name of the peer of *sock*, accepted from *address*.

    The name is empty for TCP; for a Unix socket it is the peer's program and process id.
    """
    if sock.family != socket.AF_UNIX:
        assert isinstance(address, tuple)
        return _host_and_port(address[0], address[1]), ""
    return UNIX_PREFIX.removesuffix(":"), peer_process(sock)


def _remove_socket(path: Path) -> None:
    """Remove a stale socket at *path*; raise FileExistsError if a server or another file is there."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(NOT_A_SOCKET)
    if _is_served(path):
        raise FileExistsError("a server listens there already")
    log.warning("removing the stale socket at %s: no server listens on it", path)
    path.unlink()


def _is_served(path: Path) -> bool:
    """Return whether a server listens at *path*, or has bound its socket there and does not listen yet."""
    if is_bound(path):
        return True
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        try:
            sock.connect(str(path))
        except BlockingIOError:  # its accept queue is full
            return True
        except OSError:
            return False
    return True


def _configured(sock: socket.socket) -> socket.socket:
    """Set TCP_NODELAY and SO_KEEPALIVE, which accepted connections inherit."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setblocking(False)
    return sock


def _inherited(environ: Mapping[str, str]) -> list[tuple[socket.socket, str]]:
    """Return the sockets that systemd passed to this process (sd_listen_fds(3)), with their names."""
    if environ.get("LISTEN_PID") != str(os.getpid()) or "LISTEN_FDS" not in environ:
        return []
    count = environ["LISTEN_FDS"]
    if not (count.isascii() and count.isdigit() and int(count)):
        raise StartError(f"LISTEN_FDS {count!r}: must be the number of inherited sockets, at least 1", EXIT_LISTEN)
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    names += [""] * (int(count) - len(names))
    return [(_adopt(FIRST_INHERITED_FD + place), names[place]) for place in range(int(count))]


def _adopt(fd: int) -> socket.socket:
    """Return the inherited socket *fd*; raise StartError unless it is a listening TCP or Unix stream socket."""
    what = f"the inherited socket, file descriptor {fd}"
    try:
        sock = socket.socket(fileno=fd)
    except OSError as error:
        raise _cannot_listen(what, error) from error
    if not _is_listening_stream(sock):
        sock.close()
        raise StartError(f"cannot listen on {what}: it is not a listening TCP or Unix socket", EXIT_LISTEN)
    sock.set_inheritable(False)
    return _configured(sock)


def _is_listening_stream(sock: socket.socket) -> bool:
    return (
        sock.family in {socket.AF_INET, socket.AF_INET6, socket.AF_UNIX}
        and sock.type == socket.SOCK_STREAM
        and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    )


def _cannot_listen(where: str, error: Exception | None) -> StartError:
    reason = getattr(error, "strerror", None) or str(error)
    return StartError(f"cannot listen on {where}: {reason}", EXIT_LISTEN)


def _host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _unix_name(address: str | bytes) -> str:
    """Return the name of a Unix socket; an abstract one starts with an at sign, as in ss(8)."""
    name = os.fsdecode(address)
    return "@" + name[1:] if name.startswith("\0") else name
