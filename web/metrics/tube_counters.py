"""The counters of tubes, and iteration over all tubes, for the history and the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Final, TypeVar

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.tube import Tube
from greenstalk_server.web.cooperative import Pace
from greenstalk_server.web.metrics.rings import RATES

Item = TypeVar("Item")

Counts = tuple[int, ...]

NO_COUNTS: Final[Counts] = (0,) * len(RATES)

tube_counters: Final = attrgetter(
    "total_jobs",
    "total_reserves",
    "cmd_delete",
    "total_buries",
    "total_timeouts",
    "total_releases",
    "total_kicks",
)
"""Returns the counters of a tube, in the order of RATES."""


def each_tube(broker: Broker, batch_size: int) -> Iterator[Tube]:
    """Yield every tube that still exists when its turn comes. May switch between two batches."""
    tubes = broker.tubes
    for name in in_batches(list(tubes), batch_size):
        tube = tubes.get(name)
        if tube is not None:
            yield tube


def in_batches(items: list[Item], batch_size: int) -> Iterator[Item]:
    """Yield *items*. May switch between two batches."""
    pace = Pace()
    for start in range(0, len(items), batch_size):
        pace.yield_if_due()
        yield from items[start : start + batch_size]
