"""Iterates over all tubes, and finds tubes by a fuzzy text or by a pattern among those that the principal may see."""

from __future__ import annotations

import re
from collections.abc import Iterator
from heapq import nsmallest
from typing import Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.tube_names import to_regex
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.cooperative import Pace, in_batches
from greenstalk_server.web.framework.shards import ALONE, Shards

MAX_FOUND: Final = 100
"""Maximum tubes in the result of a query."""

FIND: Final = "tubes.find"
COUNT: Final = "tubes.count"
"""Questions to the other shards."""

_BATCH: Final = 512
"""Names compared between two selections of the best."""

_Rank = tuple[int, int, int, str]
"""The kind of the match, the number of characters that it spans, the length of the name, and the name."""

EXACT, PREFIX, PART, SPREAD = range(4)


def each_tube(broker: Broker, batch_size: int) -> Iterator[Tube]:
    """Yield every tube that still exists when its turn comes. May switch between two batches."""
    for name in in_batches(list(broker.tubes), batch_size):
        tube = broker.tubes.get(name)
        if tube is not None:
            yield tube


def find_tubes(broker: Broker, text: str, limit: int, shards: Shards = ALONE) -> tuple[list[str], int]:
    """Return the best *limit* tubes whose names have the characters of *text* in this order; ignore ASCII case.

    Also return the number of all such tubes. The best are the tube with that name, then names that begin with *text*,
    names that contain it, and names in which its characters are close together. May switch.
    """
    best, found = rank_tubes(broker, text, limit, shards)
    for theirs, count in shards.ask_others(FIND, text=text, limit=limit).values() if shards.others else ():
        best = nsmallest(limit, {*best, *[(kind, span, length, name) for kind, span, length, name in theirs]})
        found += count
    return [rank[-1] for rank in best], found


def rank_tubes(broker: Broker, text: str, limit: int, shards: Shards) -> tuple[list[_Rank], int]:
    """Return the best tubes of this shard with their ranks, and the number of all that match. May switch."""
    wanted = text.lower()
    spread = re.compile("".join([f"(?>.*?{re.escape(mark)})" for mark in wanted]))
    pace, sees, best, found = Pace(), principal().sees, list[_Rank](), 0
    names = [name for name in broker.tubes if shards.owns(name)]
    for begin in range(0, len(names), _BATCH):
        ranks = []
        for name in names[begin : begin + _BATCH]:
            pace.yield_if_due()
            rank = _rank(name.decode(), wanted, spread) if sees(name) else None
            if rank is not None:
                ranks.append(rank)
        found += len(ranks)
        best = nsmallest(limit, [*best, *ranks])
    return best, found


def _rank(name: str, wanted: str, spread: re.Pattern[str]) -> _Rank | None:
    lower = name.lower()
    at = lower.find(wanted)
    if at >= 0:
        kind = EXACT if lower == wanted else PART if at else PREFIX
        return kind, len(wanted), len(name), name
    match = spread.match(lower)
    return None if match is None else (SPREAD, match.end() - lower.index(wanted[0]), len(name), name)


def count_tubes(broker: Broker, pattern: str, shards: Shards) -> int:
    """Return the number of tubes that match *pattern*, for which `is_tube_pattern` is true. May switch."""
    others: dict[int, int] = shards.ask_others(COUNT, pattern=pattern)
    return count_tubes_here(broker, pattern, shards) + sum(others.values())


def count_tubes_here(broker: Broker, pattern: str, shards: Shards) -> int:
    """Like `count_tubes`, of this shard. May switch."""
    matches, pace, sees, found = re.compile(to_regex(pattern).encode()).fullmatch, Pace(), principal().sees, 0
    for name in [name for name in broker.tubes if shards.owns(name)]:
        found += matches(name) is not None and sees(name)
        pace.yield_if_due()
    return found
