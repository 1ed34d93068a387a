"""Writes of the committer: in the event loop, or in the thread."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator

import pytest

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.net import committer
from greenstalk_server.net.committer import Committer
from tests.journal.disk import Disk, Fault, seeded
from tests.journal.workload import Bench

SEGMENT = 65_536
TIMEOUT = 30

SLOW_WRITE = 0.1
"""Seconds, instead of 5 ms, after which a write counts as slow: a busy machine may suspend the test for longer."""


class Journal:
    """A committer on a disk in memory that records which thread makes each write."""

    def __init__(self, sync_interval: int | None) -> None:
        self.disk: Disk = Disk()
        self.bench: Bench = Bench(self.disk, seeded(0), max_size=SEGMENT, sync_interval=sync_interval)
        self.committer: Committer = Committer(self.bench.journal)
        self.threads: list[int] = []
        self.delay: float = 0.0
        self.committer.start()
        self.put()
        assert self.committer.wait(TIMEOUT)  # the segment's first batch
        self.disk.before = self._note

    def put(self, size: int = 100) -> None:
        assert self.bench.put(size, 0)

    def serve_batch(self) -> bool:
        """Put a job, as a batch of the poller does; return whether its reply may be sent at once."""
        self.put()
        self.committer.commit_before_send([])
        return self.bench.journal.safe >= self.bench.journal.promised

    def _note(self, call: str) -> None:
        if call == "write":
            self.threads.append(threading.get_ident())
            time.sleep(self.delay)


@pytest.fixture(params=[SECOND, None], ids=["-f 1000", "-F"])
def journal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    monkeypatch.setattr(committer, "SLOW_WRITE", SLOW_WRITE)
    made = Journal(request.param)
    yield made
    made.disk.before = lambda call: None
    made.committer.stop()


def test_records_of_a_batch_are_written_in_the_loop_before_its_replies_are_sent(journal: Journal) -> None:
    for _ in range(20):
        assert journal.serve_batch()
    assert journal.threads == [threading.get_ident()] * 20


def test_a_synced_journal_leaves_batches_of_several_connections_to_the_thread() -> None:
    journal = Journal(0)
    assert not journal.serve_batch()
    assert journal.threads == []
    assert journal.committer.wait(TIMEOUT)
    assert len(journal.threads) == 1
    assert threading.get_ident() not in journal.threads
    journal.committer.stop()


def test_writes_move_to_the_thread_while_the_system_throttles_them(journal: Journal) -> None:
    journal.delay = 1.2 * SLOW_WRITE
    assert journal.serve_batch()
    for _ in range(3):
        assert not journal.serve_batch()
        assert journal.committer.wait(TIMEOUT)
    first, *others = journal.threads
    assert first == threading.get_ident()
    assert len(others) == 3
    assert threading.get_ident() not in others


def test_large_batch_is_written_in_the_thread(journal: Journal) -> None:
    for _ in range(20):
        journal.put(60_000)
    journal.committer.commit_before_send([])
    assert journal.bench.journal.safe < journal.bench.journal.promised
    assert journal.committer.wait(TIMEOUT)
    assert journal.threads
    assert threading.get_ident() not in journal.threads


def test_failed_write_in_the_loop_makes_nothing_safe_until_the_rewrite(journal: Journal) -> None:
    assert journal.serve_batch()
    journal.disk.before = Fault(1, errno.EIO, is_lasting=False, calls=("write",))
    assert not journal.serve_batch()
    writer = journal.bench.journal
    assert writer.write_error is not None
    assert writer.wants_rewrite
    assert journal.committer.wait(TIMEOUT)
    assert writer.write_error is None
    assert writer.safe >= writer.promised
    assert journal.serve_batch()


def test_replies_that_are_held_already_are_released_in_their_order(journal: Journal) -> None:
    """While a connection waits for the greenlet, the loop writes nothing, so no later reply overtakes its reply."""

    class Holder:
        safe = 0

        def release(self, safe: int) -> None:
            self.safe = safe

    holder = Holder()
    journal.put()
    journal.committer.hold(holder)
    assert not journal.serve_batch()
    assert journal.committer.wait(TIMEOUT)
    assert holder.safe == journal.bench.journal.promised
