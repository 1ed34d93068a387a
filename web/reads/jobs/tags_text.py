"""Tags of jobs in words: the keys that the put gave, and why a job is held back. Pure."""

from __future__ import annotations

from greenstalk_server.core.jobs.job import DELAYED, READY, SECOND, Job
from greenstalk_server.core.tags.tags import TaggedJob, tags_of
from greenstalk_server.web.framework import text


def key_words(job: Job) -> str:
    """Return the tags of *job* as terms of the query language: `idp:k grp:g aft:a con:c`; a limit follows its key."""
    if not isinstance(job, TaggedJob):
        return ""
    tags = tags_of(job)
    keys = {"idp": tags.idempotency_key, "grp": tags.group, "aft": tags.after, "con": tags.concurrency_key}
    words = [f"{name}:{key.decode()}" for name, key in keys.items() if key]
    if tags.concurrency_key:
        words[-1] += f" (at most {text.number(tags.concurrency_limit)})"
    return " ".join(words)


def hold_reason(job: Job) -> str:
    """Return why *job* cannot be reserved, although its delay is over, if its tags are the reason; else empty."""
    if not isinstance(job, TaggedJob):
        return ""
    tags = tags_of(job)
    if job.state == DELAYED and tags.awaited is not None:
        return f"waits for group {tags.after.decode()} with {text.counted(tags.awaited.members, 'job')} left"
    limiter = tags.limiter
    if job.state == READY and limiter is not None and not limiter.is_free:
        taken = f"{text.number(limiter.reserved)} of {text.number(limiter.limit)}"
        return f"concurrency key {limiter.name.decode()} has {taken} slots taken"
    return ""


def is_awaiting(job: Job) -> bool:
    """Return whether the delayed *job* waits for a group, so the end of its delay is unknown."""
    return isinstance(job, TaggedJob) and job.is_awaiting


def tag_entries(job: Job) -> list[tuple[str, str]]:
    """Return the tags of *job* with labels, and the state of what they name."""
    if not isinstance(job, TaggedJob):
        return []
    tags, found = tags_of(job), list[tuple[str, str]]()
    if tags.idempotency_key:
        ttl = tags.idempotency_ttl // SECOND
        kept = f", kept for {text.duration(ttl)} after the job" if ttl else ""
        found.append(("Idempotency key", tags.idempotency_key.decode() + kept))
    if tags.group:
        members = f", {text.counted(tags.member_of.members, 'job')}" if tags.member_of is not None else ""
        found.append(("Group", tags.group.decode() + members))
    if tags.after:
        left = f", {text.counted(tags.awaited.members, 'job')} left" if tags.awaited is not None else ""
        found.append(("After group", tags.after.decode() + left))
    if tags.concurrency_key:
        found.append(("Concurrency key", tags.concurrency_key.decode()))
        limit = f"{text.number(tags.concurrency_limit)} at a time"
        if tags.limiter is not None:
            limit += f"; {text.number(tags.limiter.reserved)} of {text.number(tags.limiter.limit)} slots taken"
        found.append(("Concurrency limit", limit))
    return found
