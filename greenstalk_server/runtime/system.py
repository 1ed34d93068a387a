"""The system calls that are not the same on every system: files, sockets, and facts about processes.

No other module of the server uses a call that only Linux has. Most functions have two forms. On Linux they use the
calls of Linux. The portable form uses calls that macOS has too. It runs on macOS, and on Linux if GREENSTALK_PORTABLE=1
is set, as the tests do. docs/platforms.md has a table of the replacements, and says what the portable form lacks.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import resource
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

YIELD_DELAY: Final = 0.000001
"""Seconds, for `gevent.sleep` or a timer, after which code resumes in the next iteration of the event loop."""

IS_MACOS: Final = sys.platform == "darwin"

IS_PORTABLE: Final = IS_MACOS or os.environ.get("GREENSTALK_PORTABLE") == "1"
"""Whether the functions of this module have their portable form."""

READ: Final = 1
"""Event of a gevent io watcher."""

INPUT: Final = 1
"""EPOLLIN: the only event of a socket that has input, and whose peer has not closed."""

HANG_UP: Final = 0x2000
"""EPOLLRDHUP."""

PEER_CLOSED: Final[int] = getattr(select, "POLLRDHUP", select.POLLHUP)
"""Event of select.poll for "the other side has closed". macOS has no POLLRDHUP, and reports POLLHUP instead. Errors are
always reported."""

HANG_UP_CHECK_INTERVAL: float = 1.0
"""Seconds between two checks for hang-ups in the portable form. Not Final, so that a test can change it."""

LEVEL_EVENTS: Final = INPUT | HANG_UP
"""Events of a socket that is reported for as long as it has unread input. The portable form reports it only once."""

EDGE_EVENTS: Final = LEVEL_EVENTS if IS_PORTABLE else LEVEL_EVENTS | select.EPOLLPRI | select.EPOLLET
"""Events of a socket that is reported once when input arrives. EPOLLPRI is included because a recv stops at urgent
data, and leaves the input behind it unread."""

PROC: Final = Path("/nonexistent" if IS_PORTABLE else "/proc")
"""The directory of proc(5). In the portable form it does not exist."""

MAX_UNIX_PATH: Final = 103 if IS_MACOS else 107
"""Maximum bytes of the path of a Unix socket (unix(7); unix(4) of macOS)."""

MAX_FILES: Final = 10_240
"""OPEN_MAX of macOS: a larger soft limit on open files may be refused."""

ZEROS: Final = bytes(2**20)
"""Written in one call when space is allocated."""

_NO_FULL_SYNC: Final = frozenset((errno.EINVAL, errno.ENOTSUP, errno.ENOTTY))
"""Errors of F_FULLFSYNC on a file system without it."""

_CREDENTIALS: Final = struct.Struct("iII")
"""struct ucred of unix(7): process, user, group."""

_FLOCK: Final = struct.Struct("@hhqqi4x")
"""struct flock of 64-bit Linux: type, whence, start, len, pid."""

_FLOCK_OF_MACOS: Final = struct.Struct("@qqihh")
"""struct flock of macOS: start, len, pid, type, whence."""

_SOL_LOCAL: Final = 0
_LOCAL_PEERPID: Final = 2
"""Of macOS, unix(4). Python has no names for them."""

_TCP_KEEPIDLE: Final[int] = getattr(socket, "TCP_KEEPIDLE", 0x10)
"""The option that macOS calls TCP_KEEPALIVE, with the number 0x10."""

_TCP_INFO: Final = struct.Struct("24xI28xI")
"""tcpi_unacked (segments) and tcpi_last_ack_recv (milliseconds) in struct tcp_info of linux/tcp.h."""

_UNIX_BOUND: Final = re.compile(r"\S+ \S+ \S+ 00000000 0001 01 .*")
"""A line of /proc/net/unix about a stream socket that neither listens nor is connected: flags, type and state."""


def open_poll(loop: Any, *, ref: bool = True, priority: int | None = None) -> tuple[Any, Any]:
    """Return an epoll instance, and a watcher of gevent's *loop* that is called while the instance has events.

    Portable: a LoopPoll, which is both.
    """
    if IS_PORTABLE:
        poll = LoopPoll(loop, ref=ref, priority=priority)
        return poll, poll
    epoll = select.epoll()
    return epoll, loop.io(epoll.fileno(), READ, ref=ref, priority=priority)


# Files. These functions block, and raise OSError.


def allocate(fd: int, size: int) -> None:
    """Extend the file *fd* to *size* bytes, allocated on disk. Portable: write zeros."""
    if not IS_PORTABLE:
        os.posix_fallocate(fd, 0, size)
        return
    former = end = os.fstat(fd).st_size
    try:
        while end < size:
            end += os.pwrite(fd, memoryview(ZEROS)[: size - end], end)
    except OSError:
        os.ftruncate(fd, former)
        raise


def sync_data(fd: int) -> None:
    """Wait until the bytes and the size of the file *fd* are on disk."""
    if IS_PORTABLE:
        sync_all(fd)
    else:
        os.fdatasync(fd)


def sync_all(fd: int) -> None:
    """Wait until the file or directory *fd* is on disk, with its metadata.

    On macOS, fsync leaves the data in the cache of the disk, and F_FULLFSYNC does not.
    """
    if IS_MACOS:
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # type: ignore[attr-defined]
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
        else:
            return
    os.fsync(fd)


def lock_holder(fd: int) -> int:
    """Return the id of the process that holds an fcntl lock on the file *fd*; 0 if none does, -1 if it is unknown.

    The id of a process in another pid namespace is unknown.
    """
    if IS_MACOS:
        query = _FLOCK_OF_MACOS.pack(0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
        _, _, pid, kind, _ = _FLOCK_OF_MACOS.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, query))
    else:
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, query))
    if kind == fcntl.F_UNLCK:
        return 0
    return pid if pid > 0 else -1


# Sockets


def set_keepalive(sock: socket.socket, idle: int, interval: int, probes: int) -> None:
    """Make TCP probe the peer after *idle* seconds, every *interval* seconds, and give up after *probes* probes."""
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_KEEPIDLE, idle)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)


def unacknowledged(sock: socket.socket) -> tuple[int, int]:
    """Return the segments that the peer of the TCP socket has not acknowledged, and the ms since its last ACK.

    Portable: 0, as if everything was acknowledged.
    """
    if IS_PORTABLE:
        return 0, 0
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    segments, silent = _TCP_INFO.unpack(info)
    return segments, silent


def has_peer_closed(fd: int) -> bool:
    """Return whether the peer of the socket *fd* has closed, even if input is unread."""
    poll = select.poll()
    poll.register(fd, PEER_CLOSED)
    return bool(poll.poll(0))


def peer_process(sock: socket.socket) -> str:
    """Return the program and the process id of the peer of a connected Unix socket.

    Portable: only the process id, or an empty string if the system does not say.
    """
    if IS_PORTABLE:
        try:
            return f"process {sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID)}"
        except OSError:
            return ""
    pid, _, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    try:
        program = (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:  # the process has ended, or is in another namespace
        program = "unknown program"
    return f"{program}, process {pid}"


def peer_user(sock: socket.socket) -> int:
    """Return the user id of the peer of a connected Unix socket.

    Portable: the own user id; only processes of this user can reach a socket in a directory of mode 0700.
    """
    if IS_PORTABLE:
        return os.geteuid()
    _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(user)


def is_bound(path: Path) -> bool:
    """Return whether a process has bound a Unix socket to *path*, and does not listen yet: its clients are refused.

    Portable: always False.
    """
    try:
        lines = (PROC / "net" / "unix").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return False
    return any(_UNIX_BOUND.fullmatch(line) for line in lines if line.endswith(f" {path}"))


# The process


def boot_time() -> float:
    """Return seconds by a clock that also advances while the process is stopped or the machine is suspended.

    The monotonic clock of macOS does so. (On Linux, the portable form stops while the machine is suspended.)
    """
    return time.clock_gettime(time.CLOCK_MONOTONIC if IS_PORTABLE else time.CLOCK_BOOTTIME)


def peak_memory() -> int:
    """Return the most bytes of this process that ever were in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if IS_MACOS else 1024)


