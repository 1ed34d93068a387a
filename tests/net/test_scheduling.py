"""Expensive steps run in different iterations of the event loop, in the order of the requests."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import gevent
import pytest
from gevent import get_hub

from greenstalk_server.config.command_line import parse
from greenstalk_server.config.options import Options
from greenstalk_server.net.tls import Certificates, TlsSocket, shake_hands
from greenstalk_server.runtime.scheduling import FairQueue
from tests.support.tls import InMemory, context, make_certificates

MANY = 20


@pytest.fixture
def rounds() -> Iterator[list[int]]:
    """The number of loop iterations; each polls the sockets."""
    count = [0]
    watcher = get_hub().loop.check()

    def note() -> None:
        count[0] += 1

    watcher.start(note)
    yield count
    watcher.stop()
    watcher.close()


def test_one_greenlet_is_admitted_per_loop_iteration(rounds: list[int]) -> None:
    turns = FairQueue()
    had: list[tuple[int, int]] = []

    def take(number: int) -> None:
        turns.take()
        had.append((rounds[0], number))

    gevent.joinall([gevent.spawn(take, number) for number in range(MANY)], raise_error=True)
    assert len({at for at, _ in had}) == MANY
    assert [number for _, number in had] == list(range(MANY))


def test_greenlets_are_admitted_in_order() -> None:
    turns = FairQueue()
    had: list[int] = []

    def take(number: int) -> None:
        turns.take()
        had.append(number)

    def take_again() -> None:
        """Ask for a turn whenever one was taken, when the next is about to be given."""
        for number in range(MANY, 2 * MANY):
            turns.take()
            had.append(number)

    first = [gevent.spawn(take, number) for number in range(MANY)]
    gevent.joinall([*first, gevent.spawn(take_again)], raise_error=True)
    assert had == list(range(2 * MANY))


def test_killed_greenlet_leaves_the_queue() -> None:
    turns = FairQueue()
    turns.take()
    waiting = [gevent.spawn(turns.take) for _ in range(3)]
    gevent.sleep(0)
    waiting[0].kill()
    gevent.joinall(waiting[1:], timeout=10, raise_error=True)
    assert all(greenlet.ready() for greenlet in waiting)


def test_one_handshake_step_per_loop_iteration(
    rounds: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificates(tmp_path)
    options = parse(["--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key")], {})
    assert isinstance(options, Options)
    certificates = Certificates(options)
    steps: list[int] = []
    shake = TlsSocket.shake

    def noted(self: TlsSocket) -> bool:
        steps.append(rounds[0])
        return shake(self)

    monkeypatch.setattr(TlsSocket, "shake", noted)
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(MANY)]
        for _, theirs in pairs:
            stack.enter_context(theirs)
            theirs.sendall(InMemory(theirs, context(tmp_path)).hello())
        for ours, _ in pairs:
            ours.setblocking(False)
        shaking = [gevent.spawn(shake_hands, certificates, ours, 10.0) for ours, _ in pairs]
        while len(steps) < MANY:
            gevent.sleep(0.01)
        gevent.killall(shaking)
    assert len(set(steps)) == len(steps)
