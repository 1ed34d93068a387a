"""The program `greenstalk-server`: runs the server or a command, and returns the exit code.

Imports neither the server nor gevent before it knows that it needs them: the parent of several processes stays small.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from greenstalk_server.cluster.placement import Placement
from greenstalk_server.config.command_line import parse
from greenstalk_server.config.options import PROGRAM, Options
from greenstalk_server.runtime import log_format
from greenstalk_server.runtime.exit_codes import EXIT_OK, StartError

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program with *argv*, by default the process's own arguments; return its exit code."""
    placement = Placement.take(os.environ)
    try:
        command = parse(sys.argv[1:] if argv is None else argv, os.environ)
        if not isinstance(command, Options):
            from greenstalk_server import commands  # noqa: PLC0415  imports gevent

            return commands.run_and_flush(command)
        if placement is None and command.processes > 1:
            return _run_parent(command)
        return _run_server(command, placement)
    except StartError as error:
        if placement is None:
            print(f"{PROGRAM}: {error}", file=sys.stderr)
        else:
            placement.report_failure(str(error))
        return error.exit_code


def _run_parent(options: Options) -> int:
    """Run the parent of several processes; return its exit code; raise StartError."""
    from greenstalk_server.cluster import parent  # noqa: PLC0415  for this alone
    from greenstalk_server.net.listeners import listen, open_listeners  # noqa: PLC0415  the parent has no other sockets

    log_format.add_handler(options.log_level, options.log_format)
    try:
        listeners = list(open_listeners(options, os.environ))
        for listener in listeners:
            listen(listener.sock)
        return parent.run(options, listeners, os.environ)
    except StartError as error:
        return _report_failed_start(error, options)


def _run_server(options: Options, placement: Placement | None) -> int:
    """Run the server, or one of several processes; return its exit code; raise StartError."""
    from greenstalk_server import daemon  # noqa: PLC0415  imports gevent and the server
    from greenstalk_server.runtime import logs  # noqa: PLC0415  imports gevent

    logs.install(options.log_level, options.log_format)
    if placement is not None:
        log_format.add_field(*placement.log_field)
        daemon.run(placement.share_of(options), os.environ, placement)
        return EXIT_OK
    try:
        daemon.run(options, os.environ)
    except StartError as error:
        return _report_failed_start(error, options)
    return EXIT_OK


def _report_failed_start(error: StartError, options: Options) -> int:
    """Print *error*, or log it if the log format is JSON; return its exit code."""
    if options.log_format == "json":
        log.critical("%s", error, extra={"exit_code": error.exit_code})
    else:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
    return error.exit_code
