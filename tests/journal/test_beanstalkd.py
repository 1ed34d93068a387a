"""The reader of beanstalkd's binlog: generated files, every kind of damage, and directories that beanstalkd wrote.

For a directory, beanstalkd itself is the oracle. It is restarted on a copy, and the import must match its replies to
stats-job and peek, and its order of buried jobs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import greenstalk
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, SECOND, STATE_NAMES
from greenstalk_server.core.tags.tags import NO_DEADLINE
from greenstalk_server.core.tube_names import is_tube_name
from greenstalk_server.journal.beanstalkd import BeanstalkdBinlog, ImportedJob, find
from greenstalk_server.runtime.exit_codes import StartError
from tests.journal.disk import Chance, Disk, Fault, no_fault, seeded
from tests.journal.workload import recovered
from tests.support.servers import Server, peer
from tests.support.wire import Connection
from tests.support.world import START

V5, V7 = 5, 7
LENGTH = {V5: struct.Struct("<Q"), V7: struct.Struct("<i")}
FIELDS = {V5: struct.Struct("<QI4xqqi4xqq5IB"), V7: struct.Struct("<QI4xqqi4xqq5IB3x")}
UNIT = {V5: 1000, V7: 1}
CREATED = 1_700_000_000_123_456_000
INVALID = 0
versions = pytest.mark.parametrize("version", [V5, V7])

SMALL_FILES = ("-s", "4096")
START_SECONDS = 20.0
"""Seconds that may pass between the decoding of a directory and the replies of the oracle."""


# Generated files


def make_job(
    id: int, body: bytes = b"body", tube: bytes = b"default", state: int = READY, **changes: Any
) -> ImportedJob:
    """Return a job to encode; *changes* are its other fields."""
    job = ImportedJob(id, tube, body, 100, 0, 60 * SECOND, CREATED + id * 1000, 0, 1, 2, 3, 4, 5, state)
    return replace(job, **changes)


def header(version: int) -> bytes:
    """Return the header of a file."""
    return struct.pack("<i", version)


def short(version: int, job: ImportedJob, size: int | None = None, tube: bytes = b"") -> bytes:
    """Return a short record or, with *tube*, a full record up to its body. *size* includes the CRLF of the body."""
    unit = UNIT[version]
    id, _, body, pri, delay, ttr, created_at, deadline, *counts, state = astuple(job)
    if size is None:
        size = len(body) + 2
    times = (delay // unit, ttr // unit, size, created_at // unit, deadline // unit)
    return LENGTH[version].pack(len(tube)) + tube + FIELDS[version].pack(id, pri, *times, *counts, state)


def full(version: int, job: ImportedJob, end: bytes = b"\r\n") -> bytes:
    """Return a full record whose body is followed by *end*."""
    head = short(version, job)[LENGTH[version].size :]
    return LENGTH[version].pack(len(job.tube)) + job.tube + head + job.body + end


def deletion(version: int, job: ImportedJob) -> bytes:
    """Return the short record that deletes *job*."""
    return short(version, replace(job, state=INVALID))


def read_files(*files: bytes) -> BeanstalkdBinlog:
    """Return the binlog of *files*, which are numbered from 1 on."""
    binlog = BeanstalkdBinlog()
    for number, data in enumerate(files, 1):
        binlog.read(f"binlog.{number}", data)
    return binlog


def sample_file(version: int) -> tuple[bytes, list[ImportedJob]]:
    """Return a small file with every kind of record, and its jobs in order."""
    jobs = [
        make_job(1, b"", b"default"),
        make_job(2, b"reserved", b"a-tube", RESERVED),
        make_job(3, b"\0\r\n\0", b"/x;y.$_()+-0", BURIED),
        make_job(4, b"later", b"default", DELAYED, delay=5 * SECOND, deadline=CREATED + 5 * SECOND, pri=2**32 - 1),
        make_job(5, b"deleted"),
        make_job(6, b"moved", b"t"),
    ]
    buried = replace(jobs[0], state=BURIED, pri=7, buries=9)
    data = header(version) + b"".join(full(version, job) for job in jobs)
    data += short(version, make_job(99)) + short(version, buried) + deletion(version, jobs[4]) + full(version, jobs[5])
    return data, [buried, replace(jobs[1], state=READY), jobs[2], jobs[3], jobs[5]]


# Names of files


def test_files_are_ordered_by_number() -> None:
    names = ["binlog.10", "lock", "binlog.9", "binlog.2"]
    assert find(names) == ["binlog.2", "binlog.9", "binlog.10"]


@pytest.mark.parametrize(
    "name",
    ["binlog", "binlog.", "binlog.0", "binlog.01", "binlog.-1", "binlog.1.gz", "xbinlog.1", "binlog.1\n", "binlog.٣"],
)
def test_other_file_names_are_ignored(name: str) -> None:
    assert find([name]) == []


def test_file_name_with_too_many_digits_is_ignored() -> None:
    assert find(["binlog." + "9" * 5000]) == []


# Sound files


@versions
def test_every_state_and_kind_of_record_is_read(version: int) -> None:
    data, jobs = sample_file(version)
    binlog = read_files(data)
    assert list(binlog.jobs.values()) == jobs
    assert list(binlog.jobs) == [job.id for job in jobs]
    assert (binlog.files, binlog.records, binlog.unknown, binlog.highest_id) == (1, 10, 1, 99)
    assert binlog.warnings() == []


@versions
def test_zero_tail_of_any_length_ends_the_file(version: int) -> None:
    data, jobs = sample_file(version)
    for length in (1, 3, 4, 8, 80, 84, 4096):
        binlog = read_files(data + bytes(length))
        assert list(binlog.jobs.values()) == jobs
        assert binlog.warnings() == []


def test_change_in_a_later_file_counts() -> None:
    job = make_job(1)
    binlog = read_files(header(V7) + full(V7, job), header(V7) + short(V7, replace(job, state=BURIED, pri=3)))
    assert binlog.jobs[1] == replace(job, state=BURIED, pri=3)


def test_files_of_both_versions_are_read_together() -> None:
    job = make_job(1)
    binlog = read_files(
        header(V5) + full(V5, job), header(V7) + short(V7, replace(job, state=BURIED)) + full(V7, make_job(2))
    )
    assert list(binlog.jobs.values()) == [replace(job, state=BURIED), make_job(2)]
    assert binlog.warnings() == []


def test_repeated_full_record_replaces_the_job_in_its_place() -> None:
    first, second = make_job(1), make_job(2)
    moved = replace(first, state=BURIED, buries=77)
    binlog = read_files(header(V7) + full(V7, first) + full(V7, second), header(V7) + full(V7, moved))
    assert list(binlog.jobs.values()) == [moved, second]


def test_short_record_without_full_record_only_raises_the_highest_id() -> None:
    binlog = read_files(header(V7) + short(V7, make_job(41, state=BURIED)) + deletion(V7, make_job(42)))
    assert (binlog.jobs, binlog.unknown, binlog.highest_id, binlog.warnings()) == ({}, 2, 42, [])


def test_highest_id_includes_deleted_jobs() -> None:
    assert read_files(header(V7) + full(V7, make_job(7)) + deletion(V7, make_job(7))).highest_id == 7


def test_deadline_counts_only_for_a_delayed_job() -> None:
    jobs = [
        make_job(id, state=state, deadline=CREATED) for id, state in enumerate((READY, RESERVED, BURIED, DELAYED), 1)
    ]
    binlog = read_files(header(V7) + b"".join(full(V7, job) for job in jobs))
    assert [job.deadline for job in binlog.jobs.values()] == [0, 0, 0, CREATED]


def test_longest_tube_name_is_read() -> None:
    name = b"n" * 200
    assert read_files(header(V7) + full(V7, make_job(1, tube=name))).jobs[1].tube == name


# Files that are not read


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"\7\0", "shorter than a version"),
        (bytes(3), "zeroed"),
        (bytes(4096), "zeroed"),
        (bytes(4) + full(V7, make_job(1)), "unknown version 0"),
        (header(6) + full(V7, make_job(1)), "unknown version 6"),
        (header(-1), "unknown version -1"),
        (b"\0\0\0\7" + bytes(80), "written on a big-endian machine"),
    ],
)
def test_file_of_unknown_version_is_skipped_with_a_reason(data: bytes, reason: str) -> None:
    binlog = read_files(data, header(V7) + full(V7, make_job(1)))
    assert [str(skipped) for skipped in binlog.skipped] == [f"binlog.1: not read: {reason}"]
    assert list(binlog.jobs) == [1]
    assert binlog.files == 1


@versions
def test_blank_file_is_not_damage(version: int) -> None:
    for data in (header(version), header(version) + bytes(4092)):
        binlog = read_files(data)
        assert (binlog.files, binlog.jobs, binlog.warnings()) == (1, {}, [])


# Damage


@versions
def test_truncation_at_every_byte_keeps_the_records_before(version: int) -> None:
    """The file is truncated there, or contains zeros from there on."""
    data, _ = sample_file(version)
    ends = _record_ends(version)
    for size in range(4, len(data)):
        binlog = read_files(data[:size])
        at = max(end for end in ends if end <= size)
        assert binlog.records == ends.index(at)
        assert astuple(read_files(data[:at]))[:2] == astuple(binlog)[:2]
        if data[at:size].strip(b"\0"):
            (damage,) = binlog.damage
            assert (damage.offset, damage.is_torn_tail) == (at, True)
        else:
            assert not binlog.damage
        _assert_sane(read_files(data[:size] + bytes(len(data) - size)), data)


@versions
def test_flip_of_any_bit_loses_no_more_than_reported_and_invents_no_job(version: int) -> None:
    data, jobs = sample_file(version)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        binlog = read_files(bytes(flipped))
        _assert_sane(binlog, data)
        assert binlog.skipped or binlog.damage or _count_differences(binlog, jobs) <= 1


@pytest.mark.parametrize(
    "change",
    [
        {"state": 5},
        {"state": INVALID},
        {"id": 0},
        {"id": 2**64 - 1},
        {"tube": b"a tube"},
        {"tube": b"-tube"},
        {"tube": b"tube\0"},
    ],
)
@versions
def test_impossible_full_record_with_a_certain_end_is_skipped(version: int, change: dict[str, Any]) -> None:
    binlog = read_files(
        header(version)
        + full(version, make_job(1))
        + full(version, replace(make_job(2), **change))
        + full(version, make_job(3))
    )
    assert list(binlog.jobs) == [1, 3]
    (damage,) = binlog.damage
    assert damage.offset == 4 + len(full(version, make_job(1)))
    assert not damage.is_torn_tail


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 1, 100_000, 2**31 - 1])
@versions
def test_impossible_body_size_ends_the_file(version: int, size: int) -> None:
    head = short(version, make_job(2), size, b"default")
    binlog = read_files(header(version) + full(version, make_job(1)) + head + b"body\r\n" + full(version, make_job(3)))
    assert list(binlog.jobs) == [1]
    assert len(binlog.damage) == 1


@pytest.mark.parametrize("length", [201, 2**31 - 1, -1, -(2**31)])
def test_impossible_name_length_ends_the_file(length: int) -> None:
    data = header(V7) + full(V7, make_job(1)) + struct.pack("<i", length) + full(V7, make_job(2))[4:]
    binlog = read_files(data, header(V7) + full(V7, make_job(3)))
    assert list(binlog.jobs) == [1, 3]
    (damage,) = binlog.damage
    assert (damage.file, damage.offset + damage.bytes_lost) == ("binlog.1", len(data))


def test_body_without_crlf_is_kept_as_beanstalkd_shows_it_and_reported() -> None:
    zeroed = make_job(1, bytes(50))
    binlog = read_files(header(V7) + full(V7, zeroed, b"\0\0") + full(V7, make_job(2)))
    assert list(binlog.jobs.values()) == [zeroed, make_job(2)]
    assert binlog.unterminated == {1}
    assert "1: 1" in binlog.warnings()[0]


def test_body_without_crlf_is_forgotten_once_its_job_is_deleted_or_replaced() -> None:
    torn = header(V7) + full(V7, make_job(1, bytes(50)), b"\0\0")
    assert not read_files(torn, header(V7) + deletion(V7, make_job(1, bytes(50)))).unterminated
    assert not read_files(torn, header(V7) + full(V7, make_job(1, b"x" * 50))).unterminated


@pytest.mark.parametrize(
    ("change", "delay", "ttr"),
    [
        ({"ttr": 0}, 0, 1),
        ({"ttr": -SECOND}, 0, 1),
        ({"ttr": 60 * SECOND + 1000}, 0, 60),
        ({"delay": -SECOND}, 0, 60),
        ({"delay": 2**63 - 1}, 2**32 - 1, 60),
    ],
)
@versions
def test_impossible_duration_is_corrected_if_the_body_ends_with_crlf(
    version: int, change: dict[str, Any], delay: int, ttr: int
) -> None:
    binlog = read_files(header(version) + full(version, replace(make_job(1), **change)) + full(version, make_job(2)))
    assert binlog.jobs[1] == make_job(1, delay=delay * SECOND, ttr=ttr * SECOND)
    assert binlog.corrected == {1}
    assert "1: 1" in binlog.warnings()[0]
    assert list(binlog.jobs) == [1, 2]


def test_impossible_durations_without_crlf_are_not_a_record() -> None:
    nonsense = full(V7, make_job(1, ttr=12345), b"\0\0")
    binlog = read_files(header(V7) + nonsense + full(V7, make_job(2)))
    assert not binlog.jobs
    assert binlog.damage[0].reason == "not a record"


@pytest.mark.parametrize("change", [{"created_at": CREATED}, {"state": 9}])
@versions
def test_change_that_does_not_match_its_job_is_skipped(version: int, change: dict[str, Any]) -> None:
    """Otherwise a flipped bit in an id would change or delete another job."""
    wrong = replace(make_job(1, state=INVALID), **change)
    binlog = read_files(
        header(version) + full(version, make_job(1)) + short(version, wrong) + full(version, make_job(2))
    )
    assert list(binlog.jobs.values()) == [make_job(1), make_job(2)]
    assert len(binlog.damage) == 1


def test_change_of_another_size_with_impossible_durations_ends_the_file() -> None:
    wrong = short(V7, make_job(1, state=BURIED, ttr=1), size=99)
    binlog = read_files(header(V7) + full(V7, make_job(1)) + wrong + full(V7, make_job(2)))
    assert list(binlog.jobs.values()) == [make_job(1)]


def test_another_job_with_the_same_id_does_not_replace_the_first() -> None:
    other = make_job(1, b"other", created_at=CREATED + 999_000)
    binlog = read_files(header(V7) + full(V7, make_job(1)) + full(V7, other) + full(V7, make_job(2)))
    assert list(binlog.jobs.values()) == [make_job(1), make_job(2)]
    assert len(binlog.damage) == 1


@versions
def test_impossible_times_are_limited_to_the_range_of_the_journal(version: int) -> None:
    extreme = 2**63 - 1
    unit = UNIT[version]
    jobs = [
        make_job(1, state=DELAYED, deadline=extreme * unit, created_at=extreme * unit),
        make_job(2, state=DELAYED, deadline=-(2**63) * unit, created_at=-(2**63) * unit),
    ]
    binlog = read_files(header(version) + b"".join(full(version, job) for job in jobs))
    assert [(job.deadline, job.created_at) for job in binlog.jobs.values()] == [
        (NO_DEADLINE - 1, NO_DEADLINE - 1),
        (0, 0),
    ]
    assert binlog.corrected == {1, 2}


def test_record_inside_a_body_is_not_read() -> None:
    """A record in a body is not read even after damage: the reader does not search for the next record."""
    bait = make_job(1, full(V7, make_job(666, tube=b"bait")))
    damaged = b"\xff" * 4 + full(V7, bait)[4:]
    assert list(read_files(header(V7) + full(V7, bait)).jobs) == [1]
    assert not read_files(header(V7) + damaged).jobs


@given(st.sampled_from([V5, V7, 0]), st.binary(max_size=400))
@example(V7, bytes(300) + b"\1")
@example(V5, bytes(300) + b"\1")
def test_any_input_is_read_without_an_exception(version: int, data: bytes) -> None:
    binlog = read_files(header(version) + data if version else data)
    _assert_sane(binlog, data)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-40, 40)), max_size=12))
def test_shuffled_truncated_and_repeated_records_are_read_without_an_exception(pieces: list[tuple[int, int]]) -> None:
    data, _ = sample_file(V7)
    ends = _record_ends(V7)
    shuffled = b"".join(data[max(0, ends[index] + shift) : ends[index + 1]] for index, shift in pieces)
    _assert_sane(read_files(header(V7) + shuffled), data)


def _record_ends(version: int) -> list[int]:
    """Return the offset of the end of the file's header, then of each record of the sample."""
    names = {1: b"default", 2: b"a-tube", 3: b"/x;y.$_()+-0", 4: b"default", 5: b"default", 6: b"t"}
    bodies = {1: 0, 2: 8, 3: 4, 4: 5, 5: 7, 6: 5}
    shortest = LENGTH[version].size + FIELDS[version].size
    sizes = [shortest + len(names[id]) + bodies[id] + 2 for id in names]
    sizes += [shortest, shortest, shortest, sizes[5]]
    return [4 + sum(sizes[:count]) for count in range(len(sizes) + 1)]


