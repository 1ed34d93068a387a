"""The history on disk: restarts, damage at every byte, full disks, and bounds."""

from __future__ import annotations

import errno
import random
from math import isnan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.tubes.durations import MAX_BUCKET, RELATIVE_ERROR
from greenstalk_server.web.features.history import files
from greenstalk_server.web.features.history.archive import HOURS, MINUTES, SERVER, Archive, MemoryStore, Tier
from greenstalk_server.web.features.history.files import HistoryFiles, intact_frames
from greenstalk_server.web.features.history.history import History
from greenstalk_server.web.features.history.points import (
    NO_VALUES,
    Entry,
    Point,
    add_to_chunk,
    decode_chunk,
    decode_frame,
    decode_point,
    encode_entry,
    encode_frame,
    encode_point,
    frame_number,
    offsets,
)
from greenstalk_server.web.features.history.rings import DAY, HOUR, NINETY_DAYS, WEEK, Span
from greenstalk_server.web.features.marks.marks import Mark, Marks, encode

from .conftest import Queue
from .served import work
from .turns import until

sketches = st.dictionaries(st.integers(0, MAX_BUCKET), st.integers(1, 10**12), max_size=40)
buckets = st.lists(st.integers(0, MAX_BUCKET), min_size=3, max_size=3).map(lambda found: tuple(sorted(found)))
values = st.lists(st.one_of(st.just(0), st.integers(0, 2**62)), min_size=len(NO_VALUES), max_size=len(NO_VALUES))
points = st.builds(
    Point,
    st.integers(1, 3600),
    values.map(tuple),
    st.one_of(st.just(()), buckets),
    st.one_of(st.just(()), buckets),
    st.booleans(),
)


class Server:
    """A history in *directory*, which the test drives; `restart` replaces it without any orderly end."""

    def __init__(self, directory: Path) -> None:
        self.queue = Queue()
        self.directory = directory
        self.files = HistoryFiles(str(directory))
        self.archive = Archive(self.files)
        self.history = History(self.queue.broker, self.queue.clock, self.archive)
        self.history.restore()

    def work(self, minutes: int, tube: str = "mail") -> None:
        work(self.queue, self.history, minutes / 60, tube)
        self.wait()

    def wait(self) -> None:
        """Wait until all is written."""
        if self.archive._writer:
            self.archive._writer.join()

    def restart(self, seconds: int = 0) -> Server:
        """Return a server that begins *seconds* later with the files of this one."""
        self.wait()
        new = Server.__new__(Server)
        new.queue, new.directory = Queue(), self.directory
        new.queue.now = self.queue.now + seconds * SECOND
        new.files = HistoryFiles(str(self.directory))
        new.archive = Archive(new.files)
        new.history = History(new.queue.broker, new.queue.clock, new.archive)
        new.history.restore()
        return new

    def series(self, span: Span, key: str = "put", tube: bytes | None = b"mail") -> list[float | None]:
        found = self.history.columns(tube, span).series[key]
        return [None if isnan(value) else value for value in found]


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


# The format


@given(points)
def test_point_is_read_as_written(point: Point) -> None:
    assert decode_point(encode_point(point)) == point


@given(st.integers(0, 2**40), st.lists(st.tuples(st.binary(max_size=200), points, sketches, sketches), max_size=5))
def test_frame_is_read_as_written(
    number: int, entries: list[tuple[bytes, Point, dict[int, int], dict[int, int]]]
) -> None:
    written = [Entry(name, encode_point(point), waits, runs) for name, point, waits, runs in entries]
    frame = encode_frame(number, map(encode_entry, written))
    assert frame_number(frame) == number
    assert list(decode_frame(frame)) == written


@given(st.dictionaries(st.integers(0, 59), points, max_size=10))
def test_chunk_is_read_as_written(expected: dict[int, Point]) -> None:
    chunk = bytearray()
    for offset, point in sorted(expected.items()):
        add_to_chunk(chunk, offset, encode_point(point))
    assert dict(decode_chunk(chunk, 60)) == expected
    assert offsets(chunk) == sorted(expected)


@given(st.binary(max_size=100))
def test_noise_is_refused(data: bytes) -> None:
    """Each reader returns something or raises ValueError: no other error, and no endless loop."""
    for read in (decode_point, frame_number, offsets, lambda data: list(decode_chunk(data, 60))):
        try:
            read(data)
        except ValueError:
            continue
    try:
        assert all(len(entry.name) <= 200 for entry in decode_frame(data))
    except ValueError:
        return


# Restarts


