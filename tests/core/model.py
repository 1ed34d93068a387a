"""A slow, plain model of the broker, for comparison.

It has no heaps, timers or queues. A job has its state, and each query examines all jobs and all clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

SECOND = 1_000_000_000
DEFAULT = "default"


class Tie(Exception):
    """Two events are due at the same time, and their order is undefined."""


@dataclass
class ModelJob:
    """A job.

    since        when the job became ready.
    arrival      sequence number among the jobs that became ready.
    buried_as    sequence number among the burials.
    events       history: time, kind, and number of the client.
    """

    id: int
    tube: str
    pri: int
    delay: int
    ttr: int
    state: str = "ready"
    deadline: int = 0
    buried_as: int = 0
    reserves: int = 0
    timeouts: int = 0
    releases: int = 0
    buries: int = 0
    kicks: int = 0
    since: int = 0
    arrival: int = 0
    reserved_at: int = 0
    is_truncated: bool = False
    events: list[tuple[int, str, int]] = field(default_factory=list)


@dataclass
class ModelTube:
    """Counters of a tube since its creation, and all wait and run times in nanoseconds."""

    counts: Counter[str] = field(default_factory=Counter)
    queue_times: list[int] = field(default_factory=list)
    processing_times: list[int] = field(default_factory=list)


@dataclass
class ModelClient:
    """A client. `reserved` is in the order of reservation; `until` is the end of a wait, None without a timeout."""

    used: str = DEFAULT
    watched: list[str] = field(default_factory=lambda: [DEFAULT])
    reserved: list[ModelJob] = field(default_factory=list)
    until: int | None = None
    ended: list[int | str] = field(default_factory=list)
    mode: str = "fifo"
    weights: dict[str, int] = field(default_factory=dict)


@dataclass
class Event:
    """An event that is due at a time. Events of the same time and group may have an order, that of `rank`."""

    at: int
    group: tuple[str, str]
    process: Callable[[], None] = field(repr=False)
    rank: tuple[int, int] = (0, 0)


class Model:
    """The state of a queue.

    clients   by the test's own numbers.
    waiting   numbers of the waiting clients, the longest wait first.
    job_waits ids of the jobs that clients wait for, by the number of the client.
    paused    ends of pauses, by tube.
    random    the number in [0, 1) that weighted reserves use at a given time: `point`.
    """

    def __init__(self, now: int) -> None:
        self.now = now
        self.jobs: dict[int, ModelJob] = {}
        self.clients: dict[int, ModelClient] = {}
        self.waiting: list[int] = []
        self.job_waits: dict[int, int] = {}
        self.paused: dict[str, int] = {}
        self.counted: dict[str, ModelTube] = {}
        self.burials = 0
        self.arrivals = 0
        self.total_jobs = 0
        self.job_timeouts = 0
        self.point = 0.5
        self.random: Callable[[int], float] = lambda now: self.point

    # Queries

    def tubes(self) -> set[str]:
        """Return the existing tubes: those that are used, are watched, have jobs or are paused."""
        clients = self.clients.values()
        used = {client.used for client in clients}
        watched = {name for client in clients for name in client.watched}
        return {DEFAULT} | used | watched | {job.tube for job in self.jobs.values()} | set(self.paused)

    def ready(self, tube: str) -> list[ModelJob]:
        return sorted(self._jobs(tube, "ready"), key=lambda job: (job.pri, job.id))

    def delayed(self, tube: str) -> list[ModelJob]:
        return sorted(self._jobs(tube, "delayed"), key=lambda job: (job.deadline, job.id))

    def buried(self, tube: str) -> list[ModelJob]:
        return sorted(self._jobs(tube, "buried"), key=lambda job: job.buried_as)

    def reserved(self, tube: str) -> list[ModelJob]:
        return self._jobs(tube, "reserved")

    def next_for(self, client: ModelClient) -> ModelJob | None:
        """Return the job that a reserve of *client* gets, or None."""
        if client.mode != "fifo":
            return self._next_by_weight(client)
        ready = [job for name in client.watched if not self.is_held(name) for job in self.runnable(name)]
        return min(ready, key=lambda job: (job.pri, job.id), default=None)

    def runnable(self, tube: str) -> list[ModelJob]:
        """Return the ready jobs of *tube* that a reserve may get, in order."""
        return self.ready(tube)

    def _next_by_weight(self, client: ModelClient) -> ModelJob | None:
        tubes = [name for name in client.watched if not self.is_held(name) and self.runnable(name)]
        first = {name: self.runnable(name)[0] for name in tubes}
        shares = {name: float(client.weights.get(name, 1)) for name in first}
        if client.mode == "weighted-fair":
            known = {
                name: float(max(self.average_processing_time(name), 10**6))
                for name in first
                if self.counts(name).processing_times
            }
            usual = sum(known.values()) / len(known) if known else 1.0
            times = {name: known.get(name, usual) for name in first}
            shares = {name: shares[name] / min(times[name], 1000 * min(times.values())) for name in first}
        left = self.random(self.now) * sum(shares.values())
        for name, share in shares.items():
            left -= share
            if left < 0:
                return first[name]
        return next(reversed(first.values()), None)

    def is_held(self, tube: str) -> bool:
        """Whether reserves get no job of *tube*."""
        return tube in self.paused

    def average_processing_time(self, tube: str) -> int:
        times = self.counts(tube).processing_times
        average = times[0]
        for time in times:
            average += (time - average) // 10
        return average

    def oldest_ready(self, tube: str) -> ModelJob | None:
        return min(self._jobs(tube, "ready"), key=lambda job: job.arrival, default=None)

    def counts(self, tube: str) -> ModelTube:
        return self.counted.setdefault(tube, ModelTube())

    def seconds_to(self, time: int) -> int:
        """Return the seconds left until *time*, rounded down; exactly n seconds count as n - 1."""
        return max(0, time - self.now - 1) // SECOND

    def _jobs(self, tube: str, state: str) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.tube == tube and job.state == state]

    # Commands

    def connect(self, number: int) -> None:
        self.clients[number] = ModelClient()

    def disconnect(self, number: int) -> None:
        self.cancel_wait(number)
        client = self.clients.pop(number)
        for job in list(client.reserved):
            self._note_end(job, number, "returned", number)
            self._lapse(job)
        self._drop_unused_tubes()

    def use(self, number: int, tube: str) -> None:
        self.clients[number].used = tube
        self._drop_unused_tubes()

    def watch(self, number: int, tube: str, weight: int = 1) -> int:
        watched = self.clients[number].watched
        if tube not in watched:
            watched.append(tube)
        self.clients[number].weights[tube] = weight
        return len(watched)

    def ignore(self, number: int, tube: str) -> int:
        """Return the number of watched tubes; 0 if the ignore is refused."""
        watched = self.clients[number].watched
        if watched == [tube]:
            return 0
        if tube in watched:
            watched.remove(tube)
            self.clients[number].weights.pop(tube, None)
        self._drop_unused_tubes()
        return len(watched)

    def put(self, number: int, id: int, pri: int, delay: int, ttr: int, tube: str = "") -> None:
        job = self.jobs[id] = ModelJob(id, tube or self.clients[number].used, pri, delay, ttr)
        self.total_jobs += 1
        self.counts(job.tube).counts["total_jobs"] += 1
        self._make_ready_or_delayed(job)

    def reserve(self, number: int, timeout: int | None) -> int | str:
        """Return the outcome: an id or a word, as in World."""
        client = self.clients[number]
        job = self.next_for(client)
        if job is not None:
            self._give(client, job)
            return job.id
        if any(job.deadline - SECOND <= self.now for job in client.reserved):
            return "DEADLINE_SOON"
        if timeout == 0:
            return "TIMED_OUT"
        client.until = None if timeout is None else self.now + timeout
        self.waiting.append(number)
        return "WAITING"

    def wait_for_job(self, number: int, id: int, timeout: int | None) -> str:
        job = self.jobs.get(id)
        if job is None or job.state == "buried" or timeout == 0:
            return "NOT_FOUND" if job is None else "BURIED" if job.state == "buried" else "TIMED_OUT"
        self.clients[number].until = None if timeout is None else self.now + timeout
        self.job_waits[number] = id
        return "WAITING"

    def cancel_wait(self, number: int) -> None:
        self.job_waits.pop(number, None)
        if number in self.waiting:
            self.waiting.remove(number)

    def reserve_job(self, number: int, id: int) -> bool:
        job = self.jobs.get(id)
        if job is None or job.state == "reserved":
            return False
        if job.state != "ready":
            job.since = self.now
        self._give(self.clients[number], job)
        return True

    def delete(self, number: int, id: int) -> bool:
        job = self.jobs.get(id)
        if job is None or (job.state == "reserved" and job not in self.clients[number].reserved):
            return False
        self._delete(job)
        return True

    def _delete(self, job: ModelJob) -> None:
        if job.state == "reserved":
            self._end_run(job)
        self._end_job_waits("DELETED", id=job.id)
        self.counts(job.tube).counts["cmd_delete"] += 1
        del self.jobs[job.id]
        self._drop_unused_tubes()

    def _lapse(self, job: ModelJob) -> None:
        """Make *job*, whose reservation has ended without a command, ready, or delete it."""
        if job.is_truncated:
            job.state = ""
            self._delete(job)
        else:
            self._make_ready(job)

    def truncate(self, tube: str) -> int | None:
        """Return the number of deleted jobs, or None if there is no such tube."""
        if tube not in self.tubes():
            return None
        doomed = [job for job in self.jobs.values() if job.tube == tube and job.state != "reserved"]
        for job in self.reserved(tube):
            if not job.is_truncated:
                self._note(job, "edited", 0)
            job.is_truncated = True
        for job in doomed:
            self._delete(job)
        return len(doomed)

    def release(self, number: int, id: int, pri: int, delay: int) -> bool:
        job = self.jobs.get(id)
        if job is None or job not in self.clients[number].reserved:
            return False
        self._release(job, pri, delay, number)
        return True

    def _release(self, job: ModelJob, pri: int, delay: int, by: int) -> None:
        if job.is_truncated:
            self._delete(job)
            return
        self._note_end(job, self._end_run(job), "released", by)
        job.pri, job.delay = pri, delay
        job.releases += 1
        self.counts(job.tube).counts["total_releases"] += 1
        self._requeue(job)

    def _requeue(self, job: ModelJob) -> None:
        """Decide where *job*, which was released, goes."""
        self._make_ready_or_delayed(job)

    def bury(self, number: int, id: int, pri: int) -> bool:
        job = self.jobs.get(id)
        if job is None or job not in self.clients[number].reserved:
            return False
        job.pri = pri
        self._bury(job, number)
        return True

    def _bury(self, job: ModelJob, by: int) -> None:
        if job.is_truncated:
            self._delete(job)
            return
        if job.state == "reserved":
            self._note_end(job, self._end_run(job), "buried", by)
        else:
            self._note(job, "buried", by)
        self._end_job_waits("BURIED", id=job.id)
        self.burials += 1
        job.state, job.buried_as = "buried", self.burials
        job.buries += 1
        self.counts(job.tube).counts["total_buries"] += 1

    def touch(self, number: int, id: int) -> bool:
        job = self.jobs.get(id)
        if job is None or job not in self.clients[number].reserved:
            return False
        job.deadline = self.now + job.ttr
        return True

    def kick(self, number: int, state: str, bound: int) -> int:
        tube = self.clients[number].used
        jobs = (self.buried if state == "buried" else self.delayed)(tube)[:bound]
        for job in jobs:
            self._kick(job)
        return len(jobs)

    def kick_job(self, id: int) -> bool:
        job = self.jobs.get(id)
        if job is None or job.state not in ("buried", "delayed"):
            return False
        self._kick(job)
        return True

    def reprioritize(self, id: int, pri: int) -> str:
        job = self.jobs.get(id)
        if job is None or job.state == "reserved":
            return "NOT_FOUND" if job is None else "RESERVED"
        self._note(job, "edited", 0)
        job.pri = pri
        if job.state == "ready":
            self._make_ready(job)
        return "DONE"

    def pause_tube(self, tube: str, delay: int) -> bool:
        if tube not in self.tubes():
            return False
        self.paused.pop(tube, None)
        if delay:
            self.paused[tube] = self.now + delay
        self._serve_waiting_clients()
        self._drop_unused_tubes()
        return True

    # Operators

    def bury_job(self, id: int, is_forced: bool) -> bool:
        job = self.jobs.get(id)
        if job is None or job.state == "buried" or (job.state == "reserved" and not is_forced):
            return False
        self._bury(job, 0)
        return True

    def release_job(self, id: int) -> bool:
        job = self.jobs.get(id)
        if job is None or job.state != "reserved":
            return False
        self._release(job, job.pri, 0, 0)
        return True

    def delete_job(self, id: int, is_forced: bool) -> bool:
        job = self.jobs.get(id)
        if job is None or (job.state == "reserved" and not is_forced):
            return False
        self._delete(job)
        return True

    def undelete(self, deleted: ModelJob) -> bool:
        """Let a deleted job return; *deleted* is a copy from before the deletion."""
        if deleted.id in self.jobs:
            return False
        job = replace(deleted, is_truncated=False)
        self.jobs = dict(sorted({**self.jobs, job.id: job}.items()))
        self.total_jobs += 1
        self.counts(job.tube).counts["total_jobs"] += 1
        if job.state == "buried":
            self.burials += 1
            job.buried_as = self.burials
        elif job.state != "delayed" or job.deadline <= self.now:
            job.state = "ready"
            self._make_ready(job)
        return True

    def revert(self, before: ModelJob, after: ModelJob) -> bool:
        """Undo the change of a job; *before* and *after* are copies from before and after it."""
        job = self.jobs.get(after.id)
        if job is None or job.state == "reserved" or not _is_as_left(job, after):
            return False
        was_buried, tube = job.state == "buried", job.tube
        kept = {"since": job.since, "arrival": job.arrival, "buried_as": job.buried_as, "reserved_at": job.reserved_at}
        vars(job).update(vars(before) | kept | {"events": list(before.events), "is_truncated": False})
        if job.state == "buried":
            if not was_buried:
                self._end_job_waits("BURIED", id=job.id)
            if not was_buried or job.tube != tube:
                self.burials += 1
                job.buried_as = self.burials
        elif job.state != "delayed" or job.deadline <= self.now:
            job.state = "ready"
            self._make_ready(job)
        return True

    def edit_job(
        self,
        id: int,
        tube: str | None,
        pri: int | None,
        delay: int | None,
        ttr: int | None,
        is_forced: bool,
    ) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "NOT_FOUND"
        if job.state == "reserved" and not is_forced:
            return "RESERVED"
        is_move = tube is not None and tube != job.tube
        self._note(job, "moved" if is_move else "edited", 0)
        job.is_truncated = job.is_truncated and not is_move
        job.tube = job.tube if tube is None else tube
        job.pri = job.pri if pri is None else pri
        job.ttr = job.ttr if ttr is None else ttr
        if job.state == "buried" and is_move:
            self.burials += 1
            job.buried_as = self.burials
        if job.state in ("ready", "delayed") and delay is not None:
            job.delay = delay
            self._make_ready_or_delayed(job)
        elif job.state == "ready":
            self._make_ready(job)
        self._drop_unused_tubes()
        return "DONE"

    # Time

    def advance_to(self, until: int) -> None:
        """Process all due events up to *until* in the order of time; raise Tie if two have the same time."""
        while True:
            due = sorted(self.events(), key=lambda event: (event.at, event.rank))
            if not due or due[0].at > until:
                break
            if not self.have_order([event for event in due if event.at == due[0].at]):
                raise Tie
            self.now = due[0].at
            due[0].process()
            self._drop_unused_tubes()
        self.now = until

    def have_order(self, events: list[Event]) -> bool:
        """Whether the order of *events*, which are due at the same time, is defined."""
        return len(events) == 1

    def events(self) -> Iterator[Event]:
        """Generate all future events."""
        for number in self.job_waits:
            until = self.clients[number].until
            if until is not None:
                yield Event(until, _client(number), partial(self._end_job_waits, "TIMED_OUT", number=number))
        for number in self.waiting:
            client = self.clients[number]
            if client.until is not None:
                yield Event(client.until, _client(number), partial(self._end_wait, number, "TIMED_OUT"))
            if client.reserved:
                soonest = min(job.deadline for job in client.reserved)
                yield Event(soonest - SECOND, _client(number), partial(self._end_wait, number, "DEADLINE_SOON"))
        for job in self.jobs.values():
            if job.state == "delayed":
                yield Event(job.deadline, ("delay", job.tube), partial(self._make_ready, job), (0, job.id))
            elif job.state == "reserved":
                yield Event(job.deadline, ("timeout", job.tube), partial(self._time_out, job))
        for tube, end in self.paused.items():
            yield Event(end, ("pause", tube), partial(self._unpause, tube))

    def _end_wait(self, number: int, word: str) -> None:
        self.waiting.remove(number)
        self.clients[number].ended.append(word)

    def _end_job_waits(self, word: str, id: int = 0, number: int = 0) -> None:
        """End the waits for the job *id*, or the wait of the client *number*."""
        for each in [each for each, awaited in self.job_waits.items() if number == each or awaited == id]:
            del self.job_waits[each]
            self.clients[each].ended.append(word)

    def _time_out(self, job: ModelJob) -> None:
        job.timeouts += 1
        self.job_timeouts += 1
        self.counts(job.tube).counts["total_timeouts"] += 1
        holder = self._remove_holder(job)
        self._note_end(job, holder, "timed out", holder)
        self._lapse(job)

    def _unpause(self, tube: str) -> None:
        del self.paused[tube]
        self._serve_waiting_clients()
        self._drop_unused_tubes()

    # Transitions of jobs

    def _give(self, client: ModelClient, job: ModelJob) -> None:
        job.state, job.deadline, job.reserved_at = "reserved", self.now + job.ttr, self.now
        job.reserves += 1
        client.reserved.append(job)
        tube = self.counts(job.tube)
        tube.counts["total_reserves"] += 1
        tube.queue_times.append(self.now - job.since)

    def _remove_holder(self, job: ModelJob) -> int:
        """Remove *job* from its holder; return the holder's number, or 0 if there is none."""
        for number, client in self.clients.items():
            if job in client.reserved:
                client.reserved.remove(job)
                return number
        return 0

    def _end_run(self, job: ModelJob) -> int:
        """Record the run time of a reservation that a command ends; return the number of its holder."""
        self.counts(job.tube).processing_times.append(self.now - job.reserved_at)
        return self._remove_holder(job)

    def _note(self, job: ModelJob, kind: str, by: int) -> None:
        job.events = [*job.events, (self.now, kind, by)][-16:]

    def _note_end(self, job: ModelJob, holder: int, kind: str, by: int) -> None:
        job.events = [*job.events, (job.reserved_at, "reserved", holder), (self.now, kind, by)][-16:]

    def _make_ready(self, job: ModelJob) -> None:
        self._remove_holder(job)
        self.arrivals += 1
        job.state, job.since, job.arrival = "ready", self.now, self.arrivals
        self._offer(job)

    def _offer(self, job: ModelJob) -> None:
        """Give *job*, which became ready, to a client that waits for it."""
        self._serve_waiting_clients()

    def _make_ready_or_delayed(self, job: ModelJob) -> None:
        if job.delay:
            self._remove_holder(job)
            job.state, job.deadline = "delayed", self.now + job.delay
        else:
            self._make_ready(job)

    def _kick(self, job: ModelJob) -> None:
        job.kicks += 1
        self.counts(job.tube).counts["total_kicks"] += 1
        self._note(job, "kicked", 0)
        self._make_ready(job)

    def _serve_waiting_clients(self) -> None:
        for number in list(self.waiting):
            client = self.clients[number]
            job = self.next_for(client)
            if job is not None:
                self.waiting.remove(number)
                self._give(client, job)
                client.ended.append(job.id)

    def _drop_unused_tubes(self) -> None:
        """Drop the counters of tubes that no longer exist."""
        tubes = self.tubes()
        self.counted = {tube: counted for tube, counted in self.counted.items() if tube in tubes}


def _is_as_left(job: ModelJob, after: ModelJob) -> bool:
    """Return whether *job* is as the change left it, but its delay may be over."""
    names = ("tube", "pri", "delay", "ttr", "reserves", "timeouts", "releases", "buries", "kicks")
    states = (after.state, "ready") if after.state == "delayed" else (after.state,)
    is_same = all(getattr(job, name) == getattr(after, name) for name in names)
    return is_same and job.state in states and job.events[-1:] == after.events[-1:]


def _client(number: int) -> tuple[str, str]:
    return "client", str(number)
