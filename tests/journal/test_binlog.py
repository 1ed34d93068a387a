"""The size of the directory, the space that the journal reserves for deletes and compaction, and failed maintenance."""

from __future__ import annotations

import errno
from random import Random

import pytest

from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import BURIED, SECOND
from greenstalk_server.core.operations import connecting, editing, finishing, kicking, putting, reserving, ticking
from greenstalk_server.journal.segment import name_of, numbers
from tests.journal.disk import Chance, Disk, Fault, no_fault, seeded
from tests.journal.workload import SMALL_SEGMENT, Bench, recovered
from tests.support.world import START

SEGMENT = 16384

sizes = pytest.mark.parametrize("size", [0, 100, 3000])


class PacedBench(Bench):
    """A bench that commits and compacts after each command, and then checks the size of the directory.

    copied  bytes that the last slice of compaction has copied.
    died    `JournalWriter.bytes_died` at the last commit.
    lived   live bytes at the last commit.
    """

    def __init__(
        self, disk: Disk | None = None, max_size: int = SEGMENT, random: Random | None = None, now: int = START
    ) -> None:
        super().__init__(disk or Disk(), random or seeded(0), now, max_size)
        self.max_size: int = max_size
        self.client: Client = connecting.connect(self.broker, lambda: None)
        self.copied: int = 0
        self.died: int = 0
        self.lived: int = 0

    def churn(self) -> None:
        """Put a job and delete it, unless there is no room; commit, compact and do the maintenance."""
        id = self.broker.allocate_id()
        if putting.put(self.broker, self.client, id, 1, 0, SECOND, bytes(1500), self.now) > 0:
            assert finishing.delete(self.broker, None, id, self.now)
        self.commit()
        self.journal.compact(SMALL_SEGMENT)
        self.run_maintenance()

    def commit_and_compact(self) -> None:
        """Commit, compact and run maintenance as the committer does; assert that the directory is within its bounds.

        Jobs that were deleted since the last call count as live: a file is removed once its copies are on disk.
        """
        batch = self.journal.take_batch(is_synced=True)
        batch.run()
        self.journal.complete_batch(batch)
        self.safe = batch.sequence
        before = self.journal.pending_bytes
        self.journal.compact(max(3 * (batch.size - self.copied + self.journal.bytes_died - self.died), SMALL_SEGMENT))
        self.copied = self.journal.pending_bytes - before
        self.died = self.journal.bytes_died
        self.run_maintenance()
        live, self.lived = max(self.lived, self.live_bytes), self.live_bytes
        assert self.disk.used <= 2.5 * live + 3 * self.max_size, (self.disk.used, live)
        stats = self.journal.stats()
        assert (stats.bytes_on_disk, stats.files) == (self.disk.used, len(self.disk.list()))
        assert stats.bytes_live == self.live_bytes <= stats.bytes_recorded

    def commit_on_full_disk(self) -> None:
        """Commit, compact and run maintenance on a full disk; assert success. Only the disk bounds the directory."""
        assert self.commit()
        self.journal.compact(SMALL_SEGMENT)
        self.run_maintenance()
        assert self.journal.write_error is None

    def disconnect_client(self) -> None:
        """Disconnect the client, so that its reserved jobs are ready again, and connect another one."""
        connecting.disconnect(self.broker, self.client, self.now)
        self.client = connecting.connect(self.broker, lambda: None)

    def put_job(self, size: int, pri: int = 10) -> int:
        """Put a job of *size* bytes; return its id."""
        id = self.broker.allocate_id()
        self.now += 1
        assert putting.put(self.broker, self.client, id, pri, 0, 60 * SECOND, bytes(size), self.now) > 0
        return id

    def reserve_any(self) -> int:
        """Reserve the next ready job; return its id."""
        job = reserving.reserve(self.broker, self.client, self.now)
        assert job is not None
        return job.id


# Size of the directory


