"""The queue: one method for each operation on jobs, tubes and clients.

Pure: no socket, clock or disk. Every method that needs the time takes `now`, integer nanoseconds since the Unix epoch,
which never decreases. A change that must survive a crash is passed to the journal before the method returns, and
thus before the reply is sent.

Invariants; `check` verifies all but the first:

- No method switches greenlets, calls anything that does, or blocks; so the broker needs no lock.
- Each job is in exactly one place: its tube's ready, delayed or buried jobs, or its holder's reserved ones.
- Every counter equals the number of objects that it counts.
- While a client waits, no tube that it watches has a ready job, with three exceptions: the tube is paused; the job's
  concurrency key has no free slot; or one slice could not hand out all ready jobs, and a tick is due to hand out the
  rest.
- A tube exists while it is used, watched, paused or holds a job. `default` always exists. At most MAX_EMPTY_PAUSED
  tubes exist only because they are paused.
- Every future deadline has an armed timer at or before it.

The caller provides `Client.wake`, which ends a wait. All other notifications go to the subscribed listeners
(see greenstalk_server.core.listener).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

from greenstalk_server.core.client import Client
from greenstalk_server.core.counters import ServerFacts
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.body_cache import Bodies
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, Job, deadline_of
from greenstalk_server.core.journal import Journal, NullJournal
from greenstalk_server.core.limits import Limits
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.outcomes import EditOutcome, WaitOutcome
from greenstalk_server.core.policies.tube_rules import key_of
from greenstalk_server.core.put_control import PutControl
from greenstalk_server.core.tags.concurrency import ConcurrencyKey
from greenstalk_server.core.tags.groups import Group
from greenstalk_server.core.tags.idempotency import MAX_EXPIRED, KeptKeys
from greenstalk_server.core.tags.tags import NO_DEADLINE, TaggedJob
from greenstalk_server.core.transitions import SAFETY_MARGIN, SLICE, wait_cost
from greenstalk_server.core.tubes.ready_queue import is_before
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.core.tubes.tube_set import MANY_TUBES
from greenstalk_server.core.tubes.weighting import FIFO

DEFAULT_MAX_JOB_SIZE: Final = 65535
"""Bytes."""

MAX_CLEAR_SCAN: Final = 4 * SLICE
"""Maximum number of jobs that one slice of a clear looks at."""


def _in_order_of_deadlines(jobs: Collection[Job]) -> Collection[Job]:
    """Return *jobs* in the order of their deadlines. A table of jobs that were only put is in this order."""
    last = 0
    for job in jobs:
        if job.deadline < last:
            return sorted(jobs, key=deadline_of)
        last = job.deadline
    return jobs


class Broker(PutControl):
    """The operations on all jobs, tubes and clients of one server. The base classes describe the attributes."""

    def __init__(
        self,
        facts: ServerFacts,
        journal: Journal | None = None,
        max_job_size: int = DEFAULT_MAX_JOB_SIZE,
        limits: Limits | None = None,
        bodies: Bodies | None = None,
    ) -> None:
        """*max_job_size* is the maximum size of a body in bytes. *bodies* is given if there is a memory limit."""
        journal = journal if journal is not None else NullJournal()
        super().__init__(facts, journal, max_job_size, limits if limits is not None else Limits(), bodies)

    def subscribe(self, listener: BrokerListener) -> None:
        """Notify *listener* from now on."""
        self._listeners.append(listener)

    def restore(self, next_id: int, now: int) -> None:
        """Take over the jobs and tubes that a journal has recovered, before any client connects.

        `jobs` holds the recovered jobs, each in the state ready, delayed or buried, but not yet added to its tube.
        `tubes` holds their tubes, and paused tubes. The policies must be set before: jobs that have used up their
        attempts become dead letters now.
        """
        for tube in self.tubes.values():
            tube.rules = self._new_rules(tube)
        self.next_id = max(self.next_id, next_id)
        numbers = (job_history.highest_client(job.events) for job in self.jobs.values() if job.events)
        self._last_client = max(numbers, default=0)
        for job in _in_order_of_deadlines(self.jobs.values()):
            self._restore_job(job, now)
        if self.quotas is not None:
            self.quotas.body_bytes = sum(tube.body_bytes for tube in self.tubes.values())
        self._delete_truncated(now)
        for tube in list(self.tubes.values()):
            if tube.paused_until:
                tube.held_until = tube.paused_until
                self._arm(tube, tube.paused_until)
            if self.keeps_pauses or not tube.paused_until:
                self._drop_if_unneeded(tube)
            if tube.rules is not None:
                self._apply_rules(tube, tube.rules, now)
        if self.kept_keys.table:
            self._arm(self.kept_keys, now)
        if self._unsettled:
            self._settle(now)

    def _restore_job(self, job: Job, now: int) -> None:
        """Add the restored *job* to its tube, and to the groups and keys that its tags name."""
        job.tube.body_bytes += job.size
        if self.bodies is not None:
            self.bodies.add(job)
        if job.tube.rules is not None:
            job.tube.rules.restore_key(job)
        if isinstance(job, TaggedJob):
            self._attach_tags(job)
        if job.state == READY:
            job.tube.add_ready(job)
        elif job.state == DELAYED:
            self._add_delayed(job, now)
        else:
            job.tube.add_buried(job)
            self._burials = job.burial_number

    def _delete_truncated(self, now: int) -> None:
        """Delete the restored jobs of truncated tubes: the end of the previous process ended their reservations."""
        for job in [job for job in self.jobs.values() if job.cold.is_truncated]:
            job.tube.remove(job)
            self._free_key(job)
            self._forget(job, now)

    # Workers

    def reserve(self, client: Client, now: int) -> Job | None:
        """Reserve for *client* the job with the smallest (pri, id) of all tubes it watches, if one is ready.

        In a weighted mode, select one of these tubes at random and reserve its first job.
        """
        best = self._first_ready(client, now)
        if best is not None and best.tube.rules is not None:
            best = self._skip_expired(best, client, now)
        if best is not None:
            best.tube.remove_ready(best)
            self._add_reserved(best, client, now)
        if self._unsettled:
            self._settle(now)
        return best

    def _first_ready(self, client: Client, now: int) -> Job | None:
        """Return the job with the smallest (pri, id) of all tubes that *client* watches and that are not held.

        In a weighted mode, select one of these tubes at random and return its first job.
        """
        best: Job | None = None
        tubes: Iterable[Tube] = client.watched.values()
        if len(client.watched) >= MANY_TUBES and (client.tube_set is not None or self._join_tube_set(client)):
            assert client.tube_set is not None
            best, tubes = client.tube_set.first(now), ()
        for tube in tubes:
            if tube.ready.count and tube.held_until <= now:
                job = tube.ready.first()
                if job is not None and (best is None or is_before(job, best)):
                    best = job
        if best is not None and client.weighting is not None and client.weighting.mode != FIFO:
            tubes = client.tube_set.ready_tubes() if client.tube_set is not None else client.watched.values()
            return client.weighting.choose(tubes, self.random(), now)
        return best

    def _skip_expired(self, job: Job, client: Client, now: int) -> Job | None:
        """Return *job*, which *client* may reserve, or the first one after it that has not expired.

        Return None if a whole slice of jobs has expired: the next ticks remove the rest and end the client's wait.
        """
        for _ in range(SLICE):
            rules = job.tube.rules
            if rules is None or rules.expiry_of(job) > now:
                return job
            job.tube.remove_ready(job)
            self._expire(job, now)
            if self._unsettled:
                self._settle(now)
            found = self._first_ready(client, now)
            if found is None:
                return None
            job = found
        return None

    def wait(self, client: Client, until: int | None, now: int) -> int:
        """Park *client*, for which `reserve` has just found nothing, until a job is ready or the time is *until*.

        Return WaitOutcome.WAITING: later the broker sets `client.outcome` and calls `client.wake`. If the
        wait would end at once, return TIMED_OUT or DEADLINE_SOON without parking the client.
        """
        wake_at = until
        soonest = client.soonest() if client.reserved else None
        if soonest is not None:
            margin_at = soonest.deadline - SAFETY_MARGIN
            if margin_at <= now:
                return WaitOutcome.DEADLINE_SOON
            if wake_at is None or margin_at < wake_at:
                wake_at = margin_at
        if until is not None and until <= now:
            return WaitOutcome.TIMED_OUT
        client.is_waiting = True
        self._waits += 1
        client.waiting_since = now
        client.wait_number = self._waits
        client.wait_until = until
        client.outcome = None
        self.waiting_count += 1
        if client.tube_set is not None:
            client.tube_set.waiters[client] = None
        else:
            for tube in client.watched.values():
                tube.waiters[client] = None
        if wake_at is not None:
            self._arm(client, wake_at)
        return WaitOutcome.WAITING

    def reserve_job(self, client: Client, id: int, now: int) -> Job | None:
        """Reserve for *client* the ready, delayed or buried job *id* of any tube.

        Return None if there is no such job, or if its concurrency key has no free slot.
        """
        job = self.jobs.get(id)
        if job is None or job.state == RESERVED:
            return None
        rules = job.tube.rules
        if rules is not None and job.state != BURIED and rules.expiry_of(job) <= now:
            job.tube.remove(job)
            self._expire(job, now)
            if self._unsettled:
                self._settle(now)
            return None
        if isinstance(job, TaggedJob) and job.limiter is not None and not job.limiter.is_free:
            return None
        job.tube.remove(job)
        if job.state != READY:
            job.former_state, job.former_deadline = job.state, job.deadline
            job.ready_since = now  # it has not waited as a ready job
        self._add_reserved(job, client, now)
        if self._unsettled:
            self._settle(now)
        return job

    def delete(self, client: Client | None, id: int, now: int) -> bool:
        """Delete job *id*; return False if there is none, or a client other than *client* holds it."""
        job = self.jobs.get(id)
        if job is None:
            return False
        tube = job.tube
        if job.state == RESERVED:
            if client is None or job.holder is not client:
                return False
            self._remove_reserved(job, now)
            client.finished += 1
            tube.note_run(now - job.reserved_at)
            if tube.rules is not None:
                self._keep_key(job, tube.rules, now)
        else:
            tube.remove(job)
        tube.cmd_delete += 1
        self._forget(job, now)
        if tube.rules is not None:
            self._hand_out_freed(tube, now)
        if self._unsettled:
            self._settle(now)
        return True

    def release(self, client: Client, id: int, pri: int, delay: int, now: int) -> bool:
        """Make the job *id* ready again, or delayed, with a new *pri*; return False unless *client* holds it."""
        job = client.reserved.get(id)
        if job is None:
            return False
        self._release(job, pri, delay, client.number, now)
        if self._unsettled:
            self._settle(now)
        return True

    def bury(self, client: Client, id: int, pri: int, now: int) -> bool:
        """Bury the job *id* with a new *pri*; return False unless *client* holds it."""
        job = client.reserved.get(id)
        if job is None:
            return False
        self._end_run(job, job_history.BURIED, client.number, now)
        job.pri = pri
        if job.is_truncated:
            self._end_truncated(job, now)
        else:
            self._bury(job)
        self._hand_out_freed(job.tube, now)
        if self._unsettled:
            self._settle(now)
        return True

    def touch(self, client: Client, id: int, now: int) -> bool:
        """Restart the ttr of the job *id* at *now*; return False unless *client* holds it."""
        job = client.reserved.get(id)
        if job is None:
            return False
        client.postpone(job, now + job.ttr)
        self._arm(client, job.deadline)
        return True

    # Every client

    def reprioritize(self, id: int, pri: int, now: int) -> int:
        """Give the ready, delayed or buried job *id* the priority *pri*; return DONE, NOT_FOUND or HELD."""
        job = self.jobs.get(id)
        if job is None:
            return EditOutcome.NOT_FOUND
        if job.state == RESERVED:
            return EditOutcome.HELD
        self._set_priority(job, pri, now)
        if self._unsettled:
            self._settle(now)
        return EditOutcome.DONE

    def wait_for_job(self, client: Client, id: int, until: int | None, now: int) -> int:
        """Park *client* until the job *id* is deleted or buried, or the time is *until*; return a WaitOutcome.

        If the job is already buried or does not exist, or if *until* is not in the future, return without parking.
        """
        job = self.jobs.get(id)
        if job is None:
            return WaitOutcome.NOT_FOUND
        if job.state == BURIED:
            return WaitOutcome.BURIED
        if until is not None and until <= now:
            return WaitOutcome.TIMED_OUT
        client.is_waiting = True
        client.awaited_id = id
        client.waiting_since = now
        client.wait_until = until
        client.outcome = None
        self.job_waiters.setdefault(id, {})[client] = None
        if until is not None:
            self._arm(client, until)
        return WaitOutcome.WAITING

    def kick(self, tube: Tube, state: int, bound: int, now: int) -> int:
        """Make ready up to *bound* jobs of *tube* that are in *state*, BURIED or DELAYED; return how many.

        A call moves at most SLICE jobs; the caller repeats the call for the rest.
        """
        first = tube.first_buried if state == BURIED else tube.delayed.first
        kicked = 0
        while kicked < min(bound, SLICE):
            job = first()
            if job is None:
                break
            self._kick(job, now)
            kicked += 1
        if self._unsettled:
            self._settle(now)
        return kicked

    def kick_job(self, id: int, now: int) -> bool:
        """Make the buried or delayed job *id* ready; return False if there is no such job."""
        job = self.jobs.get(id)
        if job is None or job.state not in (BURIED, DELAYED):
            return False
        self._kick(job, now)
        if self._unsettled:
            self._settle(now)
        return True

    def pause_tube(self, name: bytes, delay: int, now: int) -> bool:
        """Pause reserves from the tube *name* for *delay* nanoseconds; 0 ends a pause. Return False if no such tube."""
        tube = self.tubes.get(name)
        if tube is None:
            return False
        tube.cmd_pause_tube += 1
        is_changed = delay > 0 or tube.paused_until > now
        tube.pause = delay
        tube.paused_until = now + delay if delay else 0
        self.journal.pause(tube)
        self._update_hold(tube, now)
        if delay:
            self._arm(tube, tube.paused_until)
        else:
            self._offer(tube, SLICE, now)
        if self._unsettled:
            self._settle(now)
        if is_changed:
            for listener in self._listeners:
                listener.on_tube_paused(tube)
        self._drop_if_unneeded(tube)
        return True

    # Operators

    def bury_job(self, id: int, now: int, is_forced: bool = False) -> bool:
        """Bury the ready or delayed job *id*, or, if *is_forced*, a reserved one; return False if no such job."""
        job = self.jobs.get(id)
        if job is None or job.state == BURIED or (job.state == RESERVED and not is_forced):
            return False
        if job.state == RESERVED:
            self._end_run(job, job_history.BURIED, job_history.NOBODY, now)
        else:
            job.tube.remove(job)
            job.events = job_history.add(job.events, job_history.BURIED, now, job_history.NOBODY)
        if job.is_truncated:
            self._end_truncated(job, now)
        else:
            self._bury(job)
        self._hand_out_freed(job.tube, now)
        if self._unsettled:
            self._settle(now)
        return True

    def release_job(self, id: int, now: int) -> bool:
        """Take the reserved job *id* from its holder and make it ready; return False if there is no such job."""
        job = self.jobs.get(id)
        if job is None or job.state != RESERVED:
            return False
        self._release(job, job.pri, 0, job_history.NOBODY, now)
        if self._unsettled:
            self._settle(now)
        return True

    def delete_job(self, id: int, now: int, is_forced: bool = False) -> bool:
        """Delete the job *id*, a reserved one only if *is_forced*; return False if there is no such job."""
        job = self.jobs.get(id)
        if job is None or (job.state == RESERVED and not is_forced):
            return False
        if job.tube.rules is not None and is_forced:
            job.tube.rules.release_key(job)  # else `delete` keeps it, as if the job were finished
            job.unique_key = b""
        self._free_key(job)
        return self.delete(job.holder if is_forced else None, id, now)

    def edit_job(
        self,
        id: int,
        now: int,
        *,
        tube: bytes | None = None,
        pri: int | None = None,
        delay: int | None = None,
        ttr: int | None = None,
        body: bytes | None = None,
        is_renewed: bool = False,
        is_forced: bool = False,
    ) -> int:
        """Change the given fields of job *id*, all or none; its id, age and counts stay. Return an EditOutcome.

        *tube* moves the job, which keeps its state; its count of attempts restarts. *delay* makes a ready or delayed
        job turn ready that many nanoseconds from now, and has no effect if the job is reserved or buried. *is_renewed*
        makes the job expire as if it had been put now. A reserved job is changed only if *is_forced*: its holder keeps
        the job, its deadline, and the body that it has received. The caller has to give *body* if the job's body is on
        disk (see Bodies.look). With any outcome but DONE nothing has changed.
        """
        old = self.jobs.get(id)
        if old is None:
            return EditOutcome.NOT_FOUND
        if old.state == RESERVED and not is_forced:
            return EditOutcome.HELD
        if body is None:
            body = old.body
        if body is None:
            return EditOutcome.BODY_ON_DISK
        target = old.tube if tube is None else self.tube(tube)
        new = old.copy_with(target, body)
        new.pri = old.pri if pri is None else pri
        new.ttr = old.ttr if ttr is None else ttr
        self._set_delay(new, delay, now)
        if is_renewed:
            new.expires_from = now
        new.unique_key = key_of(body) if target.rules is not None and target.rules.keys is not None else b""
        is_move = target is not old.tube
        if is_move:
            new.attempts_base = new.reserves - (new.state == RESERVED)
        if is_move and new.state == BURIED:
            self._burials += 1
            new.burial_number = self._burials
        kind = job_history.MOVED if is_move else job_history.EDITED
        new.events = job_history.add(new.events, kind, now, job_history.NOBODY)
        if not self.journal.replace(old, new):
            self._drop_if_unneeded(target)
            return EditOutcome.NO_ROOM
        self._replace(old, new, now)
        self._drop_if_unneeded(old.tube)
        if self._unsettled:
            self._settle(now)
        return EditOutcome.DONE

    def clear(self, tube: Tube, state: int, bound: int, below: int, now: int) -> int:
        """Delete up to *bound* of the tube's jobs in *state*, READY, DELAYED or BURIED; return how many.

        Only jobs with ids below *below* are deleted: pass `next_id` as of the start of the clear to keep newer jobs.
        A call deletes at most SLICE jobs; the caller repeats the call for the rest. A call looks at up to
        MAX_CLEAR_SCAN jobs. It returns 0 if all of them are newer, even if older jobs follow them.
        """
        scanned = islice(tube.walk(state), MAX_CLEAR_SCAN)
        doomed = list(islice((job.id for job in scanned if job.id < below), min(bound, SLICE)))
        for id in doomed:
            self.delete_job(id, now)
        return len(doomed)

    def truncate_job(self, id: int, now: int) -> bool:
        """Mark the reserved job *id* for deletion when its reservation ends; return False if it is already marked.

        Also return False if there is no such job. If the process ends before the reservation, the next start deletes
        the job. A move of the job to another tube cancels the deletion.
        """
        job = self.jobs.get(id)
        if job is None or job.state != RESERVED or job.is_truncated:
            return False
        job.is_truncated = True
        job.events = job_history.add(job.events, job_history.EDITED, now, job_history.NOBODY)
        self.journal.move(job, job.tube)
        return True

    def drain(self) -> None:
        """Refuse puts until the process ends."""
        self.is_draining = self.is_drain_final = True

    def drain_for(self, client: Client) -> None:
        """Refuse puts until `undrain_for`, at the request of *client*."""
        if not self.is_draining:
            self.is_draining = True
            for listener in self._listeners:
                listener.on_drain(client, True)

    def undrain_for(self, client: Client) -> bool:
        """Accept puts again at the request of *client*; return whether puts are accepted now."""
        if self.is_drain_final or self.is_stopping:
            return not self.is_draining
        if self.is_draining:
            self.is_draining = False
            for listener in self._listeners:
                listener.on_drain(client, False)
        return True

    def stop(self) -> None:
        """From now on, leave jobs reserved when their clients disconnect.

        The next start requeues them, as after a crash. So a job that reserve-job took while it was buried or delayed is
        buried or delayed again.
        """
        self.is_stopping = True

    # Time

    def tick(self, now: int) -> int | None:
        """Process one slice of the timers due by *now*; return when to tick next, or None for never.

        The returned time is at or before *now* if work remains: the caller should yield before it ticks again.
        """
        left = SLICE
        while left > 0:
            target = self._timers.pop_due(now)
            if target is None:
                break
            if isinstance(target, Tube):
                left -= self._tube_due(target, left, now)
            elif isinstance(target, Client):
                left -= self._client_due(target, now)
            elif isinstance(target, (ConcurrencyKey, Group)):
                target.note()
            elif isinstance(target, KeptKeys):
                left -= self._keys_due(now)
            else:
                self._sweep_due(now)
            left -= 1
            if self._unsettled:
                left -= self._settle(now, max(left, 1))
        return self._timers.soonest()

    def _tube_due(self, tube: Tube, limit: int, now: int) -> int:
        """Do what is due in *tube*; return the cost, at most *limit* for the jobs handed out."""
        cost = search = 0
        if tube.paused_until <= now:
            if tube.paused_until:
                tube.pause = tube.paused_until = 0
                self.journal.pause(tube)
            self._update_hold(tube, now)
        rules = tube.rules
        if rules is not None:
            self._rules_due(tube, rules, now)
        if tube.ready.is_unfinished:
            self._search_on(tube)
            search = SLICE
        if tube.held_until <= now:
            cost = self._offer(tube, limit, now)
        if not tube.paused_until:
            self._drop_if_unneeded(tube)
        job = tube.delayed.first()
        if job is not None and job.deadline <= now:
            tube.remove(job)
            self._end_delay(job, now)
            job = tube.delayed.first()
        if job is not None and job.deadline < NO_DEADLINE:
            self._arm(tube, job.deadline)
        if tube.paused_until:
            self._arm(tube, tube.paused_until)
        return cost + search

    def _client_due(self, client: Client, now: int) -> int:
        """Do what is due for *client*; return the cost of what that settles, and of the end of its wait."""
        if client.is_closed:
            return self._close_some(client, 1, now)
        cost = wait_cost(client) if client.is_waiting else 0
        job = client.soonest()
        is_in_reserve = client.is_waiting and not client.awaited_id
        if is_in_reserve and job is not None and job.deadline - SAFETY_MARGIN <= now:
            self._end_wait(client, WaitOutcome.DEADLINE_SOON)
        elif client.is_waiting and client.wait_until is not None and client.wait_until <= now:
            self._end_wait(client, WaitOutcome.TIMED_OUT)
        elif job is not None and job.deadline <= now:
            self._time_out(job, client, now)
            job = client.soonest()
        if job is not None:
            is_in_reserve = client.is_waiting and not client.awaited_id
            self._arm(client, job.deadline - SAFETY_MARGIN if is_in_reserve else job.deadline)
        if client.is_waiting and client.wait_until is not None:
            self._arm(client, client.wait_until)
        return 0 if client.is_waiting else cost

    def _keys_due(self, now: int) -> int:
        """Remove some of the keys that are free again; return the cost."""
        self.kept_keys.drop_expired(now)
        soonest = self.kept_keys.soonest()
        if soonest is not None:
            self._arm(self.kept_keys, soonest)
        return MAX_EXPIRED

    def _time_out(self, job: Job, client: Client, now: int) -> None:
        """End the reservation of *job*, whose ttr has passed, and make it ready."""
        self._remove_reserved(job, now)
        self._record_lapse(job, job_history.TIMED_OUT, client.number, job.deadline)
        job.timeouts += 1
        job.tube.total_timeouts += 1
        self.counters.job_timeouts += 1
        for listener in self._listeners:
            listener.on_reservation_timeout(client, job)
        self._lapse(job, now)
