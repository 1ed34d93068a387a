"""Room on the disk: segments are allocated before they are used, and files that nothing refers to are removed.

Enough segments are allocated ahead for a DELETE record of every live job, as long as SPARE_SEGMENTS segments of disk
space stay free as well. So a full disk stops puts, and every other command continues.
"""

from __future__ import annotations

import errno
import logging
import time
from itertools import takewhile
from typing import Final

from greenstalk_server.core.journal import DEFAULT_BINLOG_SIZE
from greenstalk_server.journal import record
from greenstalk_server.journal.batch import Maintenance, create, no_space_error, remove
from greenstalk_server.journal.files import Files
from greenstalk_server.journal.segment import BLOCK, name_of, on_disk
from greenstalk_server.journal.segment_log import MIN_SEGMENT, SEGMENT_OVERHEAD, SegmentLog

log = logging.getLogger(__name__)

MIN_FILE_SIZE: Final = 16384
"""Minimum bytes of a segment unless the disk is small; a smaller -s counts as this.

With smaller segments a full disk is slow: the records of a few commands fill a segment, and to free it, the server has
to copy all older segments.
"""

MIN_FIRST_SEGMENT: Final = 16384
"""Minimum bytes of the first segment when the server starts on a full disk."""

SPARE_SEGMENTS: Final = 1.5
SPARE_BLOCKS: Final = 8
"""SPARE_SEGMENTS, SPARE_BLOCKS: puts leave this number of segments, plus this number of blocks, free on the disk.

The space is for the copies of the jobs of one segment, and for the records of `release` commands that arrive during the
copying. Each file takes whole blocks and a rewrite needs a few files, so small segments need more.
"""

SEGMENTS_PER_DISK: Final = 8
"""Minimum number of segments that a disk holds; on a small disk segments are smaller than -s."""

FILES_PER_SEGMENT: Final = 2
"""Minimum inodes for each segment that a disk holds: compaction and rewrites leave segments that are not full.

On a disk with few inodes segments are larger than -s, at most DEFAULT_BINLOG_SIZE.
"""

FULL_LOG_INTERVAL: Final = 10.0
"""Seconds without a refused allocation after which the log says that space is available."""

MARGIN: Final = 4 * BLOCK
"""Bytes that a rewrite counts as used, added after each allocation that failed though the disk reported room."""

NO_SPACE_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)

PUTS_ARE_REFUSED: Final = "puts return OUT_OF_MEMORY until an allocation succeeds"


