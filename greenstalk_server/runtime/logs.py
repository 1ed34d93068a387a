"""The log on stderr: one line per event, as text for people or as a JSON object for programs.

Modules log with the standard library's loggers, and pass the subject of an event in `extra`: `connection`, `job`,
`address` and others become fields. A message and its fields may contain text from a client: it can neither start a new
line nor reach a terminal as a control sequence.

Levels: debug for one connection, request or job; info for the server; warning for a possible error, or a problem that
the server has overcome; error for a problem that needs the operator; critical for a failure that ends the process.

The log also has uncaught exceptions in the main thread, other threads and greenlets, and the messages of gevent's HTTP
server.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping
from http.client import HTTPException
from types import TracebackType
from typing import Any, Final

from gevent import get_hub
from gevent.pywsgi import LoggingLogAdapter, WSGIHandler

from greenstalk_server.runtime.log_format import add_handler

log = logging.getLogger(__name__)

_web_log = logging.getLogger("web")

web_errors: Final = LoggingLogAdapter(_web_log, logging.ERROR)
"""The error stream of gevent's HTTP server and of the dashboard."""

BAD_REQUEST: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

MAX_CONTEXT: Final = 200
"""Maximum characters of gevent's description of where an exception was raised, or of why a request is bad."""


def install(level: str, log_format: str) -> None:
    """Log events of *level* and above to stderr in *log_format*, one of LOG_FORMATS of config. Call once."""
    add_handler(level, log_format)
    sys.excepthook = _on_exception
    threading.excepthook = _on_thread_exception
    get_hub().print_exception = _on_greenlet_exception


class Verbosity:
    """The log level, which a signal toggles while the server runs."""

    def __init__(self, level: str) -> None:
        """Start with the option's *level*."""
        self._usual: int = logging.getLevelNamesMapping()[level.upper()]

    def toggle(self) -> None:
        """Switch to debug, or back to the initial level (to info if that was debug); log the new level."""
        root = logging.getLogger()
        usual = self._usual if self._usual > logging.DEBUG else logging.INFO
        level = logging.DEBUG if root.level > logging.DEBUG else usual
        root.setLevel(min(level, logging.INFO))  # else the next line might not be logged
        log.info("log level changed to %s (SIGUSR2)", logging.getLevelName(level).lower())
        root.setLevel(level)


class RequestHandler(WSGIHandler):  # type: ignore[misc]
    """gevent's request handler, which logs requests and errors of clients at debug level, with fields."""

    environ: Any

    def log_request(self) -> None:
        environ, self.environ = self.environ, None  # else an invalid next request would be logged as this one
        if environ is None or not _web_log.isEnabledFor(logging.DEBUG):
            return
        _web_log.debug(
            "%s %s",
            environ["REQUEST_METHOD"],
            environ["PATH_INFO"],
            extra={
                "address": environ.get("REMOTE_ADDR", ""),
                "status": self.code,
                "bytes": self.response_length,
                "seconds": round(self.time_finish - self.time_start, 6),
            },
        )

    def _handle_client_error(self, error: Exception) -> tuple[str, bytes]:
        """Log a bad or incomplete request in one line; gevent prints a traceback for some of them."""
        is_client_fault = isinstance(error, ValueError | OSError | HTTPException)
        level = logging.DEBUG if is_client_fault else logging.ERROR
        reason = str(getattr(error, "formatted_message", error))[:MAX_CONTEXT]
        facts = {"address": self.client_address[0] if isinstance(self.client_address, tuple) else ""}
        _web_log.log(level, "bad request: %s", reason, extra=facts, exc_info=None if is_client_fault else error)
        return "400", BAD_REQUEST


# Uncaught exceptions


def _on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    log.critical("internal error: the server exits", exc_info=(kind, error, trace))


def _on_thread_exception(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        log.error("internal error in a thread", exc_info=(args.exc_type, args.exc_value, args.exc_traceback))


def _on_greenlet_exception(
    context: object, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Replace Hub.print_exception; *context* is a greenlet, a callback, or the environment of a request."""
    log.error("internal error in %s", _where(context), exc_info=(kind, error, trace))


def _where(context: object) -> str:
    if isinstance(context, Mapping):
        return f"the answer to {context.get('REQUEST_METHOD')} {context.get('PATH_INFO')}"
    return str(context)[:MAX_CONTEXT]
