"""Recovery from damage of every kind: it never raises, never creates a job, and reports what was lost.

A sample journal of three segments, with the offsets of all records, is truncated, overwritten, repeated and shuffled.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, SECOND, Job
from greenstalk_server.core.policies.tube_policy_state import buried_at, expires_from
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal import record
from greenstalk_server.journal.record import Encoder, SegmentHeader
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.replayed_segment import SECTOR, Damage, is_blank
from greenstalk_server.journal.segment import name_of, numbers
from greenstalk_server.journal.startup import replay_all
from greenstalk_server.runtime.exit_codes import StartError
from tests.journal.disk import Disk, seeded
from tests.journal.workload import recovered
from tests.support import invariants
from tests.support.world import START

HEADER_SIZE = record.SEGMENT_HEADER_SIZE


@dataclass
class SampleJournal:
    """A journal in memory, with all states that its records have ever given to each job.

    segments    content by segment number.
    places      start and end offset of each record by segment number.
    contents    by job id: name of the tube, body, ttr and creation time, which never change.
    fields      by job id: each name and value that was ever recorded.
    events      by job id: each event that was ever recorded.
    """

    segments: dict[int, bytes] = field(default_factory=dict)
    places: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    contents: dict[int, tuple[bytes, bytes, int, int]] = field(default_factory=dict)
    fields: dict[int, set[tuple[str, int]]] = field(default_factory=dict)
    events: dict[int, set[job_history.Event]] = field(default_factory=dict)
    _sequence: int = 0
    _number: int = 0
    _salt: bytes = b"none"
    _encoder: Encoder = field(default_factory=lambda: Encoder(b"none"))

    def begin(self, next_id: int) -> None:
        """Begin the next segment."""
        self._number += 1
        self._salt = salt = b"slt%d" % self._number
        self._encoder = Encoder(salt)
        self.segments[self._number] = SegmentHeader(salt, self._number, self._sequence + 1, next_id).encode()
        self.places[self._number] = []

    def job(self, job: Job) -> None:
        self.contents[job.id] = (job.tube.name, job.body, job.ttr, job.created_at)
        self._note_state(job)
        self._add(self._encoder.job(job, self._next(), job.events))

    def update(self, job: Job, kind: int, at: int = START) -> None:
        """Record the present state of *job*, after an event of *kind* by no client."""
        job.events = job_history.add(job.events, kind, at, job_history.NOBODY)
        self._note_state(job)
        self._add(self._encoder.update(job, self._next()))

    def reserve(self, job: Job) -> None:
        """Record that a client has reserved *job*; *job* has no holder afterwards."""
        job.state, job.reserved_at, job.holder = RESERVED, START, Client(job.tube, lambda: None, 7)
        self._add(self._encoder.reserve(job, self._next()))
        job.events = job_history.add(job.events, job_history.RESERVED, START, 7)
        job.holder = None
        self._note_state(job)

    def expire_reservation(self, job: Job) -> None:
        """Record that the reservation of *job* has timed out."""
        job.events = job_history.add(job.events, job_history.TIMED_OUT, START, 7)
        self._note_state(job)
        self._add(self._encoder.expire_reservation(job, self._next()))

    def delete(self, job: Job) -> None:
        self._add(self._encoder.delete(job.id, self._next()))

    def pause(self, tube: Tube) -> None:
        self._add(self._encoder.pause(tube.name, tube.paused_until, tube.pause, self._next()))

    def mark(self, kind: int) -> None:
        self._add(self._encoder.mark(kind, self._next()))

    @property
    def newest(self) -> int:
        return max(self.segments)

    def assert_only_recorded_states(self, recovery: Recovery) -> None:
        """Assert that each job was recorded, and that each value and event of it was recorded for it once."""
        for id, job in recovery.jobs.items():
            assert (job.tube.name, job.body, job.ttr, job.created_at) == self.contents[id]
            assert set(fields(job)) <= self.fields[id] | {("state", READY)}
            assert set(job_history.unpack(job.events)) <= self.events[id] | {
                job_history.Event(START, job_history.RETURNED, job_history.NOBODY)
            }
        assert recovery.pauses.keys() <= {b"paused"}

    def _note_state(self, job: Job) -> None:
        self.fields.setdefault(job.id, set()).update(fields(job))
        self.events.setdefault(job.id, set()).update(job_history.unpack(job.events))

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _add(self, data: bytes) -> None:
        at = len(self.segments[self._number])
        self.segments[self._number] += data
        self.places[self._number].append((at, at + len(data)))


def fields(job: Job) -> list[tuple[str, int]]:
    names = ("pri", "delay", "state", "reserves", "timeouts", "releases", "buries", "kicks")
    return [(name, getattr(job, name)) for name in names]


def make_job(id: int, tube: bytes = b"default", body: bytes = b"body", state: int = READY) -> Job:
    job = Job(id, Tube(tube, {}), body, 100 + id, 0, 60 * SECOND, START - 100 + id)
    job.state = state
    return job


def sample_journal() -> SampleJournal:
    """Return a journal of three segments with every kind of record, as after compaction of some jobs."""
    journal = SampleJournal()
    one, two, three, four, five = (make_job(id, b"default", b"body of %d." % id) for id in range(1, 6))
    paused = Tube(b"paused", {})
    paused.paused_until, paused.pause = START + 300 * SECOND, 300 * SECOND
    journal.begin(1)
    journal.job(one)
    journal.job(two)
    journal.pause(paused)
    two.reserves = 1
    journal.reserve(two)
    two.state, two.buries, two.pri, two.deadline = BURIED, 1, 7, 1
    journal.update(two, job_history.BURIED)
    one.reserves = 1
    journal.reserve(one)
    one.state, one.releases, one.pri = READY, 1, 3
    journal.update(one, job_history.RELEASED)
    journal.begin(3)
    journal.pause(paused)
    journal.job(three)
    journal.delete(one)
    four.state, four.delay, four.deadline = DELAYED, 500 * SECOND, START + 500 * SECOND
    journal.job(four)
    journal.mark(record.IMPORT_BEGIN)
    journal.job(five)
    journal.mark(record.IMPORT_END)
    journal.begin(6)
    journal.pause(paused)
    journal.job(two)
    three.releases, three.pri = 1, 9
    journal.update(three, job_history.RELEASED)
    three.reserves = 1
    journal.reserve(three)
    three.timeouts = 1
    journal.expire_reservation(three)
    four.state, four.kicks = READY, 1
    journal.update(four, job_history.KICKED)
    journal.delete(five)
    journal.pause(paused)  # its last byte is not zero, unlike the unused bytes that may follow it
    return journal


SAMPLE = sample_journal()


def recover(segments: dict[int, bytes]) -> Recovery:
    """Return the settled recovery of *segments*: content by number."""
    table: dict[int, Job] = {}
    tubes: dict[bytes, Tube] = {}
    recovery = Recovery(lambda name: tubes.setdefault(name, Tube(name, table)), table)
    replay_all(Disk({name_of(number): data for number, data in segments.items()}), recovery)
    recovery.settle(START)
    return recovery


def recover_with(number: int, data: bytes) -> Recovery:
    """Recover the sample with *data* as segment *number*; assert that only recorded states are recovered."""
    recovery = recover(SAMPLE.segments | {number: data})
    SAMPLE.assert_only_recorded_states(recovery)
    return recovery


def states(recovery: Recovery) -> dict[int, int]:
    return {id: job.state for id, job in recovery.jobs.items()}


def facts(damage: list[Damage]) -> list[tuple[str, int, int, int | None, bool]]:
    """Return file, offset, bytes_lost, records_lost and is_torn_tail of each damage."""
    return [(each.file, each.offset, each.bytes_lost, each.records_lost, each.is_torn_tail) for each in damage]


each_segment = pytest.mark.parametrize("number", SAMPLE.segments)


# Without damage


def test_all_records_are_recovered() -> None:
    recovery = recover(SAMPLE.segments)
    assert not recovery.damage
    assert states(recovery) == {2: BURIED, 3: READY, 4: READY}
    assert recovery.records == recovery.sequence == sum(len(places) for places in SAMPLE.places.values())
    assert recovery.pauses == {b"paused": (START + 300 * SECOND, 300 * SECOND)}
    assert recovery.next_id == 6
    assert recovery.highest_number == 3
    assert {id: kinds(job) for id, job in recovery.jobs.items()} == {
        2: ["reserved", "buried"],
        3: ["released", "reserved", "timed out"],
        4: ["kicked"],
    }
    SAMPLE.assert_only_recorded_states(recovery)


def kinds(job: Job) -> list[str]:
    return [job_history.KINDS[event.kind] for event in job_history.unpack(job.events)]


@each_segment
@pytest.mark.parametrize("size", [1, 3, 20, 21, 4096, 100_000])
def test_zero_tail_is_not_damage(number: int, size: int) -> None:
    assert not recover_with(number, SAMPLE.segments[number] + bytes(size)).damage


@pytest.mark.parametrize("size", [0, 1, 43, 44, 4096])
def test_blank_segment_created_ahead_is_not_damage(size: int) -> None:
    recovery = recover(SAMPLE.segments | {4: bytes(size), 9: bytes(size)})
    assert not recovery.damage
    assert recovery.highest_number == 9


@pytest.mark.parametrize("size", [0, 1, 43, 44, 4096])
def test_blank_files_below_all_others_are_damage(size: int) -> None:
    """They were in use: files created ahead are used in ascending order, and a start numbers new files above all."""
    recovery = recover(SAMPLE.segments | {1: bytes(size)})
    SAMPLE.assert_only_recorded_states(recovery)
    assert facts(recovery.damage) == [("journal.1", 0, size, None, False)]
    assert "is blank, though journal.2 continues it," in str(recovery.damage[0])
    recovery = recover(SAMPLE.segments | {1: bytes(size), 2: b""})
    assert facts(recovery.damage) == [("journal.1", 0, size, None, False), ("journal.2", 0, 0, None, False)]


def test_blank_file_below_a_segment_without_records_is_judged_by_the_next_segment() -> None:
    """A header alone does not show whether its segment continues the journal, or rewrites records."""
    head = SegmentHeader(b"salt", 2, first_sequence=8, next_id=3).encode()
    assert not recover({1: b"", 2: head}).damage
    assert not recover({1: b"", 2: head + bytes(4096), 4: b""}).damage
    for sequence, is_sound in ((8, False), (9, True)):
        data = SegmentHeader(b"next", 3, 8, 3).encode() + Encoder(b"next").job(make_job(3), sequence)
        assert recover({1: b"", 2: head, 3: data}).is_sound == is_sound


def test_blank_file_below_all_others_is_not_damage_before_the_first_record() -> None:
    data = SegmentHeader(b"salt", 3, first_sequence=1, next_id=1).encode() + Encoder(b"salt").job(make_job(1), 1)
    assert not recover({1: b"", 2: bytes(4096), 3: data}).damage


def test_expired_pauses_are_dropped_and_due_jobs_are_ready() -> None:
    journal = SampleJournal()
    journal.begin(1)
    tube = Tube(b"paused", {})
    tube.paused_until, tube.pause = START, SECOND
    journal.pause(tube)
    job = make_job(1, state=DELAYED)
    job.deadline = START
    journal.job(job)
    recovery = recover(journal.segments)
    assert recovery.pauses == {}
    assert states(recovery) == {1: READY}


# Truncated segments


def test_torn_tail_of_the_newest_segment_loses_only_incomplete_records() -> None:
    """The newest segment is truncated at every byte, with and without zeros after it."""
    number, data = SAMPLE.newest, SAMPLE.segments[SAMPLE.newest]
    ends = [HEADER_SIZE, *(end for _, end in SAMPLE.places[number])]
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


def test_newest_segment_with_a_torn_header_is_not_damage() -> None:
    """Its first write was torn, so no record in it was acknowledged."""
    number, data = SAMPLE.newest, SAMPLE.segments[SAMPLE.newest]
    before = recover({1: SAMPLE.segments[1], 2: SAMPLE.segments[2]})
    for size in range(1, HEADER_SIZE):
        recovery = recover_with(number, data[:size] + bytes(4096 - size))
        assert recovery.is_sound
        assert states(recovery) == states(before)
    assert recover_with(number, bytes(SECTOR) + bytes(range(256)) * 10).is_sound


def test_truncated_older_segment_is_damage_with_the_number_of_lost_records() -> None:
    data, places = SAMPLE.segments[2], SAMPLE.places[2]
    for size in range(HEADER_SIZE, len(data)):
        recovery = recover_with(2, data[:size])
        lost = sum(end > size for _, end in places)
        assert not recovery.is_sound
        assert sum(each.records_lost or 0 for each in recovery.damage) == lost
        assert recovery.damage[-1].file == "journal.3"


# Flipped bits


@each_segment
def test_flipped_bit_loses_only_its_record(number: int) -> None:
    data = SAMPLE.segments[number]
    *_, (last, _) = SAMPLE.places[number]
    for at, end in SAMPLE.places[number]:
        for bit in range(at * 8, end * 8):
            recovery = recover_with(number, flip(data, bit))
            if at < last:
                assert facts(recovery.damage) == [(name_of(number), at, end - at, 1, False)]
            elif number == SAMPLE.newest:
                assert facts(recovery.damage) == [(name_of(number), at, len(data) - at, None, True)]
            else:
                tail, gap = facts(recovery.damage)
                assert tail[:2] == (name_of(number), at)
                assert gap == (name_of(number + 1), 0, 0, 1, False)


@each_segment
def test_flipped_bit_in_a_header_loses_the_file(number: int) -> None:
    data = SAMPLE.segments[number]
    for bit in range(HEADER_SIZE * 8):
        recovery = recover_with(number, flip(data, bit))
        assert facts(recovery.damage)[0] == (name_of(number), 0, len(data), None, False)
        assert recovery.highest_number == SAMPLE.newest


def flip(data: bytes, bit: int) -> bytes:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


# Repeated, missing and misplaced parts


@each_segment
def test_repeated_record_counts_once(number: int) -> None:
    """The copy follows the first record at any distance."""
    data, places = SAMPLE.segments[number], SAMPLE.places[number]
    for (at, end), (_, after) in itertools.combinations_with_replacement(places, 2):
        recovery = recover_with(number, data[:after] + data[at:end] + data[after:])
        assert states(recovery) == states(recover(SAMPLE.segments))
        assert facts(recovery.damage) == [(name_of(number), after, end - at, 0, False)]


@each_segment
def test_missing_record_is_reported(number: int) -> None:
    data = SAMPLE.segments[number]
    for at, end in SAMPLE.places[number][1:-1]:
        recovery = recover_with(number, data[:at] + data[end:])
        assert facts(recovery.damage) == [(name_of(number), at, 0, 1, False)]


@pytest.mark.parametrize("number", [1, 2])
def test_record_of_another_segment_is_damage(number: int) -> None:
    at, end = SAMPLE.places[number][0]
    recovery = recover_with(3, SAMPLE.segments[3] + SAMPLE.segments[number][at:end])
    assert facts(recovery.damage) == [("journal.3", len(SAMPLE.segments[3]), end - at, None, True)]
    assert states(recovery) == states(recover(SAMPLE.segments))


def test_missing_segment_is_damage() -> None:
    recovery = recover({1: SAMPLE.segments[1], 3: SAMPLE.segments[3]})
    SAMPLE.assert_only_recorded_states(recovery)
    assert facts(recovery.damage) == [("journal.3", 0, 0, len(SAMPLE.places[2]), False)]
    assert "records are missing after journal.1," in str(recovery.damage[0])


def test_missing_oldest_segments_are_not_detected() -> None:
    """Compaction removes segments in the same way. Records of jobs without a JOB record have no effect."""
    recovery = recover({3: SAMPLE.segments[3]})
    SAMPLE.assert_only_recorded_states(recovery)
    assert not recovery.damage
    assert states(recovery) == {2: BURIED}


@pytest.mark.parametrize(("number", "copy"), [(1, 2), (1, 4), (2, 1), (3, 1), (3, 4)])
def test_copied_or_renamed_segment_is_not_read(number: int, copy: int) -> None:
    recovery = recover_with(copy, SAMPLE.segments[number])
    assert facts(recovery.damage)[0] == (name_of(copy), 0, len(SAMPLE.segments[number]), None, False)
    assert f"is a copy of segment {number}" in str(recovery.damage[0])
    if copy not in SAMPLE.segments:
        assert states(recovery) == states(recover(SAMPLE.segments))


@each_segment
def test_garbage_after_the_records_is_reported_and_has_no_effect(number: int) -> None:
    for size in (1, 20, 21, 22, 500, 5000):
        garbage = seeded(size).randbytes(size - 1) + b"\1"
        recovery = recover_with(number, SAMPLE.segments[number] + garbage)
        assert states(recovery) == states(recover(SAMPLE.segments))
        assert [each[:3] for each in facts(recovery.damage)] == [(name_of(number), len(SAMPLE.segments[number]), size)]


def test_file_of_garbage_is_reported() -> None:
    for size in (1, 43, 44, 500):
        recovery = recover(SAMPLE.segments | {2: b"\1" * size})
        assert facts(recovery.damage)[0] == ("journal.2", 0, size, None, False)
        SAMPLE.assert_only_recorded_states(recovery)


@pytest.mark.parametrize("name", ["journal", "journal.", "journal.01", "journal.-1", "journal.1.gz", "journal.٣"])
def test_other_file_names_are_not_segments(name: str) -> None:
    assert numbers([name]) == []


def test_file_name_with_an_impossible_number_is_not_a_segment() -> None:
    assert numbers(["journal.0", "journal." + "9" * 30, "journal.7"]) == [7]


# Forged records: a valid CRC, and numbers that no server reaches


@pytest.mark.parametrize(
    "changes",
    [{"id": 0}, {"id": 2**63}, {"id": 2**64 - 1}, {"delay": 2**63}, {"ttr": 2**64 - 1},
     {"state": BURIED, "deadline": 2**64 - 1}],
    ids=str,
)  # fmt: skip
def test_job_with_an_impossible_number_is_skipped(changes: dict[str, int]) -> None:
    journal, job = SampleJournal(), make_job(1)
    journal.begin(1)
    for name, value in changes.items():
        setattr(job, name, value)
    journal.job(job)
    recovery = recover(journal.segments)
    assert not recovery.jobs
    assert recovery.next_id == 1


def test_update_with_an_impossible_burial_number_is_skipped() -> None:
    journal, job = SampleJournal(), make_job(1)
    journal.begin(1)
    journal.job(job)
    job.state, job.deadline = BURIED, 2**64 - 1
    journal.update(job, job_history.BURIED)
    assert states(recover(journal.segments)) == {1: READY}


@pytest.mark.parametrize("deadline", [2**63, 2**64 - 1])
def test_job_due_in_centuries_is_kept(deadline: int) -> None:
    journal, job = SampleJournal(), make_job(1, state=DELAYED)
    journal.begin(1)
    job.deadline, job.delay = deadline, 2**63 - 1
    journal.job(job)
    assert recover(journal.segments).jobs[1].deadline == min(deadline, START + 2**63 - 1)


# The clock was set back


DAY = 86400 * SECOND


def test_clock_set_back_extends_no_delay_or_pause_and_makes_no_age_negative() -> None:
    journal, ready, delayed = SampleJournal(), make_job(1), make_job(2, state=DELAYED)
    released = make_job(3, state=DELAYED)
    for job in (ready, delayed, released):
        job.created_at = job.deadline = START + DAY
    delayed.delay, delayed.deadline = 1000 * SECOND, START + DAY + 1000 * SECOND
    paused = Tube(b"paused", {})
    paused.pause, paused.paused_until = 5000 * SECOND, START + DAY + 5000 * SECOND
    journal.begin(1)
    for job in (ready, delayed, released):
        journal.job(job)
    released.delay, released.deadline = 500 * SECOND, START + DAY + 500 * SECOND
    journal.update(released, job_history.RELEASED)
    journal.pause(paused)
    recovery = recover(journal.segments)
    assert [job.created_at for job in recovery.jobs.values()] == [START] * 3
    assert {id: job.deadline for id, job in recovery.jobs.items()} == {
        1: START,
        2: START + 1000 * SECOND,
        3: START + 500 * SECOND,
    }
    tube = recovery.tube_of(b"paused")
    assert (tube.paused_until, tube.pause) == (START + 5000 * SECOND, 5000 * SECOND)


def test_clock_set_back_extends_no_expiry() -> None:
    journal, kicked, buried = SampleJournal(), make_job(1, state=BURIED), make_job(2)
    journal.begin(1)
    for job in (kicked, buried):
        job.created_at = job.deadline = START + DAY
        journal.job(job)
    kicked.state, kicked.kicks = READY, 1
    journal.update(kicked, job_history.KICKED, at=START + DAY)
    buried.state, buried.deadline, buried.buries = BURIED, 1, 1
    journal.update(buried, job_history.BURIED, at=START + DAY)
    jobs = recover(journal.segments).jobs
    assert expires_from(jobs[1]) == START
    assert buried_at(jobs[2]) == START


def test_job_reserved_after_its_delay_is_ready_after_the_clock_is_set_back() -> None:
    journal, job = SampleJournal(), make_job(1, state=DELAYED)
    job.delay, job.deadline = SECOND, START
    journal.begin(1)
    journal.job(job)
    job.reserves = 1
    journal.reserve(job)
    table: dict[int, Job] = {}
    recovery = Recovery(lambda name: Tube(name, table), table)
    recovery.replay("journal.1", 1, journal.segments[1], is_newest=True)
    recovery.settle(START - DAY)
    assert (table[1].state, table[1].deadline) == (READY, START - DAY)


def test_header_with_an_impossible_id_or_sequence_is_refused() -> None:
    for header in (SegmentHeader(b"salt", 1, 2**63, 1), SegmentHeader(b"salt", 1, 1, 2**63)):
        assert facts(recover({1: header.encode()}).damage) == [("journal.1", 0, HEADER_SIZE, None, False)]


def test_record_with_an_impossible_sequence_is_skipped_and_later_ones_count() -> None:
    encoder = Encoder(b"salt")
    head = SegmentHeader(b"salt", 1, 1, 1).encode()
    recovery = recover({1: head + encoder.job(make_job(1), 2**63) + encoder.job(make_job(2), 1)})
    assert states(recovery) == {2: READY}
    assert recovery.sequence == 1


def test_delete_of_an_impossible_id_does_not_change_the_next_id() -> None:
    head = SegmentHeader(b"salt", 1, 1, 5).encode()
    assert recover({1: head + Encoder(b"salt").delete(2**64 - 1, 1)}).next_id == 5


# Unwritten sectors


def large_journal() -> SampleJournal:
    """Return a journal of two segments with 39 jobs, which take many sectors."""
    journal = SampleJournal()
    journal.begin(1)
    for id in range(1, 20):
        journal.job(make_job(id, b"default", b"%d:" % id + b"x" * 300))
    journal.begin(20)
    for id in range(20, 40):
        journal.job(make_job(id, b"default", b"%d:" % id + b"x" * 300))
    return journal


def test_unwritten_sector_of_the_newest_segment_is_a_torn_tail() -> None:
    """Power was lost during a write, whose sectors reach the disk in any order."""
    journal = large_journal()
    data, places = journal.segments[2], journal.places[2]
    for start in range(SECTOR, len(data) - SECTOR, SECTOR):
        recovery = recover(journal.segments | {2: data[:start] + bytes(SECTOR) + data[start + SECTOR :]})
        journal.assert_only_recorded_states(recovery)
        whole = sum(end <= start for _, end in places)
        assert recovery.is_sound
        assert len(recovery.jobs) == 19 + whole
        assert recovery.segments[-1].end == places[whole - 1][1]


def test_zeroed_sector_of_an_older_segment_is_damage() -> None:
    journal = large_journal()
    data = journal.segments[1]
    recovery = recover(journal.segments | {1: data[: 2 * SECTOR] + bytes(SECTOR) + data[3 * SECTOR :]})
    journal.assert_only_recorded_states(recovery)
    (damage,) = recovery.damage
    assert (damage.records_lost, damage.is_torn_tail) == (39 - len(recovery.jobs), False)


def test_segment_that_rewrites_a_failed_one_repairs_it() -> None:
    """After a failed write, the header of the new segment names the first rewritten record; the damage is repaired."""
    journal = large_journal()
    encoder = Encoder(b"salt")
    data = journal.segments[2]
    torn_at = journal.places[2][9][1]
    rewrite = SegmentHeader(b"salt", 3, first_sequence=30, next_id=40).encode()
    for sequence, id in enumerate(range(30, 40), 45):
        rewrite += encoder.job(make_job(id, b"default", b"%d:" % id + b"x" * 300), sequence)
    for torn in (data[:torn_at], data[: torn_at + 100], data[: torn_at + 100] + bytes(3000), data[:-5], data):
        recovery = recover({1: journal.segments[1], 2: torn, 3: rewrite})
        journal.assert_only_recorded_states(recovery)
        assert recovery.is_sound
        assert len(recovery.jobs) == 39
    recovery = recover({1: journal.segments[1], 2: data[: torn_at - 1], 3: rewrite})
    assert not recovery.is_sound


def kicked_journal() -> tuple[SampleJournal, list[tuple[int, int, bytes]]]:
    """Return a journal in whose second segment a job is kicked 59 times, and the states after each kick.

    A state has the end offset of the record, and the kicks and events of the job.
    """
    journal, job = SampleJournal(), make_job(1)
    journal.begin(1)
    journal.job(job)
    journal.begin(2)
    states_by_end = []
    for kicks in range(1, 60):
        job.kicks = kicks
        journal.update(job, job_history.KICKED)
        states_by_end.append((journal.places[2][-1][1], kicks, job.events))
    return journal, states_by_end


@pytest.mark.parametrize("size", [HEADER_SIZE, HEADER_SIZE + 10])
def test_records_after_damage_in_a_rewritten_part_are_ignored(size: int) -> None:
    """The disk has failed, and power was lost during the rewrite, before the job was rewritten.

    Sound records after the damage would give the job a state that it never had, since a record before them is missing.
    """
    journal, states_by_end = kicked_journal()
    data = journal.segments[2]
    rewrite = SegmentHeader(b"salt", 4, first_sequence=12, next_id=2).encode() + b"x" * 10
    for at in range(states_by_end[9][0], len(data) - SECTOR, 100):
        torn = data[:at] + b"?" * SECTOR + data[at + SECTOR :]
        recovery = recover({1: journal.segments[1], 2: torn, 4: rewrite[:size]})
        job = recovery.jobs[1]
        end, kicks, events = max(state for state in states_by_end if state[0] <= at)
        assert (recovery.segments[1].end, job.kicks, job.events) == (end, kicks, events)
        assert recovery.is_sound


def test_missing_records_end_a_rewritten_part() -> None:
    journal, states_by_end = kicked_journal()
    data, rewrite = journal.segments[2], SegmentHeader(b"salt", 4, first_sequence=12, next_id=2).encode()
    for (at, kicks, events), (end, _, _) in itertools.pairwise(states_by_end[12:-1]):
        recovery = recover({1: journal.segments[1], 2: data[:at] + data[end:], 4: rewrite})
        assert (recovery.segments[1].end, recovery.jobs[1].kicks, recovery.jobs[1].events) == (at, kicks, events)
        assert recovery.is_sound


def test_damage_outside_a_rewritten_part_is_reported() -> None:
    journal, states_by_end = kicked_journal()
    data, rewrite = journal.segments[2], SegmentHeader(b"salt", 4, first_sequence=40, next_id=2).encode()
    at = states_by_end[9][0]
    recovery = recover({1: journal.segments[1], 2: data[:at] + b"?" * SECTOR + data[at + SECTOR :], 4: rewrite})
    assert not recovery.is_sound
    assert recovery.jobs[1].kicks == states_by_end[-1][1]


def test_copy_of_an_old_segment_rewrites_nothing() -> None:
    journal, states_by_end = kicked_journal()
    data, at = journal.segments[2], states_by_end[30][0]
    torn = data[:at] + b"?" * SECTOR + data[at + SECTOR :]
    assert recover({1: journal.segments[1], 2: torn, 4: journal.segments[1]}).jobs[1].kicks == states_by_end[-1][1]


def test_unwritten_first_segment_is_not_damage_if_the_next_rewrites_it() -> None:
    """The next segment has no records yet, but its header says that it rewrites from record 1 on."""
    head = SegmentHeader(b"salt", 2, first_sequence=1, next_id=1).encode()
    for torn in (b"\1" * 17 + bytes(4000), bytes(SECTOR) + b"x" * 500):
        recovery = recover({1: torn, 2: head})
        assert len(recovery.damage) == 1
        assert recovery.is_sound


# Imports


def journal_with_import(*ends: int) -> SampleJournal:
    """Return a journal with job 1, and an import of jobs 7 and 8 that is followed by the marks *ends*."""
    journal = SampleJournal()
    journal.begin(1)
    journal.job(make_job(1))
    journal.mark(record.IMPORT_BEGIN)
    journal.job(make_job(7))
    journal.begin(8)
    journal.job(make_job(8))
    for end in ends:
        journal.mark(end)
    return journal


def test_import_counts_once_it_has_ended() -> None:
    assert recover(journal_with_import(record.IMPORT_END).segments).jobs.keys() == {1, 7, 8}


@pytest.mark.parametrize(
    "ends", [[], [record.IMPORT_UNDO], [record.IMPORT_BEGIN], [record.IMPORT_BEGIN, record.IMPORT_END]]
)
def test_interrupted_import_does_not_count_and_its_ids_stay_used(ends: list[int]) -> None:
    recovery = recover(journal_with_import(*ends).segments)
    assert recovery.jobs.keys() == {1}
    assert recovery.next_id == 9
    assert recovery.is_import_open == (not ends or ends == [record.IMPORT_BEGIN])


# Arbitrary input


@given(st.lists(st.binary(max_size=200), max_size=5), st.randoms(use_true_random=False))
def test_any_input_after_a_sound_header_is_read_without_an_exception(pieces: list[bytes], random: Random) -> None:
    salt = b"slt1"
    data = SAMPLE.segments[1][:HEADER_SIZE] + b"".join(salt * random.randrange(3) + piece for piece in pieces)
    recover_with(1, data)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 20), st.integers(0, 20)), max_size=12))
def test_shuffled_truncated_and_repeated_records_create_no_job(picks: list[tuple[int, int, int]]) -> None:
    segments = {number: data[:HEADER_SIZE] for number, data in SAMPLE.segments.items()}
    for number, pick, cut in picks:
        at, end = SAMPLE.places[number][pick % len(SAMPLE.places[number])]
        segments[number] += SAMPLE.segments[number][at : max(at, end - cut + 15)]
    SAMPLE.assert_only_recorded_states(recover(segments))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2**12), st.binary(min_size=1, max_size=40)), max_size=6))
def test_overwritten_bytes_create_no_job(writes: list[tuple[int, int, bytes]]) -> None:
    segments = {number: bytearray(data) for number, data in SAMPLE.segments.items()}
    for number, place, data in writes:
        at = place % len(segments[number])
        segments[number][at : at + len(data)] = data
    SAMPLE.assert_only_recorded_states(recover({number: bytes(data) for number, data in segments.items()}))


# Starts on damaged journals


def test_start_serves_sound_records_and_strict_start_refuses_without_changes() -> None:
    files = {name_of(number): data for number, data in SAMPLE.segments.items()}
    files["journal.2"] = flip(files["journal.2"], 8 * (SAMPLE.places[2][1][0] + 30))
    disk = Disk(files)
    with pytest.raises(StartError, match=r"--strict-recovery: .*journal\.2: damaged at offset \d+"):
        recovered(disk, START, is_strict=True)
    assert disk.contents() == files
    broker = recovered(disk, START, is_strict=False)
    invariants.check(broker)
    assert broker.jobs.keys() == {2, 4}
    assert disk.contents()["journal.2"] == files["journal.2"]


@pytest.mark.parametrize("size", [0, 4096])
def test_start_keeps_a_blank_file_that_was_in_use_and_the_next_start_reports_it(size: int) -> None:
    files = {name_of(number): data for number, data in SAMPLE.segments.items()}
    files["journal.1"] = bytes(size)
    disk = Disk(files)
    for _ in range(2):
        before = disk.contents()
        with pytest.raises(StartError, match=r"--strict-recovery: .*journal\.1: is blank"):
            recovered(disk, START, is_strict=True)
        assert disk.contents() == before
        assert recovered(disk, START, is_strict=False).jobs.keys() == {2, 3, 4}
        assert disk.read("journal.1") == bytes(size)


def test_start_truncates_a_torn_tail_and_the_next_start_finds_none() -> None:
    files = {name_of(number): data for number, data in SAMPLE.segments.items()}
    files["journal.3"] = files["journal.3"][:-3] + bytes(500)
    files["journal.4"] = bytes(SECTOR) + b"torn header"
    files["journal.5"] = bytes(4096)
    disk = Disk(files)
    recovered(disk, START)
    assert len(disk.read("journal.3")) == SAMPLE.places[3][-1][0]
    assert sorted(disk.list()) == ["journal.1", "journal.2", "journal.3", "journal.6"]
    recovered(disk, START)


@pytest.mark.parametrize("at", [0, 65_535, 65_536, 131_072, 199_999])
def test_a_byte_anywhere_in_a_large_file_is_found(at: int) -> None:
    data = bytes(at) + b"x" + bytes(199_999 - at)
    assert not is_blank(data) and not is_blank(data, at)
    assert is_blank(data, at + 1)
