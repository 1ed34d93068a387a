"""Damage of every kind. Recovery never raises, never invents a job, and says what it lost.

A short story is told in three segments, each record of them known by its place; then they are cut, flipped,
repeated, shuffled, taken away.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core import job_history
from greenstalk_server.core.client import Client
from greenstalk_server.core.job import BURIED, DELAYED, READY, RESERVED, SECOND, Job
from greenstalk_server.core.tube import Tube
from greenstalk_server.journal import record
from greenstalk_server.journal.record import Encoder, SegmentHeader
from greenstalk_server.journal.recovery import SECTOR, Damage, Recovery
from greenstalk_server.journal.segment import name_of, numbers
from greenstalk_server.journal.startup import replay_all
from greenstalk_server.runtime.exit_codes import StartError
from tests.journal import version1
from tests.journal.disk import Disk, seeded
from tests.journal.workload import recovered
from tests.support.world import START

HEADER_SIZE = record.SEGMENT_HEADER_SIZE


@dataclass
class Story:
    """Segments by number, the place of each record in them, and every way that each job has ever looked."""

    segments: dict[int, bytes] = field(default_factory=dict)
    places: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    contents: dict[int, tuple[bytes, bytes, int, int]] = field(default_factory=dict)
    figures: dict[int, set[tuple[str, int]]] = field(default_factory=dict)
    events: dict[int, set[job_history.Event]] = field(default_factory=dict)
    _sequence: int = 0
    _number: int = 0
    _salt: bytes = b"none"
    _encoder: Encoder = field(default_factory=lambda: Encoder(b"none"))

    def begin(self, next_id: int) -> None:
        self._number += 1
        self._salt = salt = b"slt%d" % self._number
        self._encoder = Encoder(salt)
        self.segments[self._number] = SegmentHeader(salt, self._number, self._sequence + 1, next_id).encode()
        self.places[self._number] = []

    def job(self, job: Job) -> None:
        self.contents[job.id] = (job.tube.name, job.body, job.ttr, job.created_at)
        self._see(job)
        self._add(self._encoder.job(job, self._next(), job.events))

    def update(self, job: Job, kind: int) -> None:
        """An event of *kind*, of nobody's doing, has made *job* what it is."""
        job.events = job_history.add(job.events, kind, START, job_history.NOBODY)
        self._see(job)
        self._add(self._encoder.update(job, self._next()))

    def reserve(self, job: Job) -> None:
        """*job* is reserved, for as long as this takes."""
        job.state, job.reserved_at, job.holder = RESERVED, START, Client(job.tube, lambda: None, 7)
        self._add(self._encoder.reserve(job, self._next()))
        job.events = job_history.add(job.events, job_history.RESERVED, START, 7)
        job.holder = None
        self._see(job)

    def lapse(self, job: Job) -> None:
        """The reservation of *job* times out."""
        job.events = job_history.add(job.events, job_history.TIMED_OUT, START, 7)
        self._see(job)
        self._add(self._encoder.lapse(job, self._next()))

    def update_by_version_1(self, job: Job) -> None:
        self._see(job)
        self._add(version1.update(self._salt, job, self._next()))

    def reserve_by_version_1(self, job: Job) -> None:
        job.state = RESERVED
        self._see(job)
        self._add(version1.reserve(self._salt, job, self._next()))

    def delete(self, job: Job) -> None:
        self._add(self._encoder.delete(job.id, self._next()))

    def pause(self, tube: Tube) -> None:
        self._add(self._encoder.pause(tube, self._next()))

    def mark(self, kind: int) -> None:
        self._add(self._encoder.mark(kind, self._next()))

    @property
    def newest(self) -> int:
        return max(self.segments)

    def assert_nothing_invented(self, recovery: Recovery) -> None:
        """Every job is one that was recorded, and every figure and event of it once was its."""
        for id, job in recovery.jobs.items():
            assert (job.tube.name, job.body, job.ttr, job.created_at) == self.contents[id]
            assert set(figures(job)) <= self.figures[id] | {("state", READY)}
            assert set(job_history.unpack(job.events)) <= self.events[id] | {
                job_history.Event(START, job_history.RETURNED, job_history.NOBODY)
            }
        assert recovery.pauses.keys() <= {b"paused"}

    def _see(self, job: Job) -> None:
        self.figures.setdefault(job.id, set()).update(figures(job))
        self.events.setdefault(job.id, set()).update(job_history.unpack(job.events))

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _add(self, data: bytes) -> None:
        at = len(self.segments[self._number])
        self.segments[self._number] += data
        self.places[self._number].append((at, at + len(data)))


