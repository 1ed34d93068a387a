"""One call does a bounded amount: output, commands and kicks go on with `has_more`, and nothing is lost between."""

from __future__ import annotations

import pytest

from greenstalk_server.broker import SLICE
from greenstalk_server.session import (
    COMMAND_SLICE,
    FEW_WATCHED,
    NEW_TUBE_WEIGHT,
    OUTPUT_SLICE,
    TUBE_WEIGHT,
    WATCHED_WEIGHT,
)
from tests.wire.talk import MARK, MARKED, Talk

BODY = b"b" * 60_000
PUT = b"put 0 0 60 60000\r\n" + BODY + b"\r\n"


def slices(talk: Talk, data: bytes) -> list[bytes]:
    """What each call returns."""
    out = [talk.session.receive(data, talk.now)]
    while talk.session.has_more:
        assert not talk.session.wants_input
        out.append(talk.session.resume(talk.now))
        talk.broker.check()
    return out


def test_big_replies_leave_in_slices() -> None:
    talk = Talk()
    talk.send(PUT * 10)
    out = slices(talk, b"reserve\r\n" * 10 + MARK)
    assert b"".join(out) == b"".join(b"RESERVED %d 60000\r\n%b\r\n" % (id, BODY) for id in range(1, 11)) + MARKED
    assert len(out) >= 5
    assert max(len(reply) for reply in out) <= OUTPUT_SLICE + len(BODY) + 100


def test_peeks_of_big_jobs_and_lists_of_many_tubes_leave_in_slices() -> None:
    talk = Talk()
    talk.send(PUT)
    for number in range(100):
        talk.send(b"watch %b\r\n" % (b"%0200d" % number))
    for sent, biggest in ((b"peek 1\r\n", len(BODY)), (b"peek-ready\r\n", len(BODY)), (b"list-tubes\r\n", 30_000)):
        out = slices(talk, sent * 20)
        assert len(out) >= 5
        assert max(len(reply) for reply in out) <= OUTPUT_SLICE + biggest + 100


def test_many_commands_are_served_in_slices() -> None:
    talk = Talk()
    count = 3 * len(COMMAND_SLICE)
    out = slices(talk, MARK * count)
    assert b"".join(out) == MARKED * count
    assert max(len(reply) for reply in out) == len(COMMAND_SLICE) * len(MARKED)


def test_a_reserve_weighs_as_much_as_the_tubes_it_looks_at() -> None:
    """Else a thousand that each look at ten thousand tubes would be one slice, of some seconds."""
    talk = Talk()
    for number in range(2 * FEW_WATCHED):
        talk.session.receive(b"watch tube-%d\r\n" % number, talk.now)
    count = 3 * OUTPUT_SLICE // (2 * WATCHED_WEIGHT)
    out = slices(talk, b"reserve-with-timeout 0\r\n" * count)
    assert b"".join(out) == b"TIMED_OUT\r\n" * count
    assert len(out) == 3
    for number in range(2 * FEW_WATCHED):
        talk.session.receive(b"ignore tube-%d\r\n" % number, talk.now)
    assert len(slices(talk, b"reserve-with-timeout 0\r\n" * count)) == 1


