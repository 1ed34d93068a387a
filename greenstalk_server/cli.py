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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import gevent
from flask import Flask
from gevent.event import Event
from gevent.pywsgi import WSGIServer

from greenstalk_server import __version__, configuration, logs
from greenstalk_server.backup import export_journal, import_journal
from greenstalk_server.broker import Broker
from greenstalk_server.check import check
from greenstalk_server.clock import Clock, steady_clock
from greenstalk_server.command_line import (
    Command,
    Information,
    JournalCheck,
    JournalExport,
    JournalImport,
    ShowConfig,
    parse,
)
from greenstalk_server.committer import Committer
from greenstalk_server.exits import EXIT_OK, EXIT_USAGE, StartError
from greenstalk_server.journal import NullJournal
from greenstalk_server.journal.binlog import Binlog
from greenstalk_server.journal.files import Directory
from greenstalk_server.journal.lock import DirectoryLock
from greenstalk_server.listeners import describe, open_listener, open_web_listener
from greenstalk_server.memory import collect_nothing, keep_collections_short
from greenstalk_server.options import PROGRAM, Options, refuse_equal_passwords
from greenstalk_server.process import (
    READY,
    STOPPING,
    drop_privileges,
    raise_file_limit,
    server_facts,
    tell_manager,
)
from greenstalk_server.server import Server
from greenstalk_server.startup import recover
from web import WebOptions, create_app, warm_up

WEB_STOP_TIMEOUT: Final = 1.0
"""Seconds that a request in hand has left at a stop; an idle kept-alive connection takes them all."""

WEB_COMMIT_TIMEOUT: Final = 5.0
"""Seconds that a change made on the dashboard waits for the disk, before its page says that the disk fails."""

LONGEST_PASSWORD: Final = 1000
"""Bytes of a password in a file."""

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with *argv*, by default the process's own arguments; return its exit code."""
    try:
        command = parse(sys.argv[1:] if argv is None else argv, os.environ)
        if not isinstance(command, Options):
            return _answer(command)
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


def _answer(command: Command) -> int:
    """Do what *command*, which is not to serve, asks for; return the exit code."""
    match command:
        case Information(text):
            print(text, end="")
        case ShowConfig(options, is_json):
            for warning in options.warnings:
                print(f"{PROGRAM}: warning: {warning}", file=sys.stderr)
            print(configuration.as_json(options) if is_json else configuration.as_table(options), end="")
        case JournalCheck(directory):
            return check(directory)
        case JournalExport(directory, target):
            collect_nothing()
            return export_journal(directory, target)
        case JournalImport(directory, source):
            return import_journal(directory, source)
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
    options = _with_password(options)
    raise_file_limit()
    with ExitStack() as at_exit:
        listener = at_exit.enter_context(open_listener(options, environ))
        web_listener = at_exit.enter_context(open_web_listener(options)) if options.web_enabled else None
        if options.user is not None:
            drop_privileges(options.user)
        if options.binlog_dir is not None:
            at_exit.callback(DirectoryLock(options.binlog_dir).close)
        _serve(options, environ, listener, web_listener)


def _serve(
    options: Options, environ: Mapping[str, str], listener: socket.socket, web_listener: socket.socket | None
) -> None:
    """Serve on sockets that are bound, until SIGTERM or SIGINT; then stop in order."""
    collect_nothing()
    clock = steady_clock()
    broker, committer = _queue(options, clock)
    server = Server(broker, [listener], clock, committer)
    web_server: WSGIServer | None = None
    if web_listener is not None:
        where = describe(listener)
        commit = partial(committer.wait, WEB_COMMIT_TIMEOUT) if committer is not None else None
        app = create_app(broker, clock, _web_options(options, where), commit=commit)
        warm_up(app)
        web_server = _web_server(app, web_listener, options)
    stopping = Event()
    _handle_signals(server, stopping, options)
    keep_collections_short()
    server.start()
    if web_server is not None:
        web_server.start()
    _announce(options, listener, web_listener)
    tell_manager(READY, environ)
    stopping.wait()
    tell_manager(STOPPING, environ)
    _stop(server, web_server)


