"""What the journal takes of the disk, and what it keeps in reserve."""

from __future__ import annotations

import errno
from random import Random

import pytest

from greenstalk_server.core.client import Client
from greenstalk_server.core.job import BURIED, SECOND
from greenstalk_server.journal.segment import name_of, numbers
from tests.journal.disk import Chance, Disk, Fault, nothing, seeded
from tests.journal.workload import SMALL, Bench, recovered
from tests.support.world import START

SEGMENT = 16384

sizes = pytest.mark.parametrize("size", [0, 100, 3000])


class Yard(Bench):
    """A bench whose committer does after each command what the real one does, and whose disk may not overflow."""

    def __init__(
        self, disk: Disk | None = None, max_size: int = SEGMENT, random: Random | None = None, now: int = START
    ) -> None:
        super().__init__(disk or Disk(), random or seeded(0), now, max_size)
        self.max_size: int = max_size
        self.client: Client = self.broker.connect(lambda: None)
        self.copied: int = 0
        self.died: int = 0
        self.lived: int = 0

    def tend(self) -> None:
        """Commit, compact and keep up as the committer does, and assert that the disk is within its bounds.

        What was deleted since the last time counts once more: a file goes when its copies are on disk.
        """
        batch = self.binlog.take(is_synced=True)
        batch.run()
        self.binlog.done(batch)
        self.safe = batch.sequence
        before = self.binlog.pending_bytes
        self.binlog.compact(max(3 * (batch.size - self.copied + self.binlog.bytes_died - self.died), SMALL))
        self.copied = self.binlog.pending_bytes - before
        self.died = self.binlog.bytes_died
        self.keep_up()
        live, self.lived = max(self.lived, self.live_bytes), self.live_bytes
        assert self.disk.used <= 2.5 * live + 3 * self.max_size, (self.disk.used, live)
        stats = self.binlog.stats()
        assert (stats.bytes_on_disk, stats.files) == (self.disk.used, len(self.disk.list()))
        assert stats.bytes_live == self.live_bytes <= stats.bytes_recorded

    def tend_full(self) -> None:
        """The same on a full disk: nothing may fail, and there is no bound but the disk's."""
        assert self.commit()
        self.binlog.compact(SMALL)
        self.keep_up()
        assert self.binlog.trouble is None

    def give_back(self) -> None:
        """Have the client's jobs ready again, as when its connection ends."""
        self.broker.disconnect(self.client, self.now)
        self.client = self.broker.connect(lambda: None)

    def add(self, size: int, pri: int = 10, delay: int = 0) -> int:
        """Put a job of *size* bytes; return its id."""
        id = self.broker.allocate_id()
        self.now += 1
        assert self.broker.put(self.client, id, pri, delay * SECOND, 60 * SECOND, bytes(size), self.now) > 0
        return id

    def take_any(self) -> int:
        job = self.broker.reserve(self.client, self.now)
        assert job is not None
        return job.id


# Bounds


@sizes
def test_directory_stays_small_under_bury_and_kick_of_one_job(size: int) -> None:
    yard = Yard()
    id = yard.add(size)
    for _ in range(2000):
        assert yard.take_any() == id
        assert yard.broker.bury(yard.client, id, 5, yard.now)
        yard.tend()
        assert yard.broker.kick(yard.broker.tubes[b"default"], BURIED, 1, yard.now) == 1
        yard.tend()
    assert yard.binlog.stats().records_migrated > 5


@sizes
def test_directory_stays_small_under_release_of_many_jobs(size: int) -> None:
    yard = Yard()
    for _ in range(100):
        yard.add(size)
        yard.tend()
    for turn in range(1500):
        id = yard.take_any()
        assert yard.broker.release(yard.client, id, turn, 0, yard.now)
        yard.tend()


def test_directory_stays_small_under_reservations_alone() -> None:
    """No reply waits for their records, but they take room too."""
    yard = Yard()
    yard.add(100)
    for _ in range(5000):
        yard.take_any()
        yard.give_back()
        yard.tend()


@sizes
def test_directory_stays_small_with_one_old_job_among_short_lived_ones(size: int) -> None:
    yard = Yard()
    ancient = yard.add(size, pri=2**32 - 1)
    for _ in range(1500):
        assert yard.broker.delete(None, yard.add(size, pri=1), yard.now)
        yard.tend()
    assert list(yard.broker.jobs) == [ancient]
    yard.check_after_crash(yard.disk.crash(Chance(seeded(0), 0.5)))