def test_restart_continues_the_history(server: Server) -> None:
    """In the middle of an hour: the minutes are there, and the hour has the quantiles of both parts."""
    server.work(30)
    before = {key: server.series(HOUR, key) for key in ("put", "ready", "wait_p50", "run_p99")}
    later = server.restart()
    assert {key: later.series(HOUR, key) for key in before} == before
    assert later.series(HOUR, tube=None)[-30:] == before["put"][-30:]
    assert [None if isnan(one) else one for one in later.history.last_hour(b"mail", "put")] == before["put"]
    later.work(30)
    assert later.series(HOUR)[:30] == before["put"][-30:]
    again = later.restart()
    assert again.history.last_hour(b"mail", "put") == later.series(HOUR), "of the hour before, too"
    [expected] = [value for value in later.series(WEEK, "run_p50") if value is not None]
    assert expected == pytest.approx(1, rel=RELATIVE_ERROR)
    hour = later.series(WEEK)[-1]
    minutes = [value for value in later.series(HOUR) if value is not None]
    assert hour == pytest.approx(sum(minutes) / len(minutes))


def test_restart_after_hours_closes_the_previous_hour(server: Server) -> None:
    server.work(90)
    rates = server.series(DAY)[-30:]
    later = server.restart(5 * 3600)
    week = later.series(WEEK)
    assert week[-4:] == [None] * 4
    known = [value for value in week if value is not None]
    assert len(known) == 2
    assert known[-1] == pytest.approx(sum(rates) / 30)  # type: ignore[arg-type]
    assert later.series(DAY)[-330:-300] == rates
    later.wait()
    assert not list((server.directory / "history").glob("minutes-*.log")), "the log has become a block"
    again = later.restart(3600)
    assert [value for value in again.series(NINETY_DAYS) if value is not None] == known


# Damage


def written(directory: Path) -> tuple[Path, list[bytes]]:
    """Return a small log, and its frames."""
    files = HistoryFiles(str(directory))
    point = encode_point(Point(60, (7, *NO_VALUES[1:]), (100, 120, 130), ()))
    for number in range(3):
        entries = [Entry(SERVER, point, {}, {}), Entry(b"mail", point, {100: 3, 130: 1}, {})]
        files.append(MINUTES, 0, number, encode_frame(number, map(encode_entry, entries)))
    [(block, frames)] = HistoryFiles(str(directory)).load(MINUTES)
    assert (block, len(frames)) == (0, 3)
    return directory / "history" / "minutes-0.log", frames


def test_log_cut_at_every_byte_loses_the_last_frame_at_most(tmp_path: Path) -> None:
    path, frames = written(tmp_path)
    data = path.read_bytes()
    for end in range(len(data)):
        found, used = intact_frames(data[:end])
        complete = sum(end >= position for position in frame_ends(frames))
        assert found == frames[:complete]
        assert used <= end


def frame_ends(frames: list[bytes]) -> list[int]:
    ends, at = [], len(files.LOG_MAGIC)
    for frame in frames:
        at += files.HEAD.size + len(frame)
        ends.append(at)
    return ends


def test_log_with_a_flipped_bit_never_has_a_wrong_frame(tmp_path: Path) -> None:
    path, frames = written(tmp_path)
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        found, _ = intact_frames(bytes(damaged))
        assert [frame for frame in found if frame not in frames] == []
        in_frame = len(files.LOG_MAGIC) + files.HEAD.size <= bit // 8 < frame_ends(frames)[0]
        if in_frame:
            assert found == frames[1:], "the other frames are still read"


def test_append_after_a_torn_frame_replaces_it(tmp_path: Path) -> None:
    path, frames = written(tmp_path)
    path.write_bytes(path.read_bytes()[:-3])
    files = HistoryFiles(str(tmp_path))
    assert files.load(MINUTES) == [(0, frames[:2])]
    files.append(MINUTES, 0, 3, frames[0])
    assert HistoryFiles(str(tmp_path)).load(MINUTES) == [(0, [*frames[:2], frames[0]])]


