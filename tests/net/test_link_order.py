"""The end of a channel comes behind its data, also if that waits for the journal or for the window. Real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import gevent
import pytest

from greenstalk_server.net.committer import Committer
from greenstalk_server.protocol import link_frames as frames
from tests.net.in_process import wait_until
from tests.net.link_peer import Process
from tests.net.test_hang_up import UnwrittenJournal
from tests.net.test_link_routes import change, receive
from tests.net.test_link_sessions import read_until, request
from tests.support.daemon import TIMEOUT
from tests.support.shards import tube_on

SIZE: Final = 2**15
"""Bytes of a body. A slice of a session sends two such bodies."""

BODIES: Final = frames.WINDOW // SIZE - 1
"""Bodies that fit into the window with the lines around them."""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(str(tmp_path / "0"))
    yield process
    process.stop()


def test_channel_is_closed_behind_the_last_replies(process: Process) -> None:
    peer = process.linked()
    peer.open(1)
    peer.send(frames.DATA, 1, b"use mail\r\nquit\r\n")
    assert peer.read() == (frames.END, 1, b"USING mail\r\n")
    assert peer.read() == (frames.CLOSED, 1, b"")


def test_channel_is_closed_behind_replies_that_wait_for_the_journal(process: Process) -> None:
    journal = UnwrittenJournal()
    process.broker.journal = journal
    process.links.committer = cast(Committer, journal)
    peer = process.linked()
    peer.open(1)
    peer.send(frames.DATA, 1, b"use mail\r\nput 0 0 60 1\r\nx\r\nquit\r\n")
    wait_until(lambda: bool(journal.holders))
    journal.safe = journal.promised
    journal.holders[0].release(journal.safe)
    assert peer.read() == (frames.END, 1, b"USING mail\r\nINSERTED 3\r\n")
    assert peer.read() == (frames.CLOSED, 1, b"")


def blocked(process: Process) -> int:
    """Return how many frames of the link to the peer wait for the window."""
    return len(process.links._links["a1"]._blocked)


def test_channel_is_closed_behind_replies_that_wait_for_the_window(process: Process) -> None:
    peer = process.linked()
    peer.open(1)
    request(peer, 1, b"use mail\r\nput 0 0 60 %d\r\n%b\r\n" % (SIZE, bytes(SIZE)))
    for _ in range(BODIES):
        request(peer, 1, b"peek 3\r\n")
    peer.send(frames.DATA, 1, b"peek 3\r\nquit\r\n")
    wait_until(lambda: blocked(process) > 0)
    peer.send(frames.WINDOW_GRANT, 2**20, b"")
    _, replies = read_until(peer, frames.END)
    assert replies.startswith(b"FOUND 3 ")
    assert peer.read()[0] == frames.CLOSED


def test_owner_resigns_behind_replies_that_wait_for_the_window(process: Process) -> None:
    peer = process.linked()
    peer.open(1)
    request(peer, 1, b"use mail\r\nput 0 0 60 %d\r\n%b\r\n" % (SIZE, bytes(SIZE)))
    for _ in range(BODIES):
        request(peer, 1, b"peek 3\r\n")
    peer.send(frames.DATA, 1, b"peek 3\r\n")
    wait_until(lambda: blocked(process) > 0)
    resigning = gevent.spawn(process.links.resign)
    wait_until(lambda: process.links._links["a1"].is_resigning)
    peer.send(frames.WINDOW_GRANT, 2**20, b"")
    assert read_until(peer, frames.END)[1].startswith(b"FOUND 3 ")
    assert peer.read()[0] == frames.RESIGN
    peer.sock.close()
    resigning.join()


def test_channel_of_a_client_that_leaves_is_closed_behind_its_commands(process: Process) -> None:
    peer = process.linked()
    change(process, {1: "a1"})
    put = b"put-in-tube %b 0 0 60 %d\r\n%b\r\n" % (tube_on(1), SIZE, bytes(SIZE))
    with socket.create_connection(("127.0.0.1", process.port), TIMEOUT) as client:
        for _ in range(BODIES):
            client.sendall(put)
            channel, _ = read_until(peer, frames.DATA)
            peer.send(frames.END, channel, b"INSERTED 1\r\n")
            receive(client, b"\r\n")
        client.sendall(put)
        wait_until(lambda: blocked(process) > 0)
        [connection] = process.server.connections
        connection.client.hang_up()
        wait_until(lambda: not process.server.connections)
    peer.send(frames.WINDOW_GRANT, 2**20, b"")
    assert peer.read()[0] == frames.DATA
    assert peer.read() == (frames.DATA, channel, b"received 0\r\n")
    assert peer.read()[0] == frames.CLOSE
