"""Each call does a bounded amount of work. Output, commands and kicks continue with `has_more`, without loss."""

from __future__ import annotations

import pytest

from greenstalk_server.core.broker import SLICE
from greenstalk_server.protocol.costs import (
    COMMAND_SLICE,
    NEW_TUBE_COST,
    OUTPUT_SLICE,
    SHORT_LIST,
    WATCHED_BATCH,
    WATCHED_COST,
)
from tests.support.talk import MARK, MARKED, Talk, slices, stream_of
from tests.support.world import make_broker

BODY = b"b" * 60_000
PUT = b"put 0 0 60 60000\r\n" + BODY + b"\r\n"


def test_big_replies_are_sent_in_slices() -> None:
    talk = Talk()
    talk.send(PUT * 10)
    out = slices(talk, b"reserve\r\n" * 10 + MARK)
    assert b"".join(out) == b"".join(b"RESERVED %d 60000\r\n%b\r\n" % (id, BODY) for id in range(1, 11)) + MARKED
    assert len(out) >= 5
    assert max(len(reply) for reply in out) <= OUTPUT_SLICE + len(BODY) + 100


def test_peeks_of_big_jobs_and_long_lists_are_sent_in_slices() -> None:
    talk = Talk()
    talk.send(PUT)
    for number in range(100):
        talk.send(b"watch %b\r\n" % (b"%0200d" % number))
    for sent, biggest in ((b"peek 1\r\n", len(BODY)), (b"peek-ready\r\n", len(BODY)), (b"list-tubes\r\n", 30_000)):
        out = slices(talk, sent * 20)
        assert len(out) >= 5
        assert max(len(reply) for reply in out) <= OUTPUT_SLICE + biggest + 100


def test_ends_of_pauses_are_served_in_slices() -> None:
    """The end of each pause may hand out a slice of jobs."""
    talk = Talk()
    out = slices(talk, b"pause-tube default 0\r\n" * 30)
    assert b"".join(out) == b"PAUSED\r\n" * 30
    assert max(len(reply) for reply in out) <= 3 * len(b"PAUSED\r\n")


def test_many_commands_are_served_in_slices() -> None:
    talk = Talk()
    count = 3 * COMMAND_SLICE
    out = slices(talk, MARK * count)
    assert b"".join(out) == MARKED * count
    assert max(len(reply) for reply in out) == COMMAND_SLICE * len(MARKED)


def test_cost_of_a_reserve_increases_with_the_watched_tubes() -> None:
    """Otherwise a thousand reserves from ten thousand tubes would be one slice, which takes seconds."""
    talk = Talk()
    for number in range(2 * WATCHED_BATCH):
        talk.session.receive(b"watch tube-%d\r\n" % number, talk.now)
    slices(talk, b"reserve-with-timeout 0\r\n")  # makes the tube set
    count = 3 * OUTPUT_SLICE // (2 * WATCHED_COST)
    out = slices(talk, b"reserve-with-timeout 0\r\n" * count)
    assert b"".join(out) == b"TIMED_OUT\r\n" * count
    assert len(out) == 3
    for number in range(2 * WATCHED_BATCH):
        talk.session.receive(b"ignore tube-%d\r\n" % number, talk.now)
    assert len(slices(talk, b"reserve-with-timeout 0\r\n" * count)) == 1


def test_cost_of_stats_does_not_depend_on_the_number_of_tubes() -> None:
    talk = Talk()
    for number in range(1000):
        talk.session.receive(b"use tube-%d\r\nput 0 0 60 0\r\n\r\n" % number, talk.now)
    talk.session.receive(b"stats\r\n", talk.now)
    many = talk.session.cost
    few = Talk()
    few.session.receive(b"stats\r\n", few.now)
    assert many <= few.session.cost + 50


def test_body_larger_than_a_slice_is_a_stream_and_the_next_command_waits() -> None:
    talk = Talk(make_broker(max_job_size=10**7))
    body = bytes(range(256)) * 20_000
    talk.send(b"put 0 0 60 %d\r\n%b\r\n" % (len(body), body))
    assert talk.session.receive(b"peek 1\r\n" + MARK, talk.now) == b"FOUND 1 %d\r\n" % len(body)
    assert talk.session.has_more and not talk.session.wants_input
    pieces = stream_of(talk.session)
    assert b"".join(pieces) == body + b"\r\n"
    assert max(map(len, pieces)) <= OUTPUT_SLICE + 2
    assert talk.resume() == MARKED
    assert talk.send(b"reserve\r\n" + MARK) == b"RESERVED 1 %d\r\n%b\r\n" % (len(body), body) + MARKED


