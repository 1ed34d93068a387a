"""The blocking work on the files of a journal: batches, syncs, reads and maintenance.

`JournalWriter` makes each of these objects in the thread of the broker, `run` works in any thread, and the thread of
the broker reports the result to `JournalWriter`.
"""

from __future__ import annotations

import errno
import os
import time
from bisect import bisect_left
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final

from greenstalk_server.core.jobs.job import Job
from greenstalk_server.journal import record
from greenstalk_server.journal.files import Files
from greenstalk_server.journal.segment import LARGE_BODY, PendingRecords, Segment, name_of

PUTS_WILL_BE_REFUSED: Final = "puts return OUT_OF_MEMORY once the room in existing files is used"

MAX_GAP: Final = 65536
MAX_READ: Final = 4 * 2**20
"""MAX_GAP: maximum bytes between two records that one read covers. MAX_READ: maximum bytes of one read."""


class Batch:
    """Records to write, and perhaps to sync.

    Returned by `JournalWriter.take_batch`. After `run`, report it to `JournalWriter.complete_batch` or `note_failure`.

    sequence    number of its last record.
    size        bytes that it writes.
    ids         ids of its new jobs.
    is_synced   its records are on disk once it has run.
    next_id     above all ids reserved so far.
    sync_times  nanoseconds that each completed sync took.
    finished    segments that are full and completely on disk.
    is_short    it has stopped because a segment could not be allocated; what it has written is sound.
    surplus     segments without records whose files it has not removed yet.
    """

    def __init__(
        self,
        files: Files,
        parts: list[tuple[Segment, PendingRecords, bool, int]],
        sequence: int,
        ids: set[int],
        is_synced: bool,
        is_never_synced: bool,
        next_id: int,
        required_free: int,
        room_ahead: int,
        size: int,
        surplus: list[Segment],
    ) -> None:
        """*parts* lists the segments to write to, oldest first, with their records.

        Each part is a segment, the records to append, whether the segment is full after them, and how many of their
        bytes are copies by compaction.

        *required_free* is the number of bytes that must remain available after the batch allocates any segment except
        its first; the copies in the parts up to and including that segment are subtracted from this number. The
        available bytes are the free bytes of the disk plus *room_ahead*, the bytes of files that are allocated ahead
        and not used by the batch.

        *surplus* lists segments without records; their files are removed first.
        """
        self._files: Files = files
        self._parts: list[tuple[Segment, PendingRecords, bool, int]] = parts
        self._is_never_synced: bool = is_never_synced and not is_synced
        self._required_free: int = required_free
        self._room_ahead: int = room_ahead
        self.is_synced: bool = is_synced
        self.next_id: int = next_id
        self.sequence: int = sequence
        self.ids: set[int] = ids
        self.size: int = size
        self.surplus: list[Segment] = surplus
        self.sync_times: list[int] = []
        self.finished: list[Segment] = []
        self.is_short: bool = False

    @property
    def segments(self) -> list[Segment]:
        """The segments that it writes to, oldest first."""
        return [segment for segment, _, _, _ in self._parts]

    def run(self) -> None:
        """Remove, write and sync; raise OSError, after which the content of the first unfinished segment is unknown.

        If `is_short`, the content is known.
        Invariant: a segment is fully on disk before the first byte of the next one is written, so only the newest can
        be torn.
        """
        while self.surplus:
            remove(self._files, self.surplus[-1])
            self.surplus.pop()
        required_free = self._required_free
        for index, (segment, records, is_full, copies) in enumerate(self._parts):
            required_free -= copies
            try:
                if not segment.is_begun:
                    self._allocate(segment, required_free if index else 0)
                self._write(segment, records.encode())
                if is_full:
                    self._finish(segment)
                elif self.is_synced and segment.handle is not None:
                    self.sync_times.append(timed_sync(self._files, segment.handle))
            except OSError as error:
                if error.errno is not None:  # an error of the database has no errno, and no file
                    error.filename = error.filename or name_of(segment.number)
                raise

    def _allocate(self, segment: Segment, required_free: int) -> None:
        """Allocate *segment*.

        If that fails, or would leave less than *required_free* bytes, set `is_short` and raise OSError.
        """
        self.is_short = True
        lacking = segment.unallocated
        if required_free > 0 and self._files.free() - lacking + self._room_ahead < required_free:
            raise no_space_error()
        if segment.handle is None:
            create(self._files, segment)
        elif segment.allocated < segment.capacity:
            self._files.grow(segment.handle, segment.capacity)
            segment.allocated = segment.capacity
        self.is_short = False

    def _write(self, segment: Segment, pieces: list[bytes]) -> None:
        assert segment.handle is not None
        if not segment.is_listed and not self._is_never_synced:
            self._files.sync_directory()
            segment.is_listed = True
        if pieces:
            segment.is_begun = True
            self._files.write(segment.handle, segment.written, pieces)
            segment.written += sum(map(len, pieces))

    def _finish(self, segment: Segment) -> None:
        assert segment.handle is not None
        self._files.truncate(segment.handle, segment.written)
        segment.allocated = segment.written
        if not self._is_never_synced:
            self.sync_times.append(timed_sync(self._files, segment.handle))
        self._files.close(segment.handle)
        segment.handle = None
        self.finished.append(segment)


