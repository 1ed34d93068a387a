"""Reads bodies back that are on disk alone: for reserves and peeks that wait for them, and ahead of reserves to come.

One greenlet gathers what is asked for and has it read in the hub's threadpool, so that no command waits on the disk in
the loop. With the body of a reserved job it reads those of the next ones of its tube; when half of them are reserved,
the next.

Methods say if they may switch greenlets.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import gevent
from gevent import get_hub
from gevent.event import AsyncResult, Event

from greenstalk_server.bodies import Bodies, BodyLost
from greenstalk_server.broker import Broker
from greenstalk_server.committer import LET_GO_AT_ONCE
from greenstalk_server.job import RESERVED, Job
from greenstalk_server.journal.binlog import Binlog
from greenstalk_server.tube import Tube

AHEAD: Final = 512
AHEAD_BYTES: Final = 2**22
"""Jobs, and bytes of their bodies, that are read ahead of a tube's reserves."""

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
        self._marks: set[int] = bodies.marks
        self._greenlet: gevent.Greenlet | None = None
        bodies.fetch = self.fetch
        bodies.load = self.load
        bodies.read_ahead = self.read_ahead

    def start(self) -> None:
        """Begin. Does not switch."""
        self._greenlet = gevent.spawn(self._run)

    def stop(self) -> None:
        """End. Does not switch."""
        if self._greenlet is not None:
            self._greenlet.kill(block=False)

    def fetch(self, job: Job, deliver: Callable[[bytes | None], None]) -> None:
        """Call *deliver* with the body of *job* once it is here, or None if it is lost or the job gone."""
        self._asked.append((job.id, deliver))
        if job.state == RESERVED:
            self._tubes[job.tube] = None
        self._wanted.set()

    def load(self, job: Job) -> bytes:
        """The body of *job*, read back if need be; raise BodyLost. Switches."""
        if job.body is not None:
            return job.body
        result: Any = AsyncResult()
        self.fetch(job, result.set)
        body: bytes | None = result.get()
        if body is None:
            raise BodyLost(f"the body of job {job.id} cannot be read back from the journal")
        return body

    def read_ahead(self, tube: Tube) -> None:
        """Read the bodies that the next reserves of *tube* want. Does not switch."""
        self._tubes[tube] = None
        self._wanted.set()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            asked, self._asked = self._asked, []
            tubes, self._tubes = self._tubes, {}
            self._read(asked, [job for tube in tubes for job in self._next_of(tube)])

    def _read(self, asked: list[tuple[int, Callable[[bytes | None], None]]], ahead: list[Job]) -> None:
        """Read what is *asked* for and what is wanted *ahead*, and deliver. Switches."""
        jobs, found = self._broker.jobs, dict[int, bytes]()
        for _ in range(TRIES):
            wanted = {job.id: job for id, _ in asked if id not in found and (job := jobs.get(id)) is not None}
            found |= {id: job.body for id, job in wanted.items() if job.body is not None}
            read = self._binlog.read([*wanted.values(), *ahead])
            get_hub().threadpool.apply(read.run)
            self._binlog.have_read(read)
            found |= read.bodies
            if all(id in found or id not in jobs for id, _ in asked):
                break
        for id, deliver in asked:
            deliver(found.get(id))
        while self._binlog.let_go(LET_GO_AT_ONCE):
            gevent.sleep(0)

    def _next_of(self, tube: Tube) -> list[Job]:
        """The next jobs of *tube* whose bodies are on disk alone; and mark the one after which to come again."""
        found, size = [], 0
        for job in islice(tube.ready.walk(), AHEAD):
            if job.body is None:
                found.append(job)
                size += job.size
            if size > AHEAD_BYTES:
                break
        if found:
            self._marks.add(found[len(found) // 2].id)
        return found
