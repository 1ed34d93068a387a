"""Random input in random pieces: no exception, the same replies for any pieces, and bounded buffers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from greenstalk_server.protocol.arguments import MAX_PUT_LINE
from greenstalk_server.protocol.verb import MAX_LINE
from tests.support.examples import examples
from tests.support.talk import MARK, Talk, buffered_bytes

pytestmark = pytest.mark.each_build

IDS = st.integers(0, 6).map(lambda id: b"%d" % id)
NAMES = st.sampled_from([b"default", b"a", b"b"])
BODIES = st.binary(max_size=40)
PUTS = st.builds(lambda pri, body: b"put %d 0 60 %d\r\n%b" % (pri, len(body), body), st.integers(0, 2), BODIES)
TAGS = st.lists(
    st.sampled_from([b"idp:a", b"idp:b:9", b"grp:a", b"grp:b", b"aft:a", b"con:a", b"con:b:2", b"x", b"idp:"])
)
TAGGED = st.builds(lambda tags, body: b"put 1 0 60 %d %b\r\n%b" % (len(body), b" ".join(tags), body), TAGS, BODIES)
WITH_ID = st.sampled_from([b"delete", b"touch", b"peek", b"kick-job", b"reserve-job", b"stats-job"])
WITH_NAME = st.sampled_from([b"use", b"watch", b"ignore", b"stats-tube", b"stats-group"])
BARE = [b"stats", b"list-tubes", b"list-tube-used", b"list-tubes-watched", b"peek-ready", b"peek-buried"]
VALID = st.one_of(
    PUTS,
    TAGGED,
    st.builds(lambda verb, id: verb + b" " + id, WITH_ID, IDS),
    st.builds(lambda verb, name: verb + b" " + name, WITH_NAME, NAMES),
    st.builds(lambda id: b"release %b 1 0" % id, IDS),
    st.builds(lambda id: b"bury %b 1" % id, IDS),
    st.sampled_from([*BARE, b"stats-mode extended", b"stats-mode standard", b"reserve-with-timeout 0", b"kick 3"]),
)
FAULTS = [
    b"",
    b"\0",
    b"\r\r",
    b"stats\n",
    b"put 0 0 60 3\r\nx",
    b"put 0 0 60 1\r\nxyz",
    b"a" * 223,
    b"a" * 448,
    b"put 0 0 60 3 idp:" + b"k" * 1300 + b"\r\nabc",
    b"put-in-tube " + b"n" * 1300 + b" 0 0 60 3\r\nabc",
    b"a" * 700,
]
INVALID = st.binary(max_size=20) | st.sampled_from(FAULTS)
LINES = st.lists(VALID | VALID | INVALID, max_size=30)
CONVERSATIONS = LINES.map(lambda lines: b"".join([line + b"\r\n" for line in lines]))


def cut_at(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return *data* in pieces, none of them empty."""
    edges = sorted({0, len(data), *(cut % len(data) for cut in cuts)}) if data else []
    return [data[start:end] for start, end in pairwise(edges)]


@settings(max_examples=examples(50), deadline=None)
@given(CONVERSATIONS, st.lists(st.integers(0, 10_000), max_size=40))
@example(b"quit\r\nput 0 0 60 0\r\n\r\n", [6])
def test_replies_do_not_depend_on_the_pieces_of_the_input(data: bytes, cuts: list[int]) -> None:
    whole, cut = Talk(), Talk()
    expected = whole.send(data) if data else b""
    assert cut.send_all(cut_at(data, cuts)) == expected
    assert whole.session.is_closing == cut.session.is_closing


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=300) | CONVERSATIONS.filter(bool), max_size=15))
def test_random_bytes_raise_no_exception_and_buffers_are_bounded(pieces: list[bytes]) -> None:
    talk = Talk()
    talk.broker.max_job_size = 100
    for piece in pieces:
        talk.send(piece)
        assert talk.session.is_waiting or talk.session.is_closing or buffered_bytes(talk.session) < MAX_PUT_LINE
        if talk.session.is_closing:
            break
    talk.send_eof()
    talk.close()
    assert not talk.broker.clients


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.sampled_from([b"a" * 100, b"\r", b"\n", b"a", b"\0" * 150, b"put "]), max_size=60))
@example([b"put ", *[b"a" * 100] * 12, b"\r"])
def test_endless_line_buffers_at_most_a_maximum_line(pieces: list[bytes]) -> None:
    talk = Talk()
    for piece in pieces:
        talk.send(piece)
        assert buffered_bytes(talk.session) <= MAX_PUT_LINE + 1  # a CR may be the beginning of the line's end
    assert talk.send(b"x\r\n" + MARK).endswith(b"USING default\r\n")


def test_body_that_is_too_big_is_not_buffered() -> None:
    talk = Talk()
    talk.send(b"put 0 0 60 4294967295\r\n")
    for _ in range(100):
        talk.send(b"b" * 65536)
        assert buffered_bytes(talk.session) == 0


def test_buffered_body_has_the_bytes_that_have_arrived() -> None:
    talk = Talk()
    talk.send(b"put 0 0 60 65535\r\n")
    for _ in range(64):
        talk.send(b"b" * 1000)
    assert buffered_bytes(talk.session) == 64_000
    talk.send(b"b" * 10_000)
    assert buffered_bytes(talk.session) < MAX_LINE