@pytest.mark.parametrize("seed", range(4))
def test_directory_stays_small_under_random_commands(seed: int) -> None:
    yard = Yard(random=seeded(seed))
    for _ in range(1500):
        yard.work(3)
        yard.tend()
    yard.check_told()
    yard.check_after_crash(yard.disk.crash(Chance(seeded(0), 0.5)))


@sizes
@pytest.mark.parametrize("kept", [1, 7, 50])
def test_directory_shrinks_when_most_jobs_are_deleted(size: int, kept: int) -> None:
    yard = Yard()
    for _ in range(600):
        yard.add(size)
        yard.tend()
    for id in range(1, 601):
        if id % kept or kept == 1:
            assert yard.broker.delete(None, id, yard.now)
            yard.tend()
    yard.settle()
    yard.tend()


def test_directory_shrinks_when_later_jobs_are_deleted() -> None:
    yard = Yard()
    for _ in range(600):
        yard.add(200)
        yard.tend()
    for id in range(600, 100, -1):
        assert yard.broker.delete(None, id, yard.now)
        yard.tend()


@pytest.mark.parametrize("size", [0, 100, 3000, 100_000])
def test_empty_journal_has_one_segment_and_one_ahead(size: int) -> None:
    yard = Yard()
    for _ in range(300 if size < 10_000 else 20):
        yard.add(size)
        yard.tend()
    yard.delete_all()
    yard.settle()
    assert len(numbers(yard.disk.list())) == 2
    assert yard.disk.used == 2 * SEGMENT
    assert yard.disk.open_files == 2


def test_restarts_do_not_grow_the_directory() -> None:
    disk = Disk()
    for _ in range(50):
        yard = Yard(disk)
        assert yard.broker.delete(None, yard.add(100), yard.now)
        yard.settle()
        yard.tend()
        disk = disk.crash(Chance(seeded(0), 1.0))
    assert len(numbers(disk.list())) <= 3


def test_failures_do_not_leak_space() -> None:
    yard = Yard()
    for _ in range(20):
        yard.add(500)
    yard.tend()
    for _ in range(50):
        yard.binlog.failed(OSError("once"))
        assert yard.commit()
        yard.add(500)
        yard.settle(3)
        yard.tend()


# Figures


def test_stats_match_the_files() -> None:
    yard = Yard(max_size=SMALL)
    stats = yard.binlog.stats()
    assert (stats.oldest_index, stats.current_index, stats.max_size) == (1, 1, SMALL)
    for _ in range(100):
        yard.add(100)
        yard.tend()
    for id in range(1, 100):
        assert yard.broker.delete(None, id, yard.now)
        yard.tend()
    yard.settle()
    stats = yard.binlog.stats()
    used = [number for number in numbers(yard.disk.list()) if yard.disk.read(name_of(number)).strip(b"\0")]
    assert (stats.oldest_index, stats.current_index) == (used[0], used[-1])
    assert stats.records_written == 199 + stats.records_migrated
    assert yard.broker.jobs[100].segment in used


def test_job_knows_the_segment_of_its_record() -> None:
    yard = Yard(max_size=SMALL)
    for _ in range(60):
        yard.add(200)
        yard.tend()
    for job in yard.broker.jobs.values():
        assert b"\1" + job.id.to_bytes(8, "little") in yard.disk.read(name_of(job.segment))


def test_segments_do_not_exceed_max_size() -> None:
    yard = Yard(max_size=SMALL)
    for _ in range(100):
        yard.add(500)
        yard.tend()
    assert {len(data) for data in yard.disk.everything().values()} <= set(range(SMALL + 1))


# Records larger than a segment


def test_job_larger_than_a_segment_is_recovered() -> None:
    yard = Yard(max_size=SMALL)
    small = yard.add(10)
    large = [yard.add(size) for size in (SMALL - 200, SMALL - 100, SMALL, 5 * SMALL, 300_000)]
    last = yard.add(10)
    yard.tend()
    yard.check_after_crash(yard.disk.crash(Chance(seeded(0), 0.0)))
    assert recovered(yard.disk.crash(Chance(seeded(0), 0.0)), START).jobs.keys() == {small, *large, last}


def test_directory_stays_small_under_large_jobs() -> None:
    yard = Yard(max_size=SMALL)
    for _ in range(100):
        first = yard.add(3 * SMALL)
        yard.settle(2)
        yard.add(10)
        yard.settle(2)
        assert yard.broker.delete(None, first, yard.now)
        yard.settle(2)
        assert yard.disk.used <= 2.5 * yard.live_bytes + 3 * 4 * SMALL


