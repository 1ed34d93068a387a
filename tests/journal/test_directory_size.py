"""The size of the directory while clients put and delete as fast as the committer replies."""

from __future__ import annotations

from collections import deque
from typing import Final

import gevent
import pytest

from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import finishing, putting
from greenstalk_server.net.committer import Committer
from tests.journal.disk import Disk, seeded
from tests.journal.workload import Bench

SEGMENT: Final = 16_384

COMMIT_TIMEOUT: Final = 60
"""Seconds that the commit of a batch may take."""

RECENT_BATCHES: Final = 16
"""Batches of each client over which the maximum of the live bytes is taken."""


class Load:
    """Clients of a committer, each of which waits for the reply to each of its batches.

    batch   bytes of the jobs that all clients together put or delete in one batch.
    excess  maximum bytes of the directory above its bound: three times the live bytes, three files and three batches.
    """

    def __init__(self, sync_interval: int | None, clients: int, jobs: int, size: int) -> None:
        """In each batch a client puts or deletes *jobs* jobs of *size* bytes."""
        self.disk: Disk = Disk()
        self.bench: Bench = Bench(self.disk, seeded(0), max_size=SEGMENT, sync_interval=sync_interval)
        self.committer: Committer = Committer(self.bench.journal)
        self.clients: int = clients
        self.jobs: int = jobs
        self.size: int = size
        self.batch: int = clients * jobs * size
        self.excess: int = 0
        self._live: deque[int] = deque([0], maxlen=RECENT_BATCHES * clients)
        self._client: Client = self.bench.clients[0]
        self._bodies: dict[int, bytes] = {}  # one for all jobs of a size: the bench keeps each recorded state

    def run(self, backlog: int, rounds: int) -> None:
        """Put *backlog* jobs; then let each client put and delete *rounds* batches, or delete the backlog if 0."""
        self.committer.start()
        self._put(100)
        ids: list[int] = []
        while len(ids) < backlog:
            ids += [self._put(self.size) for _ in range(min(self.jobs, backlog - len(ids)))]
            self._wait()
        self.disk.before = self._measure
        parts = [ids[at :: self.clients] for at in range(self.clients)]
        greenlets = [
            gevent.spawn(self._churn, rounds) if rounds else gevent.spawn(self._delete, part) for part in parts
        ]
        gevent.joinall(greenlets, raise_error=True)
        self.committer.stop()

    def _churn(self, rounds: int) -> None:
        for _ in range(rounds):
            ids = [self._put(self.size) for _ in range(self.jobs)]
            self._wait()
            self._delete(ids)

    def _delete(self, ids: list[int]) -> None:
        for at in range(0, len(ids), self.jobs):
            for id in ids[at : at + self.jobs]:
                assert finishing.delete(self.bench.broker, None, id, self.bench.now)
            self._wait()

    def _put(self, size: int) -> int:
        id = self.bench.broker.allocate_id()
        body = self._bodies.setdefault(size, bytes(size))
        assert putting.put(self.bench.broker, self._client, id, 0, 0, SECOND, body, self.bench.now) > 0
        return id

    def _wait(self) -> None:
        assert self.committer.wait(COMMIT_TIMEOUT)
        self._live.append(self.bench.journal.live_bytes)

    def _measure(self, call: str) -> None:
        live = max(*self._live, self.bench.journal.live_bytes)
        bound = 3 * live + 3 * max(SEGMENT, self.size + 200) + 3 * self.batch
        self.excess = max(self.excess, self.disk.used - bound)


@pytest.mark.parametrize("sync_interval", [0, SECOND // 20, None], ids=["-f 0", "-f 50", "-F"])
@pytest.mark.parametrize(
    ("clients", "jobs", "size", "backlog", "rounds"),
    [
        pytest.param(4, 1, 16_200, 0, 60, id="large bodies and one old job"),
        pytest.param(32, 1, 16_200, 0, 12, id="large bodies of many clients"),
        pytest.param(32, 3, 15_000, 200, 15, id="large batches and a backlog"),
        pytest.param(8, 20, 500, 3_000, 0, id="deletion of the whole backlog"),
    ],
)
def test_directory_stays_within_its_bound_under_load(
    sync_interval: int | None, clients: int, jobs: int, size: int, backlog: int, rounds: int
) -> None:
    load = Load(sync_interval, clients, jobs, size)
    load.run(backlog, rounds)
    assert load.disk.calls > 50
    assert load.excess == 0, f"{load.excess / load.batch:.1f} batches above the bound"
