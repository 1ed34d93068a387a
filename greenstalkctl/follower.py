"""Follow the new jobs of a tube without reserving any, by their ids, which the server assigns in ascending order.

The API lists the jobs above an id. The protocol has no list, and shows only the first job of each state, so each id
assigned since the last poll is looked up. A job that is deleted between two polls is not seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from greenstalkctl.api import Api
from greenstalkctl.errors import Refused
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.queue import STATES, JobView
from greenstalkctl.server import Server
from greenstalkctl.transfer import HOLD_DELAY

PROBE_TUBE: Final = "greenstalkctl-probe"
MAX_LOOK_BACK: Final = 10_000
"""Maximum number of ids looked up to find the last jobs of a tube; that takes about half a second."""

AGE_QUERIES: Final = ("age:<5s", "age:<1m", "age:<1h", "age:<1d", "")
"""Queries tried in turn to find the last jobs of a tube, since a list starts with the oldest job that matches."""

EXTRA_IDS: Final = 16
"""Ids looked up beyond the server's count of jobs: a refused put has used up an id too."""


INCOMPLETE_STATE: Final = "invalid"
"""beanstalkd's name for the state of a job whose body is incomplete; its statistics do not count the job."""


class ApiFollower:
    """The new jobs of a tube, from the API. Call `last` first."""

    def __init__(self, api: Api, tube: str, interrupt: Interrupt) -> None:
        self._api = api
        self._tube = tube
        self._interrupt = interrupt
        self._newest = 0

    def last(self, count: int) -> list[JobView]:
        """Return the last *count* jobs of the tube, the oldest first; raise Interrupted on Ctrl-C or SIGTERM."""
        ids = deque[int]()
        for query in AGE_QUERIES:
            ids = deque(self._ids(query), count or 1)  # the newest id is needed even if count is 0
            if len(ids) >= (count or 1):
                break
        self._newest = ids[-1] if ids else 0
        return [view for job_id in ids if count and (view := self._api.view_job(job_id)) is not None]

    def new(self) -> Iterator[JobView]:
        """Yield the jobs put since the last call."""
        for view in self._api.jobs(self._tube, query=f"id:>{self._newest}"):
            self._newest = view.id
            if view.body is not None:
                yield view
            elif (whole := self._api.view_job(view.id)) is not None:
                yield whole

    def _ids(self, query: str) -> Iterator[int]:
        """Yield the ids of all jobs that match *query*; there may be millions."""
        for view in self._api.jobs(self._tube, query=query, has_bodies=False):
            self._interrupt.check("interrupted")
            yield view.id


class ProtocolFollower:
    """The new jobs of a tube, over the protocol.

    newest          the highest id that needs no further lookup.
    _counted        the newest id at the start, plus the number of jobs that the server has counted since.

    Invariant: `_counted` is at most the newest id on the server.
    """

    def __init__(self, server: Server, tube: str) -> None:
        """Start following: only jobs put from now on are new."""
        self._server = server
        self._tube = tube
        self.newest = newest_id(server)
        self._counted = self.newest
        self._total = self._server_total()
        self._tube_total = self._total_of_tube()
        self._was_busy = False

    def last(self, count: int) -> list[JobView]:
        """Return the last *count* jobs of the tube among the newest MAX_LOOK_BACK ids, the oldest first."""
        found = list[JobView]()
        for job_id in range(self.newest, max(0, self.newest - MAX_LOOK_BACK), -1):
            if len(found) == count:
                break
            if (view := self._see(job_id)) is not None:
                found.append(view)
        return found[::-1]

    def new(self) -> Iterator[JobView]:
        """Yield the jobs put since the last call.

        Ids are looked up only while the tube's count of puts changes, and once more after that, because a job may be
        put between the reads of the two counts.
        """
        total, tube_total = self._server_total(), self._total_of_tube()
        self._counted += max(total - self._total, 0)
        is_busy = tube_total != self._tube_total
        self._total, self._tube_total = total, tube_total
        if is_busy or self._was_busy:
            yield from self._scan()
            if self.newest > self._counted and self._server_total() == total:
                self._counted = self.newest  # some ids belong to no job
        self._was_busy = is_busy
        self.newest = max(self.newest, self._counted)

    def _scan(self) -> Iterator[JobView]:
        job_id = self.newest
        while job_id < max(self._counted, self.newest) + EXTRA_IDS:
            job_id += 1
            stats = self._server.job(job_id)
            if stats is None or stats["state"] == INCOMPLETE_STATE:
                continue
            self.newest = job_id
            if stats["tube"] == self._tube and (job := self._server.peek(job_id)) is not None:
                yield JobView(stats | {"bytes": len(job.body)}, job.body)

    def _see(self, job_id: int) -> JobView | None:
        stats = self._server.job(job_id)
        if stats is None or stats["tube"] != self._tube:
            return None
        job = self._server.peek(job_id)
        return JobView(stats | {"bytes": len(job.body)}, job.body) if job is not None else None

    def _server_total(self) -> int:
        return int(self._server.stats()["total-jobs"])

    def _total_of_tube(self) -> int:
        stats = self._server.tube(self._tube)
        return int(stats["total-jobs"]) if stats is not None else 0


def newest_id(server: Server) -> int:
    """Return the newest id of *server*: the id of an empty job, which is put into PROBE_TUBE and deleted at once.

    A server that refuses puts assigns no ids. The id is then estimated from the server's count of jobs and the first
    jobs of all tubes.
    """
    try:
        probe = server.put(PROBE_TUBE, b"", 0, HOLD_DELAY, 1)
    except Refused:
        firsts = (server.first(tube, state) for tube in server.tubes() for state in STATES)
        return max([int(server.stats()["total-jobs"]), *(job.id for job in firsts if job is not None)])
    server.delete(probe)
    return probe
