"""Stack traces of failed jobs: found in a body, and split into lines."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.web.reads.jobs.job_traces import MAX_LINE, MAX_LINES, trace_lines

from .test_body import JSON_VALUES
from .test_frameworks import body_of

LINES = ["RouteError: no route", "  at send (mail.js:3)", "  at main (app.js:9)"]
TRACE = "\n".join(LINES)


@pytest.mark.parametrize(
    "body",
    [
        {"error": "no route", "trace": TRACE},
        {"error": "no route", "stack": f"{TRACE}\n"},
        {"error": "no route", "backtrace": LINES},
        {"error": {"message": "no route", "stack": TRACE}},
        {"exception": {"class": "RouteError", "backtrace": LINES}},
        {"error": TRACE},
        {"error": "no route", "trace": "", "traceback": TRACE.replace("\n", "\r\n")},
        {"error": "no route", "trace": TRACE.replace("\n", "\\n")},
        {"error": TRACE.replace("\n", "\\r\\n")},
    ],
)
def test_trace_is_found_and_split_into_lines(body: object) -> None:
    assert trace_lines(json.dumps(body).encode()) == LINES


def test_trace_of_a_framework() -> None:
    expected = ["#0 /srv/shop/make_symfony.php(71): charge()", "#1 {main}"]
    assert trace_lines(body_of("symfony-php-failed")) == trace_lines(body_of("symfony-json-failed")) == expected


def test_literal_backslash_stays_in_a_text_with_line_breaks() -> None:
    assert trace_lines(json.dumps({"trace": "in C:\\new\nin main"}).encode()) == ["in C:\\new", "in main"]


@pytest.mark.parametrize("body", [b"", b"Traceback", b"[1]", b'{"error":"no route"}', b'{"trace":7}', b'{"trace":" "}'])
def test_other_bodies_have_no_trace(body: bytes) -> None:
    assert trace_lines(body) == []


@given(st.binary() | JSON_VALUES.map(lambda value: json.dumps({"error": value, "trace": value}).encode()))
def test_any_body_has_a_bounded_trace(body: bytes) -> None:
    lines = trace_lines(body)
    assert len(lines) <= MAX_LINES
    assert all(len(line) <= MAX_LINE and "\n" not in line for line in lines)
