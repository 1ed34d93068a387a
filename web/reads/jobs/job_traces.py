r"""The stack trace of a failed job: lines of text in its body. Pure.

The trace comes from the message of a job framework (see frameworks). Otherwise it is the first of TRACE_FIELDS that is
not empty, in the outermost object or in the object that is its error: a text, or an array of lines. Otherwise it is
the error itself, if that has several lines.

Some workers escape a text twice. So if a text has no line break, each literal `\n` in it is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from greenstalk_server.web.reads.jobs.frameworks import decode_root
from greenstalk_server.web.reads.jobs.job_errors import ERROR_FIELDS
from greenstalk_server.web.reads.jobs.json_fields import Root, parse_body

MAX_LINES: Final = 200
"""Maximum lines of a trace; further ones are left out."""

MAX_LINE: Final = 500
"""Maximum characters of a line; the rest is left out."""

TRACE_FIELDS: Final = ("trace", "traceback", "backtrace", "stack_trace", "stacktrace", "stackTrace", "stack")


def trace_lines(body: bytes) -> list[str]:
    """Return the lines of the stack trace in *body*; empty if there is none."""
    text = _trace(parse_body(body))
    if "\n" not in text:
        text = text.replace("\\r\\n", "\n").replace("\\n", "\n").replace("\\t", "\t")
    lines = [line[:MAX_LINE].rstrip() for line in text.strip("\r\n").splitlines()[:MAX_LINES]]
    return lines if any(lines) else []


def _trace(root: Root | None) -> str:
    if not isinstance(root, dict):
        return ""
    message = decode_root(root)
    if message is not None and message.trace:
        return message.trace
    errors = [root.get(name) for name in ERROR_FIELDS]
    for place in (root, *errors):
        if isinstance(place, Mapping) and (found := next(_texts(place), "")):
            return found
    texts = (error for error in errors if isinstance(error, str))
    return next((error for error in texts if "\n" in error.strip() or "\\n" in error), "")


def _texts(place: Mapping[str, object]) -> Iterator[str]:
    """Yield the texts of TRACE_FIELDS in *place* that are not empty."""
    for name in TRACE_FIELDS:
        value = place.get(name)
        if isinstance(value, list):
            value = "\n".join(one for one in value[:MAX_LINES] if isinstance(one, str))
        if isinstance(value, str) and value.strip():
            yield value