def _handle_signals(server: Server, stopping: Event, options: Options) -> None:
    """Have signals stop the server (SIGTERM, SIGINT), drain it (SIGUSR1) and change the log's level (SIGUSR2).

    SIGHUP means that the terminal is closed, if there is one, and stops it then; else somebody expects a new log or
    new options, of which there are none. Whoever started it may have it ignored, as nohup(1) does.
    """
    gevent.signal_handler(signal.SIGTERM, stopping.set)
    gevent.signal_handler(signal.SIGINT, stopping.set)
    gevent.signal_handler(signal.SIGUSR1, server.drain)
    gevent.signal_handler(signal.SIGUSR2, logs.Verbosity(options.log_level).toggle)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        has_terminal = sys.stdin is not None and sys.stdin.isatty()
        gevent.signal_handler(signal.SIGHUP, stopping.set if has_terminal else _note_hangup)


def _note_hangup() -> None:
    log.info("SIGHUP is ignored: there is no log file to open anew, and new options need a restart")


def _web_options(options: Options, where: str) -> WebOptions:
    """What concerns the dashboard, of a queue that listens at *where*."""
    return WebOptions(
        user=options.web_user,
        password=options.web_password,
        viewer_password=options.viewer_password,
        api_token=options.api_token,
        api_viewer_token=options.api_viewer_token,
        metrics_token=options.metrics_token,
        is_read_only=options.read_only,
        hides_bodies=options.hide_bodies,
        hosts=[options.web_host],
        url_prefix=options.url_prefix,
        trusted_proxies=options.trusted_proxies,
        directory=options.binlog_dir,
        beanstalk=where,
    )


def _with_password(options: Options) -> Options:
    """Return *options* with the password that is in a file, if one is; raise StartError if it cannot be had."""
    if options.web_password_file is None or not options.web_enabled:
        return options
    where = f"{options.named('web_password_file')} {options.web_password_file}"
    try:
        with Path(options.web_password_file).open("rb") as file:
            password = file.readline(LONGEST_PASSWORD + 2).rstrip(b"\r\n").decode()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        message = f"{where}: {reason}; it must be a file with the password as its first line"
        raise StartError(message, EXIT_USAGE) from error
    if not 0 < len(password) <= LONGEST_PASSWORD:
        raise StartError(f"{where}: its first line must be the password, of 1 to {LONGEST_PASSWORD} bytes", EXIT_USAGE)
    refuse_equal_passwords(options, password)
    return replace(options, web_password=password)


def _queue(options: Options, clock: Clock) -> tuple[Broker, Committer | None]:
    """The broker, with the jobs of the journal if there is one, and the committer of that."""
    facts = server_facts(started_at=clock())
    if options.binlog_dir is None:
        return Broker(facts, NullJournal(options.binlog_max_size), options.max_job_size), None
    files = Directory(options.binlog_dir)
    binlog = Binlog(files, options.binlog_max_size, options.sync_interval_ns, os.urandom)
    broker = Broker(facts, binlog, options.max_job_size)
    recover(files, broker, binlog, clock(), is_strict=options.strict_recovery)
    return broker, Committer(binlog)


def _stop(server: Server, web_server: WSGIServer | None) -> None:
    """Let nobody in any more, then finish what is in hand."""
    log.info("stopping: no new connections, what is in hand is finished")
    if web_server is not None:
        web_server.close()
        web_server.application.extensions["live"].stop()
        web_server.application.extensions["leases"].stop()
    server.stop()
    if web_server is not None:
        web_server.stop(timeout=WEB_STOP_TIMEOUT)
        web_server.application.extensions["audit"].flush()
    log.info("stopped")


def _web_server(app: Flask, web_listener: socket.socket, options: Options) -> WSGIServer:
    """Return an HTTP server of *app*, not started."""
    return WSGIServer(
        web_listener,
        app,
        log=None,  # logs.RequestHandler logs requests
        error_log=logs.web_errors,
        handler_class=logs.RequestHandler,
        environ={"SERVER_NAME": options.web_host},  # else gevent asks the DNS for one
    )


def _announce(options: Options, listener: socket.socket, web_listener: socket.socket | None) -> None:
    """Say version, where both listen, and whether jobs survive a restart: in the first lines, or in one of the log."""
    where = f"http://{describe(web_listener)}{options.url_prefix}/" if web_listener is not None else "off (--no-web)"
    facts = {"beanstalk": describe(listener), "dashboard": where, "jobs": _survival(options)}
    if options.log_format == "json":
        log.info("serving", extra={"version": __version__, "pid": os.getpid(), **facts})
        return
    print(f"{PROGRAM} {__version__}, process {os.getpid()}")
    print(f"beanstalk protocol: {facts['beanstalk']}")
    print(f"dashboard: {facts['dashboard']}")
    print(f"jobs: {facts['jobs']}", flush=True)


def _survival(options: Options) -> str:
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
