"""A FairQueue admits one expensive step per iteration of the event loop, in the order of the requests."""

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
from greenstalk_server.runtime.scheduling import FairQueue, yield_to_loop
from tests.net.in_process import wait_until
from tests.support.tls import InMemory, context, make_certificates

MANY = 20


@pytest.fixture
def rounds() -> Iterator[list[int]]:
    """A list with the number of event-loop iterations so far."""
    count = [0]
    watcher = get_hub().loop.check()

    def count_iteration() -> None:
        count[0] += 1

    watcher.start(count_iteration)
    yield count
    watcher.stop()
    watcher.close()


def test_one_greenlet_is_admitted_per_loop_iteration(rounds: list[int]) -> None:
    turns = FairQueue()
    admitted: list[tuple[int, int]] = []

    def take(number: int) -> None:
        turns.take()
        admitted.append((rounds[0], number))

    gevent.joinall([gevent.spawn(take, number) for number in range(MANY)], raise_error=True)
    assert len({at for at, _ in admitted}) == MANY
    assert [number for _, number in admitted] == list(range(MANY))


def test_turn_that_is_free_costs_no_iteration(rounds: list[int]) -> None:
    turns, before = FairQueue(), rounds[0]
    for _ in range(MANY):
        gevent.idle()
        turns.take()
    assert rounds[0] - before <= MANY + 1


def test_free_turn_is_taken_once_in_an_iteration() -> None:
    turns = FairQueue()
    assert [turns.take_if_free() for _ in range(2)] == [True, False]
    waiting = gevent.spawn(turns.take)
    gevent.sleep(0)
    assert not waiting.ready() and not turns.take_if_free(), "the greenlet that waits is first"
    waiting.get(timeout=10)
    yield_to_loop()
    assert turns.take_if_free()


def test_greenlets_are_admitted_in_order() -> None:
    turns = FairQueue()
    admitted: list[int] = []

    def take(number: int) -> None:
        turns.take()
        admitted.append(number)

    def take_again() -> None:
        """Request the next turn right after each turn, before the next waiter is admitted."""
        for number in range(MANY, 2 * MANY):
            turns.take()
            admitted.append(number)

    first = [gevent.spawn(take, number) for number in range(MANY)]
    gevent.joinall([*first, gevent.spawn(take_again)], raise_error=True)
    assert admitted == list(range(2 * MANY))


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

    def recorded(self: TlsSocket) -> bool:
        steps.append(rounds[0])
        return shake(self)

    monkeypatch.setattr(TlsSocket, "shake", recorded)
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(MANY)]
        for _, theirs in pairs:
            stack.enter_context(theirs)
            theirs.sendall(InMemory(theirs, context(tmp_path)).hello())
        for ours, _ in pairs:
            ours.setblocking(False)
        shaking = [gevent.spawn(shake_hands, certificates, ours) for ours, _ in pairs]
        wait_until(lambda: len(steps) >= MANY)
        gevent.killall(shaking)
    assert len(set(steps)) == len(steps)
