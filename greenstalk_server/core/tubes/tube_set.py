"""Sets of many tubes that clients watch together, each with a heap of the first ready job of every tube.

A client that watches a few tubes looks at each of them when it reserves. For a client that watches a thousand this
would take too long, so the first job of each tube is in a heap, shared by all clients that watch the same tubes. Such a
client waits in the set, not in each tube, and a tube looks for waiting clients in each of its sets. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from greenstalk_server.core.jobs.job import ID_BITS, READY, Job
from greenstalk_server.core.timers import NEVER

if TYPE_CHECKING:
    from greenstalk_server.core.client import Client
    from greenstalk_server.core.tubes.tube import Tube

MANY_TUBES: Final = 17
"""Minimum number of watched tubes for a client to use a set. With fewer, a reserve looks at each tube."""

MAX_TUBE_SETS: Final = 16
"""Maximum number of sets, since each put notifies the sets of its tube. Clients that get no set look at each tube."""


SWEEP_SLACK: Final = 64
"""A set is swept when its heap has more than 2 * n + SWEEP_SLACK entries, where n is the number of keys."""


class TubeSet:
    """The tubes that some clients watch.

    users   number of clients that watch exactly these tubes.
    waiters     the users that are parked in a reserve, longest waiting first.

    An entry has three members: the key of a job (pri << 64 | id), a unique serial number, and the job's tube. It is
    live while its key equals `_keys[tube]`. `_throttled` maps each tube that is ignored to the time of its entry in
    `_due`, or to NEVER if it has none.

    Invariant: each tube with ready jobs has a key no larger than its first job's, or is in `_throttled`.
    Invariant: after `note` has added an entry, there are at most 2 * len(_keys) + SWEEP_SLACK entries.
    """

    __slots__ = ("_due", "_entries", "_keys", "_serial", "_throttled", "tubes", "users", "waiters")

    def __init__(self, tubes: Iterable[Tube]) -> None:
        """*tubes* should be in the order of creation: for tubes scattered in memory, the call takes twice as long."""
        self.tubes: tuple[Tube, ...] = tuple(tubes)
        self.users: int = 0
        self.waiters: OrderedDict[Client, None] = OrderedDict()
        self._entries: list[tuple[int, int, Tube]] = []
        self._keys: dict[Tube, int] = {}
        self._throttled: dict[Tube, int] = {}
        self._due: list[tuple[int, int, Tube]] = []
        self._serial: int = 0
        for tube in self.tubes:
            tube.tube_sets.append(self)
            job = tube.ready.first()
            if job is not None:
                key = self._keys[tube] = job.pri << ID_BITS | job.id
                self._serial += 1
                self._entries.append((key, self._serial, tube))
        heapify(self._entries)

    def close(self) -> None:
        """Unsubscribe from the tubes."""
        for tube in self.tubes:
            tube.tube_sets.remove(self)

    def note(self, job: Job) -> None:
        """Add an entry for *job*, which is ready in one of the tubes, unless the tube already has a key as small."""
        key, tube = job.pri << ID_BITS | job.id, job.tube
        before = self._keys.get(tube)
        if before is None or key < before:
            self._keys[tube] = key
            self._push(key, tube)
            if len(self._entries) > 2 * len(self._keys) + SWEEP_SLACK:
                self._sweep()

    def first(self, now: int) -> Job | None:
        """Return the job with the smallest (pri, id) of all tubes that are not throttled at *now*, or None."""
        while self._due and self._due[0][0] <= now:
            until, _, tube = heappop(self._due)
            if self._throttled.get(tube) == until:
                self._throttled[tube] = NEVER
                self.resume(tube, now)
        entries, keys = self._entries, self._keys
        while entries:
            key, _, tube = entries[0]
            if keys.get(tube) == key:
                job = tube.ready.first()
                if tube.throttled_until > now:
                    self._ignore(tube)
                    job = None
                elif job is not None and job.pri << ID_BITS | job.id == key:
                    return job
                del keys[tube]
                heappop(entries)
                if job is not None:
                    self.note(job)
            else:
                heappop(entries)
        return None

    def ready_tubes(self) -> list[Tube]:
        """Return the tubes that may have a ready job, in no particular order. Call `first` before."""
        return list(self._keys)

    def check(self) -> None:
        """Assert the invariants. O(everything): for tests."""
        assert self.users > 0
        standing = {(key, tube) for key, _, tube in self._entries}
        assert all((key, tube) in standing for tube, key in self._keys.items())
        for tube in self.tubes:
            assert tube.tube_sets.count(self) == 1
            first = tube.ready.first()
            if first is not None and tube not in self._throttled:
                assert first.state == READY and self._keys[tube] <= first.pri << ID_BITS | first.id

    def resume(self, tube: Tube, now: int) -> None:
        """Consider the jobs of *tube* again, since its `throttled_until` may have changed."""
        if tube not in self._throttled:
            return
        if tube.throttled_until > now:
            self._ignore(tube)
            return
        del self._throttled[tube]
        job = tube.ready.first()
        if job is not None:
            self.note(job)

    def _ignore(self, tube: Tube) -> None:
        """Ignore the jobs of *tube* until its `throttled_until`, or until `resume` if that is NEVER."""
        until = tube.throttled_until
        if until < self._throttled.setdefault(tube, NEVER):
            self._throttled[tube] = until
            self._serial += 1
            heappush(self._due, (until, self._serial, tube))

    def _sweep(self) -> None:
        """Keep one entry for each tube.

        A tube has several live entries if a smaller key replaced its key, and the old key was then added again.
        """
        live = {tube: (key, serial, tube) for key, serial, tube in self._entries if self._keys.get(tube) == key}
        self._entries = list(live.values())
        heapify(self._entries)

    def _push(self, key: int, tube: Tube) -> None:
        self._serial += 1
        heappush(self._entries, (key, self._serial, tube))
