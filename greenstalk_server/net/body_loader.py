"""Reads evicted bodies from disk: when a reserve or a peek waits for one, and ahead of the next reserves.

One greenlet collects the requests and reads in the hub's thread pool, so that the disk never blocks the event loop.
When it reads the body of a reserved job, it also reads the bodies of the next jobs of the same tube (read-ahead). When
half of those jobs are reserved, it reads the bodies of the jobs after them.

Docstrings say which methods may switch greenlets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from gevent import get_hub
from gevent.event import Event

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.body_cache import Bodies, resident_bodies
from greenstalk_server.core.jobs.job import RESERVED, Job
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal.writer import JournalWriter
from greenstalk_server.runtime.scheduling import yield_to_loop

READ_AHEAD_JOBS: Final = 512
"""Maximum number of jobs whose bodies are read ahead for one tube."""

READ_AHEAD_BYTES: Final = 2**22
"""Maximum bytes of bodies read ahead for one tube; at most 1/32 of the body cache's limit."""

EVICTION_BATCH: Final = 2000
"""Jobs examined for eviction before the loop serves others: about a millisecond."""

MAX_READ_AHEAD: Final = 2**24
"""Maximum bytes of bodies read ahead for all tubes; above this, reading ahead stops. At most 1/8 of the body cache's
limit, since these bodies are not evicted."""

READ_AHEAD_EVICTION: Final = 64
"""Divisor. While reading ahead is stopped, each request to read ahead makes 1/64 of one tube's maximum bytes evictable.
Otherwise, reading ahead would stay stopped if the tubes whose bodies were read ahead have no workers any longer."""

TRIES: Final = 3
"""Attempts to read a body. Compaction may remove a segment while it is read; then the body is in another segment."""


class Loader:
    """Reads the bodies of *broker*'s jobs from *journal* into the body cache *bodies*."""

    def __init__(self, broker: Broker, journal: JournalWriter, bodies: Bodies) -> None:
        self._broker: Broker = broker
        self._journal: JournalWriter = journal
        self._requests: list[tuple[int, Callable[[bytes | None], None]]] = []
        self._tubes: dict[Tube, None] = {}
        self._wanted: Event = Event()
        self._bodies: Bodies = bodies
        self._ahead_bytes: int = min(READ_AHEAD_BYTES, bodies.limit // 32)
        self._max_read_ahead: int = min(MAX_READ_AHEAD, bodies.limit // 8)
        bodies.fetch = self.fetch
        bodies.look = self.look
        bodies.read_ahead = self.read_ahead

    def fetch(self, job: Job, deliver: Callable[[bytes | None], None]) -> None:
        """Call *deliver* with the body of *job* once read, or with None if the body is lost or the job deleted."""
        self._requests.append((job.id, deliver))
        if job.state == RESERVED:
            self._tubes[job.tube] = None
        self._wanted.set()

    def look(self, jobs: Iterable[Job]) -> dict[int, bytes]:
        """Return the bodies of *jobs* by id, except lost ones; the cache does not change. Switches.

        The caller must bound the total size of the bodies.
        """
        jobs = list(jobs)
        found = resident_bodies(jobs)
        for _ in range(TRIES):
            read = self._journal.read([job for job in jobs if job.id not in found])
            if not read.jobs:
                break
            get_hub().threadpool.apply(read.run)
            self._journal.note_lost(read)
            found |= read.bodies
            found |= resident_bodies([job for job in jobs if job.id not in found])
        return found

    def read_ahead(self, tube: Tube) -> None:
        """Schedule reading the bodies for the next reserves of *tube*. Does not switch."""
        self._tubes[tube] = None
        self._wanted.set()

    def run(self) -> None:
        """Serve requests until the greenlet is killed. Switches."""
        while True:
            self._wanted.wait()
            self._wanted.clear()
            requests, self._requests = self._requests, []
            tubes, self._tubes = self._tubes, {}
            self._read(requests, {job.id: job for tube in tubes for job in self._next_of(tube)})

    def _read(self, requests: list[tuple[int, Callable[[bytes | None], None]]], ahead: dict[int, Job]) -> None:
        """Read the requested bodies and those of the jobs *ahead*, and deliver the requested ones. Switches."""
        jobs, found = self._broker.jobs, dict[int, bytes]()
        for _ in range(TRIES):
            wanted = {job.id: job for id, _ in requests if id not in found and (job := jobs.get(id)) is not None}
            found |= {id: job.body for id, job in wanted.items() if job.body is not None}
            read = self._journal.read([*wanted.values(), *ahead.values()])
            get_hub().threadpool.apply(read.run)
            self._journal.complete_read(read, ahead)
            found |= read.bodies
            if all(id in found or id not in jobs for id, _ in requests):
                break
        for id, deliver in requests:
            deliver(found.get(id))
        while self._journal.evict(EVICTION_BATCH):
            yield_to_loop()

    def _next_of(self, tube: Tube) -> list[Job]:
        """Return the next jobs of *tube* whose bodies are only on disk, or none while reading ahead is stopped.

        Mark the job in the middle: its reservation triggers the next read-ahead.
        """
        found: list[Job] = []
        size = 0
        if self._bodies.ahead_bytes > self._max_read_ahead:
            self._bodies.release_ahead(self._ahead_bytes // READ_AHEAD_EVICTION)
            return found
        for job in islice(tube.ready.walk(), READ_AHEAD_JOBS):
            if job.body is None:
                found.append(job)
                size += job.size
            if size > self._ahead_bytes:
                break
        if found:
            self._bodies.marks.add(found[len(found) // 2].id)
        return found
