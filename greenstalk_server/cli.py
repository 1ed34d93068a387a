"""The command `greenstalk-server`: a daemon is put together here, served, and stopped in order.

The only module that knows both the server and the dashboard. A start goes through these steps, each of which
may end it with an exit code of its own: options, file limit, sockets, privileges, binlog directory, service.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import gevent
from gevent.event import Event

from greenstalk_server import __version__
from greenstalk_server.cluster.role import Role
from greenstalk_server.config import show
from greenstalk_server.config.command_line import (
    CheckConfig,
    Command,
    Handover,
    Information,
    JournalCheck,
    JournalExport,
    JournalImport,
    ShowConfig,
    parse,
)
from greenstalk_server.config.options import DEFINITIONS, PROGRAM, Options, UsageError, is_database, without_password
from greenstalk_server.core.body_cache import Bodies
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.journal import Journal, NullJournal
from greenstalk_server.core.limits import LimitCounters, Limits
from greenstalk_server.journal.check import check
from greenstalk_server.journal.files import Directory
from greenstalk_server.journal.lock import DirectoryLock
from greenstalk_server.journal.startup import recover
from greenstalk_server.journal.transfer import export_journal, import_journal
from greenstalk_server.journal.writer import Binlog
from greenstalk_server.net.acceptor import Files, WebServer
from greenstalk_server.net.body_loader import Loader
from greenstalk_server.net.committer import Committer
from greenstalk_server.net.listeners import Listener, describe, open_listeners, open_web_listener
from greenstalk_server.net.server import Server
from greenstalk_server.net.tls import Certificates
from greenstalk_server.preflight import (
    check_start,
    refuse_rules_for_nobody,
    shared_module,
    warn_of_writers,
    with_password,
)
from greenstalk_server.runtime import logs
from greenstalk_server.runtime.clock import Clock, steady_clock
from greenstalk_server.runtime.exit_codes import EXIT_BINLOG, EXIT_OK, MORE_MEMORY, StartError
from greenstalk_server.runtime.gc_tuning import collect_nothing, keep_collections_short, resident
from greenstalk_server.runtime.process import (
    READY,
    STOPPING,
    drop_privileges,
    hide_secrets,
    raise_file_limit,
    refuse_unreadable,
    server_facts,
    tell_manager,
)

if TYPE_CHECKING:
    from flask import Flask

    from greenstalk_server.journal.postgresql.database import Rows, SharedBinlog
    from greenstalk_server.web.server import Dashboard

WEB_STOP_TIMEOUT: Final = 1.0
"""Seconds that a request in hand has left at a stop; an idle kept-alive connection takes them all."""

EXIT_UNWRITTEN: Final = 1
"""Of a command that answers: stdout did not take what was asked for."""

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with *argv*, by default the process's own arguments; return its exit code."""
    try:
        command = parse(sys.argv[1:] if argv is None else argv, os.environ)
        if not isinstance(command, Options):
            return _written(command)
        logs.install(command.log_level, command.log_format)
    except StartError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return error.exit_code
    try:
        _run(command, os.environ)
    except StartError as error:
        _say_why(error, command)
        return error.exit_code
    return EXIT_OK


def _written(command: Command) -> int:
    """Answer *command*; return EXIT_UNWRITTEN, with a line on stderr, if stdout does not take the answer."""
    try:
        code = _answer_within_memory(command)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the interpreter fails at its exit
        if not isinstance(error, BrokenPipeError):  # whoever reads has enough
            print(f"{PROGRAM}: cannot write to stdout: {error.strerror}", file=sys.stderr)
        return EXIT_UNWRITTEN
    return code


def _answer_within_memory(command: Command) -> int:
    """Answer *command*; raise StartError if memory does not suffice for a journal, whose largest job must fit whole."""
    try:
        return _answer(command)
    except MemoryError:
        match command:
            case JournalCheck(where):
                what = f"check: {where}: not enough memory to read it"
            case JournalExport(where, target):
                outcome = "nothing was exported" if target is not None else "the output is not complete"
                what = f"export: {_shown(where)}: not enough memory to read it; {outcome}"
            case JournalImport(_, source):
                what = f"import: {source or 'stdin'}: not enough memory to read it; nothing was imported"
            case _:
                raise
        raise StartError(f"journal {what}; {MORE_MEMORY}", EXIT_BINLOG) from None


