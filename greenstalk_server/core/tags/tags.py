"""Tags of a job: the words after the size in its put command (docs/protocol-extensions.md).

A job without tags is a plain Job. A job with tags is a TaggedJob from its put to its deletion, and its tags never
change. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from greenstalk_server.core.gc_untrack import untrack
from greenstalk_server.core.jobs.job import Job

if TYPE_CHECKING:
    from greenstalk_server.core.tags.concurrency import ConcurrencyKey
    from greenstalk_server.core.tags.groups import Group
    from greenstalk_server.core.tubes.tube import Tube

NO_DEADLINE: Final = 2**63 - 1
"""Deadline of a delayed job that waits for a group, nanoseconds. No delay ends so late: delays are below 2**32 s."""

DELETED: Final = 0
"""State in a Duplicate whose job is deleted; differs from the states of existing jobs."""


class Tags:
    """The tags of one put.

    idempotency_key     key of `idp`. Keys and group names have 1 to 200 bytes, and are empty if the tag is missing.
    idempotency_ttl     time that the key outlives the job, nanoseconds.
    group               name of the group that the job belongs to.
    after               name of the group that must be empty before the job becomes ready.
    concurrency_key     key whose reserved jobs are limited in number.
    concurrency_limit   maximum number of reserved jobs with the key, 1 to 2**32-1; 0 without a key.

    The broker sets these while the job exists:

    member_of       the group named `group`.
    awaited         the group named `after`, while the job waits for it.
    limiter         the state of `concurrency_key`.
    is_key_freed    an operator is deleting the job, so the idempotency key does not outlive it.
    """

    __slots__ = (
        "after",
        "awaited",
        "concurrency_key",
        "concurrency_limit",
        "group",
        "idempotency_key",
        "idempotency_ttl",
        "is_key_freed",
        "limiter",
        "member_of",
    )

    def __init__(
        self,
        idempotency_key: bytes = b"",
        idempotency_ttl: int = 0,
        group: bytes = b"",
        after: bytes = b"",
        concurrency_key: bytes = b"",
        concurrency_limit: int = 0,
    ) -> None:
        self.idempotency_key: bytes = idempotency_key
        self.idempotency_ttl: int = idempotency_ttl
        self.group: bytes = group
        self.after: bytes = after
        self.concurrency_key: bytes = concurrency_key
        self.concurrency_limit: int = concurrency_limit
        self.member_of: Group | None = None
        self.awaited: Group | None = None
        self.limiter: ConcurrencyKey | None = None
        self.is_key_freed: bool = False
        untrack(self)

    def packed(self) -> Tags | bytes:
        """Return the value of `TaggedJob.tags`: only the idempotency key if there is no other tag, to save memory."""
        has_more = self.idempotency_ttl or self.group or self.after or self.concurrency_key
        return self if has_more else self.idempotency_key


class TaggedJob(Job):
    """A job with tags.

    tags    the tags, or the idempotency key as bytes if there is no other tag (see `Tags.packed`).
    """

    __slots__ = ("tags",)

    def __init__(
        self,
        id: int,
        tube: Tube,
        body: bytes,
        pri: int,
        delay: int,
        ttr: int,
        created_at: int,
        tags: Tags | bytes,
    ) -> None:
        super().__init__(id, tube, body, pri, delay, ttr, created_at)
        self.tags: Tags | bytes = tags

    def copy_with(self, tube: Tube, body: bytes) -> Job:
        """Return a copy as `Job.copy_with` does, with the same tags."""
        copy = TaggedJob(self.id, tube, body, self.pri, self.delay, self.ttr, self.created_at, self.tags)
        self.copy_fields_to(copy)
        return copy

    @property
    def idempotency_key(self) -> bytes:
        """The key, empty if there is none."""
        tags = self.tags
        return tags.idempotency_key if isinstance(tags, Tags) else tags

    @property
    def more_tags(self) -> Tags | None:
        """The tags, or None if the job has only an idempotency key."""
        tags = self.tags
        return tags if isinstance(tags, Tags) else None

    @property
    def limiter(self) -> ConcurrencyKey | None:
        """The state of the concurrency key; None if the job has none."""
        tags = self.tags
        return tags.limiter if isinstance(tags, Tags) else None

    @property
    def may_await(self) -> bool:
        """Whether the tag `after` applies when the job's delay ends: the job was never reserved and never kicked."""
        tags = self.tags
        return isinstance(tags, Tags) and bool(tags.after) and not self.reserves and not self.kicks

    @property
    def is_awaiting(self) -> bool:
        """Whether the job waits for a group."""
        tags = self.tags
        return isinstance(tags, Tags) and tags.awaited is not None

    @property
    def must_queue(self) -> bool:
        """Whether no waiting client may get the job directly: its key has no free slot, or tubes are pending."""
        limiter = self.limiter
        return limiter is not None and (not limiter.is_free or bool(limiter.pending))

    def end_await(self) -> None:
        """Stop waiting for a group; does nothing if the job does not wait."""
        tags = self.tags
        if isinstance(tags, Tags) and tags.awaited is not None:
            tags.awaited.remove_waiting(self)
            tags.awaited = None

    def count(self, change: int) -> None:
        """Add *change* to the group's count of jobs in the state of this job."""
        tags = self.tags
        if isinstance(tags, Tags) and tags.member_of is not None:
            tags.member_of.counts[self.state] += change

    def count_reserved(self, change: int) -> None:
        """Count the start of a reservation in the group and the concurrency key, or its end if *change* is -1."""
        self.count(change)
        limiter = self.limiter
        if limiter is not None:
            limiter.add_reserved(change)


class Duplicate:
    """The outcome of a put whose idempotency key is taken.

    id      id of the job that was put with the key.
    state   its state, or DELETED if the key has outlived it.
    pri     its new priority if the put made it more urgent, else -1.
    """

    __slots__ = ("id", "pri", "state")

    def __init__(self, id: int, state: int, pri: int) -> None:
        self.id: int = id
        self.state: int = state
        self.pri: int = pri


def tags_of(job: Job) -> Tags:
    """Return the tags of *job* for display; empty Tags for a plain job."""
    if not isinstance(job, TaggedJob):
        return Tags()
    return job.more_tags or Tags(job.idempotency_key)
