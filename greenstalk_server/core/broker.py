"""The queue: every state transition of jobs, tubes and clients, one small method each.

Pure: no socket, clock or disk. Every method that needs the time takes `now`, integer nanoseconds since the
Unix epoch, which must never go back. What has to survive a crash is told to the journal before the method
returns, so before its reply can leave.

Invariants, which `check` verifies:

- No method switches greenlets, calls anything that does, or blocks; so the broker needs no lock.
- Each job is in exactly one place: its tube's ready, delayed or buried jobs, or its holder's reserved ones.
- Counters equal reality.
- While a client waits, no tube that it watches has a ready job, unless that tube is paused or a tick is due
  to hand out what a slice left over.
- A tube exists while it is used, watched or holds a job, and `default` always.
- Every deadline ahead of us has an armed timer at or before it.

The caller provides `Client.wake`, which ends a wait. What else the broker has to report goes to the listeners that
have subscribed (see greenstalk_server.core.listener).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from greenstalk_server.core import job_history
from greenstalk_server.core.body_cache import Bodies
from greenstalk_server.core.client import Client
from greenstalk_server.core.counters import Counters, ServerFacts
from greenstalk_server.core.job import (
    BURIED,
    DELAYED,
    MAX_ID,
    NO_KEY,
    READY,
    RESERVED,
    SECOND,
    URGENT_BELOW,
    Job,
    deadline_of,
)
from greenstalk_server.core.job_table import JobTable
from greenstalk_server.core.journal import Journal, NullJournal
from greenstalk_server.core.limits import LIMIT_NAMES, JobQuotas, LimitCounters, Refusal
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.name_list import NameBudget, NameList
from greenstalk_server.core.ready_queue import is_before
from greenstalk_server.core.timers import Timers
from greenstalk_server.core.tube import Totals, Tube
from greenstalk_server.core.tube_set import AT_MOST, FEW, Watch

DEFAULT_TUBE: Final = b"default"
DEFAULT_MAX_JOB_SIZE: Final = 65535

SAFETY_MARGIN: Final = SECOND
"""A client is not kept waiting during the last second of a job it holds (protocol.txt, "reserve")."""

WAITING: Final = 0
TIMED_OUT: Final = 1
DEADLINE_SOON: Final = 2
"""How a wait stands or has ended, if not with a job."""

SLICE: Final = 256
"""Jobs moved at most by one tick, kick, clear or disconnect, about a millisecond's work; the rest goes on later."""

SKIP_AT_MOST: Final = 4 * SLICE
"""Jobs looked at by one slice of a clear."""

PARTED_AT_MOST: Final = 10_000
"""Workers that have gone whose addresses are kept, since jobs still tell of them."""

DONE: Final = 0
NOT_FOUND: Final = 1
HELD: Final = 2
NO_ROOM: Final = 3
UNREAD: Final = 4
"""How an edit ends: there is no such job, a client holds it, the journal has no room, or its body is on disk."""


def _nobody() -> None:
    """Stand in for `Client.wake` where there is no client."""


