"""Tables, verdicts and the summary of samples."""

from __future__ import annotations

from dataclasses import replace

from bench.modes import CYCLE, Target
from bench.report import FLOOR, OURS, PEER, ModeResult, summary, table


def result(target: Target, **samples: list[float]) -> ModeResult:
    result = ModeResult(replace(CYCLE, targets=(target,)))
    for column, values in samples.items():
        for value in values:
            result.add(column, {target.metric: value})
    return result


def test_ratio_is_that_of_the_medians() -> None:
    it = result(Target("cpu_us", "at most", 1.1), **{OURS: [9.0, 12.0, 10.0], PEER: [10.0, 8.0, 30.0]})
    (verdict,) = it.verdicts()
    assert verdict.value == 1.0 and verdict.is_met


def test_missed_target_is_one_line_with_the_values_of_other_builds() -> None:
    samples = {OURS: [12.0], "compiled": [10.5], PEER: [10.0], FLOOR: [5.0]}
    it = result(Target("cpu_us", "at most", 1.1), **samples)
    assert summary([it], []).splitlines() == [
        "0 of 1 targets reached; compiled: 1",
        "  cycle: MISSED: µs of server CPU per command: 1.20 times beanstalkd's (compiled: 1.05), target: at most 1.1",
    ]
    head = table(it).splitlines()[2].split()
    assert head == [OURS, "compiled", PEER, FLOOR, "ours/beanstalkd", "compiled/beanstalkd"]


def test_absolute_target_is_not_compared_with_the_peer() -> None:
    it = result(Target("held_ms", "at most", 10, absolute=True), **{OURS: [11.0], PEER: [400.0]})
    assert "ms of the longest wait for a reply: 11.00, target: at most 10" in summary([it], [])


def test_zero_of_the_peer_has_no_ratio() -> None:
    it = result(Target("returned_percent", "at least", 90, absolute=True), **{OURS: [95.0], PEER: [0.0]})
    assert it.verdicts()[0].is_met
    assert "nan" in table(it)