def figures(job: Job) -> list[tuple[str, int]]:
    names = ("pri", "delay", "state", "reserves", "timeouts", "releases", "buries", "kicks")
    return [(name, getattr(job, name)) for name in names]


def made(id: int, tube: bytes = b"default", body: bytes = b"body", state: int = READY) -> Job:
    job = Job(id, Tube(tube, {}), body, 100 + id, 0, 60 * SECOND, START - 100 + id)
    job.state = state
    return job


def told() -> Story:
    """Every kind of record in three segments: the first has been compacted away in part, the last is written to."""
    story = Story()
    one, two, three, four, five = (made(id, b"default", b"body of %d." % id) for id in range(1, 6))
    paused = Tube(b"paused", {})
    paused.paused_until, paused.pause = START + 300 * SECOND, 300 * SECOND
    story.begin(1)
    story.job(one)
    story.job(two)
    story.pause(paused)
    two.reserves = 1
    story.reserve(two)
    two.state, two.buries, two.pri, two.deadline = BURIED, 1, 7, 1
    story.update(two, job_history.BURIED)
    one.reserves = 1
    story.reserve_by_version_1(one)
    one.state, one.releases, one.pri = READY, 1, 3
    story.update_by_version_1(one)
    story.begin(3)
    story.pause(paused)
    story.job(three)
    story.delete(one)
    four.state, four.delay, four.deadline = DELAYED, 500 * SECOND, START + 500 * SECOND
    story.job(four)
    story.mark(record.IMPORT_BEGIN)
    story.job(five)
    story.mark(record.IMPORT_END)
    story.begin(6)
    story.pause(paused)
    story.job(two)
    three.releases, three.pri = 1, 9
    story.update(three, job_history.RELEASED)
    three.reserves = 1
    story.reserve(three)
    three.timeouts = 1
    story.lapse(three)
    four.state, four.kicks = READY, 1
    story.update(four, job_history.KICKED)
    story.delete(five)
    three.timeouts = 2**32 - 1
    story.reserve_by_version_1(three)  # so that the last byte is not zero, as are those behind it
    return story


STORY = told()


def recover(segments: dict[int, bytes]) -> Recovery:
    """What is recovered of *segments*, by the number in their name."""
    table: dict[int, Job] = {}
    tubes: dict[bytes, Tube] = {}
    recovery = Recovery(lambda name: tubes.setdefault(name, Tube(name, table)), table)
    replay_all(Disk({name_of(number): data for number, data in segments.items()}), recovery)
    recovery.settle(START)
    return recovery


def recover_with(number: int, data: bytes) -> Recovery:
    """What is recovered with another segment *number*; nothing may be invented."""
    recovery = recover(STORY.segments | {number: data})
    STORY.assert_nothing_invented(recovery)
    return recovery


def states(recovery: Recovery) -> dict[int, int]:
    return {id: job.state for id, job in recovery.jobs.items()}


def where(damage: list[Damage]) -> list[tuple[str, int, int, int | None, bool]]:
    return [(each.file, each.offset, each.bytes_lost, each.records_lost, each.is_torn_tail) for each in damage]


each_segment = pytest.mark.parametrize("number", STORY.segments)


# Sound


