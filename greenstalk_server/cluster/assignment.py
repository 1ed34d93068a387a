"""Which shard a process that leads none should follow, and take over when it has no owner. Pure.

Every process decides for itself, from what the database shows to all. Two may choose alike at the same time; then one
of them leads, and the other chooses again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

PATIENCE: Final = 2.0
"""Seconds that a shard is left to its own followers before other processes take it."""


@dataclass(frozen=True, slots=True)
class ShardView:
    """A shard, as a process sees it that leads none.

    is_free     no process leads it.
    free_for    seconds since when it has been free; 0 if it is not.
    followers   ids of the processes that follow it, this one included.
    near        ids of those of them that are on the machine of its owner.
    is_reserved an operator wants another process to lead it.
    is_near     its owner is on the machine of this process.
    """

    is_free: bool
    free_for: float
    followers: Sequence[str]
    near: Sequence[str]
    is_reserved: bool
    is_near: bool


def choose(
    shards: Sequence[ShardView], me: str, current: int | None, wanted: int | None, random: Callable[[], float]
) -> int:
    """Return the shard that the process *me* should follow.

    *current*: the shard that it follows, if any; *wanted*: the shard that an operator wants it to lead, if any.

    The rules, in this order:

    1. The shard that an operator wants this process to lead.
    2. The current shard if it is free: to take it over is the purpose of a follower.
    3. A free shard that no process follows, or whose followers have not taken it over for PATIENCE.
    4. The shard that needs this process most: see `_burden`. Only one process leaves a shard at a time, first one on
       the machine of its owner.
    """
    if wanted is not None and 0 <= wanted < len(shards):
        return wanted
    if current is not None and shards[current].is_free and not shards[current].is_reserved:
        return current
    orphans = [number for number, each in enumerate(shards) if _is_orphan(each, me)]
    if orphans:
        return orphans[int(random() * len(orphans))]
    best = min(range(len(shards)), key=lambda number: (_burden(shards[number], me), random()))
    if current is None:
        return best
    here = shards[current]
    leaves = me == max(here.near or here.followers, default=me)
    return best if leaves and _burden(shards[best], me) < _burden(here, me) else current


def _is_orphan(shard: ShardView, me: str) -> bool:
    others = [each for each in shard.followers if each != me]
    return shard.is_free and not shard.is_reserved and (not others or shard.free_for > PATIENCE)


def _burden(shard: ShardView, me: str) -> int:
    """Return how little *shard* needs *me* as a follower, besides those that it has; 0: most.

    A follower on the machine of the owner dies with that machine. So a shard without followers comes first, then one
    whose followers are all on the machine of its owner. For a process on that machine itself, both come later, but
    before any shard with another follower.
    """
    near = len([each for each in shard.near if each != me])
    others = len([each for each in shard.followers if each != me])
    return 4 * others + 3 if shard.is_near else 4 * (others - near) + 2 * bool(near)
