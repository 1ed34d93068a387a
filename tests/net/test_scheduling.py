"""Those who want something that takes long have it in different rounds of the loop, and in their order."""

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
    """How many rounds of the loop there were; the sockets are looked at in each."""
    count = [0]
    watcher = get_hub().loop.check()

    def note() -> None:
        count[0] += 1

    watcher.start(note)
    yield count
    watcher.stop()
    watcher.close()


def test_one_turn_in_each_round(rounds: list[int]) -> None:
    turns = FairQueue()
    had: list[tuple[int, int]] = []

    def take(number: int) -> None:
        turns.take()
        had.append((rounds[0], number))

    gevent.joinall([gevent.spawn(take, number) for number in range(MANY)], raise_error=True)
    assert len({at for at, _ in had}) == MANY
    assert [number for _, number in had] == list(range(MANY))


def test_nobody_passes_who_stands_in_line() -> None:
    turns = FairQueue()
    had: list[int] = []

    def take(number: int) -> None:
        turns.take()
        had.append(number)

    def take_again() -> None:
        """Come whenever somebody has had a turn, which is when the next is about to be given."""
        for number in range(MANY, 2 * MANY):
            turns.take()
            had.append(number)

    first = [gevent.spawn(take, number) for number in range(MANY)]
    gevent.joinall([*first, gevent.spawn(take_again)], raise_error=True)
    assert had == list(range(2 * MANY))


def test_who_gives_up_leaves_the_line() -> None:
    turns = FairQueue()
    turns.take()
    waiting = [gevent.spawn(turns.take) for _ in range(3)]
    gevent.sleep(0)
    waiting[0].kill()
    gevent.joinall(waiting[1:], timeout=10, raise_error=True)
    assert all(greenlet.ready() for greenlet in waiting)


def test_no_two_handshakes_in_one_round(rounds: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
