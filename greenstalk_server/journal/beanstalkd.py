"""Reader of beanstalkd's binlog, for the import of its jobs: versions 7 (beanstalkd 1.5 to 1.13) and 5 (1.4).

Pure: the caller passes the bytes of each `binlog.N` in ascending order of N, one file at a time. The format, in which
all integers are little-endian:

    file    version i32, then records; zeros end the records, since beanstalkd may allocate a file ahead
    full    length of tube name (i32 above 0; u64 in version 5), tube name, fields, body with its CRLF
    short   length 0, fields: the current state of a job that has an earlier full record

A full record of a known job replaces the job. State 0 in a short record deletes it. A reserved job becomes ready. A
delayed job stays delayed until its deadline, which the caller compares with the time. Buried jobs are ordered by their
first records.

There are no checksums, so a record counts only if it shows evidence of beanstalkd. Evidence is a value that beanstalkd
always writes: durations are whole seconds and ttr is at least one second, a body ends with CRLF, and a short record
repeats the creation time and body size of its job. One piece of evidence is enough to step over a damaged record.
Without any, the rest of the file is skipped, since nothing shows where the next record begins: a search could find data
that clients wrote into bodies. No input raises an exception; `BeanstalkdBinlog.damage` lists the losses.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from greenstalk_server.core.jobs.id_sequence import ID_END
from greenstalk_server.core.jobs.job import DELAYED, READY, RESERVED, SECOND, Job
from greenstalk_server.core.tags.tags import NO_DEADLINE
from greenstalk_server.core.tube_names import is_tube_name
from greenstalk_server.journal.replayed_segment import Damage

CRLF: Final = b"\r\n"

_FILE_NAME: Final = re.compile(r"binlog\.([1-9][0-9]{0,9})", re.ASCII)
_MAX_NAME: Final = 200
_INVALID: Final = 0
"""State of a deleted job."""

_MAX_SECONDS: Final = 2**32 - 1
_MAX_TIME: Final = NO_DEADLINE - 1
_MAX_ID: Final = ID_END - 1
"""Maximum imported id. No beanstalkd reaches it."""

_ERA: Final = range(10**18, 4 * 10**18)
"""Creation times that count as evidence, nanoseconds: years 2001 to 2096."""

_MAX_SHOWN_IDS: Final = 20


@dataclass(slots=True)
class ImportedJob:
    """A job as of the files read so far. Units as in job.Job.

    body        body without its last two bytes, which are CRLF unless the job is in `BeanstalkdBinlog.unterminated`.
    state       READY, DELAYED or BURIED.
    deadline    end of the delay, which may be in the past; 0 unless delayed.
    """

    id: int
    tube: bytes
    body: bytes
    pri: int
    delay: int
    ttr: int
    created_at: int
    deadline: int
    reserves: int
    timeouts: int
    releases: int
    buries: int
    kicks: int
    state: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that was not read, and the reason.

    is_blank        the file is empty or has only zeros, as after a crash: it has no jobs.
    is_unknown      the file has a version that is not read: it may have jobs, so no server starts on it.
    """

    file: str
    reason: str
    is_blank: bool = False
    is_unknown: bool = False

    def __str__(self) -> str:
        return f"{self.file}: not read: {self.reason}"


