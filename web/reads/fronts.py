"""The figures of the clients that processes accepted while they led no shard: in a cluster, those of its standbys.

Such a process has no jobs, but it has connections, and counts some of their commands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Final

from msgspec import Struct, convert

from greenstalk_server.protocol.stats import ServerStats, server_stats
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.framework.shards import Shards

COUNTED: Final = (
    "cmd_", "total_connections", "current_connections", "current_producers", "current_workers", "current_waiting",
)  # fmt: skip
"""Prefixes of the names of the stats about clients, which are added up."""

QUESTION: Final = "front"


class FrontFigures(Struct):
    """The figures of the clients of one process.

    stats       the values of ServerStats that are in COUNTED.
    limited     how often each limit was hit.
    """

    stats: dict[str, int]
    limited: dict[str, int]


class Fronts:
    """The clients that this process, and the standbys, accepted without leading a shard."""

    def __init__(self, clock: Clock, shards: Shards) -> None:
        self._clock: Clock = clock
        self._shards: Shards = shards
        shards.answer(QUESTION, self.own)

    def own(self) -> list[FrontFigures]:
        """Return the figures of this process; none if it has always led a shard."""
        front = self._shards.front
        if front is None:
            return []
        stats = asdict(server_stats(front, self._clock()))
        counted = {name: value for name, value in stats.items() if name.startswith(COUNTED)}
        return [FrontFigures(counted, dict(front.limit_counters.counts()))]

    def standbys(self) -> list[FrontFigures]:
        """Return the figures of the standbys that can be reached. Switches if there are any."""
        answers = self._shards.ask_standbys(QUESTION).values()
        return [figures for answer in answers for figures in convert(answer, list[FrontFigures])]


def with_fronts(stats: ServerStats, fronts: Iterable[FrontFigures]) -> ServerStats:
    """Return *stats* with those of *fronts* added."""
    for front in fronts:
        stats = replace(stats, **{name: getattr(stats, name) + value for name, value in front.stats.items()})
    return stats


def limited_with(limited: Mapping[str, int], fronts: Iterable[FrontFigures]) -> dict[str, int]:
    """Return the numbers of *limited* with those of *fronts* added."""
    found = Counter(limited)
    for front in fronts:
        found.update(front.limited)
    return dict(found)