def test_all_records_are_recovered() -> None:
    recovery = recover(STORY.segments)
    assert not recovery.damage
    assert states(recovery) == {2: BURIED, 3: READY, 4: READY}
    assert recovery.records == recovery.sequence == sum(len(places) for places in STORY.places.values())
    assert recovery.pauses == {b"paused": (START + 300 * SECOND, 300 * SECOND)}
    assert recovery.next_id == 6
    assert recovery.highest_number == 3
    assert {id: kinds(job) for id, job in recovery.jobs.items()} == {
        2: ["reserved", "buried"],
        3: ["released", "reserved", "timed out"],
        4: ["kicked"],
    }
    STORY.assert_nothing_invented(recovery)


def kinds(job: Job) -> list[str]:
    return [job_history.KINDS[event.kind] for event in job_history.unpack(job.events)]


@each_segment
@pytest.mark.parametrize("size", [1, 3, 20, 21, 4096, 100_000])
def test_zero_tail_is_no_damage(number: int, size: int) -> None:
    assert not recover_with(number, STORY.segments[number] + bytes(size)).damage


@pytest.mark.parametrize("size", [0, 1, 43, 44, 4096])
def test_blank_segment_created_ahead_is_no_damage(size: int) -> None:
    recovery = recover(STORY.segments | {4: bytes(size), 9: bytes(size)})
    assert not recovery.damage
    assert recovery.highest_number == 9


@pytest.mark.parametrize("size", [0, 1, 43, 44, 4096])
def test_blank_files_below_all_others_are_damage(size: int) -> None:
    """Spares are used lowest first, and a start numbers above every file: so they were in use."""
    recovery = recover(STORY.segments | {1: bytes(size)})
    STORY.assert_nothing_invented(recovery)
    assert where(recovery.damage) == [("journal.1", 0, size, None, False)]
    assert "is blank, though journal.2 continues it," in str(recovery.damage[0])
    recovery = recover(STORY.segments | {1: bytes(size), 2: b""})
    assert where(recovery.damage) == [("journal.1", 0, size, None, False), ("journal.2", 0, 0, None, False)]


def test_blank_file_below_a_segment_without_records_is_judged_by_the_next_segment() -> None:
    """A head alone does not tell if it is followed by its own first record, or by what is told again."""
    head = SegmentHeader(b"anew", 2, first_sequence=8, next_id=3).encode()
    assert not recover({1: b"", 2: head}).damage
    assert not recover({1: b"", 2: head + bytes(4096), 4: b""}).damage
    for sequence, is_sound in ((8, False), (9, True)):
        data = SegmentHeader(b"next", 3, 8, 3).encode() + Encoder(b"next").job(made(3), sequence)
        assert recover({1: b"", 2: head, 3: data}).is_sound == is_sound


def test_blank_file_below_all_others_is_no_damage_before_the_first_record() -> None:
    data = SegmentHeader(b"anew", 3, first_sequence=1, next_id=1).encode() + Encoder(b"anew").job(made(1), 1)
    assert not recover({1: b"", 2: bytes(4096), 3: data}).damage


def test_expired_pauses_are_dropped_and_due_jobs_are_ready() -> None:
    story = Story()
    story.begin(1)
    tube = Tube(b"paused", {})
    tube.paused_until, tube.pause = START, SECOND
    story.pause(tube)
    job = made(1, state=DELAYED)
    job.deadline = START
    story.job(job)
    recovery = recover(story.segments)
    assert recovery.pauses == {}
    assert states(recovery) == {1: READY}


# Cut


def test_torn_tail_is_truncated_and_no_damage() -> None:
    """The newest segment cut at every byte, with and without zeros behind: all records before are there."""
    number, data = STORY.newest, STORY.segments[STORY.newest]
    ends = [HEADER_SIZE, *(end for _, end in STORY.places[number])]
    for size, zeros in itertools.product(range(HEADER_SIZE, len(data) + 1), (0, 5000)):
        torn = data[:size] + bytes(zeros)
        recovery = recover_with(number, torn)
        whole = max(end for end in ends if torn[:end] == data[:end])
        assert recovery.is_sound
        assert recovery.segments[-1].end == whole
        assert recovery.segments[-1].records == ends.index(whole)
        assert len(recovery.damage) == bool(torn[whole:].strip(b"\0"))
        for damage in recovery.damage:
            assert (damage.file, damage.offset, damage.is_torn_tail) == (name_of(number), whole, True)
            assert len(data[whole:size].rstrip(b"\0")) <= damage.bytes_lost <= size - whole


