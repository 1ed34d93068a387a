"""The policy of one tube: the merged settings of the policies that match the tube, and their state.

Owns the index of the tube's waiting jobs by age, the keys of its unique jobs, and the time of its next allowed start.
The broker calls it, moves jobs, and records changes (see greenstalk_server.core.transitions.enforcing). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import DELAYED, READY, Job
from greenstalk_server.core.jobs.job_index import JobIndex
from greenstalk_server.core.policies.policy import EffectivePolicy, Overflow, UniqueFor
from greenstalk_server.core.timers import NEVER

KEY_SIZE: Final = 16
"""Bytes of the digest by which bodies of unique jobs are compared. Two bodies do not share a digest in practice."""


class TubePolicyState:
    """The effective policy of one tube, and its state.

    policy          settings, merged from all policies that match the tube.
    dead_letter     tube for the jobs that failed; empty if there is none, or if dead letters would loop.
    waiting         ready and delayed jobs by the start of their age; None if no setting needs the index.
    full_at         time at which a whole burst may start again, nanoseconds; 0 if it may start now.
    keys            id of the job that holds each unique key; None without `unique`.
    other_holders   ids of further jobs with a key. A put adds none, but a release, a move, an edit or a new policy can.
    """

    __slots__ = ("dead_letter", "full_at", "keys", "other_holders", "policy", "waiting")

    def __init__(self, policy: EffectivePolicy, dead_letter: bytes, jobs: Mapping[int, Job]) -> None:
        """*jobs* is the broker's table of all jobs by id."""
        self.policy: EffectivePolicy = policy
        self.dead_letter: bytes = dead_letter
        needs_ages = policy.expire_after or policy.overflow != Overflow.REFUSE
        self.waiting: JobIndex | None = JobIndex(jobs) if needs_ages else None
        self.full_at: int = 0
        self.keys: dict[bytes, int] | None = {} if policy.unique_for != UniqueFor.NOTHING else None
        self.other_holders: dict[bytes, dict[int, None]] = {}

    # Waiting jobs

    def add_waiting(self, job: Job) -> None:
        """Add *job*, which is now ready or delayed."""
        if self.waiting is not None:
            self.waiting.add(job, expires_from(job))
        if self.keys is not None and self.policy.unique_for == UniqueFor.WAITING:
            self._claim(self.keys, job)

    def remove_waiting(self, job: Job) -> None:
        """Remove *job*, which is no longer ready or delayed."""
        if self.waiting is not None:
            self.waiting.remove(job, expires_from(job))
        if self.keys is not None and self.policy.unique_for == UniqueFor.WAITING:
            self.release_key(job)

    def rescan(self, job: Job) -> None:
        """Add *job*, which may be older than the policy, to the index and the keys unless it is there already."""
        if self.waiting is not None and job.state in (READY, DELAYED):
            self.waiting.remove(job, expires_from(job))
            self.waiting.add(job, expires_from(job))
        self.restore_key(job)
        if self.keys is not None and job.state in (READY, DELAYED):
            self._claim(self.keys, job)

    def restore_key(self, job: Job) -> None:
        """Claim the key of *job*. If it has no key and its body is in memory, compute the key first."""
        if self.keys is not None:
            if not job.unique_key and job.body is not None:
                job.unique_key = key_of(job.body)
            self.claim_key(job)

    def expiry_of(self, job: Job) -> int:
        """Return when *job* expires while it is ready or delayed, nanoseconds; NEVER if it does not."""
        return expires_from(job) + self.policy.expire_after if self.policy.expire_after else NEVER

    def next_expiry(self) -> int:
        """Return when the first ready or delayed job expires, nanoseconds; NEVER if none does."""
        if not self.policy.expire_after or self.waiting is None:
            return NEVER
        job = self.waiting.first()
        return NEVER if job is None else self.expiry_of(job)

    def inherit(self, before: TubePolicyState, now: int) -> None:
        """Take over the state of *before*, the earlier policy state of the tube, where the settings allow it."""
        if self.policy.rate_interval:
            self.full_at = min(before.full_at, now + self.policy.rate_burst * self.policy.rate_interval)
        if self.waiting is not None and before.waiting is not None:
            self.waiting = before.waiting
        if self.keys is not None and before.keys is not None and self.policy.unique_for == before.policy.unique_for:
            self.keys, self.other_holders = before.keys, before.other_holders

    # Caps

    def must_evict(self, jobs: int, bytes: int) -> bool:
        """Whether a tube with *jobs* jobs, whose bodies have *bytes* in total, must lose its oldest waiting job."""
        policy = self.policy
        is_over = 0 < policy.max_jobs < jobs or 0 < policy.max_bytes < bytes
        return is_over and policy.overflow != Overflow.REFUSE

    # Starts

    def starts_at(self) -> int:
        """Return when `rate` allows the next job to start, nanoseconds; 0 if it sets no limit."""
        interval = self.policy.rate_interval
        return self.full_at - (self.policy.rate_burst - 1) * interval if interval else 0

    def note_start(self, now: int) -> None:
        """Count the start of a job against `rate`."""
        interval = self.policy.rate_interval
        if interval:
            self.full_at = max(self.full_at, now) + interval

    # Attempts

    def has_failed(self, job: Job) -> bool:
        """Whether *job*, which no client holds, has used up its attempts."""
        return 0 < self.policy.max_attempts <= job.attempts

    def retry_delay(self, job: Job, random: float) -> int:
        """Return the delay in nanoseconds after the last failed attempt of *job*; *random* is in [0, 1)."""
        policy = self.policy
        if not policy.retry_delay:
            return 0
        limit = max(policy.retry_delay_max, policy.retry_delay)
        failures = max(0, job.attempts - 1)
        delay = float(policy.retry_delay)
        for _ in range(min(failures, 64)):
            delay *= policy.retry_factor
            if delay >= limit:
                break
        delay = min(delay, float(limit))
        return max(1, min(limit, int(delay * (1 + policy.retry_jitter * (2 * random - 1)))))

    # Keys of unique jobs

    def claim_key(self, job: Job) -> None:
        """Claim the key of *job*, unless `add_waiting` does so."""
        if self.keys is not None and self.policy.unique_for != UniqueFor.WAITING:
            self._claim(self.keys, job)

    def _claim(self, keys: dict[bytes, int], job: Job) -> None:
        """Claim the key of *job*, if it has one. If several jobs hold a key, *keys* has the newest one."""
        key = job.unique_key
        if not key:
            return
        holder = keys.setdefault(key, job.id)
        if holder != job.id:
            keys[key] = max(holder, job.id)
            self.other_holders.setdefault(key, {})[min(holder, job.id)] = None

    def release_key(self, job: Job) -> None:
        """Release the key of *job*, if it has one; another holder takes over."""
        key = job.unique_key
        if self.keys is None or not key:
            return
        others = self.other_holders.get(key)
        if self.keys.get(key) != job.id:
            if others is not None:
                others.pop(job.id, None)
        elif others:
            self.keys[key] = others.popitem()[0]
        else:
            del self.keys[key]
        if others is not None and not others:
            del self.other_holders[key]


def expires_from(job: Job) -> int:
    """Return the start of the age of *job*, nanoseconds: its put, or its last kick, redrive or renewal."""
    return job.expires_from or job.created_at


def buried_at(job: Job) -> int:
    """Return when *job* was buried in its tube, nanoseconds; if its history lacks the burial, when it was put."""
    for event in reversed(job_history.unpack(job.events)):
        if event.kind in (job_history.BURIED, job_history.MOVED):
            return event.at
    return job.created_at


def key_of(body: bytes) -> bytes:
    """Return the unique key of a job with *body*."""
    return blake2b(body, digest_size=KEY_SIZE).digest()
