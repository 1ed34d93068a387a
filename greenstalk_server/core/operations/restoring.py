"""The start: take over the jobs and tubes that a journal has recovered. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from heapq import merge
from itertools import chain, islice, pairwise
from typing import Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, Job, deadline_of
from greenstalk_server.core.operations import suspending
from greenstalk_server.core.operations.policy_changes import apply_to_restored
from greenstalk_server.core.remote import Reservation
from greenstalk_server.core.tags.tags import TaggedJob
from greenstalk_server.core.transitions.departing import hold
from greenstalk_server.core.transitions.moving import resume_moves
from greenstalk_server.core.transitions.placing import add_delayed, forget
from greenstalk_server.core.transitions.reservation import restore_reserved, update_throttle
from greenstalk_server.core.transitions.tagging import attach_tags, free_key
from greenstalk_server.core.travel import is_moving
from greenstalk_server.core.tubes.tube import Tube

SORT_SLICE: Final = 10_000
"""Jobs that one slice of `restore_slices` sorts: up to 3 ms."""

RESTORE_SLICE: Final = 1000
"""Jobs that one slice of `restore_slices` adds to their tubes, or tubes that it restores: about a millisecond."""


NO_RESERVATIONS: Final[Mapping[int, Reservation]] = {}


def restore(broker: Broker, next_id: int, now: int, reservations: Mapping[int, Reservation] = NO_RESERVATIONS) -> None:
    """Take over the jobs and tubes that a journal has recovered, before any client connects.

    `jobs` holds the recovered jobs, each in the state ready, delayed or buried, but not yet added to its tube. Those in
    *reservations* have their recorded states and events; suspended clients will hold them. `tubes` holds the tubes of
    these jobs, and paused tubes. The policies must be set before this call: jobs that have used up their attempts
    become dead letters now.
    """
    for _ in restore_slices(broker, next_id, now, reservations):
        pass


def restore_slices(
    broker: Broker, next_id: int, now: int, reservations: Mapping[int, Reservation] = NO_RESERVATIONS
) -> Iterator[None]:
    """Do what `restore` does, and yield after each slice of jobs or tubes. Nothing else may use *broker* meanwhile."""
    for tube in broker.tubes.values():
        tube.policy_state = broker.new_policy_state(tube)
    broker.next_id = broker.ids.next_after(max(broker.next_id, next_id) - 1)
    broker.last_client = 0
    runs: list[list[Job]] = []
    found = iter(broker.jobs.values())
    while run := sorted(islice(found, SORT_SLICE), key=deadline_of):
        runs.append(run)
        yield
    # Jobs that were only put are in order already. A merge takes 1 µs a job.
    is_ordered = not any(before[-1].deadline > after[0].deadline for before, after in pairwise(runs))
    jobs = chain.from_iterable(runs) if is_ordered else merge(*runs, key=deadline_of)
    truncated: list[Job] = []
    while slice := list(islice(jobs, RESTORE_SLICE)):
        truncated += [job for job in slice if job.cold.is_truncated]
        for job in slice:
            if job.events:
                broker.last_client = max(broker.last_client, job_history.highest_client(job.events))
            _restore_job(broker, job, reservations.get(job.id), now)
        yield
    if broker.quotas is not None:
        broker.quotas.body_bytes = sum(tube.body_bytes for tube in broker.tubes.values())
    if broker.moves is not None:
        resume_moves(broker, now)
    _delete_truncated(broker, truncated, now)
    tubes = iter(list(broker.tubes.values()))
    while some := list(islice(tubes, RESTORE_SLICE)):
        for tube in some:
            _restore_tube(broker, tube, now)
        yield
    if broker.retained_keys.table:
        broker.arm(broker.retained_keys, now)


def _restore_tube(broker: Broker, tube: Tube, now: int) -> None:
    """Apply the pause and the policy of *tube*, which has its restored jobs."""
    if tube.paused_until:
        tube.throttled_until = tube.paused_until
        broker.arm(tube, tube.paused_until)
    if broker.keeps_pauses or not tube.paused_until:
        broker.drop_if_unneeded(tube)
    if tube.policy_state is not None:
        if tube.reserved_count:
            update_throttle(tube, now)
        apply_to_restored(broker, tube, tube.policy_state, now)


def _restore_job(broker: Broker, job: Job, reservation: Reservation | None, now: int) -> None:
    """Add the restored *job* to its tube, and to the groups and keys that its tags name."""
    job.tube.body_bytes += job.size
    if broker.bodies is not None:
        broker.bodies.add(job)
    if job.tube.policy_state is not None:
        job.tube.policy_state.restore_key(job)
    if isinstance(job, TaggedJob):
        attach_tags(broker, job)
    if is_moving(job.cold.travel) and broker.moves is not None:
        hold(broker, job)
        broker.moves.sent.add(job.id)
    elif reservation is not None:
        _restore_reserved(broker, job, reservation, now)
    elif job.state == READY:
        job.tube.add_ready(job)
    elif job.state == DELAYED:
        add_delayed(broker, job)
    else:
        job.tube.add_buried(job)
        broker.burials = job.burial_number


def _restore_reserved(broker: Broker, job: Job, reservation: Reservation, now: int) -> None:
    """Have the suspended client of *reservation* hold the restored *job*."""
    if job.state == BURIED:
        broker.burials = job.burial_number
    if job.state in (BURIED, DELAYED):  # reserve-job took it
        job.former_state, job.former_deadline = job.state, job.deadline
    job.events, event = job_history.without_reservation(job.events)
    client = suspending.suspended(broker, reservation.front, reservation.session)
    job.reserved_at = now
    if event is not None:  # a full disk may have had no room for it
        job.reserved_at = min(event.at, now)
        client.number = event.client
    job.deadline = now + job.ttr
    restore_reserved(broker, job, client)
    assert client.remote is not None
    client.remote.numbers[job.id] = reservation.number


def _delete_truncated(broker: Broker, jobs: Collection[Job], now: int) -> None:
    """Delete the restored *jobs* of truncated tubes: the end of the previous process ended their reservations."""
    for job in [job for job in jobs if job.state != RESERVED]:
        job.tube.remove(job)
        free_key(job)
        forget(broker, job, now)