class SyncTask:
    """A sync of everything written before it.

    Returned by `JournalWriter.take_sync`. After `run`, report it to `JournalWriter.complete_sync`.

    segment     number of the segment that it syncs.
    sequence    number of the last record that it syncs.
    next_id     above all ids that the written records reserve.
    time        nanoseconds that it took, once it has run.
    """

    def __init__(self, files: Files, handle: int, segment: int, sequence: int, next_id: int) -> None:
        self._files: Files = files
        self._handle: int = handle
        self.segment: int = segment
        self.sequence: int = sequence
        self.next_id: int = next_id
        self.time: int = 0

    def run(self) -> None:
        """Sync. Blocks; raises OSError, after which it is unknown what is on disk."""
        self.time = timed_sync(self._files, self._handle)


class BodyRead:
    """A read of bodies. Returned by `JournalWriter.read`. After `run`, report it to `JournalWriter.complete_read`.

    jobs        by id: the job, and the number of the segment that its body is read from.
    bodies      by id: the bodies that were read.
    errors      by id: why a body was not read.
    """

    def __init__(
        self,
        files: Files,
        jobs: dict[int, tuple[Job, int]],
        wanted: dict[int, tuple[Segment, dict[int, tuple[int, int]]]],
    ) -> None:
        """*wanted* has, by number, a segment that is fully on disk, and the sizes of record and body by job id."""
        self._files: Files = files
        self._wanted: dict[int, tuple[Segment, dict[int, tuple[int, int]]]] = wanted
        self.jobs: dict[int, tuple[Job, int]] = jobs
        self.bodies: dict[int, bytes] = {}
        self.errors: dict[int, str] = {}

    def run(self) -> None:
        """Read. Blocks; never raises OSError."""
        for number, (segment, sizes) in self._wanted.items():
            positions = _positions(segment, sizes)
            records = [(segment.starts[at], *sizes[id], id) for id, at in positions.items()]
            self.errors.update({id: f"{name_of(number)} has no record of it" for id in sizes if id not in positions})
            try:
                head = self._files.read_at(name_of(number), 0, record.SEGMENT_HEADER_SIZE)
                seed = record.seed_of(record.decode_segment_header(head).salt)
                for together in _group_adjacent(sorted(records)):
                    self._read(number, together, seed)
            except (OSError, record.BadSegment) as error:
                for id in sizes:
                    if id not in self.bodies:
                        self.errors[id] = str(error)

    def _read(self, number: int, records: list[tuple[int, int, int, int]], seed: int) -> None:
        """Read *records*, which are close together, with one call."""
        name, begin = name_of(number), records[0][0]
        _, size, body_size, id = records[0]
        if body_size > LARGE_BODY and len(records) == 1:  # read it without a copy, which would hold the GIL
            start = self._files.read_at(name, begin, size - body_size)
            body = self._files.read_at(name, begin + size - body_size, body_size)
            self._check(start, body, size, id, seed, f"{name}: the record at offset {begin} is damaged")
            return
        data = self._files.read_at(name, begin, records[-1][0] + records[-1][1] - begin)
        for at, size, body_size, id in records:
            body_at, end = at + size - body_size - begin, at + size - begin
            damage = f"{name}: the record at offset {at} is damaged"
            self._check(data[at - begin : body_at], data[body_at:end], size, id, seed, damage)

    def _check(self, start: bytes, body: bytes, size: int, id: int, seed: int, damage: str) -> None:
        """Keep *body* if *start* and *body* are a sound record of *size* bytes; else note *damage* as the error."""
        if record.is_job(start, body, size, id, seed):
            self.bodies[id] = body
        else:
            self.errors[id] = damage


