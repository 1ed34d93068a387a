"""Seeing the jobs of a tube come without taking any: by their ids, which a server gives in order.

The protocol lists no jobs, and shows but the first of each state. So the ids that have been given since the last look
are asked for, one by one. A job that is deleted between two looks is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from greenstalkctl.exits import Refused
from greenstalkctl.server import STATES, Job, Server, Stats
from greenstalkctl.transfer import HOUR

PROBE_TUBE: Final = "greenstalkctl-probe"
LOOK_BACK: Final = 10_000
"""Ids looked at for the last jobs of a tube: half a second's worth."""

SLACK: Final = 16
"""Ids looked at beyond those that the server's count of jobs accounts for: a put that was refused has cost one too."""


HALF_PUT: Final = "invalid"
"""What beanstalkd calls the state of a job whose body has not come yet; it is not counted."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A job, and its figures."""

    job: Job
    stats: Stats


class Follower:
    """What has come into a tube since the last look.

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
                yield Seen(job, stats)

    def _see(self, job_id: int) -> Seen | None:
        stats = self._server.job(job_id)
        if stats is None or stats["tube"] != self._tube:
            return None
        job = self._server.peek(job_id)
        return Seen(job, stats) if job is not None else None

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