def _assert_sane(binlog: BeanstalkdBinlog, data: bytes) -> None:
    """Assert that a broker may have all jobs, and that their tube names are in *data*, except for one flipped bit."""
    for id, job in binlog.jobs.items():
        assert id == job.id
        assert 0 < id <= binlog.highest_id < 2**63
        assert is_tube_name(job.tube)
        assert _contains_name(data, job.tube)
        assert job.state in (READY, DELAYED, BURIED)
        assert 0 <= job.pri < 2**32
        assert 0 <= job.delay < 2**32 * SECOND
        assert SECOND <= job.ttr < 2**32 * SECOND
        assert 0 <= job.created_at < 2**63
        assert 0 <= job.deadline < 2**63
    assert binlog.unterminated <= binlog.jobs.keys()
    assert all(damage.bytes_lost > 0 for damage in binlog.damage)


def _contains_name(data: bytes, name: bytes) -> bool:
    """Return whether *data* contains the length of *name* followed by *name*, with at most one bit flipped."""
    for version in (V5, V7):
        at = data.find(LENGTH[version].pack(len(name)))
        while at >= 0:
            begin = at + LENGTH[version].size
            found = data[begin : begin + len(name)]
            flipped = int.from_bytes(found) ^ int.from_bytes(name)
            if len(found) == len(name) and flipped.bit_count() <= 1:
                return True
            at = data.find(LENGTH[version].pack(len(name)), at + 1)
    return False


