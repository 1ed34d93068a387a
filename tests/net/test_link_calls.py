"""Calls between two processes, here two `Links` of one process, and peers that break the protocol. Real sockets."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest
from gevent import socket as gsocket
from gevent.event import Event

from greenstalk_server.net.link_calls import MAX_CALLS, MAX_JSON, CallError, Message
from greenstalk_server.net.links import Links
from greenstalk_server.protocol import link_frames as frames
from tests.net.in_process import read_to_end, wait_until
from tests.net.link_peer import Process, linked_pair
from tests.net.test_links import refusals

MAX_BODY = 2**22
"""Bytes that fit beside the largest job, with some JSON."""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[list[Process]]:
    with linked_pair(tmp_path) as both:
        yield both


@pytest.fixture
def pair(processes: list[Process]) -> tuple[Links, Links]:
    return processes[0].links, processes[1].links


def echo(peer: int, arguments: Message) -> Message:
    return Message([peer, arguments.value], arguments.body[::-1])


def test_call_returns_the_answer_of_the_handler(pair: tuple[Links, Links]) -> None:
    pair[0].handlers["echo"] = echo
    pair[1].handlers["echo"] = echo
    assert pair[0].call(1, "echo", Message({"a": "é"}, b"body\0")) == Message([0, {"a": "é"}], b"\0ydob")
    assert pair[1].call(0, "echo", Message(None)) == Message([1, None], b"")
    assert pair[1].call(1, "echo", Message("own")).value == [1, "own"]


def test_body_of_any_size_arrives(pair: tuple[Links, Links]) -> None:
    """In each direction, one of the messages ends exactly with a frame, and so an empty frame follows."""
    pair[1].handlers["echo"] = echo
    for size in [*range(65536 - 60, 65536), 3 * 65536, MAX_BODY]:
        body = bytes(range(256)) * (size // 256) + bytes(size % 256)
        assert pair[0].call(1, "echo", Message(None, body)).body == body[::-1]


def test_error_of_a_handler_is_raised_in_the_caller(
    pair: tuple[Links, Links], caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(peer: int, arguments: Message) -> Message:
        raise CallError("no such tube")

    def fail(peer: int, arguments: Message) -> Message:
        raise KeyError("x")

    pair[1].handlers.update(refuse=refuse, fail=fail)
    for name, text, may_have_run in (
        ("refuse", "no such tube", False),
        ("unknown", "unknown call unknown", False),
        ("fail", "internal error of the process", True),
    ):
        with pytest.raises(CallError, match=text) as error:
            pair[0].call(1, name, Message())
        assert error.value.may_have_run is may_have_run
    with pytest.raises(CallError, match="unknown call unknown"):
        pair[1].call(1, "unknown", Message())
    with pytest.raises(CallError, match="shard 2 cannot be reached") as error:
        pair[0].call(2, "refuse", Message())
    assert not error.value.may_have_run
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "internal error in a call of shard 0"
    ]


def test_message_that_is_too_large_is_refused(pair: tuple[Links, Links]) -> None:
    pair[1].handlers["grow"] = lambda peer, arguments: Message("x" * (MAX_JSON + 1))
    with pytest.raises(CallError, match="too large"):
        pair[0].call(1, "grow", Message("x" * MAX_JSON))
    with pytest.raises(CallError, match="too large"):
        pair[0].call(1, "grow", Message(None, bytes(2 * MAX_BODY)))
    with pytest.raises(CallError, match="too large"):
        pair[0].call(1, "grow", Message())


def test_call_times_out_and_its_late_answer_is_ignored(pair: tuple[Links, Links]) -> None:
    release, ended = Event(), Event()

    def wait(peer: int, arguments: Message) -> Message:
        try:
            release.wait()
        finally:
            ended.set()
        return Message()

    pair[1].handlers.update(wait=wait, echo=echo)
    with pytest.raises(CallError, match=r"shard 1 has not answered within 0\.05 s|took more than") as error:
        pair[0].call(1, "wait", Message(), timeout=0.05)
    assert error.value.may_have_run
    assert ended.wait(5)
    assert pair[0].call(1, "echo", Message(1)).value == [0, 1]


def test_lost_link_ends_calls(pair: tuple[Links, Links]) -> None:
    started = Event()

    def wait(peer: int, arguments: Message) -> Message:
        started.set()
        return Event().wait(10) or Message()

    pair[1].handlers["wait"] = wait
    caller = gevent.spawn(pair[0].call, 1, "wait", Message())
    assert started.wait(5)
    pair[1].drop(pair[1]._links["b0"])
    with pytest.raises(CallError, match="the link to shard 1 was lost before the answer") as error:
        caller.get(timeout=5)
    assert error.value.may_have_run


def test_calls_above_the_bound_wait(pair: tuple[Links, Links]) -> None:
    running, release, counts = [0], Event(), set()

    def wait(peer: int, arguments: Message) -> Message:
        running[0] += 1
        counts.add(running[0])
        release.wait()
        running[0] -= 1
        return Message()

    pair[1].handlers["wait"] = wait
    callers = [gevent.spawn(pair[0].call, 1, "wait", Message()) for _ in range(MAX_CALLS + 10)]
    wait_until(lambda: running[0] == MAX_CALLS)
    release.set()
    assert len(gevent.joinall(callers, timeout=5)) == MAX_CALLS + 10
    assert max(counts) == MAX_CALLS


def message(text: bytes) -> bytes:
    return len(text).to_bytes(4, "little") + text


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ([(frames.ANSWER, 1, message(b"{}"))], "an answer to call 1, which was not made"),
        ([(frames.CALL, 1, b"abc")], "a message without JSON"),
        ([(frames.CALL, 1, b"\xff\xff\xff\xff{}")], "a message with too much JSON"),
        ([(frames.CALL, 1, message(b"[1]"))], "a message with malformed JSON"),
        ([(frames.CALL, 1, message(b"[" * 60000))], "a message with malformed JSON"),
        ([(frames.CALL, 1, message(b"{}"))], "a call without name or timeout"),
        ([(frames.CALL, 1, message(b'{"name":"x","timeout":NaN}'))], "a call without name or timeout"),
        ([(frames.CALL, 1, bytes(65536)), (frames.CALL, 2, b"")], "a message begins before the previous one ends"),
        ([(frames.CALL, 1, bytes(65536))] * 67, "a message of more than 4390909 bytes"),
    ],
)
def test_peer_that_breaks_the_protocol_loses_the_link(
    processes: list[Process],
    caplog: pytest.LogCaptureFixture,
    sent: list[tuple[int, int, bytes]],
    reason: str,
) -> None:
    peer = processes[0].linked("a1", shard=2)
    with gsocket.socket(fileno=os.dup(peer.sock.fileno())) as sock:
        sock.sendall(b"".join(frames.frame(*each) for each in sent))
        read_to_end(peer.sock)
    assert refusals(caplog)[0] == f"link to shard 2: {reason}; the link is closed"
