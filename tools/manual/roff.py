"""Functions that return parts of a manual page in roff; see man(7)."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable


def page(name: str, summary: str, version: str, day: dt.date, sections: Iterable[tuple[str, str]]) -> str:
    """Return the page of the command *name*; *sections* have a title and a body in roff."""
    head = f'.TH {name.upper()} 1 {day} "{name} {escape(version)}"\n'
    first = f".SH NAME\n{name} \\- {escape(summary)}\n"
    return head + first + "".join(f".SH {title}\n{body}" for title, body in sections)


def escape(text: str) -> str:
    """Return *text* so that roff prints it unchanged."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"(?m)^([.'])", r"\\&\1", text)


def paragraphs(text: str) -> str:
    """Return *text* as filled paragraphs; a blank line separates two. Code in backquotes is bold."""
    parts = [" ".join(part.split()) for part in text.strip().split("\n\n")]
    return "".join(f".PP\n{_with_code(part)}\n" for part in parts)


def literal(text: str) -> str:
    """Return *text* with its line ends and spaces."""
    return f".PP\n.nf\n{escape(text.rstrip())}\n.fi\n"


def entry(term: str, text: str) -> str:
    """Return an entry of a list: *term* in bold, and *text* indented below it."""
    return f".TP\n.B {escape(term)}\n{_with_code(' '.join(text.split()))}\n"


def subsection(title: str, body: str) -> str:
    """Return a part of a section."""
    return f".SS {escape(title)}\n{body}"


def _with_code(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"\\fB\1\\fR", escape(text))
