"""Conversations with a waiting reserve: later commands, the end of the wait, and the end of the input."""

from __future__ import annotations

import pytest

from greenstalk_server.protocol.session import INPUT_LIMIT
from tests.support.talk import MARK, MARKED, Talk, buffered_bytes

PUT = b"put 0 0 60 1\r\nx\r\n"
RESERVED = b"RESERVED 1 1\r\nx\r\n"


@pytest.fixture
def worker() -> Talk:
    return Talk()


@pytest.fixture
def producer(worker: Talk) -> Talk:
    return Talk(worker.broker)


def test_job_wakes_the_session_once_and_is_sent_at_resume(worker: Talk, producer: Talk) -> None:
    assert worker.send(b"reserve\r\n") == b""
    assert worker.session.is_waiting
    assert producer.send(PUT) == b"INSERTED 1\r\n"
    assert (worker.woken, worker.session.is_waiting) == (1, True)
    assert worker.resume() == RESERVED
    assert not worker.session.is_waiting


def test_session_does_not_keep_the_job_that_ended_a_wait(worker: Talk, producer: Talk) -> None:
    worker.send(b"reserve\r\n")
    producer.send(PUT)
    assert worker.resume() == RESERVED
    assert worker.session.client.outcome is None


def test_commands_after_a_waiting_reserve_are_answered_in_order(worker: Talk, producer: Talk) -> None:
    assert worker.send(MARK + b"reserve\r\ndelete 1\r\n" + MARK) == MARKED
    assert worker.send(b"touch 1\r\nput 0 0 9 1\r\n") == b""
    assert worker.send(b"y\r\n") == b""
    producer.send(PUT)
    assert worker.resume() == RESERVED + b"DELETED\r\n" + MARKED + b"NOT_FOUND\r\nINSERTED 2\r\n"


@pytest.mark.parametrize("sent", [b"reserve\r\n", b"reserve-with-timeout 5\r\n"])
def test_half_close_ends_the_wait_and_then_serves_the_rest_of_the_input(worker: Talk, sent: bytes) -> None:
    worker.send(sent + MARK + b"reserve\r\n" + MARK)
    assert worker.send_eof() == b"TIMED_OUT\r\n" + MARKED + b"TIMED_OUT\r\n" + MARKED
    assert worker.session.is_closing
    assert worker.woken == 0


def test_job_that_ended_the_wait_before_the_half_close_is_sent(worker: Talk, producer: Talk) -> None:
    worker.send(b"reserve\r\n")
    producer.send(PUT)
    worker.send(MARK)
    assert worker.send_eof() == RESERVED + MARKED
    assert worker.session.is_closing and not worker.session.is_woken


@pytest.mark.parametrize(
    "sent",
    [b"", b"sta", b"stats\r", b"put 0 0 9 5\r\n", b"put 0 0 9 5\r\nabcde\r", b"put 0 0 9 65536\r\nabc", b"a" * 999],
)
def test_end_of_input_inside_a_line_or_a_body_closes_without_a_reply(worker: Talk, sent: bytes) -> None:
    if sent:
        assert worker.send(sent) == b""
    assert worker.send_eof() == b""
    assert worker.session.is_closing
    assert not worker.broker.jobs


def test_input_buffered_during_a_wait_is_limited(worker: Talk, producer: Talk) -> None:
    worker.send(b"reserve\r\n")
    sent = 0
    while worker.session.wants_input:
        worker.send(MARK * 100)
        sent += 100
    assert INPUT_LIMIT <= buffered_bytes(worker.session) < INPUT_LIMIT + 100 * len(MARK)
    producer.send(PUT)
    assert worker.resume() == RESERVED + MARKED * sent
    assert buffered_bytes(worker.session) == 0
    assert worker.send(MARK) == MARKED
