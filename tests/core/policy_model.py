"""The plain model of the broker, with tube policies. It follows their documentation and shares no code with the engine.

Each query examines all jobs and all policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from tests.core.model import SECOND, Event, Model, ModelClient, ModelJob, Tie


@dataclass
class PolicyJob(ModelJob):
    """A job, with the fields that policies need.

    created     when the job was put.
    aged_from   start of the job's age.
    base        value of `reserves` from which attempts are counted.
    dead        of a dead letter: reason, source tube, attempts, first time, last time.
    buried_at   when the job was buried in its present tube.
    """

    body: bytes = b""
    created: int = 0
    aged_from: int = 0
    base: int = 0
    dead: tuple[str, str, int, int, int] | None = None
    buried_at: int = 0


@dataclass
class ModelLimits:
    """Limits of the server; 0 for none."""

    jobs: int = 0
    tube_jobs: int = 0
    tubes: int = 0


class PolicyModel(Model):
    """The state of a queue whose tubes have policies.

    policies    documents by name.
    full_at     time by tube at which a whole burst may start again.
    finished    puts whose jobs are finished, but whose bodies stay unique: by tube and body, ids and end times.
    kept        tubes that are about to get a job, so that no eviction drops them.
    random      the number in [0, 1) that the jitter and weighted reserves use at a given time.
    """

    def __init__(self, now: int, random: Callable[[int], float], limits: ModelLimits) -> None:
        super().__init__(now)
        self.policies: dict[str, dict[str, Any]] = {}
        self.full_at: dict[str, int] = {}
        self.finished: dict[tuple[str, bytes], list[tuple[int, int]]] = {}
        self.random = random
        self.limits = limits
        self.kept: set[str] = set()
        self.jobs: dict[int, PolicyJob] = {}  # type: ignore[assignment]

    # Settings

    def settings(self, tube: str) -> dict[str, Any]:
        """Return the merged settings of *tube*."""
        found = [
            (-policy.get("priority", 0), "*" in pattern, -len(pattern.replace("*", "")), name, policy)
            for name, policy in self.policies.items()
            for pattern in policy["tubes"]
            if fnmatchcase(tube, pattern) and policy.get("dead_letter") != tube
        ]
        merged: dict[str, Any] = {}
        for *_, policy in sorted(found, key=lambda one: one[:4], reverse=True):
            merged |= {key: value for key, value in policy.items() if key not in ("tubes", "priority")}
        return merged

    def time(self, tube: str, key: str) -> int:
        return round(self.settings(tube).get(key, 0) * SECOND)

    def count(self, tube: str, key: str) -> int:
        return int(self.settings(tube).get(key, 0))

    def interval(self, tube: str) -> int:
        rate = self.settings(tube).get("rate", 0)
        return round(SECOND / rate) if rate else 0

    def burst(self, tube: str) -> int:
        rate = self.settings(tube).get("rate", 0)
        return int(self.settings(tube).get("rate_burst", max(1, rate // 10)))

    def dead_letter_tube(self, tube: str) -> str:
        """Return the tube for dead letters; empty if there is none, or if they would return to *tube*."""
        target = str(self.settings(tube).get("dead_letter", ""))
        seen, at = set[str](), target
        while at and at not in seen:
            if at == tube:
                return ""
            seen.add(at)
            at = str(self.settings(at).get("dead_letter", ""))
        return target

    # Queries

    def tubes(self) -> set[str]:
        return super().tubes() | self.kept | {tube for tube, at in self.full_at.items() if at > self.now}

    def next_start(self, tube: str) -> int:
        """Return when the rate of *tube* allows the next start."""
        return self.full_at.get(tube, 0) - (self.burst(tube) - 1) * self.interval(tube) if self.interval(tube) else 0

    def is_held(self, tube: str) -> bool:
        return super().is_held(tube) or self.is_exhausted(tube) or self.next_start(tube) > self.now

    def is_exhausted(self, tube: str) -> bool:
        return 0 < self.count(tube, "max_reserved") <= len(self.reserved(tube))

    def waiting_jobs(self, tube: str) -> list[PolicyJob]:
        """Return the ready and delayed jobs of *tube*, oldest first."""
        jobs = [job for job in self.jobs.values() if job.tube == tube and job.state in ("ready", "delayed")]
        return sorted(jobs, key=lambda job: (job.aged_from, job.id))

    def has_failed(self, job: PolicyJob) -> bool:
        return 0 < self.count(job.tube, "max_attempts") <= job.reserves - job.base

    def holders(self, tube: str, body: bytes) -> set[int]:
        """Return the jobs that a put of *body* into *tube* would duplicate."""
        settings = self.settings(tube)
        if settings.get("unique", "nothing") == "nothing":
            return set()
        unique_for = settings.get("unique_for", "unfinished")
        same = [job for job in self.jobs.values() if job.tube == tube and job.body == body]
        if unique_for == "waiting":
            return {job.id for job in same if job.state in ("ready", "delayed")}
        if unique_for == "unfinished":
            return {job.id for job in same}
        live = {job.id for job in same if self.now < job.created + round(unique_for * SECOND)}
        return live | {id for id, until in self.finished.get((tube, body), []) if self.now < until}

    # Room

    def over(self, tube: str, jobs: int, size: int) -> Callable[[list[PolicyJob]], bool]:
        """Return whether *tube* exceeds its caps with *jobs* more jobs of *size* bytes, and without some of its own."""
        inside = [job for job in self.jobs.values() if job.tube == tube]
        max_jobs, max_bytes = self.count(tube, "max_jobs"), self.count(tube, "max_bytes")

        def is_over(gone: list[PolicyJob]) -> bool:
            left = [job for job in inside if job not in gone]
            total = sum(len(job.body) for job in left)
            return 0 < max_jobs < len(left) + jobs or 0 < max_bytes < total + size

        return is_over

    def victims(self, tube: str, jobs: int, size: int) -> list[PolicyJob] | None:
        """Return the jobs to evict from *tube* before *jobs* more of *size* bytes fit; None if they cannot fit."""
        is_over, gone, waiting = self.over(tube, jobs, size), list[PolicyJob](), self.waiting_jobs(tube)
        overflow = self.settings(tube).get("overflow", "refuse")
        while is_over(gone):
            if overflow == "refuse" or not waiting:
                return None
            gone.append(waiting.pop(0))
        if gone and overflow == "dead-letter-oldest":
            target = self.dead_letter_tube(tube)
            if not target or not self.can_take(target, len(gone), sum(len(job.body) for job in gone)):
                return None
        return gone

    def can_take(self, tube: str, jobs: int, size: int) -> bool:
        """Whether *jobs* jobs of *size* bytes may move to *tube*."""
        if not self.is_tube_allowed(tube):
            return False
        inside = len([job for job in self.jobs.values() if job.tube == tube])
        if 0 < self.limits.tube_jobs < inside + jobs:
            return False
        return self.victims(tube, jobs, size) is not None

    def is_tube_allowed(self, tube: str) -> bool:
        return tube in self.tubes() or not 0 < self.limits.tubes <= len(self.tubes())

    def evict(self, tube: str, jobs: int, size: int) -> None:
        for job in self.victims(tube, jobs, size) or []:
            self.evict_job(job)

    def evict_job(self, job: PolicyJob) -> None:
        if self.settings(job.tube).get("overflow") == "dead-letter-oldest":
            self.dead_letter(job, "overflow")
        else:
            self.counts(job.tube).counts["dropped"] += 1
            self.forget(job)

    # Puts

    def put_body(
        self, tube: str, id: int, pri: int, delay: int, ttr: int, body: bytes, answer: int, is_journal_full: bool
    ) -> int:
        """Put a job; return its id, the id of the first job, or -1 if the put is refused.

        *answer* is the broker's reply: if the put is a duplicate of several jobs, it may be the id of any of them.
        """
        if not self.is_tube_allowed(tube) or self.is_refused_by_limits(tube, 0):
            return -1
        holders = self.holders(tube, body)
        if holders:
            self.counts(tube).counts["duplicates"] += 1
            return self.raise_priority(answer if answer in holders else min(holders), pri)
        group = [(tube, id, self.clamped(tube, ttr))]
        is_full = not self.fits(tube, body)
        targets = [name for name in self.settings(tube).get("copy_to", []) if name != tube]
        new_tubes: set[str] = set()
        refusal = "full" if is_full else ""
        for at, name in enumerate(targets):
            if refusal:
                break
            is_new = name not in self.tubes()
            is_tube_refused = is_new and 0 < self.limits.tubes <= len(self.tubes() | new_tubes | {tube})
            if is_tube_refused or self.is_refused_by_limits(name, len(group)):
                refusal = "limit"
            elif self.holders(name, body):
                self.counts(name).counts["duplicates"] += 1
            elif not self.fits(name, body):
                refusal = "full"
            else:
                new_tubes |= {name} if is_new else set()
                group.append((name, id + 1 + at, self.clamped(name, group[0][2])))
        if refusal or is_journal_full:
            self.counts(tube).counts["refused"] += refusal == "full"
            self._drop_unused_tubes()
            return -1
        self.kept = {name for name, _, _ in group}
        for name, new_id, new_ttr in [*group[1:], group[0]]:
            self.counts(tube).counts["copied"] += name != tube
            self.evict(name, 1, len(body))
            job = self.jobs[new_id] = PolicyJob(new_id, name, pri, delay, new_ttr, body=body)
            job.created = job.aged_from = self.now
            self.total_jobs += 1
            self.counts(name).counts["total_jobs"] += 1
            self._make_ready_or_delayed(job)
        self.kept = set()
        self.jobs = dict(sorted(self.jobs.items()))
        self._drop_unused_tubes()
        return id

    def is_refused_by_limits(self, tube: str, more: int) -> bool:
        inside = len([job for job in self.jobs.values() if job.tube == tube])
        limits = self.limits
        return 0 < limits.jobs <= len(self.jobs) + more or 0 < limits.tube_jobs <= inside

    def fits(self, tube: str, body: bytes) -> bool:
        """Whether a put of *body* into *tube* is within the caps of its policy."""
        largest = self.count(tube, "max_job_size")
        return not 0 < largest < len(body) and self.victims(tube, 1, len(body)) is not None

    def clamped(self, tube: str, ttr: int) -> int:
        least, most = self.time(tube, "ttr_min"), self.time(tube, "ttr_max")
        ttr = min(ttr, most) if most else ttr
        return max(ttr, least)

    def raise_priority(self, id: int, pri: int) -> int:
        job = self.jobs.get(id)
        if job is not None and pri < job.pri and job.state != "reserved":
            self._note(job, "edited", 0)
            job.pri = pri
            if job.state == "ready":
                self._make_ready(job)
        return id

    # Ends of attempts

    def _lapse(self, job: ModelJob) -> None:
        self.end_attempt(job, 0)

    def _release(self, job: ModelJob, pri: int, delay: int, by: int) -> None:
        tube = job.tube
        super()._release(job, pri, delay, by)
        self.serve(tube)

    def _requeue(self, job: ModelJob) -> None:
        self.end_attempt(job, job.delay)

    def end_attempt(self, job: ModelJob, delay: int) -> None:
        """Decide where *job*, which no client holds any longer, goes after a failed attempt."""
        assert isinstance(job, PolicyJob)
        tube, job.state = job.tube, "detached"
        expiry = self.time(tube, "expire_after")
        if job.is_truncated:
            self._delete(job)
        elif expiry and job.aged_from + expiry <= self.now:
            self.expire(job)
        elif self.has_failed(job):
            self.dead_letter(job, "attempts")
        else:
            if not delay and self.time(tube, "retry_delay"):
                delay = job.delay = self.retry_delay(job)
                self.counts(tube).counts["retried"] += 1
            if delay:
                job.state, job.deadline = "delayed", self.now + delay
            else:
                self._make_ready(job)
        self.serve(tube)

    def retry_delay(self, job: PolicyJob) -> int:
        settings = self.settings(job.tube)
        first = settings["retry_delay"]
        most = settings.get("retry_delay_max") or max(3600, first)
        most = max(most, first)
        delay = min(first * settings.get("retry_factor", 2) ** (job.reserves - job.base - 1), most)
        spread = settings.get("retry_jitter", 0) * (2 * self.random(self.now) - 1)
        return min(int(delay * SECOND * (1 + spread)), round(most * SECOND))

    # Ends of jobs

    def delete(self, number: int, id: int) -> bool:
        job = self.jobs.get(id)
        is_held = job is not None and job.state == "reserved"
        if job is not None and job in self.clients[number].reserved:
            unique_for = self.settings(job.tube).get("unique_for", "")
            is_unique = self.settings(job.tube).get("unique", "nothing") == "body"
            if is_unique and isinstance(unique_for, int | float):
                until = job.created + round(unique_for * SECOND)
                self.finished.setdefault((job.tube, job.body), []).append((id, until))
        is_done = super().delete(number, id)
        if is_done and is_held and job is not None:
            self.serve(job.tube)
        return is_done

    def delete_job(self, id: int, is_forced: bool) -> bool:
        job = self.jobs.get(id)
        is_done = super().delete_job(id, is_forced)
        if job is not None:
            self.serve(job.tube)
        return is_done

    def _bury(self, job: ModelJob, by: int) -> None:
        super()._bury(job, by)
        assert isinstance(job, PolicyJob)
        job.buried_at = self.now
        self.serve(job.tube)

    def forget(self, job: PolicyJob) -> None:
        self._end_job_waits("DELETED", id=job.id)
        del self.jobs[job.id]
        self._drop_unused_tubes()

    def expire(self, job: PolicyJob) -> None:
        if self.settings(job.tube).get("expired_to") == "dead-letter":
            self.dead_letter(job, "buried-expired" if job.state == "buried" else "expired")
        else:
            self.counts(job.tube).counts["expired"] += 1
            self.forget(job)

    # Dead letters

    def dead_letter(self, job: PolicyJob, reason: str) -> None:
        """Move *job*, which no client holds, to the dead-letter tube; bury it in its own tube if that is full."""
        job.state, source = "detached", job.tube
        target = self.dead_letter_tube(source)
        if not target or not self.can_take(target, 1, len(job.body)):
            self.counts(source).counts["buried"] += 1
            self._bury(job, 0)
            return
        first_at = job.dead[3] if job.dead else self.now
        job.dead = (reason, source, job.reserves - job.base, first_at, self.now)
        self.counts(source).counts["dead_lettered"] += 1
        self.counts(target).counts["received"] += 1
        self.move(job, target, "dead-lettered")

    def move(self, job: PolicyJob, target: str, kind: str) -> None:
        """Make *job* ready in *target*, after room was made for it."""
        if target != job.tube:
            kept, self.kept = self.kept, self.kept | {target}
            self.evict(target, 1, len(job.body))
            self.kept = kept
        job.base = job.reserves
        self._note(job, kind, 0)
        job.tube = target
        self._make_ready(job)
        self._drop_unused_tubes()

    def redrive(self, id: int) -> str:
        job = self.jobs.get(id)
        if job is None or job.dead is None:
            return "NOT_FOUND"
        if job.state == "reserved":
            return "RESERVED"
        source = job.dead[1]
        if source != job.tube and not self.can_take(source, 1, len(job.body)):
            return "NO_ROOM"
        job.state, job.dead, job.aged_from = "detached", None, self.now
        self.move(job, source, "redriven")
        return "DONE"

    # Operators

    def edit_with(self, id: int, body: bytes | None, is_renewed: bool, tube: str | None, **changes: Any) -> str:
        """Edit a job as `edit_job` does, also its body and its age."""
        job = self.jobs.get(id)
        if job is None or (job.state == "reserved" and not changes["is_forced"]):
            return self.edit_job(id, tube, **changes)
        job.body = job.body if body is None else body
        job.aged_from = self.now if is_renewed else job.aged_from
        source = job.tube
        if tube is not None and tube != source:
            job.base = job.reserves - (job.state == "reserved")
            job.buried_at = self.now
        outcome = self.edit_job(id, tube, **changes)
        self.serve(source)
        return outcome

    def _kick(self, job: ModelJob) -> None:
        assert isinstance(job, PolicyJob)
        job.base, job.aged_from = job.reserves, self.now
        super()._kick(job)

    def set_policies(self, policies: dict[str, dict[str, Any]]) -> None:
        """Replace the policies by *policies*, and apply them to all jobs; raise Tie if several act at the same time."""
        before = {tube: self.settings(tube) for tube in self.full_at}
        self.policies = policies
        for tube in list(self.full_at):
            if not self.interval(tube):
                del self.full_at[tube]
            elif self.settings(tube) != before[tube]:
                self.full_at[tube] = min(self.full_at[tube], self.now + self.burst(tube) * self.interval(tube))
        ended = sum(len(client.ended) for client in self.clients.values())
        self._serve_waiting_clients()
        effects = {"start"} if ended < sum(len(client.ended) for client in self.clients.values()) else set()
        failed = [job for job in self.jobs.values() if job.state in ("ready", "delayed") and self.has_failed(job)]
        for job in sorted(failed, key=lambda job: job.id):
            effects.add("attempts")
            self.dead_letter(job, "attempts")
        effects |= {str(event.rank[0]) + event.group[1] for event in self.events() if event.at <= self.now}
        if len(effects) > 1:
            raise Tie
        self._drop_unused_tubes()

    # Time

    def have_order(self, events: list[Event]) -> bool:
        return len({event.group for event in events}) == 1 and len({event.rank for event in events}) == len(events)

    def events(self) -> Iterator[Event]:
        """Generate all future events, and those that are due now."""
        yield from super().events()
        for tube in self.tubes():
            yield from self._tube_events(tube)

    def _tube_events(self, tube: str) -> Iterator[Event]:
        """Generate the expiries and evictions of *tube*, and the time when its rate allows more."""
        where = ("rules", tube)
        expire_after, buried_expire_after = self.time(tube, "expire_after"), self.time(tube, "buried_expire_after")
        waiting = self.waiting_jobs(tube)
        for at, job in enumerate(waiting):
            if expire_after:
                yield Event(max(self.now, job.aged_from + expire_after), where, partial(self.expire, job), (1, at))
        for job in self.jobs.values():
            if job.tube == tube and job.state == "buried" and buried_expire_after:
                due = max(self.now, job.buried_at + buried_expire_after)
                yield Event(due, where, partial(self.expire, job), (2, job.buried_as))
        is_trimmed = self.settings(tube).get("overflow", "refuse") != "refuse" and self.over(tube, 0, 0)([])
        if waiting and is_trimmed:
            yield Event(self.now, where, partial(self.evict_job, waiting[0]), (3, 0))
        full_at, next_start = self.full_at.get(tube, 0), self.next_start(tube)
        if full_at > self.now:
            yield Event(next_start if next_start > self.now else full_at, where, partial(self.serve, tube), (4, 0))

    # Transitions

    def _give(self, client: ModelClient, job: ModelJob) -> None:
        tube = job.tube
        was_held = self.is_held(tube)
        super()._give(client, job)
        if self.interval(tube):
            self.full_at[tube] = max(self.full_at.get(tube, 0), self.now) + self.interval(tube)
        if self.is_held(tube) and not was_held:
            self.counts(tube).counts["reserved_holds" if self.is_exhausted(tube) else "rate_holds"] += 1

    def _offer(self, job: ModelJob) -> None:
        assert isinstance(job, PolicyJob)
        expiry = self.time(job.tube, "expire_after")
        if not expiry or self.now < job.aged_from + expiry:
            self.serve(job.tube)

    def serve(self, tube: str) -> None:
        """Give ready jobs of *tube* to the clients that wait for them."""
        for number in list(self.waiting):
            ready = self.ready(tube)
            client = self.clients[number]
            if tube in client.watched and ready and not self.is_held(tube):
                self.waiting.remove(number)
                self._give(client, ready[0])
                client.ended.append(ready[0].id)