class Space:
    """Allocates segments ahead, and decides whether a put has room.

    refusal     why the last segment could not be allocated.
    known_free  bytes of the disk that were free when last measured.
    margin      bytes that `measure_free` counts as used, until a rewrite is complete or no step of it fits.
    """

    def __init__(self, files: Files, segment_log: SegmentLog, shown_max_size: int, *, is_never_synced: bool) -> None:
        """*shown_max_size*: bytes of a segment as set by -s."""
        self.refusal: str = ""
        self.known_free: int = 0
        self.margin: int = 0
        self._files: Files = files
        self._log: SegmentLog = segment_log
        self._shown_max_size: int = shown_max_size
        self._is_never_synced: bool = is_never_synced
        self._maintenance_error: str = ""
        self._full_at: float | None = None

    def fitting_size(self) -> int:
        """Return the size of a segment: -s, or less if the disk lacks room for SEGMENTS_PER_DISK; raise OSError.

        The size is more than -s if the disk lacks FILES_PER_SEGMENT inodes for each segment.
        """
        self.known_free = self._files.free()
        room = self.known_free + self._log.finished_bytes
        files = max(1, self._files.free_files() + len(self._log.segments))
        most = max(MIN_SEGMENT, room // SEGMENTS_PER_DISK // BLOCK * BLOCK)
        least = min(on_disk(FILES_PER_SEGMENT * room // files), DEFAULT_BINLOG_SIZE)
        return min(max(self._log.max_size, least), most)

    def create_first(self, *, may_remove: bool) -> None:
        """Create the first segment, a smaller one if the disk is nearly full; raise OSError if none fits.

        If *may_remove* and no segment fits, first remove the oldest segments that have no live record.
        """
        segment = self._log.new_segment()
        free = self._files.free() - self.compaction_room()
        smallest = min(max(self._shown_max_size, MIN_SEGMENT), MIN_FIRST_SEGMENT)
        segment.capacity = max(smallest, min(self._log.max_size, free // BLOCK * BLOCK))
        while segment.handle is None:
            try:
                create(self._files, segment)
            except OSError as error:
                if segment.capacity > smallest:
                    segment.capacity = max(segment.capacity // 2, smallest)
                elif error.errno not in NO_SPACE_ERRNOS or not (may_remove and self._remove_dead()):
                    raise
        self._log.ahead.append(segment)

    def _remove_dead(self) -> bool:
        """Remove the oldest segments that have no live record; return False if there is none. Blocks; raises OSError.

        A server that was killed on a full disk may have copied a segment, and not removed it yet.
        Invariant: the newer segments, which have the copies and the next id, are on disk before a segment is removed.
        """
        segments = list(self._log.segments.values())
        dead = list(takewhile(lambda segment: not segment.live_bytes, segments[:-1]))
        if not dead:
            return False
        for segment in segments[len(dead) :]:
            handle = self._files.open(name_of(segment.number))
            try:
                self._files.sync(handle)
            finally:
                self._files.close(handle)
        self._files.sync_directory()
        for segment in dead:
            remove(self._files, segment)
            self._files.sync_directory()
            self._log.forget_segment(segment)
        return True

    def has_room(self, size: int) -> bool:
        """Return whether a record of *size* bytes and a DELETE of every job fit; allocate a segment if needed."""
        log = self._log
        if log.wants_rewrite:
            return False
        left, usable = log.current.capacity - log.current.used, log.max_size - SEGMENT_OVERHEAD
        is_large = size > left and size > usable
        needed = (len(log.jobs) + 1) * record.DELETE_SIZE + (0 if is_large else 2 * size)
        if log.is_full:
            needed += max(log.max_size, log.largest) + log.growth
        room = left + (len(log.ahead) - is_large) * usable
        while room < needed or (is_large and not log.ahead):
            if not self._allocate_ahead():
                return False
            room += usable
        begins_next = size > left
        is_unallocated = log.current.allocated < log.current.capacity
        if (begins_next or is_unallocated) and not self._may_begin(int(begins_next)):
            return False
        return not is_large or self._grow_ahead(size)

    def _may_begin(self, count: int) -> bool:
        """Return whether a batch may begin the first *count* segments ahead, and the unsafe ones that it has not begun.

        It may do so if room for compaction remains.
        """
        others = sum([segment.capacity for segment in list(self._log.ahead)[count:]])
        try:
            return self._free() + others >= self.compaction_room()
        except OSError:
            return False

    def _free(self) -> int:
        """Return the free bytes of the disk, less those that the next batch allocates; raise OSError."""
        return self._files.free() - self._log.unallocated()

    def _allocate_ahead(self) -> bool:
        """Create a segment ahead, in this thread; needed only if a burst of puts has overtaken maintenance."""
        segment = self._log.new_segment()
        try:
            if self._free() - segment.capacity < self.spare():
                raise no_space_error()
            create(self._files, segment)
        except OSError as error:
            if segment.has_file:
                self._log.orphaned.append(segment)
            self._note_maintenance_error(error, f"cannot allocate {name_of(segment.number)}: %s; {PUTS_ARE_REFUSED}")
            return False
        self._note_space()
        self._log.ahead.append(segment)
        return True

    def _grow_ahead(self, size: int) -> bool:
        """Give the next segment room for a record of *size* bytes that exceeds a normal segment."""
        segment = self._log.ahead[0]
        assert segment.handle is not None
        size += SEGMENT_OVERHEAD
        if segment.capacity < size:
            try:
                if self._free() - (size - segment.capacity) < self.spare(size):
                    raise no_space_error()
                self._files.grow(segment.handle, size)
            except OSError as error:
                self._note_maintenance_error(error, f"cannot extend {name_of(segment.number)}: %s; the put is refused")
                return False
            segment.capacity = segment.allocated = size
        return True

    @property
    def wants_maintenance(self) -> bool:
        """Whether `take_maintenance` has something to do now. False after an error: a retry follows."""
        wants_more = len(self._log.ahead) < self._wanted_ahead() and not self._log.is_full
        return not self._maintenance_error and (wants_more or bool(self._log.orphaned) or self.can_remove())

    def take_maintenance(self, is_retry: bool = True) -> Maintenance | None:
        """Return the next files to create and remove, or None. At most one maintenance may be outstanding.

        After an error, return None unless *is_retry*. On a full disk, create files only on a retry or after a removal.
        """
        self._report_space()
        if self._maintenance_error and not is_retry:
            return None
        to_remove, self._log.orphaned = self._log.orphaned, []
        while self.can_remove():
            segment = self._log.pending_removal.popleft()[1]
            self._log.outstanding -= segment.copied
            to_remove.append(segment)
        may_create = not self._log.wants_rewrite and (is_retry or not self._log.is_full or to_remove)
        lacking = range(len(self._log.ahead), self._wanted_ahead() if may_create else 0)
        to_create = [self._log.new_segment() for _ in lacking]
        if not to_create and not to_remove:
            return None
        return Maintenance(
            self._files, to_create, to_remove, self._is_never_synced, self.spare(), has_ahead=bool(self._log.ahead)
        )

    def complete_maintenance(self, maintenance: Maintenance) -> None:
        """Note what *maintenance* has done."""
        self._log.add_ahead(maintenance.created)
        self._log.orphaned += maintenance.not_removed
        self.known_free = maintenance.free
        if maintenance.error is not None:
            self._note_maintenance_error(maintenance.error, maintenance.error_message)
            return
        if self._maintenance_error:
            log.warning("journal: files can be created and removed again")
            self._maintenance_error = ""
        if maintenance.created:
            self._note_space()

    def can_remove(self) -> bool:
        """Return whether the first segment pending removal may be removed.

        Two things must be on disk before: the copies of its jobs, and the header of a later segment, which has the next
        id.
        """
        if not self._log.pending_removal:
            return False
        sequence, segment = self._log.pending_removal[0]
        return sequence <= self._log.on_disk and segment.number < self._log.newest_on_disk

    def _wanted_ahead(self) -> int:
        """Return the number of segments ahead: enough for all DELETEs; one more on a full disk, to detect new space."""
        return 1 + len(self._log.jobs) * record.DELETE_SIZE // self._log.max_size + self._log.is_full

    def spare(self, size: int = 0) -> int:
        """Return how many bytes of the disk must stay free besides segments ahead, if one of these has *size* bytes."""
        largest = max(size, self._log.max_size, self._log.largest)
        return int(SPARE_SEGMENTS * largest) + SPARE_BLOCKS * BLOCK + self._log.growth

    def compaction_room(self, pending: int = 0) -> int:
        """Return the bytes that must remain for the copy of one segment, less those that copies have taken already.

        *pending* bytes of copies are not written yet, and do not count.
        Invariant: a batch begins a segment only if this number of bytes remains.
        """
        copied = self._log.outstanding - pending
        largest = max(self._log.max_size, self._log.largest) + self._log.growth
        return max(0, on_disk(largest + record.SEGMENT_HEADER_SIZE) + BLOCK - copied)

    def measure_free(self) -> int:
        """Return the free bytes of the disk that a rewrite may use."""
        try:
            return max(0, self._files.free() - self.margin)
        except OSError:
            return 0

    def widen_margin(self) -> None:
        """Count more bytes as used: an allocation has failed though the disk reported room for it."""
        self.margin += MARGIN

    def note_full(self, error: OSError) -> None:
        """Handle *error*, which says that the disk is full."""
        self.refusal = str(error)
        if self._full_at is None:
            log.error("journal: disk full: %s; puts return OUT_OF_MEMORY until space is available", error)
        self._full_at = time.monotonic()
        self._log.is_full = True

    def _note_space(self) -> None:
        self._log.is_full = False

    def _report_space(self) -> None:
        """Log that space is available, after FULL_LOG_INTERVAL.

        Under load, the disk can become full and free again many times a second.
        """
        if self._full_at is not None and not self._log.is_full and time.monotonic() - self._full_at > FULL_LOG_INTERVAL:
            log.warning("journal: space is available again; puts are accepted")
            self._full_at = None

    def _note_maintenance_error(self, error: OSError, message: str) -> None:
        """Log *message*, in which %s is replaced by *error*, unless the last maintenance failed too."""
        if error.errno in NO_SPACE_ERRNOS:
            self.note_full(error)
            return
        self.refusal = message % error
        if not self._maintenance_error:
            log.error("journal: %s; retried every second", self.refusal)
        self._maintenance_error = self.refusal
