"""Effects of tags on other jobs: release jobs whose group is empty, or whose concurrency key has a free slot.

An operation may leave a group without members, or a concurrency key with a free slot. It then only adds the group or
the key to `Broker.dependents`. While there are dependents no job is handed out, so a tube whose jobs would be handed
out is added too. A session calls `wake_dependents` before its next command, and a reserve calls it before it looks
for a job. A tick calls it too, and is due as soon as there is a dependent. Each call handles one slice of the
dependents, and hands out the best job first. Pure.
"""

from __future__ import annotations

from greenstalk_server.core.broker import SLICE, Broker
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import READY, Job
from greenstalk_server.core.tags.concurrency import ConcurrencyKey
from greenstalk_server.core.tags.groups import Group
from greenstalk_server.core.tags.tags import TaggedJob
from greenstalk_server.core.timers import Target
from greenstalk_server.core.transitions.placing import add_delayed, add_ready, queue_ready
from greenstalk_server.core.transitions.tagging import delay_for_group
from greenstalk_server.core.transitions.waiting import dispatch_best
from greenstalk_server.core.tubes.tube import Tube


def wake_dependents(broker: Broker, now: int) -> None:
    """Handle one slice of the dependents, if there are any."""
    if broker.dependents.targets:
        wake_some(broker, SLICE, now)


def wake_some(broker: Broker, limit: int, now: int) -> int:
    """Make jobs of dependent groups and concurrency keys ready or runnable, then hand out the best of them first.

    Return the cost, which exceeds *limit* by at most the number of dependents; ticks do the rest.
    """
    left, dependents = limit, broker.dependents
    while dependents.targets and left > 0:
        targets = dependents.take()
        offered: dict[Tube, None] = {}
        for target in targets:
            left -= 1 + _prepare(broker, target, max(left, 0), offered, now)
        left -= dispatch_best(broker, list(offered), max(left, 0), now)
        for target in targets:
            if isinstance(target, ConcurrencyKey):
                target.note()  # if clients were given other jobs, the key still has free slots
    for target in dependents.take():
        broker.arm(target, now)
    return limit - left


def _prepare(broker: Broker, target: Target, limit: int, offered: dict[Tube, None], now: int) -> int:
    """Make up to *limit* jobs of *target* ready or runnable, and add their tubes to *offered*; return how many."""
    if isinstance(target, ConcurrencyKey):
        return _place_fronts(target, limit, offered, now)
    if isinstance(target, Group):
        return _release_waiting(broker, target, limit, offered, now)
    assert isinstance(target, Tube)
    if target.ready.is_unfinished:
        broker.arm(target, now)
    else:
        offered[target] = None
    return 0


def _place_fronts(limiter: ConcurrencyKey, limit: int, offered: dict[Tube, None], now: int) -> int:
    """Place a front in up to *limit* pending tubes of *limiter*; return how many.

    End when each free slot has a front that a waiting client may take.
    """
    placed = 0
    free = limiter.limit - limiter.reserved
    while limiter.pending and free > 0 and placed < limit:
        tube = next(iter(limiter.pending))
        job = tube.ready.place_front(limiter, tube)
        placed += 1
        for tube_set in tube.tube_sets:
            tube_set.note(job)
        if tube.throttled_until <= now and tube.first_waiter() is not None:
            offered[tube] = None
            free -= 1
    return placed


def _release_waiting(broker: Broker, group: Group, limit: int, offered: dict[Tube, None], now: int) -> int:
    """Make up to *limit* jobs that wait for *group* ready, while it has no members; return how many.

    Drop the group if no job waits for it.
    """
    released = 0
    while not group.members:
        job = group.waiting.first()
        if job is None:
            broker.drop_group(group)
            break
        if released == limit:
            broker.arm(group, now)
            break
        job.tube.remove(job)
        _unblock(broker, job, now)
        queue_ready(broker, job)
        offered[job.tube] = None
        released += 1
    return released


def _unblock(broker: Broker, job: Job, now: int) -> None:
    """Set and record the state of the detached *job*, which no longer waits for the group of its tag `after`."""
    job.state = READY
    job.ready_since = now
    job.events = job_history.add(job.events, job_history.UNBLOCKED, now, job_history.NOBODY)
    broker.journal.update(job)


def end_delay(broker: Broker, job: Job, now: int) -> None:
    """Make the detached *job*, whose delay is over, ready, unless it must wait for a group."""
    if isinstance(job, TaggedJob) and job.may_await:
        if delay_for_group(broker, job):
            add_delayed(broker, job)
            return
        _unblock(broker, job, now)
    job.ready_since = now
    add_ready(broker, job, now)


def search_on(tube: Tube) -> None:
    """Continue the search for the first runnable job of *tube*, which too many stale fronts have interrupted."""
    tube.ready.is_unfinished = False
    if tube.head_watch is not None:
        tube.head_watch.note(tube)
    job = tube.ready.first()
    if job is not None:
        for tube_set in tube.tube_sets:
            tube_set.note(job)
