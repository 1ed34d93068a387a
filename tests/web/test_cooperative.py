"""Pace: work yields only when its slice is used up, and yields for longer while others are busy."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import gevent
import pytest
from gevent.event import Event

from greenstalk_server.web.framework import cooperative
from greenstalk_server.web.framework.cooperative import (
    BUSY_PERIOD,
    CROWD,
    MAX_IDLE_CPU,
    MAX_PAUSE,
    PAUSE,
    PAUSE_RATIO,
    SLICE,
    Pace,
)
from tests.support.daemon import TIMEOUT

from .turns import LoopIterations, until


class FakeTime:
    """The time and the event loop of `cooperative`.

    round_trip      seconds of an iteration of the loop, all of them CPU time of this thread.
    preempted       seconds that other processes had the CPU.
    on_idle         is called in each iteration.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.round_trip = 0.0
        self.preempted = 0.0
        self.on_idle: Callable[[], None] = lambda: None
        self.sleeps: list[float] = []
        self.idle_calls = 0

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.now - self.preempted

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds

    def idle(self) -> None:
        self.idle_calls += 1
        self.now += self.round_trip
        self.on_idle()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    clock = FakeTime()
    monkeypatch.setattr(cooperative, "time", clock)
    fake_gevent = SimpleNamespace(sleep=clock.sleep, idle=clock.idle, Timeout=gevent.Timeout)
    monkeypatch.setattr(cooperative, "gevent", fake_gevent)
    return clock


def make_busy(pace: Pace, clock: FakeTime) -> None:
    """Let *pace* find that others are busy."""
    clock.round_trip = 2 * MAX_IDLE_CPU
    pace.yield_now()


def round_time(seconds: float) -> float:
    return round(seconds, 7)


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


def test_first_slice_may_be_longer(clock: FakeTime) -> None:
    pace = Pace(5)
    for _ in range(49):
        clock.now += SLICE / 10
        pace.yield_if_due()
    assert clock.idle_calls == 0
    for idle_calls in (1, 2):
        clock.now += SLICE
        pace.yield_if_due()
        assert clock.idle_calls == idle_calls


def test_work_gets_a_thirtieth_of_the_time_while_others_are_busy(clock: FakeTime) -> None:
    pace, clock.round_trip = Pace(), 2 * MAX_IDLE_CPU
    clock.now += SLICE
    pace.yield_if_due()
    assert (clock.idle_calls, clock.sleeps) == (1, [])
    before = clock.now
    while clock.now + SLICE < before - clock.round_trip + BUSY_PERIOD:
        clock.now += SLICE
        pace.yield_if_due()
    assert clock.idle_calls == 1 and set(map(round_time, clock.sleeps)) == {PAUSE} and PAUSE >= PAUSE_RATIO * SLICE
    clock.now += BUSY_PERIOD
    pace.yield_if_due()
    assert clock.idle_calls == 2, "after BUSY_PERIOD it checks again whether others are busy"


@pytest.mark.parametrize(("took", "pause"), [(SLICE, PAUSE), (0.002, 0.06), (1.0, MAX_PAUSE)])
def test_pause_is_proportional_to_the_slice(clock: FakeTime, took: float, pause: float) -> None:
    pace = Pace()
    make_busy(pace, clock)
    pace._busy_until = clock.now + 2 * took
    clock.now += took
    pace.yield_now()
    assert round_time(clock.sleeps[-1]) == pause


def test_all_work_together_gets_a_quarter_of_the_time(monkeypatch: pytest.MonkeyPatch, clock: FakeTime) -> None:
    """If n greenlets pause together, each pauses at least 3n times as long as its slice took."""
    may_end = Event()

    def sleep(seconds: float) -> None:
        clock.sleeps.append(seconds)
        may_end.wait()

    monkeypatch.setattr(clock, "sleep", sleep)
    monkeypatch.setattr(cooperative, "gevent", SimpleNamespace(sleep=sleep))

    def work() -> None:
        pace = Pace()
        pace._busy_until, pace._began = clock.now + BUSY_PERIOD, clock.now - SLICE
        pace.yield_now()

    works = [gevent.spawn(work) for _ in range(100)]
    until(lambda: len(clock.sleeps) == 100)
    assert list(map(round_time, clock.sleeps[:CROWD])) == [PAUSE] * CROWD
    assert all(round_time(pause - 3 * count * SLICE) >= 0 for count, pause in enumerate(clock.sleeps, start=1))
    may_end.set()
    gevent.joinall(works, raise_error=True)
    assert cooperative._pausing == [0]


def test_one_slice_runs_per_iteration_of_the_loop(short_steps: None) -> None:
    done = 0

    def work() -> None:
        nonlocal done
        pace = Pace()
        for _ in range(20):
            pace.yield_now()
            done += 1

    with LoopIterations(lambda: done) as loop:
        gevent.joinall([gevent.spawn(work) for _ in range(50)])
    assert done == 1000 and loop.max_progress <= 2


def test_time_of_other_processes_is_not_work_of_others(clock: FakeTime) -> None:
    def preempt() -> None:
        clock.now += 1.0
        clock.preempted += 1.0

    pace, clock.on_idle = Pace(), preempt
    for _ in range(3):
        clock.now += SLICE
        pace.yield_if_due()
    assert (clock.idle_calls, clock.sleeps) == (3, [])


@pytest.mark.parametrize(
    ("is_request", "is_other_request", "took", "is_busy"),
    [
        (False, False, 2 * SLICE, False),
        (True, True, 2 * SLICE, False),
        (False, True, 2 * SLICE, True),
        (False, False, 5 * SLICE, True),  # it may have switched, and others may have used most of the time
    ],
)
def test_slices_of_requests_are_work_of_others_only_outside_of_requests(
    clock: FakeTime,
    monkeypatch: pytest.MonkeyPatch,
    is_request: bool,
    is_other_request: bool,
    took: float,
    is_busy: bool,
) -> None:
    pace, other, is_running_request = Pace(), Pace(), is_request
    monkeypatch.setattr(cooperative, "has_request_context", lambda: is_running_request)

    def run_other() -> None:
        nonlocal is_running_request
        clock.on_idle = lambda: None
        other._begin_slice()
        clock.now += took
        is_running_request = is_other_request
        other.yield_now()
        is_running_request = is_request

    clock.on_idle = run_other
    pace.yield_now()
    assert (pace._busy_until > clock.now) == is_busy


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
    # Otherwise a collection of garbage in an iteration would look like work of other greenlets.
    monkeypatch.setattr(cooperative, "MAX_IDLE_CPU", 10**6)
    pace = Pace()
    with gevent.Timeout(TIMEOUT, AssertionError("the work waited, although nobody else had work")):
        for _ in range(100):
            pace.yield_if_due()
