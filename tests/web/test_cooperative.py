"""How long work rests: no sooner than its step is over; then others have turns, or longer if they are at work."""

from __future__ import annotations

from types import SimpleNamespace

import gevent
import pytest

from greenstalk_server.web import cooperative
from greenstalk_server.web.cooperative import BUSY_PERIOD, IDLE_ROUND_TRIP, PAUSE, SLICE, Pace

from .turns import Turns


class Clock:
    """What the module asks for the time, and sleeps by; a round of the loop takes `round`, seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.round = 0.0
        self.sleeps: list[float] = []
        self.idle = 0

    def perf_counter(self) -> float:
        return self.now

    def rest(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds

    def come_round(self) -> None:
        self.idle += 1
        self.now += self.round


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(cooperative, "time", clock)
    waits = SimpleNamespace(sleep=clock.rest, idle=clock.come_round, Timeout=gevent.Timeout)
    monkeypatch.setattr(cooperative, "gevent", waits)
    return clock


def test_no_rest_before_the_step_is_over(clock: Clock) -> None:
    paced = Pace()
    for _ in range(9):
        clock.now += SLICE / 10
        paced.yield_if_due()
    assert (clock.idle, clock.sleeps) == (0, [])
    clock.now += SLICE / 5
    paced.yield_if_due()
    paced.yield_if_due()
    assert (clock.idle, clock.sleeps) == (1, [])


def test_while_others_are_at_work_it_takes_a_thirtieth_of_the_time(clock: Clock) -> None:
    paced, clock.round = Pace(), 2 * IDLE_ROUND_TRIP
    clock.now += SLICE
    paced.yield_if_due()
    assert (clock.idle, clock.sleeps) == (1, [])
    before = clock.now
    while clock.now + SLICE < before - clock.round + BUSY_PERIOD:
        clock.now += SLICE
        paced.yield_if_due()
    assert clock.idle == 1 and set(clock.sleeps) == {PAUSE} and PAUSE >= 30 * SLICE
    clock.now += BUSY_PERIOD
    paced.yield_if_due()
    assert clock.idle == 2, "it looks again whether they are"


def test_each_rest_has_the_loop_look_at_its_sockets(short_steps: None) -> None:
    paced, done = Pace(), 0
    with Turns(lambda: done) as turns:
        for _ in range(1000):
            done += 1
            paced.yield_if_due()
    assert turns.count >= 1000 and turns.longest <= 2


def test_it_does_not_wait_while_nobody_else_has_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooperative, "PAUSE", 10**6)
    monkeypatch.setattr(cooperative, "SLICE", 0.0)
    monkeypatch.setattr(cooperative, "IDLE_ROUND_TRIP", 10**6)  # ignore the load of the machine
    paced = Pace()
    for _ in range(100):
        paced.yield_if_due()