@sizes
def test_directory_stays_small_under_bury_and_kick_of_one_job(size: int) -> None:
    bench = PacedBench()
    id = bench.put_job(size)
    for _ in range(2000):
        assert bench.reserve_any() == id
        assert finishing.bury(bench.broker, bench.client, id, 5, bench.now)
        bench.commit_and_compact()
        assert kicking.kick(bench.broker, bench.broker.tubes[b"default"], BURIED, 1, bench.now) == 1
        bench.commit_and_compact()
    assert bench.journal.stats().records_migrated > 5


def test_directory_stays_small_under_reservations_alone() -> None:
    """No reply waits for the records of reservations, but they take space too."""
    bench = PacedBench()
    bench.put_job(100)
    for _ in range(5000):
        bench.reserve_any()
        bench.disconnect_client()
        bench.commit_and_compact()


@sizes
def test_directory_stays_small_with_one_old_job_among_short_lived_ones(size: int) -> None:
    bench = PacedBench()
    oldest = bench.put_job(size, pri=2**32 - 1)
    for _ in range(1500):
        assert finishing.delete(bench.broker, None, bench.put_job(size, pri=1), bench.now)
        bench.commit_and_compact()
    assert list(bench.broker.jobs) == [oldest]
    bench.check_after_crash(bench.disk.crash(Chance(seeded(0), 0.5)))


@pytest.mark.parametrize("seed", range(4))
def test_directory_stays_small_under_random_commands(seed: int) -> None:
    bench = PacedBench(random=seeded(seed))
    for _ in range(1500):
        bench.run_commands(3)
        bench.commit_and_compact()
    bench.check_recorded()
    bench.check_after_crash(bench.disk.crash(Chance(seeded(0), 0.5)))


@sizes
@pytest.mark.parametrize("one_in", [1, 7, 50])
def test_directory_shrinks_when_most_jobs_are_deleted(size: int, one_in: int) -> None:
    bench = PacedBench()
    for _ in range(600):
        bench.put_job(size)
        bench.commit_and_compact()
    for id in range(1, 601):
        if id % one_in or one_in == 1:
            assert finishing.delete(bench.broker, None, id, bench.now)
            bench.commit_and_compact()
    bench.settle()
    bench.commit_and_compact()


@pytest.mark.parametrize("size", [0, 100, 3000, 100_000])
def test_empty_journal_has_one_segment_and_one_ahead(size: int) -> None:
    bench = PacedBench()
    for _ in range(300 if size < 10_000 else 20):
        bench.put_job(size)
        bench.commit_and_compact()
    bench.delete_all()
    bench.settle()
    assert len(numbers(bench.disk.list())) == 2
    assert bench.disk.used == 2 * SEGMENT
    assert bench.disk.open_files == 2


def test_restarts_do_not_grow_the_directory() -> None:
    disk = Disk()
    for _ in range(50):
        bench = PacedBench(disk)
        assert finishing.delete(bench.broker, None, bench.put_job(100), bench.now)
        bench.settle()
        bench.commit_and_compact()
        disk = disk.crash(Chance(seeded(0), 1.0))
    assert len(numbers(disk.list())) <= 3


def test_failures_do_not_leak_space() -> None:
    bench = PacedBench()
    for _ in range(20):
        bench.put_job(500)
    bench.commit_and_compact()
    for _ in range(50):
        bench.journal.note_failure(OSError("once"))
        assert bench.commit()
        bench.put_job(500)
        bench.settle(3)
        bench.commit_and_compact()


# Statistics


def test_stats_match_the_files() -> None:
    bench = PacedBench(max_size=SMALL_SEGMENT)
    stats = bench.journal.stats()
    assert (stats.oldest_index, stats.current_index, stats.max_size) == (1, 1, SMALL_SEGMENT)
    for _ in range(100):
        bench.put_job(100)
        bench.commit_and_compact()
    for id in range(1, 100):
        assert finishing.delete(bench.broker, None, id, bench.now)
        bench.commit_and_compact()
    bench.settle()
    stats = bench.journal.stats()
    used = [number for number in numbers(bench.disk.list()) if bench.disk.read(name_of(number)).strip(b"\0")]
    assert (stats.oldest_index, stats.current_index) == (used[0], used[-1])
    assert stats.records_written == 199 + stats.records_migrated
    assert bench.broker.jobs[100].segment in used


