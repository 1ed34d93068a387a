"""PHP's serialization format: values, limits, and no other outcome than a value or PhpFormatError."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.web.reads.jobs.php_values import (
    MAX_DEPTH,
    MAX_VALUES,
    PhpArray,
    PhpFormatError,
    PhpObject,
    parse_php,
)

OBJECT = b'O:8:"App\\Mail":4:{s:2:"to";s:3:"a@b";s:7:"\0*\0tags";a:0:{}s:14:"\0App\\Mail\0done";b:1;s:1:"n";i:-7;}'


@pytest.mark.parametrize(
    ("source", "value"),
    [
        (b"N;", None),
        (b"b:1;", True),
        (b"b:0;", False),
        (b"i:-42;", -42),
        (b"d:1.5;", 1.5),
        (b"d:1.0E+25;", 1e25),
        (b"d:INF;", "INF"),
        (b"d:NAN;", "NAN"),
        (b's:0:"";', ""),
        (b's:6:"a";s:1";', 'a";s:1'),
        ('s:4:"zoë";'.encode(), "zoë"),
        (b's:1:"\xff";', "\ufffd"),
        (b'E:8:"App\\A:On";', "App\\A::On"),
        (b"r:2;", "(reference)"),
        (b"R:2;", "(reference)"),
        (b'a:2:{i:0;i:5;s:1:"k";N;}', {0: 5, "k": None}),
    ],
)
def test_value_is_parsed(source: bytes, value: object) -> None:
    assert parse_php(source) == value


def test_object_has_its_properties_without_the_prefixes_of_their_visibility() -> None:
    found = parse_php(OBJECT)
    assert isinstance(found, PhpObject)
    assert (found.class_name, found.properties) == ("App\\Mail", {"to": "a@b", "tags": {}, "done": True, "n": -7})


def test_object_that_serializes_itself_has_a_text() -> None:
    found = parse_php(b'C:11:"ArrayObject":6:{x:i:0;}')
    assert isinstance(found, PhpObject)
    assert (found.class_name, found.text, found.properties) == ("ArrayObject", "x:i:0;", {})


def test_array_is_a_list_if_its_keys_count_from_0() -> None:
    for source, is_list in [(b"a:2:{i:0;N;i:1;N;}", True), (b"a:0:{}", True), (b"a:1:{i:1;N;}", False)]:
        found = parse_php(source)
        assert isinstance(found, PhpArray)
        assert found.is_list is is_list


@pytest.mark.parametrize(
    "source",
    [
        b"", b"x", b"i:;", b"i:1", b"i:x;", b"b:x;", b"d:x1;", b's:5:"abc";', b's:3:"abc"', b's:-1:"";', b"a:1:{}",
        b"a:1:{i:0;}", b"a:1:{N;N;}", b"a:1:{b:1;N;}", b"a:0:{", b'O:1:"A":1:{i:0;}', b'O:1:"A"', b'C:1:"A":9:{}',
        b"o:1:{}", b'S:1:"a";', b's:999999999:"a";', b"i:" + b"9" * 50 + b";",
    ],
)  # fmt: skip
def test_malformed_text_is_refused(source: bytes) -> None:
    with pytest.raises(PhpFormatError):
        parse_php(source)


def test_values_beyond_the_limits_are_left_out() -> None:
    many = b"a:9000:{" + b"".join(b"i:%d;i:7;" % at for at in range(9000)) + b"}"
    found = parse_php(many)
    assert isinstance(found, PhpArray)
    assert len(found) == (MAX_VALUES - 1) // 2
    deep = parse_php(b"a:1:{i:0;" * 500 + b"N;" + b"}" * 500)
    depth = 0
    while deep:
        assert isinstance(deep, PhpArray)
        deep, depth = deep.get(0), depth + 1
    assert depth == MAX_DEPTH


PIECES = st.sampled_from(
    [
        b"N;",
        b"i:1;",
        b"b:1;",
        b"a:2:{",
        b"}",
        b's:1:"a";',
        b'O:1:"A":1:{',
        b'C:1:"A":2:{',
        b"r:1;",
        b"d:1;",
        b'"',
        b";",
        b"9",
    ]
)


@given(st.binary(max_size=200) | st.lists(PIECES, max_size=60).map(b"".join))
def test_any_text_is_a_value_or_malformed(source: bytes) -> None:
    with suppress(PhpFormatError):
        parse_php(source)


HOSTILE = [b"a:999999999:{" + b"i:1;" * 16_000, b"a:1:{i:0;" * 7000, b'O:1:"A":1:{i:0;' * 4000]
HOSTILE += [
    b"a:30000:{" + b"i:1;N;" * 10_000,
    b's:65000:"' + b"x" * 65_000 + b'";',
    b"i:" + b"1" * 64_000,
    b"a:" * 32_000,
]


@pytest.mark.parametrize("source", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_takes_bounded_time(source: bytes) -> None:
    times = []
    for _ in range(5):
        begun = time.thread_time()
        with suppress(PhpFormatError):
            parse_php(source)
        times.append(time.thread_time() - begun)
    assert min(times) < 0.02
