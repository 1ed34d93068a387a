"""The random workload of `workload` with tags: idempotency keys, groups, and concurrency keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import editing, putting
from greenstalk_server.core.tags.tags import Tags
from tests.journal.workload import ELSEWHERE, TUBES, Bench

KEYS: Final = (b"a", b"b", b"c", b"k" * 200)
GROUPS: Final = (b"first", b"second", b"third")


class TaggedBench(Bench):
    """A bench whose clients put jobs with tags, and whose workers finish them."""

    def verbs(self) -> tuple[Callable[[], object], ...]:
        tagged = (self.put_tagged,) * 10
        ends = (self.finish, self.finish, self.delete, self.delete, self.pass_time, self.forget)
        return (*super().verbs(), *tagged, *ends)

    def put_tagged(self) -> None:
        """Put a job with random tags; jobs wait for groups in an order without cycles."""
        random, id = self.random, self.broker.allocate_id()
        tags, group = Tags(), random.randrange(len(GROUPS))
        if random.random() < 0.4:
            tags.idempotency_key = random.choice(KEYS)
            tags.idempotency_ttl = random.choice((0, SECOND, 100 * SECOND))
        if random.random() < 0.5:
            tags.group = GROUPS[group]
        if random.random() < 0.5 and group:
            tags.after = GROUPS[group - 1]
        if random.random() < 0.4:
            tags.concurrency_key = random.choice(KEYS)
            tags.concurrency_limit = random.choice((1, 1, 2, 2**32 - 1))
        name, body = random.choice((b"", ELSEWHERE, *TUBES)), b"%d:" % id + random.randbytes(random.choice((0, 9, 900)))
        delay, pri = random.choice((0, 0, 0, random.randrange(20))), random.randrange(5)
        putting.put_tagged(
            self.broker, self._client(), name, id, pri, delay * SECOND, 30 * SECOND, body, tags, self.now
        )

    def forget(self) -> None:
        editing.forget_keys(self.broker, self.random.choice(TUBES), self.random.choice((1, 256)))
