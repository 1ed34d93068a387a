"""The system calls that are not the same on every system: files, sockets, and facts about processes.

No other module of the server uses a call that only Linux has.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import select
import socket
import struct
import time
from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import Any, Final

READ: Final = 1
"""Event of a gevent io watcher."""

INPUT: Final = 1
"""EPOLLIN: the only event of a socket that has input, and whose peer has not closed."""

LEVEL_EVENTS: Final = INPUT | select.EPOLLRDHUP
"""Events of a socket that is reported for as long as it has unread input."""

EDGE_EVENTS: Final = INPUT | select.EPOLLPRI | select.EPOLLRDHUP | select.EPOLLET
"""Events of a socket that is reported once when input arrives. EPOLLPRI: a recv stops at urgent data, and leaves unread
what arrived behind it."""

PEER_CLOSED: Final = select.POLLRDHUP
"""Event of select.poll for "the other side has closed". Errors and hang-ups are always reported."""

PROC: Final = Path("/proc")
"""The directory of proc(5)."""

MAX_UNIX_PATH: Final = 107
"""Maximum bytes of the path of a Unix socket (unix(7))."""

_CREDENTIALS: Final = struct.Struct("iII")
"""struct ucred of unix(7): process, user, group."""

_FLOCK: Final = struct.Struct("@hhqqi4x")
"""struct flock of 64-bit Linux: type, whence, start, len, pid."""

_TCP_INFO: Final = struct.Struct("24xI28xI")
"""tcpi_unacked (segments) and tcpi_last_ack_recv (milliseconds) in struct tcp_info of linux/tcp.h."""

_UNIX_BOUND: Final = re.compile(r"\S+ \S+ \S+ 00000000 0001 01 .*")
"""A line of /proc/net/unix about a stream socket that neither listens nor is connected: flags, type and state."""


def open_poll(loop: Any, *, ref: bool = True, priority: int | None = None) -> tuple[select.epoll, Any]:
    """Return an epoll instance, and a watcher of gevent's *loop* that is called while the instance has events."""
    poll = select.epoll()
    return poll, loop.io(poll.fileno(), READ, ref=ref, priority=priority)


# Files. These functions block, and raise OSError.


def allocate(fd: int, size: int) -> None:
    """Extend the file *fd* to *size* bytes, allocated on disk."""
    os.posix_fallocate(fd, 0, size)


def sync_data(fd: int) -> None:
    """Wait until the bytes and the size of the file *fd* are on disk."""
    os.fdatasync(fd)


def sync_all(fd: int) -> None:
    """Wait until the file or directory *fd* is on disk, with its metadata."""
    os.fsync(fd)


def lock_holder(fd: int) -> int:
    """Return the id of the process that holds an fcntl lock on the file *fd*; 0 if none does, -1 if it is unknown.

    The id of a process in another pid namespace is unknown.
    """
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, query))
    if kind == fcntl.F_UNLCK:
        return 0
    return pid if pid > 0 else -1


# Sockets


def set_keepalive(sock: socket.socket, idle: int, interval: int, probes: int) -> None:
    """Make TCP probe the peer after *idle* seconds, every *interval* seconds, and give up after *probes* probes."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)


def unacknowledged(sock: socket.socket) -> tuple[int, int]:
    """Return the segments that the peer of the TCP socket has not acknowledged, and the ms since its last one."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    segments, silent = _TCP_INFO.unpack(info)
    return segments, silent


def has_peer_closed(fd: int) -> bool:
    """Return whether the peer of the socket *fd* has closed, even if input is unread."""
    poll = select.poll()
    poll.register(fd, PEER_CLOSED)
    return bool(poll.poll(0))


def peer_process(sock: socket.socket) -> str:
    """Return the program and the process id of the peer of a connected Unix socket."""
    pid, _, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    try:
        program = (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:  # the process has ended, or is in another namespace
        program = "unknown program"
    return f"{program}, process {pid}"


def is_bound(path: Path) -> bool:
    """Return whether a process has bound a Unix socket to *path*, and does not listen yet: its clients are refused."""
    try:
        lines = (PROC / "net" / "unix").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return False
    return any(_UNIX_BOUND.fullmatch(line) for line in lines if line.endswith(f" {path}"))


# The process


def boot_time() -> float:
    """Return seconds by a clock that also advances while the process is stopped or the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def hide_secrets(names: Collection[str]) -> None:
    """Overwrite the values of the variables *names* in the environment that /proc/PID/environ shows for this process.

    Python's os.environ is a copy and keeps the values.
    """
    wanted = {name.encode() for name in names}
    environ = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
    for place in count():
        address = environ[place]
        if address is None:
            return
        name, _, value = ctypes.string_at(address).partition(b"=")
        if name in wanted:
            ctypes.memset(address + len(name) + 1, ord("*"), len(value))
