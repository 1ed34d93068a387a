"""The audit finds each error that it must find."""

from __future__ import annotations

import pytest

from tests.failover.history import DELETE, HANG_UP, PUT, RELEASE, RESERVE, Disturbance, History, Step

PUT_A = Step("p", PUT, b"a", 0, 1, is_done=True)


def history(*steps: Step, disturbed: tuple[float, float] | None = None) -> History:
    """A history without errors."""
    made = History()
    for step in steps:
        made.add(step)
    if disturbed is not None:
        made.disturbances.append(Disturbance("takeover", *disturbed))
    return made


def done(client: str, kind: str, begun: float) -> Step:
    """Return a step with the job `a` that took a second, and was acknowledged."""
    return Step(client, kind, b"a", begun, begun + 1, is_done=True)


def unanswered(client: str, kind: str, begun: float) -> Step:
    return Step(client, kind, b"a", begun)


@pytest.mark.parametrize(
    ("steps", "left", "what"),
    [
        ([PUT_A], [], "is lost"),
        ([PUT_A, done("w", DELETE, 4)], [b"a"], "is back"),
        ([PUT_A, done("w", DELETE, 4), done("v", RESERVE, 6)], [], "delivered after it was deleted"),
        ([PUT_A, done("w", DELETE, 4), done("v", DELETE, 6)], [], "deleted more than once"),
        ([PUT_A, done("w", RESERVE, 2), done("v", RESERVE, 4)], [b"a"], "delivered twice, and not given back"),
        ([PUT_A, done("q", PUT, 3)], [b"a"], "was put 2 times"),
        ([], [b"a"], "was never put"),
    ],
)
def test_impossible_history_is_reported(steps: list[Step], left: list[bytes], what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        history(*steps).check(left)


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ([PUT_A], [b"a"]),
        ([unanswered("p", PUT, 0)], []),
        ([unanswered("p", PUT, 0)], [b"a"]),
        ([PUT_A, unanswered("w", DELETE, 4)], []),
        ([PUT_A, unanswered("w", DELETE, 4)], [b"a"]),
        ([PUT_A, done("w", RESERVE, 2), unanswered("w", RELEASE, 3), done("v", RESERVE, 4)], [b"a"]),
        ([PUT_A, done("w", RESERVE, 2), Step("w", HANG_UP, b"", 3), done("v", RESERVE, 4)], [b"a"]),
    ],
)
def test_possible_history_is_accepted(steps: list[Step], left: list[bytes]) -> None:
    history(*steps).check(left)


def test_jobs_come_back_at_takeovers_only() -> None:
    twice = [PUT_A, done("w", RESERVE, 2), done("v", RESERVE, 6)]
    history(*twice, disturbed=(4, 5)).check([b"a"])
    with pytest.raises(AssertionError, match="not given back"):
        history(*twice, disturbed=(8, 9)).check([b"a"])


def test_two_jobs_with_one_id_are_reported() -> None:
    made = history(PUT_A)
    made.name(1, b"a")
    made.name(1, b"a")
    made.name(1, b"b")
    with pytest.raises(AssertionError, match="id 1"):
        made.check([b"a"])


def test_longest_gap_between_two_puts() -> None:
    made = history(*[Step("p", PUT, b"%d" % end, end - 1, end, is_done=True) for end in (10, 11, 14, 15)])
    assert made.longest_gap(11.5, 13) == 3
    assert made.longest_gap(10, 15) == 3
    assert made.longest_gap(14.2, 14.5) == 1