def test_newest_segment_without_header_is_no_damage() -> None:
    """The first write to it was torn: before that one was done nothing in it was acknowledged."""
    number, data = STORY.newest, STORY.segments[STORY.newest]
    before = recover({1: STORY.segments[1], 2: STORY.segments[2]})
    for size in range(1, HEADER_SIZE):
        recovery = recover_with(number, data[:size] + bytes(4096 - size))
        assert recovery.is_sound
        assert states(recovery) == states(before)
    assert recover_with(number, bytes(SECTOR) + bytes(range(256)) * 10).is_sound


def test_truncated_older_segment_is_damage_with_the_number_of_lost_records() -> None:
    data, places = STORY.segments[2], STORY.places[2]
    for size in range(HEADER_SIZE, len(data)):
        recovery = recover_with(2, data[:size])
        lost = sum(end > size for _, end in places)
        assert not recovery.is_sound
        assert sum(each.records_lost or 0 for each in recovery.damage) == lost
        assert recovery.damage[-1].file == "journal.3"


# Flipped


@each_segment
def test_flipped_bit_loses_only_its_record(number: int) -> None:
    data = STORY.segments[number]
    *_, (last, _) = STORY.places[number]
    for at, end in STORY.places[number]:
        for bit in range(at * 8, end * 8):
            recovery = recover_with(number, flip(data, bit))
            if at < last:
                assert where(recovery.damage) == [(name_of(number), at, end - at, 1, False)]
            elif number == STORY.newest:
                assert where(recovery.damage) == [(name_of(number), at, len(data) - at, None, True)]
            else:
                tail, gap = where(recovery.damage)
                assert tail[:2] == (name_of(number), at)
                assert gap == (name_of(number + 1), 0, 0, 1, False)


@each_segment
def test_flipped_bit_in_a_header_loses_the_file(number: int) -> None:
    data = STORY.segments[number]
    for bit in range(HEADER_SIZE * 8):
        recovery = recover_with(number, flip(data, bit))
        assert where(recovery.damage)[0] == (name_of(number), 0, len(data), None, False)
        assert recovery.highest_number == STORY.newest


def flip(data: bytes, bit: int) -> bytes:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


# Moved about


@each_segment
def test_repeated_record_counts_once(number: int) -> None:
    """Wherever the copy stands behind the first."""
    data, places = STORY.segments[number], STORY.places[number]
    for (at, end), (_, behind) in itertools.combinations_with_replacement(places, 2):
        recovery = recover_with(number, data[:behind] + data[at:end] + data[behind:])
        assert states(recovery) == states(recover(STORY.segments))
        assert where(recovery.damage) == [(name_of(number), behind, end - at, 0, False)]


@each_segment
def test_missing_record_is_reported(number: int) -> None:
    data = STORY.segments[number]
    for at, end in STORY.places[number][1:-1]:
        recovery = recover_with(number, data[:at] + data[end:])
        assert where(recovery.damage) == [(name_of(number), at, 0, 1, False)]


@pytest.mark.parametrize("number", [1, 2])
def test_record_of_another_segment_is_damage(number: int) -> None:
    at, end = STORY.places[number][0]
    recovery = recover_with(3, STORY.segments[3] + STORY.segments[number][at:end])
    assert where(recovery.damage) == [("journal.3", len(STORY.segments[3]), end - at, None, True)]
    assert states(recovery) == states(recover(STORY.segments))


def test_missing_segment_is_damage() -> None:
    recovery = recover({1: STORY.segments[1], 3: STORY.segments[3]})
    STORY.assert_nothing_invented(recovery)
    assert where(recovery.damage) == [("journal.3", 0, 0, len(STORY.places[2]), False)]
    assert "records are missing after journal.1," in str(recovery.damage[0])


def test_missing_oldest_segments_are_not_detected() -> None:
    """Compaction removes them; what is left tells nothing of jobs that it has no JOB record of."""
    recovery = recover({3: STORY.segments[3]})
    STORY.assert_nothing_invented(recovery)
    assert not recovery.damage
    assert states(recovery) == {2: BURIED}