def test_pauses_that_exceed_a_segment_are_recovered() -> None:
    yard = Yard(max_size=SMALL)
    for number in range(60):
        yard.broker.watch(yard.client, b"%0200d" % number)
        assert yard.broker.pause_tube(b"%0200d" % number, 300 * SECOND, yard.now)
    for _ in range(100):
        yard.add(500)
        yard.commit()
        yard.keep_up()
    yard.check_after_crash(yard.disk.crash(Chance(seeded(0), 0.0)))


# Room


def fill(yard: Yard, size: int) -> None:
    """Put jobs until one is refused for want of room."""
    for _ in range(10_000):
        id = yard.broker.allocate_id()
        if yard.broker.put(yard.client, id, 10, 0, 60 * SECOND, bytes(size), yard.now) < 0:
            assert yard.binlog.is_full
            return
        yard.tend_full()
    raise AssertionError("the disk does not fill")


@sizes
@pytest.mark.parametrize("by", ["delete", "reserve and delete", "bury and delete"])
def test_full_disk_refuses_puts_and_accepts_every_delete(size: int, by: str) -> None:
    disk = Disk()
    disk.capacity = 20 * SEGMENT
    yard = Yard(disk)
    fill(yard, size)
    for id in list(yard.broker.jobs):
        if by != "delete":
            assert yard.broker.reserve_job(yard.client, id, yard.now)
        if by == "bury and delete":
            assert yard.broker.bury(yard.client, id, 3, yard.now)
        assert yard.broker.delete(yard.client, id, yard.now)
        yard.tend_full()
    yard.settle()
    assert not yard.binlog.is_full
    assert yard.add(size)
    yard.tend_full()
    yard.check_after_crash(disk.crash(Chance(seeded(0), 0.5)))


def test_many_deletes_in_one_batch_have_room() -> None:
    disk = Disk()
    disk.capacity = 20 * SEGMENT
    yard = Yard(disk)
    fill(yard, 0)
    yard.delete_all()
    assert yard.commit()
    yard.check_after_crash(disk.crash(Chance(seeded(0), 0.0)))


def test_large_job_leaves_room_for_deletes() -> None:
    disk = Disk()
    disk.capacity = 20 * SEGMENT
    yard = Yard(disk)
    while yard.broker.put(yard.client, yard.broker.allocate_id(), 0, 0, SECOND, bytes(3 * SEGMENT), yard.now) > 0:
        fill(yard, 0) if len(yard.broker.jobs) > 3 else yard.tend_full()
    yard.delete_all()
    assert yard.commit()
    yard.check_after_crash(disk.crash(Chance(seeded(0), 0.0)))


def test_puts_are_accepted_as_soon_as_there_is_room() -> None:
    disk = Disk()
    disk.capacity = 10 * SEGMENT
    yard = Yard(disk)
    fill(yard, 1000)
    disk.capacity *= 2
    assert yard.add(1000)
    yard.tend_full()
    assert not yard.binlog.is_full


class Counting(Disk):
    """A disk that counts its syncs of files, and fails from one on if it is told to."""

    syncs = 0
    is_failing = False

    def sync(self, handle: int) -> None:
        if self.is_failing:
            raise OSError(errno.EIO, "sync")
        self.syncs += 1
        super().sync(handle)