def _count_differences(binlog: BeanstalkdBinlog, jobs: Sequence[ImportedJob]) -> int:
    """Return how many of *jobs* are changed or missing in *binlog*, plus the number of additional jobs."""
    return sum(binlog.jobs.get(job.id) != job for job in jobs) + max(0, len(binlog.jobs) - len(jobs))


# Directories that beanstalkd wrote


@contextlib.contextmanager
def beanstalkd(directory: Path, *flags: str) -> Iterator[Server]:
    """Run beanstalkd on *directory*; raise ServerError if the Debian package `beanstalkd` is not installed."""
    directory.mkdir(exist_ok=True)
    server = Server(peer(), ("-b", str(directory), "-z", "300000", *flags))
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def client_of(server: Server, **options: str) -> Iterator[greenstalk.Client]:
    with greenstalk.Client(server.address, encoding=None, **options) as client:
        yield client


def kill(server: Server) -> None:
    """Send SIGKILL to the process of *server*."""
    os.kill(server.pid, signal.SIGKILL)


def decoded(directory: Path) -> BeanstalkdBinlog:
    binlog = BeanstalkdBinlog()
    for name in binlog_files(directory):
        binlog.read(name, (directory / name).read_bytes())
    return binlog


def binlog_files(directory: Path) -> list[str]:
    return find(path.name for path in directory.iterdir())