@pytest.mark.parametrize(("number", "copy"), [(1, 2), (1, 4), (2, 1), (3, 1), (3, 4)])
def test_copied_or_renamed_segment_is_not_read(number: int, copy: int) -> None:
    recovery = recover_with(copy, STORY.segments[number])
    assert where(recovery.damage)[0] == (name_of(copy), 0, len(STORY.segments[number]), None, False)
    assert f"is a copy of segment {number}" in str(recovery.damage[0])
    if copy not in STORY.segments:
        assert states(recovery) == states(recover(STORY.segments))


@each_segment
def test_garbage_after_the_records_is_reported_and_has_no_effect(number: int) -> None:
    for size in (1, 20, 21, 22, 500, 5000):
        garbage = seeded(size).randbytes(size - 1) + b"\1"
        recovery = recover_with(number, STORY.segments[number] + garbage)
        assert states(recovery) == states(recover(STORY.segments))
        assert [each[:3] for each in where(recovery.damage)] == [(name_of(number), len(STORY.segments[number]), size)]


def test_file_of_garbage_is_reported() -> None:
    for size in (1, 43, 44, 500):
        recovery = recover(STORY.segments | {2: b"\1" * size})
        assert where(recovery.damage)[0] == ("journal.2", 0, size, None, False)
        STORY.assert_nothing_invented(recovery)


@pytest.mark.parametrize("name", ["journal", "journal.", "journal.01", "journal.-1", "journal.1.gz", "journal.٣"])
def test_other_names_are_no_segments(name: str) -> None:
    assert numbers([name]) == []


def test_impossible_number_is_no_segment() -> None:
    assert numbers(["journal.0", "journal." + "9" * 30, "journal.7"]) == [7]


# Made up: with a good CRC, and counts that no server has reached


@pytest.mark.parametrize(
    "changes",
    [{"id": 0}, {"id": 2**63}, {"id": 2**64 - 1}, {"delay": 2**63}, {"ttr": 2**64 - 1},
     {"state": BURIED, "deadline": 2**64 - 1}],
    ids=str,
)  # fmt: skip
def test_job_with_an_exhausting_number_is_skipped(changes: dict[str, int]) -> None:
    story, job = Story(), made(1)
    story.begin(1)
    for name, value in changes.items():
        setattr(job, name, value)
    story.job(job)
    recovery = recover(story.segments)
    assert not recovery.jobs
    assert recovery.next_id == 1


def test_update_with_an_exhausting_burial_is_skipped() -> None:
    story, job = Story(), made(1)
    story.begin(1)
    story.job(job)
    job.state, job.deadline = BURIED, 2**64 - 1
    story.update(job, job_history.BURIED)
    assert states(recover(story.segments)) == {1: READY}


@pytest.mark.parametrize("deadline", [2**63, 2**64 - 1])
def test_job_due_in_centuries_is_kept(deadline: int) -> None:
    story, job = Story(), made(1, state=DELAYED)
    story.begin(1)
    job.deadline, job.delay = deadline, 2**63 - 1
    story.job(job)
    assert recover(story.segments).jobs[1].deadline == min(deadline, START + 2**63 - 1)


# The clock was set back


DAY = 86400 * SECOND


def test_clock_set_back_extends_no_delay_or_pause_and_makes_no_age_negative() -> None:
    story, ready, delayed = Story(), made(1), made(2, state=DELAYED)
    released = made(3, state=DELAYED)
    for job in (ready, delayed, released):
        job.created_at = job.deadline = START + DAY
    delayed.delay, delayed.deadline = 1000 * SECOND, START + DAY + 1000 * SECOND
    paused = Tube(b"paused", {})
    paused.pause, paused.paused_until = 5000 * SECOND, START + DAY + 5000 * SECOND
    story.begin(1)
    for job in (ready, delayed, released):
        story.job(job)
    released.delay, released.deadline = 500 * SECOND, START + DAY + 500 * SECOND
    story.update(released, job_history.RELEASED)
    story.pause(paused)
    recovery = recover(story.segments)
    assert [job.created_at for job in recovery.jobs.values()] == [START] * 3
    assert {id: job.deadline for id, job in recovery.jobs.items()} == {
        1: START,
        2: START + 1000 * SECOND,
        3: START + 500 * SECOND,
    }
    tube = recovery.tube_of(b"paused")
    assert (tube.paused_until, tube.pause) == (START + 5000 * SECOND, 5000 * SECOND)


