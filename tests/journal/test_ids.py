"""Ids are never assigned twice, after a loss of power with any -f or a restart; puts are refused when none are left."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.id_sequence import ID_END, ONE_SHARD, IdSequence
from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.core.operations import connecting, finishing, putting
from greenstalk_server.core.tube_shards import Pin, TubeShards
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal import record, segment_log, startup
from greenstalk_server.journal.record import Encoder, SegmentHeader
from greenstalk_server.journal.writer import JournalWriter
from tests.journal.disk import Chance, Disk, seeded
from tests.journal.power_loss import SHARES
from tests.journal.workload import Bench, recovered
from tests.support.daemon import Daemon
from tests.support.peer import Peer
from tests.support.world import START, make_broker

SMALL_BLOCK = 6
"""Ids in a reserved block: few, so that many blocks are reserved."""


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_log, "ID_BLOCK", SMALL_BLOCK)


def acknowledged(bench: Bench) -> int:
    """Return the highest id that a client knows. Its job may be lost at a loss of power."""
    known = [id for id, entries in bench.history.jobs.items() if entries[0][0] <= bench.journal.safe]
    return max(known, default=0)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("sync_interval", [SECOND // 20, None], ids=["-f 50", "-F"])
def test_power_loss_at_any_call_reuses_no_id(sync_interval: int | None) -> None:
    random = seeded(0)
    disk = Disk()
    bench = Bench(disk, random, sync_interval=sync_interval)

    def check(call: str) -> None:
        for share in random.sample(SHARES, 2):
            after = recovered(disk.crash(Chance(random, share)), bench.now, is_strict=False)
            assert after.next_id > acknowledged(bench)

    disk.before = check
    for _ in range(80):
        bench.step()
    assert bench.journal.stats().records_migrated > 0
    assert acknowledged(bench) > 4 * SMALL_BLOCK


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("sync_interval", [0, SECOND // 20, None], ids=["-f 0", "-f 50", "-F"])
@pytest.mark.parametrize("seed", range(2))
def test_power_loss_on_a_full_disk_reuses_no_id(seed: int, sync_interval: int | None) -> None:
    """Records that do not fit are rewritten. Each removal of a segment leaves a later one on disk with the next id."""
    random = seeded(seed)
    disk = Disk()
    disk.capacity = (12, 20)[seed] * 16384
    bench = Bench(disk, random, max_size=16384, sync_interval=sync_interval)

    def check(call: str) -> None:
        if random.random() < 0.01 or call == "remove":
            after = recovered(disk.crash(Chance(random, random.choice(SHARES))), bench.now, is_strict=False)
            assert after.next_id > acknowledged(bench)

    disk.before = check
    for turn in range(4):
        bench.fill_and_release(200, turn)
        for id in list(bench.broker.jobs)[::3]:
            assert finishing.delete(bench.broker, None, id, bench.now) or bench.broker.jobs[id].holder is not None
        for _ in range(8):
            bench.compact()
            bench.run_maintenance()
            assert bench.commit()
            bench.sync()
    assert bench.refused > 0
    assert bench.journal.write_error is None
    assert acknowledged(bench) > 200


def put(bench: Bench, count: int) -> None:
    for _ in range(count):
        assert bench.put(0, 0)


@pytest.mark.parametrize("sync_interval", [SECOND // 20, None], ids=["-f 50", "-F"])
def test_batch_is_synced_only_if_its_ids_are_not_reserved_on_disk(
    sync_interval: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_log, "ID_BLOCK", 1000)
    bench = Bench(Disk(), seeded(1), max_size=2**20, sync_interval=sync_interval)
    synced = []
    for number in range(30):
        put(bench, 100)
        batch = bench.journal.take_batch(is_synced=False)
        batch.run()
        bench.journal.complete_batch(batch)
        bench.run_maintenance()
        if batch.is_synced:
            synced.append(100 * number)
        elif sync_interval is not None:
            bench.sync()
    if sync_interval is not None:
        assert synced == []  # the record of each block was synced with other records before its first id was used
    else:
        assert 2 <= len(synced) <= 4 and synced[0] >= segment_log.ID_BLOCK // 2


@pytest.mark.parametrize("sync_interval", [0, SECOND // 20, None], ids=["-f 0", "-f 50", "-F"])
def test_orderly_stop_leaves_no_gap_in_ids(sync_interval: int | None) -> None:
    disk, next_id = Disk(), 1
    for _ in range(3):
        bench = Bench(disk, seeded(1), sync_interval=sync_interval)
        assert bench.broker.next_id == next_id
        put(bench, 10)
        next_id += 10
        bench.journal.release_ids()
        assert bench.commit()
        disk = disk.crash(Chance(seeded(0), 1.0))


def test_id_put_after_the_release_of_ids_is_safe() -> None:
    disk = Disk()
    bench = Bench(disk, seeded(1), sync_interval=SECOND // 20)
    put(bench, 1)
    bench.journal.release_ids()
    put(bench, 1)
    assert bench.commit()
    assert recovered(disk.crash(Chance(seeded(0), 0.0)), START).next_id == 3


def test_ids_continue_after_sigterm_and_skip_the_rest_of_a_block_after_sigkill(tmp_path: Path) -> None:
    flags = ("-l", "127.0.0.1", "-p", "0", "--no-web", "-b", str(tmp_path), "-F")
    ids = []
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGTERM):
        with Daemon(*flags) as server, Peer(server) as peer:
            ids.append(int(peer.ask(b"put 0 0 60 0\r\n").split()[1]))
            server.stop(number)
    assert ids[:2] == [1, 2]
    assert 2 < ids[2] <= 2 + segment_log.ID_BLOCK
    assert ids[3] == ids[2] + 1


# The maximum id


def job_of(id: int) -> Job:
    return Job(id, Tube(b"default", {}), b"body", 0, 0, SECOND, START)


def disk_with(records: bytes) -> Disk:
    """Return a disk with a journal of one segment, which has the salt `salt`, the next id 5 and *records*."""
    return Disk({"journal.1": SegmentHeader(b"salt", 1, 1, 5).encode() + records})


@pytest.mark.parametrize("id", [record.ID_LIMIT, 2**63 - 1, 2**63, 2**64 - 1])
def test_record_of_an_impossible_id_is_skipped(id: int) -> None:
    encoder = Encoder(b"salt")
    for data in (encoder.job(job_of(id), 1), encoder.delete(id, 1)):
        disk = disk_with(data)
        broker = recovered(disk, START)
        assert (list(broker.jobs), broker.next_id) == ([], 5)
    assert recovered(disk_with(encoder.ids(min(id + 1, 2**64 - 1), 1)), START).next_id == 5


@pytest.mark.parametrize("sync_interval", [0, SECOND // 20], ids=["-f 0", "-f 50"])
def test_put_is_refused_when_ids_are_exhausted(sync_interval: int) -> None:
    disk = disk_with(Encoder(b"salt").job(job_of(ID_END - 3), 1))
    broker, journal = started(disk, sync_interval)
    client = connecting.connect(broker, lambda: None)
    accepted = []
    for _ in range(4):
        id = broker.allocate_id()
        if putting.put(broker, client, id, 0, 0, SECOND, b"body", START) > 0:
            accepted.append(id)
    assert accepted == [ID_END - 2, ID_END - 1]
    write(journal)
    assert set(recovered(disk, START).jobs) == {ID_END - 3, *accepted}


def started(disk: Disk, sync_interval: int, ids: IdSequence = ONE_SHARD) -> tuple[Broker, JournalWriter]:
    broker = make_broker(ids=ids, tube_shards=TubeShards(ids.shards, [Pin(("*",), ids.shard)]))
    journal = broker.journal = JournalWriter(disk, 4096, sync_interval, seeded(1).randbytes)
    startup.recover(disk, broker, journal, START, is_strict=True)
    return broker, journal


# A shard among others


@pytest.mark.parametrize("sync_interval", [0, SECOND // 20], ids=["-f 0", "-f 50"])
@pytest.mark.parametrize("shard", range(3))
def test_foreign_jobs_do_not_change_the_next_id(shard: int, sync_interval: int) -> None:
    """Jobs that came from other shards are recovered with their ids. The sequence continues after the own ones."""
    disk, ids = Disk(), IdSequence(base=100, shards=3, shard=shard)
    broker, journal = started(disk, sync_interval, ids)
    own = [100 + shard + 3 * local for local in range(5)]
    foreign = [id for id in (99, 50_000, 50_001, 50_002, ID_END - 3, ID_END - 2, ID_END - 1) if not ids.owns(id)]
    client = connecting.connect(broker, lambda: None)
    for id, came in zip(own, foreign, strict=False):
        assert putting.put(broker, client, came, 0, 0, SECOND, b"foreign", START) == came
        assert putting.put(broker, client, broker.allocate_id(), 0, 0, SECOND, b"own", START) == id
    present, next_id = set(broker.jobs), broker.next_id
    journal.release_ids()
    write(journal)
    after, _ = started(disk, sync_interval, ids)
    assert (set(after.jobs), after.next_id) == (present, next_id)
    assert finishing.delete(after, None, foreign[-1], START)
    assert after.next_id == next_id


def test_ids_of_a_shard_are_reserved_in_blocks_of_own_ids() -> None:
    disk, ids = Disk(), IdSequence(shards=1024, shard=7)
    broker, journal = started(disk, SECOND // 20, ids)
    client, before = connecting.connect(broker, lambda: None), journal.stats().records_written
    for _ in range(1000):
        assert putting.put(broker, client, broker.allocate_id(), 0, 0, SECOND, b"", START) > 0
    assert journal.stats().records_written == before + 1000
    write(journal)
    assert recovered(disk.crash(Chance(seeded(0), 1.0)), START).next_id >= 7 + 1000 * 1024


def write(journal: JournalWriter) -> None:
    batch = journal.take_batch(is_synced=True)
    batch.run()
    journal.complete_batch(batch)
