"""Weighted reserves: the choice of a tube at random, among those that have a job for the client.

A client in the mode FIFO, the default, gets the best job of all its tubes. In the other modes the share of each tube is
its weight, or its weight divided by the time that its jobs take. Then a job with a worse priority may come first.
Every tube with a ready job has a share, so none starves. Pure: the caller hands in the random number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from greenstalk_server.core.job import SECOND, Job
from greenstalk_server.core.timers import NEVER
from greenstalk_server.core.tube import Tube

FIFO: Final = 0
WEIGHTED: Final = 1
WEIGHTED_FAIR: Final = 2

MAX_WEIGHT: Final = 9999

MIN_RUN: Final = SECOND // 1000
"""Shorter processing times count as this one, nanoseconds."""

MAX_RUN_RATIO: Final = 1000
"""A processing time counts at most this many times the shortest one of the tubes that have a job."""


class Weighting:
    """How one client chooses among its tubes.

    mode    FIFO, WEIGHTED or WEIGHTED_FAIR.
    weights weights by the name of the tube, 2 to MAX_WEIGHT; all others have the weight 1.
    """

    __slots__ = ("mode", "weights")

    def __init__(self) -> None:
        self.mode: int = FIFO
        self.weights: dict[bytes, int] = {}

    def set_weight(self, name: bytes, weight: int) -> None:
        """Give the tube *name* the *weight*, 1 to MAX_WEIGHT."""
        if weight == 1:
            self.weights.pop(name, None)
        else:
            self.weights[name] = weight

    def choose(self, tubes: Iterable[Tube], point: float, now: int) -> Job | None:
        """Return the best job of one of *tubes*, or None if none of them has a job to hand out at *now*.

        *point*, a random number in [0, 1), is a position in the sum of the shares. O(n) for n tubes.
        """
        jobs: list[Job] = []
        for tube in tubes:
            job = tube.ready.first() if tube.held_until <= now else None
            if job is not None:
                jobs.append(job)
        if not jobs:
            return None
        weights = self.weights
        shares = [float(weights.get(job.tube.name, 1)) for job in jobs]
        if self.mode == WEIGHTED_FAIR:
            runs = _run_times([job.tube for job in jobs])
            shares = [share / run for share, run in zip(shares, runs, strict=True)]
        left = point * sum(shares)
        for job, share in zip(jobs, shares, strict=True):
            left -= share
            if left < 0:
                return job
        return jobs[-1]


def _run_times(tubes: list[Tube]) -> list[float]:
    """Return the average processing time of each of *tubes*; if a tube has none, the average of the others."""
    known = [float(max(tube.run_ewma, MIN_RUN)) for tube in tubes if tube.run_min < NEVER]
    usual = sum(known) / len(known) if known else 1.0
    times = [float(max(tube.run_ewma, MIN_RUN)) if tube.run_min < NEVER else usual for tube in tubes]
    longest = MAX_RUN_RATIO * min(times)
    return [min(time, longest) for time in times]
