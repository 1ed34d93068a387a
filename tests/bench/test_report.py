"""Tables, verdicts and the summary of samples."""

from __future__ import annotations

from dataclasses import replace

from bench.modes import CYCLE, Target
from bench.report import OURS, PEER, ModeResult, summary, table


def result(target: Target, **samples: list[float]) -> ModeResult:
    result = ModeResult(replace(CYCLE, targets=(target,)))
    for column, values in samples.items():
        for value in values:
            result.add(column, {target.metric: value})
    return result


def test_missed_target_is_one_line_with_the_values_of_other_builds() -> None:
    samples = {OURS: [12.0], "compiled": [10.5], PEER: [10.0]}
    it = result(Target("cpu_us", "at most", 1.1), **samples)
    assert summary([it], []).splitlines() == [
        "0 of 1 targets reached; compiled: 1",
        "  cycle: MISSED: µs of server CPU per command: 1.20 times beanstalkd's (compiled: 1.05), target: at most 1.1",
    ]
    head = table(it).splitlines()[2].split()
    assert head == [OURS, "compiled", PEER, "ours/beanstalkd", "compiled/beanstalkd"]
