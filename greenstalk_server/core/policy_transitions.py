"""The transitions that a tube's policy may change: puts, ends of reservations, expiry, and moves to other tubes.

`PolicyControl` inherits from `PolicyTransitions`. If no policy matches a tube, its `rules` are None, and its
transitions are those of the protocol. Every change that a policy makes is recorded in the journal like the change of a
command, so a restart never repeats a decision.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from greenstalk_server.core.client import Client
from greenstalk_server.core.counters import ServerFacts
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.body_cache import Bodies
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, Job
from greenstalk_server.core.jobs.job_attributes import DeadLetter, DeadLetterReason
from greenstalk_server.core.journal import Journal
from greenstalk_server.core.limits import Limits
from greenstalk_server.core.outcomes import EditOutcome, Refusal, WaitOutcome
from greenstalk_server.core.policies.policy import Overflow, UniqueFor
from greenstalk_server.core.policies.tube_rules import TubeRules, buried_at, key_of
from greenstalk_server.core.tag_transitions import TagTransitions
from greenstalk_server.core.tags.tags import TaggedJob
from greenstalk_server.core.timers import NEVER
from greenstalk_server.core.transitions import SLICE
from greenstalk_server.core.tubes.tube import Tube


def _no_jitter() -> float:
    """Stand in for `random` until the server sets it."""
    return 0.5


class PolicyTransitions(TagTransitions):
    """See the module's docstring; `Transitions` describes the attributes.

    random          returns a number in [0, 1), for the jitter of retries and for weighted reserves. The default returns
                    0.5, which gives no jitter.
    """

    def __init__(
        self, facts: ServerFacts, journal: Journal, max_job_size: int, limits: Limits, bodies: Bodies | None
    ) -> None:
        self.random: Callable[[], float] = _no_jitter
        super().__init__(facts, journal, max_job_size, limits, bodies)

    # Puts

    def _admit(self, job: Job, rules: TubeRules, now: int) -> int:
        """Apply *rules* to the new *job*, and record it with its copies.

        Return 0 if the caller must insert the job. Otherwise nothing was recorded: return the id of the job that is
        its duplicate, or a Refusal, which is negative.
        """
        tube, policy = job.tube, rules.policy
        duplicate = self._duplicate_of(job, rules, now)
        if duplicate:
            tube.counts().duplicates += 1
            self._raise_priority(duplicate, job.pri, now)
            return duplicate
        group = [job]
        refusal = self._refuse_put(job, rules)
        for name in policy.copy_to:
            if not refusal:
                refusal = self._plan_copy(job, name, group, now)
        if not refusal and not (self.journal.put(job) if len(group) == 1 else self.journal.put_group(group)):
            refusal = Refusal.JOURNAL
        if refusal:
            for copy in group[1:]:
                self._drop_if_unneeded(copy.tube)
            tube.counts().refused += refusal in (Refusal.TUBE_FULL, Refusal.TOO_BIG)
            return refusal
        tubes = [member.tube for member in group]
        for each in tubes:
            each.using += 1  # no eviction may drop the tube
        for copy in group[1:]:
            tube.counts().copied += 1
            self._make_room(copy.tube, copy.size, now)
            self._insert(copy, now)
        self._make_room(tube, job.size, now)
        for each in tubes:
            each.using -= 1
        for each in tubes[1:]:
            self._drop_if_unneeded(each)  # its job may have been evicted already
        return 0

    def _plan_copy(self, job: Job, name: bytes, group: list[Job], now: int) -> int:
        """Append to *group* the copy of *job* for the tube *name*, unless it is a duplicate there.

        Return 0, or why the copy is refused; the caller then drops the tubes of *group* that are not needed.
        """
        if self.quotas is not None:
            refusal = 0 if name in self.tubes else self.quotas.refuse_tube(len(self.tubes))
            if refusal:
                return refusal
        target = self.tube(name)
        copy = Job(self._next_id(), target, job.body or b"", job.pri, job.delay, job.ttr, now)
        if job.delay:  # without a delay, only its tags delay the job, and copies have no tags
            copy.state, copy.deadline = job.state, job.deadline
        group.append(copy)
        if self.quotas is not None:
            refusal = self.quotas.refuse_job(target, job.size, len(self.jobs) + len(group) - 1)
            if refusal:
                return refusal
        if target.rules is not None:
            if self._duplicate_of(copy, target.rules, now):
                target.counts().duplicates += 1
                group.pop()
                self._drop_if_unneeded(target)
                return 0
            return self._refuse_put(copy, target.rules)
        return 0

    def _next_id(self) -> int:
        id = self.next_id
        self.next_id = id + 1
        return id

    def _duplicate_of(self, job: Job, rules: TubeRules, now: int) -> int:
        """Return the id of the job that makes the new *job* a duplicate, or 0; set the key of *job*."""
        if rules.keys is None:
            return 0
        key = job.unique_key = key_of(job.body or b"")
        other = rules.keys.get(key)
        if rules.policy.unique_for != UniqueFor.TIME:
            return other or 0
        if other is not None:
            before = self.jobs.get(other)
            if before is not None and now < before.created_at + rules.policy.unique_time:
                return other
        return self.kept_keys.find(job.tube.name, key, now)

    def _refuse_put(self, job: Job, rules: TubeRules) -> int:
        """Clamp the ttr of the new *job*; return the Refusal by *rules*, or 0."""
        policy = rules.policy
        if policy.ttr_min and job.ttr < policy.ttr_min:
            job.ttr = policy.ttr_min
        if policy.ttr_max and job.ttr > policy.ttr_max:
            job.ttr = policy.ttr_max
        if policy.max_job_size and job.size > policy.max_job_size:
            return Refusal.TOO_BIG
        return self._choose_evicted(job.tube, rules, 1, job.size, [])

    def _make_room(self, tube: Tube, size: int, now: int) -> None:
        """Evict jobs of *tube* until one more of *size* bytes fits. Evict none if that is impossible."""
        evicted = list[Job]()
        if tube.rules is not None and not self._choose_evicted(tube, tube.rules, 1, size, evicted):
            for old in evicted:
                self._evict(old, now)

    def _choose_evicted(self, tube: Tube, rules: TubeRules, jobs: int, bytes: int, evicted: list[Job]) -> int:
        """Append to *evicted* the oldest jobs to evict from *tube* before *jobs* more of *bytes* in total fit.

        Return 0, or a Refusal if they cannot fit: no job may be evicted, or the dead-letter tube has no room for those
        that would be.
        """
        policy = rules.policy
        jobs = tube.job_count + jobs - policy.max_jobs if policy.max_jobs else 0
        bytes = tube.body_bytes + bytes - policy.max_bytes if policy.max_bytes else 0
        if jobs <= 0 and bytes <= 0:
            return 0
        if policy.overflow != Overflow.REFUSE and rules.waiting is not None:
            size = 0
            for old in islice(rules.waiting.walk(), SLICE):
                evicted.append(old)
                size += old.size
                jobs -= 1
                bytes -= old.size
                if jobs <= 0 and bytes <= 0:
                    if policy.overflow == Overflow.DROP_OLDEST:
                        return 0
                    target = rules.dead_letter
                    is_refused = not target or self._refuse_move(target, len(evicted), size)
                    return Refusal.TUBE_FULL if is_refused else 0
        return Refusal.TUBE_FULL

    def _evict(self, job: Job, now: int) -> None:
        """Drop the waiting *job* of a full tube, or move it to the dead-letter tube."""
        tube, rules = job.tube, job.tube.rules
        assert rules is not None
        tube.remove(job)
        if rules.policy.overflow == Overflow.DEAD_LETTER_OLDEST:
            self._dead_letter(job, DeadLetterReason.OVERFLOW, now)
        else:
            tube.counts().dropped += 1
            self._forget(job, now)

    def _insert(self, job: Job, now: int) -> None:
        """Add the new *job*, which is recorded, to its tube: ready, or delayed if its state says so."""
        tube = job.tube
        self.jobs.set(job)
        if self.bodies is not None:
            self.bodies.add(job)
        tube.body_bytes += job.size
        tube.total_jobs += 1
        self.counters.total_jobs += 1
        if self.quotas is not None:
            self.quotas.body_bytes += job.size
        if tube.rules is not None:
            tube.rules.claim_key(job)
        if isinstance(job, TaggedJob):
            self._attach_tags(job)
        if job.state == DELAYED:
            self._add_delayed(job, now)
        else:
            self._add_ready(job, now)

    # Ends of jobs

    def _forget(self, job: Job, now: int) -> None:
        """Remove the detached *job* from the tables, and record its deletion."""
        tube = job.tube
        if isinstance(job, TaggedJob):
            self._detach_tags(job, now)
        self.jobs.remove(job.id)
        if self.bodies is not None:
            self.bodies.remove(job)
        tube.body_bytes -= job.size
        if self.quotas is not None:
            self.quotas.body_bytes -= job.size
        self.journal.delete(job)
        if self.job_waiters:
            self._end_job_waits(job.id, WaitOutcome.DELETED)
        if tube.rules is not None:
            tube.rules.release_key(job)
        if not tube.using and not tube.watching:
            self._drop_if_unneeded(tube)

    def _keep_key(self, job: Job, rules: TubeRules, now: int) -> None:
        """Keep the key of the finished *job* for the rest of `unique_time`."""
        if rules.policy.unique_for != UniqueFor.TIME or not job.unique_key:
            return
        tube, key, until = job.tube.name, job.unique_key, job.created_at + rules.policy.unique_time
        if self.kept_keys.keep(tube, key, job.id, until, now):
            self.journal.key(tube, key, job.id, until)
            self._arm(self.kept_keys, until)

    # Expiry

    def _expire(self, job: Job, now: int) -> None:
        """Drop the detached *job*, which is too old, or move it to the dead-letter tube."""
        tube, rules = job.tube, job.tube.rules
        assert rules is not None
        if rules.policy.expires_to_dead_letter:
            is_buried = job.state == BURIED
            self._dead_letter(job, DeadLetterReason.BURIED_EXPIRED if is_buried else DeadLetterReason.EXPIRED, now)
        else:
            tube.counts().expired += 1
            self._forget(job, now)

    def _expire_first(self, tube: Tube, rules: TubeRules, now: int) -> bool:
        """Expire one waiting or one buried job of *tube* if it is due; return whether another may be due."""
        if rules.next_expiry() <= now and rules.waiting is not None:
            job = rules.waiting.first()
            assert job is not None
            tube.remove(job)
            self._expire(job, now)
            return True
        buried = tube.first_buried() if rules.policy.buried_expire_after else None
        if buried is not None and buried_at(buried) + rules.policy.buried_expire_after <= now:
            tube.remove(buried)
            self._expire(buried, now)
            return True
        return False

    def _arm_burial_expiry(self, tube: Tube, rules: TubeRules) -> None:
        """Arm a timer for the time when the first buried job of *tube* expires."""
        job = tube.first_buried() if rules.policy.buried_expire_after else None
        if job is not None:
            self._arm(tube, buried_at(job) + rules.policy.buried_expire_after)

    # Dead letters

    def _dead_letter(self, job: Job, reason: int, now: int) -> None:
        """Move the detached *job* to the dead-letter tube of its tube; bury it if there is none, or no room in it."""
        tube, rules = job.tube, job.tube.rules
        name = rules.dead_letter if rules is not None else b""
        if name and self._move_dead(job, name, reason, now):
            return
        tube.counts().buried += 1
        job.events = job_history.add(job.events, job_history.BURIED, now, job_history.NOBODY)
        self._bury(job)

    def _move_dead(self, job: Job, name: bytes, reason: int, now: int) -> bool:
        """Move the detached *job* to the dead-letter tube *name*; return False if that cannot take it."""
        source = job.tube
        if self._refuse_move(name, 1, job.size):
            return False
        first_at = DeadLetter.unpack(job.dead_letter).first_at if job.dead_letter else now
        job.dead_letter = DeadLetter(reason, source.name, job.attempts, first_at, now).pack()
        source.counts().dead_lettered += 1
        target = self.tube(name)
        target.counts().received += 1
        self._move(job, target, job_history.DEAD_LETTERED, now)
        return True

    def _refuse_move(self, name: bytes, jobs: int, bytes: int) -> int:
        """Return why *jobs* jobs of *bytes* in total may not move to the tube *name*, or 0."""
        target, refusal = self.tubes.get(name), 0
        if target is None:
            target = Tube(name, self.jobs, self.totals)  # like the tube that the move would create
            target.rules = self._new_rules(target)
            refusal = self.quotas.refuse_tube(len(self.tubes)) if self.quotas is not None else 0
        if not refusal and self.quotas is not None:
            refusal = self.quotas.refuse_move(target, jobs, bytes)
        if not refusal and target.rules is not None:
            refusal = self._choose_evicted(target, target.rules, jobs, bytes, [])
        return refusal

    def _move(self, job: Job, target: Tube, kind: int, now: int) -> None:
        """Make the detached *job* ready in *target*, with a new count of attempts; *kind* is the event to record."""
        source = job.tube
        if target is not source:
            target.using += 1  # no eviction may drop the tube
            self._make_room(target, job.size, now)
            target.using -= 1
        if source.rules is not None:
            source.rules.release_key(job)
        source.release_key(job, self.jobs)
        source.body_bytes -= job.size
        target.body_bytes += job.size
        job.tube = target
        target.claim_key(job)
        if target.rules is not None:
            target.rules.restore_key(job)
        job.attempts_base = job.reserves
        job.state = READY
        job.ready_since = now
        job.events = job_history.add(job.events, kind, now, job_history.NOBODY)
        self.journal.move(job, source)
        if self.job_waiters:
            self._end_blind_waits(job)
        self._add_ready(job, now)
        self._drop_if_unneeded(source)

    def redrive(self, id: int, now: int) -> int:
        """Move the dead-lettered job *id* back to the tube that it came from, as a new job; return an EditOutcome.

        The job is ready there and no longer a dead letter; its attempts and its age restart.
        """
        job = self.jobs.get(id)
        if job is None or not job.dead_letter:
            return EditOutcome.NOT_FOUND
        if job.state == RESERVED:
            return EditOutcome.HELD
        source = DeadLetter.unpack(job.dead_letter).source
        if source != job.tube.name and self._refuse_move(source, 1, job.size):
            return EditOutcome.NO_ROOM
        job.tube.remove(job)
        job.dead_letter = b""
        job.expires_from = now
        self._move(job, self.tube(source), job_history.REDRIVEN, now)
        if self._unsettled:
            self._settle(now)
        return EditOutcome.DONE

    # Time

    def _rules_due(self, tube: Tube, rules: TubeRules, now: int) -> None:
        """Apply to *tube* what its rules require at *now*: one expiry or eviction, and the end of a hold."""
        if rules.full_at <= now:
            rules.full_at = 0
        oldest = rules.waiting.first() if rules.waiting is not None else None
        if self._expire_first(tube, rules, now):
            self._arm(tube, now)
        elif oldest is not None and rules.must_evict(tube.job_count, tube.body_bytes):
            self._evict(oldest, now)
            self._arm(tube, now)
        else:
            self._arm_rules(tube, rules, now)

    def _arm_rules(self, tube: Tube, rules: TubeRules, now: int) -> None:
        """Arm timers for the times when the rules of *tube* next require something."""
        expiry = rules.next_expiry()
        if expiry < NEVER:
            self._arm(tube, expiry)
        self._arm_burial_expiry(tube, rules)
        if now < tube.held_until <= rules.full_at:
            self._arm(tube, tube.held_until)

    # Ends of a reservation

    def _end_run(self, job: Job, kind: int, by: int, now: int) -> None:
        """Detach the reserved *job* from its holder at the request of client *by*; *kind* is the event to record."""
        assert job.holder is not None
        holder, tube = job.holder, job.tube
        self._remove_reserved(job, now)
        holder.finished += 1
        tube.note_run(now - job.reserved_at)
        job.events = job_history.add(job.events, job_history.RESERVED, job.reserved_at, holder.number)
        job.events = job_history.add(job.events, kind, now, by)
        job.former_state = job.former_deadline = 0

    def _record_lapse(self, job: Job, kind: int, client: int, now: int) -> None:
        """Record the events of a reservation by *client* that ended without a command."""
        job.events = job_history.add(job.events, job_history.RESERVED, job.reserved_at, client)
        job.events = job_history.add(job.events, kind, now, client)
        job.former_state = job.former_deadline = 0

    def _release(self, job: Job, pri: int, delay: int, by: int, now: int) -> None:
        tube = job.tube
        self._end_run(job, job_history.RELEASED, by, now)
        if job.is_truncated:
            self._end_truncated(job, now)
            self._hand_out_freed(tube, now)
            return
        tube.total_releases += 1
        job.pri = pri
        job.delay = delay
        job.releases += 1
        if tube.rules is not None:
            self._end_attempt(job, tube.rules, delay, True, now)
            self._hand_out_freed(tube, now)
            return
        job.deadline = now + delay
        job.state = DELAYED if delay else READY
        self.journal.update(job)
        if delay:
            self._add_delayed(job, now)
        else:
            self._add_ready(job, now)

    def _lapse(self, job: Job, now: int) -> None:
        """Requeue the detached *job*, whose reservation ended without a command, or delete it if it is truncated."""
        tube = job.tube
        if job.is_truncated:
            self._end_truncated(job, now)
            self._hand_out_freed(tube, now)
            return
        if tube.rules is not None:
            self._end_attempt(job, tube.rules, 0, False, now)
            self._hand_out_freed(tube, now)
            return
        job.ready_since = now
        self.journal.lapse(job)
        self._add_ready(job, now)

    def _end_truncated(self, job: Job, now: int) -> None:
        """Delete the detached *job*, whose tube was truncated during its reservation.

        The caller must call `_hand_out_freed` afterwards.
        """
        job.tube.cmd_delete += 1
        self._free_key(job)
        self._forget(job, now)

    def _end_attempt(self, job: Job, rules: TubeRules, delay: int, is_command: bool, now: int) -> None:
        """Decide by *rules* where the detached *job* goes after a failed attempt, and record it.

        *delay* is the delay in nanoseconds that a release asked for. With *is_command*, a reply waits for the record.
        """
        is_expired = rules.expiry_of(job) <= now
        if is_expired or rules.has_failed(job):
            job.state = READY
            job.ready_since = now
            self._record_end(job, is_command)  # a record has only the last event; the next record adds one
            if is_expired:
                self._expire(job, now)
            else:
                self._dead_letter(job, DeadLetterReason.ATTEMPTS, now)
            return
        if not delay:
            delay = rules.retry_delay(job, self.random())
            if delay:
                job.delay = delay
                job.tube.counts().retried += 1
        job.deadline = now + delay
        job.state = DELAYED if delay else READY
        self._record_end(job, is_command or delay > 0)
        if delay:
            self._add_delayed(job, now)
        else:
            self._add_ready(job, now)

    def _record_end(self, job: Job, is_update: bool) -> None:
        """Record the state of *job* after its reservation; without *is_update*, only that the reservation lapsed."""
        if is_update:
            self.journal.update(job)
        else:
            self.journal.lapse(job)

    def _kick(self, job: Job, now: int) -> None:
        job.tube.remove(job)
        job.tube.total_kicks += 1
        job.kicks += 1
        job.attempts_base = job.reserves
        job.expires_from = now
        job.ready_since = now
        job.events = job_history.add(job.events, job_history.KICKED, now, job_history.NOBODY)
        job.state = READY
        self.journal.update(job)
        self._add_ready(job, now)

    def _bury(self, job: Job) -> None:
        """Bury the detached *job*."""
        job.tube.total_buries += 1
        job.buries += 1
        self._burials += 1
        job.burial_number = self._burials
        job.tube.add_buried(job)
        self.journal.update(job)
        if self.job_waiters:
            self._end_job_waits(job.id, WaitOutcome.BURIED)
        if job.tube.rules is not None:
            self._arm_burial_expiry(job.tube, job.tube.rules)

    def _close_some(self, client: Client, limit: int, now: int) -> int:
        """Requeue up to *limit* jobs of the closing *client*, and remove up to *limit* of its watches.

        Each job is offered together with the jobs that the end of its reservation makes runnable, before the next one.
        Return the cost of settling these. The next ticks do the rest. While the server stops, the client keeps its jobs
        and watches.
        """
        if self.is_stopping:
            return 0
        left = SLICE
        ids, names = self.closing_clients[client]
        for id in islice(ids, limit):
            job = client.reserved.get(id)
            if job is not None:
                self._remove_reserved(job, now)
                self._record_lapse(job, job_history.RETURNED, client.number, now)
                self._lapse(job, now)
            if self._unsettled:
                left -= self._settle(now, left)
                if left <= 0:
                    break
        for name in islice(names, limit):
            tube = client.watched.pop(name)
            tube.watching -= 1
            self._drop_if_unneeded(tube)
        if client.reserved or client.watched:
            self._arm(client, now)
        else:
            del self.closing_clients[client]
            self._timers.disarm(client)
        return SLICE - left
