"""Accounting of job bodies under a memory limit: which are in memory, and which are only on disk.

With a journal, every body is also on disk. When jobs take almost as much memory as the limit, bodies are evicted (see
JournalWriter.evict), newest first, since those are needed last. They are read back when their jobs are reserved or
shown. This module counts bodies, and reports when memory is short. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from greenstalk_server.core.jobs.job import READY

if TYPE_CHECKING:
    from greenstalk_server.core.jobs.job import Job
    from greenstalk_server.core.tubes.tube import Tube

JOB_COST: Final = 272
"""Bytes that a job takes without its body: the object, its numbers, and entries in table, queue and journal."""

BODY_COST: Final = 48
"""Overhead of a body in bytes."""

SMALL: Final = 64
"""Size in bytes up to which a body is not worth evicting."""

LEAST_LIMIT: Final = 64 * 2**20
"""Minimum of --memory-limit in bytes. The process takes half of that without any job."""


class Bodies:
    """The bodies of all jobs.

    limit           maximum memory of all jobs and their bodies, bytes.
    in_memory       size of the bodies in memory, bytes.
    on_disk         size of the bodies that are only on disk, bytes.
    jobs            number of jobs.
    resident        number of jobs whose body is in memory.
    can_evict       there is a journal on disk from which bodies can be read back, so they can be evicted.
    margin          eviction begins this many bytes below the limit, since eviction takes time.
    is_exhausted    every body that can be evicted has been evicted, and memory is still short.
    back            jobs whose bodies were read back; these are evicted first.
    ahead           jobs whose bodies were read ahead; these stay until the job is reserved, or `release_ahead` is
                    called.
    ahead_bytes     size of the bodies in `ahead`, bytes.
    marks           ids of jobs; when one of them is reserved, `read_ahead` is called with its tube.
    fetch           starts to read back the body of a job; later calls the given function with the body, or with None
                    if it is lost.
    look            returns the bodies of jobs by id, omitting lost bodies. It does not keep in memory the bodies that
                    it reads from disk. Switches greenlets.
    read_ahead      schedules reading the bodies of the next jobs of a tube.
    """

    def __init__(self, limit: int, can_evict: bool) -> None:
        self.limit: int = limit
        self.can_evict: bool = can_evict
        self.margin: int = limit // 16
        self.marks: set[int] = set()
        self.back: dict[Job, None] = {}
        self.ahead: dict[Job, None] = {}
        self.ahead_bytes: int = 0
        self.in_memory: int = 0
        self.on_disk: int = 0
        self.jobs: int = 0
        self.resident: int = 0
        self.is_exhausted: bool = False
        self.fetch: Callable[[Job, Callable[[bytes | None], None]], None] = _cannot_fetch
        self.look: Callable[[Iterable[Job]], dict[int, bytes]] = resident_bodies
        self.read_ahead: Callable[[Tube], None] = _no_read_ahead

    @property
    def taken(self) -> int:
        """Approximate memory that jobs take, bytes."""
        return self.in_memory + self.resident * BODY_COST + self.jobs * JOB_COST

    def needs_eviction(self) -> bool:
        """Whether bodies have to be evicted: fewer than `margin` bytes are left below the limit."""
        return self.can_evict and self.taken > self.limit - self.margin

    def has_room(self, size: int) -> bool:
        """Whether a job with a body of *size* bytes fits now, or will fit soon because bodies can be evicted."""
        needed = self.taken + size + JOB_COST + BODY_COST
        if needed <= self.limit:
            return True
        return self.can_evict and not self.is_exhausted and needed <= self.limit + (self.limit >> 2)

    def admit(self, size: int) -> bool:
        """Like `has_room`, for a job that is about to be added. Clear `is_exhausted` if the job fits now."""
        if self.taken + size + JOB_COST + BODY_COST <= self.limit:
            self.is_exhausted = False
            return True
        return self.has_room(size)

    def add(self, job: Job) -> None:
        """Count the new *job*."""
        self.jobs += 1
        if job.body is None:
            self.on_disk += job.size
        else:
            self.resident += 1
            self.in_memory += job.size

    def remove(self, job: Job) -> None:
        """Remove *job* from the counts."""
        self.marks.discard(job.id)
        self.back.pop(job, None)
        if job in self.ahead:
            self._remove_ahead(job)
        self.jobs -= 1
        if job.body is None:
            self.on_disk -= job.size
        else:
            self.resident -= 1
            self.in_memory -= job.size

    def reserved(self, job: Job) -> None:
        """Handle the reservation of *job*.

        If its body was read ahead, allow eviction of the body. If the job is marked, call `read_ahead`.
        """
        if job in self.ahead:
            self._remove_ahead(job)
            self.back[job] = None
        if job.id in self.marks:
            self.marks.discard(job.id)
            self.read_ahead(job.tube)

    def evict(self, job: Job) -> None:
        """Evict the body of *job*, which is in memory and on disk."""
        job.body = None
        self.resident -= 1
        self.in_memory -= job.size
        self.on_disk += job.size

    def restore(self, job: Job, body: bytes, *, is_ahead: bool) -> None:
        """Keep *body*, which was read back, unless *job* already has a body.

        If *is_ahead* and the job is ready, the body stays until the job is reserved or `release_ahead` is called. Any
        other body that was read back is evicted before bodies that were never evicted.
        """
        if job.body is not None:
            return
        job.body = body
        self.resident += 1
        self.in_memory += job.size
        self.on_disk -= job.size
        if is_ahead and job.state == READY:
            self.ahead[job] = None
            self.ahead_bytes += job.size
        else:
            self.back[job] = None

    def release_ahead(self, size: int) -> None:
        """Allow eviction of *size* bytes of read-ahead bodies, oldest first."""
        going = []
        for job in self.ahead:
            if size <= 0:
                break
            going.append(job)
            size -= job.size
        for job in going:
            self._remove_ahead(job)
            self.back[job] = None

    def _remove_ahead(self, job: Job) -> None:
        del self.ahead[job]
        self.ahead_bytes -= job.size


def resident_body(job: Job) -> bytes:
    """Return the body of *job*, which must be in memory."""
    assert job.body is not None
    return job.body


def resident_bodies(jobs: Iterable[Job]) -> dict[int, bytes]:
    """Return the bodies of *jobs* that are in memory, by id. Stands in for `Bodies.look` where there is no disk."""
    return {job.id: job.body for job in jobs if job.body is not None}


def _no_read_ahead(tube: Tube) -> None:
    """Stand in for `Bodies.read_ahead` where there is no disk."""


def _cannot_fetch(job: Job, deliver: Callable[[bytes | None], None]) -> None:
    """Stand in for `Bodies.fetch` where there is no disk."""
    deliver(job.body)