def _shown(where: str) -> str:
    """*where* a journal is, without the password of a database."""
    return without_password(where) if is_database(where) else where


def _answer(command: Command) -> int:
    """Do what *command*, which is not to serve, asks for; return the exit code."""
    match command:
        case Information(text):
            print(text, end="")
        case ShowConfig(options, is_json):
            for warning in options.warnings:
                print(f"{PROGRAM}: warning: {warning}", file=sys.stderr)
            print(show.as_json(options) if is_json else show.as_table(options), end="")
        case CheckConfig(checked, problems):
            return check_start(checked, problems, os.environ)
        case Handover(options):
            return int(shared_module("leadership").hand_over(options))
        case JournalCheck(where):
            if is_database(where):
                message = "it looks at directories alone; `journal export` reads all of a database"
                raise UsageError(f"journal check: {message}")
            return check(where)
        case JournalExport(where, target, is_quiet):
            collect_nothing()
            if is_database(where):
                return int(shared_module("shared_backup").export_shared(where, _journal_name(), target, is_quiet))
            return export_journal(where, target, is_quiet)
        case JournalImport(where, source):
            if is_database(where):
                return int(shared_module("shared_backup").import_shared(where, _journal_name(), source))
            return import_journal(where, source)
    return EXIT_OK


def _say_why(error: StartError, options: Options) -> None:
    """Tell the operator that the server cannot start, in the form of the log where programs read that."""
    if options.log_format == "json":
        log.critical("%s", error, extra={"exit_code": error.exit_code})
    else:
        print(f"{PROGRAM}: {error}", file=sys.stderr)


def _run(options: Options, environ: Mapping[str, str]) -> None:
    """Serve as *options* say until a signal ends it; raise StartError if it cannot be done."""
    for warning in options.warnings:
        log.warning("%s", warning)
    hide_secrets([row.variable for row in DEFINITIONS if row.is_secret or row.field == "journal"])
    options = with_password(options)
    certificates = Certificates(options) if options.tls_cert is not None else None
    files = raise_file_limit()
    with ExitStack() as at_exit:
        listeners = [at_exit.enter_context(listener) for listener in _open(options, environ)]
        refuse_rules_for_nobody(options, [listener.name for listener in listeners])
        if options.access and options.web_enabled and not (options.web_password or options.viewer_password):
            log.warning("the access rules do not bind the dashboard: set GREENSTALK_WEB_PASSWORD, or --no-web")
        web_listener = at_exit.enter_context(open_web_listener(options)) if options.web_enabled else None
        dashboard = _dashboard(web_listener, options, listeners) if web_listener is not None else None
        if options.user is not None:
            drop_privileges(options.user)
            if dashboard is not None:
                refuse_unreadable(options.user)
        if options.binlog_dir is not None:
            at_exit.callback(DirectoryLock(options.binlog_dir).close)
            warn_of_writers(options.binlog_dir)
        serve = _serve if options.journal is None else _serve_in_turn
        serve(options, environ, _Place(listeners, dashboard, certificates, files))


def _open(options: Options, environ: Mapping[str, str]) -> Iterator[Listener]:
    """The sockets for the beanstalk protocol; a standby's refuse whoever connects."""
    return open_listeners(options, environ, is_serving=options.journal is None)


