"""The table of every job by id.

One dict of a million entries stops the server for 30 ms whenever it grows, and so does a copy of its keys. So jobs
stand in shards of SHARD ids each, which are told from the id; none takes long to grow, and a look at all jobs takes one
after the other. Ids rise, so old shards empty and go. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, ValuesView
from itertools import chain
from typing import Final, TypeVar, cast, overload

from greenstalk_server.job import Job

SHARD_BITS: Final = 14
SHARD: Final = 1 << SHARD_BITS
"""Ids; a dict of as many grows in about half a millisecond."""

T = TypeVar("T")


class JobTable(MutableMapping[int, Job]):
    """A dict of jobs by id, in the order in which their shards began, and in each that of insertion."""

    __slots__ = ("_count", "_shards")

    def __init__(self) -> None:
        self._count: int = 0
        self._shards: dict[int, dict[int, Job]] = {}

    @overload
    def get(self, id: int, default: None = None, /) -> Job | None: ...
    @overload
    def get(self, id: int, default: Job | T, /) -> Job | T: ...
    def get(self, id: int, default: T | None = None, /) -> Job | T | None:
        """The job *id*, or *default*."""
        shard = self._shards.get(id >> SHARD_BITS)
        return default if shard is None else shard.get(id, default)

    def __getitem__(self, id: int) -> Job:
        return self._shards[id >> SHARD_BITS][id]

    def __setitem__(self, id: int, job: Job) -> None:
        shard = self._shards.get(id >> SHARD_BITS)
        if shard is None:
            shard = self._shards[id >> SHARD_BITS] = {}
        before = len(shard)
        shard[id] = job
        self._count += len(shard) - before

    def __delitem__(self, id: int) -> None:
        shard = self._shards[id >> SHARD_BITS]
        del shard[id]
        self._count -= 1
        if not shard:
            del self._shards[id >> SHARD_BITS]

    def __len__(self) -> int:
        return self._count

    def __contains__(self, id: object) -> bool:
        return self.get(cast(int, id)) is not None

    def __iter__(self) -> Iterator[int]:
        """Every id; valid until the table next changes."""
        return chain.from_iterable(self._shards.values())

    def values(self) -> ValuesView[Job]:
        """Every job; valid until the table next changes."""
        return _Jobs(self)

    def ids_above(self, id: int) -> Iterator[int]:
        """The ids above *id* of all jobs that are here all along, and perhaps of others, whatever happens meanwhile.

        They rise, so that a look can go on where another has ended.
        """
        for number in sorted(number for number in self._shards if number >= id >> SHARD_BITS):
            yield from sorted(one for one in self._shards.get(number, ()) if one > id)


class _Jobs(ValuesView[Job]):
    """Every job of a table, without a look-up each."""

    _mapping: JobTable

    def __iter__(self) -> Iterator[Job]:
        return chain.from_iterable([shard.values() for shard in self._mapping._shards.values()])
