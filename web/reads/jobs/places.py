"""Jobs that a search or a bulk change has found, each on a shard: looks them up again where they are now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, convert

from greenstalk_server.core.broker import Broker
from greenstalk_server.web.framework.shards import Shards

MAX_HOPS: Final = 3
"""Shards that are asked for a job, which may move meanwhile."""

Places = Mapping[int, int]
"""The shards by the ids of their jobs."""


class LookedUp(Struct):
    """The answer of a shard that was asked for some jobs.

    found       the jobs that it has, by id, in the form that the question says.
    moved       the shards of jobs that it had, by id.
    left        ids at which it has not looked, because its answer was full.
    """

    found: dict[int, Any]
    moved: dict[int, int]
    left: list[int] = []


def moved_from(broker: Broker, shards: Shards, ids: Iterable[int]) -> dict[int, int]:
    """Return the shards of the jobs *ids* that have left this one."""
    gone = [id for id in ids if id not in broker.jobs]
    return {id: shard for id in gone if (shard := shards.of_job(id)) != shards.own}


def look_up(shards: Shards, question: str, places: Places, **arguments: Any) -> LookedUp:
    """Return the jobs of *places*, found by *question*, which gets `ids` and *arguments*, and returns a LookedUp.

    Jobs of shards that cannot be reached are not found. Switches.
    """
    everything, remaining = LookedUp({}, {}), dict(places)
    for _ in range(MAX_HOPS):
        by_shard: dict[int, dict[str, Any]] = {}
        for id, shard in remaining.items():
            by_shard.setdefault(shard, {"ids": [], **arguments})["ids"].append(id)
        remaining = {}
        for answer in shards.ask_each(question, by_shard).values():
            one = convert(answer, LookedUp, str_keys=True)
            everything.found |= one.found
            everything.left += one.left
            remaining |= one.moved
        if not remaining:
            break
    return everything
