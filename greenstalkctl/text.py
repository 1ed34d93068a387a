r"""Format untrusted bytes and text for a terminal: no part of a body reaches it as an escape sequence.

Every character that is not printable (control characters, the C1 set, marks that change the direction of text) is
escaped, as in `\x1b` or `\u202e`. Only `--raw` writes unescaped bytes.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any, Final

HIDDEN_BODY: Final = "(not shown by the server)"
"""Shown in place of a body that the server hides, or that is too large for a list."""

_WORTH_PARSING: Final = ("{", "[")


def printable(text: str, keep: str = "") -> str:
    """Return *text* with every character escaped that is neither printable nor in *keep*."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _escaped(char) for char in text)


def block(body: bytes | None) -> str:
    """Return *body* on several lines: JSON is indented, other UTF-8 is unchanged, and anything else is base64."""
    if body is None:
        return HIDDEN_BODY
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"base64: {b64encode(body).decode()}"
    return printable(_indented(text), keep="\n\t")


def line(body: bytes | None) -> str:
    """Return *body* on one line."""
    if body is None:
        return HIDDEN_BODY
    try:
        return printable(body.decode())
    except UnicodeDecodeError:
        return f"base64: {b64encode(body).decode()}"


def fields(body: bytes | None) -> dict[str, str | None]:
    """Return *body* as JSON fields: text if it is UTF-8, else base64; `encoding` says which."""
    if body is None:
        return {"body": None, "encoding": None}
    try:
        return {"body": body.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"body": b64encode(body).decode(), "encoding": "base64"}


def document(data: Any) -> str:
    """Return *data* as one line of JSON, in ASCII without control characters."""
    return json.dumps(data).replace("\x7f", "\\u007f")


def plural(count: int, noun: str = "job") -> str:
    """Return *count* with its noun, as in "3 jobs"."""
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def _indented(text: str) -> str:
    if not text.lstrip().startswith(_WORTH_PARSING):
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):  # not JSON, a number of too many digits, or nested too deeply
        return text


def _escaped(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