def test_job_reserved_after_its_delay_is_ready_after_the_clock_is_set_back() -> None:
    story, job = Story(), made(1, state=DELAYED)
    job.delay, job.deadline = SECOND, START
    story.begin(1)
    story.job(job)
    job.reserves = 1
    story.reserve(job)
    table: dict[int, Job] = {}
    recovery = Recovery(lambda name: Tube(name, table), table)
    recovery.replay("journal.1", 1, story.segments[1], is_newest=True)
    recovery.settle(START - DAY)
    assert (table[1].state, table[1].deadline) == (READY, START - DAY)


def test_header_with_an_exhausting_id_or_sequence_is_bad() -> None:
    for header in (SegmentHeader(b"salt", 1, 2**63, 1), SegmentHeader(b"salt", 1, 1, 2**63)):
        assert where(recover({1: header.encode()}).damage) == [("journal.1", 0, HEADER_SIZE, None, False)]


def test_record_with_an_impossible_sequence_is_skipped_and_later_ones_count() -> None:
    encoder = Encoder(b"salt")
    head = SegmentHeader(b"salt", 1, 1, 1).encode()
    recovery = recover({1: head + encoder.job(made(1), 2**63) + encoder.job(made(2), 1)})
    assert states(recovery) == {2: READY}
    assert recovery.sequence == 1


def test_delete_of_an_impossible_id_does_not_change_the_next_id() -> None:
    head = SegmentHeader(b"salt", 1, 1, 5).encode()
    assert recover({1: head + Encoder(b"salt").delete(2**64 - 1, 1)}).next_id == 5


# Sectors that never came to the disk


def long_story() -> Story:
    story = Story()
    story.begin(1)
    for id in range(1, 20):
        story.job(made(id, b"default", b"%d:" % id + b"x" * 300))
    story.begin(20)
    for id in range(20, 40):
        story.job(made(id, b"default", b"%d:" % id + b"x" * 300))
    return story


def test_unwritten_sector_of_the_newest_segment_is_a_torn_tail() -> None:
    """Power was lost in the middle of a write, whose sectors come to the disk in any order."""
    story = long_story()
    data, places = story.segments[2], story.places[2]
    for start in range(SECTOR, len(data) - SECTOR, SECTOR):
        recovery = recover(story.segments | {2: data[:start] + bytes(SECTOR) + data[start + SECTOR :]})
        story.assert_nothing_invented(recovery)
        whole = sum(end <= start for _, end in places)
        assert recovery.is_sound
        assert len(recovery.jobs) == 19 + whole
        assert recovery.segments[-1].end == places[whole - 1][1]


def test_zeroed_sector_of_an_older_segment_is_damage() -> None:
    story = long_story()
    data = story.segments[1]
    recovery = recover(story.segments | {1: data[: 2 * SECTOR] + bytes(SECTOR) + data[3 * SECTOR :]})
    story.assert_nothing_invented(recovery)
    (damage,) = recovery.damage
    assert (damage.records_lost, damage.is_torn_tail) == (39 - len(recovery.jobs), False)


def test_segment_that_rewrites_a_failed_one_repairs_it() -> None:
    """After a failed write: its header says from which record on, and no damage is left of what stood there."""
    story = long_story()
    encoder = Encoder(b"anew")
    data = story.segments[2]
    kept = story.places[2][9][1]
    anew = SegmentHeader(b"anew", 3, first_sequence=30, next_id=40).encode()
    for sequence, id in enumerate(range(30, 40), 45):
        anew += encoder.job(made(id, b"default", b"%d:" % id + b"x" * 300), sequence)
    for torn in (data[:kept], data[: kept + 100], data[: kept + 100] + bytes(3000), data[:-5], data):
        recovery = recover({1: story.segments[1], 2: torn, 3: anew})
        story.assert_nothing_invented(recovery)
        assert recovery.is_sound
        assert len(recovery.jobs) == 39
    recovery = recover({1: story.segments[1], 2: data[: kept - 1], 3: anew})
    assert not recovery.is_sound


