"""A job, its four states, and the heap that orders jobs.

Owns what is true of one job alone. Knows its tube and its holder only as references; the broker moves it.

Times are integer nanoseconds, by the broker's clock: durations since the Unix epoch or plain lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from greenstalk_server.client import Client
    from greenstalk_server.tube import Tube

READY: Final = 1
RESERVED: Final = 2
BURIED: Final = 3
DELAYED: Final = 4

STATE_NAMES: Final = ("invalid", "ready", "reserved", "buried", "delayed")

SECOND: Final = 1_000_000_000
MAX_ID: Final = 2**64 - 1
URGENT_BELOW: Final = 1024
"""A ready job with a priority below this counts as urgent (protocol.txt, "stats")."""

ID_BITS: Final = 64
NO_KEY: Final = -1


class Job:
    """One job.

    id          1 to 2**64-1, rising in the order of put headers, never used twice.
    pri         0, the most urgent, to 2**32-1.
    delay       what the last put or release asked for, whole seconds in nanoseconds.
    ttr         time to run, whole seconds in nanoseconds, at least one second.
    body        without the CRLF that ends it on the wire.
    key         its entry in a heap of its tube while ready or delayed, else NO_KEY.
    deadline    the time it turns ready if delayed; the ttr's end if reserved; its place among those ever buried
                if buried; else unused.
    holder      the client that reserved it, else None.
    segment     number of the journal's file that holds its full record; 0 without a journal.
    """

    __slots__ = (
        "body",
        "buries",
        "created_at",
        "deadline",
        "delay",
        "holder",
        "id",
        "key",
        "kicks",
        "pri",
        "releases",
        "reserves",
        "segment",
        "state",
        "timeouts",
        "ttr",
        "tube",
    )

    def __init__(self, id: int, tube: Tube, body: bytes, pri: int, delay: int, ttr: int, created_at: int) -> None:
        self.id: int = id
        self.tube: Tube = tube
        self.body: bytes = body
        self.pri: int = pri
        self.delay: int = delay
        self.ttr: int = ttr
        self.created_at: int = created_at
        self.state: int = READY
        self.key: int = NO_KEY
        self.deadline: int = 0
        self.holder: Client | None = None
        self.reserves: int = 0
        self.timeouts: int = 0
        self.releases: int = 0
        self.buries: int = 0
        self.kicks: int = 0
        self.segment: int = 0

    def __repr__(self) -> str:
        return f"<Job {self.id} {STATE_NAMES[self.state]} pri={self.pri} tube={self.tube.name!r}>"


class JobHeap:
    """Jobs of one tube in one state, smallest (rank, id) first; the rank is a priority or a deadline.

    An entry is the integer rank << 64 | id, which C compares and which costs less memory than a tuple. A job
    that leaves from the middle leaves its entry behind, dead: an entry is live only while it is its job's
    `key` and the job is in this tube. (A rank and an id seen twice give one entry more, equal and harmless.)
    Dead entries are swept when they outnumber the live ones, so a removal costs O(log n) amortised.

    Invariant: `count` is the number of live jobs, and len(entries) <= 2 * count + SLACK after every method.
    """

    __slots__ = ("_jobs", "_tube", "count", "entries")

    SLACK: Final = 64

    def __init__(self, tube: Tube, jobs: dict[int, Job]) -> None:
        self._tube: Tube = tube
        self._jobs: dict[int, Job] = jobs
        self.count: int = 0
        self.entries: list[int] = []

    def push(self, job: Job, rank: int) -> None:
        """Add *job*, which is in no heap."""
        key = rank << ID_BITS | job.id
        job.key = key
        heappush(self.entries, key)
        self.count += 1

    def first(self) -> Job | None:
        """The job with the smallest (rank, id), or None."""
        entries, jobs = self.entries, self._jobs
        while entries:
            key = entries[0]
            job = jobs.get(key & MAX_ID)
            if job is not None and job.key == key and job.tube is self._tube:
                return job
            heappop(entries)
        return None

    def remove(self, job: Job) -> None:
        """Take *job* out, from wherever it stands; cheapest if it is the first."""
        entries = self.entries
        if entries[0] == job.key:
            heappop(entries)
        job.key = NO_KEY
        self.count -= 1
        if len(entries) > 2 * self.count + self.SLACK:
            self._sweep()

    def walk(self) -> Iterator[Job]:
        """Every job in order, lazily: the first k of n cost O(k log k). Valid until the heap next changes."""
        entries = self.entries
        frontier = [(entries[0], 0)] if entries else []
        last = NO_KEY
        while frontier:
            key, at = heappop(frontier)
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(entries):
                    heappush(frontier, (entries[child], child))
            job = self._live(key)
            if job is not None and key != last:
                last = key
                yield job

    def _live(self, key: int) -> Job | None:
        job = self._jobs.get(key & MAX_ID)
        return job if job is not None and job.key == key and job.tube is self._tube else None

    def _sweep(self) -> None:
        self.entries = list({key for key in self.entries if self._live(key)})
        heapify(self.entries)
