"""The stats of the server that the current principal may see.

If the principal may see only some tubes, the counts of jobs and the rates are sums over these tubes.
"""

from __future__ import annotations

from dataclasses import replace
from operator import add
from typing import Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.protocol.stats import ServerStats, server_stats
from greenstalk_server.web.features.history.history import History, Rates
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.reads.tubes import each_tube

TUBE_BATCH: Final = 64
"""Tubes summed between two checks of the time slice: about 0.1 ms."""


FIELDS: Final = (
    "current_jobs_ready", "current_jobs_urgent", "current_jobs_reserved", "current_jobs_delayed",
    "current_jobs_buried", "total_jobs", "job_timeouts", "current_tubes",
)  # fmt: skip
"""The fields that are sums over tubes."""


def visible_stats(broker: Broker, history: History, now: int) -> tuple[ServerStats, Rates]:
    """Return the stats and the rates of the server, for the tubes that the principal may see. May switch."""
    who, stats = principal(), server_stats(broker, now)
    if who.sees_all:
        return stats, history.total_rates()
    rates: tuple[float, ...] = Rates()
    counts: tuple[int, ...] = (0,) * len(FIELDS)
    for tube in each_tube(broker, TUBE_BATCH):
        if not who.sees(tube.name):
            continue
        counts = tuple(map(add, counts, _counts(tube)))
        rates = tuple(map(add, rates, history.rates(tube.name)))
    return replace(stats, **dict(zip(FIELDS, counts, strict=True))), Rates(*rates)  # type: ignore[arg-type]  # integers


def _counts(tube: Tube) -> tuple[int, ...]:
    """Return the counts of *tube* in the order of FIELDS."""
    states = tube.ready.count, tube.urgent_count, tube.reserved_count, tube.delayed.count, len(tube.buried)
    return *states, tube.total_jobs, tube.total_timeouts, 1
