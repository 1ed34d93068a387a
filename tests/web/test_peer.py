"""Detection of clients that close the connection: over real sockets, closed in every way."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import gevent
import pytest
from gevent.event import Event

from greenstalk_server.web.live.peer import Peer, peer_of
from tests.support.daemon import TIMEOUT

from .turns import until

Line = tuple[socket.socket, socket.socket]


@pytest.fixture
def line() -> Iterator[Line]:
    """A TCP connection: the server's end, and the client's end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    with ours, theirs:
        yield ours, theirs


WAYS: dict[str, Callable[[socket.socket], object]] = {
    "close": lambda sock: sock.close(),
    "half": lambda sock: sock.shutdown(socket.SHUT_WR),
    "reset": lambda sock: (
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"),
        sock.close(),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_close_is_reported_once(line: Line, way: str) -> None:
    ours, theirs = line
    peer, ended, calls = Peer(ours.fileno()), Event(), []

    def on_end() -> None:
        calls.append(way)
        ended.set()

    assert not peer.is_gone
    with peer.watched(on_end):
        gevent.sleep(0.01)
        assert not calls
        WAYS[way](theirs)
        assert ended.wait(TIMEOUT)
        gevent.sleep(0.01)  # time for a second call
        assert calls == [way]
    assert peer.is_gone


def test_peer_that_sends_data_is_not_gone_and_no_longer_watched(line: Line) -> None:
    ours, theirs = line
    peer, calls = Peer(ours.fileno()), []
    with peer.watched(lambda: calls.append("ended")):
        theirs.sendall(b"GET")
        gevent.sleep(0.01)
        assert not peer.is_gone
        theirs.close()
        until(lambda: peer.is_gone)  # `is_gone` sees the close although data is unread
        gevent.sleep(0.01)
        assert not calls
    assert ours.recv(10) == b"GET", "the peer has read data"


def test_peer_of_a_request_is_its_socket(line: Line) -> None:
    ours, theirs = line
    with ours.makefile("rb") as rfile:
        peer = peer_of({"wsgi.input": SimpleNamespace(rfile=rfile)})
        assert not peer.is_gone
        theirs.close()
        until(lambda: peer.is_gone)
    assert not peer_of({}).is_gone