@dataclass(slots=True)
class BeanstalkdBinlog:
    """The jobs in beanstalkd's files. Pass the files to `read` in the order that `find` returns.

    jobs        jobs by id, in the order of their first records, which is the order of buried jobs.
    highest_id  highest id of all sound records, including those of deleted jobs; 0 if there is none.
    files       number of files read.
    records     number of sound records.
    unknown     number of short records whose full record is in no file: the job was deleted long ago. Normal.
    unterminated ids of jobs whose body does not end with CRLF, after a crash: the body may be partly or wholly zeros.
    corrected   ids of jobs with an impossible delay, ttr or creation time, replaced by the nearest possible value.
    skipped     files that were not read.
    damage      damage in the order of the files. Torn tails are normal after a crash, in any file: a restarted
                beanstalkd writes to a new file.
    """

    jobs: dict[int, ImportedJob] = field(default_factory=dict)
    highest_id: int = 0
    files: int = 0
    records: int = 0
    unknown: int = 0
    unterminated: set[int] = field(default_factory=set)
    corrected: set[int] = field(default_factory=set)
    skipped: list[Skipped] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    _tubes: dict[bytes, bytes] = field(default_factory=dict)

    def read(self, file: str, data: bytes) -> None:
        """Read *data*, the content of *file*, which may be anything."""
        layout = _LAYOUTS.get(data[:4])
        if layout is None:
            is_blank = not data.strip(b"\0")
            self.skipped.append(Skipped(file, _why_skipped(data), is_blank, is_unknown_version(data)))
            return
        self.files += 1
        at, used = 4, len(data.rstrip(b"\0"))
        while at < used:
            try:
                at = self._read_record(layout, data, at)
                self.records += 1
            except _UnsoundError as unsound:
                resume = unsound.resume or used
                is_torn = unsound.is_torn or used - at < layout.length.size + layout.fields.size
                self.damage.append(Damage(file, at, resume - at, unsound.reason, is_torn_tail=is_torn))
                at = resume

    @property
    def unknown_versions(self) -> list[Skipped]:
        """The files that prevent a server from starting on the directory."""
        return [skipped for skipped in self.skipped if skipped.is_unknown]

    @property
    def is_sound(self) -> bool:
        """Whether the files have no damage, except torn tails and blank files, which are normal after a crash."""
        return (
            all(skipped.is_blank for skipped in self.skipped)
            and all(damage.is_torn_tail for damage in self.damage)
            and not (self.unterminated or self.corrected)
        )

    def is_imported(self, jobs: Mapping[int, Job]) -> bool:
        """Return whether the journal's *jobs* include all jobs of the files.

        If they do, an earlier start imported the jobs, and was interrupted before it moved the files.
        """
        return bool(self.jobs) and all(_is_import_of(imported, jobs.get(id)) for id, imported in self.jobs.items())

    def warnings(self) -> list[str]:
        """Return warnings for the operator, one line each; empty if the files are sound."""
        lines = [*map(str, self.skipped), *map(str, self.damage)]
        if self.unterminated:
            lines.append(
                f"jobs whose body lacks its final CRLF, perhaps zeroed by a crash: {_format_ids(self.unterminated)}"
            )
        if self.corrected:
            lines.append(
                f"jobs whose impossible delay, ttr or creation time was corrected: {_format_ids(self.corrected)}"
            )
        return lines

    def _read_record(self, layout: _Layout, data: bytes, at: int) -> int:
        """Read the record at offset *at*; return its end, or raise _UnsoundError."""
        name_at = at + layout.length.size
        if name_at > len(data):
            raise _UnsoundError("torn", is_torn=True)
        length: int = layout.length.unpack_from(data, at)[0]
        if not 0 <= length <= _MAX_NAME:
            raise _UnsoundError(f"a tube name of {length} bytes")
        fields_at = name_at + length
        end = fields_at + layout.fields.size
        if end > len(data):
            raise _UnsoundError("torn", is_torn=True)
        fields = layout.fields.unpack_from(data, fields_at)
        if layout.unit != 1:
            fields = _in_nanoseconds(fields, layout.unit)
        if length:
            return self._read_full(data, data[name_at:fields_at], fields, end)
        self._read_short(fields, end)
        return end

    def _read_full(self, data: bytes, name: bytes, fields: tuple[int, ...], body_at: int) -> int:
        id, pri, delay, ttr, size, created_at, deadline, reserves, timeouts, releases, buries, kicks, state = fields
        end = body_at + size
        is_terminated, is_whole = _check_frame(data, fields, body_at)
        resume = end if is_terminated and is_whole else 0
        tube = self._tubes.get(name) or self._new_tube(name, resume)
        if not (0 < id <= _MAX_ID and READY <= state <= DELAYED):
            raise _UnsoundError(f"job {id} in state {state}", resume)
        job = ImportedJob(
            id,
            tube,
            data[body_at : end - 2],
            pri,
            delay,
            ttr,
            created_at,
            deadline,
            reserves,
            timeouts,
            releases,
            buries,
            kicks,
            state,
        )
        _settle(job)
        if not (is_whole and 0 <= created_at <= _MAX_TIME):
            self._correct(job)
        known = self.jobs.get(id)
        if known is not None and not _is_same(known, job):
            raise _UnsoundError(f"a different job with id {id}", resume)
        self.jobs[id] = job
        if id > self.highest_id:
            self.highest_id = id
        if not is_terminated:
            self.unterminated.add(id)
        elif known is not None:
            self.unterminated.discard(id)
        return end

    def _read_short(self, fields: tuple[int, ...], end: int) -> None:
        id, pri, delay, ttr, size, created_at, deadline, reserves, timeouts, releases, buries, kicks, state = fields
        is_whole = _is_whole(delay, ttr)
        job = self.jobs.get(id)
        if job is None:
            self._note_unknown(id, state, is_whole)
            return
        has_size = size == len(job.body) + len(CRLF)
        if created_at != job.created_at or not (has_size or is_whole) or not _INVALID <= state <= DELAYED:
            raise _UnsoundError(f"not an update of job {id}", end if has_size or is_whole else 0)
        if state == _INVALID:
            self._forget(id)
            return
        job.pri = pri
        job.deadline = deadline
        job.reserves = reserves
        job.timeouts = timeouts
        job.releases = releases
        job.buries = buries
        job.kicks = kicks
        job.state = state
        if is_whole:
            job.delay = delay
        else:
            self.corrected.add(id)
        _settle(job)

    def _note_unknown(self, id: int, state: int, is_whole: bool) -> None:
        """Note a short record of an unknown job: its file was removed, or its full record comes later."""
        if not (is_whole and 0 < id <= _MAX_ID and _INVALID <= state <= DELAYED):
            raise _UnsoundError("not a record")
        self.unknown += 1
        self.highest_id = max(self.highest_id, id)

    def _new_tube(self, name: bytes, resume: int) -> bytes:
        if not is_tube_name(name):
            raise _UnsoundError(f"{name[:40]!r} is not a tube name", resume)
        self._tubes[name] = name
        return name

    def _correct(self, job: ImportedJob) -> None:
        job.delay = _whole_seconds(job.delay, 0)
        job.ttr = _whole_seconds(job.ttr, 1)
        job.created_at = min(max(job.created_at, 0), _MAX_TIME)
        self.corrected.add(job.id)

    def _forget(self, id: int) -> None:
        del self.jobs[id]
        self.unterminated.discard(id)
        self.corrected.discard(id)


