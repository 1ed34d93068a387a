"""Fields of JSON bodies: paths, exact numbers, and bounded time for any body."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from greenstalk_server.web.reads.jobs.json_fields import (
    MAX_COLUMNS,
    MAX_PARSED,
    MAX_PATH,
    MAX_SHOWN,
    MAX_STEPS,
    MAX_SUGGESTED,
    MAX_VALUES,
    PathError,
    Values,
    field_paths,
    field_text,
    find_values,
    parse_body,
    parse_columns,
    parse_path,
    scalars,
)

from .test_body import BIG, JSON_VALUES

ORDER = {
    "customer": {"id": 316430, "name": "Ada"},
    "items": [{"sku": "a", "n": 1}, {"sku": "b"}, 7],
    "tags": ["new", "vip"],
    "total": 99.5,
    "paid": False,
    "note": None,
}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("customer.id", [316430]),
        ("items.0.sku", ["a"]),
        ("items.sku", ["a", "b"]),
        ("items.n", [1]),
        ("items.9.sku", []),
        ("tags", [["new", "vip"]]),
        ("tags.1", ["vip"]),
        ("tags.name", []),
        ("total", [Decimal("99.5")]),
        ("note", [None]),
        ("customer.id.more", []),
        ("none", []),
    ],
)
def test_path_finds_values(path: str, values: list[object]) -> None:
    assert find_values(parse_body(json.dumps(ORDER).encode()), parse_path(path)).values == values


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("customer.id", "316430"),
        ("customer", '{"id":316430,"name":"Ada"}'),
        ("items.sku", "a, b"),
        ("tags", '["new","vip"]'),
        ("total", "99.5"),
        ("paid", "false"),
        ("note", "null"),
        ("none", None),
    ],
)
def test_field_is_shown_as_text(path: str, shown: str | None) -> None:
    assert field_text(parse_body(json.dumps(ORDER).encode()), parse_path(path)) == shown


def test_numbers_keep_every_digit() -> None:
    body = b'{"id":%d,"sum":0.10,"huge":1e400,"nested":{"sum":12345678901234567.8901}}' % BIG
    root = parse_body(body)
    texts = [field_text(root, (name,)) for name in ("id", "sum", "huge", "nested")]
    assert texts == [str(BIG), "0.10", "1E+400", '{"sum":12345678901234567.8901}']


def test_long_text_is_shortened_to_one_line() -> None:
    shown = field_text(parse_body(json.dumps({"a": "two\nlines " * 1000}).encode()), ("a",))
    assert shown is not None
    assert shown.startswith("two lines two") and shown.endswith("…") and len(shown) == MAX_SHOWN


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"text",
        b"17",
        b'"text"',
        b"{",
        b"[1,]",
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b"[" * MAX_PARSED,
        b'{"a":' * 10_000,
        b'{"a":1e99999999999999999999}',
        b'{"a":%s}' % (b"9" * 6000),
        b'{"a":"%s"}' % (b"x" * MAX_PARSED),
    ],
)
def test_other_bodies_have_no_fields(body: bytes) -> None:
    assert parse_body(body) is None
    assert field_text(parse_body(body), ("a",)) is None
    assert field_paths(parse_body(body)) == []


@pytest.mark.parametrize(
    "path", ["", ".", "a.", ".a", "a..b", "a b", "a:b", 'a"b', "a,b", "a*", "a\n", "\0", "x" * 201]
)
def test_invalid_path_is_refused(path: str) -> None:
    with pytest.raises(PathError, match="is not a path of a field"):
        parse_path(path)


def test_path_has_a_maximum_number_of_steps() -> None:
    assert len(parse_path(".".join("a" * MAX_STEPS))) == MAX_STEPS
    with pytest.raises(PathError, match=f"at most {MAX_STEPS} names"):
        parse_path(".".join("a" * (MAX_STEPS + 1)))


def test_columns_are_separated_by_commas_or_spaces() -> None:
    assert parse_columns(" customer.id, kind kind,,") == (("customer", "id"), ("kind",))
    assert parse_columns("") == ()
    with pytest.raises(PathError, match=f"At most {MAX_COLUMNS} fields"):
        parse_columns(",".join("abcdefg"))


def test_paths_of_fields_are_suggested() -> None:
    paths = field_paths(parse_body(json.dumps(ORDER | {"not an.address": 1}).encode()))
    assert paths == ["tags", "total", "paid", "note", "customer.id", "customer.name", "items.sku", "items.n"]


@given(JSON_VALUES)
@example([{"1": None}])
def test_suggested_paths_have_values(value: object) -> None:
    root = parse_body(json.dumps(value).encode())
    paths = field_paths(root)
    assert len(paths) <= MAX_SUGGESTED
    for path in paths:
        assert len(path) <= MAX_PATH
        assert find_values(root, parse_path(path)).values


@given(
    st.binary() | JSON_VALUES.map(lambda value: json.dumps(value).encode()),
    st.lists(st.sampled_from("ab01"), max_size=4),
)
def test_any_body_and_path_have_a_bounded_text(body: bytes, path: list[str]) -> None:
    shown = field_text(parse_body(body), tuple(path))
    assert shown is None or len(shown) <= MAX_SHOWN


def test_path_examines_a_bounded_number_of_elements() -> None:
    many = [{"b": number} for number in range(MAX_VALUES + 1)]
    whole = find_values({"a": many[:-1]}, ("a", "b"))
    assert (len(whole.values), whole.is_partial) == (MAX_VALUES, False)
    cut = find_values({"a": many}, ("a", "b"))
    assert (len(cut.values), cut.is_partial) == (MAX_VALUES, True)
    nested = find_values([{"a": many[:600]}, {"a": many[:600]}], ("a", "b"))
    assert (len(nested.values), nested.is_partial) == (MAX_VALUES - 2, True)
    assert find_values({"a": many}, ("a", str(MAX_VALUES), "b")) == ([MAX_VALUES], False), "an index examines one"


def test_scalars_are_of_a_bounded_number_of_elements() -> None:
    assert scalars(Values([[1, {}, "x"], {}, 2])) == ([1, "x", 2], False)
    assert scalars(Values([[0] * MAX_VALUES])) == ([0] * MAX_VALUES, False)
    assert scalars(Values([[0] * 600, [1] * 600])) == ([0] * 600 + [1] * 400, True)
    assert scalars(Values([0], is_partial=True)) == ([0], True)