def test_damaged_block_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Cut at every byte, and with each bit flipped: a chunk is read as it was, or not at all."""
    files = HistoryFiles(str(tmp_path))
    chunks = {SERVER: b"server's", b"mail": b"chunk", b"mai": b"other", b"idle": b""}
    files.seal(HOURS, 7, chunks)
    path = tmp_path / "history" / "hours-7"
    data = path.read_bytes()
    names = list(chunks)
    expected = [(7, name, chunk) for name, chunk in chunks.items()]
    assert files.read(HOURS, 0, 9, names) == expected
    assert files.read(HOURS, 0, 9, [b"ail", b"m"]) == []
    for end in range(len(data)):
        path.write_bytes(data[:end])
        assert [one for one in files.read(HOURS, 7, 7, names) if one not in expected] == []
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert files.read(HOURS, 7, 7, names) == [], bit
    assert caplog.text.count("is damaged") == 1, "reported once"


def test_server_starts_with_any_damage(server: Server) -> None:
    """Each file has random bytes at a random place; what is read is what was written, or unknown."""
    server.work(150)
    before = {span: server.series(span) for span in (DAY, WEEK)}
    rng = random.Random(5)  # noqa: S311
    files = {path: path.read_bytes() for path in (server.directory / "history").iterdir()}
    assert len(files) == 4, "two blocks of minutes, and a log of each tier"
    for _ in range(30):
        for path, data in files.items():
            at = rng.randrange(len(data))
            path.write_bytes(data[:at] + rng.randbytes(rng.choice((0, 1, 50))) + data[at + rng.randrange(50) :])
        later = server.restart()
        for span, expected in before.items():
            found = later.series(span)
            wrong = [
                pair for pair in zip(found, expected, strict=True) if pair[0] not in (None, 0) and pair[0] != pair[1]
            ]
            assert wrong == [] or span is WEEK, "an hour may have fewer minutes than were counted"
        later.wait()


# Failing disks


class FailingFiles(HistoryFiles):
    """Files on a disk that is full while `is_full`."""

    is_full: bool = False
    attempts: int = 0

    def append(self, tier: Tier, block: int, number: int, frame: bytes) -> None:
        self.attempts += 1
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(tier, block, number, frame)


def test_full_disk_is_logged_once_and_written_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = FailingFiles(str(tmp_path))
    archive = Archive(files)
    files.is_full = True
    for number in range(3):
        archive.append(MINUTES, number, b"\0frame")
    until(lambda: "No space left" in archive.trouble)
    assert caplog.text.count("cannot be written") == 1
    assert not (tmp_path / "history").exists()
    files.is_full = False
    archive._retry.set()
    assert archive._writer is not None
    archive._writer.join()
    archive._retry.clear()
    archive.append(MINUTES, 3, b"\0frame")
    archive._writer.join()
    [(_, frames)] = HistoryFiles(str(tmp_path)).load(MINUTES)
    assert len(frames) == 4
    assert archive.trouble == ""


# Bounds


def test_old_blocks_are_removed(tmp_path: Path) -> None:
    files = HistoryFiles(str(tmp_path))
    for block in range(40):
        files.seal(MINUTES, block, {SERVER: b"x"})
    found = {path.name for path in (tmp_path / "history").iterdir()}
    assert found == {f"minutes-{block}" for block in range(39 - MINUTES.kept, 40)}


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_bytes_of_blocks_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 20_000)
    monkeypatch.setattr("greenstalk_server.web.features.history.archive.MAX_MEMORY", 20_000)
    store = HistoryFiles(str(tmp_path)) if kind == "files" else MemoryStore()
    for block in range(20):
        store.seal(MINUTES, block, {SERVER: bytes(3000)})
        store.seal(HOURS, block, {SERVER: bytes(100)})
    kept = [block for block, _, _ in store.read(MINUTES, 0, 99, [SERVER])]
    assert sorted(kept) == [17, 18, 19]
    assert len(store.read(HOURS, 0, 99, [SERVER])) == 20, "the other tier has its own bound"


def test_clock_that_was_set_back_changes_no_point(server: Server) -> None:
    server.work(10)
    before = server.series(HOUR)
    later = server.restart()
    later.queue.now -= 300 * SECOND
    later.history = History(later.queue.broker, later.queue.clock, later.archive)
    later.history.restore()
    later.work(10)
    after = later.series(HOUR)
    assert after[-15:-5] == before[-10:]


def test_mark_that_is_added_before_the_restore_replaces_no_earlier_mark(server: Server) -> None:
    earlier, now = Mark(server.queue.now - SECOND, "deployed 4.1"), server.queue.now
    server.files.save_marks(encode([earlier]))
    marks = Marks(server.archive, server.queue.clock)
    marks.add("deployed 4.2")
    server.wait()
    marks.restore()
    server.wait()
    assert [mark.text for mark in marks.find(None, 0, now)] == ["deployed 4.1", "deployed 4.2"]
    again = Marks(server.archive, server.queue.clock)
    again.restore()
    assert again.find(None, 0, now) == marks.find(None, 0, now)
