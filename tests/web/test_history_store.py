"""The stored history: its format, restarts, damage and bounds."""

from __future__ import annotations

import random
from math import isnan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.tubes.durations import MAX_BUCKET, RELATIVE_ERROR
from greenstalk_server.web.features.history.archive import HOURS, MINUTES, SERVER, Archive
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

from .conftest import Queue
from .served import work
from .stored import local_store, locked

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
        self.store = local_store(directory)
        self.store.restore()
        self.archive = Archive(self.store)
        self.history = History(self.queue.broker, self.queue.clock, self.archive)
        self.history.restore()

    def work(self, minutes: int, tube: str = "mail") -> None:
        work(self.queue, self.history, minutes / 60, tube)
        self.wait()

    def wait(self) -> None:
        """Wait until all is written."""
        self.store.save()

    def restart(self, seconds: int = 0) -> Server:
        """Return a server that begins *seconds* later with the files of this one."""
        self.wait()
        new = Server.__new__(Server)
        new.queue, new.directory = Queue(), self.directory
        new.queue.now = self.queue.now + seconds * SECOND
        new.store = local_store(self.directory)
        new.store.restore()
        new.archive = Archive(new.store)
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
    assert not later.store.read("minutes-log"), "the log has become a block"
    again = later.restart(3600)
    assert [value for value in again.series(NINETY_DAYS) if value is not None] == known


def test_idle_time_of_the_server_is_unknown_and_of_a_tube_is_not(server: Server) -> None:
    server.work(5)
    later = server.restart(600)
    for _ in range(300):
        later.queue.now += SECOND
        later.history.tick()
    later.wait()
    found = later.series(HOUR)
    assert None not in found[-20:-15]
    assert found[-15:-5] == [None] * 10
    assert found[-5:] == [0] * 5, "the tube is known, and idle"


# Damage and bounds


def test_damaged_rows_are_left_out(server: Server) -> None:
    """Each frame and chunk has random bytes at a random place. Points that are read are unchanged, or unknown."""
    server.work(150)
    before = server.series(DAY)
    rng = random.Random(5)  # noqa: S311
    intact = {kind: server.store.read(kind) for kind in ("minutes", "minutes-log", "hours-log")}
    assert all(intact.values())
    for _ in range(20):
        for kind, rows in intact.items():
            for row in rows:
                at = rng.randrange(len(row.data))
                server.store.put(kind, row.number, row.name, row.data[:at] + rng.randbytes(rng.choice((0, 1, 50))))
        later = server.restart()
        assert len(later.series(DAY)) == len(before)
        later.wait()


def test_old_blocks_are_removed(server: Server) -> None:
    for block in range(40):
        server.archive.append(MINUTES, block * MINUTES.length, b"frame")
        server.archive.seal(MINUTES, block, {SERVER: b"x"})
    server.wait()
    assert sorted(server.store.sizes("minutes")) == list(range(39 - MINUTES.kept, 40))
    assert server.store.read("minutes-log") == []


@pytest.mark.parametrize("limit", ["MAX_BYTES", "MAX_MEMORY"])
def test_bytes_of_blocks_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """The blocks of the previous run count too."""
    monkeypatch.setattr(f"greenstalk_server.web.features.history.archive.{limit}", 20_000)
    store = local_store(tmp_path if limit == "MAX_BYTES" else None)
    store.restore()
    for block in range(0, 20, 10):
        archive = Archive(store)
        for tier in (MINUTES, HOURS):
            assert archive.load(tier) == []
        for each in range(block, block + 10):
            archive.seal(MINUTES, each, {SERVER: bytes(3000)})
            archive.seal(HOURS, each, {SERVER: bytes(100)})
        store.save()
    assert sorted(store.sizes("minutes")) == [17, 18, 19]
    assert len(store.sizes("hours")) == 20, "the other tier has its own bound"


@pytest.fixture
def short_busy_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not wait for the lock of its database."""
    monkeypatch.setattr("greenstalk_server.web.store.sqlite.BUSY_TIMEOUT", 0.01)


@pytest.mark.usefixtures("short_busy_timeout")  # before the server opens its database
def test_block_that_is_not_written_yet_is_read(server: Server, tmp_path: Path) -> None:
    with locked(tmp_path):
        server.archive.seal(MINUTES, 0, {b"mail": b"chunk"})
        server.store.save()
        assert "database is locked" in server.store.last_error
        assert server.archive.read(MINUTES, 0, 3, [b"mail"]) == {(0, b"mail"): b"chunk"}
    server.store.save()
    assert not server.store.last_error


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
