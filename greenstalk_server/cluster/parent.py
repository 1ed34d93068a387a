"""The parent of several processes: starts them, restarts those that die, and passes on signals.

Each process owns a shard in a directory; or each is a server of a cluster, whose queue is in a database. The parent
holds the listening sockets and the lock of the data directory, but no job and no connection. It imports neither
gevent nor the server, and it has one thread. Each child is the same program with the same arguments. It accepts from
the sockets that all share, so a connection that waits to be accepted survives the death of a child.

The parent keeps its privileges, as it needs them to restart a child. The children drop theirs (-u).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn, Protocol

from greenstalk_server import BUILD, __version__
from greenstalk_server.cluster.placement import (
    ACCEPTING,
    FAILED,
    MAX_REPORT,
    PLACEMENT,
    READY,
    STOPPING,
    VACANT,
    Placement,
    ShardPlacement,
)
from greenstalk_server.cluster.roster import encode
from greenstalk_server.config.definitions import DEFINITIONS
from greenstalk_server.config.options import PROGRAM, Options, secret_variables
from greenstalk_server.journal.layout import directory_of, new_identities, open_shards
from greenstalk_server.journal.lock import DirectoryLock, directory_error, holder_of
from greenstalk_server.journal.shard_file import ShardIdentity
from greenstalk_server.runtime import process
from greenstalk_server.runtime.exit_codes import (
    EXIT_BUILD,
    EXIT_JOURNAL,
    EXIT_LISTEN,
    EXIT_NO_SUCH_USER,
    EXIT_OK,
    EXIT_PRIVILEGES,
    EXIT_USAGE,
    StartError,
)
from greenstalk_server.runtime.memory import free_memory, process_memory
from greenstalk_server.runtime.process import (
    FIRST_INHERITED_FD,
    acting_as,
    new_process_id,
    notify_manager,
    raise_file_limit,
)
from greenstalk_server.runtime.system import MAX_UNIX_PATH, hide_secrets

log = logging.getLogger(__name__)

MIN_DELAY: Final = 0.1
MAX_DELAY: Final = 5.0
"""Seconds before the second restart of a child, and at most; the first restart is immediate."""

STABLE_AFTER: Final = 10.0
"""Seconds that a child must live before its next restart is immediate again."""

STOP_TIMEOUT: Final = 20.0
"""Seconds after which a child that was asked to stop is killed. A child has 10 s for its connections, then 1 s
for its dashboard, and commits."""

FOLLOWS_AFTER: Final = 2.0
"""Seconds after READY in which an extra server begins to follow a shard, and the others notice it."""

EXTRA_DELAY: Final = 10.0
"""Seconds after the death of an extra server in which no other one is started."""

LOCK_TIMEOUT: Final = 20.0
"""Seconds to wait for the children of a killed parent, which are stopping and still hold the locks of shards."""

LOCK_POLL_INTERVAL: Final = 0.05

FINAL_CODES: Final = frozenset((EXIT_USAGE, EXIT_JOURNAL, EXIT_NO_SUCH_USER, EXIT_PRIVILEGES, EXIT_BUILD, EXIT_LISTEN))
"""Exit codes of a first start that end the parent too: another start would fail in the same way."""

LINKS_DIRECTORY: Final = "links"

LINK_BACKLOG: Final = 4096

_FORWARDED: Final = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_MANAGER: Final = ("NOTIFY_SOCKET", "LISTEN_")
"""Prefixes of variables with which a service manager addresses this process alone."""

_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


class Listening(Protocol):
    """A listening socket for clients: see net.listeners.Listener."""

    @property
    def sock(self) -> socket.socket: ...
    @property
    def name(self) -> str: ...
    @property
    def is_tls(self) -> bool: ...
    def described(self) -> str:
        """Return the address as an operator writes it."""


def run(options: Options, listeners: Sequence[Listening], environ: Mapping[str, str]) -> int:
    """Run the children until a signal stops them; return the exit code; raise StartError."""
    for warning in options.warnings:
        log.warning("%s", warning)
    raise_file_limit()  # two sockets for each child
    hidden = [row.variable for row in DEFINITIONS if row.is_secret or row.field == "journal"]
    hide_secrets([*hidden, *secret_variables(options.alerts, options.servers)])
    with ExitStack() as at_exit:
        fds = [listener.sock.fileno() for listener in listeners]
        names = tuple([(listener.name, listener.is_tls) for listener in listeners])
        first = Placement(0, options.processes, "", names, control_fd=FIRST_INHERITED_FD + len(fds))
        with acting_as(options.user) if options.user is not None else nullcontext():
            if options.journal is not None:
                sockets = str(_links_directory(None, options.processes, at_exit)) if options.link is None else ""

                def make_server(number: int) -> _Child:
                    return _Child(replace(first, number=number, sockets=sockets), fds, environ)

                children = [make_server(number) for number in range(options.processes)]
                make_extra = make_server
            else:
                children = _children_with_shards(options, first, fds, environ, at_exit)
                make_extra = None
        parent = _Parent(children, lambda: _announce(options, listeners), environ, make_extra)
        return parent.run()


def _children_with_shards(
    options: Options, first: Placement, fds: Sequence[int], environ: Mapping[str, str], at_exit: ExitStack
) -> list[_Child]:
    """Return a child for each shard of the directory, or of a new queue in memory; raise StartError.

    *first* is the placement of the first one, without a shard.
    """
    shards = _open_shards(options, at_exit)
    links = _open_links(options, at_exit)
    secret, paths = secrets.token_hex(32), tuple([link.getsockname() for link in links])
    children = []
    for number, link in enumerate(links):
        shard = ShardPlacement(
            queue=shards[0].queue,
            shards=options.processes,
            shard=number,
            base=shards[0].ids.base,
            pins=options.pins,
            secret=secret,
            directory=directory_of(options.data_dir, number) if options.data_dir is not None else None,
            link_fd=first.control_fd,
            links=paths,
        )
        placement = replace(first, number=number, control_fd=first.control_fd + 1, shard=shard)
        children.append(_Child(placement, [*fds, link.fileno()], environ))
    return children


def _open_shards(options: Options, at_exit: ExitStack) -> Sequence[ShardIdentity]:
    """Lock the directory, and return its shards; without a directory, return those of a new queue; raise StartError."""
    if (directory := options.data_dir) is None:
        return new_identities(options.processes)
    at_exit.callback(DirectoryLock(directory).close)
    try:
        shards = open_shards(directory, options.processes)
    except OSError as error:
        raise directory_error(directory, f"{error.filename or directory}: {error.strerror}") from error
    _await_former_children(directory, options.processes)
    return shards


def _await_former_children(directory: str, shards: int) -> None:
    """Wait until no child of a killed parent uses a shard; raise StartError after LOCK_TIMEOUT."""
    until = time.monotonic() + LOCK_TIMEOUT
    for shard in range(shards):
        while holder := holder_of(directory_of(directory, shard)):
            if time.monotonic() > until:
                raise directory_error(directory_of(directory, shard), f"in use by {holder}")
            time.sleep(LOCK_POLL_INTERVAL)


def _open_links(options: Options, at_exit: ExitStack) -> list[socket.socket]:
    """Return a listening Unix socket for each shard, in a private directory; raise StartError."""
    directory = _links_directory(options.data_dir, options.processes, at_exit)
    links = []
    try:
        for shard in range(options.processes):
            link = at_exit.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            link.bind(str(directory / f"{shard}"))
            link.listen(LINK_BACKLOG)
            links.append(link)
    except OSError as error:
        raise StartError(f"{directory}: cannot create a socket: {error.strerror}", EXIT_LISTEN) from error
    return links


def _links_directory(data_dir: str | None, shards: int, at_exit: ExitStack) -> Path:
    """Return a new directory for sockets: below *data_dir*, or a temporary one if the paths would be too long."""
    if data_dir is not None:
        path = Path(data_dir).absolute() / LINKS_DIRECTORY
        if len(os.fsencode(path / str(shards))) <= MAX_UNIX_PATH:
            shutil.rmtree(path, ignore_errors=True)  # of a parent that was killed
            path.mkdir(mode=0o700)
            at_exit.callback(shutil.rmtree, path, ignore_errors=True)
            return path
    temporary = tempfile.mkdtemp(prefix=f"{PROGRAM}-")
    at_exit.callback(shutil.rmtree, temporary, ignore_errors=True)
    return Path(temporary)


class _Child:
    """One child: its process, its socket, and when it is restarted.

    name        its name in messages.
    number      its number, from 0.
    is_extra    whether it is an extra server: see extra_server.
    pid         0 while there is no process.
    process     random id of this start of the process; empty while there is no process.
    control     the parent's end of the socket pair; None while there is no process.
    is_told     whether it knows the processes of all shards.
    has_started whether it, or an earlier process in its place, has reported ACCEPTING or READY.
    is_ready    whether it has reported READY.
    was_ready   whether it, or an earlier process in its place, has reported READY.
    ready_at    time of the last READY, by the monotonic clock.
    failure     the message of its failed start.
    due_at      time of the next start, by the monotonic clock.
    """

    def __init__(self, placement: Placement, fds: Sequence[int], environ: Mapping[str, str]) -> None:
        """*fds* are the sockets of clients, and the link socket if any, in the order of inheritance."""
        self.name: str = placement.name
        self.number: int = placement.number
        self.is_extra: bool = placement.is_extra
        self.pid: int = 0
        self.process: str = ""
        self.control: socket.socket | None = None
        self.is_told: bool = False
        self.has_started: bool = False
        self.is_ready: bool = False
        self.was_ready: bool = False
        self.ready_at: float = 0.0
        self.failure: str = ""
        self.due_at: float = 0.0
        self._delay: float = 0.0
        self._started_at: float = 0.0
        self._placement: Placement = placement
        self._fds: list[int] = list(fds)
        self._environ: dict[str, str] = {
            **{name: text for name, text in environ.items() if not name.startswith(_MANAGER)},
            "LISTEN_FDS": str(len(placement.listeners)),
        }

    def start(self) -> None:
        """Start a process. If the system refuses, log why; the next attempt is due as after the end of a process."""
        self._started_at = time.monotonic()
        self.is_told, self.is_ready, self.failure = False, False, ""
        self.process = new_process_id()
        try:
            self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.control.setblocking(False)
            with theirs:
                self._fork(theirs.fileno())
        except OSError as error:  # too many processes or open files, or no memory
            self.end()
            log.error("%s: cannot start a process: %s; trying again", self.name, error)  # noqa: TRY400

    def _fork(self, control_fd: int) -> None:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.pid = os.fork()
            if self.pid == 0:
                self._execute(control_fd, blocked)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def send_signal(self, number: int) -> None:
        """Send the signal *number* to the process, if there is one. It is not reaped yet, so the id is its own."""
        if self.pid:
            os.kill(self.pid, number)

    def tell(self, report: bytes) -> None:
        """Send *report* to the process. If it has not read enough of the earlier ones, `is_told` stays False."""
        if self.control is not None and not self.is_told:
            try:
                self.control.send(report)
            except BlockingIOError:
                return
            except OSError:  # it has ended
                pass
            self.is_told = True

    def read_reports(self) -> Iterator[bytes]:
        """Yield the reports that have arrived."""
        while self.control is not None:
            try:
                report = self.control.recv(MAX_REPORT)
            except (BlockingIOError, ConnectionError):
                return
            if not report:
                return
            yield report

    def end(self) -> None:
        """Note that the process has ended, and when the next one is due."""
        if self.control is not None:
            self.control.close()
        self.pid, self.control, self.is_ready, self.process = 0, None, False, ""
        now = time.monotonic()
        if now - self._started_at >= STABLE_AFTER:
            self._delay = 0.0
        self.due_at = now + self._delay
        self._delay = min(max(2 * self._delay, MIN_DELAY), MAX_DELAY)

    def _execute(self, control_fd: int, mask: set[int]) -> NoReturn:
        """Execute the program, in the new process. Signals since the fork have their default effect."""
        try:
            for number in (*_STOPPING, *_FORWARDED, signal.SIGCHLD):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            fds = [*self._fds, control_fd]
            end = FIRST_INHERITED_FD + len(fds)
            copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, end) for fd in fds]
            for place, fd in enumerate(copies, FIRST_INHERITED_FD):
                os.dup2(fd, place)
            placement = replace(self._placement, process=self.process)
            environ = self._environ | {PLACEMENT: placement.as_json(), "LISTEN_PID": str(os.getpid())}
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)  # noqa: S606  the same command
        except BaseException as error:  # noqa: BLE001  nothing of the parent may run in the child
            os.write(2, f"{PROGRAM}: cannot execute {sys.executable}: {error}\n".encode())
        os._exit(EXIT_USAGE)


class _Parent:
    """Runs the children until all have stopped."""

    def __init__(
        self,
        children: list[_Child],
        announce: Callable[[], None],
        environ: Mapping[str, str],
        make_extra: Callable[[int], _Child] | None,
    ) -> None:
        """*announce* is called when all children have started: clients may connect.

        *make_extra* returns an extra server with that number; None if the children do not report vacant shards.
        """
        self._children: list[_Child] = children
        self._make_extra: Callable[[int], _Child] | None = make_extra
        self._no_extra_before: float = 0.0  # time, by the monotonic clock
        self._is_memory_short: bool = False  # no extra server was started for lack of memory, and this was logged
        self._announce: Callable[[], None] = announce
        self._environ: Mapping[str, str] = environ
        self._exit_code: int = EXIT_OK
        self._is_announced: bool = False
        self._stops_by: float | None = None  # time after which children are killed; None: they are not stopping
        self._pending: set[int] = set()  # signals that a child gets once it is ready: it missed them, or a restart did
        self._roster: list[str] = []
        self._received: socket.socket

    def run(self) -> int:
        """Start the children, and return the exit code when all have stopped."""
        with _signals() as self._received:
            for child in self._children:
                child.start()
            self._tell_all()
            while self._stops_by is None or any(child.pid for child in self._children):
                self._wait()
                for number in self._signals():
                    self._handle(number)
                for child in self._children:
                    self._read_reports(child)
                self._reap()
                self._do_what_is_due(time.monotonic())
                self._tell_all()
        return self._exit_code

    def _wait(self) -> None:
        """Wait for a signal or a report, at most until the next start or the end of the time to stop."""
        poll = select.poll()
        poll.register(self._received, select.POLLIN)
        for child in self._children:
            if child.control is not None:
                poll.register(child.control, select.POLLIN if child.is_told else select.POLLIN | select.POLLOUT)
        if self._stops_by is not None:
            times = [self._stops_by]
        else:
            times = [child.due_at for child in self._children if not child.pid]
        poll.poll(max(0.0, min(times) - time.monotonic()) * 1000 + 1 if times else None)

    def _tell_all(self) -> None:
        """Tell the children which processes there are, if that has changed."""
        roster = [child.process for child in self._children]
        if roster != self._roster:
            self._roster = roster
            for child in self._children:
                child.is_told = False
        for child in self._children:
            child.tell(encode(roster))

    def _signals(self) -> Sequence[int]:
        try:
            return self._received.recv(1024)
        except BlockingIOError:
            return b""

    def _handle(self, number: int) -> None:
        """Handle the signal *number*: pass it on, or stop."""
        is_hang_up = number == signal.SIGHUP and sys.stdin is not None and sys.stdin.isatty()
        if number in _STOPPING or is_hang_up:
            if self._stops_by is None:
                log.info("stopping %d processes", len(self._children))
                self._stop()
            else:
                self._stops_by = 0.0
        elif number in _FORWARDED and self._stops_by is None:
            if number == signal.SIGUSR1:
                self._pending.add(number)
            elif number == signal.SIGUSR2:
                self._pending ^= {number}
            for child in self._children:
                if child.is_ready:
                    child.send_signal(number)

    def _stop(self) -> None:
        """Stop all children."""
        if self._stops_by is None:
            notify_manager(process.STOPPING, self._environ)
            self._stops_by = time.monotonic() + STOP_TIMEOUT
            for child in self._children:
                child.send_signal(signal.SIGTERM)

    def _read_reports(self, child: _Child) -> None:
        for report in child.read_reports():
            if report in (ACCEPTING, READY):
                child.has_started = True
                if not self._is_announced and all(each.has_started for each in self._children):
                    self._announce_ready()
            if report == READY:
                self._note_ready(child)
            elif report == STOPPING:
                child.is_ready = False
            elif report.startswith(FAILED):
                child.failure = report.removeprefix(FAILED).decode(errors="replace")
            elif report.startswith(VACANT) and self._stops_by is None:
                self._start_extra(json.loads(report.removeprefix(VACANT)), time.monotonic())

    def _start_extra(self, vacant: Sequence[int], now: float) -> None:
        """Start an extra server for each of the *vacant* shards that lacks one, if there is memory.

        An extra server that was started before counts for one of the shards until it has had time to follow a shard.
        """
        extra = [child for child in self._children if child.is_extra]
        coming = [child for child in extra if not child.is_ready or now < child.ready_at + FOLLOWS_AFTER]
        if self._make_extra is None or now < self._no_extra_before or len(coming) >= len(vacant):
            return
        shards, started = ", ".join(map(str, vacant)), list[str]()
        for number in range(len(coming), len(vacant)):
            problem = self._memory_problem(number + 1)
            if problem and not self._is_memory_short:
                log.error("shards without owner and standby: %s; cannot start an extra server: %s", shards, problem)
            self._is_memory_short = bool(problem)
            if problem:
                break
            used = {each.number for each in self._children}
            child = self._make_extra(min(set(range(len(used) + 1)) - used))
            self._children.append(child)
            child.start()
            started.append(child.name)
        if started:
            names = ", ".join(started)
            log.warning("shards without owner and standby: %s; started until others return: %s", shards, names)

    def _memory_problem(self, count: int) -> str:
        """Return why there is too little memory for *count* extra servers; empty if there is enough, or if unknown.

        Each may take as much as the largest server, and the same amount must be left.
        """
        sizes = [found[0] for child in self._children if child.pid and (found := process_memory(child.pid))]
        free, needed = free_memory(), (count + 1) * max(sizes, default=0)
        if free is None or free >= needed:
            return ""
        return f"{free // 2**20} MiB of memory are free, and {needed // 2**20} MiB are needed"

    def _note_ready(self, child: _Child) -> None:
        child.is_ready = child.was_ready = True
        child.ready_at = time.monotonic()
        for number in self._pending:
            child.send_signal(number)

    def _announce_ready(self) -> None:
        self._is_announced = True
        self._announce()
        notify_manager(process.READY, self._environ)

    def _reap(self) -> None:
        """Note which children have ended."""
        for child in list(self._children):
            if child.pid:
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                if pid:
                    self._read_reports(child)
                    self._note_end(child, os.waitstatus_to_exitcode(status))

    def _note_end(self, child: _Child, code: int) -> None:
        """Handle the end of *child* with the exit *code*, or by the signal -*code*."""
        pid = child.pid
        child.end()
        if child.is_extra:
            self._children.remove(child)
        if self._stops_by is not None:
            return
        if code == EXIT_OK and child.is_extra:
            log.info("%s, an extra one: process %d has ended", child.name, pid)
            return
        if code == EXIT_OK:  # it has handed over, or was stopped alone
            log.info("%s: process %d has ended; it is started again", child.name, pid)
            return
        how = f"exited with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        reason = f": {child.failure}" if child.failure else ""
        if child.is_extra:
            self._no_extra_before = time.monotonic() + EXTRA_DELAY
            message = "%s, an extra one: process %d %s%s; it is not restarted, and its clients have to reconnect"
            log.error(message, child.name, pid, how, reason)
        elif code in FINAL_CODES and not child.was_ready:
            log.critical("%s cannot start: the server exits%s", child.name, reason, extra={"exit_code": code})
            self._exit_code = code
            self._stop()
        else:
            delay = max(0.0, child.due_at - time.monotonic())
            message = "%s: process %d %s%s; it is restarted in %.1f s, and its clients have to reconnect"
            log.error(message, child.name, pid, how, reason, delay)

    def _do_what_is_due(self, now: float) -> None:
        """Start the children that are due, or kill those that have not stopped in time."""
        for child in self._children:
            if self._stops_by is not None:
                if child.pid and now >= self._stops_by:
                    child.send_signal(signal.SIGKILL)
            elif not child.pid and now >= child.due_at:
                child.start()
        if self._stops_by is not None and now >= self._stops_by:
            self._stops_by = now + 1.0


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """Provide a socket from which the numbers of received signals can be read. An ignored SIGHUP stays ignored."""
    receiver, sender = socket.socketpair()
    with receiver, sender:
        receiver.setblocking(False)
        sender.setblocking(False)
        former_fd = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        numbers = [*_STOPPING, *_FORWARDED, signal.SIGCHLD]
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            numbers.remove(signal.SIGHUP)
        former = {number: signal.signal(number, lambda *_: None) for number in numbers}
        try:
            yield receiver
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(former_fd)


def _announce(options: Options, listeners: Sequence[Listening]) -> None:
    """Print what `daemon` prints at startup, for all processes; log it if the format is JSON."""
    beanstalk = ", ".join([listener.described() for listener in listeners])
    facts = {"beanstalk": beanstalk, "dashboard": _dashboards(options), "jobs": options.durability}
    if options.log_format == "json":
        facts |= {"processes": str(options.processes)}
        log.info("serving", extra={"version": __version__, "build": BUILD.name, "pid": os.getpid(), **facts})
        return
    print(f"{PROGRAM} {__version__} ({BUILD.name}), process {os.getpid()} with {options.processes} others")
    print(f"beanstalk protocol: {facts['beanstalk']}")
    print(f"dashboard: {facts['dashboard']}")
    with suppress(BrokenPipeError):
        print(f"jobs: {facts['jobs']}", flush=True)


def _dashboards(options: Options) -> str:
    if not options.web_enabled:
        return "off (--no-web)"
    if not options.web_port:
        return "on a free port that the log names"
    host = f"[{options.web_host}]" if ":" in options.web_host else options.web_host
    return f"http://{host}:{options.web_port}{options.url_prefix}/"
