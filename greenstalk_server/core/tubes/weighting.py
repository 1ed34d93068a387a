"""Weighted reserves: select a tube at random among the watched tubes that have a job for the client.

In the default mode, FIFO, a reserve gets the best job of all watched tubes. In the other modes, the probability of each
tube is proportional to its weight, or to its weight divided by its average processing time. So a job with a worse
priority may come first, but no tube with a ready job starves. Pure: the caller passes the random number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.core.timers import NEVER
from greenstalk_server.core.tubes.tube import Tube

FIFO: Final = 0
WEIGHTED: Final = 1
WEIGHTED_FAIR: Final = 2

MAX_WEIGHT: Final = 9999

MAX_WEIGHTED_TUBES: Final = 512
"""Maximum number of tubes that a client in a weighted mode watches. A reserve examines all of them, which takes up to a
millisecond."""

MIN_PROCESSING_TIME: Final = SECOND // 1000
"""Minimum processing time for fair shares, nanoseconds; shorter times count as this."""

MAX_PROCESSING_RATIO: Final = 1000
"""Maximum ratio of a tube's processing time to the shortest one; longer times are cut to this ratio."""


class Weighting:
    """The rule by which one client chooses among its tubes.

    mode    FIFO, WEIGHTED or WEIGHTED_FAIR.
    weights weights by tube name, 2 to MAX_WEIGHT; all other tubes have the weight 1.
    """

    __slots__ = ("mode", "weights")

    def __init__(self) -> None:
        self.mode: int = FIFO
        self.weights: dict[bytes, int] = {}

    def set_weight(self, name: bytes, weight: int) -> None:
        """Set the weight of the tube *name*, 1 to MAX_WEIGHT."""
        if weight == 1:
            self.weights.pop(name, None)
        else:
            self.weights[name] = weight

    def choose(self, tubes: Iterable[Tube], point: float, now: int) -> Job | None:
        """Select one of *tubes* by its share; return its best job, or None if no tube has a job to hand out at *now*.

        *point* is a random number in [0, 1) that selects the tube. O(n) for n tubes.
        """
        jobs: list[Job] = []
        for tube in tubes:
            job = tube.ready.first() if tube.throttled_until <= now else None
            if job is not None:
                jobs.append(job)
        if not jobs:
            return None
        weights = self.weights
        shares = [float(weights.get(job.tube.name, 1)) for job in jobs]
        if self.mode == WEIGHTED_FAIR:
            times = _processing_times([job.tube for job in jobs])
            shares = [share / time for share, time in zip(shares, times, strict=True)]
        left = point * sum(shares)
        for job, share in zip(jobs, shares, strict=True):
            left -= share
            if left < 0:
                return job
        return jobs[-1]


def _processing_times(tubes: list[Tube]) -> list[float]:
    """Return the average processing time of each tube; a tube without one gets the average of the others."""
    found = [tube.processing_times for tube in tubes]
    known = [float(max(times.ewma, MIN_PROCESSING_TIME)) for times in found if times.shortest < NEVER]
    usual = sum(known) / len(known) if known else 1.0
    averages = [float(max(times.ewma, MIN_PROCESSING_TIME)) if times.shortest < NEVER else usual for times in found]
    longest = MAX_PROCESSING_RATIO * min(averages)
    return [min(average, longest) for average in averages]
