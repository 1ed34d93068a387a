"""Whether who sent a request is still there: over real sockets, closed in every way."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import gevent
import pytest
from gevent.event import Event

from greenstalk_server.web.live.peer import Peer, peer_of
from tests.support.daemon import PATIENCE

from .turns import until

Line = tuple[socket.socket, socket.socket]


@pytest.fixture
def line() -> Iterator[Line]:
    """A connection over TCP: the server's end, and the client's."""
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
def test_one_that_closes_is_gone_and_said_to_be_once(line: Line, way: str) -> None:
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
        assert ended.wait(PATIENCE)
        gevent.sleep(0.01)  # time to call again
        assert calls == [way]
    assert peer.is_gone


def test_one_that_sends_something_is_there_and_watched_no_more(line: Line) -> None:
    ours, theirs = line
    peer, calls = Peer(ours.fileno()), []
    with peer.watched(lambda: calls.append("ended")):
        theirs.sendall(b"GET")
        gevent.sleep(0.01)
        assert not peer.is_gone
        theirs.close()
        until(lambda: peer.is_gone)  # whoever looks sees it, though something is unread before
        gevent.sleep(0.01)
        assert not calls
    assert ours.recv(10) == b"GET", "and nothing was read"


def test_nobody_is_told_after_the_block(line: Line) -> None:
    ours, theirs = line
    with Peer(ours.fileno()).watched(pytest.fail):
        pass
    theirs.close()
    gevent.sleep(0.01)


def test_one_without_a_socket_never_goes() -> None:
    peer = Peer(None)
    with peer.watched(pytest.fail):
        assert not peer.is_gone


def test_the_request_tells_its_socket(line: Line) -> None:
    ours, theirs = line
    with ours.makefile("rb") as rfile:
        peer = peer_of({"wsgi.input": SimpleNamespace(rfile=rfile)})
        assert not peer.is_gone
        theirs.close()
        until(lambda: peer.is_gone)
    assert not peer_of({}).is_gone
