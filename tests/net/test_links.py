"""The handshake of a link, and what a process does with a peer that breaks the protocol. Real Unix sockets."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from greenstalk_server.net.link import FRAME_BATCH, OPENED_BATCH
from greenstalk_server.protocol import link_frames as frames
from greenstalk_server.protocol.front_channel import NO_SHARD
from tests.net.in_process import read_to_end, wait_until
from tests.net.link_peer import Peer, Process


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(str(tmp_path / "0"))
    yield process
    process.stop()


@pytest.fixture
def peer(process: Process) -> Peer:
    """A peer whose link is up."""
    return process.linked()


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"queue": "other"}, "the queue of the peer is 'other', that of this process 'a1b2'"),
        ({"shards": 4}, "the number of shards of the peer is 4, that of this process 3"),
        ({"base": 7}, "the base of the peer is 7, that of this process 0"),
        ({"shard": 0}, "process a1 says that it leads shard 0, as this process does"),
        ({"shard": 3}, "the peer says that it leads shard 3"),
        ({"version": 9, "oldest": 8}, "the peer speaks versions 8 to 9, this process 2 to 4"),
        ({"version": 1, "oldest": 1}, "the peer speaks versions 1 to 1, this process 2 to 4"),
        ({"process": "z9"}, "process m0 has to connect to the other one"),
        ({"process": "m0"}, "the peer says that it is this process"),
        ({"process": "\n"}, "the peer says that it is process '\\n'"),
        ({"shard": "1"}, "malformed HELLO"),
        ({"secret": b"wrong"}, "process a1 does not know the secret"),
    ],
)
def test_unfit_peer_is_refused_with_one_line(
    process: Process, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], reason: str
) -> None:
    peer = process.peer(**changes)
    if "secret" in changes or changes == {"shard": 0}:
        peer.shake_hands()
    else:
        peer.say_hello()
    read_to_end(peer.sock)
    assert refusals(caplog) == [f"refused a link: {reason}"]


def test_process_notices_another_one_that_leads_its_shard(process: Process) -> None:
    rivals: list[str] = []
    process.links.on_rival = rivals.append
    peer = process.peer(process="a1", shard=0)
    peer.shake_hands()
    read_to_end(peer.sock)
    assert rivals == ["a1"]
    process.linked("b1", NO_SHARD).send(frames.LEAD, 0, b"")
    wait_until(lambda: rivals == ["a1", "b1"])


@pytest.mark.parametrize("changes", [{"version": 2, "oldest": 1}, {"version": 9, "oldest": 3}])
def test_peer_of_another_version_is_accepted_if_the_ranges_overlap(process: Process, changes: dict[str, Any]) -> None:
    peer = process.peer(**changes)
    peer.link()
    peer.open(5)
    peer.send(frames.DATA, 5, b"use mail\r\n")
    assert peer.read() == (frames.END, 5, b"USING mail\r\n")


def test_garbage_is_refused_with_one_line(process: Process, caplog: pytest.LogCaptureFixture) -> None:
    process.peer().sock.sendall(b"put 0 0 60 1\r\nx\r\n")
    wait_until(lambda: bool(refusals(caplog)))
    assert len(refusals(caplog)) == 1


def test_channel_speaks_the_protocol(peer: Peer) -> None:
    peer.open(5)
    peer.send(frames.DATA, 5, b"use mail\r\nput 0 0 60 1\r\nx\r\n")
    kind, channel, payload = peer.read()
    assert (kind, channel) == (frames.END, 5)
    assert payload == b"USING mail\r\nINSERTED 3\r\n"


@pytest.mark.parametrize(
    ("kind", "channel", "payload", "reason"),
    [
        (frames.HELLO, 0, b"{}", "unexpected frame of kind 1"),
        (frames.OPEN, 1, b"{}", "malformed OPEN"),
        (frames.HEAD, 0, b"1 mail", "malformed HEAD"),
        (frames.WINDOW_GRANT, 1, b"", "a grant of more than the window"),
        (frames.LEAD, 3, b"", "the peer says that it leads shard 3"),
    ],
)
def test_frame_that_breaks_the_protocol_closes_the_link(
    peer: Peer, caplog: pytest.LogCaptureFixture, kind: int, channel: int, payload: bytes, reason: str
) -> None:
    peer.send(kind, channel, payload)
    read_to_end(peer.sock)
    assert refusals(caplog) == [f"link to shard 1: {reason}; the link is closed", "the link to shard 1 is lost"]


def test_channels_that_are_opened_at_once_are_opened_in_batches_and_in_order(process: Process, peer: Peer) -> None:
    link = process.links._links["a1"]
    count = 3 * OPENED_BATCH + 1
    facts = b'{"number": 1, "address": "", "name": "", "listener": "", "names": [], "session": %d, "reserved": 0}'
    numbers = range(1, count + 1)
    pairs = [
        (frames.frame(frames.OPEN, number, facts % number), frames.frame(frames.DATA, number, b"use t%d\r\n" % number))
        for number in numbers
    ]
    link.serve(b"".join([frame for pair in pairs for frame in pair]), 0, 1)
    assert len(link._clients) == OPENED_BATCH
    assert [peer.read() for _ in numbers] == [(frames.END, number, b"USING t%d\r\n" % number) for number in numbers]


def test_flood_of_small_frames_is_handled_in_batches(process: Process, peer: Peer) -> None:
    link = process.links._links["a1"]
    link.serve(frames.frame(frames.PING, 0) * FRAME_BATCH + frames.frame(frames.HELLO, 0), 0, 1)
    assert not link.is_lost
    read_to_end(peer.sock)  # the poller has met the frame that is refused
    assert link.is_lost


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


def test_heads_of_a_process_without_a_shard_are_not_kept(process: Process) -> None:
    standby, owner = process.linked("a1", shard=-1), process.linked("a2", shard=1)
    standby.send(frames.HEAD, 0, frames.encode_head(b"of a standby", 0, 1))
    owner.send(frames.HEAD, 0, frames.encode_head(b"of an owner", 0, 1))
    wait_until(lambda: b"of an owner" in process.links.heads)
    standby.send(frames.LEAD, 2, b"")
    standby.send(frames.HEAD, 0, frames.encode_head(b"of a new owner", 0, 1))
    wait_until(lambda: b"of a new owner" in process.links.heads)
    assert b"of a standby" not in process.links.heads
