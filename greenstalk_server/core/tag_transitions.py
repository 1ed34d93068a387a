"""The transitions that tags cause: duplicates, jobs that wait for groups, and slots of concurrency keys.

`PolicyTransitions` inherits from `TagTransitions`. A job without tags costs one type check per transition.

An operation of the broker may leave a group without members, or a concurrency key with a free slot. Such targets are
added to `_unsettled`, and so are tubes whose jobs could be handed out before that. Each operation ends with `_settle`,
which handles one slice of them and hands out the best job first; ticks handle the rest. An operation that ends several
reservations, such as a disconnect, settles after each of them. Pure.
"""

from __future__ import annotations

from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, Job
from greenstalk_server.core.tags.concurrency import ConcurrencyKey
from greenstalk_server.core.tags.groups import Group
from greenstalk_server.core.tags.idempotency import scope_of
from greenstalk_server.core.tags.tags import DELETED, NO_DEADLINE, Duplicate, TaggedJob
from greenstalk_server.core.timers import Target
from greenstalk_server.core.transitions import SLICE, Transitions
from greenstalk_server.core.tubes.tube import Tube


class TagTransitions(Transitions):
    """See the module's docstring; `Transitions` describes the attributes."""

    # Puts

    def _find_duplicate(self, tube: Tube, key: bytes, pri: int, now: int) -> Duplicate | None:
        """Return the duplicate if the idempotency *key* is taken in *tube*; None if the key is free.

        The job with the key gets the priority *pri* if that is more urgent and no client holds the job.
        """
        holder = tube.idempotency.holders.get(key) if tube.idempotency is not None else None
        if holder is not None:
            is_raised = self._raise_priority(holder.id, pri, now)
            return Duplicate(holder.id, holder.state, pri if is_raised else -1)
        id = self.kept_keys.find(scope_of(tube.name), key, now)
        return Duplicate(id, DELETED, -1) if id else None

    def _raise_priority(self, id: int, pri: int, now: int) -> bool:
        """Give the job *id* the priority *pri* if that is more urgent than its own, and no client holds the job.

        Return whether the priority has changed.
        """
        job = self.jobs.get(id)
        if job is None or pri >= job.pri or job.state == RESERVED:
            return False
        self._set_priority(job, pri, now)
        return True

    def _set_priority(self, job: Job, pri: int, now: int) -> None:
        """Change the priority of *job*, which no client holds; a buried job keeps its place."""
        job.events = job_history.add(job.events, job_history.EDITED, now, job_history.NOBODY)
        if job.state == BURIED:
            job.pri = pri
            self.journal.update(job)
            return
        job.tube.remove(job)
        job.pri = pri
        if job.state == DELAYED:
            self.journal.update(job)
            self._add_delayed(job, now)
        else:
            job.ready_since = now  # `ReadyQueue.add` takes jobs in the order of `ready_since`
            self.journal.update(job)
            self._add_ready(job, now)

    def _hold_for_group(self, job: TaggedJob) -> bool:
        """Delay the detached *job* without a deadline if the group of its tag `after` has members; return whether."""
        tags = job.more_tags
        if tags is None or not job.may_await:
            return False
        group = self.groups.get(tags.after)
        if group is None or not group.members:
            return False
        job.state = DELAYED
        job.deadline = NO_DEADLINE
        return True

    def _attach_tags(self, job: TaggedJob) -> None:
        """Add the new or restored *job* to its group, its concurrency key, and its tube's idempotency keys."""
        job.tube.claim_key(job)
        tags = job.more_tags
        if tags is None:
            return
        if tags.group:
            group = tags.member_of = self._group(tags.group)
            group.members += 1
            tags.group = group.name  # one object for all members
        if tags.concurrency_key:
            limiter = self.concurrency_keys.get(tags.concurrency_key)
            if limiter is None:
                limiter = ConcurrencyKey(tags.concurrency_key, self._unsettled)
                self.concurrency_keys[limiter.name] = limiter
            limiter.add_job(tags.concurrency_limit)
            tags.limiter, tags.concurrency_key = limiter, limiter.name

    def _detach_tags(self, job: TaggedJob, now: int) -> None:
        """Undo `_attach_tags` for the detached *job*, which is being deleted; keep its idempotency key for its ttl."""
        tube = job.tube
        tube.release_key(job, self.jobs)
        tags = job.more_tags
        if tags is None:
            return
        if tags.idempotency_ttl and not tags.is_key_freed:
            scope, until = scope_of(tube.name), now + tags.idempotency_ttl
            if self.kept_keys.keep(scope, tags.idempotency_key, job.id, until, now):
                self.journal.key(scope, tags.idempotency_key, job.id, until)
                self._arm(self.kept_keys, until)
        if tags.member_of is not None:
            tags.member_of.remove_member()
            tags.member_of = None
        limiter, tags.limiter = tags.limiter, None
        if limiter is not None:
            limiter.remove_job(tags.concurrency_limit)
            if not limiter.jobs:
                del self.concurrency_keys[limiter.name]
                self._timers.disarm(limiter)

    def _free_key(self, job: Job) -> None:
        """Make the idempotency key of *job*, which an operator deletes, free when the job is deleted."""
        if isinstance(job, TaggedJob) and job.more_tags is not None:
            job.more_tags.is_key_freed = True

    def forget_keys(self, tube: bytes, limit: int) -> int:
        """Free up to *limit* idempotency keys of the tube *tube* that have outlived their jobs; return how many.

        *limit* is at most SLICE, because each key needs a record in the journal.
        """
        scope = scope_of(tube)
        keys = self.kept_keys.forget(scope, limit)
        for key in keys:
            self.journal.key(scope, key, 0, 0)
        return len(keys)

    # Settling

    def _settle(self, now: int, limit: int = SLICE) -> int:
        """Make jobs of unsettled groups and concurrency keys ready or runnable, then hand out the best of them first.

        Return the cost, which exceeds *limit* by the number of unsettled targets at most; ticks do the rest.
        """
        left = limit
        while self._unsettled and left > 0:
            targets = self._unsettled[:]
            self._unsettled.clear()
            offered: dict[Tube, None] = {}
            for target in targets:
                left -= 1 + self._prepare(target, max(left, 0), offered, now)
            left -= self._hand_out_best(list(offered), max(left, 0), now)
            for target in targets:
                if isinstance(target, ConcurrencyKey):
                    target.note()  # its slots are still free if clients were given other jobs
        while self._unsettled:
            target = self._unsettled.pop()
            if isinstance(target, (ConcurrencyKey, Group)):
                target.is_noted = False
            self._arm(target, now)
        return limit - left

    def _prepare(self, target: Target, limit: int, offered: dict[Tube, None], now: int) -> int:
        """Make up to *limit* jobs of *target* ready or runnable, and add their tubes to *offered*; return how many."""
        if isinstance(target, ConcurrencyKey):
            target.is_noted = False
            return self._place_fronts(target, limit, offered, now)
        if isinstance(target, Group):
            target.is_noted = False
            return self._release_waiting(target, limit, offered, now)
        assert isinstance(target, Tube)
        if target.ready.is_unfinished:
            self._arm(target, now)
        else:
            offered[target] = None
        return 0

    def _place_fronts(self, limiter: ConcurrencyKey, limit: int, offered: dict[Tube, None], now: int) -> int:
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
            if tube.held_until <= now and tube.first_waiter() is not None:
                offered[tube] = None
                free -= 1
        return placed

    def _release_waiting(self, group: Group, limit: int, offered: dict[Tube, None], now: int) -> int:
        """Make up to *limit* jobs that wait for *group* ready, while it has no members; return how many.

        Drop the group if no job waits for it.
        """
        released = 0
        while not group.members:
            job = group.waiting.first()
            if job is None:
                if self.groups.get(group.name) is group:
                    del self.groups[group.name]
                    self._timers.disarm(group)
                break
            if released == limit:
                self._arm(group, now)
                break
            job.tube.remove(job)
            self._unblock(job, now)
            self._queue_ready(job, now)
            offered[job.tube] = None
            released += 1
        return released

    def _unblock(self, job: Job, now: int) -> None:
        """Set and record the state of the detached *job*, which no longer waits for the group of its tag `after`."""
        job.state = READY
        job.ready_since = now
        job.events = job_history.add(job.events, job_history.UNBLOCKED, now, job_history.NOBODY)
        self.journal.update(job)

    def _end_delay(self, job: Job, now: int) -> None:
        """Make the detached *job*, whose delay is over, ready, unless it must wait for a group."""
        if isinstance(job, TaggedJob) and job.may_await:
            if self._hold_for_group(job):
                self._add_delayed(job, now)
                return
            self._unblock(job, now)
        job.ready_since = now
        self._add_ready(job, now)

    def _search_on(self, tube: Tube) -> None:
        """Continue the search for the first runnable job of *tube*, which too many stale fronts have interrupted."""
        tube.ready.is_unfinished = False
        job = tube.ready.first()
        if job is not None:
            for tube_set in tube.tube_sets:
                tube_set.note(job)
