"""The plain model of the broker, with tags. It follows docs/protocol-extensions.md and shares no code with the broker.

Each query examines all jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import assume

from tests.core.model import Model, ModelClient, ModelJob

NO_DEADLINE = 2**63 - 1
"""Deadline of a job that waits for a group: it is behind all others in the order of deadlines."""


@dataclass
class TagJob(ModelJob):
    """A job with tags: empty strings for those that it does not have; `key_ttl` in nanoseconds."""

    key: str = ""
    key_ttl: int = 0
    group: str = ""
    after: str = ""
    slot: str = ""
    limit: int = 0


class TagModel(Model):
    """The state of a queue whose jobs have tags.

    kept    idempotency keys that outlive their jobs: id and end, by tube and key.

    Each job that becomes ready is offered together with all jobs that the same operation makes ready or runnable: the
    best of them is the first that a waiting client gets. Which of several tubes gets a free slot depends on history. If
    two of them have a client that waits for it, the example is abandoned.
    """

    def __init__(self, now: int) -> None:
        super().__init__(now)
        self.kept: dict[tuple[str, str], tuple[int, int]] = {}
        self.is_edit = False
        self.is_deferred = False  # clients are served when the operation is complete
        self.is_abandoned = False

    def need(self, condition: bool) -> None:
        """Abandon the example if *condition* is False: what the broker does is not defined."""
        self.is_abandoned |= not condition
        assume(condition)

    # Queries

    def members(self, group: str) -> list[ModelJob]:
        return [job for job in self.jobs.values() if isinstance(job, TagJob) and group and job.group == group]

    def awaiting(self, group: str) -> list[ModelJob]:
        """Return the jobs that wait for *group*, by id."""
        found = [job for job in self.jobs.values() if isinstance(job, TagJob) and job.after == group]
        return sorted([job for job in found if is_held(job)], key=lambda job: job.id)

    def groups(self) -> set[str]:
        jobs = [job for job in self.jobs.values() if isinstance(job, TagJob)]
        return {job.group for job in jobs if job.group} | {job.after for job in jobs if is_held(job)}

    def has_slot(self, job: ModelJob) -> bool:
        """Whether the concurrency key of *job*, if it has one, has a free slot."""
        if not isinstance(job, TagJob) or not job.slot:
            return True
        same = [one for one in self.jobs.values() if isinstance(one, TagJob) and one.slot == job.slot]
        return len([one for one in same if one.state == "reserved"]) < min(one.limit for one in same)

    def runnable(self, tube: str) -> list[ModelJob]:
        return [job for job in self.ready(tube) if self.has_slot(job)]

    def seconds_to(self, time: int) -> int:
        return 0 if time == NO_DEADLINE else super().seconds_to(time)

    def holder(self, tube: str, key: str) -> ModelJob | None:
        jobs = [job for job in self.jobs.values() if isinstance(job, TagJob) and job.tube == tube and job.key == key]
        return min(jobs, key=lambda job: job.id, default=None)

    # Commands

    def put_tagged(self, number: int, job: TagJob) -> int | tuple[int, str] | tuple[int, str, int]:
        """Put *job*, which has its own id and tube; return what `Actor.put_tagged` returns."""
        held = self.holder(job.tube, job.key) if job.key else None
        if held is not None:
            if job.pri >= held.pri or held.state == "reserved":
                return held.id, held.state
            self.reprioritize(held.id, job.pri)
            return held.id, held.state, job.pri
        id, until = self.kept.get((job.tube, job.key), (0, 0))
        if job.key and self.now < until:
            return id, "deleted"
        job.state = "new"
        self.jobs[job.id] = job
        self.total_jobs += 1
        self.counts(job.tube).counts["total_jobs"] += 1
        self._make_ready_or_delayed(job)
        return job.id

    def reserve_job(self, number: int, id: int) -> bool:
        job = self.jobs.get(id)
        return (job is None or self.has_slot(job)) and super().reserve_job(number, id)

    def delete(self, number: int, id: int) -> bool:
        job = self.jobs.get(id)
        is_done = super().delete(number, id)
        if is_done and isinstance(job, TagJob) and job.key and job.key_ttl:
            until = self.now + job.key_ttl
            if until > self.kept.get((job.tube, job.key), (0, 0))[1]:
                self.kept[job.tube, job.key] = (id, until)
        return is_done

    def _delete(self, job: ModelJob) -> None:
        super()._delete(job)
        if isinstance(job, TagJob) and job.group and not self.members(job.group):
            self.is_deferred = True
            for one in self.awaiting(job.group):
                self.unblock(one)
            self.is_deferred = False
        self._serve_waiting_clients()

    def bury(self, number: int, id: int, pri: int) -> bool:
        is_done = super().bury(number, id, pri)
        self._serve_waiting_clients()
        return is_done

    def release(self, number: int, id: int, pri: int, delay: int) -> bool:
        is_done = super().release(number, id, pri, delay)
        self._serve_waiting_clients()
        return is_done

    def bury_job(self, id: int, is_forced: bool) -> bool:
        is_done = super().bury_job(id, is_forced)
        self._serve_waiting_clients()
        return is_done

    def truncate(self, tube: str) -> int | None:
        """Truncate as Model does; abandon the example if the order of the deletions may matter."""
        self.need_order_of_deletions()
        return super().truncate(tube)

    def need_order_of_deletions(self) -> None:
        """Abandon the example if the order of deletions may matter: clients wait, or jobs wait for groups."""
        self.need(not self.waiting and not [job for job in self.jobs.values() if is_held(job)])

    def forget_keys(self, tube: str) -> None:
        """Free the idempotency keys of *tube* that have outlived their jobs."""
        self.kept = {at: key for at, key in self.kept.items() if at[0] != tube}

    def edit_job(
        self, id: int, tube: str | None, pri: int | None, delay: int | None, ttr: int | None, is_forced: bool
    ) -> str:
        self.is_edit = True  # an edit that makes a job ready overrides its tag `after`
        outcome = super().edit_job(id, tube, pri, delay, ttr, is_forced)
        self.is_edit = False
        return outcome

    def undelete(self, deleted: ModelJob) -> bool:
        return super().undelete(self._as_now(deleted))

    def revert(self, before: ModelJob, after: ModelJob) -> bool:
        return super().revert(self._as_now(before), after)

    def _as_now(self, former: ModelJob) -> ModelJob:
        """Return *former*, a copy of a job that returns, with the deadline that it has now if its delay is over."""
        if not isinstance(former, TagJob) or former.state != "delayed" or self.now < former.deadline < NO_DEADLINE:
            return former
        is_first = bool(former.after) and not (former.reserves or former.kicks)
        return replace(former, deadline=NO_DEADLINE if is_first and self.members(former.after) else self.now)

    # Transitions

    def unblock(self, job: ModelJob) -> None:
        self._note(job, "unblocked", 0)
        job.state = "unblocked"
        self._make_ready(job)

    def _make_ready(self, job: ModelJob) -> None:
        is_first = isinstance(job, TagJob) and job.state in ("new", "delayed") and not (job.reserves or job.kicks)
        if isinstance(job, TagJob) and is_first and job.after and not self.is_edit:
            if self.members(job.after):
                job.state, job.deadline = "delayed", NO_DEADLINE
                return
            if job.state == "delayed":
                self.unblock(job)
                return
        super()._make_ready(job)

    def _serve_waiting_clients(self) -> None:
        while not self.is_deferred:
            found = [(number, job) for number in self.waiting for job in self._offered(self.clients[number])]
            if not found:
                return
            for key in {job.slot for _, job in found if isinstance(job, TagJob) and job.slot}:
                self.need(len({job.tube for _, job in found if isinstance(job, TagJob) and job.slot == key}) < 2)
            best = min([job for _, job in found], key=lambda job: (job.pri, job.id))
            number = next(number for number, job in found if job is best)
            self.waiting.remove(number)
            self._give(self.clients[number], best)
            self.clients[number].ended.append(best.id)

    def _offered(self, client: ModelClient) -> list[ModelJob]:
        """Return the ready jobs that *client* may get."""
        return [job for name in client.watched if not self.is_held(name) for job in self.runnable(name)]


def is_held(job: ModelJob) -> bool:
    """Whether *job* waits for a group."""
    return job.state == "delayed" and job.deadline == NO_DEADLINE
