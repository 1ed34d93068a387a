"""The state of the queue, and the transitions of jobs, waits and tubes that the broker's operations consist of.

`Broker` inherits from `Transitions` and adds one method for each operation. It is a base class, not a
member, since calls of methods of self are the cheapest, whether the code is compiled or interpreted.

A job is *detached* between two moves: it is in no place of its tube, and no client holds it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from greenstalk_server.core.client import Client
from greenstalk_server.core.counters import Counters, ServerFacts
from greenstalk_server.core.jobs.body_cache import Bodies
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, SECOND, Job
from greenstalk_server.core.jobs.job_table import JobTable
from greenstalk_server.core.journal import Journal
from greenstalk_server.core.limits import LIMIT_NAMES, JobQuotas, LimitCounters, Limits, job_quotas
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.outcomes import Refusal, WaitOutcome
from greenstalk_server.core.policies.policy import PolicySet
from greenstalk_server.core.policies.tube_rules import TubeRules
from greenstalk_server.core.tags.concurrency import ConcurrencyKey
from greenstalk_server.core.tags.groups import Group
from greenstalk_server.core.tags.idempotency import KeptKeys
from greenstalk_server.core.tags.tags import NO_DEADLINE, TaggedJob
from greenstalk_server.core.timers import NEVER, Target, Timers
from greenstalk_server.core.tubes.name_list import NameBudget, NameList, TubeNames
from greenstalk_server.core.tubes.tube import Totals, Tube
from greenstalk_server.core.tubes.tube_set import MAX_TUBE_SETS, TubeSet
from greenstalk_server.core.tubes.weighting import MAX_WEIGHTED_TUBES

DEFAULT_TUBE: Final = b"default"

SAFETY_MARGIN: Final = SECOND
"""A client does not wait during the last second of a job that it holds (protocol.txt, "reserve")."""

SLICE: Final = 256
"""Maximum number of jobs that one tick, kick, clear or disconnect moves: about a millisecond of work."""

WAITED_TUBES: Final = 64
"""Tubes whose waiting clients a client leaves in the time that a job takes."""

MAX_RECENT_WORKERS: Final = 10_000
"""Maximum number of disconnected workers whose addresses are kept.

