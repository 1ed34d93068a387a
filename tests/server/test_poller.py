"""Who has something to read, or was woken, is served in the order in which that came, a few at a time."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import gevent
import pytest

from greenstalk_server.clock import steady_clock
from greenstalk_server.poller import AT_ONCE, FEW, TIMES, Poller
from tests.daemon import PATIENCE


class Guest:
    """One end of a pair of sockets. It takes a byte at a time, and notes whatever it is asked for."""

    def __init__(self, number: int, poller: Poller, called: list[tuple[str, int]]) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.number = number
        self.poller = poller
        self.called = called
        self.wakes: list[Guest] = []

    def read(self) -> None:
        self.poller.read(self.near.fileno(), self)

    def rest(self) -> None:
        self.poller.rest(self.near.fileno())

    def say(self, data: bytes = b"x") -> None:
        self.far.send(data)

    def take(self) -> bytes | None:
        self.called.append(("take", self.number))
        return self.near.recv(1)

    def answer(self, data: bytes, now: int) -> bytes:
        self.called.append(("answer", self.number))
        for other in self.wakes:
            self.poller.wake(other)
        return b"answer" if data == b"x" else b""

    def go_on(self, now: int) -> bytes:
        self.called.append(("go_on", self.number))
        return b"go_on"

    def send(self, out: bytes) -> None:
        self.called.append((out.decode() + " sent", self.number))


class Party:
    """Three times as many guests as are served at once."""

    def __init__(self) -> None:
        self.poller = Poller(steady_clock())
        self.called: list[tuple[str, int]] = []
        self.guests = [Guest(number, self.poller, self.called) for number in range(3 * AT_ONCE)]

    def wait_for(self, what: str, count: int) -> list[int]:
        """Return who was asked for *what*, in order, once that was so often."""
        with gevent.Timeout(PATIENCE):
            while len(numbers := [number for asked, number in self.called if asked == what]) < count:
                gevent.sleep(0.001)
        assert len(numbers) == count
        return numbers


@pytest.fixture(params=["few are read", "many are read"])
def party(request: pytest.FixtureRequest) -> Iterator[Party]:
    made = Party()
    made.poller.start()
    if request.param == "many are read":
        for guest in made.guests[len(made.guests) - FEW :]:
            guest.read()
    yield made
    made.poller.stop()
    for guest in made.guests:
        guest.near.close()
        guest.far.close()


def test_who_came_first_is_served_first(party: Party) -> None:
    for guest in party.guests:
        guest.read()
    order = random.sample(party.guests, len(party.guests))
    for guest in order:
        guest.say()
    numbers = [guest.number for guest in order]
    assert party.wait_for("answer sent", len(order)) == numbers
    steps = ("take", "answer", "answer sent")
    few = [numbers[begin : begin + AT_ONCE] for begin in range(0, len(numbers), AT_ONCE)]
    assert party.called == [(step, number) for some in few for step in steps for number in some]


def test_who_has_more_stands_in_line_again(party: Party) -> None:
    for guest in party.guests:
        guest.read()
        guest.say(b"xx")
    assert party.wait_for("take", 6 * AT_ONCE) == 2 * list(range(3 * AT_ONCE))


def test_who_rests_is_not_read_until_it_reads_again(party: Party) -> None:
    one, other = party.guests[:2]
    one.read()
    one.rest()
    other.read()
    one.say()
    other.say()
    assert party.wait_for("take", 1) == [1]
    one.read()
    assert party.wait_for("take", 2) == [1, 0]
    one.rest()
    one.read()
    one.say()
    assert party.wait_for("take", 3) == [1, 0, 0]


def test_who_is_forgotten_is_not_read(party: Party) -> None:
    one, other = party.guests[:2]
    for guest in (one, other):
        guest.read()
        guest.say()
    party.poller.forget(one.near.fileno())
    party.poller.forget(one.near.fileno())
    assert party.wait_for("answer sent", 1) == [1]
    one.read()
    assert party.wait_for("answer sent", 2) == [1, 0]


def test_few_who_are_read_when_many_come_are_read_on(party: Party) -> None:
    one, *others = party.guests
    one.read()
    one.say()
    assert party.wait_for("answer sent", 1) == [0]
    for guest in others:
        guest.read()
    for guest in party.guests:
        guest.say()
    assert party.wait_for("answer sent", 1 + len(party.guests)) == [0, *range(len(party.guests))]


def test_nobody_is_read_once_it_is_stopped(party: Party) -> None:
    one, other = party.guests[:2]
    one.read()
    other.read()
    one.say()
    assert party.wait_for("answer sent", 1) == [0]
    party.poller.stop()
    one.say()
    other.say()
    party.poller.wake(party.guests[2])  # comes to it after a round of the loop
    party.wait_for("go_on sent", 1)
    gevent.sleep(0.001)
    assert party.wait_for("take", 1) == [0]


def test_nothing_is_sent_where_there_is_no_reply(party: Party) -> None:
    for guest in party.guests[:2]:
        guest.read()
    party.guests[0].say(b"-")
    party.guests[1].say()
    assert party.wait_for("answer sent", 1) == [1]
    assert sorted(party.wait_for("answer", 2)) == [0, 1]


def test_who_was_woken_goes_on_before_more_is_read(party: Party) -> None:
    for guest in party.guests:
        guest.read()
        guest.say()
    party.guests[5].wakes = [party.guests[-1]]
    assert party.wait_for("take", 3 * AT_ONCE) == list(range(3 * AT_ONCE))
    at = party.called.index(("go_on", 3 * AT_ONCE - 1))
    assert party.called[at - 1] == ("answer sent", AT_ONCE - 1)
    assert party.called[at + 1 : at + 3] == [("go_on sent", 3 * AT_ONCE - 1), ("take", AT_ONCE)]
    assert party.wait_for("go_on", 1)


def test_who_is_woken_by_others_goes_on_though_nobody_says_anything(party: Party) -> None:
    party.poller.wake(party.guests[3])
    party.poller.wake(party.guests[1])
    assert party.wait_for("go_on sent", 2) == [3, 1]
    party.poller.wake(party.guests[2])
    assert party.wait_for("go_on sent", 3) == [3, 1, 2]


def test_who_is_woken_twice_goes_on_once(party: Party) -> None:
    for number in (3, 1, 3):
        party.poller.wake(party.guests[number])
    assert party.wait_for("go_on sent", 2) == [3, 1]


def test_of_many_who_are_woken_a_few_go_on_at_a_time(party: Party) -> None:
    for guest in party.guests:
        party.poller.wake(guest)
    party.wait_for("go_on sent", 3 * AT_ONCE)
    numbers = list(range(3 * AT_ONCE))
    few = [numbers[begin : begin + AT_ONCE] for begin in range(0, len(numbers), AT_ONCE)]
    assert party.called == [(step, number) for some in few for step in ("go_on", "go_on sent") for number in some]


def test_who_always_has_something_leaves_turns_to_others(party: Party) -> None:
    """To those that are polled, and, after some rounds, to all else that the loop does."""
    busy, other = party.guests[:AT_ONCE], party.guests[AT_ONCE]
    for guest in busy:
        guest.say(b"x" * 10 * len(TIMES))
        guest.read()
    other.read()
    other.say()
    turns = 0
    while ("answer", other.number) not in party.called:
        gevent.sleep(0.000001)
        turns += 1
    assert turns <= 3
    assert sum(asked == "take" for asked, _ in party.called) <= turns * 2 * len(TIMES) * AT_ONCE
