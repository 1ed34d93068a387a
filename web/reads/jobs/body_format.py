"""Detection and display of a body's format: JSON, text, gzip, zlib, base64, or binary, shown as a hex dump.

Nothing is ever unpickled or executed. MAX_PREVIEW and MAX_JSON_TOKENS bound the work for any body to a few
milliseconds.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import json
import re
import zlib
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from greenstalk_server.web.framework import text
from greenstalk_server.web.reads.jobs.json_folds import Node, fold_json

MAX_PREVIEW: Final = 64 * 1024
"""Maximum bytes shown of a body, or of its unpacked content."""

MAX_PACKED_PREVIEW: Final = 4096
"""Maximum bytes shown of a packed body as it is. The page shows these bytes after the unpacked content."""

MAX_ROW_PREVIEW: Final = 120
"""Maximum bytes of a body shown in a list."""

MAX_JSON_TOKENS: Final = 8000
"""Maximum separators in a JSON text. Indenting that many takes about 4 ms; text with more is shown unchanged."""

MAX_INDENT: Final = 16
"""Maximum levels of indentation. Deeper levels stay at this one, since a body of only brackets would exhaust memory."""

MAX_NESTING: Final = 3
"""Maximum nested encodings that are unpacked, such as JSON in gzip in base64."""

GZIP: Final = b"\x1f\x8b\x08"
ZLIB_FIRST: Final = 0x78
"""First byte of zlib data with a 32 KiB window. The first two bytes, a big-endian number, are a multiple of 31."""

_BASE64: Final = re.compile(rb"[A-Za-z0-9+/\r\n]{8,}+={0,2}\s*")
_CONTROL: Final = bytes([*range(9), 11, *range(14, 27), *range(28, 32), 127])
_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
_ASCII: Final = bytes(byte if 32 <= byte < 127 else ord(".") for byte in range(256))


REORDERED_NOTE: Final = "Characters that change the direction of text are spelled out, such as ⟨U+202E⟩."


@dataclass(frozen=True, slots=True)
class Pane:
    """One way to show a body: a title, the text, and a note; *nodes*: the parts of indented JSON, or none."""

    title: str
    text: str
    note: str = ""
    nodes: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class BodyView:
    """A body for display: *kind* in words, such as `gzip, containing JSON`, and panes, the most useful first."""

    kind: str
    panes: tuple[Pane, ...]


def describe_body(body: bytes) -> BodyView:
    """Detect the format of *body*, and format it for display."""
    if not body:
        return BodyView("empty", ())
    kinds, panes = _panes(body, MAX_NESTING)
    return BodyView(", containing ".join(kinds), tuple(map(_with_note, panes)))


def row_preview(body: bytes) -> str:
    """Return the beginning of *body* on one line."""
    part = body[:MAX_ROW_PREVIEW]
    found = decode_text(part, is_cut=len(part) < len(body))
    if found is None:
        return f"0x{part[:24].hex(' ')}{' …' if len(body) > 24 else ''}"
    return text.spelled(" ".join(found.split())) + ("…" if len(part) < len(body) else "")


def _with_note(pane: Pane) -> Pane:
    """Return *pane*, with a note if the page spells out characters in it (see text.spelled)."""
    return replace(pane, note=f"{pane.note} {REORDERED_NOTE}".strip()) if text.is_reordered(pane.text) else pane


def _panes(body: bytes, nesting: int) -> tuple[list[str], list[Pane]]:
    """Return the formats of *body*, the outermost first, and its panes. At most *nesting* encodings are unpacked."""
    part = body[:MAX_PREVIEW]
    is_cut = len(part) < len(body)
    note = f"The first {text.size(MAX_PREVIEW)} are shown. Download the body to get all of it." if is_cut else ""
    unpacked = _unpacked(body) if nesting else None
    if unpacked is not None:
        kind, inner = unpacked
        kinds, panes = _panes(inner, nesting - 1)
        found = decode_text(body[:MAX_PACKED_PREVIEW], is_cut=True)
        raw = found if found is not None else _hex(body[:MAX_PACKED_PREVIEW])
        is_packed_cut = len(body) > MAX_PACKED_PREVIEW
        note = f"The first {text.size(MAX_PACKED_PREVIEW)} are shown." if is_packed_cut else ""
        return [kind, *kinds], [*panes, Pane("Raw", raw, note)]
    found = decode_text(part, is_cut)
    if found is None:
        return ["binary"], [Pane("Hexadecimal", _hex(part), note)]
    if not found.lstrip().startswith(("{", "[")) or is_cut:
        return ["text"], [Pane("Text", found, note)]
    if sum([found.count(mark) for mark in ",:[{"]) > MAX_JSON_TOKENS:
        return ["text"], [Pane("Text", found, "It looks like JSON, but has too many values to indent.")]
    if not _is_json(found):
        return ["text"], [Pane("Text", found)]
    return ["JSON"], [json_pane("JSON", indent_json(found)), Pane("Raw", found)]


def json_pane(title: str, indented: str) -> Pane:
    """Return a pane with the text *indented*, in which long objects and arrays can be folded."""
    return Pane(title, indented, nodes=fold_json(indented))


def _unpacked(body: bytes) -> tuple[str, bytes] | None:
    """Return the encoding of *body* and the beginning of its content, or None if it is not packed."""
    inflated = _inflated(body)
    if inflated is not None:
        return inflated
    if len(body) > 2 * MAX_PREVIEW or not _BASE64.fullmatch(body):
        return None
    try:
        inner = base64.b64decode(b"".join(body.split()), validate=True)
    except binascii.Error:
        return None
    # Many plain words are valid base64. Accept it only if the content is packed or text, or if padding makes it likely.
    if _inflated(inner) or decode_text(inner, is_cut=False) is not None or (b"=" in body and len(body) >= 64):
        return "base64", inner
    return None


def _inflated(body: bytes) -> tuple[str, bytes] | None:
    """Return `gzip` or `zlib` and the beginning of the content of *body*, or None."""
    for kind, is_candidate, window in (("gzip", body.startswith(GZIP), 31), ("zlib", _is_zlib(body), 15)):
        if is_candidate:
            try:
                inner = zlib.decompressobj(wbits=window).decompress(body[: 4 * MAX_PREVIEW], MAX_PREVIEW + 1)
            except zlib.error:
                return None
            return (kind, inner) if inner else None
    return None


def _is_zlib(body: bytes) -> bool:
    return len(body) > 2 and body[0] == ZLIB_FIRST and int.from_bytes(body[:2]) % 31 == 0


def decode_text(part: bytes, is_cut: bool) -> str | None:
    """Return *part* as printable UTF-8 text, or None. If *is_cut*, its last character may be incomplete."""
    if len(part.translate(None, _CONTROL)) < len(part):
        return None
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(part, final=not is_cut)
    except UnicodeDecodeError:
        return None


def _is_json(source: str) -> bool:
    try:
        json.loads(source, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


def indented_json(source: str) -> str | None:
    """Return *source*, a JSON object or array, indented; None if it is neither, too long, or has too many values."""
    is_small = len(source) <= MAX_PREVIEW and sum([source.count(mark) for mark in ",:[{"]) <= MAX_JSON_TOKENS
    return indent_json(source) if is_small and source.lstrip().startswith(("{", "[")) and _is_json(source) else None


def indent_json(source: str) -> str:
    """Return the JSON text *source* with each value on its own line. Tokens, such as numbers, are unchanged."""
    out: list[str] = []
    depth = 0
    for piece, following in pairwise([*_TOKEN.findall(source), ""]):
        if piece in ("[", "{"):
            depth += 1
            out.append(piece if following in ("]", "}") else piece + _line(depth))
        elif piece in ("]", "}"):
            depth -= 1
            out.append(piece)
        elif piece == ",":
            out.append(piece + _line(depth))
        elif piece == ":":
            out.append(": ")
        else:
            out.append(piece)
        if following in ("]", "}") and piece not in ("[", "{"):
            out.append(_line(depth - 1))
    return "".join(out)


def _line(depth: int) -> str:
    return "\n" + "  " * min(depth, MAX_INDENT)


def _hex(part: bytes) -> str:
    """Return a hex dump of *part*: offset, 16 bytes, and the same in ASCII."""
    pairs, letters = part.hex(" "), part.translate(_ASCII).decode()
    lines = [f"{at:05x}  {pairs[3 * at : 3 * at + 47]:<47}  {letters[at : at + 16]}" for at in range(0, len(part), 16)]
    return "\n".join(lines)