def test_stats_weigh_as_much_as_the_tubes_there_are() -> None:
    talk = Talk()
    for number in range(OUTPUT_SLICE // TUBE_WEIGHT):
        talk.session.receive(b"watch tube-%d\r\n" % number, talk.now)
    assert [out.count(b"OK ") for out in slices(talk, b"stats\r\n" * 10) if out] == [1] * 10


@pytest.mark.parametrize("verb", [b"use", b"watch"])
def test_new_tubes_have_their_weight(verb: bytes) -> None:
    count = 3 * OUTPUT_SLICE // NEW_TUBE_WEIGHT
    request = b"".join([b"%b tube-%d\r\nput 0 0 60 0\r\n\r\n" % (verb, number) for number in range(count)])
    told = [out.count(b"INSERTED") for out in slices(Talk(), request)]
    assert sum(told) == count and max(told) <= OUTPUT_SLICE // NEW_TUBE_WEIGHT + 1


def test_others_are_served_between_slices() -> None:
    busy = Talk()
    other = Talk(busy.broker)
    out = busy.session.receive(b"use a\r\n" * len(COMMAND_SLICE) + b"use b\r\n", busy.now)
    assert busy.session.has_more
    assert other.send(b"list-tubes\r\n") == b"OK 18\r\n---\n- default\n- a\n\r\n"
    assert busy.session.resume(busy.now) == b"USING b\r\n"
    assert out == b"USING a\r\n" * len(COMMAND_SLICE)


def test_a_slice_that_ends_inside_a_put_goes_on_with_its_body() -> None:
    talk = Talk()
    sent = MARK * (len(COMMAND_SLICE) - 1) + b"put 0 0 60 5\r\nab"
    assert talk.send(sent) == MARKED * (len(COMMAND_SLICE) - 1)
    assert talk.send(b"cde\r\n" + MARK) == b"INSERTED 1\r\n" + MARKED


def test_a_slice_that_ends_inside_a_line_goes_on_with_it() -> None:
    talk = Talk()
    assert talk.send(MARK * len(COMMAND_SLICE) + MARK[:5]) == MARKED * len(COMMAND_SLICE)
    assert talk.send(MARK[5:]) == MARKED


def test_a_slice_that_ends_with_a_reserve_waits() -> None:
    talk = Talk()
    assert talk.send(MARK * (len(COMMAND_SLICE) - 1) + b"reserve\r\n" + MARK) == MARKED * (len(COMMAND_SLICE) - 1)
    assert talk.session.is_waiting
    assert talk.send_eof() == b"TIMED_OUT\r\n" + MARKED


def test_after_the_end_of_input_all_slices_are_served_before_closing() -> None:
    talk = Talk()
    talk.send(PUT * 10)
    talk.send(b"watch a\r\nignore default\r\nreserve\r\nwatch default\r\n" + b"reserve\r\n" * 11 + MARK)
    out = talk.send_eof()
    assert out.count(b"RESERVED") == 10
    assert out.endswith(b"TIMED_OUT\r\n" + MARKED)
    assert talk.session.is_closing


def delayed_jobs(talk: Talk, count: int) -> None:
    talk.send(b"put 0 60 60 0\r\n\r\n" * count)


def test_a_kick_of_many_goes_on_slice_by_slice_with_one_reply() -> None:
    talk = Talk()
    delayed_jobs(talk, 3 * SLICE + 1)
    out = slices(talk, b"kick 100000\r\n" + MARK)
    assert b"".join(out) == b"KICKED %d\r\n" % (3 * SLICE + 1) + MARKED
    assert len(out) == 4


def test_a_kick_of_exactly_a_slice_needs_no_more() -> None:
    talk = Talk()
    delayed_jobs(talk, SLICE)
    assert slices(talk, b"kick 100000\r\n") == [b"KICKED %d\r\n" % SLICE]


def test_a_kick_under_way_counts_what_others_left() -> None:
    talk = Talk()
    delayed_jobs(talk, 2 * SLICE)
    other = Talk(talk.broker)
    assert talk.session.receive(b"kick 100000\r\n" + MARK, talk.now) == b""
    assert other.send(b"delete %d\r\n" % (2 * SLICE)) == b"DELETED\r\n"
    assert talk.resume() == b"KICKED %d\r\n" % (2 * SLICE - 1) + MARKED


def test_a_kick_under_way_does_not_chase_jobs_that_come_meanwhile() -> None:
    talk = Talk()
    delayed_jobs(talk, 2 * SLICE)
    other = Talk(talk.broker)
    talk.session.receive(b"kick 100000\r\n", talk.now)
    delayed_jobs(other, SLICE)
    assert talk.resume() == b"KICKED %d\r\n" % (2 * SLICE)


def test_a_client_that_goes_during_its_kick_leaves_the_rest_as_it_is() -> None:
    talk = Talk()
    delayed_jobs(talk, 2 * SLICE)
    talk.session.receive(b"kick 100000\r\n", talk.now)
    talk.close()
    other = Talk(talk.broker)
    assert other.send(b"kick 100000\r\n") == b"KICKED %d\r\n" % SLICE