def largest_file_limit(hard: int) -> int:
    """Return the largest soft limit on open files that the system accepts; *hard* is the hard limit."""
    if not IS_PORTABLE:
        return hard
    return MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)


def hide_secrets(names: Collection[str]) -> None:
    """Overwrite the values of the variables *names* in the environment that /proc/PID/environ shows for this process.

    Python's os.environ is a copy and keeps the values. Portable: do nothing.
    """
    if IS_PORTABLE:
        return
    wanted = {name.encode() for name in names}
    environ = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
    for place in count():
        address = environ[place]
        if address is None:
            return
        name, _, value = ctypes.string_at(address).partition(b"=")
        if name in wanted:
            ctypes.memset(address + len(name) + 1, ord("*"), len(value))


class LoopPoll:
    """A replacement for an epoll instance and its watcher: one watcher of gevent's loop for each socket.

    The loop reports a socket for as long as it has unread input, but the poller expects one event when input arrives.
    So an event stops the socket's watcher. `arm` starts the watcher again, and the reader of the socket calls it
    after each read. If input is left, the watcher reports it at once.

    A socket whose input is left unread is not watched. Every HANG_UP_CHECK_INTERVAL seconds, the peers of such sockets
    are checked for a hang-up.

    No method switches.
    """

    def __init__(self, loop: Any, *, ref: bool, priority: int | None) -> None:
        """*ref* and *priority* are those of the watchers."""
        self._loop: Any = loop
        self._ref: bool = ref
        self._priority: int | None = priority
        self._watchers: dict[int, Any] = {}
        self._fired: list[int] = []  # in the order of the loop's calls, which is the reverse order of arrival
        self._events: dict[int, int] = {}  # by descriptor, in the order of arrival
        self._unwatched: set[int] = set()  # reported, and not armed since then
        self._closed: set[int] = set()  # those of them whose HANG_UP has been reported
        self._callback: Callable[[], None] | None = None
        self._call_due: Any = None  # the callback or the timer by which the loop is going to call `_call`
        self._soon: Any = loop.timer(YIELD_DELAY, ref=ref)
        self._check: Any = loop.timer(HANG_UP_CHECK_INTERVAL, HANG_UP_CHECK_INTERVAL, ref=False)

    # As a watcher

    def start(self, callback: Callable[[], None]) -> None:
        """Call *callback* in the loop while there are events."""
        self._callback = callback
        self._check.start(self._check_unwatched)
        self._plan_call()

    def stop(self) -> None:
        """Do not call back from now on."""
        self._callback = None
        self._check.stop()

    # As select.epoll

    def register(self, fd: int, events: int) -> None:
        """Report the socket *fd* once when it has input. *events* is ignored."""
        if fd in self._watchers:
            raise FileExistsError(f"descriptor {fd} is registered already")
        watcher = self._watchers[fd] = self._loop.io(fd, READ, ref=self._ref, priority=self._priority)
        watcher.start(self._fire, fd)

    def unregister(self, fd: int) -> None:
        """Undo `register`."""
        watcher = self._watchers.pop(fd)
        watcher.stop()
        watcher.close()
        self._events.pop(fd, None)
        self._unwatched.discard(fd)
        self._closed.discard(fd)
        if fd in self._fired:
            self._fired.remove(fd)

    def arm(self, fd: int) -> None:
        """Report *fd* again when it has input, or at once if it has input now."""
        if fd in self._unwatched:
            self._unwatched.remove(fd)
            self._watchers[fd].start(self._fire, fd)

    def poll(self, timeout: float, maxevents: int) -> list[tuple[int, int]]:
        """Return up to *maxevents* descriptors with their events. Never waits: *timeout* is ignored."""
        if self._call_due is not None:  # else one iteration of the loop may call twice
            self._call_due.stop()
            self._call_due = None
        self._events.update(dict.fromkeys(reversed(self._fired), INPUT))
        self._fired.clear()
        found = list(islice(self._events.items(), maxevents))
        for fd, _ in found:
            del self._events[fd]
            self._unwatched.add(fd)
        if self._events:
            self._plan_call()
        return found

    # Called by the loop

    def _fire(self, fd: int) -> None:
        self._watchers[fd].stop()
        self._fired.append(fd)
        if self._call_due is None:
            self._call_due = self._loop.run_callback(self._call)  # after the other watchers of this iteration

    def _plan_call(self) -> None:
        """Call back in the next iteration of the loop, after its other watchers, if there are events."""
        if (self._fired or self._events) and self._call_due is None:
            self._call_due = self._soon
            self._soon.start(self._call)

    def _call(self) -> None:
        self._call_due = None
        if self._callback is not None:
            self._callback()

    def _check_unwatched(self) -> None:
        """Report the sockets with unread input whose peers have closed."""
        poll = select.poll()
        for fd in self._unwatched - self._closed:
            poll.register(fd, PEER_CLOSED)
        for fd, _ in poll.poll(0):
            self._closed.add(fd)
            self._events[fd] = INPUT | HANG_UP
        self._plan_call()
