"""The handshake of a link, and what a process does with a peer that breaks the protocol. Real Unix sockets."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.limits import Limits
from greenstalk_server.net.acceptor import DescriptorBudget
from greenstalk_server.net.links import Links
from greenstalk_server.net.server import Server
from greenstalk_server.protocol import link_frames as frames
from greenstalk_server.runtime.clock import steady_clock
from tests.net.in_process import is_readable, read_to_end, wait_until
from tests.support.world import make_broker

SECRET = b"secret"
QUEUE = "a1b2"
IDS = IdSequence(0, 3, 0)


@pytest.fixture
def broker() -> Broker:
    return make_broker(ids=IDS)


@pytest.fixture
def path(tmp_path: Path, broker: Broker) -> Iterator[str]:
    """The link socket of shard 0, whose process serves it."""
    path = str(tmp_path / "0")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        clock = steady_clock()
        links = Links(QUEUE, SECRET, listener, [path, "", ""], broker, clock, None, ())
        files = DescriptorBudget(100, broker.limit_counters)
        server = Server(broker, [], clock, files=files, limits=Limits(), links=links)
        server.start()
        yield path
        server.stop()


class Peer:
    """The process of another shard, by hand."""

    def __init__(self, path: str, secret: bytes = SECRET, **changes: object) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)
        self.secret = secret
        self.hello: dict[str, Any] = {
            "version": frames.VERSION,
            "oldest": frames.OLDEST_VERSION,
            "queue": QUEUE,
            "shards": 3,
            "base": 0,
            "shard": 1,
            "role": "connects",
            "nonce": "00",
        } | changes
        self.reader = frames.FrameReader()
        self.frames: list[tuple[int, int, bytes]] = []

    def send(self, kind: int, channel: int, payload: bytes) -> None:
        self.sock.sendall(frames.frame(kind, channel, payload))

    def read(self) -> tuple[int, int, bytes]:
        """Return the next frame."""
        while not self.frames:
            wait_until(lambda: is_readable(self.sock))
            self.frames += self.reader.feed(self.sock.recv(65536))
        return self.frames.pop(0)

    def say_hello(self) -> None:
        self.send(frames.HELLO, 0, json.dumps(self.hello).encode())

    def shake_hands(self) -> None:
        self.say_hello()
        kind, _, payload = self.read()
        assert kind == frames.HELLO
        message = json.dumps([self.hello, json.loads(payload)["nonce"]], sort_keys=True).encode()
        self.send(frames.AUTH, 0, hmac.digest(self.secret, message, hashlib.sha256))

    def open(self, channel: int) -> None:
        facts = {"address": "here", "name": "", "listener": "here", "names": []}
        self.send(frames.OPEN, channel, json.dumps(facts).encode())


@pytest.fixture
def peer(path: str) -> Iterator[Peer]:
    """A peer whose link is up."""
    peer = Peer(path)
    peer.shake_hands()
    assert peer.read()[0] == frames.AUTH
    with peer.sock:
        yield peer


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"queue": "other"}, "the queue of the peer is other, that of this process a1b2"),
        ({"shards": 4}, "the shards of the peer is 4, that of this process 3"),
        ({"base": 7}, "the base of the peer is 7, that of this process 0"),
        ({"shard": 0}, "the peer says that it is shard 0"),
        ({"shard": 3}, "the peer says that it is shard 3"),
        ({"version": 9, "oldest": 8}, "the peer speaks versions 8 to 9, this process 1 to 1"),
        ({"role": "accepts"}, "both processes say that they accept"),
        ({"shard": "1"}, "malformed HELLO"),
        ({"secret": b"wrong"}, "shard 1 does not know the secret"),
    ],
)
def test_unfit_peer_is_refused_with_one_line(
    path: str, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], reason: str
) -> None:
    peer = Peer(path, **changes)
    with peer.sock:
        if "secret" in changes:
            peer.shake_hands()
        else:
            peer.say_hello()
        read_to_end(peer.sock)
    assert refusals(caplog) == [f"refused a link: {reason}"]


def test_garbage_is_refused_with_one_line(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(b"put 0 0 60 1\r\nx\r\n")
        wait_until(lambda: bool(refusals(caplog)))
    assert len(refusals(caplog)) == 1


def test_channel_speaks_the_protocol(peer: Peer) -> None:
    peer.open(5)
    peer.send(frames.DATA, 5, b"use mail\r\nput 0 0 60 1\r\nx\r\n")
    kind, channel, payload = peer.read()
    assert (kind, channel) == (frames.REPLY, 5)
    assert payload == b"USING mail\r\nINSERTED 3\r\n"


def test_jobs_of_a_lost_link_become_ready(peer: Peer, broker: Broker) -> None:
    peer.open(1)
    peer.send(frames.DATA, 1, b"use mail\r\nwatch mail\r\nput 0 0 60 1\r\nx\r\nclaim\r\n")
    while b"RESERVED" not in peer.read()[2]:
        pass
    assert broker.totals.reserved == 1
    peer.sock.close()
    wait_until(lambda: not broker.totals.reserved)
    assert broker.remote_count == 0
    assert len(broker.jobs) == 1


@pytest.mark.parametrize(
    ("kind", "channel", "payload", "reason"),
    [
        (frames.HELLO, 0, b"{}", "unexpected frame of kind 1"),
        (frames.OPEN, 1, b"{}", "malformed OPEN"),
        (frames.HEAD, 0, b"1 mail", "malformed HEAD"),
        (frames.WINDOW_GRANT, 1, b"", "a grant of more than the window"),
    ],
)
def test_frame_that_breaks_the_protocol_closes_the_link(
    peer: Peer, caplog: pytest.LogCaptureFixture, kind: int, channel: int, payload: bytes, reason: str
) -> None:
    peer.send(kind, channel, payload)
    read_to_end(peer.sock)
    assert refusals(caplog) == [f"link to shard 1: {reason}; the link is closed", "the link to shard 1 is lost"]


def test_peer_that_sends_more_than_the_window_loses_the_link(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    peer.open(1)
    flood = frames.frame(frames.DATA, 1, b"stats\r\n" * 9000) * 100  # it does not read the replies
    peer.sock.setblocking(False)
    sent = 0

    def is_closed() -> bool:
        nonlocal sent
        try:
            sent += peer.sock.send(flood[sent:])
        except BlockingIOError:
            return False
        except OSError:
            return True
        assert sent < len(flood)
        return False

    wait_until(is_closed)
    assert refusals(caplog)[0] == "link to shard 1: more bytes than the window allows; the link is closed"
