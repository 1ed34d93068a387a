"""Fuzz the files of a journal: flipped, cut, spliced, repeated, renamed or lost parts, and wrong lengths.

The properties checked for any change to the files of a server that had jobs:

- recovery, `journal check` and a start raise nothing but StartError, and do not read beyond the files;
- every restored job has a body that was recorded for it, byte for byte, and a tube that it was in;
- damage within an older segment is reported;
- a start on the files is consistent: it accepts puts, and the next start restores the same jobs.

Some runs give the changed records a correct CRC, which no accident does. Then any job may be restored; the other
properties still hold.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final
from zlib import crc32

from greenstalk_server.core import job_attributes
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.core.operations import connecting, putting
from greenstalk_server.core.tags.tags import TaggedJob
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal import check, record, startup
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.segment import name_of, numbers
from greenstalk_server.journal.startup import replay_all
from greenstalk_server.journal.writer import JournalWriter
from greenstalk_server.runtime.exit_codes import StartError
from tests.fuzz.source import Source
from tests.journal.disk import Disk, seeded
from tests.journal.policy_workload import PolicyBench
from tests.journal.tagged_workload import TaggedBench
from tests.journal.workload import SMALL_SEGMENT, Bench, JobSnapshot
from tests.support import invariants
from tests.support.world import START, make_broker

BENCHES: Final[dict[int, type[Bench]]] = {1: Bench, 2: Bench, 3: PolicyBench, 4: PolicyBench, 5: TaggedBench}
"""The servers by their seeds: two have moves, groups, attributes, policies and keys, and one has tags."""
SEEDS: Final = tuple(BENCHES)
TURNS: Final = 40
LATER: Final = START + 86400 * SECOND
"""A time after all times in the journals of the base servers."""

LENGTHS: Final = (0, 1, 20, 8, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 21)
NUMBERS: Final = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 2**32, 2**64 - 1)
MAX_MUTATIONS: Final = 24


@dataclass(frozen=True, slots=True)
class Base:
    """The journal of a stopped server.

    files       contents by name.
    records     offsets of the records in each file.
    looks       tags, body, ttr and creation time of each job, as recorded; several if it was edited.
    tubes       names of the tubes that each job was in. Damage may remove an edit and keep a later move.
    """

    files: dict[str, bytes]
    records: dict[str, list[int]]
    looks: dict[int, set[tuple[bytes, bytes, int, int]]]
    tubes: dict[int, set[bytes]]


@cache
def base(seed: int) -> Base:
    """Return the journal of the server with *seed*; always the same."""
    bench = BENCHES[seed](Disk(), seeded(seed))
    for _ in range(TURNS):
        bench.step()
    bench.settle(3)
    files = {name_of(number): bench.disk.contents()[name_of(number)] for number in numbers(bench.disk.list())}
    looks: dict[int, set[tuple[bytes, bytes, int, int]]] = {}
    tubes: dict[int, set[bytes]] = {}
    for id, entries in bench.history.jobs.items():
        found = [facts(look) for _, look in entries if look is not None]
        looks[id] = {look[1:] for look in found}
        tubes[id] = {tube for tube, *_ in found}
    return Base(files, {name: _records(data) for name, data in files.items()}, looks, tubes)


def facts(job: Job | JobSnapshot) -> tuple[bytes, bytes, bytes, int, int]:
    """Return the tube of a job, and the facts that only its JOB record has."""
    if isinstance(job, JobSnapshot):
        return job.tube, job.tags, job.body, job.ttr, job.created_at
    tags = job_attributes.encode_tags(job) if isinstance(job, TaggedJob) else b""
    return job.tube.name, tags, job.body, job.ttr, job.created_at


def _records(data: bytes) -> list[int]:
    at, places = record.SEGMENT_HEADER_SIZE, []
    salt = data[12:16]
    while data[at : at + 4] == salt and any(salt):
        places.append(at)
        at += record.HEADER_SIZE + record.HEADER.unpack_from(data, at)[2]
    return places


def one(data: bytes) -> None:
    """Damage the files as *data* says, and recover from them."""
    source = Source(data)
    story = base(source.pick(SEEDS))
    damaged = Damaged(story)
    for _ in range(MAX_MUTATIONS):
        if not source:
            break
        damaged.mutate(source)
    recovery = _recover(damaged.files)
    if not damaged.is_sealed:
        for id, job in recovery.jobs.items():
            tube, *look = facts(job)
            assert tube in story.tubes.get(id, ()), f"job {id} was never in {tube!r}"
            assert tuple(look) in story.looks.get(id, ()), f"job {id} was invented"
        if damaged.must_be_reported():
            assert recovery.damage, "damage is not reported"
    _check_as_an_operator_does(damaged.files, recovery)
    _start(damaged.files, recovery)


class Damaged:
    """The files of a base, changed step by step."""

    def __init__(self, story: Base) -> None:
        self.files = dict(story.files)
        self.is_sealed = False
        self._story = story
        self._is_in_place = True

    def mutate(self, source: Source) -> None:
        """Make one change."""
        steps: tuple[Callable[[str, Source], None], ...] = (
            self._flip, self._flip, self._overwrite, self._zero, self._cut, self._extend, self._splice, self._copy,
            self._drop, self._swap, self._falsify_length, self._seal_record, self._seal_head, self._insert_record,
        )  # fmt: skip
        step = source.pick(steps)
        if self.files:
            step(source.pick(sorted(self.files)), source)

    def must_be_reported(self) -> bool:
        """Whether a byte of a record was changed, in a file that is not the newest and is unchanged otherwise."""
        if not self._is_in_place:
            return False
        *older, _ = [name for name in self._story.files if self._story.files[name].strip(b"\0")]
        return any(
            self.files[name].strip(b"\0") and self.files[name].rstrip(b"\0") != self._story.files[name].rstrip(b"\0")
            for name in older[1:]
        )

    def _at(self, name: str, source: Source) -> int:
        """Return an offset in the file; every other time near the start of a record."""
        size = len(self.files[name])
        places = self._story.records.get(name)
        where = source.short()
        if where & 1 and places:
            return min(places[(where >> 8) % len(places)] + (where >> 1) % 64, max(0, size - 1))
        return (where * 2 + (where >> 8)) % max(1, size)

    def _write(self, name: str, at: int, data: bytes) -> None:
        old = self.files[name]
        self.files[name] = old[:at] + data[: max(0, len(old) - at)] + old[at + len(data) :]

    def _flip(self, name: str, source: Source) -> None:
        at = self._at(name, source)
        if at < len(self.files[name]):
            self._write(name, at, bytes([self.files[name][at] ^ 1 << source.byte() % 8]))

    def _overwrite(self, name: str, source: Source) -> None:
        self._write(name, self._at(name, source), source.take(source.byte()))

    def _zero(self, name: str, source: Source) -> None:
        self._is_in_place = False
        self._write(name, self._at(name, source) // 512 * 512, bytes(512 * (1 + source.byte() % 4)))

    def _cut(self, name: str, source: Source) -> None:
        self._is_in_place = False
        self.files[name] = self.files[name][: self._at(name, source)]

    def _extend(self, name: str, source: Source) -> None:
        self._is_in_place = False
        self.files[name] += bytes(source.byte()) + source.take(source.byte())

    def _splice(self, name: str, source: Source) -> None:
        """Insert a part of any file into this one."""
        self._is_in_place = False
        other = source.pick(sorted(self.files))
        at, begin = self._at(name, source), self._at(other, source)
        piece = self.files[other][begin : begin + source.pick((21, 100, 512, 4096))]
        self.files[name] = self.files[name][:at] + piece + self.files[name][at + source.pick((0, len(piece))) :]

    def _copy(self, name: str, source: Source) -> None:
        self._is_in_place = False
        self.files[f"journal.{source.byte() % 16 + 1}"] = self.files[name]

    def _drop(self, name: str, source: Source) -> None:
        self._is_in_place = False
        del self.files[name]

    def _swap(self, name: str, source: Source) -> None:
        self._is_in_place = False
        other = source.pick(sorted(self.files))
        self.files[name], self.files[other] = self.files[other], self.files[name]

    def _falsify_length(self, name: str, source: Source) -> None:
        if places := self._story.records.get(name):
            self._write(name, source.pick(places) + 8, struct.pack("<I", source.pick(LENGTHS)))

    def _seal_record(self, name: str, source: Source) -> None:
        """Give a record, changed or not, a correct CRC."""
        data = self.files[name]
        at = source.pick(self._story.records.get(name) or [0])
        if at + record.HEADER_SIZE <= len(data):
            self.is_sealed = True
            stop = at + record.HEADER_SIZE + record.HEADER.unpack_from(data, at)[2]
            self._write(name, at, _sealed(data[12:16], data[at + record.PREFIX_SIZE : stop]))

    def _seal_head(self, name: str, source: Source) -> None:
        """Change the number, sequence, next id or version in the header."""
        self.is_sealed = True
        field = source.pick((8, 16, 24, 32))
        value = struct.pack("<Q", source.pick(NUMBERS))
        self._write(name, field, value[:4] if field == 8 else value)
        self._write(name, 40, crc32(self.files[name][:40]).to_bytes(4, "little"))

    def _insert_record(self, name: str, source: Source) -> None:
        """Append a valid record of any kind and payload."""
        self.is_sealed = True
        self._is_in_place = False
        data = self.files[name].rstrip(b"\0")
        kind, sequence = source.byte() % 19, 10_000 + source.byte()
        length = record.MIN_PAYLOAD.get(kind, 0) + source.byte() % 32
        payload = source.take(length).ljust(length, b"\0")
        if kind in record.JOB_KINDS and source.byte() & 1:
            payload = _plausible(payload, source)
        rest = struct.pack("<IQB", len(payload), sequence, kind) + payload
        self.files[name] = data + _sealed(data[12:16], rest)


def _plausible(payload: bytes, source: Source) -> bytes:
    """Return the payload of a JOB record with a valid state and tube name."""
    fields = list(record.JOB_FIELDS.unpack_from(payload))
    fields[0] = source.pick((fields[0], 1, 2, 500, 2**63, 2**64 - 1))
    fields[-2:] = [source.byte() % 6, 1]
    return record.JOB_FIELDS.pack(*fields) + b"a" * (1 + len(payload) - record.JOB_FIELDS.size)


def _sealed(salt: bytes, rest: bytes) -> bytes:
    return salt + crc32(rest, record.seed_of(salt)).to_bytes(4, "little") + rest if len(salt) == 4 else b""


def _recover(files: dict[str, bytes]) -> Recovery:
    table: dict[int, Job] = {}
    tubes: dict[bytes, Tube] = {}
    recovery = Recovery(lambda name: tubes.setdefault(name, Tube(name, table)), table)
    replay_all(Disk(files), recovery)
    recovery.settle(LATER)
    size = sum(map(len, files.values()))
    assert recovery.records * record.HEADER_SIZE <= size
    assert sum(len(job.body) for job in recovery.jobs.values()) <= size
    assert sum(damage.bytes_lost for damage in recovery.damage) <= size
    assert all(job_history.unpack(job.events) is not None for job in recovery.jobs.values())
    return recovery


def _check_as_an_operator_does(files: dict[str, bytes], recovery: Recovery) -> None:
    directory = scratch()
    for name, data in files.items():
        Path(directory, name).write_bytes(data)
    report = check.inspect(str(directory), LATER)
    assert check.describe(report)
    assert report.recovery.jobs.keys() == recovery.jobs.keys()
    assert report.recovery.is_sound == recovery.is_sound


def _start(files: dict[str, bytes], recovery: Recovery) -> None:
    """Start on the files, put a job, and start again: all jobs are restored, but those of truncated tubes."""
    disk = Disk(files)
    try:
        broker, journal = started(disk)
    except StartError:
        assert recovery.refusal
        return
    expected = {id: facts(job) for id, job in recovery.jobs.items() if not job.is_truncated}
    assert {id: facts(job) for id, job in broker.jobs.items()} == expected
    put_one(broker)
    startup.write_out(journal)
    again, _ = started(disk)
    assert {id: facts(job) for id, job in again.jobs.items()} == {id: facts(job) for id, job in broker.jobs.items()}
    assert again.next_id >= broker.next_id


def started(disk: Disk) -> tuple[Broker, JournalWriter]:
    """Return a server on *disk*, whose broker keeps its invariants."""
    broker, journal = recovered(disk)
    invariants.check(broker)
    return broker, journal


def recovered(disk: Disk) -> tuple[Broker, JournalWriter]:
    """Return a server on *disk* before its first tick, at which policies may change its jobs."""
    broker = make_broker()
    journal = JournalWriter(disk, SMALL_SEGMENT, 0, seeded(7).randbytes)
    broker.journal = journal
    startup.recover(disk, broker, journal, LATER, is_strict=False)
    return broker, journal


def put_one(broker: Broker) -> None:
    """Put a job as a client does."""
    client = connecting.connect(broker, lambda: None)
    id = broker.allocate_id()
    assert id not in broker.jobs
    assert putting.put(broker, client, id, 0, 0, SECOND, b"one more", LATER) > 0
    connecting.disconnect(broker, client, LATER)
    invariants.check(broker)


@cache
def _scratch(process: int) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)  # noqa: S108


def scratch() -> Path:
    """Return an empty directory of this process, in memory if possible."""
    directory = Path(_scratch(os.getpid()).name)
    for path in directory.iterdir():
        if path.is_file():
            path.unlink()
    return directory
