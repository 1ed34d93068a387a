"""Replies to bodies, extensions and faulty lines in different pieces. Afterwards the session is at the right byte.

tests/conformance has the replies of all other verbs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from greenstalk_server.core.operations import draining
from greenstalk_server.protocol.arguments import MAX_PUT_LINE
from tests.support.talk import CUTS, MARK, MARKED, Talk
from tests.support.world import FullJournal, make_broker

pytestmark = pytest.mark.each_build

Cut = Callable[[bytes], list[bytes]]

PUT = b"put 0 0 60 1\r\nx\r\n"
LONG = b"a" * 223
BIGGEST = b"b" * 65535

NAME = b"n" * 200 + b" "
LONGEST_PUT = b"put-in-tube %b0 0 60 1 idp:%bgrp:%baft:%bcon:%b" % (NAME, NAME, NAME, NAME.upper(), NAME)
LONGEST_PUT += b" " * (MAX_PUT_LINE - len(LONGEST_PUT) - 2)

CONVERSATIONS: dict[str, tuple[bytes, bytes]] = {
    # put
    "put": (PUT, b"INSERTED 1\r\n"),
    "put of an empty body": (b"put 0 0 0 0\r\n\r\npeek 1\r\n", b"INSERTED 1\r\nFOUND 1 0\r\n\r\n"),
    "body contains framing": (
        b"put 0 0 60 9\r\nquit\r\n\r\n\0\r\npeek 1\r\n",
        b"INSERTED 1\r\nFOUND 1 9\r\nquit\r\n\r\n\0\r\n",
    ),
    "put of the maximum size": (b"put 0 0 60 65535\r\n" + BIGGEST + b"\r\n", b"INSERTED 1\r\n"),
    "put too big": (b"put 0 0 60 65536\r\n" + BIGGEST + b"b\r\n" + PUT, b"JOB_TOO_BIG\r\nINSERTED 1\r\n"),
    "put too big discards commands in the body": (
        b"put 0 0 60 65536\r\n" + b"stats\r\n" * 9362 + b"quit" + PUT,
        b"JOB_TOO_BIG\r\nINSERTED 1\r\n",
    ),
    "put too big with garbage on the line": (
        b"put 0 0 60 65536 x\r\n" + BIGGEST + b"b\r\n" + PUT,
        b"JOB_TOO_BIG\r\nINSERTED 1\r\n",
    ),
    "put with garbage has no body": (
        b"put 0 0 60 1 x\r\nx\r\n",
        b"BAD_FORMAT\r\nUNKNOWN_COMMAND\r\n",
    ),
    "put with bad numbers has no body": (
        b"put a 0 60 1\r\nx\r\n",
        b"BAD_FORMAT\r\nUNKNOWN_COMMAND\r\n",
    ),
    "a body of CRs": (b"put 0 0 60 2\r\n\r\r\r\npeek 1\r\n", b"INSERTED 1\r\nFOUND 1 2\r\n\r\r\r\n"),
    # extensions
    "put-in-tube": (
        b"put-in-tube a 0 0 60 1\r\nx\r\nlist-tube-used\r\nuse a\r\npeek-ready\r\nuse default\r\n",
        b"INSERTED 1\r\nUSING default\r\nUSING a\r\nFOUND 1 1\r\nx\r\nUSING default\r\n",
    ),
    "put-in-tube that is malformed discards its body": (
        b"put-in-tube -a 0 0 60 7\r\nstats\r\n\r\nput-in-tube a x 0 60 4\r\nquit\r\n"
        b"put-in-tube a 0 0 9 4 x\r\nquit\r\n" + PUT,
        b"BAD_FORMAT\r\n" * 3 + b"INSERTED 1\r\n",
    ),
    # tags
    "flush of a tube of which only keys are left": (
        (
            b"put-in-tube a 0 0 60 1 idp:k:60\r\na\r\ndelete 1\r\nflush-buried a\r\nflush-tube a\r\nflush-tube a\r\n"
            b"put-in-tube a 0 0 60 1 idp:k\r\nb\r\n"
        ),
        b"INSERTED 1\r\nDELETED\r\nNOT_FOUND\r\nFLUSHED 0\r\nNOT_FOUND\r\nINSERTED 2\r\n",
    ),
    "bad tags discard the body": (
        b"put 0 0 60 7 idp:\r\nstats\r\n\r\nput 0 0 60 4 con:c:0\r\nquit\r\nput 0 0 60 4 grp:g x\r\nquit\r\n"
        b"put-in-tube a 0 0 60 4 aft:a:1\r\nquit\r\nput 0 0 60 4 grp:g aft:g\r\nquit\r\n" + PUT,
        b"BAD_FORMAT\r\n" * 5 + b"INSERTED 1\r\n",
    ),
    "a faulty put with a tag discards its body": (
        b"put 0 0 60 6 idp:\0\r\nquit\r\n\r\nput -1 0 60 4 con:k\r\nquit\r\n"
        b"put 0 0 60 70000 con:\r\n" + b"b" * 70_000 + b"\r\n" + PUT,
        b"BAD_FORMAT\r\n" * 3 + b"INSERTED 1\r\n",
    ),
    "longest line of a put with tags": (LONGEST_PUT + b"\r\nx\r\npeek 1\r\n", b"INSERTED 1\r\nFOUND 1 1\r\nx\r\n"),
    "put-in-tube of the longest name": (
        b"put-in-tube " + NAME + b"0 0 60 1\r\nx\r\npeek 1\r\n",
        b"INSERTED 1\r\nFOUND 1 1\r\nx\r\n",
    ),
    "line of a put with tags that is too long discards the body": (
        LONGEST_PUT.replace(b" 1 ", b" 6 ") + b" \r\nquit\r\n\r\n" + PUT,
        b"BAD_FORMAT\r\nINSERTED 1\r\n",
    ),
    "body of a line that is much too long": (
        b"put 0 0 60 6 grp:" + b"g" * 5000 + b"\r\nquit\r\n\r\n" + PUT,
        b"BAD_FORMAT\r\nINSERTED 1\r\n",
    ),
    "too long line without a tag has no body": (
        b"put 0 0 60 1 " + b"x" * 212 + b"\r\nx\r\nput 0 0 60 1 " + b"x" * 1500 + b" idp:k\r\nx\r\n",
        b"BAD_FORMAT\r\nUNKNOWN_COMMAND\r\n" * 2,
    ),
    "too long line of another command has no body": (
        b"put-in-tubes 0 0 60 1 idp:" + b"x" * 1500 + b"\r\nx\r\n",
        b"BAD_FORMAT\r\nUNKNOWN_COMMAND\r\n",
    ),
    "put-in-tube without a size has no body": (
        b"put-in-tube a 0 0 60\r\nx\r\n",
        b"BAD_FORMAT\r\nUNKNOWN_COMMAND\r\n",
    ),
    "put-in-tube too big": (
        b"put-in-tube a 0 0 60 65536\r\n" + BIGGEST + b"b\r\nlist-tubes\r\n",
        b"JOB_TOO_BIG\r\nOK 14\r\n---\n- default\n\r\n",
    ),
    "the longest delete-batch": (
        b"delete-batch" + b" 18446744073709551615" * 1000 + b"\r\n",
        b"DELETED_BATCH 0 1000\r\n",
    ),
    "a delete-batch that is too long": (
        b"delete-batch" + b" 18446744073709551615" * 1000 + b"  \r\n",
        b"BAD_FORMAT\r\n",
    ),
    "a delete-batch with too many ids": (
        b"delete-batch" + b" 1" * 1001 + b"\r\n",
        b"BAD_FORMAT\r\n",
    ),
    "a long line that begins almost like a delete-batch": (
        b"delete-batches" + b" 1" * 200 + b"\r\n",
        b"BAD_FORMAT\r\n",
    ),
    "drain without an access rule": (
        b"drain\r\nundrain\r\ndrain x\r\n" + PUT,
        b"UNKNOWN_COMMAND\r\nUNKNOWN_COMMAND\r\nBAD_FORMAT\r\nINSERTED 1\r\n",
    ),
    "stats-mode": (
        b"stats-mode extended\r\nstats-mode standard\r\nstats-mode x\r\nstats-mode\r\n" + PUT,
        b"USING extended\r\nUSING standard\r\nBAD_FORMAT\r\nBAD_FORMAT\r\nINSERTED 1\r\n",
    ),
    "reprioritize": (
        PUT * 2 + b"reprioritize 1 9\r\nreserve\r\nreprioritize 2 1\r\nreprioritize 3 1\r\n",
        b"INSERTED 1\r\nINSERTED 2\r\nREPRIORITIZED\r\nRESERVED 2 1\r\nx\r\nALREADY_RESERVED\r\n" + b"NOT_FOUND\r\n",
    ),
    "wait": (
        PUT + b"wait 1 0\r\nwait 2\r\nreserve\r\nwait 1 0\r\nbury 1 0\r\nwait 1\r\ndelete 1\r\n" + b"wait 1\r\n",
        (
            b"INSERTED 1\r\nTIMED_OUT\r\nNOT_FOUND\r\nRESERVED 1 1\r\nx\r\nTIMED_OUT\r\nBURIED\r\n"
            b"BURIED 1\r\nDELETED\r\nNOT_FOUND\r\n"
        ),
    ),
    "meta": (
        (
            b"put 7 0 2.5 1\r\nx\r\nmeta pri tube ttr age reserves timeouts releases attempts\r\n"
            b"peek 1\r\nreserve\r\nmeta reserves\r\npeek-reserved\r\nmeta x\r\nreserve-batch 1\r\n"
            b"meta\r\npeek 1\r\n"
        ),
        (
            b"INSERTED 1\r\nMETA 8\r\nFOUND 1 1 7 default 2.5 0 0 0 0 0\r\nx\r\n"
            b"RESERVED 1 1 7 default 2.5 0 1 0 0 1\r\nx\r\nMETA 1\r\nFOUND 1 1 1\r\nx\r\n"
            b"BAD_FORMAT\r\nRESERVED_BATCH 0\r\nMETA 0\r\nFOUND 1 1\r\nx\r\n"
        ),
    ),
    "fractions of seconds": (
        (b"put 0 0.5 0.25 0\r\n\r\npause-tube default 0.5\r\nreserve-with-timeout 0.0\r\nmeta ttr\r\npeek-delayed\r\n"),
        b"INSERTED 1\r\nPAUSED\r\nTIMED_OUT\r\nMETA 1\r\nFOUND 1 0 0.25\r\n\r\n",
    ),
    # lines
    "an empty line": (b"\r\n", b"UNKNOWN_COMMAND\r\n"),
    "LF alone is data": (b"stats\nstats\r\nhello\nhello\r\n", b"BAD_FORMAT\r\nUNKNOWN_COMMAND\r\n"),
    "CR alone is data": (b"hello\rhello\r\nstats\r\r\n", b"UNKNOWN_COMMAND\r\nBAD_FORMAT\r\n"),
    "NUL": (b"hello\0\r\n", b"BAD_FORMAT\r\n"),
    "the longest line": (
        b"use " + b"n" * 200 + b"\r\nuse default\r\n",
        b"USING " + b"n" * 200 + b"\r\nUSING default\r\n",
    ),
    "224 bytes": (b"a" * 222 + b"\r\n", b"UNKNOWN_COMMAND\r\n"),
    "225 bytes": (LONG + b"\r\n", b"BAD_FORMAT\r\n"),
    "a long line that begins like a command": (b"put 0 0 60 1" + b" " * 300 + b"\r\n", b"BAD_FORMAT\r\n"),
    "a long line with stray CRs and LFs": (LONG + b"\r\r\n" + LONG + b"\n\r\r\r\n", b"BAD_FORMAT\r\n" * 2),
    "a long line with NULs": (b"\0" * 1000 + b"\r\n", b"BAD_FORMAT\r\n"),
    "a very long line": (b"a" * 100_000 + b"\r\n", b"BAD_FORMAT\r\n"),
    "a line of CRs": (b"\r" * 500 + b"\n", b"BAD_FORMAT\r\n"),
}

MAX_BYTE_BY_BYTE = 5000
"""Maximum size of a conversation that is sent in small pieces throughout: each piece checks the broker."""


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_replies_do_not_depend_on_the_pieces_of_the_input(name: str) -> None:
    sent, replies = CONVERSATIONS[name]
    for cut in CUTS:
        talk, is_short = Talk(), len(sent) <= MAX_BYTE_BY_BYTE
        pieces = cut(sent) if is_short else [sent[:20], *cut(sent[20:40]), sent[40:-20], *cut(sent[-20:])]
        assert talk.send_all(pieces) == replies, cut
        assert talk.send_all(cut(MARK)) == MARKED, cut


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_replies_are_the_same_with_trailing_data(name: str) -> None:
    sent, replies = CONVERSATIONS[name]
    for trailing in (b"", b"hello\r", b"put 0 0 60 5\r\nabc", MARK[:-2]):
        assert Talk().send(sent + MARK + trailing) == replies + MARKED, trailing


@pytest.mark.parametrize("cut", CUTS)
def test_line_of_any_length_gets_one_reply(cut: Cut) -> None:
    """Some lines have CR at a multiple of 224 bytes, where beanstalkd loses the next command."""
    for length in (*range(220, 230), *range(445, 452), *range(669, 676)):
        expected = b"UNKNOWN_COMMAND\r\n" if length <= 224 else b"BAD_FORMAT\r\n"
        assert Talk().send_all(cut(b"a" * (length - 2) + b"\r\n" + MARK)) == expected + MARKED, length


@pytest.mark.parametrize("cut", CUTS)
def test_stray_cr_in_a_long_line_does_not_end_it(cut: Cut) -> None:
    for at in (0, 1, 222, 223, 224, 225, 447, 448, 449):
        line = bytearray(b"a" * 600 + b"\r\n")
        line[at : at + 1] = b"\r"
        assert Talk().send_all(cut(bytes(line) + MARK)) == b"BAD_FORMAT\r\n" + MARKED, at


@pytest.mark.parametrize("lead", range(3))
def test_long_line_is_answered_when_its_end_arrives(lead: int) -> None:
    talk = Talk()
    assert talk.send(b"a" * (222 + lead)) == b""
    assert talk.send(b"a" * 10_000 + b"\r") == b""
    assert talk.send(b"\n" + MARK) == b"BAD_FORMAT\r\n" + MARKED


UNTERMINATED = {
    "body too long": b"put 0 0 60 1\r\nxyzstats\r\n",
    "body too short": b"put 0 0 60 3\r\nx\r\nquitter\r\n",
    "body followed by CR and another byte": b"put 0 0 60 1\r\nx\rx",
    "body followed by another byte and LF": b"put 0 0 60 1\r\nxx\n",
    "put-in-tube": b"put-in-tube a 0 0 60 1\r\nxyz",
    "put with a tag": b"put 0 0 60 1 idp:k\r\nxyz",
    "large body": b"put 0 0 60 65535\r\n" + b"x" * 65538,
}
"""Puts whose bodies do not end with CRLF after the announced size."""


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", UNTERMINATED)
def test_connection_is_closed_after_a_body_without_its_end(name: str, cut: Cut) -> None:
    talk = Talk()
    sent = MARK + UNTERMINATED[name] + PUT + MARK
    pieces = cut(sent) if len(sent) <= MAX_BYTE_BY_BYTE else [sent[:-20], *cut(sent[-20:])]
    assert talk.send_all(pieces) == MARKED + b"EXPECTED_CRLF\r\n"
    assert talk.session.is_closing
    assert not talk.broker.jobs
    assert list(talk.broker.tubes) == [b"default"]


STRICT_REPLIES = {
    "body too long": b"EXPECTED_CRLF\r\nOK",
    "body too short": b"EXPECTED_CRLF\r\nUNKNOWN_COMMAND\r\n" + MARKED,
    "body followed by CR and another byte": b"EXPECTED_CRLF\r\n" + MARKED,
    "put with a tag": b"BAD_FORMAT\r\nUNKNOWN_COMMAND\r\n",
}


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", STRICT_REPLIES)
def test_commands_follow_a_body_without_its_end_in_strict_mode(name: str, cut: Cut) -> None:
    talk = Talk()
    assert talk.send_all(cut(UNTERMINATED[name] + MARK)).startswith(STRICT_REPLIES[name])
    assert not talk.session.is_closing


def test_refused_put_is_answered_before_its_body() -> None:
    talk = Talk()
    assert talk.send(b"put 0 0 60 6 idp:\r\n") == b"BAD_FORMAT\r\n"
    assert talk.send(b"quit") == b""
    assert talk.send(b"\r\n\r\n" + MARK) == MARKED
    assert talk.send(b"put 0 0 60 4 idp:" + b"k" * 2000 + b"\r\n") == b"BAD_FORMAT\r\n"
    assert talk.send(b"quit\r\n" + MARK) == MARKED


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("size_at", [1195, 1200, 3000])
def test_connection_is_closed_after_a_line_that_is_too_long_for_the_size_to_be_read(size_at: int, cut: Cut) -> None:
    talk = Talk()
    line = b"put-in-tube " + b"n" * (size_at - 19) + b" 0 0 60"
    assert talk.send_all(cut(line + b" 000006\r\nquit\r\n\r\n" + MARK)) == b"BAD_FORMAT\r\n"
    assert talk.session.is_closing


def test_quit_has_no_reply_and_later_commands_are_ignored() -> None:
    talk = Talk()
    assert talk.send(MARK + b"quit\r\n" + MARK) == MARKED
    assert talk.session.is_closing


def test_max_job_size_of_the_broker_applies() -> None:
    broker = make_broker()
    broker.max_job_size = 3
    talk = Talk(broker)
    assert talk.send(b"put 0 0 9 3\r\nabc\r\nput 0 0 9 4\r\nabcd\r\n") == b"INSERTED 1\r\nJOB_TOO_BIG\r\n"


def test_put_without_room_in_the_journal_is_out_of_memory() -> None:
    talk = Talk()
    talk.broker.journal = FullJournal()
    assert talk.send(PUT + b"peek 1\r\n") == b"OUT_OF_MEMORY\r\nNOT_FOUND\r\n"


# Ids, and the order of the checks of a put


def test_failed_put_uses_an_id_unless_it_is_too_big() -> None:
    talk = Talk()
    talk.send(b"put 0 0 9 65536\r\n" + b"b" * 65538 + b"put 0 0 9 1 x\r\nputput\r\n" + b"put 0 0 9 1\r\nxyz")
    assert Talk(talk.broker).send(PUT) == b"INSERTED 2\r\n"


def test_ids_follow_the_order_of_put_headers() -> None:
    first, second = Talk(), None
    assert first.send(b"put 0 0 9 1\r\n") == b""
    second = Talk(first.broker)
    assert second.send(PUT) == b"INSERTED 2\r\n"
    assert first.send(b"x\r\n") == b"INSERTED 1\r\n"
    assert second.send(b"reserve\r\n") == b"RESERVED 1 1\r\nx\r\n"


def test_disconnect_in_a_body_uses_an_id_and_creates_no_job() -> None:
    first = Talk()
    first.send(b"put 0 0 9 10\r\nabc")
    second = Talk(first.broker)
    assert second.send(b"peek 1\r\n") == b"NOT_FOUND\r\n"
    first.close()
    assert second.send(PUT) == b"INSERTED 2\r\n"


def test_draining_refuses_only_puts_after_their_body() -> None:
    talk = Talk()
    talk.send(PUT)
    draining.drain(talk.broker)
    assert Talk(talk.broker).send(b"put 0 0 9 1\r\nx\r\nput 0 0 9 1\r\nxyz") == b"DRAINING\r\nEXPECTED_CRLF\r\n"
    assert talk.send(b"put 0 0 9 65536\r\n" + b"b" * 65538) == b"JOB_TOO_BIG\r\n"
    assert talk.send(b"reserve\r\nrelease 1 0 0\r\n") == b"RESERVED 1 1\r\nx\r\nRELEASED\r\n"
    assert talk.broker.next_id == 4