def test_large_body_that_ends_a_wait_is_a_stream() -> None:
    talk = Talk(make_broker(max_job_size=10**7))
    other = Talk(talk.broker)
    body = bytes(10**6)
    talk.send(b"reserve\r\n" + MARK)
    other.send(b"put 0 0 60 %d\r\n%b\r\n" % (len(body), body))
    assert talk.session.resume(talk.now) == b"RESERVED 1 %d\r\n" % len(body)
    assert talk.session.has_more
    assert b"".join(stream_of(talk.session)) == body + b"\r\n"
    assert talk.resume() == MARKED


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_body_around_the_size_of_a_piece_is_sent_whole(pieces: int, more: int) -> None:
    size = pieces * OUTPUT_SLICE + more
    talk = Talk(make_broker(max_job_size=10**7))
    body = bytes(size)
    talk.send(b"put 0 0 60 %d\r\n%b\r\n" % (len(body), body))
    assert talk.send(b"peek 1\r\n" + MARK) == b"FOUND 1 %d\r\n%b\r\n" % (len(body), body) + MARKED


@pytest.mark.parametrize("count", [SHORT_LIST - 1, SHORT_LIST, SHORT_LIST + 1, 1000, 20_000])
@pytest.mark.parametrize("length", [5, 200])
def test_long_lists_are_streams_of_small_pieces(count: int, length: int) -> None:
    talk = Talk()
    names = [b"default", *(b"%0*d" % (length, number) for number in range(count - 1))]
    talk.send(b"".join([b"watch %b\r\n" % name for name in names]))
    yaml = b"---\n" + b"".join(b"- %b\n" % name for name in names)
    for command in (b"list-tubes\r\n", b"list-tubes-watched\r\n"):
        out = talk.session.receive(command + MARK, talk.now)
        pieces = stream_of(talk.session)
        rest = talk.session.resume(talk.now) if talk.session.has_more else b""
        assert out + b"".join(pieces) + rest == b"OK %d\r\n%b\r\n" % (len(yaml), yaml) + MARKED
        assert max(map(len, [out, *pieces])) <= OUTPUT_SLICE + 300


def test_list_does_not_change_while_it_is_sent() -> None:
    talk = Talk()
    talk.send(b"".join([b"watch %0200d\r\n" % number for number in range(1000)]))
    out = talk.session.receive(b"list-tubes\r\n", talk.now)
    Talk(talk.broker).send(b"use new\r\n")
    pieces = stream_of(talk.session)
    assert sum(map(len, pieces)) == int(out.split()[1]) + 2
    assert b"- new\n" not in b"".join(pieces)
    assert b"- default\n" in talk.send(b"list-tubes\r\n")


def test_connections_that_list_the_same_tubes_share_one_list() -> None:
    first = Talk()
    first.send(b"".join([b"watch %0200d\r\n" % number for number in range(1000)]))
    talks = [Talk(first.broker) for _ in range(50)]
    for talk in talks:
        talk.session.receive(b"list-tubes\r\n", talk.now)
    assert first.broker.listed_names.names == 1001
    for talk in talks:
        talk.close()
    assert first.broker.listed_names.names == 0


def test_lists_are_refused_while_too_many_names_are_being_sent() -> None:
    first = Talk()
    first.broker.listed_names.limit = 2500
    first.send(b"".join([b"watch %0200d\r\n" % number for number in range(1000)]))
    talks = [Talk(first.broker) for _ in range(4)]
    for talk in talks[:2]:
        talk.send(b"".join([b"watch %0200d\r\n" % number for number in range(1000)]))
        assert talk.session.receive(b"list-tubes-watched\r\n", talk.now).startswith(b"OK ")
    assert talks[2].send(b"list-tubes\r\n" + MARK) == b"OUT_OF_MEMORY\r\n" + MARKED
    assert first.broker.limit_counters.counts()["listings"] == 1
    talks[0].close()
    assert talks[2].send(b"list-tubes\r\n").startswith(b"OK ")


@pytest.mark.parametrize("verb", [b"use", b"watch"])
def test_new_tubes_have_a_cost(verb: bytes) -> None:
    count = 3 * OUTPUT_SLICE // NEW_TUBE_COST
    request = b"".join([b"%b tube-%d\r\nput 0 0 60 0\r\n\r\n" % (verb, number) for number in range(count)])
    counts = [out.count(b"INSERTED") for out in slices(Talk(), request)]
    assert sum(counts) == count and max(counts) <= OUTPUT_SLICE // NEW_TUBE_COST + 1


