"""Query terms about fields of JSON bodies, errors, and reasons of dead letters."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core.job_attributes import REASON_NAMES, DeadLetter
from greenstalk_server.web.reads.jobs import body_terms
from greenstalk_server.web.reads.jobs.body_terms import glob
from greenstalk_server.web.reads.jobs.job_errors import error_of
from greenstalk_server.web.reads.jobs.json_fields import MAX_PARSED, MAX_VALUES
from greenstalk_server.web.reads.jobs.query import (
    MAX_ASTERISKS,
    MAX_FIELD_TERMS,
    MAX_LENGTH,
    MAX_SEARCHED,
    QueryError,
    parse,
    quoted,
)

from .test_body import BIG
from .test_frameworks import body_of
from .test_query import NOW, holds, job, matches

ORDER = {
    "customer": {"id": 316430, "name": "Ada Lovelace", "code": "007"},
    "items": [{"sku": "a-1", "n": 1}, {"sku": "b-2", "n": 20}],
    "tags": ["new", "vip"],
    "total": 99.5,
    "debt": -3,
    "paid": False,
    "note": None,
    "star": "a*b",
}


@pytest.mark.parametrize(
    ("query", "is_match"),
    [
        ("body.customer.id:316430", True),
        ("body.customer.id:31643", False),
        ("body.customer.id:316430.0", True),
        ("BODY.customer.id:3.1643e5", True),
        ("body.Customer.id:316430", False),
        ('body.customer.id:"316430"', False),
        ("body.customer.code:007", True),
        ("body.customer.code:7", False),
        ('body.customer.code:"007"', True),
        ("body.customer.id:>316429", True),
        ("body.customer.id:>316430", False),
        ("body.customer.id:>=316430", True),
        ("body.customer.id:<316430.5", True),
        ("body.customer.id:316000..317000", True),
        ("body.customer.id:1..5", False),
        ("body.customer.id:3164*", True),
        ("body.customer.code:>1", False),
        ("body.total:99.50", True),
        ("body.total:<=99.49", False),
        ("body.debt:<0", True),
        ("body.debt:-3", True),
        ("body.debt:-5..-1", True),
        ("body.paid:false", True),
        ("body.paid:0", False),
        ("body.paid:<1", False),
        ("body.note:null", True),
        ("body.note:*", True),
        ("body.none:*", False),
        ("-body.none:*", True),
        ("body.customer:*", True),
        ("body.customer:Ada", False),
        ('body.customer.name:"Ada Lovelace"', True),
        ("body.customer.name:Ada*", True),
        ("body.customer.name:*a*ce", True),
        ("body.customer.name:*b*ce", False),
        ("body.customer.name:~LOVE", True),
        ('body.customer.name:~"a l"', True),
        ("-body.customer.name:~LOVE", False),
        ("body.items.0.sku:a-1", True),
        ("body.items.1.sku:a-1", False),
        ("body.items.sku:b-2", True),
        ("body.items.n:>10", True),
        ("body.items.n:>20", False),
        ("body.tags:vip", True),
        ("body.tags.0:vip", False),
        ("body.star:a*b", True),
        ('body.star:"a*b"', True),
        ('body.star:"a*"', False),
        ("body.customer.id:316430 body.tags:vip body.items.n:1", True),
        ("body.customer.id:316430 body.tags:old", False),
    ],
)
def test_fields_of_bodies(query: str, is_match: bool) -> None:
    assert matches(query, body=json.dumps(ORDER).encode()) is is_match


@pytest.mark.parametrize("body", [b"", b"text", b"[]", b'{"a":', b"\xff"])
def test_other_bodies_match_only_negated_terms(body: bytes) -> None:
    for term in ("body.a:1", "body.a:*", "body.a:<5", "body.a:~x", "error:*", "error:x"):
        assert not matches(term, body=body)
        assert matches(f"-{term}", body=body)


def test_numbers_are_compared_exactly() -> None:
    body = b'{"id":%d,"sum":12345678901234567.8901}' % BIG
    assert matches(f"body.id:{BIG}", body=body)
    assert matches(f"body.id:>{BIG - 1} body.id:<{BIG + 1}", body=body)
    assert not matches(f"body.id:{BIG + 1}", body=body)
    assert matches("body.sum:12345678901234567.8901", body=body)
    assert matches("body.sum:>12345678901234567.89009", body=body)
    assert not matches("body.sum:>12345678901234567.8901", body=body)
    assert matches("body.x:<1e9999", body=b'{"x":1e999}') and not matches("body.x:<1e999", body=b'{"x":1e999999999}')


@pytest.mark.parametrize(
    ("error", "is_match"),
    [("HTTP 404 from upstream", True), ("HTTP 503 from upstream", False), ("row 404 of 9", False)],
)
def test_number_between_asterisks_is_a_status_code(error: str, is_match: bool) -> None:
    assert matches("error:*404*", body=json.dumps({"error": error}).encode()) == is_match


FAILED = {"kind": "mail", "error": {"type": "Timeout", "message": "job 17 of 'x' got no answer"}, "why": "late 3"}
BODY = json.dumps(FAILED).encode()


@pytest.mark.parametrize(
    ("query", "is_match"),
    [
        ("error:\"Timeout: job # of '…' got no answer\"", True),
        ("error:\"Timeout: job 99 of 'other' got no answer\"", True),
        ('error:"Timeout: job # of"', False),
        ("error:Timeout", False),
        ("error:Timeout:*", True),
        ("error:*answer", True),
        ("error:*", True),
        ("-error:*", False),
        ('error:"*"', False),
        ("error:~ANSWER", True),
        ('error:~"JOB 5 OF"', True),
        ('error.why:"late #"', True),
        ('error.why:"late 4"', True),
        ("error.error.type:Timeout", True),
        ("error.none:*", False),
        ("-error.none:*", True),
    ],
)
def test_errors(query: str, is_match: bool) -> None:
    assert matches(query, body=BODY) is is_match


MANY = json.dumps({"a": [{"b": "first"}, *[{"b": "x"}] * MAX_VALUES], "c": [*["x"] * MAX_VALUES, "last"]}).encode()
LARGE = b'{"a":"first","b":"%s"}' % (b"x" * MAX_PARSED)
HUGE = b"first" + b"x" * MAX_SEARCHED


@pytest.mark.parametrize(
    ("query", "body", "result"),
    [
        ("body.a.b:first", MANY, True),
        ("-body.a.b:first", MANY, False),
        ("body.a.b:last", MANY, None),
        ("-body.a.b:last", MANY, None),
        ("body.a.b:>5", MANY, None),
        ("body.a.none:*", MANY, None),
        ("body.a.b:*", MANY, True),
        ("body.c:last", MANY, None),
        ("-body.c:l*", MANY, None),
        (f"body.c.{MAX_VALUES}:last", MANY, True),
        ("body.none:*", MANY, False),
        ("body.a:first", LARGE, None),
        ("-body.a:first", LARGE, None),
        ("-body.a:*", LARGE, None),
        ("-error:*", LARGE, True),
        ("-body.a:first", b"text" + LARGE, True),
        ("first", HUGE, True),
        ("-first", HUGE, False),
        ("last", HUGE, None),
        ("-~last", HUGE, None),
        ("-first body.c:last", MANY, False),
        ("first body.c:last", MANY, None),
        ("body.c:last -first", MANY, False),
    ],
)
def test_unread_part_of_a_body_decides_no_term(query: str, body: bytes, result: bool | None) -> None:
    body_test = parse(query).body_test()
    assert body_test is not None and body_test(body) is result


def test_terms_examine_a_bounded_number_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = 0

    def counted_text(value: object) -> str:
        nonlocal texts
        texts += 1
        return str(value)

    monkeypatch.setattr(body_terms, "value_text", counted_text)
    body_test = parse("-body.a:*a*a0*b " * MAX_FIELD_TERMS).body_test()
    assert body_test is not None and body_test(b'{"a":[7%s]}' % (b",1" * 32_000)) is None
    assert texts == MAX_VALUES, "converted once for all terms"


def test_asterisks_are_limited() -> None:
    assert parse("body.a:" + "*a" * MAX_ASTERISKS)
    assert parse('body.a:"' + "*a" * 40 + '" body.a:~' + "*a" * 40)
    with pytest.raises(QueryError, match="have 33 asterisks, but the limit is 32"):
        parse("body.b:* body.a:" + "*a" * MAX_ASTERISKS)


def test_reason_of_a_dead_letter() -> None:
    for number, name in enumerate(REASON_NAMES[1:], start=1):
        dead = DeadLetter(number, b"mail", 1, NOW, NOW).pack()
        assert [one for one in REASON_NAMES[1:] if matches(f"reason:{one}", dead_letter=dead)] == [name]
        assert matches("reason:*", dead_letter=dead) and not matches("-reason:*", dead_letter=dead)
    assert not matches("reason:*") and matches("-reason:*") and matches("-reason:expired")


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("Body.Customer.Id:>5", "body.Customer.Id:>5"),
        ('body.a:"x"', 'body.a:"x"'),
        ('body.a:~"x"', "body.a:~x"),
        ('body.a:~"x y"', 'body.a:~"x y"'),
        ('-error:"job 5"', '-error:"job #"'),
        ("error:job5", 'error:"job#"'),
        ("error:job5*", "error:job#*"),
        ("error:*404*", "error:*404*"),
        ("error:*'4*'", "error:*'#*'"),
        ('error:"a*"', 'error:"a*"'),
        ("ERROR:~Job5", "error:~Job#"),
        ("reason:*", "reason:*"),
        ("body.foo", "body:body.foo"),
        ("error.log", "body:error.log"),
        ("tube.a:1", "body:tube.a:1"),
    ],
)
def test_canonical_text(given: str, canonical: str) -> None:
    assert str(parse(given)) == canonical
    assert parse(canonical) == parse(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("body.a..b:1", "“a..b” is not a path of a field"),
        ("body." + "a." * 20 + "b:1", "is not a path of a field"),
        ("body.a:>many", "“body.a:>many” must be a comparison with a number"),
        ("body.a:>", "must be a comparison with a number"),
        ("body.a:5..1", "the smaller number must come first"),
        ("body.a:", "“body.a:” lacks a value"),
        ("error:", "“error:” lacks a value"),
        ('error:" "', "lacks a value"),
        ("error:" + "x" * 300 + "*", "at most 200 characters"),
        ("reason:late", "the reason must be one of attempts, expired, buried-expired, overflow"),
    ],
)
def test_errors_of_queries_say_what_is_allowed(given: str, message: str) -> None:
    with pytest.raises(QueryError, match=message.replace(".", "[.]")):
        parse(given)


TEXTS = st.text(min_size=1, max_size=20) | st.text("ab*<>.19 \\\"'~-", min_size=1, max_size=12)
VALUES = TEXTS.map(quoted) | TEXTS.map(lambda text: f"~{quoted(text)}") | TEXTS


@given(st.sampled_from(["body.a", "error", "error.a", "-body.a.0"]), VALUES)
def test_any_term_parses_to_a_canonical_one_or_is_refused(name: str, value: str) -> None:
    try:
        query = parse(f"{name}:{value}")
    except QueryError:
        return
    assert parse(str(query)) == query and str(parse(str(query))) == str(query)
    assert [holds(query, job(body=body)) for body in (b"", b"{}", BODY)].count(True) <= 3  # no body raises an error


@given(TEXTS)
def test_query_of_an_error_matches_its_job(text: str) -> None:
    body = json.dumps({"error": f"x{text}"}).encode()
    error = error_of(body)
    query = parse(f"error:{quoted(error)}")
    assert len(str(query)) <= MAX_LENGTH / 2
    assert holds(query, job(body=body)) and parse(str(query)) == query


@given(st.text("ab*", min_size=1, max_size=8).filter(lambda pattern: "*" in pattern), st.text("ab", max_size=8))
def test_glob_agrees_with_a_naive_match(pattern: str, given: str) -> None:
    def naive(pattern: str, given: str) -> bool:
        if not pattern:
            return not given
        if pattern[0] == "*":
            return any(naive(pattern[1:], given[at:]) for at in range(len(given) + 1))
        return bool(given) and given[0] == pattern[0] and naive(pattern[1:], given[1:])

    assert glob(pattern)(given) == naive(pattern, given)


@pytest.mark.parametrize(
    ("query", "is_match"),
    [
        ("class:App\\Jobs\\SendMail", True),
        ("class:app\\jobs\\sendmail", False),
        ("class:SendMail", False),
        ("class:App\\Jobs\\*", True),
        ("class:*Mail", True),
        ("class:*Sms", False),
        ('class:"App\\\\Jobs\\\\SendMail"', True),
        ('class:"App*"', False),
        ("class:~sendmail", True),
        ("class:*", True),
        ("-class:*", False),
        ("Class:App\\Jobs\\SendMail", True),
    ],
)
def test_class_of_a_framework(query: str, is_match: bool) -> None:
    assert matches(query, body=body_of("laravel")) is is_match
    assert str(parse(str(parse(query)))) == str(parse(query))
    assert parse(query).needs_bodies


def test_body_without_a_class() -> None:
    assert not matches("class:*", body=b'{"class": "A"}') and matches("-class:*", body=b"hello")
    assert not matches("class:<5", body=body_of("backburner"))


def test_class_of_a_large_body_is_unknown() -> None:
    large = b'{"class":"A","args":["' + b"x" * MAX_PARSED + b'"]}'
    assert not matches("class:A", body=large) and not matches("-class:A", body=large)