def check_sizes(bench: PacedBench) -> None:
    """Assert that the statistics have the number and the size of the files."""
    stats = bench.journal.stats()
    assert (stats.bytes_on_disk, stats.files) == (bench.disk.used, len(bench.disk.list()))


def test_stats_count_a_file_at_its_size_until_a_batch_extends_it() -> None:
    """Compaction has copied a large job to a segment of normal size, whose file the next batch extends."""
    bench = PacedBench(max_size=SMALL_SEGMENT)
    id = bench.put_job(3 * SMALL_SEGMENT)
    first = bench.broker.jobs[id].segment
    bench.commit()
    while bench.broker.jobs[id].segment == first:
        assert finishing.delete(bench.broker, None, bench.put_job(1500), bench.now)
        bench.commit()
        bench.run_maintenance()
        bench.journal.compact(SMALL_SEGMENT)
    name = name_of(bench.broker.jobs[id].segment)
    assert len(bench.disk.read(name)) == SMALL_SEGMENT
    check_sizes(bench)
    bench.commit()
    assert len(bench.disk.read(name)) > 3 * SMALL_SEGMENT
    check_sizes(bench)


def test_stats_match_the_files_while_a_batch_runs() -> None:
    """The thread of the batch has finished segments, and created files, that it has not reported yet."""
    bench = PacedBench(max_size=SMALL_SEGMENT)
    for _ in range(10):
        bench.put_job(900)
    id = bench.put_job(0)
    for _ in range(100):
        assert finishing.bury_job(bench.broker, id, bench.now)
        assert kicking.kick_job(bench.broker, id, bench.now)
    batch = bench.journal.take_batch(is_synced=True)
    check_sizes(bench)
    calls: list[str] = []

    def check(call: str) -> None:
        calls.append(call)
        if call in ("write", "sync"):
            check_sizes(bench)

    bench.disk.before = check
    batch.run()
    assert {"create", "truncate"} <= set(calls)
    check_sizes(bench)
    bench.journal.complete_batch(batch)
    check_sizes(bench)


def test_stats_count_a_truncated_file_that_cannot_be_removed_at_its_size() -> None:
    bench = PacedBench(max_size=SMALL_SEGMENT)
    bench.disk.before = Fault(1, errno.EIO, is_lasting=True, calls=("remove",))
    for _ in range(6):
        bench.churn()
    assert len(bench.disk.list()) > 2
    check_sizes(bench)


def test_stats_count_the_damaged_end_of_a_file_after_a_restart() -> None:
    bench = PacedBench(max_size=SMALL_SEGMENT)
    for _ in range(20):
        bench.put_job(900)
    bench.commit_and_compact()
    disk = bench.disk.crash(Chance(seeded(0), 1.0))
    damaged = disk.cached(name_of(2))
    damaged[100:] = b"x" * (len(damaged) - 100)
    after = PacedBench(disk, SMALL_SEGMENT)
    assert 0 < len(after.broker.jobs) < 20
    check_sizes(after)


def test_segment_of_a_job_has_its_record() -> None:
    bench = PacedBench(max_size=SMALL_SEGMENT)
    for _ in range(60):
        bench.put_job(200)
        bench.commit_and_compact()
    for job in bench.broker.jobs.values():
        assert b"\1" + job.id.to_bytes(8, "little") in bench.disk.read(name_of(job.segment))


def test_segments_do_not_exceed_max_size() -> None:
    bench = PacedBench(max_size=SMALL_SEGMENT)
    for _ in range(100):
        bench.put_job(500)
        bench.commit_and_compact()
    assert {len(data) for data in bench.disk.contents().values()} <= set(range(SMALL_SEGMENT + 1))


# Records larger than a segment


