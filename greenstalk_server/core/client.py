"""A client, as the broker sees one connection: its tubes, its reserved jobs, and whether it waits.

Owns the order of its reserved jobs by deadline. Knows no socket: to end its wait the broker calls `wake`,
which must not switch greenlets.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from greenstalk_server.core.job import ID_BITS, MAX_ID, Job, deadline_of
from greenstalk_server.core.tube import Tube
from greenstalk_server.core.tube_set import Watch

SCAN_AT_MOST: Final = 32
"""Up to this many reserved jobs the soonest deadline is found by a scan; past it, by a heap."""


def _nothing() -> None:
    """Stand in for `Client.hang_up` where there is no connection."""


class Client:
    """One client.

    number          1 for the first that connected, and so on; after 2**32-1 from 1 again. After a restart it goes on
                    above those that jobs still tell of.
    address         where it connects from, as an operator writes it.
    name            what is known of who it is; empty if nothing.
    connected_at    nanoseconds.
    used            the tube its puts go to.
    watched         the tubes its reserves take from, by name, in the order of watching.
    watch           the same tubes, if they are many and it has reserved since it last watched or ignored one.
    reserved        the jobs it holds, by id, in the order of reservation. One leaves by `del` and by nothing else, so
                    that a subclass of dict can tell when (see greenstalk_server.web.operations.leases).
    is_producer     it has sent a put whose size was allowed.
    is_worker       it has sent a reserve, or reserved by id.
    is_waiting      it is parked in a reserve.
    is_http         it is one request over HTTP, and the jobs that this got, rather than a connection.
    waiting_since   nanoseconds; of its last wait.
    wait_number     of that too: who has a lower one has waited longer.
    wait_until      when that reserve times out, nanoseconds; None for never.
    outcome         what ended its last wait: a job, or one of the broker's outcomes; None while it waits.
    wake            called once when its wait ends.
    hang_up         closes its connection; does not switch.
    timer_at        when the broker's timers next call on it, 0 for never (see broker.Timers).
    """

    __slots__ = (
        "_deadlines",
        "address",
        "connected_at",
        "hang_up",
        "is_closed",
        "is_http",
        "is_producer",
        "is_waiting",
        "is_worker",
        "name",
        "number",
        "outcome",
        "reserved",
        "timer_at",
        "used",
        "wait_number",
        "wait_until",
        "waiting_since",
        "wake",
        "watch",
        "watched",
    )

    def __init__(self, tube: Tube, wake: Callable[[], None], number: int = 0) -> None:
        """*tube* is used and watched at first; the broker counts it."""
        self.number: int = number
        self.address: str = ""
        self.name: str = ""
        self.connected_at: int = 0
        self.hang_up: Callable[[], None] = _nothing
        self.used: Tube = tube
        self.watched: dict[bytes, Tube] = {tube.name: tube}
        self.watch: Watch | None = None
        self.reserved: dict[int, Job] = {}
        self.is_producer: bool = False
        self.is_worker: bool = False
        self.is_waiting: bool = False
        self.is_http: bool = False
        self.is_closed: bool = False
        self.waiting_since: int = 0
        self.wait_number: int = 0
        self.wait_until: int | None = None
        self.outcome: Job | int | None = None
        self.wake: Callable[[], None] = wake
        self.timer_at: int = 0
        self._deadlines: list[int] | None = None

    def hold(self, job: Job) -> None:
        """Add *job*, whose deadline is set, to the reserved ones, or note its new deadline."""
        self.reserved[job.id] = job
        if self._deadlines is not None:
            heappush(self._deadlines, job.deadline << ID_BITS | job.id)
            if len(self._deadlines) > 4 * (len(self.reserved) + SCAN_AT_MOST):
                self._deadlines = None

    def soonest(self) -> Job | None:
        """The reserved job with the nearest deadline, or None. O(log n) amortised however many it holds."""
        if len(self.reserved) <= SCAN_AT_MOST:
            self._deadlines = None
            return min(self.reserved.values(), key=deadline_of, default=None)
        if self._deadlines is None:
            self._deadlines = [job.deadline << ID_BITS | job.id for job in self.reserved.values()]
            heapify(self._deadlines)
        while True:
            entry = self._deadlines[0]
            job = self.reserved.get(entry & MAX_ID)
            if job is not None and job.deadline == entry >> ID_BITS:
                return job
            heappop(self._deadlines)
