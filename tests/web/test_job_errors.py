"""Errors of failed jobs: found in a body, and normalised so that equal errors are grouped."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from greenstalk_server.web.reads.jobs.job_errors import MAX_ERROR, MAX_RAW, error_of, error_text, normalized
from greenstalk_server.web.reads.jobs.json_fields import MAX_PARSED, parse_path

from .test_body import JSON_VALUES
from .test_frameworks import body_of

TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 3, in run\n    go()\nValueError: no route\n'


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"error": "no route"}, "no route"),
        ({"kind": "mail", "error": {"message": "no route"}}, "no route"),
        ({"error": {"class": "RouteError"}}, "RouteError"),
        ({"error": {"class": "RouteError", "message": "no route"}}, "RouteError: no route"),
        ({"exception": {"type": "RouteError", "msg": "no route"}}, "RouteError: no route"),
        ({"error": {"name": "Error", "detail": "no route", "stack": "…"}}, "Error: no route"),
        ({"error_class": "RouteError", "error_message": "no route"}, "RouteError: no route"),
        ({"message": "no route", "class": "RouteError"}, "RouteError: no route"),
        ({"message": "no route", "exception": "RouteError"}, "RouteError: no route"),
        ({"message": "hello", "error": {"type": "RouteError", "message": "no route"}}, "RouteError: no route"),
        ({"message": "hello", "error": "no route"}, "no route"),
        ({"message": "no route", "error": {"type": "RouteError"}}, "RouteError: no route"),
        ({"message": "b", "error_message": "a"}, "a"),
        ({"class": "RouteError"}, "RouteError"),
        ({"error": "", "exception": None, "message": "no route"}, "no route"),
        ({"error": True, "message": "no route"}, "no route"),
        ({"error": ["no route", "again"]}, "no route"),
        ({"error": 404}, "404"),
        ({"exception": "b", "error": "a", "class": "c"}, "a"),
        ({"error": TRACEBACK}, "ValueError: no route"),
        ({"error": "RouteError: no route\n#0 index.php(3)\n#1 {main}"}, "RouteError: no route"),
        ({"error": "  no \t route  "}, "no route"),
        ({"error": {}}, ""),
        ({"kind": "mail"}, ""),
        ([{"error": "no route"}], ""),
        ("error", ""),
    ],
)
def test_error_is_found_in_a_documented_order(body: object, error: str) -> None:
    assert error_text(json.dumps(body).encode()) == error


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("symfony-json-failed", 'RuntimeException: HTTP 503 from "upstream"'),
        ("symfony-php-failed", 'RuntimeException: HTTP 503 from "upstream"'),
        ("activejob-retried", "UpstreamError"),
        ("activejob", ""),
        ("backburner", ""),
        ("laravel", ""),
    ],
)
def test_error_of_a_framework_is_its_exception_and_not_its_class(name: str, error: str) -> None:
    assert error_text(body_of(name)) == error


def test_worker_may_add_the_error_to_the_message_of_a_framework() -> None:
    body = json.loads(body_of("backburner")) | {"error": "RouteError", "message": "no route"}
    assert error_text(json.dumps(body).encode()) == "RouteError: no route"


@pytest.mark.parametrize(
    ("path", "error"),
    [("job.last", "Late: no answer"), ("job.tries.why", "first"), ("job.none", ""), ("message", "greeting")],
)
def test_principal_names_the_field_of_the_error(path: str, error: str) -> None:
    body = {
        "job": {"last": {"type": "Late", "message": "no answer"}, "tries": [{"why": "first"}, {"why": "second"}]},
        "message": "greeting",
    }
    assert error_text(json.dumps(body).encode(), parse_path(path)) == error


@pytest.mark.parametrize(
    "body", [b"", b"error: no route", b"\xff\0", b"[" * MAX_PARSED, b'{"error":"' + b"x" * MAX_PARSED]
)
def test_other_bodies_have_no_error(body: bytes) -> None:
    assert error_text(body) == error_of(body) == ""


@pytest.mark.parametrize(
    ("error", "folded"),
    [
        ("no route", "no route"),
        ("job 17 of 'mail' timed out after 30.5s", "job # of '…' timed out after #s"),
        ("user_42 not found", "user_# not found"),
        ("connect to 10.0.0.1:8080 failed at 2026-11-23T10:00:00Z", "connect to # failed at #Z"),
        ("order 6fa459ea-ee8a-3ca4-894e-db77e160355e is paid", "order # is paid"),
        ("segfault at 0x7ffdc0de", "segfault at #"),
        ("commit deadbee1 is missing", "commit # is missing"),
        ("no object 5f2b9c1e7a3d4f60", "no object #"),
        ("bad token eyJhbGciOiJIUzI1NiJ9", "bad token #"),
        ("utf8 is not utf16", "utf# is not utf#"),
        (
            'column "name" of table `jobs` in “db” and «x» don\'t match',
            'column "…" of table `…` in “…” and «…» don\'t match',
        ),
        ('an unclosed " quote', 'an unclosed " quote'),
        ("it's the workers' fault", "it's the workers' fault"),
        ("  many \n\t blanks ", "many blanks"),
        ("AbstractSingletonProxyFactoryBean failed", "AbstractSingletonProxyFactoryBean failed"),
        ('empty ""', 'empty ""'),
    ],
)
def test_parts_that_differ_from_job_to_job_are_replaced(error: str, folded: str) -> None:
    assert normalized(error) == folded


@pytest.mark.parametrize(
    ("error", "folded"),
    [
        ("HTTP 503 from upstream after 17 s", "HTTP 503 from upstream after # s"),
        ("HTTP/1.1 404 for order 404", "HTTP/1.1 404 for order #"),
        ("http_429", "http_429"),
        ("Request failed with status code 500", "Request failed with status code 500"),
        ("unexpected status: 502", "unexpected status: 502"),
        ("statusCode=503, took 350 ms", "statusCode=503, took # ms"),
        ("the status was 404", "the status was 404"),
        ("HTTPError: 404 Client Error: Not Found for url 7", "HTTPError: 404 Client Error: Not Found for url #"),
        ("[HTTP 503] job 503", "[HTTP 503] job #"),
        ("Error (404)", "Error (404)"),
        ("RequestException: 403", "RequestException: 403"),
        ("process ended with exit code 137", "process ended with exit code 137"),
        ("503 Service Unavailable", "503 Service Unavailable"),
        ("not successful: 503 (Service Unavailable)", "not successful: 503 (Service Unavailable)"),
        (
            "`POST /pay` resulted in a `503 Service Unavailable` response",
            "`…` resulted in a `503 Service Unavailable` response",
        ),
        ("404", "404"),
        ("error 1045", "error #"),
        ("error 404.25", "error #"),
        ("error 100-200", "error #"),
        ("error 700", "error #"),
        ("barcode 123", "barcode #"),
        ("503 rows", "# rows"),
        ("503 Service Unavailables", "# Service Unavailables"),
        ("'HTTP 503'", "'…'"),
        ("x" * 190 + " HTTP 503", "x" * 190 + " HTTP 503"),
        ("x" * 192 + " HTTP 503", "x" * 192 + " HTTP #…"),
    ],
)
def test_status_codes_are_kept(error: str, folded: str) -> None:
    assert normalized(error) == normalized(folded) == folded


def test_class_and_message_are_joined() -> None:
    bodies = [{"error": {"type": "KeyError", "message": f"'user-{id}' at line {id}"}} for id in (7, 12345)]
    assert {error_of(json.dumps(body).encode()) for body in bodies} == {"KeyError: '…' at line #"}


PIECES = st.sampled_from(
    [
        " ",
        "HTTP",
        "/",
        "error ",
        "503",
        "Not Found",
        "'",
        '"',
        "`",
        "“",
        "”",
        "«",
        "»",
        "…",
        "#",
        "a",
        "é",
        "7",
        "\u0663",
        "-",
        ".",
        "x1y2",
        "\n",
    ]
)
ERRORS = (
    st.text() | st.lists(PIECES, max_size=40).map("".join) | st.lists(PIECES, min_size=150, max_size=300).map("".join)
)


@given(ERRORS)
@example("' 'c'")
@example("'a `b'c` d'")
@example("'abc'1")
@example("x" * 198 + "'a'b")
@example("x" * 193 + " HTTP 503")
def test_normalisation_is_bounded_and_idempotent(error: str) -> None:
    once = normalized(error)
    assert len(once) <= MAX_ERROR
    assert normalized(once) == once


@given(st.binary() | JSON_VALUES.map(lambda value: json.dumps({"error": value}).encode()))
def test_any_body_has_a_bounded_error(body: bytes) -> None:
    shown = error_text(body)
    assert len(shown) <= MAX_RAW and "\n" not in shown
    assert error_of(body) == normalized(shown)


HOSTILE = [
    "'" * 60_000,
    '"' * 60_001,
    "a1" * 30_000,
    "a" * 60_000,
    "1-" * 30_000,
    "0x" * 30_000,
    "' " * 30_000,
    "\n" * 60_000,
]
HOSTILE += ["a-" * 30_000, "`'\"“«" * 10_000, "deadbeef" * 7000, TRACEBACK + "\n" * 50_000]


@pytest.mark.parametrize("error", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_error_takes_bounded_time(error: str) -> None:
    body = json.dumps({"error": error}, ensure_ascii=False).encode()[:MAX_PARSED]
    times = []
    for _ in range(5):
        normalized.cache_clear()
        begun = time.thread_time()
        error_of(body)
        normalized(error)
        times.append(time.thread_time() - begun)
    assert min(times) < 0.02