def _dashboard(listener: socket.socket, options: Options, listeners: Sequence[Listener]) -> Dashboard:
    from greenstalk_server.web.server import Dashboard  # noqa: PLC0415  Flask is half of a start

    where = next((one for one in listeners if not one.is_tls), listeners[0])
    return Dashboard(listener, options, describe(where.sock))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where to serve: sockets that are bound, with what certificates, and how many descriptors there may be."""

    listeners: Sequence[Listener]
    dashboard: Dashboard | None
    certificates: Certificates | None
    most_files: int


def _serve(options: Options, environ: Mapping[str, str], place: _Place) -> None:
    """Serve on sockets that are bound, until SIGTERM or SIGINT; then stop in order."""
    collect_nothing()
    clock = steady_clock()
    limits = _limits(options)
    broker, committer = _queue(options, clock, limits)
    files = Files(place.most_files, broker.limit_counters)
    server = _server(options, limits, place, broker, clock, committer, files)
    web_server: WebServer | None = None
    if place.dashboard is not None:
        web_server = place.dashboard.server(place.dashboard.app(broker, clock, committer), files)
    stopping = Event()
    _handle_signals(server.drain, stopping.set, options, place.certificates)
    keep_collections_short()
    server.start()
    if web_server is not None:
        web_server.start()
    _announce(options, place)
    tell_manager(READY, environ)
    stopping.wait()
    tell_manager(STOPPING, environ)
    _stop(server, web_server)


def _server(
    options: Options,
    limits: Limits,
    place: _Place,
    broker: Broker,
    clock: Clock,
    committer: Committer | None,
    files: Files,
) -> Server:
    """What serves *broker* at *place*."""
    return Server(
        broker,
        place.listeners,
        clock,
        committer,
        files=files,
        limits=limits,
        rules=options.access,
        certificates=place.certificates,
    )


def _serve_in_turn(options: Options, environ: Mapping[str, str], place: _Place) -> None:
    """The same with a journal that others may lead: stand by until this server does."""
    collect_nothing()
    leadership = shared_module("leadership")
    limits = _limits(options)
    seat = leadership.seat(options, describe(place.listeners[0].sock))
    candidate = leadership.Candidate(seat, partial(_Shared, options, limits, place.dashboard), options.strict_recovery)
    turn = leadership.Turn(candidate)
    web_server: WebServer | None = None
    if place.dashboard is not None:
        waiting = place.dashboard.standby_app(candidate.role, os.uname().nodename, steady_clock())
        web_server = place.dashboard.server(waiting, Files(place.most_files, LimitCounters()))
        web_server.start()
    _handle_signals(turn.drain, turn.end, options, place.certificates)
    _announce(options, place)
    tell_manager(READY, environ)
    if not turn.begin():
        tell_manager(STOPPING, environ)
        if web_server is not None:
            web_server.stop(timeout=WEB_STOP_TIMEOUT)
        return
    shared = candidate.queue
    files = Files(place.most_files, shared.broker.limit_counters)
    server = _server(options, limits, place, shared.broker, candidate.clock, shared.committer, files)
    turn.server_drain = server.drain
    keep_collections_short()
    for listener in place.listeners:
        listener.listen()
    server.start()
    if web_server is not None:
        shared.prepare(candidate.role)
        files.open, web_server.files = files.open + web_server.files.open, files
        web_server.application = shared.app
    turn.stopping.wait()
    if turn.is_last:
        tell_manager(STOPPING, environ)
    _stop(server, web_server, turn.release)
    if not turn.is_last:
        turn.begin_anew()


def _journal_name() -> str:
    """Which journal of a database an export or import is about; raise UsageError."""
    variable = "GREENSTALK_JOURNAL_NAME"
    options = parse((), {variable: os.environ.get(variable, "")})
    assert isinstance(options, Options)
    return options.journal_name


def _handle_signals(
    drain: Callable[[], None], stop: Callable[[], None], options: Options, certificates: Certificates | None
) -> None:
    """Have signals stop the server (SIGTERM, SIGINT), drain it (SIGUSR1) and change the log's level (SIGUSR2).

    SIGHUP means that the terminal is closed, if there is one, and stops it then; else the certificate is read anew.
    Without one somebody expects a new log or new options, of which there are none. Whoever started it may have it
    ignored, as nohup(1) does.
    """
    gevent.signal_handler(signal.SIGTERM, stop)
    gevent.signal_handler(signal.SIGINT, stop)
    gevent.signal_handler(signal.SIGUSR1, drain)
    gevent.signal_handler(signal.SIGUSR2, logs.Verbosity(options.log_level).toggle)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        has_terminal = sys.stdin is not None and sys.stdin.isatty()
        on_hangup = certificates.reload if certificates is not None else _note_hangup
        gevent.signal_handler(signal.SIGHUP, stop if has_terminal else on_hangup)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # those that leadership.Turn.begin_anew has wait till now


def _note_hangup() -> None:
    log.info("SIGHUP is ignored: there is no log file to open anew, and new options need a restart")


def _limits(options: Options) -> Limits:
    """What *options* say of limits."""
    return Limits(
        connections=options.max_connections,
        connections_per_address=options.max_connections_per_address,
        jobs=options.max_jobs,
        bytes=options.max_bytes,
        tube_jobs=options.max_tube_jobs,
        tube_bytes=options.max_tube_bytes,
        tubes=options.max_tubes,
        watched=options.max_watched,
        rate=options.max_rate,
        output=options.max_output,
        idle_timeout=options.idle_timeout,
        command_timeout=options.command_timeout,
        dead_peer_timeout=options.dead_peer_timeout,
    )


def _queue(options: Options, clock: Clock, limits: Limits) -> tuple[Broker, Committer | None]:
    """The broker, with the jobs of the journal if there is one, and the committer of that."""
    if options.binlog_dir is None:
        return _broker(options, clock, limits, NullJournal(options.binlog_max_size), can_let_go=False), None
    files = Directory(options.binlog_dir)
    binlog = Binlog(files, options.binlog_max_size, options.sync_interval_ns, os.urandom)
    broker = _broker(options, clock, limits, binlog, can_let_go=True)
    recover(files, broker, binlog, clock(), is_strict=options.strict_recovery)
    return broker, Committer(binlog, Loader(broker, binlog, broker.bodies) if broker.bodies is not None else None)


def _broker(options: Options, clock: Clock, limits: Limits, journal: Journal, *, can_let_go: bool) -> Broker:
    """Return a new broker; *can_let_go* if bodies can be read back from *journal*."""
    bodies = Bodies(_memory_for_jobs(options.memory_limit), can_let_go) if options.memory_limit else None
    return Broker(server_facts(started_at=clock()), journal, options.max_job_size, limits, bodies)


@cache
def _memory_for_jobs(limit: int) -> int:
    """What jobs may take of *limit*, once and for all: what the process takes before there is one is not for them."""
    return max(0, limit - resident())


class _Shared:
    """What a leader serves, and a standby has ready."""

    def __init__(self, options: Options, limits: Limits, dashboard: Dashboard | None, rows: Rows, clock: Clock) -> None:
        """A broker, new and empty, whose journal is in *rows*."""
        self.rows: Rows = rows
        leadership = shared_module("leadership")
        self.binlog: SharedBinlog = leadership.SharedBinlog(rows, options.binlog_max_size, 0, os.urandom)
        self.broker: Broker = _broker(options, clock, limits, self.binlog, can_let_go=False)
        self.committer: Committer = Committer(self.binlog)
        self.app: Flask | None = None
        self._dashboard: Dashboard | None = dashboard
        self._clock: Clock = clock

    def prepare(self, role: Callable[[], Role]) -> None:
        """Make the dashboard unless it exists: a takeover should not take up to 0.3 s for it."""
        if self.app is None and self._dashboard is not None:
            self.app = self._dashboard.app(self.broker, self._clock, self.committer, role)


def _stop(server: Server, web_server: WebServer | None, release: Callable[[], None] | None = None) -> None:
    """Let nobody in any more, then finish what is in hand; call *release* when all changes are safe."""
    log.info("stopping: no new connections, what is in hand is finished")
    server.broker.stop()
    if web_server is not None:
        web_server.close()
        web_server.application.extensions["live"].stop()
        web_server.application.extensions["leases"].stop()
    server.stop()
    if release is not None:
        release()
    if web_server is not None:
        web_server.stop(timeout=WEB_STOP_TIMEOUT)
        web_server.application.extensions["audit"].flush()
    log.info("stopped")


def _announce(options: Options, place: _Place) -> None:
    """Say version, where both listen, and whether jobs survive a restart: in the first lines, or in one of the log."""
    where = place.dashboard.address if place.dashboard is not None else "off (--no-web)"
    beanstalk = ", ".join([listener.described() for listener in place.listeners])
    facts = {"beanstalk": beanstalk, "dashboard": where, "jobs": _survival(options)}
    if options.log_format == "json":
        log.info("serving", extra={"version": __version__, "pid": os.getpid(), **facts})
        return
    print(f"{PROGRAM} {__version__}, process {os.getpid()}")
    print(f"beanstalk protocol: {facts['beanstalk']}")
    print(f"dashboard: {facts['dashboard']}")
    print(f"jobs: {facts['jobs']}", flush=True)


def _survival(options: Options) -> str:
    if options.journal is not None:
        where = f"in PostgreSQL as journal {options.journal_name}"
        return f"kept {where}, and survive this machine; one server at a time serves"
    if options.binlog_dir is None:
        return "in memory only; they do not survive a restart"
    interval = options.sync_interval_ns
    if interval is None:
        synced = "the disk is never waited for (-F)"
    elif interval == 0:
        synced = "each is on disk before it is acknowledged (-f 0)"
    else:
        synced = f"on disk within {interval // 1_000_000} ms (-f)"
    return f"kept in {options.binlog_dir}, and survive a restart; {synced}"