def churned() -> tuple[Story, list[tuple[int, int, bytes]]]:
    """A job that is kicked again and again in the second segment; after each record: its end, and the job's look."""
    story, job = Story(), made(1)
    story.begin(1)
    story.job(job)
    story.begin(2)
    looks = []
    for kicks in range(1, 60):
        job.kicks = kicks
        story.update(job, job_history.KICKED)
        looks.append((story.places[2][-1][1], kicks, job.events))
    return story, looks


@pytest.mark.parametrize("size", [HEADER_SIZE, HEADER_SIZE + 10])
def test_records_after_damage_in_a_rewritten_part_are_ignored(size: int) -> None:
    """The disk had failed, and power was lost while all was recorded anew, before the job's turn came.

    What had come to the disk behind the hole, though sound, would make of the job what it never was.
    """
    story, looks = churned()
    data = story.segments[2]
    anew = SegmentHeader(b"anew", 4, first_sequence=12, next_id=2).encode() + b"x" * 10
    for at in range(looks[9][0], len(data) - SECTOR, 100):
        torn = data[:at] + b"?" * SECTOR + data[at + SECTOR :]
        recovery = recover({1: story.segments[1], 2: torn, 4: anew[:size]})
        job = recovery.jobs[1]
        end, kicks, events = max(look for look in looks if look[0] <= at)
        assert (recovery.segments[1].end, job.kicks, job.events) == (end, kicks, events)
        assert recovery.is_sound


def test_missing_records_end_a_rewritten_part() -> None:
    story, looks = churned()
    data, anew = story.segments[2], SegmentHeader(b"anew", 4, first_sequence=12, next_id=2).encode()
    for (at, kicks, events), (end, _, _) in itertools.pairwise(looks[12:-1]):
        recovery = recover({1: story.segments[1], 2: data[:at] + data[end:], 4: anew})
        assert (recovery.segments[1].end, recovery.jobs[1].kicks, recovery.jobs[1].events) == (at, kicks, events)
        assert recovery.is_sound


def test_damage_outside_a_rewritten_part_is_reported() -> None:
    story, looks = churned()
    data, anew = story.segments[2], SegmentHeader(b"anew", 4, first_sequence=40, next_id=2).encode()
    at = looks[9][0]
    recovery = recover({1: story.segments[1], 2: data[:at] + b"?" * SECTOR + data[at + SECTOR :], 4: anew})
    assert not recovery.is_sound
    assert recovery.jobs[1].kicks == looks[-1][1]


def test_copy_of_an_old_segment_rewrites_nothing() -> None:
    story, looks = churned()
    data, at = story.segments[2], looks[30][0]
    torn = data[:at] + b"?" * SECTOR + data[at + SECTOR :]
    assert recover({1: story.segments[1], 2: torn, 4: story.segments[1]}).jobs[1].kicks == looks[-1][1]


def test_unwritten_first_segment_is_no_damage_if_the_next_rewrites_it() -> None:
    """The next has nothing in it yet but its head, which tells of the very first record."""
    head = SegmentHeader(b"anew", 2, first_sequence=1, next_id=1).encode()
    for torn in (b"\1" * 17 + bytes(4000), bytes(SECTOR) + b"x" * 500):
        recovery = recover({1: torn, 2: head})
        assert len(recovery.damage) == 1
        assert recovery.is_sound


# Imports


def imported(*ends: int) -> Story:
    story = Story()
    story.begin(1)
    story.job(made(1))
    story.mark(record.IMPORT_BEGIN)
    story.job(made(7))
    story.begin(8)
    story.job(made(8))
    for end in ends:
        story.mark(end)
    return story