def test_job_larger_than_a_segment_is_recovered() -> None:
    bench = PacedBench(max_size=SMALL_SEGMENT)
    small = bench.put_job(10)
    large = [
        bench.put_job(size)
        for size in (SMALL_SEGMENT - 200, SMALL_SEGMENT - 100, SMALL_SEGMENT, 5 * SMALL_SEGMENT, 300_000)
    ]
    last = bench.put_job(10)
    bench.commit_and_compact()
    bench.check_after_crash(bench.disk.crash(Chance(seeded(0), 0.0)))
    assert recovered(bench.disk.crash(Chance(seeded(0), 0.0)), START).jobs.keys() == {small, *large, last}


def test_directory_stays_small_under_large_jobs() -> None:
    bench = PacedBench(max_size=SMALL_SEGMENT)
    for _ in range(100):
        first = bench.put_job(3 * SMALL_SEGMENT)
        bench.settle(2)
        bench.put_job(10)
        bench.settle(2)
        assert finishing.delete(bench.broker, None, first, bench.now)
        bench.settle(2)
        assert bench.disk.used <= 2.5 * bench.live_bytes + 3 * 4 * SMALL_SEGMENT


def pause_tubes(bench: PacedBench, count: int) -> None:
    """Pause *count* tubes for 300 to 300 + *count* seconds; every other one has no job, and no client watches it."""
    for number in range(count):
        connecting.watch(bench.broker, bench.client, b"%0200d" % number)
        assert editing.pause_tube(bench.broker, b"%0200d" % number, (300 + number) * SECOND, bench.now)
        if number % 2:
            connecting.ignore(bench.broker, bench.client, b"%0200d" % number)


def churn(bench: PacedBench, segments: int) -> None:
    """Put and delete jobs until the oldest *segments* segments are removed."""
    until = bench.journal.stats().oldest_index + segments
    while bench.journal.stats().oldest_index < until:
        assert finishing.delete(bench.broker, None, bench.put_job(500), bench.now)
        bench.settle(2)


def test_new_segment_repeats_no_pause() -> None:
    """With 50,000 paused tubes, their records would hold the event loop for 30 ms."""
    bench = PacedBench(max_size=SMALL_SEGMENT)
    pause_tubes(bench, 10)
    records = bench.journal.stats().records_written
    bench.journal._log.begin_segment(0)
    assert bench.journal.stats().records_written == records


def test_pauses_survive_the_removal_of_their_segments() -> None:
    bench = PacedBench(max_size=SMALL_SEGMENT)
    pause_tubes(bench, 60)
    churn(bench, 20)
    bench.check_after_crash(bench.disk.crash(Chance(seeded(0), 0.0)))


def test_ended_pauses_are_not_copied() -> None:
    bench = PacedBench(max_size=SMALL_SEGMENT)
    pause_tubes(bench, 60)
    assert bench.journal.stats().bytes_live > 60 * 200
    assert editing.pause_tube(bench.broker, b"%0200d" % 0, 0, bench.now)
    bench.now += 400 * SECOND
    ticking.tick(bench.broker, bench.now)
    assert bench.journal.stats().bytes_live == 0
    churn(bench, 20)
    bench.check_after_crash(bench.disk.crash(Chance(seeded(0), 0.0)))


# Space for deletes


def fill(bench: PacedBench, size: int) -> None:
    """Put jobs of *size* bytes until one is refused because the disk is full."""
    for _ in range(10_000):
        id = bench.broker.allocate_id()
        if putting.put(bench.broker, bench.client, id, 10, 0, 60 * SECOND, bytes(size), bench.now) < 0:
            assert bench.journal.is_full
            return
        bench.commit_on_full_disk()
    raise AssertionError("the disk has not become full")


@sizes
@pytest.mark.parametrize("by", ["delete", "reserve and delete", "bury and delete"])
def test_full_disk_refuses_puts_and_accepts_every_delete(size: int, by: str) -> None:
    disk = Disk()
    disk.capacity = 20 * SEGMENT
    bench = PacedBench(disk)
    fill(bench, size)
    for id in list(bench.broker.jobs):
        if by != "delete":
            assert reserving.reserve_job(bench.broker, bench.client, id, bench.now)
        if by == "bury and delete":
            assert finishing.bury(bench.broker, bench.client, id, 3, bench.now)
        assert finishing.delete(bench.broker, bench.client, id, bench.now)
        bench.commit_on_full_disk()
    bench.settle()
    assert not bench.journal.is_full
    assert bench.put_job(size)
    bench.commit_on_full_disk()
    bench.check_after_crash(disk.crash(Chance(seeded(0), 0.5)))


