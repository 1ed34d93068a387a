"""The ids that a shard assigns to its jobs, and the home shard of every id. Pure.

A queue consists of one or more shards, each with a broker and a journal of its own. Their ids are interleaved:
`id = base + local * shards + shard`, where `local` counts the ids of one shard from 0. Ids below `base` were assigned
before the queue had several shards, and belong to shard 0. So an id names its home shard. A queue of one shard with
base 0 assigns 1, 2, 3.

A job that moves to another shard keeps its id. There the id is foreign: it says nothing about the ids that this shard
has assigned, or about the time at which the job arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ID_END: Final = 2**53
"""Every id that a server assigns is below this, so that a JSON number holds it exactly. The journal refuses a put with
a higher id. Without a journal there is no check: at a million puts a second, ids reach this value after 285 years."""

MAX_SHARDS: Final = 1024


@dataclass(frozen=True, slots=True)
class IdSequence:
    """The ids that the shard *shard* of a queue of *shards* shards assigns."""

    base: int = 0
    shards: int = 1
    shard: int = 0

    def find_problem(self) -> str:
        """Return why no shard can have this sequence, or "" if one can."""
        if not 1 <= self.shards <= MAX_SHARDS:
            return f"{self.shards} shards: must be 1 to {MAX_SHARDS}"
        if not 0 <= self.shard < self.shards:
            return f"shard {self.shard}: must be 0 to {self.shards - 1}, since the queue has {self.shards} shards"
        if not 0 <= self.base < ID_END:
            return f"base {self.base}: must be 0 to {ID_END - 1}, since ids are below 2^53"
        return ""

    def home(self, id: int) -> int:
        """Return the shard that has assigned *id*, or will assign it."""
        return (id - self.base) % self.shards if id >= self.base else 0

    def owns(self, id: int) -> bool:
        """Return whether this shard has assigned *id*, or will assign it; if not, *id* is foreign."""
        return self.shards == 1 or self.home(id) == self.shard

    def next_after(self, id: int) -> int:
        """Return the smallest id above *id* that this shard can still assign; *id* is 0 or more."""
        first = max(id + 1, self.base)
        return first + (self.shard - (first - self.base)) % self.shards

    def is_older(self, id: int, next_id: int) -> bool:
        """Return False if the job *id* was put here when *next_id* was the next id, or later.

        A foreign job always counts as older: its id does not show when it arrived.
        """
        return id < next_id or not self.owns(id)


ONE_SHARD: Final = IdSequence()
"""The ids of a queue of one shard."""
