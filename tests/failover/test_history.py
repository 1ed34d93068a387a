"""The audit finds each error that it must find."""

from __future__ import annotations

import pytest

from tests.support.history import DELETE, HANG_UP, PUT, PUT_SAME, RELEASE, RESERVE, TOUCH, Disturbance, History, Step

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


def refused(client: str, kind: str, begun: float) -> Step:
    return Step(client, kind, b"a", begun, begun + 1, is_refused=True)


def unanswered(client: str, kind: str, begun: float) -> Step:
    return Step(client, kind, b"a", begun)


# The audit at the end reserves and deletes what is left.
FOUND = [done("audit", RESERVE, 20), done("audit", DELETE, 22)]
SAME_A = Step("q", PUT_SAME, b"a", 2, 3, is_done=True)


@pytest.mark.parametrize(
    ("steps", "what"),
    [
        ([PUT_A], "is lost"),
        ([SAME_A, SAME_A], "is lost"),
        ([PUT_A, done("w", DELETE, 4), *FOUND], "deleted more than once"),
        ([PUT_A, done("w", DELETE, 4), done("v", RESERVE, 6)], "delivered after it was deleted"),
        ([PUT_A, done("w", RESERVE, 2), done("v", RESERVE, 4), *FOUND], "delivered twice, and not given back"),
        ([PUT_A, done("w", RESERVE, 2), *FOUND], "delivered twice, and not given back"),
        ([PUT_A, done("q", PUT, 3), *FOUND], "was put 2 times"),
        (FOUND, "was put 0 times"),
        ([PUT_A, done("w", TOUCH, 4), *FOUND], "without a reservation"),
        ([PUT_A, done("w", RESERVE, 2), refused("w", DELETE, 4), *FOUND], "has lost its reservation"),
        (
            [PUT_A, done("w", RESERVE, 2), done("v", RESERVE, 4), done("w", TOUCH, 6), *FOUND],
            "another one held the job",
        ),
        ([PUT_A, done("w", RESERVE, 2), done("v", RESERVE, 4), done("w", DELETE, 6)], "another one held the job"),
        ([PUT_A, done("w", RESERVE, 2), refused("w", DELETE, 4)], "is lost"),
    ],
)
def test_impossible_history_is_reported(steps: list[Step], what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        history(*steps).check()


@pytest.mark.parametrize(
    "steps",
    [
        [PUT_A, *FOUND],
        [unanswered("p", PUT, 0)],
        [unanswered("p", PUT, 0), *FOUND],
        [PUT_A, unanswered("w", DELETE, 4)],
        [PUT_A, unanswered("w", DELETE, 4), *FOUND],
        [SAME_A, SAME_A, *FOUND],
        [PUT_A, done("w", RESERVE, 2), unanswered("w", RELEASE, 3), *FOUND],
        [PUT_A, done("w", RESERVE, 2), Step("w", HANG_UP, b"", 3), *FOUND],
    ],
)
def test_possible_history_is_accepted(steps: list[Step]) -> None:
    history(*steps).check()


def test_jobs_come_back_at_takeovers_only() -> None:
    twice = [PUT_A, done("w", RESERVE, 2), *FOUND]
    history(*twice, disturbed=(4, 5)).check()
    with pytest.raises(AssertionError, match="not given back"):
        history(*twice, disturbed=(28, 29)).check()


def test_reservations_end_with_the_shard_of_the_job() -> None:
    steps = [PUT_A, done("w", RESERVE, 2), refused("w", DELETE, 6), *FOUND]
    for shard in range(2):
        made = History(shards=2)
        for step in steps:
            made.add(step)
        made.name(3, b"a")
        made.disturbances.append(Disturbance("kill", 4, 5, shard))
        if shard == 1:
            made.check()
        else:
            with pytest.raises(AssertionError, match="has lost its reservation"):
                made.check()


def test_job_that_waits_for_a_group_comes_after_the_deletes_of_the_members() -> None:
    member = Step("w", DELETE, b"b", 10, 11, is_done=True)
    for reserved, is_early in ((8, True), (10, False)):
        made = history(PUT_A, done("v", RESERVE, reserved), done("v", DELETE, 15), member, Step("p", PUT, b"b", 0))
        made.groups[b"a"] = b"g", [b"b"]
        if is_early:
            with pytest.raises(AssertionError, match="delivered before b'b' of its group was deleted"):
                made.check()
        else:
            made.check()


def test_more_jobs_with_a_key_than_its_limit_are_reported() -> None:
    made = History()
    made.keys |= {b"a": (b"key", 1), b"b": (b"key", 1)}
    made.hold(b"server", b"a")
    made.hold(b"other server", b"b")
    made.let_go(b"server", b"a")
    made.hold(b"server", b"b")
    assert made.wrong == []
    made.hold(b"server", b"a")
    assert made.wrong == ["2 jobs with the key b'key' are reserved"]


def test_duplicate_of_a_job_that_no_client_has_deleted_is_reported() -> None:
    made = history(SAME_A)
    made.note_duplicate(b"a", b"READY")
    assert made.wrong == []
    made.note_duplicate(b"a", b"DELETED")
    assert made.wrong == ["b'a' is deleted, and no client has deleted it"]


def test_two_jobs_with_one_id_are_reported() -> None:
    made = history(PUT_A)
    made.name(1, b"a")
    made.name(1, b"a")
    made.name(1, b"b")
    with pytest.raises(AssertionError, match="id 1"):
        made.check()


def test_longest_gap_between_two_puts() -> None:
    made = history(*[Step("p", PUT, b"%d" % end, end - 1, end, is_done=True) for end in (10, 11, 14, 15)])
    assert made.longest_gap(11.5, 13) == 3
    assert made.longest_gap(10, 15) == 3
    assert made.longest_gap(14.2, 14.5) == 1


@pytest.mark.parametrize(
    ("count", "unanswered", "is_possible"),
    [
        (1, [], True),
        (2, [], False),
        (2, [(29, [b"tube", b"other"])], True),
        (2, [(29, [b"other"])], False),
        (2, [(31, [b"tube"])], False),
        (3, [(29, [b"tube"])], False),
    ],
)
def test_count_of_reservations_is_that_of_deliveries(
    count: int, unanswered: list[tuple[float, list[bytes]]], is_possible: bool
) -> None:
    made = history(PUT_A, *FOUND)
    made.tubes[b"a"] = b"tube"
    made.counts.append((b"a", count, 30))
    made.unanswered += unanswered
    if is_possible:
        made.check()
    else:
        with pytest.raises(AssertionError, match=rf"{count} reservations of b'a' are counted, and 1 were seen"):
            made.check()