def test_dropped_tubes_have_a_cost() -> None:
    talk = Talk()
    count = 3 * OUTPUT_SLICE // NEW_TUBE_COST
    for number in range(count):
        talk.send(b"watch tube-%d\r\n" % number)
    out = slices(talk, b"".join([b"ignore tube-%d\r\n" % number for number in range(count)]))
    counts = [reply.count(b"WATCHING") for reply in out]
    assert sum(counts) == count and max(counts) <= OUTPUT_SLICE // NEW_TUBE_COST + 1


def test_others_are_served_between_slices() -> None:
    busy = Talk()
    other = Talk(busy.broker)
    out = busy.session.receive(b"use a\r\n" * COMMAND_SLICE + b"use b\r\n", busy.now)
    assert busy.session.has_more
    assert other.send(b"list-tubes\r\n") == b"OK 18\r\n---\n- default\n- a\n\r\n"
    assert busy.session.resume(busy.now) == b"USING b\r\n"
    assert out == b"USING a\r\n" * COMMAND_SLICE


def test_slice_may_end_inside_a_body() -> None:
    talk = Talk()
    sent = MARK * (COMMAND_SLICE - 1) + b"put 0 0 60 5\r\nab"
    assert talk.send(sent) == MARKED * (COMMAND_SLICE - 1)
    assert talk.send(b"cde\r\n" + MARK) == b"INSERTED 1\r\n" + MARKED


def test_slice_may_end_inside_a_line() -> None:
    talk = Talk()
    assert talk.send(MARK * COMMAND_SLICE + MARK[:5]) == MARKED * COMMAND_SLICE
    assert talk.send(MARK[5:]) == MARKED


def test_slice_may_end_with_a_waiting_reserve() -> None:
    talk = Talk()
    assert talk.send(MARK * (COMMAND_SLICE - 1) + b"reserve\r\n" + MARK) == MARKED * (COMMAND_SLICE - 1)
    assert talk.session.is_waiting
    assert talk.send_eof() == b"TIMED_OUT\r\n" + MARKED


def test_all_slices_are_served_after_the_end_of_input() -> None:
    talk = Talk()
    talk.send(PUT * 10)
    talk.send(b"watch a\r\nignore default\r\nreserve\r\nwatch default\r\n" + b"reserve\r\n" * 11 + MARK)
    out = talk.send_eof()
    assert out.count(b"RESERVED") == 10
    assert out.endswith(b"TIMED_OUT\r\n" + MARKED)
    assert talk.session.is_closing


def put_delayed(talk: Talk, count: int) -> None:
    talk.send(b"put 0 60 60 0\r\n\r\n" * count)


def test_kick_of_many_jobs_takes_several_slices_and_has_one_reply() -> None:
    talk = Talk()
    put_delayed(talk, 3 * SLICE + 1)
    out = slices(talk, b"kick 100000\r\n" + MARK)
    assert b"".join(out) == b"KICKED %d\r\n" % (3 * SLICE + 1) + MARKED
    assert len(out) == 4


def test_kick_of_exactly_one_slice_ends_with_it() -> None:
    talk = Talk()
    put_delayed(talk, SLICE)
    assert slices(talk, b"kick 100000\r\n") == [b"KICKED %d\r\n" % SLICE]


def test_kick_does_not_count_jobs_deleted_between_its_slices() -> None:
    talk = Talk()
    put_delayed(talk, 2 * SLICE)
    other = Talk(talk.broker)
    assert talk.session.receive(b"kick 100000\r\n" + MARK, talk.now) == b""
    assert other.send(b"delete %d\r\n" % (2 * SLICE)) == b"DELETED\r\n"
    assert talk.resume() == b"KICKED %d\r\n" % (2 * SLICE - 1) + MARKED


def test_kick_does_not_move_jobs_put_between_its_slices() -> None:
    talk = Talk()
    put_delayed(talk, 2 * SLICE)
    other = Talk(talk.broker)
    talk.session.receive(b"kick 100000\r\n", talk.now)
    put_delayed(other, SLICE)
    assert talk.resume() == b"KICKED %d\r\n" % (2 * SLICE)


def test_kick_of_a_client_that_disconnects_stops() -> None:
    talk = Talk()
    put_delayed(talk, 2 * SLICE)
    talk.session.receive(b"kick 100000\r\n", talk.now)
    talk.close()
    other = Talk(talk.broker)
    assert other.send(b"kick 100000\r\n") == b"KICKED %d\r\n" % SLICE
