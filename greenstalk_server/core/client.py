"""The broker's state for one client: its tubes, its reserved jobs, and its wait.

Owns the order of its reserved jobs by deadline. Knows no socket: the broker calls `wake` to end a wait. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from greenstalk_server.core.jobs.job import Job, deadline_of
from greenstalk_server.core.jobs.job_index import JobIndex
from greenstalk_server.core.remote import RemoteReservations
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.core.tubes.tube_set import TubeSet
from greenstalk_server.core.tubes.weighting import FIFO, Weighting

MAX_SCANNED: Final = 32
"""Maximum number of reserved jobs that `soonest` scans linearly; above that it keeps an index."""


def ignore_call() -> None:
    """Stand in for `Client.wake` and `Client.hang_up` where there is no connection."""


class Client:
    """One client.

    number          1 to 2**31-1, in the order of connecting, then from 1 again; those of one shard differ by the number
                    of shards. After a restart the numbers continue above the highest one in the events of jobs. At a
                    process that leads no shard, at least 2**31: see job_history.FIRST_OF_FRONT.
    address         peer address, as an operator writes it.
    name            name of the client, such as that in its certificate; empty if unknown.
    connected_at    nanoseconds.
    used            tube that its puts go to.
    watched         tubes that its reserves take from, by name, in the order of watching.
    tube_set        shared set of the watched tubes. None if they are few, if there are too many sets, and after a watch
                    or ignore until the next reserve.
    weighting       weights and reserve mode; None until the client sets one of them.
    finished        number of its reservations that ended with a delete, release or bury.
    reserved        jobs that it holds by id, in the order of reservation. Only `drop` removes a job, by `del`, so that
                    a subclass of dict can notice the removal (see greenstalk_server.web.features.leases.leases).
    is_producer     it has sent a put whose size was allowed.
    is_worker       it has sent a reserve, or reserved a job by id.
    may_inspect     returns whether access rules let it look at a tube; None if it may look at every tube.
    is_waiting      it is parked in a reserve, or in a wait for the job `awaited_id`.
    awaited_id      id of the job whose end it waits for; 0 if it waits for none.
    is_http         the client is one HTTP request and the jobs that it reserved, not a connection.
    takes_offers    its wait ends with an offer, not with a job; see core.transitions.waiting.
    is_remote       its connection is at another process; see `connecting.become_remote`.
    front           that process; None if the client is not remote.
    remote          its reservations, if they outlive the link to that process; else None.
    is_suspended    it is remote, and there is no link; see `suspending`.
    is_subscribed   `front` subscribes to the heads of the watched tubes.
    offered         job that is offered to it, or None.
    offered_until   time at which the offer lapses, nanoseconds; 0 without an offer.
    is_closed       the broker has disconnected it.
    waiting_since   start of its last wait, nanoseconds.
    wait_number     sequence number of that wait: a client with a lower one has waited longer.
    wait_until      time at which that wait times out, nanoseconds; None for never.
    outcome         result of its last wait: a job or a WaitOutcome; None while it waits.
    wake            called once when its wait ends; must not switch greenlets.
    hang_up         closes its connection; does not switch greenlets.
    timer_at        time for which the broker's timers are armed, 0 for none (see Timers).
    """

    def __init__(self, tube: Tube, wake: Callable[[], None], number: int = 0) -> None:
        """Use and watch *tube*; the broker updates the tube's counts."""
        self.number: int = number
        self.address: str = ""
        self.name: str = ""
        self.connected_at: int = 0
        self.finished: int = 0
        self.hang_up: Callable[[], None] = ignore_call
        self.used: Tube = tube
        self.watched: dict[bytes, Tube] = {tube.name: tube}
        self.tube_set: TubeSet | None = None
        self.weighting: Weighting | None = None
        self.reserved: dict[int, Job] = {}
        self.is_producer: bool = False
        self.is_worker: bool = False
        self.is_waiting: bool = False
        self.awaited_id: int = 0
        self.is_http: bool = False
        self.may_inspect: Callable[[bytes], bool] | None = None
        self.takes_offers: bool = False
        self.is_remote: bool = False
        self.front: object = None
        self.remote: RemoteReservations | None = None
        self.is_suspended: bool = False
        self.is_subscribed: bool = False
        self.offered: Job | None = None
        self.offered_until: int = 0
        self.is_closed: bool = False
        self.waiting_since: int = 0
        self.wait_number: int = 0
        self.wait_until: int | None = None
        self.outcome: Job | int | None = None
        self.wake: Callable[[], None] = wake
        self.timer_at: int = 0
        self._deadlines: JobIndex | None = None

    @property
    def is_weighted(self) -> bool:
        """Whether its reserve mode is a weighted one."""
        return self.weighting is not None and self.weighting.mode != FIFO

    def hold(self, job: Job) -> None:
        """Add *job*, whose deadline is set, to the reserved jobs."""
        self.reserved[job.id] = job
        if self._deadlines is not None:
            self._deadlines.add(job, job.deadline)
        elif len(self.reserved) > MAX_SCANNED:
            self._deadlines = JobIndex(self.reserved)
            for each in self.reserved.values():
                self._deadlines.add(each, each.deadline)

    def postpone(self, job: Job, deadline: int) -> None:
        """Give the reserved *job* another *deadline*."""
        if self._deadlines is not None:
            self._deadlines.remove(job, job.deadline)
            self._deadlines.add(job, deadline)
        job.deadline = deadline

    def drop(self, job: Job) -> None:
        """Remove *job* from the reserved jobs."""
        del self.reserved[job.id]
        if self.remote is not None:
            del self.remote.numbers[job.id]
        if self._deadlines is not None:
            self._deadlines.remove(job, job.deadline)

    def soonest(self) -> Job | None:
        """Return the reserved job with the earliest deadline, or None."""
        if len(self.reserved) <= MAX_SCANNED:
            self._deadlines = None
            return min(self.reserved.values(), key=deadline_of, default=None)
        assert self._deadlines is not None
        return self._deadlines.first()
