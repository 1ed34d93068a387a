"""Which bodies are in memory, and which on disk alone, when there is a limit to memory.

A journal has every body on disk anyway. So once jobs take more memory than they may, bodies are let go (see
Binlog.let_go), the newest first, since they are wanted last; and read back when their jobs are reserved, or looked at.
This counts them, and says when memory is short. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from greenstalk_server.core.job import READY

if TYPE_CHECKING:
    from greenstalk_server.core.job import Job
    from greenstalk_server.core.tube import Tube

JOB_COST: Final = 272
"""Bytes that a job takes without its body: itself, its numbers, its places in the table, a queue and the journal."""

BODY_COST: Final = 48
"""Bytes that a body takes beside its own."""

SMALL: Final = 64
"""Bytes; a smaller body is not worth letting go."""

LEAST_LIMIT: Final = 64 * 2**20
"""Bytes; the process alone takes half of it."""


class Bodies:
    """The bodies of all jobs.

    limit           bytes that jobs may take, their bodies included.
    in_memory       bytes of the bodies in memory.
    on_disk         bytes of those on disk alone.
    jobs            how many jobs there are, and `held` of them have their body in memory.
    can_let_go      whether there is a journal on disk that bodies can be read back from.
    margin          bytes before the limit that bodies begin to be let go, as that takes its time.
    is_exhausted    all was let go that could be, and memory is still short.
    back            jobs whose bodies were read back, and may go first when memory is short.
    ahead           those whose bodies were read ahead, and stay until reserved, or in the way; `ahead_bytes` in all.
    marks           ids of jobs with whose reservation `read_ahead` is called, with their tube.
    fetch           begins to read back the body of a job, and calls what it is given with that, or None if it is lost.
    look            the bodies of jobs by id, which stay on disk alone if they are; without lost ones. Switches.
    """

    def __init__(self, limit: int, can_let_go: bool) -> None:
        self.limit: int = limit
        self.can_let_go: bool = can_let_go
        self.margin: int = limit // 16
        self.marks: set[int] = set()
        self.back: dict[Job, None] = {}
        self.ahead: dict[Job, None] = {}
        self.ahead_bytes: int = 0
        self.in_memory: int = 0
        self.on_disk: int = 0
        self.jobs: int = 0
        self.held: int = 0
        self.is_exhausted: bool = False
        self.fetch: Callable[[Job, Callable[[bytes | None], None]], None] = _cannot_fetch
        self.look: Callable[[Iterable[Job]], dict[int, bytes]] = held_bodies
        self.read_ahead: Callable[[Tube], None] = _no_read_ahead

    @property
    def taken(self) -> int:
        """Bytes that jobs take, about."""
        return self.in_memory + self.held * BODY_COST + self.jobs * JOB_COST

    def are_short(self) -> bool:
        """Whether bodies are to be let go: some time before the limit."""
        return self.can_let_go and self.taken > self.limit - self.margin

    def has_room(self, size: int) -> bool:
        """Whether a job with a body of *size* bytes fits: now, or soon, since bodies can still be evicted."""
        needed = self.taken + size + JOB_COST + BODY_COST
        if needed <= self.limit:
            return True
        return self.can_let_go and not self.is_exhausted and needed <= self.limit + (self.limit >> 2)

    def admit(self, size: int) -> bool:
        """As `has_room`, for a job that is added next. If it fits now, `is_exhausted` ends."""
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
            self.held += 1
            self.in_memory += job.size

    def remove(self, job: Job) -> None:
        """Uncount *job*."""
        self.marks.discard(job.id)
        self.back.pop(job, None)
        if job in self.ahead:
            self._end_ahead(job)
        self.jobs -= 1
        if job.body is None:
            self.on_disk -= job.size
        else:
            self.held -= 1
            self.in_memory -= job.size

    def reserved(self, job: Job) -> None:
        """Have more read ahead if *job*, which a client has got, is marked."""
        if job in self.ahead:
            self._end_ahead(job)
            self.back[job] = None
        if job.id in self.marks:
            self.marks.discard(job.id)
            self.read_ahead(job.tube)

    def let_go(self, job: Job) -> None:
        """Let go of the body of *job*, which is in memory, and on disk too."""
        job.body = None
        self.held -= 1
        self.in_memory -= job.size
        self.on_disk += job.size

    def take_back(self, job: Job, body: bytes, *, is_ahead: bool) -> None:
        """Have *body*, read back, in memory, if *job* still lacks it; if *is_ahead*, till that is reserved."""
        if job.body is not None:
            return
        job.body = body
        self.held += 1
        self.in_memory += job.size
        self.on_disk -= job.size
        if is_ahead and job.state == READY:
            self.ahead[job] = None
            self.ahead_bytes += job.size
        else:
            self.back[job] = None

    def make_way(self, size: int) -> None:
        """Let some bodies that were read ahead, *size* bytes, go as all others may: those that stay for longest."""
        going = []
        for job in self.ahead:
            if size <= 0:
                break
            going.append(job)
            size -= job.size
        for job in going:
            self._end_ahead(job)
            self.back[job] = None

    def _end_ahead(self, job: Job) -> None:
        del self.ahead[job]
        self.ahead_bytes -= job.size


def held_body(job: Job) -> bytes:
    """The body of *job*, of which it is known that it is in memory."""
    assert job.body is not None
    return job.body


def held_bodies(jobs: Iterable[Job]) -> dict[int, bytes]:
    """Those of *jobs* that are in memory, by id. Stands in for `Bodies.look` where there is no disk."""
    return {job.id: job.body for job in jobs if job.body is not None}


def _no_read_ahead(tube: Tube) -> None:
    """Stand in for `Bodies.read_ahead` where there is no disk."""


def _cannot_fetch(job: Job, deliver: Callable[[bytes | None], None]) -> None:
    """Stand in for `Bodies.fetch` where there is no disk."""
    deliver(job.body)