def find(names: Iterable[str]) -> list[str]:
    """Return those of *names* that are files of a beanstalkd binlog, in the order to read them. Gaps are normal."""
    found = filter(None, map(_FILE_NAME.fullmatch, names))
    return [match[0] for match in sorted(found, key=lambda match: int(match[1]))]


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout of records of one version; `unit`: nanoseconds per unit of its times.

    Fields: id, pri, delay, ttr, body size, created_at, deadline, reserves, timeouts, releases, buries, kicks,
    state.
    """

    length: struct.Struct
    fields: struct.Struct
    unit: int


_LAYOUTS: Final = {
    b"\7\0\0\0": _Layout(struct.Struct("<i"), struct.Struct("<QI4xqqi4xqq5IB3x"), 1),
    b"\5\0\0\0": _Layout(struct.Struct("<Q"), struct.Struct("<QI4xqqi4xqq5IB"), 1000),
}


class _UnsoundError(Exception):
    """The record at an offset is not valid. `resume`: offset of its end, 0 if the end is not certain."""

    def __init__(self, reason: str, resume: int = 0, is_torn: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.resume = resume
        self.is_torn = is_torn


def is_unknown_version(data: bytes) -> bool:
    """Return whether *data*, the beginning of a file, has a version that is not read. Version 0 means damage."""
    return len(data) >= 4 and data[:4] not in _LAYOUTS and any(data[:4])


def _why_skipped(data: bytes) -> str:
    if not data.strip(b"\0"):
        return "zeroed" if data else "empty"
    if len(data) < 4:
        return "shorter than a version"
    if data[:4][::-1] in _LAYOUTS:
        return "written on a big-endian machine"
    return f"unknown version {int.from_bytes(data[:4], 'little', signed=True)}"


def _check_frame(data: bytes, fields: tuple[int, ...], body_at: int) -> tuple[bool, bool]:
    """Return whether the body ends with CRLF, and whether the durations are possible.

    Raise _UnsoundError if neither is the case.
    """
    size, created_at = fields[4], fields[5]
    end = body_at + size
    is_whole = _is_whole(fields[2], fields[3])
    if size >= len(CRLF) and end > len(data):
        raise _UnsoundError("torn", is_torn=True)
    is_terminated = size >= len(CRLF) and data.startswith(CRLF, end - 2)
    if size < len(CRLF) or not (is_whole or (is_terminated and created_at in _ERA)):
        raise _UnsoundError("not a record")
    return is_terminated, is_whole


def _is_whole(delay: int, ttr: int) -> bool:
    """Return whether these are durations of the protocol: whole seconds, ttr not 0."""
    return not (delay % SECOND or ttr % SECOND) and 0 <= delay <= _MAX_SECONDS * SECOND >= ttr > 0


def _whole_seconds(duration: int, least: int) -> int:
    return min(max(duration // SECOND, least), _MAX_SECONDS) * SECOND


def _in_nanoseconds(fields: tuple[int, ...], unit: int) -> tuple[int, ...]:
    id, pri, delay, ttr, size, created_at, deadline, *rest = fields
    return (id, pri, delay * unit, ttr * unit, size, created_at * unit, deadline * unit, *rest)


def _settle(job: ImportedJob) -> None:
    """Change the recorded state and deadline of *job* as a restart does."""
    if job.state == DELAYED:
        job.deadline = min(max(job.deadline, 0), _MAX_TIME)
        return
    job.deadline = 0
    if job.state == RESERVED:
        job.state = READY


def _is_import_of(imported: ImportedJob, job: Job | None) -> bool:
    """Return whether *job*, from the journal, is what an import of *imported* has created."""
    return job is not None and (job.tube.name, job.body) == (imported.tube, imported.body)


def _is_same(known: ImportedJob, job: ImportedJob) -> bool:
    """Return whether two full records are of the same job; one of them may be damaged."""
    return known.created_at == job.created_at or (known.tube == job.tube and known.body == job.body)


def _format_ids(ids: set[int]) -> str:
    shown = ", ".join(map(str, islice(sorted(ids), _MAX_SHOWN_IDS)))
    return f"{len(ids)}: {shown}" + (", ..." if len(ids) > _MAX_SHOWN_IDS else "")