class Maintenance:
    """Creates files ahead and removes files.

    Returned by `JournalWriter.take_maintenance`. After `run`, report it to `JournalWriter.complete_maintenance`.

    created         segments whose files it has created.
    not_removed     segments whose files may still exist.
    free            free bytes of the disk afterwards.
    error_message   message about the operation that failed, and its consequence; %s stands for the error.
    error           why it failed, or None.
    """

    def __init__(
        self,
        files: Files,
        to_create: list[Segment],
        to_remove: list[Segment],
        is_never_synced: bool,
        spare: int,
        *,
        has_ahead: bool,
    ) -> None:
        """*spare*: bytes that must stay free on the disk. The first segment may use them if no segment is ahead."""
        self._files: Files = files
        self._is_never_synced: bool = is_never_synced
        self._spare: int = spare
        self._has_ahead: bool = has_ahead
        self._to_create: list[Segment] = to_create
        self._to_remove: list[Segment] = to_remove
        self.created: list[Segment] = []
        self.not_removed: list[Segment] = list(to_remove)
        self.free: int = 0
        self.error_message: str = ""
        self.error: OSError | None = None

    def run(self) -> None:
        """Remove files, then create files. Blocks; never raises OSError."""
        try:
            for segment in self._to_remove:
                self.error_message = f"cannot remove {name_of(segment.number)}: %s; its space stays in use"
                remove(self._files, segment)
                # Otherwise a crash could undo this removal but not the next one: a JOB would return without its DELETE.
                self._sync_directory()
                self.not_removed.remove(segment)
            for segment in self._to_create:
                self.error_message = f"cannot allocate {name_of(segment.number)}: %s; {PUTS_WILL_BE_REFUSED}"
                self._create(segment)
            self.error_message = f"cannot sync the directory: %s; {PUTS_WILL_BE_REFUSED}"
            self._sync_directory()
            for segment in self.created:
                segment.is_listed = not self._is_never_synced
            self.free = self._files.free()
        except OSError as error:
            self.error = error

    def _create(self, segment: Segment) -> None:
        """Create the file of *segment*; raise OSError if that fails, or leaves less than the spare bytes free."""
        is_roomy = self._files.free() - segment.capacity >= self._spare
        if is_roomy or not (self._has_ahead or self.created):
            create(self._files, segment)
            self.created.append(segment)
        if not is_roomy:
            raise no_space_error()

    def _sync_directory(self) -> None:
        if not self._is_never_synced:
            self._files.sync_directory()


def _positions(segment: Segment, wanted: Collection[int]) -> dict[int, int]:
    """Return by id the index of the newest JOB record of each job in *wanted*; *segment* must be finished."""
    ids, found = segment.ids, dict[int, int]()
    if not segment.has_repeats:
        for id in wanted:
            at = bisect_left(ids, id)
            if at < len(ids) and ids[at] == id:
                found[id] = at
    if len(found) < len(wanted):  # copies, and puts whose bodies took long to arrive, are out of order
        missing = set(wanted).difference(found)
        found |= {id: at for at, id in enumerate(ids) if id in missing}
    return found


def _group_adjacent(records: list[tuple[int, int, int, int]]) -> Iterator[list[tuple[int, int, int, int]]]:
    """Split *records*, sorted by offset, into groups that one call each reads."""
    group: list[tuple[int, int, int, int]] = []
    for one in records:
        if group and (one[0] - group[-1][0] - group[-1][1] > MAX_GAP or one[0] + one[1] - group[0][0] > MAX_READ):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def no_space_error() -> OSError:
    """Return the error for a segment that would take the space that compaction needs."""
    return OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: the rest is reserved for compaction")


def create(files: Files, segment: Segment) -> None:
    """Create the file of *segment*, with its whole capacity allocated; raise OSError."""
    segment.has_file = True
    segment.handle = files.create(name_of(segment.number), segment.capacity)
    segment.allocated = segment.capacity


def remove(files: Files, segment: Segment) -> None:
    """Remove the file of *segment*, if it exists; raise OSError."""
    handle, segment.handle = segment.handle, None
    if handle is not None:
        files.close(handle)
    with suppress(FileNotFoundError):
        files.remove(name_of(segment.number))


def timed_sync(files: Files, handle: int) -> int:
    """Sync a file; return the nanoseconds that it took. Blocks; raises OSError."""
    began = time.perf_counter_ns()
    files.sync(handle)
    return time.perf_counter_ns() - began
