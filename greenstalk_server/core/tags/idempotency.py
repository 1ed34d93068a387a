"""Idempotency keys of existing jobs, by tube, and keys that outlive their jobs. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from greenstalk_server.core.gc_untrack import untrack
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.tags.tags import TaggedJob

MAX_EXPIRED: Final = 64
"""Maximum number of expired keys that one call of `RetainedKeys.drop_expired` removes: about half a millisecond."""


class IdempotencyKeys:
    """The idempotency keys of the jobs of one tube.

    holders     the job that holds each key. A put with the key is a duplicate of this job.
    others      ids of other jobs with the key, in increasing order. They were moved from other tubes.

    Invariant: of all jobs of the tube with a key, the one with the lowest id holds it.
    """

    __slots__ = ("holders", "others")

    def __init__(self) -> None:
        self.holders: dict[bytes, TaggedJob] = {}
        self.others: dict[bytes, list[int]] = {}

    def claim(self, job: TaggedJob) -> None:
        """Add *job*, which has a key and is in the tube."""
        key = job.idempotency_key
        holder = self.holders.get(key)
        if holder is not None:
            insort(self.others.setdefault(key, []), max(job.id, holder.id))
        if holder is None or job.id < holder.id:
            self.holders[key] = job
            untrack(self.holders)  # the insertion of an object makes the collector track the dict

    def release(self, job: TaggedJob, jobs: Mapping[int, Job]) -> None:
        """Remove *job*, which has left the tube; *jobs* is the broker's table of every job by id."""
        key = job.idempotency_key
        others = self.others.get(key)
        if self.holders[key] is not job:
            assert others is not None
            del others[bisect_left(others, job.id)]
        elif others is None:
            del self.holders[key]
        else:
            heir = jobs[others.pop(0)]
            assert isinstance(heir, TaggedJob)
            self.holders[key] = heir
            untrack(self.holders)
        if others is not None and not others:
            del self.others[key]


class RetainedKeys:
    """Keys that outlive their jobs: a put with such a key adds no job.

    table       by scope and key: the id of the job, and the time until which the key is taken, nanoseconds.
    timer_at    time for which the broker's timers are armed, 0 for none (see Timers).

    The scope of a unique key of a policy is the name of the tube. The scope of an idempotency key is the result of
    `scope_of` for that name.
    """

    def __init__(self) -> None:
        self.table: dict[tuple[bytes, bytes], tuple[int, int]] = {}
        self.timer_at: int = 0
        self._times: list[tuple[int, bytes, bytes]] = []
        self._by_tube: dict[bytes, dict[bytes, None]] = {}  # idempotency keys by scope

    def load(self, keys: Mapping[tuple[bytes, bytes], tuple[int, int]]) -> None:
        """Add *keys*, recovered from a journal, in the format of `table`."""
        self.table.update(keys)
        self._times = [(until, *at) for at, (_, until) in self.table.items()]
        heapify(self._times)
        for scope, key in keys:
            if is_idempotency_scope(scope):
                self._by_tube.setdefault(scope, {})[key] = None

    def find(self, scope: bytes, key: bytes, now: int) -> int:
        """Return the id of the job that was put with *key*; 0 if the key is free at *now*."""
        id, until = self.table.get((scope, key), (0, 0))
        return id if now < until else 0

    def keep(self, scope: bytes, key: bytes, id: int, until: int, now: int) -> bool:
        """Keep *key* of the job *id* until the time *until*; return False if it is already kept at least as long."""
        if until <= now or until <= self.table.get((scope, key), (0, 0))[1]:
            return False
        self.table[scope, key] = (id, until)
        heappush(self._times, (until, scope, key))
        if is_idempotency_scope(scope):
            self._by_tube.setdefault(scope, {})[key] = None
        return True

    def count(self, scope: bytes) -> int:
        """Return the number of idempotency keys of *scope*, including expired ones that are not removed yet."""
        return len(self._by_tube.get(scope, ()))

    def forget(self, scope: bytes, limit: int) -> list[bytes]:
        """Free up to *limit* idempotency keys of *scope*; return them."""
        keys = list(islice(self._by_tube.get(scope, ()), limit))
        for key in keys:
            self._remove(scope, key)
        return keys

    def soonest(self) -> int | None:
        """Return a lower bound of the time when the next key becomes free, or None if no key is kept."""
        return self._times[0][0] if self._times else None

    def drop_expired(self, now: int) -> None:
        """Remove up to MAX_EXPIRED keys that are free at *now*."""
        for _ in range(MAX_EXPIRED):
            if not self._times or self._times[0][0] > now:
                return
            _, scope, key = heappop(self._times)
            found = self.table.get((scope, key))
            if found is not None and found[1] <= now:
                self._remove(scope, key)

    def _remove(self, scope: bytes, key: bytes) -> None:
        del self.table[scope, key]
        of_tube = self._by_tube.get(scope)
        if of_tube is not None:
            del of_tube[key]
            if not of_tube:
                del self._by_tube[scope]


def scope_of(tube: bytes) -> bytes:
    """Return the scope of the idempotency keys of *tube*. No tube has this name, because it contains a colon."""
    return tube + b":"


def tube_of_scope(scope: bytes) -> bytes:
    """Return the name of the tube whose keys have *scope*, which may be of either kind (see RetainedKeys)."""
    return scope.removesuffix(b":")


def is_idempotency_scope(scope: bytes) -> bool:
    """Whether *scope* is a scope of idempotency keys rather than the name of a tube."""
    return scope.endswith(b":")
