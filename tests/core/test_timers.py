"""Timers: each target is due once, at the soonest time for which it was armed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core.timers import Timers


class Target:
    def __init__(self) -> None:
        self.timer_at = 0


def pop_all(timers: Timers, now: int) -> list[Target]:
    popped = []
    while (target := timers.pop_due(now)) is not None:
        assert isinstance(target, Target) and target.timer_at == 0
        popped.append(target)
    return popped


def test_targets_are_due_in_the_order_of_time() -> None:
    timers, targets = Timers(), [Target() for _ in range(3)]
    for target, when in zip(targets, (30, 10, 20), strict=True):
        timers.arm(target, when)
    assert timers.soonest() == 10
    assert pop_all(timers, 9) == []
    assert pop_all(timers, 20) == [targets[1], targets[2]]
    assert timers.soonest() == 30


def test_arming_for_later_changes_nothing() -> None:
    timers, target = Timers(), Target()
    assert timers.arm(target, 10)
    assert not timers.arm(target, 20)
    assert not timers.arm(target, 10)
    assert target.timer_at == 10
    assert pop_all(timers, 100) == [target]


def test_arming_for_sooner_replaces_the_time() -> None:
    timers, target = Timers(), Target()
    timers.arm(target, 20)
    assert timers.arm(target, 10)
    assert pop_all(timers, 100) == [target]
    assert timers.soonest() is None


def test_arm_returns_whether_the_target_is_the_soonest() -> None:
    timers, first, second = Timers(), Target(), Target()
    assert timers.arm(first, 20)
    assert not timers.arm(second, 30)
    assert timers.arm(second, 10)


def test_disarmed_target_is_not_returned() -> None:
    timers, target, other = Timers(), Target(), Target()
    timers.arm(target, 10)
    timers.arm(other, 20)
    timers.disarm(target)
    timers.disarm(target)
    assert target.timer_at == 0
    assert timers.soonest() == 20
    assert pop_all(timers, 100) == [other]


def test_target_armed_twice_for_one_time_is_returned_once() -> None:
    timers, target = Timers(), Target()
    for _ in range(3):
        timers.arm(target, 10)
        timers.disarm(target)
    timers.arm(target, 10)
    assert pop_all(timers, 10) == [target]


def test_target_armed_when_returned_is_returned_again() -> None:
    timers, target = Timers(), Target()
    timers.arm(target, 10)
    assert timers.pop_due(10) is target
    assert timers.arm(target, 10)
    assert pop_all(timers, 10) == [target]


def test_no_entry_is_left_when_a_target_is_armed_often() -> None:
    timers, target, other = Timers(), Target(), Target()
    timers.arm(other, 1)
    for when in range(1000, 1, -1):
        timers.arm(target, when)
        assert timers._keys.count == 2
    for when in range(2, 1000):
        timers.disarm(target)
        assert timers._keys.count == 1
        timers.arm(target, when)
    assert pop_all(timers, 1000) == [other, target]


def test_targets_of_one_time_are_due_in_the_order_of_arming() -> None:
    timers, targets = Timers(), [Target() for _ in range(9)]
    for when in (20, 10):
        for target in targets:
            timers.arm(target, when)
    assert pop_all(timers, 10) == targets


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 20) | st.none()), max_size=200))
def test_any_sequence_of_operations_agrees_with_a_table(steps: list[tuple[int, int | None]]) -> None:
    """A step arms a target for a time, or disarms it. A step with number 4 pops the targets due at that time."""
    timers, targets, table = Timers(), [Target() for _ in range(5)], dict[Target, int]()
    for number, when in steps:
        target = targets[number]
        if when is None:
            timers.disarm(target)
            table.pop(target, None)
        elif number == 4:
            due = [target for target, at in table.items() if at <= when]
            popped = pop_all(timers, when)
            assert set(popped) == set(due) and len(popped) == len(due)
            assert [table[target] for target in popped] == sorted(table[target] for target in due)
            for target in due:
                del table[target]
        else:
            timers.arm(target, when)
            table[target] = min(when, table.get(target, when))
        assert timers.soonest() == min(table.values(), default=None)
        assert all(target.timer_at == table.get(target, 0) for target in targets)