def assert_matches_beanstalkd(directory: Path, copy: Path) -> BeanstalkdBinlog:
    """Return the binlog in *directory*; assert that a beanstalkd finds the same jobs in *copy*, a new copy of it."""
    shutil.copytree(directory, copy)
    binlog = decoded(directory)
    with beanstalkd(copy) as oracle, client_of(oracle) as client:
        now = time.time_ns()
        assert client.stats()["current-jobs-reserved"] == 0
        states = ("ready", "delayed", "buried")
        assert sum(client.stats()[f"current-jobs-{state}"] for state in states) == len(binlog.jobs)
        for job in binlog.jobs.values():
            assert _body(oracle, job.id) == job.body
            _assert_stats(client.stats_job(job.id), job, now)
        for tube in sorted({job.tube for job in binlog.jobs.values()}):
            ids = [job.id for job in binlog.jobs.values() if (job.tube, job.state) == (tube, BURIED)]
            assert _kick_all(client, tube) == ids
    return binlog


def _body(server: Server, id: int) -> bytes:
    """Return the body that peek shows, whatever two bytes follow it instead of CRLF."""
    connection = Connection(server.address, timeout=5.0)
    head, _, rest = connection.ask(b"peek %d" % id).partition(b"\r\n")
    connection.close()
    return rest[: int(head.split()[2])]


