"""The formats of the log: text for people, or JSON for programs. Imports no gevent."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any, Final

_STANDARD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every log record has; all others come from `extra`."""


def add_handler(level: str, log_format: str) -> None:
    """Log events of *level* and above to stderr in *log_format*, one of LOG_FORMATS of config. Call once."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(True)


def add_field(name: str, value: object) -> None:
    """Add the field *name* to all later events of this process."""
    make = logging.getLogRecordFactory()

    def make_with_field(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        setattr(record, name, value)
        return record

    logging.setLogRecordFactory(make_with_field)


class TextFormatter(logging.Formatter):
    """Text for people: `2026-01-31 12:00:00.000 INFO message field=value`, in local time; tracebacks are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return *record* as one line, followed by the lines of its traceback."""
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        fields = "".join([f" {name}={_quote(value)}" for name, value in _fields(record).items()])
        line = f"{clock}.{int(record.msecs):03} {record.levelname} {_escape(record.getMessage())}{fields}"
        return "\n    ".join([line, *map(_escape, _traceback(record).splitlines())])


class JsonFormatter(logging.Formatter):
    """JSON for programs: an object with time (ISO 8601, UTC), level, logger, message, the fields, and exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return *record* as one line of ASCII."""
        at = datetime.fromtimestamp(record.created, UTC)
        event = {
            "time": at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        event = event | _fields(record) | event  # keep this order; a field cannot replace one of these
        if traceback := _traceback(record):
            event["exception"] = traceback
        return json.dumps(event, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}


def _traceback(record: logging.LogRecord) -> str:
    """Return the traceback of *record*; empty if it has none."""
    if not record.exc_info:
        return record.stack_info or ""
    return logging.Formatter.formatException(_PLAIN, record.exc_info)


_PLAIN: Final = logging.Formatter()


def _quote(value: object) -> str:
    """Return *value* as text, with quotes if its end would not be clear without them."""
    text = str(value)
    return text if text.isprintable() and text and not set(text) & set(" ='\"") else repr(text)


def _escape(text: str) -> str:
    """Return *text* with each character that is not printable as a Python escape sequence."""
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() else each.encode("unicode_escape").decode() for each in text])
