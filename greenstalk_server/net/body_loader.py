"""Reads bodies back that are on disk alone: for reserves and peeks that wait for them, and ahead of reserves to come.

One greenlet gathers what is asked for and has it read in the hub's threadpool, so that no command waits on the disk in
the loop. With the body of a reserved job it reads those of the next ones of its tube; when half of them are reserved,
the next.

Methods say if they may switch greenlets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

import gevent
from gevent import get_hub
from gevent.event import Event

from greenstalk_server.core.body_cache import Bodies, held_bodies
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import RESERVED, Job
from greenstalk_server.core.tube import Tube
from greenstalk_server.journal.writer import Binlog
from greenstalk_server.runtime.scheduling import YIELD_DELAY

AHEAD: Final = 512
AHEAD_BYTES: Final = 2**22
"""Jobs, and bytes of their bodies, that are read ahead of a tube's reserves; fewer bytes where the limit is low."""

LET_GO_AT_ONCE: Final = 2000
"""Jobs looked at, of which bodies are let go, in about a millisecond."""

AHEAD_OF_ALL: Final = 2**24
"""Bytes that were read ahead, for all tubes, after which no more are; and an eighth of the limit, as they stay."""

MAKES_WAY: Final = 64
"""Of what is read ahead of a tube, the part that makes way each time then: a tube may have nobody any more."""

TRIES: Final = 3
"""A segment may go while it is read; its jobs are in another then."""


class Loader:
    """See the module."""

    def __init__(self, broker: Broker, binlog: Binlog, bodies: Bodies) -> None:
        self._broker: Broker = broker
        self._binlog: Binlog = binlog
        self._asked: list[tuple[int, Callable[[bytes | None], None]]] = []
        self._tubes: dict[Tube, None] = {}
        self._wanted: Event = Event()
        self._bodies: Bodies = bodies
        self._ahead_bytes: int = min(AHEAD_BYTES, bodies.limit // 32)
        self._ahead_of_all: int = min(AHEAD_OF_ALL, bodies.limit // 8)
        bodies.fetch = self.fetch
        bodies.look = self.look
        bodies.read_ahead = self.read_ahead

    def fetch(self, job: Job, deliver: Callable[[bytes | None], None]) -> None:
        """Call *deliver* with the body of *job* once it is here, or None if it is lost or the job gone."""
        self._asked.append((job.id, deliver))
        if job.state == RESERVED:
            self._tubes[job.tube] = None
        self._wanted.set()

    def look(self, jobs: Iterable[Job]) -> dict[int, bytes]:
        """The bodies of *jobs* by id; those on disk alone stay there. Lost ones are left out. Switches.

        What all of them take of memory together is for the caller to bound.
        """
        jobs = list(jobs)
        found = held_bodies(jobs)
        for _ in range(TRIES):
            read = self._binlog.read([job for job in jobs if job.id not in found])
            if not read.jobs:
                break
            get_hub().threadpool.apply(read.run)
            self._binlog.note_lost(read)
            found |= read.bodies
            found |= held_bodies([job for job in jobs if job.id not in found])
        return found

    def read_ahead(self, tube: Tube) -> None:
        """Read the bodies that the next reserves of *tube* want. Does not switch."""
        self._tubes[tube] = None
        self._wanted.set()

    def run(self) -> None:
        """Read whatever is asked for, for ever; in a greenlet of its own. Switches."""
        while True:
            self._wanted.wait()
            self._wanted.clear()
            asked, self._asked = self._asked, []
            tubes, self._tubes = self._tubes, {}
            self._read(asked, {job.id: job for tube in tubes for job in self._next_of(tube)})

    def _read(self, asked: list[tuple[int, Callable[[bytes | None], None]]], ahead: dict[int, Job]) -> None:
        """Read what is *asked* for and what is wanted *ahead*, and deliver. Switches."""
        jobs, found = self._broker.jobs, dict[int, bytes]()
        for _ in range(TRIES):
            wanted = {job.id: job for id, _ in asked if id not in found and (job := jobs.get(id)) is not None}
            found |= {id: job.body for id, job in wanted.items() if job.body is not None}
            read = self._binlog.read([*wanted.values(), *ahead.values()])
            get_hub().threadpool.apply(read.run)
            self._binlog.have_read(read, ahead)
            found |= read.bodies
            if all(id in found or id not in jobs for id, _ in asked):
                break
        for id, deliver in asked:
            deliver(found.get(id))
        while self._binlog.let_go(LET_GO_AT_ONCE):
            gevent.sleep(YIELD_DELAY)

    def _next_of(self, tube: Tube) -> list[Job]:
        """The next jobs of *tube* whose bodies are on disk alone; and mark the one after which to come again."""
        found: list[Job] = []
        size = 0
        if self._bodies.ahead_bytes > self._ahead_of_all:
            self._bodies.make_way(self._ahead_bytes // MAKES_WAY)
            return found
        for job in islice(tube.ready.walk(), AHEAD):
            if job.body is None:
                found.append(job)
                size += job.size
            if size > self._ahead_bytes:
                break
        if found:
            self._bodies.marks.add(found[len(found) // 2].id)
        return found
