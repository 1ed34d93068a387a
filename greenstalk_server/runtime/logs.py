"""The log, on stderr: one line an event, as text for people or as a JSON object for programs.

Whoever logs uses the standard library's loggers, and says what an event is about by `extra`: `connection`, `job`,
`address` and such become fields. A message and its fields may hold what a client has sent: it can neither begin a
line of its own nor reach a terminal as a control sequence.

Levels: debug is what one connection, request or job does; info is what the server does; a warning is what may not
be as meant, or has been overcome; an error is what somebody has to see to.

What others would print goes the same way: exceptions that nobody caught, in the main thread, another one or a greenlet,
and what gevent's HTTP server has to say.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import HTTPException
from types import TracebackType
from typing import Any, Final

from gevent import get_hub
from gevent.pywsgi import LoggingLogAdapter, WSGIHandler

log = logging.getLogger(__name__)

_web_log = logging.getLogger("web")

web_errors: Final = LoggingLogAdapter(_web_log, logging.ERROR)
"""What gevent's HTTP server hands to the dashboard to write errors to."""

BAD_REQUEST: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

_NO_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes of a record that no `extra` gave it."""

LONGEST_CONTEXT: Final = 200
"""Characters of what gevent says of where an exception came from, or of what is wrong with a request."""


def install(level: str, log_format: str) -> None:
    """Log to stderr, from *level* on, as *log_format* says; both as options.py has them. Call once."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    sys.excepthook = _on_exception
    threading.excepthook = _on_thread_exception
    get_hub().print_exception = _on_greenlet_exception


class Verbosity:
    """The level of the log, which a signal changes while the server runs."""

    def __init__(self, level: str) -> None:
        """*level* is the one that was asked for at the start."""
        self._usual: int = logging.getLevelNamesMapping()[level.upper()]

    def toggle(self) -> None:
        """Log from debug on, or again as at the start, which is info if that was debug; the log says which."""
        root = logging.getLogger()
        usual = self._usual if self._usual > logging.DEBUG else logging.INFO
        level = logging.DEBUG if root.level > logging.DEBUG else usual
        root.setLevel(min(level, logging.INFO))  # or nobody would read it
        log.info("the log level is %s now (SIGUSR2)", logging.getLevelName(level).lower())
        root.setLevel(level)


class TextFormatter(logging.Formatter):
    """For people: `2026-01-31 12:00:00.000 INFO message field=value`, in local time; a traceback below, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return *record* as one line, or one and those of its traceback."""
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        fields = "".join([f" {name}={_shown(value)}" for name, value in _fields(record).items()])
        line = f"{clock}.{int(record.msecs):03} {record.levelname} {_escaped(record.getMessage())}{fields}"
        return "\n    ".join([line, *map(_escaped, _traceback(record).splitlines())])


class JsonFormatter(logging.Formatter):
    """For programs: an object with time (ISO 8601, UTC), level, logger, message, the fields, and exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return *record* as one line of ASCII."""
        at = datetime.fromtimestamp(record.created, UTC)
        event = {
            "time": at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        event = event | _fields(record) | event  # in this order, and no field in the place of one of these
        if traceback := _traceback(record):
            event["exception"] = traceback
        return json.dumps(event, default=str)


class RequestHandler(WSGIHandler):  # type: ignore[misc]
    """gevent's, but for what it logs: requests only at debug, with fields; and no client's mistake as our error."""

    environ: Any

    def log_request(self) -> None:
        environ, self.environ = self.environ, None  # the next on this connection may be no request at all
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
        """Note that what came is no request, or broke off; gevent would print a traceback of some of that."""
        is_theirs = isinstance(error, ValueError | OSError | HTTPException)
        level = logging.DEBUG if is_theirs else logging.ERROR
        reason = str(getattr(error, "formatted_message", error))[:LONGEST_CONTEXT]
        facts = {"address": self.client_address[0] if isinstance(self.client_address, tuple) else ""}
        _web_log.log(level, "no request: %s", reason, extra=facts, exc_info=None if is_theirs else error)
        return "400", BAD_REQUEST


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _NO_FIELDS}


def _traceback(record: logging.LogRecord) -> str:
    """Return the traceback that goes with *record*; empty if there is none."""
    if not record.exc_info:
        return record.stack_info or ""
    return logging.Formatter.formatException(_PLAIN, record.exc_info)


_PLAIN: Final = logging.Formatter()


def _shown(value: object) -> str:
    """Return *value* so that one can see where it ends."""
    text = str(value)
    return text if text.isprintable() and text and not set(text) & set(" ='\"") else repr(text)


def _escaped(text: str) -> str:
    """Return *text* with every character that is not one to be seen written as Python would."""
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() else each.encode("unicode_escape").decode() for each in text])


# What nobody caught


def _on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    log.critical("internal error: the server ends", exc_info=(kind, error, trace))


def _on_thread_exception(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        log.error("internal error in a thread", exc_info=(args.exc_type, args.exc_value, args.exc_traceback))


def _on_greenlet_exception(
    context: object, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Stand in for Hub.print_exception; *context* is a greenlet, a callback, or the environment of a request."""
    log.error("internal error in %s", _where(context), exc_info=(kind, error, trace))


def _where(context: object) -> str:
    if isinstance(context, Mapping):
        return f"the answer to {context.get('REQUEST_METHOD')} {context.get('PATH_INFO')}"
    return str(context)[:LONGEST_CONTEXT]
