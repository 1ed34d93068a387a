"""Summaries of durations: averages and quantiles. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from typing import Final, TypeAlias

DurationCounts: TypeAlias = Mapping[int, int]
"""A histogram: number of durations by their bit length in nanoseconds."""

EWMA_WINDOW: Final = 10
"""Each duration moves an exponentially weighted average by this part of the difference: a weight of 0.1."""


def quantile(counts: DurationCounts, part: float) -> float:
    """Estimate the *part* quantile of durations in seconds; NaN if there are none.

    A bit length bounds a duration between two powers of two. The estimate assumes an even spread between them, so it is
    wrong by a factor of two at most.
    """
    rank, passed = part * sum(counts.values()), 0
    for bits, count in sorted(counts.items()):
        if passed + count >= rank:
            low = 1 << bits >> 1
            return low * (1 + (rank - passed) / count) / 1e9
        passed += count
    return nan
