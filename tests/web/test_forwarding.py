"""Responses that another process of the queue sends in pieces, without the other process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.net.link_calls import CallHandler, Message
from greenstalk_server.web.auth.forwarding import END, NEXT, Sender
from greenstalk_server.web.framework.access import NOBODY
from greenstalk_server.web.framework.shards import Shards


class EndlessResponse:
    """Links to a process whose response has a piece for each call."""

    def __init__(self) -> None:
        self.handlers: dict[str, CallHandler] = {}
        self.calls: list[str] = []

    def call(self, shard: int, name: str, arguments: Message, timeout: float) -> Message:
        self.calls.append(name)
        return Message(arguments.value, b"next")

    def shard_of(self, tube: bytes) -> int:
        return 1

    def is_linked(self, shard: int) -> bool:
        return True


def test_response_of_another_process_ends_with_the_session() -> None:
    links, is_live = EndlessResponse(), [True]
    shards = Shards(IdSequence(0, 2, 0), links)
    pieces = Sender(shards.call, 0)._pieces(1, 7, b"first", replace(NOBODY, lasts=lambda: bool(is_live)))
    assert [next(pieces), next(pieces)] == [b"first", b"next"]
    is_live.clear()
    with pytest.raises(ConnectionAbortedError):
        next(pieces)
    assert links.calls == [NEXT, END]
