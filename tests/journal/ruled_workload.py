"""The random workload of `workload` under policies: here the broker itself moves, copies, evicts and expires jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import (
    connecting,
    editing,
    finishing,
    policy_changes,
    putting,
    reserving,
    restoring,
    ticking,
)
from greenstalk_server.core.policies.policy import parse_policy
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.startup import refuse_unfit, replay_all, resume_from
from greenstalk_server.journal.writer import JournalWriter
from tests.journal.disk import Disk
from tests.journal.workload import SMALL_SEGMENT, Bench
from tests.support.world import make_broker

ONCE: Final[dict[str, Any]] = {"tubes": ["mail"], "unique": "body", "unique_for": 20}
"""Policies in force from the first job on, since a job gets a recorded key only when it is put, moved or edited."""

DOCUMENTS: Final[list[dict[str, Any]]] = [
    {"tubes": ["default"], "max_attempts": 2, "dead_letter": "elsewhere"},
    {"tubes": ["mail"], "max_attempts": 1},
    {"tubes": ["*"], "retry_delay": 3, "retry_jitter": 0.5},
    {"tubes": ["*"], "expire_after": 30, "expired_to": "dead-letter", "dead_letter": "elsewhere"},
    {"tubes": ["elsewhere"], "expire_after": 60},
    {"tubes": ["*"], "buried_expire_after": 20},
    {"tubes": ["mail"], "max_jobs": 4, "overflow": "drop-oldest"},
    {"tubes": ["a*"], "max_jobs": 3, "overflow": "dead-letter-oldest", "dead_letter": "mail"},
    {"tubes": ["default"], "copy_to": ["mail", "elsewhere"]},
    {"tubes": ["*"], "max_reserved": 2, "rate": 5, "rate_burst": 2},
]


class RuledBench(Bench):
    """A bench whose broker has policies of the configuration file, which change at random.

    The journal does not contain these policies. So a server that recovers the journal applies none, and must show
    exactly the recorded jobs.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.broker.random = self.random.random
        self.change_policies()
        while self.broker.is_sweeping:  # the first put into "mail" gets a key
            self.now += 1
            ticking.tick(self.broker, self.now)

    def verbs(self) -> tuple[Callable[[], object], ...]:
        more = (self.put_again, self.put_again, self.put_again, self.redrive, self.redrive, self.change_policies)
        return (*super().verbs(), *more, self.fail, self.fail, self.finish, self.finish, self.pass_time)

    def change_policies(self) -> None:
        """Replace the policies by others; the following commands run before and while they are applied."""
        documents = [ONCE, *self.random.sample(DOCUMENTS, self.random.randrange(4, len(DOCUMENTS) + 1))]
        policies = [parse_policy(f"policy-{at}", document) for at, document in enumerate(documents)]
        policy_changes.set_file_policies(self.broker, policies, self.now)

    def put_again(self) -> None:
        """Put a body that other jobs may have."""
        id, body = self.broker.allocate_id(), b"%d" % self.random.randrange(3) * self.random.choice((1, 300))
        putting.put(self.broker, self._client(), id, self.random.randrange(5), 0, 30 * SECOND, body, self.now)

    def redrive(self) -> None:
        dead = [job.id for job in self.broker.jobs.values() if job.dead_letter]
        if dead:
            editing.redrive(self.broker, self.random.choice(dead), self.now)

    def fail(self) -> None:
        """Reserve a job, and release it without a delay."""
        client = self._client()
        job = reserving.reserve(self.broker, client, self.now)
        if job is not None:
            assert finishing.release(self.broker, client, job.id, job.pri, 0, self.now)


class RuntimeBench(RuledBench):
    """A bench whose policies are set at run time, so the journal has them.

    A job that is put or moved before its tube has its policy gets its key later, in memory. A start does the same.
    """

    records_keys = False
    documents: Sequence[dict[str, Any]] = DOCUMENTS

    def change_policies(self) -> None:
        broker, random = self.broker, self.random
        broker.policy_store.documents = self.journal.policies  # compaction copies the policies of this table
        changes: Iterable[int] = random.choices(range(len(self.documents)), k=3)
        if "once" not in self.journal.policies:
            policy_changes.set_policy(broker, parse_policy("once", ONCE), self.now)
            changes = range(len(self.documents))
        for at in changes:
            if random.random() < 0.3:
                policy_changes.remove_policy(broker, f"policy-{at}", self.now)
            else:
                policy_changes.set_policy(broker, parse_policy(f"policy-{at}", self.documents[at]), self.now)

    def check_after_crash(self, disk: Disk, is_strict: bool = True) -> None:
        """Check the recovered policies and keys, and the jobs as they are before a server applies the policies."""
        broker = make_broker()
        journal = broker.journal = JournalWriter(disk, SMALL_SEGMENT, 0, self.random.randbytes)
        recovery = replay_all(disk, Recovery(broker.tube, broker.jobs))
        refuse_unfit(recovery, is_strict)
        policies, recovery.policies = recovery.policies, {}
        resume_from(recovery, broker, journal, self.now)
        restoring.restore(broker, recovery.next_id, self.now)
        self.history.check_entries(policies, recovery.keys, self.safe, self.now)
        self.history.check(broker, self.safe, self.now, self.journal.safe)

    def rest(self) -> None:
        """Disconnect all clients, and tick until nothing is due."""
        for client in self.clients:
            connecting.disconnect(self.broker, client, self.now)
        due: int | None = self.now
        while self.broker.is_sweeping or (due is not None and due <= self.now):
            self.now += 1
            due = ticking.tick(self.broker, self.now)