@pytest.mark.parametrize("sync_interval", [0, SECOND // 20], ids=["-f 0", "-f 50"])
def test_each_successful_sync_is_counted_once_with_its_time(sync_interval: int) -> None:
    disk = Counting()
    bench = Bench(disk, seeded(3), sync_interval=sync_interval)
    at_start = sum(bench.binlog.stats().syncs.values())
    disk.syncs = 0
    for turn in range(200):
        disk.is_failing = turn % 20 == 0
        bench.turn()
    stats = bench.binlog.stats()
    counted = sum(stats.syncs.values()) - at_start
    assert 50 < counted <= disk.syncs
    assert disk.syncs - counted < 10, "one that worked before another of its batch failed is not told of"
    assert sum(count << length >> 1 for length, count in stats.syncs.items()) <= stats.sync_time
    assert stats.sync_time < sum(count << length for length, count in stats.syncs.items())


# Failures of upkeep


class Leaving(Disk):
    """A disk that fails to allocate files, and leaves them blank, while `code` is set; nor does it remove any."""

    code = 0

    def create(self, name: str, size: int) -> int:
        if self.code:
            super().close(super().create(name, 0))
            raise OSError(self.code, "cannot allocate", name)
        return super().create(name, size)

    def remove(self, name: str) -> None:
        if self.code:
            raise OSError(self.code, "cannot remove", name)
        super().remove(name)


def test_blank_file_of_a_failed_allocation_is_removed() -> None:
    disk = Leaving()
    yard = Yard(disk, SMALL)
    for turn in range(40):
        disk.code = errno.EIO if turn in (5, 6, 7, 20) else 0
        id = yard.broker.allocate_id()
        if yard.broker.put(yard.client, id, 1, 0, SECOND, bytes(1500), yard.now) > 0:
            assert yard.broker.delete(None, id, yard.now)
        yard.commit()
        yard.binlog.compact(SMALL)
        yard.keep_up()
        yard.check_after_crash(disk.crash(Chance(seeded(turn), 1.0)))
    yard.settle()
    assert [name for name in disk.list() if not disk.read(name)] == []
    assert len(disk.list()) <= 3


@pytest.mark.parametrize(
    ("call", "said"), [("create", "cannot allocate journal."), ("remove", "cannot remove journal.")]
)
def test_upkeep_error_is_logged_once_with_its_reason(call: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    yard = Yard(max_size=SMALL)
    for _ in range(10):
        assert yard.broker.delete(None, yard.add(500), yard.now)
        yard.tend()
    yard.disk.before = Fault(1, errno.EIO, is_lasting=True, calls=(call,))
    for _ in range(6):
        id = yard.broker.allocate_id()
        if yard.broker.put(yard.client, id, 1, 0, SECOND, bytes(1500), yard.now) > 0:
            assert yard.broker.delete(None, id, yard.now)
        yard.commit()
        yard.binlog.compact(SMALL)
        yard.keep_up()
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [said in error and "Input/output error" in error for error in errors if "cannot" in error] == [True]
    assert not any("full" in error for error in errors)
    assert not yard.binlog.is_full
    yard.disk.before = nothing
    yard.settle()
    assert "files can be created and removed again" in caplog.text
    assert yard.add(1500)


def test_error_without_errno_keeps_its_text() -> None:
    """That of a database: as one of a file it would read `[Errno None] None`."""

    def refuse(call: str) -> None:
        raise OSError("PostgreSQL: not now")

    yard = Yard()
    yard.add(1)
    yard.disk.before = refuse
    yard.commit()
    assert yard.binlog.trouble == "PostgreSQL: not now"


def test_records_without_a_segment_are_rewritten_and_written_ones_count() -> None:
    """Nothing is in doubt then: what the batch wrote before is on disk, and service does not stop."""
    disk = Disk()
    disk.capacity = 20 * SEGMENT
    yard = Yard(disk)
    fill(yard, 0)
    on_disk = yard.binlog.safe
    for _ in range(8):
        for id in list(yard.broker.jobs):
            assert yard.broker.reserve_job(yard.client, id, yard.now)
            assert yard.broker.release(yard.client, id, 7, 0, yard.now)
        assert yard.commit()
        assert yard.binlog.trouble is None
        assert yard.binlog.safe >= yard.binlog.promised > on_disk
    yard.check_after_crash(disk.crash(Chance(seeded(0), 0.0)))


# Removal between syncs


def test_finished_segments_are_removed_between_two_syncs() -> None:
    """A segment is synced when it is full: so what it replaces need not wait for the next sync."""
    bench = Bench(Disk(), seeded(0), sync_interval=SECOND)
    for _ in range(200):
        assert bench.broker.delete(None, bench.put(1500, 0), bench.now)
        assert bench.commit()
        bench.binlog.compact(SMALL)
        bench.keep_up()
        assert bench.disk.used <= 5 * SMALL


def test_unsynced_segments_are_removed_without_a_following_record() -> None:
    """A removal needs a later segment on disk, for which a batch without records is synced; else puts stay refused."""
    disk = Disk()
    disk.capacity = 20 * SEGMENT
    bench = Bench(disk, seeded(0), max_size=SEGMENT, sync_interval=None)
    while bench.put(500, 0):
        assert bench.commit()
        bench.keep_up()
    for id in list(bench.broker.jobs):
        assert bench.broker.delete(None, id, bench.now)
    for _ in range(4):
        if bench.binlog.has_records:
            assert bench.commit()
        assert not bench.binlog.compact(2**20)
        bench.keep_up()
    assert not bench.binlog.has_records
    assert len(disk.list()) <= 3
    assert bench.put(500, 0)