The events of a job contain only a worker's number, so the dashboard looks up the address in `recent_workers`.
"""


MAX_EMPTY_PAUSED: Final = 1000
"""Maximum number of paused tubes that exist although no client uses or watches them and they hold no job. Each segment
of the journal begins with the pauses."""


class Transitions:
    """All jobs, tubes and clients of one server.

    jobs            every job by id.
    tubes           every tube by name, in the order of creation.
    default_tube    the tube "default", which always exists.
    totals          number of jobs by state.
    tube_sets       sets of many tubes that some client watches and has reserved from.
    clients         every connected client.
    closing_clients disconnected clients that still have jobs or watches, each with iterators over the ids of these jobs
                    and over the names of the watched tubes. Later ticks requeue the jobs and end the watches. While the
                    server stops, both stay, and the next start requeues the jobs. A dict is not iterated again after
                    each slice: that would pass all deleted entries before the first remaining one. Names, because a
                    list of tubes would free them all at once at its end.
    recent_workers  addresses of the workers that disconnected last, by client number.
    job_waiters     clients that wait for the end of a job, by its id.
    bodies          which bodies are in memory; None if all are.
    is_draining     puts are refused.
    is_drain_final  no client can end the drain, because `drain` has started it.
    is_stopping     jobs of clients that disconnect stay reserved; the next start requeues them.
    limit_counters  how often each limit was hit, here, in the server and in sessions.
    listed_names    budget of the names in lists that are being sent.
    max_watched     maximum number of tubes that a client may watch; 0 means no limit. MAX_WEIGHTED_TUBES, if that is
                    less, in a weighted mode.
    policies        the policies in force.
    quotas          limits of jobs and tubes; None without any.
    groups          groups that have members or waiting jobs, by name.
    concurrency_keys    concurrency keys of existing jobs, by name.
    keeps_pauses    a paused tube exists until its pause ends, even if it is empty; False in strict mode.
    kept_keys       idempotency keys, and unique keys of policies, that outlive their jobs.
    """

    def __init__(
        self, facts: ServerFacts, journal: Journal, max_job_size: int, limits: Limits, bodies: Bodies | None
    ) -> None:
        self._listeners: list[BrokerListener] = []
        self.facts: ServerFacts = facts
        self.journal: Journal = journal
        self.max_job_size: int = max_job_size
        self.jobs: JobTable = JobTable()
        self.tubes: dict[bytes, Tube] = {}
        self.totals: Totals = Totals()
        self.tube_sets: dict[frozenset[Tube], TubeSet] = {}
        self.clients: dict[Client, None] = {}
        self.closing_clients: dict[Client, tuple[Iterator[int], Iterator[bytes]]] = {}
        self.recent_workers: OrderedDict[int, str] = OrderedDict()
        self.job_waiters: dict[int, dict[Client, None]] = {}
        self.counters: Counters = Counters()
        self.bodies: Bodies | None = bodies
        self.is_draining: bool = False
        self.is_drain_final: bool = False
        self.is_stopping: bool = False
        self.limit_counters: LimitCounters = LimitCounters(self._listeners)
        self.quotas: JobQuotas | None = job_quotas(limits)
        self.listed_names: NameBudget = NameBudget()
        self.max_watched: int = limits.watched
        self.policies: PolicySet = PolicySet([])
        self.groups: dict[bytes, Group] = {}
        self.concurrency_keys: dict[bytes, ConcurrencyKey] = {}
        self.keeps_pauses: bool = True
        self.kept_keys: KeptKeys = KeptKeys()
        self.next_id: int = 1
        self.producer_count: int = 0
        self.worker_count: int = 0
        self.waiting_count: int = 0
        self._empty_paused: dict[Tube, None] = {}  # see `_keep_paused`
        self._names: TubeNames = TubeNames(self.listed_names)
        self._burials: int = 0
        self._waits: int = 0
        self._last_client: int = 0
        self._timers: Timers = Timers()
        self._unsettled: list[Target] = []  # groups, concurrency keys and tubes; see `TagTransitions._settle`
        self.default_tube: Tube = self.tube(DEFAULT_TUBE)

    # Tubes

    def tube(self, name: bytes) -> Tube:
        """Return the tube *name*, created if it does not exist.

        The caller must then give it a job, a pause, or a client that uses or watches it, or call `_drop_if_unneeded`.
        """
        tube = self.tubes.get(name)
        if tube is None:
            tube = self.tubes[name] = Tube(name, self.jobs, self.totals)
            tube.name_chunk = self._names.add(name)
            tube.rules = self._new_rules(tube)
        return tube

    def _new_rules(self, tube: Tube) -> TubeRules | None:
        """Return new rules of *tube*, without state, from the policies in force; None if no policy matches."""
        policy = self.policies.effective(tube.name)
        return None if policy is None else TubeRules(policy, self.policies.dead_letter(tube.name), self.jobs)

    def name_list(self) -> NameList:
        """Return the names of all tubes, in the order of creation; the same list until a tube is created or dropped."""
        return self._names.list()

    def _drop_if_unneeded(self, tube: Tube) -> None:
        if tube.is_unneeded() and tube is not self.default_tube and self.tubes.get(tube.name) is tube:
            if tube.rules is not None and tube.rules.full_at:  # a new tube of this name could start too many jobs
                self._arm(tube, tube.rules.full_at)
            elif tube.paused_until and self.keeps_pauses:
                self._keep_paused(tube)
            else:
                self._drop(tube)

    def _keep_paused(self, tube: Tube) -> None:
        """Keep the empty *tube* until its pause ends, or until MAX_EMPTY_PAUSED other tubes are kept later."""
        kept = self._empty_paused
        kept.pop(tube, None)
        kept[tube] = None
        if len(kept) > MAX_EMPTY_PAUSED:
            first = next(iter(kept))
            del kept[first]
            if first.is_unneeded():
                self._drop(first)

    def _drop(self, tube: Tube) -> None:
        del self.tubes[tube.name]
        self._empty_paused.pop(tube, None)
        assert tube.name_chunk is not None
        self._names.remove(tube.name, tube.name_chunk)
        for listener in self._listeners:
            listener.on_tube_dropped(tube)
        self._timers.disarm(tube)
        if tube.paused_until:
            tube.pause = tube.paused_until = 0
            self.journal.pause(tube)

    def _refuse_tube(self, name: bytes, client: Client) -> int:
        """Return 0 if the tube *name* exists or may be created for *client*; else count and return the Refusal."""
        if name in self.tubes or self.quotas is None:
            return 0
        refusal = self.quotas.refuse_tube(len(self.tubes))
        return self._refuse(refusal, client, name) if refusal else 0

    def _refuse_watch(self, name: bytes, client: Client) -> int:
        """Return 0 if *client* may watch the tube *name* too; else count and return the Refusal."""
        limit = self.max_watched
        if client.is_weighted and not 0 < limit < MAX_WEIGHTED_TUBES:
            limit = MAX_WEIGHTED_TUBES
        if limit and len(client.watched) >= limit:
            return self._refuse(Refusal.WATCHED, client, name)
        return self._refuse_tube(name, client)

    def _refuse(self, refusal: int, client: Client, tube: bytes) -> int:
        """Count that *client*'s request for *tube* hit a limit; return *refusal*."""
        self.limit_counters.note(LIMIT_NAMES[refusal], client.address, tube.decode(errors="replace"))
        return refusal

    # Tube sets of clients that watch many tubes

    def _join_tube_set(self, client: Client) -> bool:
        """Have *client* share the set of the tubes that it watches; return False if there are too many sets."""
        tubes = frozenset(client.watched.values())
        tube_set = self.tube_sets.get(tubes)
        if tube_set is None:
            if len(self.tube_sets) >= MAX_TUBE_SETS:
                return False
            tube_set = self.tube_sets[tubes] = TubeSet(client.watched.values())
        tube_set.users += 1
        client.tube_set = tube_set
        return True

    def _leave_tube_set(self, client: Client) -> None:
        """Remove *client* from its tube set, since the tubes that it watches change."""
        tube_set, client.tube_set = client.tube_set, None
        if tube_set is not None:
            tube_set.users -= 1
            if not tube_set.users:
                tube_set.close()
                del self.tube_sets[frozenset(tube_set.tubes)]

    # Places of a job

    def _add_ready(self, job: Job, now: int) -> None:
        """Make the detached *job* ready, or reserve it for the client that has waited longest."""
        tube = job.tube
        waiter = tube.first_waiter() if (tube.waiters or tube.tube_sets) and tube.held_until <= now else None
        is_held = isinstance(job, TaggedJob) and job.must_queue
        if waiter is None or is_held or (tube.rules is not None and tube.rules.expiry_of(job) <= now):
            self._queue_ready(job, now)
        elif tube.ready.count or self._unsettled or wait_cost(waiter) > 1:
            # Ready jobs: a hold has just ended, or a slice was too short. Unsettled: a better job may become runnable.
            self._queue_ready(job, now)
            self._offer(tube, 1, now)
        else:
            self._grant(job, waiter, now)

    def _queue_ready(self, job: Job, now: int) -> None:
        """Add the detached *job* to the ready jobs of its tube."""
        tube = job.tube
        tube.add_ready(job)
        if tube.rules is not None:
            self._arm_waiting(job, tube.rules, now)

    def _add_delayed(self, job: Job, now: int) -> None:
        tube = job.tube
        tube.add_delayed(job)
        if job.deadline == NO_DEADLINE:
            self._await_group(job)
        else:
            self._arm(tube, job.deadline)
        if tube.rules is not None:
            self._arm_waiting(job, tube.rules, now)

    def _await_group(self, job: Job) -> None:
        """Make the delayed *job* wait for the group that its tag `after` names."""
        tags = job.more_tags if isinstance(job, TaggedJob) else None
        assert tags is not None
        tags.awaited = self._group(tags.after)
        tags.awaited.add_waiting(job)

    def _group(self, name: bytes) -> Group:
        """Return the group *name*, created if it does not exist."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(name, self.jobs, self._unsettled)
        return group

    def _arm_waiting(self, job: Job, rules: TubeRules, now: int) -> None:
        """Arm a timer for the time when the waiting *job* expires, or for now if its tube is above its caps."""
        tube = job.tube
        expiry = now if rules.must_evict(tube.job_count, tube.body_bytes) else rules.expiry_of(job)
        if expiry < NEVER:
            self._arm(tube, expiry)

    def _add_reserved(self, job: Job, client: Client, now: int) -> None:
        """Have *client* hold the detached *job*, whose `ready_since` is set."""
        tube = job.tube
        tube.note_wait(now - job.deadline)  # ready_since
        tube.total_reserves += 1
        tube.reserved_count += 1
        self.totals.reserved += 1
        if self.bodies is not None:
            self.bodies.reserved(job)
        job.state = RESERVED
        if isinstance(job, TaggedJob):
            job.count_reserved(1)
        job.holder = client
        job.reserves += 1
        job.reserved_at = now
        job.deadline = now + job.ttr
        client.hold(job)
        if not 0 < client.timer_at <= job.deadline:
            self._arm(client, job.deadline)
        if tube.rules is not None:
            self._note_start(tube, tube.rules, now)
        self.journal.reserve(job)

    def _remove_reserved(self, job: Job, now: int) -> None:
        """Detach the reserved *job* from its holder.

        The caller ends with `_hand_out_freed`, since this may end the hold of the tube.
        """
        assert job.holder is not None
        job.holder.drop(job)
        job.holder = None
        tube = job.tube
        tube.reserved_count -= 1
        self.totals.reserved -= 1
        if isinstance(job, TaggedJob):
            job.count_reserved(-1)
        if tube.rules is not None and tube.held_until == NEVER:
            self._update_hold(tube, now)

    # Holds

    def _update_hold(self, tube: Tube, now: int) -> None:
        """Set `held_until` of *tube* from its pause and its rules."""
        until, rules = tube.paused_until, tube.rules
        if rules is not None:
            until = max(until, rules.starts_at())
            if 0 < rules.policy.max_reserved <= tube.reserved_count:
                until = NEVER
        before, tube.held_until = tube.held_until, until
        if until < before:
            for tube_set in tube.tube_sets:
                tube_set.resume(tube, now)

    def _note_start(self, tube: Tube, rules: TubeRules, now: int) -> None:
        """Count the reservation of a job against the limits of *tube*."""
        rules.note_start(now)
        was_held = tube.held_until > now
        self._update_hold(tube, now)
        if now < tube.held_until < NEVER:
            self._arm(tube, tube.held_until)
        if tube.held_until > now and not was_held:
            if tube.held_until == NEVER:
                tube.counts().reserved_holds += 1
            else:
                tube.counts().rate_holds += 1

    def _hand_out_freed(self, tube: Tube, now: int) -> None:
        """Hand out ready jobs of *tube* if the end of a reservation may have ended its hold."""
        if tube.rules is not None and tube.held_until <= now and tube.ready.count:
            self._offer(tube, 1, now)

    # Edits

    def _set_delay(self, job: Job, delay: int | None, now: int) -> None:
        """Make the detached *job*, if it is ready or delayed, turn ready *delay* nanoseconds from *now*.

        If *delay* is None, a delayed job keeps its deadline.
        """
        if delay is not None and job.state in (READY, DELAYED):
            job.delay = delay
            job.state = DELAYED if delay else READY
            job.deadline = now + delay
        elif job.state == READY:
            job.ready_since = now  # `ReadyQueue.add` takes jobs in the order of `ready_since`

    def _replace(self, old: Job, new: Job, now: int) -> None:
        """Replace *old* by *new*, which keeps the place if it is reserved, or buried in the same tube."""
        self.jobs.set(new)
        if self.bodies is not None:
            self.bodies.remove(old)
            self.bodies.add(new)
        old.tube.body_bytes -= old.size
        new.tube.body_bytes += new.size
        if self.quotas is not None:
            self.quotas.body_bytes += new.size - old.size
        old.tube.release_key(old, self.jobs)
        new.tube.claim_key(new)
        if old.tube.rules is not None:
            old.tube.rules.release_key(old)
        if new.tube.rules is not None:
            new.tube.rules.claim_key(new)
        if new.holder is not None:
            old.holder = None
            new.holder.reserved[new.id] = new
            old.tube.reserved_count -= 1
            new.tube.reserved_count += 1
            self._update_hold(old.tube, now)
            self._update_hold(new.tube, now)
            self._hand_out_freed(old.tube, now)
        elif new.state == BURIED and new.tube is old.tube:
            new.tube.buried[new.id] = new
        else:
            old.tube.remove(old)
            if new.state == READY:
                self._add_ready(new, now)
            elif new.state == DELAYED:
                self._add_delayed(new, now)
            else:
                new.tube.add_buried(new)
        if self.job_waiters and new.tube is not old.tube:
            self._end_blind_waits(new)
        if new.tube.rules is not None:
            self._arm(new.tube, now)  # the job may have expired, or the tube may be above its caps

    # Waits and timers

    def _offer(self, tube: Tube, limit: int, now: int) -> int:
        """Hand out jobs of *tube* as `_hand_out` does, but leave that to `_settle` if it is due; return the cost."""
        if self._unsettled:
            self._unsettled.append(tube)
            return 0
        return self._hand_out(tube, limit, now)

    def _hand_out_best(self, tubes: list[Tube], limit: int, now: int) -> int:
        """Hand out jobs of *tubes* as `_hand_out` does, the best job of all these tubes first; return the cost."""
        firsts = [(tube, tube.ready.first()) for tube in tubes]
        queue = [(job.pri, job.id, tube) for tube, job in firsts if job is not None]
        heapify(queue)
        done = 0
        while queue and done < limit:
            pri, id, tube = heappop(queue)
            job = tube.ready.first()
            if job is not None and job.id == id and job.pri == pri:
                cost = self._hand_out(tube, 1, now)
                done += cost
                job = tube.ready.first() if cost else None
            if job is not None:
                heappush(queue, (job.pri, job.id, tube))
        for _, _, tube in queue:
            self._arm(tube, now)
        return done

    def _hand_out(self, tube: Tube, limit: int, now: int) -> int:
        """Reserve ready jobs of *tube* for the clients that wait for them, longest waiting first, until it is held.

        Return the sum of their `wait_cost`, at most *limit*; ticks, which pass a *limit* of SLICE, hand out the rest.
        A tick also removes expired jobs.
        """
        done = 0
        while True:
            waiter, job = tube.first_waiter(), tube.ready.first()
            if waiter is None or job is None or tube.held_until > now:
                return done
            cost = wait_cost(waiter)
            if done + cost > limit or (tube.rules is not None and tube.rules.next_expiry() <= now):
                self._arm(tube, now)
                return done
            done += cost
            tube.remove_ready(job)
            self._grant(job, waiter, now)

    def _grant(self, job: Job, client: Client, now: int) -> None:
        """End the wait of *client* with the detached *job*."""
        self._add_reserved(job, client, now)
        self._end_wait(client, job)

    def _end_wait(self, client: Client, outcome: Job | int) -> None:
        """End the wait of *client* with a job, or with a WaitOutcome, and wake it."""
        self.cancel_wait(client)
        client.outcome = outcome
        client.wake()

    def _end_job_waits(self, id: int, outcome: int) -> None:
        """End the waits for the job *id* with a WaitOutcome."""
        for client in list(self.job_waiters.get(id, ())):
            self._end_wait(client, outcome)

    def _end_blind_waits(self, job: Job) -> None:
        """End the waits for *job* of clients that may not look at the tube to which it has moved."""
        for client in list(self.job_waiters.get(job.id, ())):
            if client.may_inspect is not None and job.holder is not client and not client.may_inspect(job.tube.name):
                self._end_wait(client, WaitOutcome.NOT_FOUND)

    def cancel_wait(self, client: Client) -> None:
        """End *client*'s wait, if it waits, without an outcome and without waking it."""
        if client.is_waiting and client.awaited_id:
            client.is_waiting = False
            waiters = self.job_waiters[client.awaited_id]
            del waiters[client]
            if not waiters:
                del self.job_waiters[client.awaited_id]
            client.awaited_id = 0
        elif client.is_waiting:
            client.is_waiting = False
            self.waiting_count -= 1
            if client.tube_set is not None:
                del client.tube_set.waiters[client]
            else:
                for tube in client.watched.values():
                    del tube.waiters[client]

    def _arm(self, target: Target, when: int) -> None:
        if self._timers.arm(target, when):
            for listener in self._listeners:
                listener.on_alarm(when)


def wait_cost(client: Client) -> int:
    """Return the cost of the end of *client*'s wait: 1, and more if it waits in many tubes without a tube set."""
    return 1 if client.tube_set is not None else min(1 + len(client.watched) // WAITED_TUBES, SLICE)
