"""A session in a queue of several shards, with the sessions of its remote clients, without links."""

from __future__ import annotations

import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.operations import connecting
from greenstalk_server.core.tube_shards import shard_of_tube
from greenstalk_server.core.tubes.head_watch import Head
from greenstalk_server.protocol.front_channel import Channel, Wire
from greenstalk_server.protocol.front_session import FrontSession
from greenstalk_server.protocol.session import Session
from tests.support.world import make_broker

SHARDS = 2
THERE = next(b"%d" % number for number in range(9) if shard_of_tube(b"%d" % number, SHARDS) == 1)
"""A tube of the other shard."""


class Owner(Wire):
    """The other shard: it serves what the front sends when `serve` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.own: int = 0
        self.ids: IdSequence = IdSequence(0, SHARDS, 0)
        self.heads: dict[bytes, Head] = {}
        self.broker: Broker = make_broker(ids=IdSequence(0, SHARDS, 1))
        self.sent: bytes = b""
        self.is_attached = True

    def shard_of(self, tube: bytes) -> int:
        return shard_of_tube(tube, SHARDS)

    def is_linked(self, shard: int) -> bool:
        return True

    def new_session(self) -> int:
        return 1

    def standby_stats(self, broker: Broker) -> list[bytes]:
        return []

    def open(self, shard: int, channel: Channel) -> Owner:
        self.channel = channel
        self.session = remote_session(self.broker)
        for is_told, data in channel.begin():
            self.tell(data) if is_told else self.send(data)
        return self

    def send(self, data: bytes) -> None:
        self.sent += data

    def tell(self, data: bytes) -> None:
        self.session.receive(data, 0)

    def close(self) -> None: ...

    def serve(self) -> None:
        """Serve all that the front has sent as one piece."""
        sent, self.sent = self.sent, b""
        replies = self.session.receive(sent, 0)
        if replies:
            self.channel.receive(replies, True)


def remote_session(broker: Broker) -> Session:
    session = Session(broker, lambda: None)
    connecting.become_remote(broker, session.client, object())
    return session


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def front(owner: Owner) -> FrontSession:
    broker = make_broker(ids=owner.ids)
    return FrontSession(broker, lambda: None, None, 0, 0, owner, ("", []), is_timed=False)


def test_input_behind_an_await_ends_it() -> None:
    session = remote_session(make_broker())
    assert session.receive(b"watch t 1\r\nawait 1\r\nclaim\r\n", 0) == b"WATCHING 1\r\nTIMED_OUT\r\n"


def test_input_behind_a_wait_for_a_job_ends_it() -> None:
    session = remote_session(make_broker())
    assert session.receive(b"put-in-tube t 0 0 9 1\r\nx\r\n", 0) == b"INSERTED 1\r\n"
    assert session.receive(b"wait 1\r\ndecline\r\n", 0) == b"TIMED_OUT\r\n"


def test_end_of_input_ends_a_reserve_that_has_other_news(front: FrontSession, owner: Owner) -> None:
    front.receive(b"watch %b\r\n" % THERE, 0)
    owner.serve()
    assert front.resume(0) == b"WATCHING 2\r\n"
    assert front.receive(b"reserve\r\n", 0) == b""
    owner.serve()
    owner.channel.lose()
    assert front.receive_eof(1) == b""
    owner.serve()
    assert front.resume(1) == b"TIMED_OUT\r\n"
    assert front.is_closing
