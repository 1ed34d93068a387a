"""The random workload of `workload`, with moves, groups, attributes, policies and unique keys.

A broker does these only under a policy. Here random commands do them directly.
"""

from __future__ import annotations

from collections.abc import Callable

from greenstalk_server.core.job_attributes import DeadLetter, DeadLetterReason
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import READY, RESERVED, SECOND, Job
from greenstalk_server.core.transitions import placing
from tests.journal.workload import ELSEWHERE, TUBES, Bench

NAMES = ("mail", "p" * 40, "other")
"""Names of policies."""

FINISHED = (10**6, 10**6 + 99)
"""Ids of finished jobs: a key is kept only for a job that no longer exists."""


class PolicyBench(Bench):
    """A bench whose commands include those of policies.

    targets     tubes that jobs are moved to.
    key_count   number of unique keys of each tube.
    document_size   bytes of the largest document of a policy.
    """

    targets: tuple[bytes, ...] = (*TUBES, ELSEWHERE)
    key_count: int = 30
    document_size: int = 1000

    def verbs(self) -> tuple[Callable[[], object], ...]:
        more = (self.move, self.move, self.move, self.put_group, self.put_group, self.change_policy, self.change_key)
        return (*super().verbs(), *more, self.change_key, self.expire_keys, self.delete, self.delete)

    def move(self) -> None:
        """Move a job that no client holds to another tube, or change its attributes alone."""
        random, broker = self.random, self.broker
        if not broker.jobs or (job := broker.jobs[self._any_id()]).state == RESERVED:
            return
        source, target = job.tube, broker.tube(random.choice(self.targets))
        source.remove(job)
        source.body_bytes -= job.size
        target.body_bytes += job.size
        job.tube, job.pri, job.ready_since = target, random.randrange(5), self.now
        kind = random.choice((job_history.DEAD_LETTERED, job_history.REDRIVEN))
        job.events = job_history.add(job.events, kind, self.now, job_history.NOBODY)
        self._set_attributes(job)
        job.state = READY
        broker.journal.move(job, source)
        placing.add_ready(broker, job, self.now)
        broker.drop_if_unneeded(source)

    def _set_attributes(self, job: Job) -> None:
        """Give *job* random attributes, or none."""
        random = self.random
        letter = DeadLetter(
            DeadLetterReason.EXPIRED, random.choice(self.targets), random.randrange(9), self.now, self.now
        )
        job.dead_letter = random.choice((b"", letter.pack()))
        job.expires_from = random.choice((0, self.now))
        job.unique_key = random.choice((b"", random.randbytes(random.randrange(1, 65))))
        job.attempts_base = random.choice((0, job.reserves))

    def put_group(self) -> None:
        """Put jobs into several tubes, all or none."""
        random, broker = self.random, self.broker
        jobs = []
        for _ in range(random.randrange(1, 6)):
            id, tube = broker.allocate_id(), broker.tube(random.choice(self.targets))
            body = b"%d:" % id + random.randbytes(random.choice((0, 10, 300, 3000)))
            jobs.append(Job(id, tube, body, random.randrange(5), 0, SECOND, self.now))
            self._set_attributes(jobs[-1])
            jobs[-1].attempts_base = 0
        if not broker.journal.put_group(jobs):
            self.refused += 1
            for job in jobs:
                broker.drop_if_unneeded(job.tube)
            return
        for job in jobs:
            broker.jobs.set(job)
            if broker.bodies is not None:
                broker.bodies.add(job)
            job.tube.body_bytes += job.size
        for job in jobs:
            placing.add_ready(broker, job, self.now)

    def change_policy(self) -> None:
        name = self.random.choice(NAMES)
        document = self.random.choice(
            (b"", b"{}", b'{"max_attempts":%d}' % self.random.randrange(9), b" " * self.document_size)
        )
        self.set_policy(name, document)

    def set_policy(self, name: str, document: bytes) -> None:
        if document:
            self.journal.policies[name] = document
        else:
            self.journal.policies.pop(name, None)
        self.journal.policy(name, document)

    def change_key(self) -> None:
        """Claim a key for some time, or release it."""
        key = self.random.choice(TUBES), b"%02d" % self.random.randrange(self.key_count) * self.random.choice((1, 32))
        id, until = self.random.randrange(*FINISHED), self.random.choice((0, self.now + SECOND, self.now + 50 * SECOND))
        if until:
            self.journal.keys[key] = id, until
        else:
            self.journal.keys.pop(key, None)
        self.journal.key(*key, id, until)

    def expire_keys(self) -> None:
        """Forget expired keys, without a record."""
        for key in [key for key, (_, until) in self.journal.keys.items() if until <= self.now]:
            del self.journal.keys[key]

    def check_recorded(self) -> None:
        super().check_recorded()
        policies = {name: documents[-1][1] for name, documents in self.history.policies.items() if documents[-1][1]}
        assert self.journal.policies == policies
        assert all(self.history.keys[key][-1][1] == value for key, value in self.journal.keys.items())
