"""Jobs that operators deleted, kept for a day, so that they can be put back (undo.py).

A removal is one deletion of any number of jobs. Its jobs are saved in parts of about PART_SIZE bytes, each a row in the
format of a journal segment, beside one row that describes the removal. The rows are in a file of their own, in the
database of a shared journal, or in memory. Up to PARTS_TOGETHER parts are written together, and are durable when
`Recording.flush` returns.

The total size and the number of removals are bounded: the oldest are dropped first.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.journal.saved_jobs import EncodedJob, SavedJobs, SavedJobsWriter, read_saved_jobs
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.threads import run_in_thread
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import Principal, principal
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.store.disk_room import no_refusal
from greenstalk_server.web.store.rows import MAX_NUMBER, Change, Row, Rows, decoded

FILE_NAME: Final = "undo.sqlite3"

MAX_SIZE: Final = 256 * 10**6
"""Maximum bytes of all removals."""

MAX_SIZE_IN_MEMORY: Final = 32 * 10**6
"""The same without a directory or a database."""

MAX_REMOVALS: Final = 10_000

LIFETIME: Final = 24 * 3600 * SECOND
"""Time for which a removal can be undone, nanoseconds."""

MAX_SHOWN: Final = 100
"""Removals in a list."""

PART_SIZE: Final = 2**15
"""Bytes of jobs after which a part ends. To read it takes less than a millisecond, unless a job is larger."""

PARTS_TOGETHER: Final = 32
"""Parts that are written and read together: a megabyte, unless a job is larger."""

MAX_WRITE: Final = 2 * PARTS_TOGETHER * PART_SIZE
"""Bytes that must have room before a deletion deletes the jobs of the next parts: other writers may take a half."""

JOB_OVERHEAD: Final = 128
"""Approximate bytes of a saved job without its body."""

ERROR_TIME: Final = 60 * SECOND
"""Nanoseconds after a failed write during which no removal begins."""

RemovalNumber = Annotated[
    int, Meta(ge=0, le=2**53, description="A deletion, for `/removals/{number}/undo`.", examples=[1764000000000])
]

HEAD: Final = "removal"
PART: Final = "removed-jobs"
"""Kinds of rows. Their number is that of the removal. The name of a part is its position, four bytes, big-endian."""

log = logging.getLogger(__name__)


class Removal(msgspec.Struct):
    """One deletion.

    number      milliseconds since 1970, or one more than the last number; 0 until a job has been deleted.
    title       what was deleted, in words.
    by          name of the user; empty without sign-in.
    at          time of the deletion, nanoseconds.
    jobs, size  number of the saved jobs, and bytes of their parts.
    parts       number of the parts.
    lost        jobs that were deleted, and not saved because their bodies could not be read.
    next_part   first part that is not put back yet; jobs of earlier parts are.
    next_job    number of jobs of that part that are put back.
    undone_at   time at which the last job was put back; 0 before.
    is_open     whether the deletion, or its undo, is still running.
    """

    number: int
    title: str
    by: str
    at: int
    jobs: int = 0
    size: int = 0
    parts: int = 0
    lost: int = 0
    next_part: int = 0
    next_job: int = 0
    undone_at: int = 0
    is_open: bool = False

    @property
    def until(self) -> int:
        """The time until which the removal can be undone."""
        return self.at + LIFETIME

    def is_kept(self, now: int) -> bool:
        """Whether its jobs were saved, less than a day before *now*."""
        return self.parts > 0 and now < self.until

    def is_controlled_by(self, who: Principal) -> bool:
        """Return whether *who* may see and undo the removal."""
        return who.is_admin or (who.operates_any and who.name == self.by)


class Removals:
    """The removals of one server. Only methods whose docstrings say so may switch.

    limit       maximum bytes of all removals.
    """

    def __init__(self, rows: Rows, clock: Clock, limit: int, room_refusal: Callable[[int], str] = no_refusal) -> None:
        """*room_refusal* returns why a number of bytes must not be written now, or an empty text."""
        self.limit: int = limit
        self.room_refusal: Callable[[int], str] = room_refusal
        self._rows: Rows = rows
        self._clock: Clock = clock
        self._kept: dict[int, Removal] | None = None  # by number, ascending; None until they are read
        self._last_number: int = 0
        self._failed_at: int = 0
        self._error: str = ""

    def load(self) -> None:
        """Read the removals of the previous run, once this server leads; log a failure. Switches."""
        kept, pace = dict[int, Removal](), Pace()
        rows: Sequence[tuple[int, bytes, bytes]] = ()
        try:
            rows = run_in_thread(self._rows.read, HEAD, 0, MAX_NUMBER, None)
        except OSError as error:
            self._note(error)
        for number, _, removal in decoded(map(Row._make, rows), Removal, "so a deletion cannot be undone"):
            removal.is_open = False
            kept[number] = removal
            pace.yield_if_due()
        self._kept = kept

    def newest(self) -> list[Removal]:
        """Return the newest MAX_SHOWN removals that the current principal may undo, or has undone, newest first."""
        who, now = principal(), self._clock()
        kept = reversed((self._kept or {}).values())
        return list(islice((one for one in kept if one.is_kept(now) and one.is_controlled_by(who)), MAX_SHOWN))

    def find(self, number: int) -> Removal | None:
        """Return the removal *number* if the current principal may undo it and it is kept."""
        found = (self._kept or {}).get(number)
        return found if found and found.is_kept(self._clock()) and found.is_controlled_by(principal()) else None

    def refusal(self, jobs: int, body_bytes: int) -> str:
        """Return why the deletion of *jobs* jobs could not be undone; empty if it could."""
        size = jobs * JOB_OVERHEAD + body_bytes
        if size > self.limit:
            return f"{text.rough_size(size)} are more than {text.rough_size(self.limit)}"
        if self._failed_at and self._clock() < self._failed_at + ERROR_TIME:
            return f"the deleted jobs cannot be stored: {self._error}"
        return self.room_refusal(size)

    def promise(self, jobs: int, body_bytes: int) -> str:
        """Return the sentence that says whether the deletion of *jobs* jobs could be undone."""
        why = self.refusal(jobs, body_bytes)
        return f"This cannot be undone: {why}." if why else "This can be undone for a day."

    def record(self, title: str, jobs: int, body_bytes: int) -> Recording | None:
        """Begin a removal of about *jobs* jobs; return None if it could not be undone."""
        if self._kept is None or self.refusal(jobs, body_bytes):
            return None
        return Recording(self, Removal(0, title, principal().name, self._clock(), is_open=True))

    def begin(self, removal: Removal) -> None:
        """Give *removal* its number, above all others, and keep it. Call it when its first job has been deleted."""
        assert self._kept is not None
        removal.number = max(next(reversed(self._kept), 0), self._last_number, self._clock() // (SECOND // 1000)) + 1
        self._last_number = removal.number
        self._kept[removal.number] = removal

    def end(self, removal: Removal) -> bool:
        """Note that the deletion is complete; return whether it can be undone. Forget *removal* if not."""
        assert self._kept is not None
        removal.is_open = False
        if not removal.parts:
            self._kept.pop(removal.number, None)
        return removal.parts > 0

    def read(self, removal: Removal, first: int) -> Iterator[SavedJobs]:
        """Yield the jobs of up to PARTS_TOGETHER parts from *first* on; raise OSError. Switches."""
        names = [_name(part) for part in range(first, min(first + PARTS_TOGETHER, removal.parts))]
        rows = run_in_thread(self._rows.read, PART, removal.number, removal.number, names)
        found = {name: data for _, name, data in rows}
        for at, name in enumerate(names):
            data = found.pop(name, b"")
            if not data:
                yield SavedJobs([], f"part {first + at + 1} is missing")
            elif len(data) > 2 * PART_SIZE:
                yield run_in_thread(read_saved_jobs, data)
            else:
                yield read_saved_jobs(data)

    def add_parts(self, removal: Removal, parts: list[bytes]) -> None:
        """Write *parts*, the next ones of *removal*, durably; raise OSError, or TooLarge. Switches."""
        assert self._kept is not None
        size, first = sum(map(len, parts)), removal.parts
        dropped = self._make_room(removal, size)
        removal.size += size
        removal.parts += len(parts)
        changes: list[Change] = [(PART, removal.number, _name(first + at), data) for at, data in enumerate(parts)]
        changes.append(_head(removal))
        for one in dropped:
            changes += _without(one)
        try:
            self._write(changes, sum([one.size for one in dropped]))
        except OSError:
            removal.parts, removal.size = first, removal.size - size
            self._kept = dict(sorted([*self._kept.items(), *((one.number, one) for one in dropped)]))
            raise

    def save(self, removal: Removal) -> None:
        """Write the state of *removal* durably; raise OSError. Switches."""
        self._write([_head(removal)], 0)

    def finish(self, removal: Removal) -> None:
        """Note that *removal* is undone, and remove its jobs; raise OSError. Switches."""
        size = removal.size
        removal.undone_at, removal.size = self._clock(), 0
        changes = [_head(removal)] + [change for change in _without(removal) if change[0] == PART]
        try:
            self._write(changes, size)
        except OSError:
            removal.undone_at, removal.size = 0, size
            raise

    def _make_room(self, removal: Removal, size: int) -> list[Removal]:
        """Drop expired removals, and the oldest ones, until *size* more bytes fit; return them. Raise TooLarge."""
        assert self._kept is not None
        if removal.size + size > self.limit:
            raise TooLarge
        total, dropped, now = size + sum([one.size for one in self._kept.values()]), list[Removal](), self._clock()
        for one in list(self._kept.values()):
            if not (one.until <= now or total > self.limit or len(self._kept) > MAX_REMOVALS):
                break
            if one is not removal and not one.is_open:
                total -= one.size
                dropped.append(self._kept.pop(one.number))
        if total > self.limit:
            raise TooLarge
        return dropped

    def _write(self, changes: list[Change], removed: int) -> None:
        """Write *changes*, and remove the rows of removals that are not kept; raise OSError. Switches.

        *removed*: bytes of the rows that *changes* remove. SQLite writes other rows again where these were.
        """
        rewritten = min(removed, sum([one.size for one in (self._kept or {}).values()]))
        if refusal := self.room_refusal(rewritten + sum([len(data or b"") for _, _, _, data in changes])):
            raise OSError(refusal)
        before = next(iter(self._kept or ()), 1) - 1  # a database may have parts of a write that has failed
        try:
            run_in_thread(self._rows.write, changes, {HEAD: before, PART: before})
        except OSError as error:
            self._note(error)
            raise
        self._failed_at, self._error = 0, ""

    def _note(self, error: OSError) -> None:
        self._failed_at, self._error = self._clock(), str(error)
        log.error("dashboard: deleted jobs cannot be stored for an undo: %s", error)


class TooLarge(Exception):
    """The jobs of a removal exceed the limit."""


class Recording:
    """The jobs of one removal, while they are deleted.

    stopped     why no more jobs may be deleted; empty if they may.

    Invariant: the jobs that `encode` and `add` name are deleted in between, without a switch.
    """

    def __init__(self, removals: Removals, removal: Removal) -> None:
        self.removal: Removal = removal
        self.stopped: str = ""
        self._removals: Removals = removals
        self._writer: SavedJobsWriter = SavedJobsWriter(secrets.token_bytes(4))
        self._finished: list[SavedJobsWriter] = []
        self._size: int = 0

    def encode(self, job: Job, body: bytes | None) -> EncodedJob | None:
        """Return *job*, which is about to be deleted, for `add`; None if *body* is None: it could not be read."""
        return None if body is None else self._writer.encode(job, body)

    def add(self, job: EncodedJob | None) -> None:
        """Add a job that was deleted."""
        if job is None:
            self.removal.lost += 1
            return
        if not self.removal.number:
            self._removals.begin(self.removal)
        self._writer.add(job)
        if self._writer.size >= PART_SIZE:
            self._finish_part()

    def _finish_part(self) -> None:
        self._finished.append(self._writer)
        self._size += self._writer.size
        self._writer = SavedJobsWriter(secrets.token_bytes(4))

    @property
    def is_full(self) -> bool:
        """Whether the parts should be written."""
        return self._size >= PART_SIZE * PARTS_TOGETHER

    def flush(self) -> str:
        """Write the jobs added since the last flush, durably; return `stopped`. Switches.

        The deletion may continue only if the disk has room for the next parts.
        """
        self._write()
        if not self.stopped and (why := self._removals.room_refusal(MAX_WRITE)):
            self.stopped = f"No more deleted jobs can be stored: {why}."
        return self.stopped

    def _write(self) -> None:
        """Write the jobs added since the last write, durably; set `stopped` if that fails. Switches."""
        if self._writer.jobs:
            self._finish_part()
        if self._finished:
            finished, self._finished, self._size = self._finished, [], 0
            jobs = sum([writer.jobs for writer in finished])
            self.removal.jobs += jobs
            try:
                self._removals.add_parts(self.removal, run_in_thread(lambda: [one.data() for one in finished]))
            except (OSError, TooLarge) as error:
                self.removal.jobs -= jobs
                size = text.rough_size(self._removals.limit)
                why = f"the jobs have more than {size}" if isinstance(error, TooLarge) else str(error)
                self.stopped = f"The last {text.counted(jobs, 'deleted job')} cannot be put back: {why}."

    @property
    def outcome(self) -> str:
        """Why the deletion stopped, and which deleted jobs cannot be put back; empty if all were saved."""
        lost = self.removal.lost
        unread = f"{text.counted(lost, 'deleted job')} cannot be put back: the body could not be read." if lost else ""
        return f"{self.stopped} {unread}".strip()

    def close(self) -> Removal | None:
        """Write the rest; return the removal if it can be undone, or None. Switches."""
        self._write()
        return self.removal if self._removals.end(self.removal) else None


def _head(removal: Removal) -> Change:
    return (HEAD, removal.number, b"", msgspec.json.encode(removal))


def _without(removal: Removal) -> list[Change]:
    """Return the changes that remove the rows of *removal*."""
    parts: list[Change] = [(PART, removal.number, _name(part), None) for part in range(removal.parts)]
    return [*parts, (HEAD, removal.number, b"", None)]


def _name(part: int) -> bytes:
    return part.to_bytes(4, "big")
