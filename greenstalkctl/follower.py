"""Seeing the jobs of a tube come without taking any: by their ids, which a server gives in order.

The API lists those above an id. The protocol lists no jobs, and shows but the first of each state: there the ids that
have been given since the last look are asked for, one by one. A job that is deleted between two looks is not seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from greenstalkctl.api import Api
from greenstalkctl.exits import Refused
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.queue import STATES, Seen
from greenstalkctl.server import Server
from greenstalkctl.transfer import HOUR

PROBE_TUBE: Final = "greenstalkctl-probe"
LOOK_BACK: Final = 10_000
"""Ids looked at for the last jobs of a tube: half a second's worth."""

YOUNG: Final = ("age:<5s", "age:<1m", "age:<1h", "age:<1d", "")
"""Of which jobs the last ones are looked for, one after the other: a list begins with the oldest."""

SLACK: Final = 16
"""Ids looked at beyond those that the server's count of jobs accounts for: a put that was refused has cost one too."""


HALF_PUT: Final = "invalid"
"""What beanstalkd calls the state of a job whose body has not come yet; it is not counted."""


class Lister:
    """What has come into a tube since the last look, by the API's lists. Begin with `last`."""

    def __init__(self, api: Api, tube: str, interrupt: Interrupt) -> None:
        self._api = api
        self._tube = tube
        self._interrupt = interrupt
        self._newest = 0

    def last(self, count: int) -> list[Seen]:
        """The last *count* jobs of the tube that there are, the oldest first; raise Interrupted if it is to end."""
        ids = deque[int]()
        for query in YOUNG:
            ids = deque(self._ids(query), count or 1)  # the newest id is wanted in any case
            if len(ids) >= (count or 1):
                break
        self._newest = ids[-1] if ids else 0
        return [seen for job_id in ids if count and (seen := self._api.see(job_id)) is not None]

    def new(self) -> Iterator[Seen]:
        """The jobs that have come since."""
        for seen in self._api.jobs(self._tube, query=f"id:>{self._newest}"):
            self._newest = seen.id
            if seen.body is not None:
                yield seen
            elif (whole := self._api.see(seen.id)) is not None:
                yield whole

    def _ids(self, query: str) -> Iterator[int]:
        """The ids of all jobs that match *query*, of which there may be a great many."""
        for seen in self._api.jobs(self._tube, query=query, has_bodies=False):
            self._interrupt.check("interrupted")
            yield seen.id


class Follower:
    """What has come into a tube since the last look, by the protocol.

    `newest` is the highest id that is done with. `_counted` is never above the newest id that there is: the one known
    at the beginning, and one for each job that the server has counted since.
    """

    def __init__(self, server: Server, tube: str) -> None:
        """Begin now: only jobs that come later are new."""
        self._server = server
        self._tube = tube
        self.newest = newest_id(server)
        self._counted = self.newest
        self._total = self._server_total()
        self._tube_total = self._total_of_tube()
        self._was_busy = False

    def last(self, count: int) -> list[Seen]:
        """The last *count* jobs of the tube that there are, the oldest first, LOOK_BACK ids back at most."""
        found = list[Seen]()
        for job_id in range(self.newest, max(0, self.newest - LOOK_BACK), -1):
            if len(found) == count:
                break
            if (seen := self._see(job_id)) is not None:
                found.append(seen)
        return found[::-1]

    def new(self) -> Iterator[Seen]:
        """The jobs that have come since.

        Ids are asked for only while the tube's own count of puts changes; and once more after that, since a job may
        come between the two counts.
        """
        total, tube_total = self._server_total(), self._total_of_tube()
        self._counted += max(total - self._total, 0)
        is_busy = tube_total != self._tube_total
        self._total, self._tube_total = total, tube_total
        if is_busy or self._was_busy:
            yield from self._scan()
            if self.newest > self._counted and self._server_total() == total:
                self._counted = self.newest  # there are ids that no job has got
        self._was_busy = is_busy
        self.newest = max(self.newest, self._counted)

    def _scan(self) -> Iterator[Seen]:
        job_id = self.newest
        while job_id < max(self._counted, self.newest) + SLACK:
            job_id += 1
            stats = self._server.job(job_id)
            if stats is None or stats["state"] == HALF_PUT:
                continue
            self.newest = job_id
            if stats["tube"] == self._tube and (job := self._server.peek(job_id)) is not None:
                yield Seen(stats | {"bytes": len(job.body)}, job.body)

    def _see(self, job_id: int) -> Seen | None:
        stats = self._server.job(job_id)
        if stats is None or stats["tube"] != self._tube:
            return None
        job = self._server.peek(job_id)
        return Seen(stats | {"bytes": len(job.body)}, job.body) if job is not None else None

    def _server_total(self) -> int:
        return int(self._server.stats()["total-jobs"])

    def _total_of_tube(self) -> int:
        stats = self._server.tube(self._tube)
        return int(stats["total-jobs"]) if stats is not None else 0


def newest_id(server: Server) -> int:
    """The newest id that *server* has given: that of an empty job, put into a tube of its own and deleted at once.

    A server that takes no puts gives none either; there it is guessed, by its count and the first jobs of all tubes.
    """
    try:
        probe = server.put(PROBE_TUBE, b"", 0, HOUR, 1)
    except Refused:
        firsts = (server.first(tube, state) for tube in server.tubes() for state in STATES)
        return max([int(server.stats()["total-jobs"]), *(job.id for job in firsts if job is not None)])
    server.delete(probe)
    return probe
