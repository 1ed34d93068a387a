"""Who has something to read is called in the order in which it came, a few at a time, and nobody else is."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from functools import partial

import gevent
import pytest

from greenstalk_server.poller import AT_ONCE, TIMES, Poller
from tests.daemon import PATIENCE


class Sockets:
    """Pairs of sockets whose near ends are polled; a call reads one byte."""

    def __init__(self, count: int) -> None:
        self.poller = Poller()
        pairs = [socket.socketpair() for _ in range(count)]
        self.near, self.far = [near for near, _ in pairs], [far for _, far in pairs]
        self.called: list[int] = []

    def read(self, number: int) -> None:
        self.poller.read(self.near[number].fileno(), partial(self._on_readable, number))

    def rest(self, number: int) -> None:
        self.poller.rest(self.near[number].fileno())

    def send(self, number: int) -> None:
        self.far[number].send(b"x")

    def wait_for(self, count: int) -> None:
        """Return once so many have been called in all."""
        with gevent.Timeout(PATIENCE):
            while len(self.called) < count:
                gevent.sleep(0.001)

    def _on_readable(self, number: int) -> None:
        self.near[number].recv(1)
        self.called.append(number)


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    made = Sockets(3 * AT_ONCE)
    made.poller.start()
    yield made
    made.poller.stop()
    for one in made.near + made.far:
        one.close()


def test_who_came_first_is_called_first(sockets: Sockets) -> None:
    numbers = random.sample(range(3 * AT_ONCE), 3 * AT_ONCE)
    for number in range(3 * AT_ONCE):
        sockets.read(number)
    for number in numbers:
        sockets.send(number)
    sockets.wait_for(len(numbers))
    assert sockets.called == numbers


def test_who_has_more_stands_in_line_again(sockets: Sockets) -> None:
    for number in range(3 * AT_ONCE):
        sockets.read(number)
        sockets.send(number)
        sockets.send(number)
    sockets.wait_for(6 * AT_ONCE)
    assert sockets.called == 2 * list(range(3 * AT_ONCE))


def test_who_rests_is_not_called_until_it_reads_again(sockets: Sockets) -> None:
    sockets.read(0)
    sockets.rest(0)
    sockets.read(1)
    sockets.send(0)
    sockets.send(1)
    sockets.wait_for(1)
    assert sockets.called == [1]
    sockets.read(0)
    sockets.wait_for(2)
    assert sockets.called == [1, 0]
    sockets.rest(0)
    sockets.read(0)
    sockets.send(0)
    sockets.wait_for(3)
    assert sockets.called == [1, 0, 0]


def test_who_is_forgotten_in_the_meantime_is_not_called(sockets: Sockets) -> None:
    fd = sockets.near[1].fileno()
    sockets.poller.read(sockets.near[0].fileno(), lambda: sockets.poller.forget(fd))
    for number in (1, 2):
        sockets.read(number)
    for number in (0, 1, 2):
        sockets.send(number)
    sockets.wait_for(1)
    assert sockets.called == [2]
    sockets.poller.forget(fd)
    sockets.near[1].close()


def test_who_was_woken_has_a_turn_before_more_is_read(sockets: Sockets) -> None:
    for number in range(3 * AT_ONCE):
        sockets.read(number)
        sockets.send(number)
    sockets.poller.read(sockets.near[5].fileno(), partial(_wake, sockets))
    sockets.wait_for(3 * AT_ONCE)
    assert sockets.called.index(5) == AT_ONCE - 1


def _wake(sockets: Sockets) -> None:
    sockets.near[5].recv(1)
    sockets.poller.has_woken = True
    gevent.get_hub().loop.run_callback(sockets.called.append, 5)


def test_who_always_has_something_leaves_turns_to_others(sockets: Sockets) -> None:
    """To those that are polled, and, after some rounds, to all else that the loop does."""
    calls: list[int] = []
    for number in range(AT_ONCE):
        sockets.send(number)
        sockets.poller.read(sockets.near[number].fileno(), partial(calls.append, number))
    sockets.read(AT_ONCE)
    sockets.send(AT_ONCE)
    turns = 0
    while not sockets.called:
        gevent.sleep(0.000001)
        turns += 1
    assert turns <= 3
    assert len(calls) <= turns * 2 * len(TIMES) * AT_ONCE
