"""Format detection and display of bodies, with bounded time and memory for any body."""

from __future__ import annotations

import base64
import gzip
import json
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.web.reads.jobs.body_format import MAX_PREVIEW, describe_body, indent_json, row_preview

BIG = 123456789012345678901234567890

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def gzipped(body: bytes) -> bytes:
    """Return *body* in gzip format, with the same bytes at any time of day."""
    return gzip.compress(body, mtime=0)


@pytest.mark.parametrize(
    ("body", "kind", "first"),
    [
        (b"hello", "text", "hello"),
        ("naïve ☃\n\ttab".encode(), "text", "naïve ☃\n\ttab"),
        (b'{"a":1}', "JSON", '{\n  "a": 1\n}'),
        (b" [ ] ", "JSON", "[]"),
        (b'{"a":{},"b":[1]}', "JSON", '{\n  "a": {},\n  "b": [\n    1\n  ]\n}'),
        (b'["\\"[,]{}:\\\\"]', "JSON", '[\n  "\\"[,]{}:\\\\"\n]'),
        (b"{not json}", "text", "{not json}"),
        (b'{"a":1}}', "text", '{"a":1}}'),
        (b"deadbeef", "text", "deadbeef"),
        (b"averylongwordwithoutanyspace", "text", "averylongwordwithoutanyspace"),
        (base64.b64encode(b'{"a": 1}'), "base64, containing JSON", '{\n  "a": 1\n}'),
        (base64.encodebytes(b"some lines of text " * 9), "base64, containing text", "some lines of text " * 9),
        (gzipped(b"[1]"), "gzip, containing JSON", "[\n  1\n]"),
        (base64.b64encode(gzipped(b"[1]")), "base64, containing gzip, containing JSON", "[\n  1\n]"),
        (b"\x1f\x8b\x08broken", "binary", "00000  1f 8b 08 62 72 6f 6b 65 6e                       ...broken"),
        (b"a\0b", "binary", "00000  61 00 62                                         a.b"),
        (b"\xff\xfe", "binary", "00000  ff fe                                            .."),
        (b"\x80\x04\x95K\x00.", "binary", "00000  80 04 95 4b 00 2e                                ...K.."),
    ],
)  # fmt: skip
def test_body_format_is_detected(body: bytes, kind: str, first: str) -> None:
    found = describe_body(body)
    assert (found.kind, found.panes[0].text) == (kind, first)


def test_empty_body() -> None:
    assert (describe_body(b"").kind, describe_body(b"").panes) == ("empty", ())


def test_numbers_keep_their_spelling() -> None:
    source = f'{{"id":{BIG},"x":1.10,"y":1E400,"id":2,"long":{"9" * 5000}}}'
    shown = describe_body(source.encode())
    assert shown.kind == "JSON"
    for piece in (str(BIG), "1.10", "1E400", "9" * 5000):
        assert piece in shown.panes[0].text
    assert shown.panes[0].text.count('"id"') == 2
    assert shown.panes[-1].text == source


@given(JSON_VALUES)
def test_indentation_changes_only_whitespace(value: object) -> None:
    for source in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=7)):
        assert json.loads(indent_json(source)) == value


@given(st.binary(max_size=300))
def test_any_body_can_be_shown(body: bytes) -> None:
    assert describe_body(body).panes or not body
    assert "\n" not in row_preview(body)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 65535,
        b"[" * 30000 + b"]" * 30000,
        b"[" * 900 + b"1," * 3000 + b"1" + b"]" * 900,
        b'{"a":' * 13000,
        b"[" + b"1," * 32000 + b"1]",
        b'"' * 65535,
        b"[" + b'"\\"' * 16000,
        b'["' + b"\\" * 65000,
        b"{" + b" " * 65000 + b"x",
        bytes(range(256)) * 256,
        "☃".encode() * 40000,
        b"A" * 65536,
        gzipped(b"\0" * 5_000_000),
        gzipped(gzipped(gzipped(gzipped(b"x" * 100_000)))),
        base64.b64encode(bytes(60000)),
        b"\0" * 5_000_000,
        b"x" * 5_000_000,
        b"\n" * 2 * MAX_PREVIEW,
        b"\n" * (2 * MAX_PREVIEW - 1) + b"!",
        b"A" * MAX_PREVIEW + b"\n" * (MAX_PREVIEW - 1) + b"!",
        b"A" * MAX_PREVIEW + b"==" + b" " * (MAX_PREVIEW - 3) + b"!",
    ],
    ids=lambda body: repr(body[:12]),
)
def test_hostile_body_takes_bounded_time_and_memory(body: bytes) -> None:
    began = time.process_time()
    tracemalloc.start()
    shown = describe_body(body)
    row_preview(body)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 64 * MAX_PREVIEW
    assert time.process_time() - began < 10  # takes a few ms; quadratic time would take minutes
    assert sum(len(pane.text) for pane in shown.panes) < 12 * MAX_PREVIEW


def test_truncation_is_noted_and_splits_no_character() -> None:
    shown = describe_body(b"x" + "☃".encode() * 30000)
    assert shown.kind == "text"
    assert set(shown.panes[0].text) == {"x", "☃"}
    assert shown.panes[0].note == "The first 65,536 bytes are shown. Download the body to get all of it."
    assert describe_body(b"x" * MAX_PREVIEW).panes[0].note == ""


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"", ""),
        (b" a\n\tb ", "a b"),
        (b"y" * 500, "y" * 120 + "…"),
        (b"\0\xff", "0x00 ff"),
        (b"\0" * 99, "0x" + " ".join(["00"] * 24) + " …"),
        ("é".encode() * 100, "é" * 60 + "…"),
        (b"x" + "é".encode() * 100, "x" + "é" * 59 + "…"),
    ],
)
def test_preview_in_a_row(body: bytes, shown: str) -> None:
    assert row_preview(body) == shown