def test_many_deletes_in_one_batch_have_room() -> None:
    disk = Disk()
    disk.capacity = 20 * SEGMENT
    bench = PacedBench(disk)
    fill(bench, 0)
    bench.delete_all()
    assert bench.commit()
    bench.check_after_crash(disk.crash(Chance(seeded(0), 0.0)))


def test_large_job_leaves_room_for_deletes() -> None:
    disk = Disk()
    disk.capacity = 20 * SEGMENT
    bench = PacedBench(disk)
    while (
        putting.put(bench.broker, bench.client, bench.broker.allocate_id(), 0, 0, SECOND, bytes(3 * SEGMENT), bench.now)
        > 0
    ):
        fill(bench, 0) if len(bench.broker.jobs) > 3 else bench.commit_on_full_disk()
    bench.delete_all()
    assert bench.commit()
    bench.check_after_crash(disk.crash(Chance(seeded(0), 0.0)))


@pytest.mark.parametrize("segments", [8, 11, 14])
def test_accepted_puts_have_room_though_updates_have_begun_segments_without_a_file(segments: int) -> None:
    """Updates of one batch use up the segments ahead and begin others, whose files only the batch creates."""
    disk, size = Disk(), 2000
    disk.capacity = segments * SEGMENT
    bench = PacedBench(disk)
    updated = bench.put_job(0)
    bench.commit_on_full_disk()

    def put() -> bool:
        id = bench.broker.allocate_id()
        return putting.put(bench.broker, bench.client, id, 10, 0, 60 * SECOND, bytes(size), bench.now) > 0

    def has_file() -> bool:
        return name_of(bench.journal.stats().current_index) in disk.list()

    is_refused = False
    while not is_refused:
        while has_file():
            assert finishing.bury_job(bench.broker, updated, bench.now)
            assert kicking.kick_job(bench.broker, updated, bench.now)
        while not has_file() and not is_refused:
            is_refused = not put()
        for _ in range(SEGMENT // (size + 100) - 5):
            is_refused = is_refused or not put()
    assert len(bench.broker.jobs) > SEGMENT // (size + 100)
    assert bench.commit()
    assert bench.journal.write_error is None
    bench.check_after_crash(disk.crash(Chance(seeded(0), 0.0)))


def test_puts_are_accepted_as_soon_as_there_is_room() -> None:
    disk = Disk()
    disk.capacity = 10 * SEGMENT
    bench = PacedBench(disk)
    fill(bench, 1000)
    disk.capacity *= 2
    assert bench.put_job(1000)
    bench.commit_on_full_disk()
    assert not bench.journal.is_full


class SyncCountingDisk(Disk):
    """A disk that counts the successful syncs of files; while `is_failing`, they fail."""

    syncs = 0
    is_failing = False

    def sync(self, handle: int) -> None:
        if self.is_failing:
            raise OSError(errno.EIO, "sync")
        self.syncs += 1
        super().sync(handle)


@pytest.mark.parametrize("sync_interval", [0, SECOND // 20], ids=["-f 0", "-f 50"])
def test_each_successful_sync_is_counted_once_with_its_time(sync_interval: int) -> None:
    disk = SyncCountingDisk()
    bench = Bench(disk, seeded(3), sync_interval=sync_interval)
    before = sum(bench.journal.stats().syncs.values())
    disk.syncs = 0
    for turn in range(200):
        disk.is_failing = turn % 20 == 0
        bench.step()
    stats = bench.journal.stats()
    counted = sum(stats.syncs.values()) - before
    assert 50 < counted <= disk.syncs
    assert disk.syncs - counted < 10, "only successful syncs of failed batches may be missing from the count"
    assert sum(count << length >> 1 for length, count in stats.syncs.items()) <= stats.sync_time
    assert stats.sync_time < sum(count << length for length, count in stats.syncs.items())


# Failures of maintenance


class BlankFileDisk(Disk):
    """A disk that, while `code` is set, leaves a blank file at each failed allocation, and cannot remove files."""

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
    disk = BlankFileDisk()
    bench = PacedBench(disk, SMALL_SEGMENT)
    for turn in range(40):
        disk.code = errno.EIO if turn in (5, 6, 7, 20) else 0
        bench.churn()
        bench.check_after_crash(disk.crash(Chance(seeded(turn), 1.0)))
    bench.settle()
    assert [name for name in disk.list() if not disk.read(name)] == []
    assert len(disk.list()) <= 3


@pytest.mark.parametrize(
    ("call", "message"), [("create", "cannot allocate journal."), ("remove", "cannot remove journal.")]
)
def test_maintenance_error_is_logged_once_with_its_reason(
    call: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = PacedBench(max_size=SMALL_SEGMENT)
    for _ in range(10):
        assert finishing.delete(bench.broker, None, bench.put_job(500), bench.now)
        bench.commit_and_compact()
    bench.disk.before = Fault(1, errno.EIO, is_lasting=True, calls=(call,))
    for _ in range(6):
        bench.churn()
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [message in error and "Input/output error" in error for error in errors if "cannot" in error] == [True]
    assert not any("full" in error for error in errors)
    assert not bench.journal.is_full
    bench.disk.before = no_fault
    bench.settle()
    assert "files can be created and removed again" in caplog.text
    assert bench.put_job(1500)


def test_error_without_errno_keeps_its_text() -> None:
    """An error of a database has no errno, and must not read `[Errno None] None`, as an error of a file would."""

    def refuse(call: str) -> None:
        raise OSError("PostgreSQL: not now")

    bench = PacedBench()
    bench.put_job(1)
    bench.disk.before = refuse
    bench.commit()
    assert bench.journal.write_error == "PostgreSQL: not now"


def test_batch_cut_short_by_a_full_disk_is_completed_by_a_rewrite() -> None:
    """No record is in doubt: written records count, the others are rewritten, and service continues."""
    disk = Disk()
    disk.capacity = 20 * SEGMENT
    bench = PacedBench(disk)
    fill(bench, 0)
    on_disk = bench.journal.safe
    for _ in range(8):
        for id in list(bench.broker.jobs):
            assert reserving.reserve_job(bench.broker, bench.client, id, bench.now)
            assert finishing.release(bench.broker, bench.client, id, 7, 0, bench.now)
        assert bench.commit()
        assert bench.journal.write_error is None
        assert bench.journal.safe >= bench.journal.promised > on_disk
    bench.check_after_crash(disk.crash(Chance(seeded(0), 0.0)))


# Removal between syncs


def test_finished_segments_are_removed_between_two_syncs() -> None:
    """A segment is synced when it is full, so the segments that it replaces need not wait for the next sync."""
    bench = Bench(Disk(), seeded(0), sync_interval=SECOND)
    for _ in range(200):
        assert finishing.delete(bench.broker, None, bench.put(1500, 0), bench.now)
        assert bench.commit()
        bench.journal.compact(SMALL_SEGMENT)
        bench.run_maintenance()
        assert bench.disk.used <= 5 * SMALL_SEGMENT


def test_unsynced_segments_are_removed_without_a_following_record() -> None:
    """A removal needs a later segment on disk: a batch without records is synced for it, or puts would stay refused."""
    disk = Disk()
    disk.capacity = 20 * SEGMENT
    bench = Bench(disk, seeded(0), max_size=SEGMENT, sync_interval=None)
    while bench.put(500, 0):
        assert bench.commit()
        bench.run_maintenance()
    for id in list(bench.broker.jobs):
        assert finishing.delete(bench.broker, None, id, bench.now)
    for _ in range(4):
        if bench.journal.has_records:
            assert bench.commit()
        assert not bench.journal.compact(2**20)
        bench.run_maintenance()
    assert not bench.journal.has_records
    assert len(disk.list()) <= 3
    assert bench.put(500, 0)