def _assert_stats(stats: Any, job: ImportedJob, now: int) -> None:
    """Assert that *stats*, a reply of stats-job after *now*, match *job*. A delay may have ended since *now*."""
    is_over = [job.state == DELAYED and job.deadline <= at for at in (now, time.time_ns())]
    assert stats["state"] in [STATE_NAMES[READY if is_so else job.state] for is_so in is_over]
    expected = {
        "id": job.id,
        "tube": job.tube.decode(),
        "pri": job.pri,
        "delay": job.delay // SECOND,
        "ttr": job.ttr // SECOND,
        "reserves": job.reserves,
        "timeouts": job.timeouts,
        "releases": job.releases,
        "buries": job.buries + (job.state == BURIED),  # a restarted beanstalkd counts the burial again
        "kicks": job.kicks,
    }
    assert {key: stats[key] for key in expected} == expected
    assert abs(int(str(stats["age"])) - (now - job.created_at) // SECOND) <= START_SECONDS
    left = max(0, job.deadline - now) // SECOND if job.state == DELAYED else 0
    assert abs(int(str(stats["time-left"])) - left) <= START_SECONDS


def _kick_all(client: greenstalk.Client, tube: bytes) -> list[int]:
    """Kick all buried jobs of *tube*; return their ids in order."""
    client.use(tube.decode())
    ids: list[int] = []
    with contextlib.suppress(greenstalk.NotFoundError):
        while True:
            ids.append(client.peek_buried().id)
            client.kick(1)
    return ids


def change_all_ways(server: Server) -> None:
    """Put jobs in several tubes, and bring them into every state by every command."""
    for tube in ("default", "mail", "n" * 200, "/x;y.$_()+-0"):
        with client_of(server, use=tube) as client:
            for index in range(12):
                client.put(b"%d in %s" % (index, tube.encode()), priority=index * 300, delay=0, ttr=1 + index * 50)
            client.put(b"", priority=2**32 - 1, ttr=2**32 - 1)
            client.put(bytes(range(256)) * 700, priority=0)
            client.put(b"\r\n", delay=3600, ttr=0)
            last = client.put(b"kicked", delay=2**31)
            first = last - 15
            client.kick_job(last)
            for id in (first + 3, first + 1, first + 2, first + 4):
                client.bury(client.reserve_job(id), priority=id)
            client.kick_job(first + 2)
            client.delete(first + 4)
            client.release(client.reserve_job(first + 5), priority=5, delay=0)
            client.release(client.reserve_job(first + 6), priority=6, delay=5000)
            client.release(client.reserve_job(first + 7), priority=7, delay=1)
            client.delete(client.reserve_job(first + 8))
            client.delete(first + 9)
            client.bury(client.reserve_job(first + 10), priority=1)
            client.kick_job(first + 10)
            client.bury(client.reserve_job(first + 10), priority=2)
            client.reserve_job(first + 11)  # released when the connection ends


def test_jobs_changed_in_every_way_are_imported_after_a_clean_stop(tmp_path: Path) -> None:
    with beanstalkd(tmp_path / "b", "-f", "0") as server:
        change_all_ways(server)
    binlog = assert_matches_beanstalkd(tmp_path / "b", tmp_path / "copy")
    assert len(binlog.jobs) == 4 * (16 - 3)
    assert {job.state for job in binlog.jobs.values()} == {READY, DELAYED, BURIED}
    assert binlog.highest_id == 64
    assert binlog.warnings() == []


def test_small_files_with_gaps_and_a_compacted_job_are_imported(tmp_path: Path) -> None:
    """Old jobs stay among many short-lived ones: beanstalkd copies them to new files, and removes their files."""
    directory = tmp_path / "b"
    with beanstalkd(directory, "-F", *SMALL_FILES) as server, client_of(server) as client:
        old = [client.put(b"old %d" % index, priority=2**32 - 1, delay=3000) for index in range(20)]
        client.kick_job(old[4])
        client.bury(client.reserve_job(old[4]))
        for index in range(3000):
            id = client.put(b"x" * (index % 300))
            if index % 50:
                client.delete(id)
            elif index % 100:
                client.bury(client.reserve_job(id))
        assert client.stats()["binlog-records-migrated"] > 0
    numbers = [int(name.removeprefix("binlog.")) for name in binlog_files(directory)]
    assert len(numbers) > 2
    assert numbers[0] > 1
    binlog = assert_matches_beanstalkd(directory, tmp_path / "copy")
    assert len(binlog.jobs) == 80
    assert binlog.warnings() == []


def test_directory_of_several_beanstalkd_runs_is_imported(tmp_path: Path) -> None:
    directory = tmp_path / "b"
    for turn in range(4):
        with beanstalkd(directory, "-f", "0", *SMALL_FILES) as server:
            with client_of(server, use=f"turn-{turn}") as client:
                ids = [client.put(b"%d" % turn, delay=turn * 1000) for _ in range(30)]
                for id in reversed(ids[10:20]):
                    if turn:
                        client.kick_job(id)
                    client.bury(client.reserve_job(id), priority=turn)
                with contextlib.suppress(greenstalk.NotFoundError):
                    client.use(f"turn-{turn - 1}")
                    client.kick(3)
            if turn % 2:
                kill(server)
    binlog = assert_matches_beanstalkd(directory, tmp_path / "copy")
    assert len(binlog.jobs) == 120
    assert binlog.files > 3


@versions
def test_beanstalkd_reads_the_test_files_in_the_same_way(tmp_path: Path, version: int) -> None:
    """This verifies the encoders above, and that a damaged body is imported as beanstalkd shows it."""
    now = time.time_ns() // SECOND * SECOND
    jobs = [
        make_job(1, b"ready", created_at=now),
        make_job(2, b"reserved", b"other", RESERVED, created_at=now),
        make_job(9, b"buried", state=BURIED, created_at=now - 86400 * SECOND),
        make_job(4, b"delayed", state=DELAYED, created_at=now, delay=500 * SECOND, deadline=now + 400 * SECOND),
        make_job(5, b"due", state=DELAYED, created_at=now - 9 * SECOND, delay=SECOND, deadline=now - 8 * SECOND),
        make_job(6, b"deleted", created_at=now),
        make_job(7, b"buried later", state=BURIED, created_at=now),
    ]
    directory = tmp_path / "b"
    directory.mkdir()
    zeroed = make_job(8, bytes(40), created_at=now)
    first = header(version) + b"".join(full(version, job) for job in jobs) + full(version, zeroed, b"\0\0") + bytes(999)
    second = header(version) + deletion(version, jobs[5]) + short(version, replace(jobs[0], state=BURIED, pri=1))
    second += full(version, replace(jobs[6], pri=3)) + short(version, make_job(77)) + full(version, make_job(10))[:-9]
    for number, data in {3: first, 11: second, 12: bytes(4096)}.items():
        (directory / f"binlog.{number}").write_bytes(data)
    binlog = assert_matches_beanstalkd(directory, tmp_path / "copy")
    assert list(binlog.jobs) == [1, 2, 9, 4, 5, 7, 8]
    assert len(binlog.damage) == len(binlog.skipped) == len(binlog.unterminated) == 1


# An import that fails


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("create", "cannot import beanstalkd's jobs: cannot allocate journal.2: .*Input/output error"),
        ("write", "journal: .*: Input/output error"),
    ],
)
def test_failed_import_gives_the_reason_and_keeps_the_files(call: str, message: str) -> None:
    files = {"binlog.1": header(7) + b"".join([full(7, make_job(id, bytes(1000))) for id in range(1, 20)])}
    disk = Disk(dict(files))
    disk.before = Fault(2, errno.EIO, is_lasting=True, calls=(call,))
    with pytest.raises(StartError, match=message):
        recovered(disk, START)
    assert disk.read("binlog.1") == files["binlog.1"]
    disk.before = no_fault
    assert len(recovered(disk.crash(Chance(seeded(0), 1.0)), START).jobs) == 19
