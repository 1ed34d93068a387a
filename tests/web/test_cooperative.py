"""Pace: work yields only when its slice is used up, and yields for longer while others are busy."""

from __future__ import annotations

from types import SimpleNamespace

import gevent
import pytest

from greenstalk_server.web import cooperative
from greenstalk_server.web.cooperative import BUSY_PERIOD, IDLE_ROUND_TRIP, PAUSE, SLICE, Pace
from tests.support.daemon import TIMEOUT

from .turns import LoopIterations


class FakeTime:
    """The time and the event loop of `cooperative`; an iteration of the loop takes *round_trip* seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.round_trip = 0.0
        self.sleeps: list[float] = []
        self.idle_calls = 0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds

    def idle(self) -> None:
        self.idle_calls += 1
        self.now += self.round_trip


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    clock = FakeTime()
    monkeypatch.setattr(cooperative, "time", clock)
    fake_gevent = SimpleNamespace(sleep=clock.sleep, idle=clock.idle, Timeout=gevent.Timeout)
    monkeypatch.setattr(cooperative, "gevent", fake_gevent)
    return clock


def test_work_does_not_yield_before_its_slice_is_used_up(clock: FakeTime) -> None:
    pace = Pace()
    for _ in range(9):
        clock.now += SLICE / 10
        pace.yield_if_due()
    assert (clock.idle_calls, clock.sleeps) == (0, [])
    clock.now += SLICE / 5
    pace.yield_if_due()
    pace.yield_if_due()
    assert (clock.idle_calls, clock.sleeps) == (1, [])


def test_work_gets_a_thirtieth_of_the_time_while_others_are_busy(clock: FakeTime) -> None:
    pace, clock.round_trip = Pace(), 2 * IDLE_ROUND_TRIP
    clock.now += SLICE
    pace.yield_if_due()
    assert (clock.idle_calls, clock.sleeps) == (1, [])
    before = clock.now
    while clock.now + SLICE < before - clock.round_trip + BUSY_PERIOD:
        clock.now += SLICE
        pace.yield_if_due()
    assert clock.idle_calls == 1 and set(clock.sleeps) == {PAUSE} and PAUSE >= 30 * SLICE
    clock.now += BUSY_PERIOD
    pace.yield_if_due()
    assert clock.idle_calls == 2, "after BUSY_PERIOD it checks again whether others are busy"


def test_loop_checks_its_sockets_at_each_yield(short_steps: None) -> None:
    pace, done = Pace(), 0
    with LoopIterations(lambda: done) as loop:
        for _ in range(1000):
            done += 1
            pace.yield_if_due()
    assert loop.count >= 1000 and loop.max_progress <= 2


def test_work_does_not_wait_while_others_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooperative, "PAUSE", 10**6)
    monkeypatch.setattr(cooperative, "SLICE", 0.0)
    # Otherwise a slow iteration, due to other processes on this machine, would look like work of other greenlets.
    monkeypatch.setattr(cooperative, "IDLE_ROUND_TRIP", 10**6)
    pace = Pace()
    with gevent.Timeout(TIMEOUT, AssertionError("the work waited, although nobody else had work")):
        for _ in range(100):
            pace.yield_if_due()