class Broker:
    """All jobs, tubes and clients of one server.

    jobs            every job by id.
    tubes           every tube by name, in the order of creation.
    totals          how many jobs there are by state.
    watches         sets of many tubes that some client watches and has reserved from.
    clients         every connected client.
    parted          addresses of the workers that went last, by number.
    bodies          which bodies are in memory; None if all are, and may be. To be set before `restore`.
    is_draining     puts are refused.
    is_stopping     jobs of clients that disconnect stay reserved; the next start returns them.
    limit_counters  how often each limit was hit, here, in the server and in sessions.
    listed_names    budget of the names in lists that are being sent.
    max_watched     tubes that a client may watch; 0 for any number.
    quotas          limits of jobs and tubes; None without any. Set it before `restore`.
    """

    def __init__(
        self, facts: ServerFacts, journal: Journal | None = None, max_job_size: int = DEFAULT_MAX_JOB_SIZE
    ) -> None:
        """*max_job_size* is the most bytes of a body."""
        self._listeners: list[BrokerListener] = []
        self.facts: ServerFacts = facts
        self.journal: Journal = journal if journal is not None else NullJournal()
        self.max_job_size: int = max_job_size
        self.jobs: JobTable = JobTable()
        self.tubes: dict[bytes, Tube] = {}
        self.totals: Totals = Totals()
        self.watches: dict[frozenset[Tube], Watch] = {}
        self.clients: dict[Client, None] = {}
        self.parted: OrderedDict[int, str] = OrderedDict()
        self.counters: Counters = Counters()
        self.bodies: Bodies | None = None
        self.is_draining: bool = False
        self.is_stopping: bool = False
        self.limit_counters: LimitCounters = LimitCounters(self._listeners)
        self.quotas: JobQuotas | None = None
        self.listed_names: NameBudget = NameBudget()
        self.max_watched: int = 0
        self.next_id: int = 1
        self.producer_count: int = 0
        self.worker_count: int = 0
        self.waiting_count: int = 0
        self._names: NameList | None = None
        self._leaving: dict[Client, None] = {}  # closed, with jobs or watches that later ticks end, or the stop
        self._burials: int = 0
        self._waits: int = 0
        self._last_client: int = 0
        self._timers: Timers = Timers()
        self._default: Tube = self.tube(DEFAULT_TUBE)

    def subscribe(self, listener: BrokerListener) -> None:
        """Notify *listener* from now on."""
        self._listeners.append(listener)

    def restore(self, next_id: int) -> None:
        """Take in what a journal has recovered, before any client connects.

        `jobs` holds its jobs, each ready, delayed or buried by its state, and in none of its tube's places yet;
        `tubes` their tubes and those that are paused, which exist until the pause ends, or longer.
        """
        self.next_id = max(self.next_id, next_id)
        told = (job_history.highest_client(job.events) for job in self.jobs.values() if job.events)
        self._last_client = max(told, default=0)
        for job in sorted(self.jobs.values(), key=deadline_of):
            job.tube.body_bytes += job.size
            if self.bodies is not None:
                self.bodies.came(job)
            if job.state == READY:
                job.tube.add_ready(job)
            elif job.state == DELAYED:
                self._add_delayed(job)
            else:
                job.tube.add_buried(job)
                self._burials = job.deadline
        if self.quotas is not None:
            self.quotas.body_bytes = sum(tube.body_bytes for tube in self.tubes.values())
        for tube in list(self.tubes.values()):
            if tube.paused_until:
                self._arm(tube, tube.paused_until)
            else:
                self._drop_if_unneeded(tube)

    # Clients

    def connect(self, wake: Callable[[], None]) -> Client:
        """Admit a client that uses and watches `default`. Its waits end by a call of *wake*."""
        self.counters.total_connections += 1
        self._last_client = self._last_client % job_history.LAST_CLIENT + 1
        client = Client(self._default, wake, self._last_client)
        self._default.using += 1
        self._default.watching += 1
        self.clients[client] = None
        return client

    def disconnect(self, client: Client, now: int) -> None:
        """Disconnect *client*: end its wait, and requeue the jobs that it holds, in the order it reserved them.

        Of the jobs and the watched tubes a slice, and the rest at later ticks.
        """
        self.cancel_wait(client)
        client.is_closed = True
        client.wake = client.hang_up = _nobody  # they refer to the connection, which refers to the client
        del self.clients[client]
        self.producer_count -= client.is_producer
        self.worker_count -= client.is_worker
        if client.is_worker:
            self.parted[client.number] = client.address
            if len(self.parted) > PARTED_AT_MOST:
                self.parted.popitem(last=False)
        client.used.using -= 1
        self._drop_if_unneeded(client.used)
        self._end_watch(client)
        self._part(client, SLICE, now)

    def note_producer(self, client: Client) -> None:
        """Count *client* among the producers."""
        if not client.is_producer:
            client.is_producer = True
            self.producer_count += 1

    def note_worker(self, client: Client) -> None:
        """Count *client* among the workers."""
        if not client.is_worker:
            client.is_worker = True
            self.worker_count += 1

    def use(self, client: Client, name: bytes) -> bool:
        """Have *client*'s puts go to the tube *name*, which is created if need be; False if a limit forbids that."""
        if self.quotas is not None and self._refuse_tube(name, client):
            return False
        tube = self.tube(name)
        tube.using += 1
        old, client.used = client.used, tube
        old.using -= 1
        self._drop_if_unneeded(old)
        return True

    def watch(self, client: Client, name: bytes) -> int:
        """Have *client*'s reserves take from the tube *name* too; return how many it watches, or the Refusal."""
        if name not in client.watched:
            refusal = self._refuse_watch(name, client)
            if refusal:
                return refusal
            tube = self.tube(name)
            tube.watching += 1
            client.watched[name] = tube
            self._end_watch(client)
        return len(client.watched)

    def ignore(self, client: Client, name: bytes) -> int:
        """Undo a watch; return how many tubes *client* watches, or 0 if *name* is the only one (it stays)."""
        tube = client.watched.get(name)
        if tube is not None:
            if len(client.watched) == 1:
                return 0
            del client.watched[name]
            self._end_watch(client)
            tube.watching -= 1
            self._drop_if_unneeded(tube)
        return len(client.watched)

    # Producers

    def allocate_id(self) -> int:
        """The next job id. Each is given once, whether a job comes of it or not."""
        id = self.next_id
        self.next_id = id + 1
        return id

    def put(self, client: Client, id: int, pri: int, delay: int, ttr: int, body: bytes, now: int) -> int:
        """Add a job, under an allocated *id*, to the tube that *client* uses.

        *delay* and *ttr* in nanoseconds. Return *id*; or the Refusal, which is negative, and nothing has changed.
        """
        if self.bodies is not None and not self.bodies.admit(len(body)):
            return Refusal.MEMORY
        tube = client.used
        if self.quotas is not None:
            refusal = self.quotas.refuse_job(tube, len(body), len(self.jobs))
            if refusal:
                return self._refuse(refusal, client, tube.name)
        job = Job(id, tube, body, pri, delay, ttr, now)
        if delay:
            job.state = DELAYED
            job.deadline = now + delay
        if not self.journal.put(job):
            return Refusal.JOURNAL
        self.jobs.set(job)
        if self.bodies is not None:
            self.bodies.came(job)
        tube.body_bytes += len(body)
        tube.total_jobs += 1
        self.counters.total_jobs += 1
        if self.quotas is not None:
            self.quotas.body_bytes += len(body)
        if delay:
            self._add_delayed(job)
        else:
            self._add_ready(job, now)
        return id

    # Workers

    def reserve(self, client: Client, now: int) -> Job | None:
        """Reserve for *client* the job with the smallest (pri, id) of all tubes it watches, if one is ready."""
        best: Job | None = None
        few: Iterable[Tube] = client.watched.values()
        if len(client.watched) > FEW and (client.watch is not None or self._begin_watch(client)):
            assert client.watch is not None
            best, few = client.watch.first(now), ()
        for tube in few:
            if tube.ready.count and tube.paused_until <= now:
                job = tube.ready.first()
                if job is not None and (best is None or is_before(job, best)):
                    best = job
        if best is not None:
            best.tube.remove_ready(best)
            self._add_reserved(best, client, now)
        return best

    def wait(self, client: Client, until: int | None, now: int) -> int:
        """Park *client*, for which `reserve` has just found nothing, until a job comes or *until* does.

        Return WAITING, with `client.wake` to be called and `client.outcome` to be set later; or TIMED_OUT or
        DEADLINE_SOON if that is so already, and the client does not wait.
        """
        wake_at = until
        soonest = client.soonest() if client.reserved else None
        if soonest is not None:
            margin_at = soonest.deadline - SAFETY_MARGIN
            if margin_at <= now:
                return DEADLINE_SOON
            if wake_at is None or margin_at < wake_at:
                wake_at = margin_at
        if until is not None and until <= now:
            return TIMED_OUT
        client.is_waiting = True
        self._waits += 1
        client.waiting_since = now
        client.wait_number = self._waits
        client.wait_until = until
        client.outcome = None
        self.waiting_count += 1
        if client.watch is not None:
            client.watch.waiters[client] = None
        else:
            for tube in client.watched.values():
                tube.waiters[client] = None
        if wake_at is not None:
            self._arm(client, wake_at)
        return WAITING

    def cancel_wait(self, client: Client) -> None:
        """End *client*'s wait, if it waits, without an outcome and without waking it."""
        if client.is_waiting:
            client.is_waiting = False
            self.waiting_count -= 1
            if client.watch is not None:
                del client.watch.waiters[client]
            else:
                for tube in client.watched.values():
                    del tube.waiters[client]

    def reserve_job(self, client: Client, id: int, now: int) -> Job | None:
        """Reserve for *client* the ready, delayed or buried job *id* of any tube; None if there is none such."""
        job = self.jobs.get(id)
        if job is None or job.state == RESERVED:
            return None
        job.tube.remove(job)
        if job.state != READY:
            job.former_state, job.former_deadline = job.state, job.deadline
            job.deadline = now  # nobody has let it wait
        self._add_reserved(job, client, now)
        return job

    def delete(self, client: Client | None, id: int, now: int) -> bool:
        """Remove job *id* for good; False if there is none, or another than *client* holds it."""
        job = self.jobs.get(id)
        if job is None:
            return False
        tube = job.tube
        if job.state == RESERVED:
            if job.holder is not client:
                return False
            self._remove_reserved(job)
            run = now - job.reserved_at
            tube.run_time += run
            length = run.bit_length()
            tube.runs[length] = tube.runs.get(length, 0) + 1
        else:
            tube.remove(job)
        self.jobs.remove(id)
        if self.bodies is not None:
            self.bodies.went(job)
        tube.body_bytes -= job.size
        if self.quotas is not None:
            self.quotas.body_bytes -= job.size
        tube.cmd_delete += 1
        self.journal.delete(job)
        if not tube.using and not tube.watching:
            self._drop_if_unneeded(tube)
        return True

    def release(self, client: Client, id: int, pri: int, delay: int, now: int) -> bool:
        """Make the job *id* ready again, or delayed, with a new *pri*; False unless *client* holds it."""
        job = client.reserved.get(id)
        if job is None:
            return False
        self._release(job, pri, delay, client.number, now)
        return True

    def bury(self, client: Client, id: int, pri: int, now: int) -> bool:
        """Bury the job *id* with a new *pri*; False unless *client* holds it."""
        job = client.reserved.get(id)
        if job is None:
            return False
        self._end_run(job, job_history.BURIED, client.number, now)
        job.pri = pri
        self._bury(job)
        return True

    def touch(self, client: Client, id: int, now: int) -> bool:
        """Give the job *id* its whole ttr from *now*; False unless *client* holds it."""
        job = client.reserved.get(id)
        if job is None:
            return False
        job.deadline = now + job.ttr
        client.hold(job)
        self._arm(client, job.deadline)
        return True

    # Anyone

    def kick(self, tube: Tube, state: int, bound: int, now: int) -> int:
        """Make up to *bound* of the tube's jobs in *state*, BURIED or DELAYED, ready; return how many.

        Never more than SLICE: ask again for the rest.
        """
        first = tube.first_buried if state == BURIED else tube.delayed.first
        for kicked in range(min(bound, SLICE)):
            job = first()
            if job is None:
                return kicked
            self._kick(job, now)
        return min(bound, SLICE)

    def kick_job(self, id: int, now: int) -> bool:
        """Make the buried or delayed job *id* ready; False if there is none such."""
        job = self.jobs.get(id)
        if job is None or job.state not in (BURIED, DELAYED):
            return False
        self._kick(job, now)
        return True

    def bury_job(self, id: int, now: int, is_forced: bool = False) -> bool:
        """Bury the ready or delayed job *id*, or, if *is_forced*, a reserved one; False if there is none such."""
        job = self.jobs.get(id)
        if job is None or job.state == BURIED or (job.state == RESERVED and not is_forced):
            return False
        if job.state == RESERVED:
            self._end_run(job, job_history.BURIED, job_history.NOBODY, now)
        else:
            job.tube.remove(job)
            job.events = job_history.add(job.events, job_history.BURIED, now, job_history.NOBODY)
        self._bury(job)
        return True

    def release_job(self, id: int, now: int) -> bool:
        """Take the reserved job *id* from whoever holds it, and make it ready; False if there is none such."""
        job = self.jobs.get(id)
        if job is None or job.state != RESERVED:
            return False
        self._release(job, job.pri, 0, job_history.NOBODY, now)
        return True

    def delete_job(self, id: int, now: int, is_forced: bool = False) -> bool:
        """Remove the job *id* for good; a reserved one only if *is_forced*. False if there is none such."""
        job = self.jobs.get(id)
        return job is not None and self.delete(job.holder if is_forced else None, id, now)

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
        is_forced: bool = False,
    ) -> int:
        """Change what is given of job *id*, all at once; its id, its age and its counts stay.

        *tube* moves it, in its state. *delay* has a ready or delayed job turn ready so many nanoseconds from now, and
        does nothing to others. A reserved job is changed only if *is_forced*: its client keeps it, with the body it got
        and the deadline it has. Return DONE; or NOT_FOUND, HELD, NO_ROOM if the journal has none, or UNREAD if its body
        is on disk, and has to be given (see Bodies.look): then nothing has changed.
        """
        old = self.jobs.get(id)
        if old is None:
            return NOT_FOUND
        if old.state == RESERVED and not is_forced:
            return HELD
        if body is None:
            body = old.body
        if body is None:
            return UNREAD
        target = old.tube if tube is None else self.tube(tube)
        new = old.twin(target, body)
        new.pri = old.pri if pri is None else pri
        new.ttr = old.ttr if ttr is None else ttr
        self._set_delay(new, delay, now)
        is_move = target is not old.tube
        if is_move and new.state == BURIED:
            self._burials += 1
            new.deadline = self._burials
        new.events = job_history.add(
            new.events, job_history.MOVED if is_move else job_history.EDITED, now, job_history.NOBODY
        )
        if not self.journal.replace(old, new):
            self._drop_if_unneeded(target)
            return NO_ROOM
        self._put_in_place(old, new, now)
        self._drop_if_unneeded(old.tube)
        return DONE

    def put_into(self, name: bytes, pri: int, delay: int, ttr: int, body: bytes, now: int) -> int:
        """Add a job, as `put` does, to the tube *name*; return its id, or the Refusal, which is negative."""
        client = Client(self._default, _nobody)
        refusal = self._refuse_tube(name, client)
        if refusal:
            return refusal
        client.used, id = self.tube(name), self.allocate_id()
        result = self.put(client, id, pri, delay, ttr, body, now)
        if result < 0:
            self._drop_if_unneeded(client.used)
        return result

    def clear(self, tube: Tube, state: int, bound: int, below: int, now: int) -> int:
        """Delete up to *bound* of the tube's jobs in *state*, READY, DELAYED or BURIED; return how many.

        Only such with ids under *below*: with the `next_id` of the beginning, none that was put since. Never more
        than SLICE: ask again for the rest. It gives up, and returns 0, when too many newer jobs stand before them.
        """
        first = islice(tube.walk(state), SKIP_AT_MOST)
        doomed = list(islice((job.id for job in first if job.id < below), min(bound, SLICE)))
        for id in doomed:
            self.delete(None, id, now)
        return len(doomed)

    def pause_tube(self, name: bytes, delay: int, now: int) -> bool:
        """Let no job of the tube *name* be reserved for *delay* nanoseconds; 0 ends a pause. False if no such tube."""
        tube = self.tubes.get(name)
        if tube is None:
            return False
        tube.cmd_pause_tube += 1
        tube.pause = delay
        tube.paused_until = now + delay if delay else 0
        self.journal.pause(tube)
        if delay:
            self._arm(tube, tube.paused_until)
        else:
            self._hand_out(tube, now)
        return True

    def drain(self) -> None:
        """Refuse puts from now on."""
        self.is_draining = True

    def stop(self) -> None:
        """Keep jobs reserved from now on when their clients disconnect.

        The next start returns them as after a crash, so both show the same: a job that reserve-job took while it was
        buried or delayed is so again.
        """
        self.is_stopping = True

    # Time

    def tick(self, now: int) -> int | None:
        """Do what has fallen due by *now*, a slice of it; return when to tick next, or None for never.

        What it returns lies at or before *now* if some is left to do: the caller sees to others first.
        """
        for _ in range(SLICE):
            target = self._timers.pop_due(now)
            if target is None:
                break
            if isinstance(target, Tube):
                self._tube_due(target, now)
            elif isinstance(target, Client):
                self._client_due(target, now)
        return self._timers.soonest()

    def _tube_due(self, tube: Tube, now: int) -> None:
        if tube.paused_until <= now:
            tube.pause = tube.paused_until = 0
            self._hand_out(tube, now)
            self._drop_if_unneeded(tube)
        job = tube.delayed.first()
        if job is not None and job.deadline <= now:
            tube.remove(job)
            job.deadline = now
            self._add_ready(job, now)
            job = tube.delayed.first()
        if job is not None:
            self._arm(tube, job.deadline)
        if tube.paused_until:
            self._arm(tube, tube.paused_until)

    def _client_due(self, client: Client, now: int) -> None:
        if client.is_closed:
            self._part(client, 1, now)
            return
        job = client.soonest()
        if client.is_waiting and job is not None and job.deadline - SAFETY_MARGIN <= now:
            self._end_wait(client, DEADLINE_SOON)
        elif client.is_waiting and client.wait_until is not None and client.wait_until <= now:
            self._end_wait(client, TIMED_OUT)
        elif job is not None and job.deadline <= now:
            self._remove_reserved(job)
            self._note_reservation(job, job_history.TIMED_OUT, client.number, job.deadline)
            job.deadline = now
            job.timeouts += 1
            job.tube.total_timeouts += 1
            self.counters.job_timeouts += 1
            for listener in self._listeners:
                listener.on_reservation_timeout(client, job)
            self.journal.lapse(job)
            self._add_ready(job, now)
            job = client.soonest()
        if job is not None:
            self._arm(client, job.deadline - SAFETY_MARGIN if client.is_waiting else job.deadline)
        if client.is_waiting and client.wait_until is not None:
            self._arm(client, client.wait_until)

    # Where a job is

    def _add_ready(self, job: Job, now: int) -> None:
        tube = job.tube
        waiter = tube.first_waiter() if (tube.waiters or tube.watches) and tube.paused_until <= now else None
        if waiter is None:
            tube.add_ready(job)
        elif tube.ready.count:  # a pause has ended, and no tick has come yet or a slice was not enough
            tube.add_ready(job)
            self._hand_out(tube, now)
        else:
            self._grant(job, waiter, now)

    def _add_delayed(self, job: Job) -> None:
        job.tube.add_delayed(job)
        self._arm(job.tube, job.deadline)

    def _add_reserved(self, job: Job, client: Client, now: int) -> None:
        """Have *client* hold *job*, which is nowhere, and has waited since its deadline."""
        tube = job.tube
        wait = now - job.deadline
        length = wait.bit_length()
        tube.wait_time += wait
        tube.waits[length] = tube.waits.get(length, 0) + 1
        tube.total_reserves += 1
        tube.reserved_count += 1
        self.totals.reserved += 1
        if self.bodies is not None:
            self.bodies.reserved(job)
        job.state = RESERVED
        job.holder = client
        job.reserves += 1
        job.reserved_at = now
        job.deadline = now + job.ttr
        client.hold(job)
        if not 0 < client.timer_at <= job.deadline:
            self._arm(client, job.deadline)
        self.journal.reserve(job)

    def _remove_reserved(self, job: Job) -> None:
        assert job.holder is not None
        del job.holder.reserved[job.id]
        job.holder = None
        job.tube.reserved_count -= 1
        self.totals.reserved -= 1

    def _end_run(self, job: Job, kind: int, by: int, now: int) -> None:
        """Take the reserved *job* from its holder, for what *kind* says; it is nowhere then."""
        assert job.holder is not None
        holder, tube = job.holder.number, job.tube
        self._remove_reserved(job)
        run = now - job.reserved_at
        length = run.bit_length()
        tube.run_time += run
        tube.runs[length] = tube.runs.get(length, 0) + 1
        job.events = job_history.add(job.events, job_history.RESERVED, job.reserved_at, holder)
        job.events = job_history.add(job.events, kind, now, by)
        job.former_state = job.former_deadline = 0

    def _note_reservation(self, job: Job, kind: int, client: int, now: int) -> None:
        """Note a reservation that has ended without its client's doing."""
        job.events = job_history.add(job.events, job_history.RESERVED, job.reserved_at, client)
        job.events = job_history.add(job.events, kind, now, client)
        job.former_state = job.former_deadline = 0

    def _release(self, job: Job, pri: int, delay: int, by: int, now: int) -> None:
        self._end_run(job, job_history.RELEASED, by, now)
        job.tube.total_releases += 1
        job.pri = pri
        job.delay = delay
        job.releases += 1
        job.deadline = now + delay
        job.state = DELAYED if delay else READY
        self.journal.update(job)
        if delay:
            self._add_delayed(job)
        else:
            self._add_ready(job, now)

    def _kick(self, job: Job, now: int) -> None:
        job.tube.remove(job)
        job.tube.total_kicks += 1
        job.kicks += 1
        job.deadline = now
        job.events = job_history.add(job.events, job_history.KICKED, now, job_history.NOBODY)
        job.state = READY
        self.journal.update(job)
        self._add_ready(job, now)

    def _bury(self, job: Job) -> None:
        """Bury *job*, which is nowhere."""
        job.tube.total_buries += 1
        job.buries += 1
        self._burials += 1
        job.deadline = self._burials
        job.tube.add_buried(job)
        self.journal.update(job)

    def _part(self, client: Client, limit: int, now: int) -> None:
        """Requeue up to *limit* jobs that the closed *client* held, and end up to *limit* of its watches.

        While the server stops, the client keeps both.
        """
        if self.is_stopping:
            self._leaving[client] = None
            return
        for job in list(islice(client.reserved.values(), limit)):
            self._remove_reserved(job)
            self._note_reservation(job, job_history.RETURNED, client.number, now)
            job.deadline = now
            self.journal.lapse(job)
            self._add_ready(job, now)
        for tube in list(islice(client.watched.values(), limit)):
            del client.watched[tube.name]
            tube.watching -= 1
            self._drop_if_unneeded(tube)
        if client.reserved or client.watched:
            self._leaving[client] = None
            self._arm(client, now)
        else:
            self._leaving.pop(client, None)
            self._timers.disarm(client)

    def _set_delay(self, job: Job, delay: int | None, now: int) -> None:
        """Have *job*, which is nowhere, turn ready *delay* from *now* if it is to be ready or delayed."""
        if delay is not None and job.state in (READY, DELAYED):
            job.delay = delay
            job.state = DELAYED if delay else READY
            job.deadline = now + delay
        elif job.state == READY:
            job.deadline = now  # it goes behind all that arrived before

    def _put_in_place(self, old: Job, new: Job, now: int) -> None:
        """Have *new* stand where *old* did, or where its own state, tube and rank say."""
        self.jobs.set(new)
        if self.bodies is not None:
            self.bodies.went(old)
            self.bodies.came(new)
        old.tube.body_bytes -= old.size
        new.tube.body_bytes += new.size
        if self.quotas is not None:
            self.quotas.body_bytes += new.size - old.size
        if new.holder is not None:
            old.holder = None
            new.holder.reserved[new.id] = new
            old.tube.reserved_count -= 1
            new.tube.reserved_count += 1
        elif new.state == BURIED and new.tube is old.tube:
            new.tube.buried[new.id] = new
        else:
            old.tube.remove(old)
            if new.state == READY:
                self._add_ready(new, now)
            elif new.state == DELAYED:
                self._add_delayed(new)
            else:
                new.tube.add_buried(new)

    # Waiting

    def _hand_out(self, tube: Tube, now: int) -> None:
        """Give ready jobs of *tube*, which is not paused, to the clients that wait for them, longest first.

        A slice of them, and the rest at the next ticks.
        """
        for _ in range(SLICE):
            waiter, job = tube.first_waiter(), tube.ready.first()
            if waiter is None or job is None:
                return
            tube.remove_ready(job)
            self._grant(job, waiter, now)
        self._arm(tube, now)

    def _grant(self, job: Job, client: Client, now: int) -> None:
        """End the wait of *client* with *job*, which is nowhere."""
        self._add_reserved(job, client, now)
        self._end_wait(client, job)

    def _end_wait(self, client: Client, outcome: Job | int) -> None:
        self.cancel_wait(client)
        client.outcome = outcome
        client.wake()

    def _arm(self, target: Client | Tube, when: int) -> None:
        if self._timers.arm(target, when):
            for listener in self._listeners:
                listener.on_alarm(when)

    # Tubes

    def _begin_watch(self, client: Client) -> bool:
        """Have *client*, which watches many tubes, share a watch of them; False if there are too many watches."""
        tubes = frozenset(client.watched.values())
        watch = self.watches.get(tubes)
        if watch is None:
            if len(self.watches) >= AT_MOST:
                return False
            watch = self.watches[tubes] = Watch(tubes)
        watch.users += 1
        client.watch = watch
        return True

    def _end_watch(self, client: Client) -> None:
        """Note that *client* watches other tubes from now on."""
        watch, client.watch = client.watch, None
        if watch is not None:
            watch.users -= 1
            if not watch.users:
                watch.close()
                del self.watches[watch.tubes]

    def tube(self, name: bytes) -> Tube:
        """The tube *name*, created if need be; the caller sees to it that it is needed."""
        tube = self.tubes.get(name)
        if tube is None:
            tube = self.tubes[name] = Tube(name, self.jobs, self.totals)
            self._names = None
        return tube

    def name_list(self) -> NameList:
        """The names of all tubes, in the order of creation; the same list until a tube comes or goes."""
        if self._names is None:
            self._names = NameList(self.tubes, self.listed_names)
        return self._names

    def _refuse_tube(self, name: bytes, client: Client) -> int:
        """Return 0 if the tube *name* exists or may be created for *client*; else count and return the Refusal."""
        if name in self.tubes or self.quotas is None:
            return 0
        refusal = self.quotas.refuse_tube(len(self.tubes))
        return self._refuse(refusal, client, name) if refusal else 0

    def _refuse_watch(self, name: bytes, client: Client) -> int:
        """Return 0 if *client* may watch the tube *name* too; else count and return the Refusal."""
        if self.max_watched and len(client.watched) >= self.max_watched:
            return self._refuse(Refusal.WATCHED, client, name)
        return self._refuse_tube(name, client)

    def _refuse(self, refusal: int, client: Client, tube: bytes) -> int:
        """Count that a limit was hit by *client*'s request for *tube*; return *refusal*."""
        self.limit_counters.note(LIMIT_NAMES[refusal], client.address, tube.decode(errors="replace"))
        return refusal

    def _drop_if_unneeded(self, tube: Tube) -> None:
        if tube.is_unneeded() and tube is not self._default and self.tubes.get(tube.name) is tube:
            del self.tubes[tube.name]
            self._names = None
            for listener in self._listeners:
                listener.on_tube_dropped(tube)
            self._timers.disarm(tube)
            if tube.paused_until:
                tube.pause = tube.paused_until = 0
                self.journal.pause(tube)

    # Proof

    def check(self) -> None:
        """Assert every invariant of the module's docstring. O(everything): for tests."""
        places: dict[int, int] = {}
        for tube in self.tubes.values():
            self._check_tube(tube, places)
        for job in self.jobs.values():
            if job.state == RESERVED:
                places[job.id] = places.get(job.id, 0) + 1
                assert job.key == NO_KEY and job.holder is not None and job.holder.reserved[job.id] is job
                assert job.former_state in (0, BURIED, DELAYED)
                timer_at = job.holder.timer_at  # of one that has gone, when the next of what it held is given back
                is_left_to_next_start = self.is_stopping and job.holder.is_closed
                assert is_left_to_next_start or (timer_at > 0 and (timer_at <= job.deadline or job.holder.is_closed))
        assert places == dict.fromkeys(self.jobs, 1)
        assert self.totals.urgent == sum(tube.urgent_count for tube in self.tubes.values())
        assert self.totals.reserved == sum(job.state == RESERVED for job in self.jobs.values())
        assert self.totals.delayed == sum(job.state == DELAYED for job in self.jobs.values())
        assert self.totals.buried == sum(job.state == BURIED for job in self.jobs.values())
        body_bytes = dict.fromkeys(self.tubes.values(), 0)
        for job in self.jobs.values():
            body_bytes[job.tube] += job.size
        assert all(tube.body_bytes == size for tube, size in body_bytes.items())
        assert self.quotas is None or self.quotas.body_bytes == sum(body_bytes.values())
        if self.bodies is not None:
            assert self.bodies.jobs == len(self.jobs)
            assert self.bodies.held == sum(job.body is not None for job in self.jobs.values())
            assert self.bodies.in_memory == sum(job.size for job in self.jobs.values() if job.body is not None)
            assert self.bodies.on_disk == sum(job.size for job in self.jobs.values() if job.body is None)
        assert all(0 < id < self.next_id <= MAX_ID and job.id == id for id, job in self.jobs.items())
        for tubes, watch in self.watches.items():
            users = [client for client in self.clients if client.watch is watch]
            assert watch.users == len(users) and tubes == watch.tubes
            assert set(watch.waiters) == {client for client in users if client.is_waiting}
            watch.check()
        for client in self.clients:
            assert client.watch is None or client.watch.tubes == set(client.watched.values())
            assert all(self.jobs[id] is job and job.holder is client for id, job in client.reserved.items())
            self._check_client(client)
        assert self.producer_count == sum(client.is_producer for client in self.clients)
        assert self.worker_count == sum(client.is_worker for client in self.clients)
        assert self.waiting_count == sum(client.is_waiting for client in self.clients)
        assert len(self.parted) <= PARTED_AT_MOST
        assert all(len(job.events) in job_history.SIZES for job in self.jobs.values())

    def _check_tube(self, tube: Tube, places: dict[int, int]) -> None:
        assert self.tubes[tube.name] is tube
        assert tube is self._default or not tube.is_unneeded() or tube.paused_until
        ready, delayed, buried = list(tube.ready.walk()), list(tube.delayed.walk()), list(tube.buried.values())
        for state, jobs in ((READY, ready), (DELAYED, delayed), (BURIED, buried)):
            for job in jobs:
                assert job.state == state and job.tube is tube and job.holder is None and not job.former_state
                assert (job.key == NO_KEY) == (state == BURIED)
                places[job.id] = places.get(job.id, 0) + 1
        assert [(job.pri, job.id) for job in ready] == sorted((job.pri, job.id) for job in ready)
        assert [(job.deadline, job.id) for job in delayed] == sorted((job.deadline, job.id) for job in delayed)
        tube.ready.check(ready)
        tube.delayed.check(delayed)
        assert tube.urgent_count == sum(job.pri < URGENT_BELOW for job in ready)
        clients = list(self.clients)
        assert tube.reserved_count == sum(job.tube is tube and job.state == RESERVED for job in self.jobs.values())
        assert tube.using == sum(client.used is tube for client in clients)
        assert tube.watching == sum(tube.name in client.watched for client in [*clients, *self._leaving])
        assert tube.total_reserves == sum(tube.waits.values())
        waiting = [client for client in clients if client.is_waiting and tube.name in client.watched]
        assert set(tube.waiters) == {client for client in waiting if client.watch is None}
        assert tube.waiting_count == len(waiting)
        assert tube.first_waiter() is min(waiting, key=lambda client: client.wait_number, default=None)
        assert not (waiting and ready) or tube.paused_until or tube.timer_at
        if delayed:
            assert 0 < tube.timer_at <= delayed[0].deadline
        if tube.paused_until:
            assert 0 < tube.timer_at <= tube.paused_until

    def _check_client(self, client: Client) -> None:
        assert client.watched and self.tubes[client.used.name] is client.used
        assert all(self.tubes[name] is tube for name, tube in client.watched.items())
        if client.is_waiting:
            assert client.outcome is None
            if client.wait_until is not None:
                assert 0 < client.timer_at <= client.wait_until
            if client.reserved:
                soonest = min(job.deadline for job in client.reserved.values())
                assert 0 < client.timer_at <= soonest - SAFETY_MARGIN
