"""Queries: strict parsing, canonical text, and exact matching."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core.jobs.body_cache import resident_body
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, SECOND, STATE_NAMES, Job
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.web.reads.jobs.query import (
    MAX_FIELD_TERMS,
    MAX_LENGTH,
    MAX_SEARCHED,
    MAX_TERMS,
    NAMES,
    Query,
    QueryError,
    Term,
    TextMatch,
    parse,
)

NOW = 1_800_000_000 * SECOND

NUMBERED = ("id", "pri", "reserves", "timeouts", "releases", "buries", "kicks")
UNITS = {"age": ("", "s", "m", "min", "h", "d"), "ttr": ("", "h"), "delay": ("", "d"), "size": ("", "k", "m", "g")}
LEGAL = "abcxyzABC019+/;.$_()"


def job(**changed: int | str | bytes) -> Job:
    """Return a job that was put into `mail` an hour ago, with *changed* attributes."""
    body = changed.pop("body", b"body")
    assert isinstance(body, bytes)
    made = Job(7, Tube(str(changed.pop("tube", "mail")).encode(), {}), body, 5, 0, 60 * SECOND, NOW - 3600 * SECOND)
    for name, value in changed.items():
        setattr(made, name, value)
    return made


def matches(query: str, **changed: int | str | bytes) -> bool:
    return holds(parse(query), job(**changed))


def holds(query: Query, job: Job) -> bool:
    """Return whether *job* matches both test functions of *query*."""
    body_test = query.body_test()
    return query.test()(job, NOW) and (body_test is None or body_test(resident_body(job)) is True)


# Matching


@pytest.mark.parametrize(
    ("sign", "found"),
    [("", [5]), (">", [6, 7]), (">=", [5, 6, 7]), ("<", [3, 4]), ("<=", [3, 4, 5])],
)
def test_numbers_compare(sign: str, found: list[int]) -> None:
    for name in NUMBERED:
        assert [n for n in range(3, 8) if matches(f"{name}:{sign}5", **{name: n})] == found
        assert [n for n in range(3, 8) if not matches(f"-{name}:{sign}5", **{name: n})] == found


def test_range_includes_both_ends() -> None:
    assert [n for n in range(8) if matches("pri:2..4", pri=n)] == [2, 3, 4]


@pytest.mark.parametrize(
    ("query", "is_true"),
    [("age:>1h", 3601), ("age:>=1h", 3600), ("age:<60min", 3599), ("age:3600", 3600), ("age:1h..1d", 86400)],
)
def test_age_counts_whole_seconds_as_pages_show_it(query: str, is_true: int) -> None:
    assert matches(query, created_at=NOW - is_true * SECOND)
    assert matches(query, created_at=NOW - is_true * SECOND - SECOND // 2)
    borders = {"age:>1h": 3600, "age:>=1h": 3599, "age:<60min": 3600, "age:3600": 3601, "age:1h..1d": 86401}
    assert not matches(query, created_at=NOW - borders[query] * SECOND)


@pytest.mark.parametrize(
    ("query", "size"), [("size:>=1k", 1024), ("size:1k", 1024), ("size:<1k", 1023), ("size:>1m", 1024**2 + 1)]
)
def test_size_is_the_body_size(query: str, size: int) -> None:
    assert matches(query, body=b"x" * size)
    assert not matches(query, body=b"x" * {1023: 1024, 1024: 1023}.get(size, size - 1))


def test_ttr_and_delay_are_in_seconds() -> None:
    assert matches("ttr:1min delay:0") and not matches("ttr:59s") and matches("delay:2h", delay=7200 * SECOND)


def test_state_and_tube() -> None:
    for state in (READY, RESERVED, DELAYED, BURIED):
        assert [s for s in (READY, RESERVED, DELAYED, BURIED) if matches(f"state:{STATE_NAMES[state]}", state=s)] == [
            state
        ]
    names = ["mail", "mail.out", "Mail", "x"]
    assert [name for name in names if matches("tube:mail", tube=name)] == ["mail"]
    assert [name for name in names if matches("tube:mail*", tube=name)] == ["mail", "mail.out"]
    assert [name for name in names if matches("-tube:mail*", tube=name)] == ["Mail", "x"]


@pytest.mark.parametrize(
    ("query", "body", "is_match"),
    [
        ("body:out", b"no route", True),
        ("out", b"no route", True),
        ("Out", b"no route", False),
        ("~OUT", b"no route", True),
        ('body:~"NO R"', b"no route", True),
        ('"no route"', b"no  route", False),
        ("no route", b"route: no", True),
        ("-out", b"no route", False),
        (r'"say \"hi\" \\"', rb'say "hi" \ then', True),
        ("☃", "a ☃".encode(), True),
        ("body:.*", b"anything", False),
        ("x", b"\x00\xff\xfe", False),
        ("'; DROP", b"'; DROP TABLE", True),
    ],
)
def test_bodies(query: str, body: bytes, is_match: bool) -> None:
    assert matches(query, body=body) is is_match


def test_only_the_beginning_of_a_body_is_searched() -> None:
    assert matches("needle", body=b"x" * (MAX_SEARCHED - 6) + b"needle")
    assert not matches("needle", body=b"x" * (MAX_SEARCHED - 5) + b"needle")
    assert not matches("~needle", body=b"x" * (MAX_SEARCHED - 5) + b"needle")


def test_all_terms_must_match_and_no_terms_match_everything() -> None:
    assert matches("") and matches("   ")
    assert matches("tube:mail pri:5 body") and not matches("tube:mail pri:6 body") and not matches("tube:x pri:5 body")


def test_restrictions_to_tube_state_and_id() -> None:
    query = parse("id:7 tube:mail state:buried order")
    assert (query.id, query.tube, query.state, query.needs_bodies) == (7, "mail", "buried", True)
    for loose in ("-id:7 -tube:mail -state:buried", "id:>7 tube:mail*", "pri:1"):
        query = parse(loose)
        assert (query.id, query.tube, query.state, query.needs_bodies) == (None, "", "", False)


@pytest.mark.parametrize(
    ("query", "least"),
    [("", 0), ("id:7", 7), ("id:>7", 8), ("id:>=7", 7), ("id:7..9", 7), ("id:<7 id:<=9", 0), ("id:>7 id:3..20", 8),
     ("-id:>7", 0), ("pri:>7 size:9", 0)],
)  # fmt: skip
def test_min_id(query: str, least: int) -> None:
    assert parse(query).min_id == least
    assert not any(matches(query, id=id) for id in range(least))


# Text


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("  ID:5   x ", "id:5 body:x"),
        ("age:>7200", "age:>2h"),
        ("age:=1", ""),
        ("age:90s", "age:90s"),
        ("age:120", "age:2min"),
        ("size:>=2048", "size:>=2k"),
        ("size:0", "size:0"),
        ("pri:1..5", "pri:1..5"),
        ('-~"x y"', '-body:~"x y"'),
        ('body:"plain"', "body:plain"),
        ('"~x"', 'body:"~x"'),
        ("12:30", "body:12:30"),
        ("-", ""),
    ],
)
def test_canonical_text(given: str, canonical: str) -> None:
    if canonical:
        assert str(parse(given)) == canonical
    else:
        with pytest.raises(QueryError):
            parse(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("http://x", ["“http://x”", "“http:” is unknown", "buries:", "quotes"]),
        ("pri:many", ["“pri:many”", "5, >5, >=5"]),
        ("pri:-1", ["“pri:-1”"]),
        ("pri:5..1", ["“pri:5..1”", "the smaller number must come first"]),
        ("pri:5k", ["“pri:5k”"]),
        ("age:>2weeks", ["“age:>2weeks”", ">5min"]),
        ("age:1h..", ["“age:1h..”"]),
        ("size:2h", ["“size:2h”", ">1k"]),
        ("state:done", ["“state:done”", "ready, reserved, delayed, buried"]),
        ("tube:a,b", ["“tube:a,b”", "1 to 200"]),
        ("tube:*", ["“tube:*”"]),
        ("tube:" + "x" * 201, ["1 to 200"]),
        ("body:", ["“body:”", "lacks"]),
        ('body:""', ["lacks"]),
        ("tube:~mail", ["“tube:~mail”", "only with body:"]),
        ('x "open', ['“"open”', "not closed"]),
        ('a"b"', ["not closed, or is inside"]),
        ("x" * (MAX_LENGTH + 1), [str(MAX_LENGTH)]),
        ("x " * (MAX_TERMS + 1), [str(MAX_TERMS)]),
        ("body.a:x error:~y error.b:z " * 3, ["9 terms about fields, classes and errors", str(MAX_FIELD_TERMS)]),
        ("id:" + "9" * 21, ["must be a comparison"]),
    ],
)
def test_errors_quote_the_word_and_the_alternatives(given: str, message: list[str]) -> None:
    with pytest.raises(QueryError) as refusal:
        parse(given)
    assert [part for part in message if part not in str(refusal.value)] == []


def numbers(name: str) -> st.SearchStrategy[str]:
    amount = st.tuples(st.integers(0, 10**6).map(str), st.sampled_from(UNITS.get(name, ("",)))).map("".join)
    compared = st.tuples(st.sampled_from(["", ">", ">=", "<", "<="]), amount).map("".join)
    between = st.integers(0, 999).map(lambda low: f"{low}..{low + 5}")
    return st.one_of(compared, between)


def quoted(text: str) -> str:
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


BODIES = st.text(min_size=1, max_size=8) | st.text('a~" \\-:\t', min_size=1, max_size=8)
TERM_TEXTS = st.one_of(
    *[numbers(name).map(lambda text, name=name: f"{name}:{text}") for name in (*NUMBERED, *UNITS)],  # type: ignore[misc]
    st.sampled_from(["ready", "reserved", "delayed", "buried"]).map("state:{}".format),
    st.text(LEGAL, min_size=1, max_size=9).map("tube:{}".format),
    st.text(LEGAL, min_size=1, max_size=9).map("tube:{}*".format),
    BODIES.map(quoted),
    BODIES.map(lambda text: f"body:~{quoted(text)}"),
)


@given(st.lists(st.tuples(st.sampled_from(["", "-"]), TERM_TEXTS).map("".join), max_size=6))
def test_canonical_text_parses_to_the_same_query(terms: list[str]) -> None:
    query = parse(" ".join(terms))
    assert len(query.terms) == len(terms)
    assert parse(str(query)) == query and str(parse(str(query))) == str(query)


@given(BODIES, st.booleans(), st.booleans())
def test_any_text_can_be_searched(text: str, is_loose: bool, is_negated: bool) -> None:
    query = Query((Term("body", TextMatch(text, is_loose), is_negated),))
    assert parse(str(query)) == query
    assert holds(query, job(body=b"<" + text.encode() + b">")) is not is_negated


@given(st.text(max_size=40) | st.text('abody:"~\\-> <.1h', max_size=20))
def test_any_text_is_parsed_or_refused(given: str) -> None:
    try:
        query = parse(given)
    except QueryError:
        return
    assert parse(str(query)) == query
    assert all(term.name.partition(".")[0] in NAMES for term in query.terms)