def test_import_counts_once_it_has_ended() -> None:
    assert recover(imported(record.IMPORT_END).segments).jobs.keys() == {1, 7, 8}


@pytest.mark.parametrize(
    "ends", [[], [record.IMPORT_UNDO], [record.IMPORT_BEGIN], [record.IMPORT_BEGIN, record.IMPORT_END]]
)
def test_interrupted_import_does_not_count_and_its_ids_stay_used(ends: list[int]) -> None:
    recovery = recover(imported(*ends).segments)
    assert recovery.jobs.keys() == {1}
    assert recovery.next_id == 9
    assert recovery.is_import_open == (not ends or ends == [record.IMPORT_BEGIN])


# Anything


@given(st.lists(st.binary(max_size=200), max_size=5), st.randoms(use_true_random=False))
def test_any_input_after_a_sound_header_is_read_without_an_exception(pieces: list[bytes], random: Random) -> None:
    salt = b"slt1"
    data = STORY.segments[1][:HEADER_SIZE] + b"".join(salt * random.randrange(3) + piece for piece in pieces)
    recover_with(1, data)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 20), st.integers(0, 20)), max_size=12))
def test_shuffled_truncated_and_repeated_records_invent_no_job(picks: list[tuple[int, int, int]]) -> None:
    segments = {number: data[:HEADER_SIZE] for number, data in STORY.segments.items()}
    for number, pick, cut in picks:
        at, end = STORY.places[number][pick % len(STORY.places[number])]
        segments[number] += STORY.segments[number][at : max(at, end - cut + 15)]
    STORY.assert_nothing_invented(recover(segments))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2**12), st.binary(min_size=1, max_size=40)), max_size=6))
def test_overwritten_bytes_invent_no_job(writes: list[tuple[int, int, bytes]]) -> None:
    segments = {number: bytearray(data) for number, data in STORY.segments.items()}
    for number, place, data in writes:
        at = place % len(segments[number])
        segments[number][at : at + len(data)] = data
    STORY.assert_nothing_invented(recover({number: bytes(data) for number, data in segments.items()}))


# A start on it


def test_start_serves_sound_records_and_strict_start_refuses_without_changes() -> None:
    files = {name_of(number): data for number, data in STORY.segments.items()}
    files["journal.2"] = flip(files["journal.2"], 8 * (STORY.places[2][1][0] + 30))
    disk = Disk(files)
    with pytest.raises(StartError, match=r"--strict-recovery: .*journal\.2: damaged at offset \d+"):
        recovered(disk, START, is_strict=True)
    assert disk.everything() == files
    broker = recovered(disk, START, is_strict=False)
    broker.check()
    assert broker.jobs.keys() == {2, 4}
    assert disk.everything()["journal.2"] == files["journal.2"]


@pytest.mark.parametrize("size", [0, 4096])
def test_start_keeps_a_blank_file_that_was_in_use_and_the_next_start_reports_it(size: int) -> None:
    files = {name_of(number): data for number, data in STORY.segments.items()}
    files["journal.1"] = bytes(size)
    disk = Disk(files)
    for _ in range(2):
        before = disk.everything()
        with pytest.raises(StartError, match=r"--strict-recovery: .*journal\.1: is blank"):
            recovered(disk, START, is_strict=True)
        assert disk.everything() == before
        assert recovered(disk, START, is_strict=False).jobs.keys() == {2, 3, 4}
        assert disk.read("journal.1") == bytes(size)


def test_start_truncates_a_torn_tail_and_the_next_start_finds_none() -> None:
    files = {name_of(number): data for number, data in STORY.segments.items()}
    files["journal.3"] = files["journal.3"][:-3] + bytes(500)
    files["journal.4"] = bytes(SECTOR) + b"torn at its head"
    files["journal.5"] = bytes(4096)
    disk = Disk(files)
    recovered(disk, START)
    assert len(disk.read("journal.3")) == STORY.places[3][-1][0]
    assert sorted(disk.list()) == ["journal.1", "journal.2", "journal.3", "journal.6"]
    recovered(disk, START)
