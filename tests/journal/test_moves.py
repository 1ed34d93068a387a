"""Jobs that move between shards, each with a journal, whose processes end at every step: no job is lost or doubled."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.operations import editing, finishing, putting
from greenstalk_server.core.outcomes import EditOutcome
from greenstalk_server.journal import startup
from greenstalk_server.journal.check import inspect
from greenstalk_server.journal.files import Directory
from greenstalk_server.journal.layout import create_shard, directory_of, new_identities
from greenstalk_server.journal.reshard import reshard
from greenstalk_server.journal.writer import JournalWriter
from greenstalk_server.protocol.job_transfer import encode_job
from tests.journal.disk import Disk
from tests.support.shards import Shard, Shards, tube_on
from tests.support.world import make_broker

SEGMENT: Final = 4096
"""Bytes: small, so that compaction copies locations and moving jobs."""

TUBES: Final = [tube_on(shard) for shard in range(3)]


class ProcessEnded(Exception):
    """The process of a shard has ended."""


class JournaledShard(Shard):
    """A shard with a journal, which is written before anything is sent.

    on_send     called before the journal is written, and again before the message is sent.
    """

    queue: JournaledShards

    def open_journal(self, disk: Disk | Directory) -> None:
        self.disk = disk
        self.broker = make_broker(ids=IdSequence(0, 3, self.number))
        self.broker.subscribe(self)
        self.journal = self.broker.journal = JournalWriter(disk, SEGMENT, 0, os.urandom)
        startup.recover(disk, self.broker, self.journal, self.queue.now, is_strict=True)

    def write(self) -> None:
        while self.journal.compact(SEGMENT):
            pass
        startup.write_out(self.journal)

    def post(self, to: Shard, message: Callable[[], None]) -> None:
        self.queue.on_send(self)
        self.write()
        self.queue.on_send(self)
        super().post(to, message)


class JournaledShards(Shards):
    """Three shards; the process of *victim* ends at the event number *end* of sending, and is started again."""

    def __init__(self, end: int, victims: tuple[int, ...]) -> None:
        super().__init__()
        self.events = 0
        self.end = end
        self.victims = victims
        self.shards = [JournaledShard(self, IdSequence(0, 3, number), None, ()) for number in range(3)]
        for shard in self.shards:
            shard.open_journal(Disk({}))

    shards: list[JournaledShard]  # type: ignore[assignment]

    def on_send(self, shard: JournaledShard) -> None:
        self.events += 1
        if self.events == self.end and shard.number in self.victims:
            raise ProcessEnded

    def settle_with_ends(self) -> None:
        """Deliver all messages; start the processes that end again."""
        is_settled = False
        while not is_settled:
            try:
                self.settle()
                is_settled = True
            except ProcessEnded:
                self.restart(*self.victims)

    def restart(self, *numbers: int) -> None:
        self.links.clear()
        for shard in self.shards:
            shard.calling.clear()
        for number in numbers:
            shard = self.shards[number]
            shard.open_journal(shard.disk)

    def move(self, id: int, tube: bytes) -> None:
        """Move the job *id* to *tube*; repeat this if the end of a process has lost the request."""
        for _ in range(3):
            holders = [shard for shard in self.shards if id in shard.broker.jobs]
            assert len(holders) == 1
            job = holders[0].broker.jobs[id]
            if job.tube.name == tube:
                return
            assert editing.edit_job(holders[0].broker, id, self.now, tube=tube) == EditOutcome.DONE
            self.settle_with_ends()
        raise AssertionError("the job does not move")


def scenario(end: int, *victims: int) -> JournaledShards:
    """Let a job of shard 0 go to all shards and back, and delete it on another shard."""
    queue = JournaledShards(end, victims)
    home = queue.shards[0]
    id = putting.put_into(home.broker, TUBES[0], 1, 0, 10**9, b"body", queue.now)
    home.write()
    for tube in (TUBES[1], TUBES[2], TUBES[0], TUBES[1]):
        queue.move(id, tube)
    owner = queue.shards[1]
    assert owner.broker.jobs[id].body == b"body"
    assert finishing.delete_job(owner.broker, id, queue.now)
    owner.write()
    queue.settle_with_ends()
    assert not any(id in shard.broker.jobs for shard in queue.shards)
    for shard in queue.shards:
        shard.write()
    queue.restart(0, 1, 2)
    queue.settle_with_ends()
    for shard in queue.shards:
        assert shard.broker.moves is not None
        assert not (shard.broker.jobs or shard.broker.moves.locations or shard.broker.moves.untold)
    return queue


@pytest.mark.parametrize("victims", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_process_that_ends_at_any_step_loses_and_doubles_no_job(victims: tuple[int, ...]) -> None:
    ends = 0
    for end in itertools.count(1):
        queue = scenario(end, *victims)
        if queue.events < end:
            break
        ends += 1
    assert ends > 20


def test_reshard_finishes_the_moves_that_are_under_way(tmp_path: Path) -> None:
    queue = JournaledShards(0, ())
    for shard, identity in zip(queue.shards, new_identities(3), strict=True):
        shard.open_journal(Directory(str(create_shard(tmp_path, identity))))
    home, there = queue.shards[0], queue.shards[1]
    ids = [putting.put_into(home.broker, TUBES[0], 1, 0, 10**9, b"body", queue.now) for _ in range(4)]
    for id in ids[1:]:
        assert editing.edit_job(home.broker, id, queue.now, tube=TUBES[1]) == EditOutcome.DONE
    home.write()
    jobs = [home.broker.jobs[id] for id in ids[2:]]  # these are accepted; the answer is lost
    facts = json.dumps([encode_job(job, b"body") for job in jobs])
    there.take_moves(home, facts, b"bodybody", [])
    assert finishing.delete_job(there.broker, ids[3], queue.now)
    for shard in queue.shards:
        shard.write()
    assert reshard(str(tmp_path), 2) == 0
    found = {}
    for number in range(2):
        for job in inspect(directory_of(str(tmp_path), number), queue.now).recovery.jobs.values():
            assert job.id not in found and not job.travel
            found[job.id] = (job.tube.name, job.body)
    assert found == {ids[0]: (TUBES[0], b"body"), ids[1]: (TUBES[1], b"body"), ids[2]: (TUBES[1], b"body")}


def test_places_and_moving_jobs_survive_compaction() -> None:
    queue = JournaledShards(0, ())
    home, there = queue.shards[0], queue.shards[1]
    ids = [putting.put_into(home.broker, TUBES[0], 1, 0, 10**9, b"body", queue.now) for _ in range(40)]
    for id in ids[:30]:
        queue.move(id, TUBES[1])
    queue.cut(0, 1)
    for id in ids[30:]:
        assert editing.edit_job(home.broker, id, queue.now, tube=TUBES[1]) == EditOutcome.DONE
    before = dict(home.broker.moves.locations) if home.broker.moves is not None else {}
    assert sorted(before) == ids[:30]
    for _ in range(300):  # jobs that come and go fill segments
        other = putting.put_into(home.broker, TUBES[0], 1, 0, 10**9, b"x" * 100, queue.now)
        assert finishing.delete_job(home.broker, other, queue.now)
        home.write()
    assert home.journal.stats().records_migrated > 0
    home.open_journal(home.disk)
    assert home.broker.moves is not None
    assert home.broker.moves.locations == before
    assert sorted(home.broker.moves.outbox) == ids[30:]
    assert home.broker.moves.sent == set(ids[30:]), "they may have been sent before"
    queue.mend(0, 1)
    assert sorted(there.broker.jobs) == ids and not home.broker.jobs
