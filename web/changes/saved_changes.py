"""Changes of jobs that operators made, kept for a day, so that they can be undone (undo.py).

A saved change is one deletion, or one change, of any number of jobs. It contains the jobs as they were before the
change and, unless they were deleted, as they were after the change. An undo compares the jobs after the change with the
present jobs. The jobs are saved in parts of about PART_SIZE bytes, each one or two rows in the format of a journal
segment, beside one row that describes the change. The rows are in a file of their own, in the database of a shared
journal, or in memory. Up to PARTS_TOGETHER parts are written together, and are durable when `Recording.flush` returns.

The total size and the number of saved changes are bounded. When a bound is reached, the oldest change of the user whose
changes take most space is dropped, so that a program with an API token does not push out the changes of operators.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.journal.saved_jobs import (
    AFTER,
    BEFORE,
    HEAD,
    EncodedJob,
    SavedJobs,
    SavedJobsWriter,
    read_saved_jobs,
)
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.threads import run_in_thread
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import Principal, principal
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.shards import ALONE, Shards
from greenstalk_server.web.store.disk_room import no_refusal
from greenstalk_server.web.store.rows import MAX_NUMBER, Change, Row, Rows, decoded

FILE_NAME: Final = "undo.sqlite3"

MAX_SIZE: Final = 256 * 10**6
"""Maximum bytes of all saved changes."""

MAX_SIZE_IN_MEMORY: Final = 32 * 10**6
"""Maximum bytes of all saved changes without a directory or a database."""

MAX_CHANGES: Final = 10_000

SPARE: Final = 100
"""When a limit on the size or the number of changes is reached, 1/SPARE of it is freed at once, since choosing the
changes to drop takes three milliseconds."""

LIFETIME: Final = 24 * 3600 * SECOND
"""Time for which a change can be undone, nanoseconds."""

MAX_SHOWN: Final = 100
"""Changes in a list."""

PART_SIZE: Final = 2**15
"""Bytes of jobs after which a part ends. Reading a part takes less than two milliseconds, unless a job is larger."""

PARTS_TOGETHER: Final = 32
"""Parts that are written and read together: a megabyte, unless a job is larger."""

MAX_WRITE: Final = 2 * PARTS_TOGETHER * PART_SIZE
"""Bytes that must be free on the disk before a change continues with the next parts; other writers may take half of
them."""

DELETED_JOB_SIZE: Final = 128
"""Approximate bytes of a saved deleted job without its body."""

CHANGED_JOB_SIZE: Final = 300
"""Approximate bytes of a saved changed job, before and after the change, without its body."""

ERROR_TIME: Final = 60 * SECOND
"""Nanoseconds after a failed write during which no change is saved."""

ChangeNumber = Annotated[
    int, Meta(ge=0, le=2**53, description="A change, for `/changes/{number}/undo`.", examples=[1764000000000])
]

log = logging.getLogger(__name__)


class SavedChange(msgspec.Struct):
    """One deletion or change of jobs.

    number      milliseconds since 1970, or the next number above the last one that names this shard; 0 until a job has
                been changed.
    title       the change, in words.
    by          name of the user; empty without sign-in.
    at          time of the change, nanoseconds.
    is_deletion whether the jobs were deleted.
    has_bodies  whether bodies are saved: those of deleted jobs, or a body that an edit replaced.
    jobs, size  number of the saved jobs, and bytes of their parts.
    parts       number of the parts.
    lost        number of changed jobs that were not saved because their bodies could not be read.
    next_part   first part whose jobs are not all put back yet; the jobs of earlier parts are put back.
    next_job    number of jobs of that part that are put back.
    undone_at   time at which the last job was put back; 0 until then.
    is_open     whether the change, or its undo, is still running.
    whole       name of the change of several shards of which this is the part of one; empty if it is not a part.
    """

    number: int
    title: str
    by: str
    at: int
    is_deletion: bool
    has_bodies: bool
    jobs: int = 0
    size: int = 0
    parts: int = 0
    lost: int = 0
    next_part: int = 0
    next_job: int = 0
    undone_at: int = 0
    is_open: bool = False
    whole: str = ""

    @property
    def until(self) -> int:
        """The time until which the change can be undone."""
        return self.at + LIFETIME

    def is_kept(self, now: int) -> bool:
        """Whether the jobs of the change were saved less than a day before *now*."""
        return self.parts > 0 and now < self.until

    def is_controlled_by(self, who: Principal) -> bool:
        """Return whether *who* may see and undo the change."""
        return who.is_admin or (who.operates_any and who.name == self.by)


class SavedPart(NamedTuple):
    """The jobs of one part. The tube of each job is an object that only has the tube's name.

    before      the jobs before the change.
    after       the jobs after the change, by id; empty if they were deleted.
    damage      what was lost, in words; empty if nothing was.
    """

    before: list[Job]
    after: dict[int, Job]
    damage: str


NEWEST: Final = "changes.newest"
"""Question to the other shards."""


class SavedChanges:
    """The saved changes of one server. Only methods whose docstrings say so may switch.

    limit       maximum bytes of all changes.
    """

    def __init__(
        self,
        rows: Rows,
        clock: Clock,
        limit: int,
        room_refusal: Callable[[int], str] = no_refusal,
        shards: Shards = ALONE,
    ) -> None:
        """*room_refusal* returns why a number of bytes must not be written now, or an empty text."""
        self.limit: int = limit
        self.room_refusal: Callable[[int], str] = room_refusal
        self._rows: Rows = rows
        self._clock: Clock = clock
        self._kept: dict[int, SavedChange] | None = None  # by number, ascending; None until the changes are read
        self._dropping: set[int] = set()  # dropped changes whose rows a failed write may have left
        self._shards: Shards = shards
        self._last_number: int = 0
        shards.answer(NEWEST, self._newest_here)
        self._failed_at: int = 0
        self._error: str = ""

    def load(self) -> None:
        """Read the changes of the previous run, once this server leads; log a failure. Switches."""
        kept, pace = dict[int, SavedChange](), Pace()
        rows: Sequence[tuple[int, bytes, bytes]] = ()
        try:
            rows = run_in_thread(self._rows.read, HEAD, 0, MAX_NUMBER, None)
        except OSError as error:
            self._note(error)
        for number, _, change in decoded(map(Row._make, rows), SavedChange, "so a change cannot be undone"):
            change.is_open = False
            kept[number] = change
            pace.yield_if_due()
        self._kept = kept

    def newest(self) -> list[SavedChange]:
        """Return the newest MAX_SHOWN changes that the current principal may undo, or has undone, newest first.

        Switches if there are several shards.
        """
        found = self._newest_here()
        for answer in self._shards.ask_others(NEWEST).values() if self._shards.others else ():
            found += msgspec.convert(answer, list[SavedChange])
        wholes: dict[str, list[SavedChange]] = {}
        for one in found:
            wholes.setdefault(one.whole or str(one.number), []).append(one)
        return sorted(map(merged, wholes.values()), key=lambda one: one.number, reverse=True)[:MAX_SHOWN]

    def _newest_here(self) -> list[SavedChange]:
        who, now = principal(), self._clock()
        kept = reversed((self._kept or {}).values())
        return list(islice((one for one in kept if one.is_kept(now) and one.is_controlled_by(who)), MAX_SHOWN))

    def find(self, number: int) -> SavedChange | None:
        """Return the change *number* if the current principal may undo it and it is kept."""
        found = (self._kept or {}).get(number)
        return found if found and found.is_kept(self._clock()) and found.is_controlled_by(principal()) else None

    def part(self, whole: str) -> SavedChange | None:
        """Return the part of the change *whole* on this shard if the current principal may undo it and it is kept."""
        numbers = [one.number for one in (self._kept or {}).values() if one.whole == whole]
        return self.find(numbers[0]) if numbers else None

    def deletion_refusal(self, jobs: int, body_bytes: int) -> str:
        """Return why the deletion of *jobs* jobs could not be undone; empty if it could."""
        return self._refusal(jobs * DELETED_JOB_SIZE + body_bytes)

    def change_refusal(self, jobs: int) -> str:
        """Return why a change of *jobs* jobs could not be undone; empty if it could."""
        return self._refusal(jobs * CHANGED_JOB_SIZE)

    @staticmethod
    def promise(refusal: str, *, is_deletion: bool) -> str:
        """Return the sentence that says whether jobs could be put back, unless *refusal* says why not."""
        if refusal:
            return _no(refusal)
        except_for = "" if is_deletion else ", except for jobs that are reserved or changed by then"
        return f"This can be undone for a day{except_for}."

    def deletion_promise(self, jobs: int, body_bytes: int) -> str:
        """Return the sentence that says whether the deletion of *jobs* jobs could be undone."""
        return self.promise(self.deletion_refusal(jobs, body_bytes), is_deletion=True)

    def change_promise(self, jobs: int) -> str:
        """Return the sentence that says whether a change of *jobs* jobs could be undone."""
        return self.promise(self.change_refusal(jobs), is_deletion=False)

    def record_deletion(self, title: str, jobs: int, body_bytes: int, whole: str = "") -> Recording:
        """Begin to save a deletion of about *jobs* jobs, 0 if unknown, unless it is too large to be undone.

        *whole* names the deletion of which this is the part of one shard.
        """
        size = jobs * DELETED_JOB_SIZE + body_bytes
        return self._record(title, size, whole, is_deletion=True, has_bodies=True)

    def record_change(self, title: str, jobs: int, body_bytes: int = -1, whole: str = "") -> Recording:
        """Begin to save a change of about *jobs* jobs, 0 if unknown, unless it is too large to be undone.

        *body_bytes* is the size of the bodies, which are saved because the change replaces them; negative if it does
        not. *whole* names the change of which this is the part of one shard.
        """
        size = jobs * CHANGED_JOB_SIZE + max(0, body_bytes)
        return self._record(title, size, whole, is_deletion=False, has_bodies=body_bytes >= 0)

    def _record(self, title: str, size: int, whole: str, *, is_deletion: bool, has_bodies: bool) -> Recording:
        refusal = self._refusal(size) if self._kept is not None else "the changes of the previous run are not read yet"
        change = SavedChange(0, title, principal().name, self._clock(), is_deletion, has_bodies, is_open=True)
        change.whole = whole
        return Recording(self, change, refusal, is_promised=size > 0)

    def _refusal(self, size: int) -> str:
        """Return why a change of *size* bytes could not be undone; empty if it could."""
        if size > self.limit:
            return f"{text.rough_size(size)} are more than {text.rough_size(self.limit)}"
        if self._failed_at and self._clock() < self._failed_at + ERROR_TIME:
            return f"the jobs cannot be stored: {self._error}"
        return self.room_refusal((size + min(size, MAX_WRITE)) // 2)  # the log holds only some parts at a time

    def begin(self, change: SavedChange) -> None:
        """Give *change* its number, above all others, and keep it. Call it when its first job has been changed."""
        assert self._kept is not None
        last = max(next(reversed(self._kept), 0), self._last_number, self._clock() // (SECOND // 1000))
        change.number = self._shards.next_number(last + 1)
        self._last_number = change.number
        self._kept[change.number] = change

    def end(self, change: SavedChange) -> bool:
        """Mark *change* as complete; return whether it can be undone. Drop it if not."""
        assert self._kept is not None
        change.is_open = False
        if not change.parts:
            self._kept.pop(change.number, None)
        return change.parts > 0

    def drop(self, change: SavedChange) -> None:
        """Forget *change*, and remove its rows; log a failure. Switches."""
        assert self._kept is not None
        self._kept.pop(change.number, None)
        with suppress(OSError):
            self._write(_without(change), change.size)

    def read(self, change: SavedChange, first: int) -> Iterator[SavedPart]:
        """Yield up to PARTS_TOGETHER parts from *first* on; raise OSError. Switches."""
        names = [_name(part) for part in range(first, min(first + PARTS_TOGETHER, change.parts))]
        rows = {kind: self._read_rows(kind, change, names) for kind in _kinds(change)}
        for at, name in enumerate(names):
            before, after = _read(rows[BEFORE].pop(name, b""), first + at), SavedJobs([], "")
            if not change.is_deletion:
                after = _read(rows[AFTER].pop(name, b""), first + at)
            yield SavedPart(before.jobs, {job.id: job for job in after.jobs}, before.damage or after.damage)

    def _read_rows(self, kind: str, change: SavedChange, names: list[bytes]) -> dict[bytes, bytes]:
        rows = run_in_thread(self._rows.read, kind, change.number, change.number, names)
        return {name: data for _, name, data in rows}

    def add_parts(self, change: SavedChange, parts: Sequence[tuple[bytes, bytes]]) -> None:
        """Write *parts*, the next ones of *change*, durably; raise OSError, or TooLarge. Switches.

        A part has the jobs before, and, unless they were deleted, after the change.
        """
        assert self._kept is not None
        size, first = sum([len(before) + len(after) for before, after in parts]), change.parts
        dropped = self._make_room(change, size)
        change.size += size
        change.parts += len(parts)
        changes = [_head(change)]
        for at, part in enumerate(parts, first):
            changes += [(kind, change.number, _name(at), data) for kind, data in zip(_KINDS, part, strict=True) if data]
        for one in dropped:
            changes += _without(one)
        self._dropping.update(numbers := {one.number for one in dropped})
        try:
            self._write(changes, sum([one.size for one in dropped]))
        except OSError:
            change.parts, change.size = first, change.size - size
            self._kept = dict(sorted([*self._kept.items(), *((one.number, one) for one in dropped)]))
            raise
        finally:
            self._dropping -= numbers

    def save(self, change: SavedChange) -> None:
        """Write the state of *change* durably; raise OSError. Switches."""
        self._write([_head(change)], 0)

    def finish(self, change: SavedChange) -> None:
        """Mark *change* as undone, and remove its jobs; raise OSError. Switches."""
        size = change.size
        change.undone_at, change.size = self._clock(), 0
        changes = [_head(change)] + [row for row in _without(change) if row[0] != HEAD]
        try:
            self._write(changes, size)
        except OSError:
            change.undone_at, change.size = 0, size
            raise

    def _make_room(self, change: SavedChange, size: int) -> list[SavedChange]:
        """Drop expired changes, and the oldest of the users whose changes take most space, until *size* more bytes fit.

        Return the dropped changes. Raise TooLarge, and drop none, if *size* bytes would not fit even after that.
        """
        assert self._kept is not None
        if change.size + size > self.limit:
            raise TooLarge
        now, kept, dropped = self._clock(), self._kept.values(), dict[int, SavedChange]()
        for one in kept:
            if one.until > now:
                break
            if one is not change and not one.is_open:
                dropped[one.number] = one
        total = size + sum([one.size for one in kept])
        for weight, taken, most in ((_bytes_of, total, self.limit), (_place_of, len(kept), MAX_CHANGES)):
            excess = taken - sum(map(weight, dropped.values())) - most
            if excess <= 0:
                continue
            by_user = Counter({change.by: size if weight is _bytes_of else 0})
            for one in kept:
                by_user[one.by] += weight(one)
            droppable = [one for one in kept if one is not change and not one.is_open and one.number not in dropped]
            for one in _oldest_of_largest(droppable, by_user, weight):
                dropped[one.number] = one
                excess -= weight(one)
                if excess <= -(most // SPARE):
                    break
            if excess > 0 and weight is _bytes_of:
                raise TooLarge
        for number in dropped:
            del self._kept[number]
        return list(dropped.values())

    def _write(self, changes: list[Change], removed: int) -> None:
        """Write *changes*, and remove the rows of saved changes that are not kept; raise OSError. Switches.

        *removed*: bytes of the rows that *changes* remove, whose space SQLite uses for other rows.
        """
        rewritten = min(removed, sum([one.size for one in (self._kept or {}).values()]))
        if refusal := self.room_refusal(rewritten + sum([len(data or b"") for _, _, _, data in changes])):
            raise OSError(refusal)
        before = min([next(iter(self._kept or ()), 1), *self._dropping]) - 1
        try:
            # a database may contain parts of a failed write
            run_in_thread(self._rows.write, changes, dict.fromkeys((HEAD, *_KINDS), before))
        except OSError as error:
            self._note(error)
            raise
        self._failed_at, self._error = 0, ""

    def _note(self, error: OSError) -> None:
        self._failed_at, self._error = self._clock(), str(error)
        log.error("dashboard: jobs cannot be stored for an undo: %s", error)


class TooLarge(Exception):
    """The jobs of a change exceed the limit."""


class Recording:
    """The jobs of one saved change, while they are changed.

    Invariant: the jobs that `encode` and `add` name are changed in between, without a switch.

    refusal         why the change is not saved, in which case the methods do nothing; empty if it is saved.
    stopped         why no more jobs may be changed; empty if they may.
    """

    def __init__(self, changes: SavedChanges, change: SavedChange, refusal: str, *, is_promised: bool) -> None:
        """*is_promised*: the user was told that the change can be undone, since its size was known."""
        self.refusal: str = refusal
        self.stopped: str = ""
        self._is_promised: bool = is_promised
        self._change: SavedChange = change
        self._changes: SavedChanges = changes
        self._before: SavedJobsWriter = _new_writer()
        self._after: SavedJobsWriter = _new_writer()
        self._finished: list[tuple[SavedJobsWriter, SavedJobsWriter]] = []
        self._size: int = 0

    @property
    def is_active(self) -> bool:
        """Whether the change is saved."""
        return not self.refusal

    @property
    def wants_bodies(self) -> bool:
        """Whether `encode` needs the bodies of the jobs."""
        return self.is_active and self._change.has_bodies

    def encode(self, job: Job, body: bytes | None = None) -> EncodedJob | None:
        """Return *job*, which is about to be changed, for `add`.

        *body* is needed if `wants_bodies`; None means that it could not be read, and the job cannot be put back.
        """
        if not self.is_active:
            return None
        if not self._change.has_bodies:
            return self._before.encode_without_body(job)
        return None if body is None else self._before.encode(job, body)

    def add(self, before: EncodedJob | None, after: Job | None = None) -> None:
        """Add a deleted job, or a changed job with its state *after* the change.

        A job cannot be put back if the change deleted it because its tube was truncated.
        """
        if not self.is_active or (after is None and not self._change.is_deletion):
            return
        if before is None:
            self._change.lost += 1
            return
        if not self._change.number:
            self._changes.begin(self._change)
        self._before.add(before)
        if after is not None:
            self._after.add(self._after.encode_result(after))
        if self._before.size + self._after.size >= PART_SIZE:
            self._finish_part()

    def _finish_part(self) -> None:
        self._finished.append((self._before, self._after))
        self._size += self._before.size + self._after.size
        self._before, self._after = _new_writer(), _new_writer()

    @property
    def is_full(self) -> bool:
        """Whether the parts should be written."""
        return self._size >= PART_SIZE * PARTS_TOGETHER

    def flush(self) -> str:
        """Write the jobs added since the last flush, durably; return `stopped`. Switches.

        The change may continue only if the disk has room for the next parts.
        """
        self._write()
        if self.is_active and not self.stopped and (why := self._changes.room_refusal(MAX_WRITE)):
            self.stopped = f"No more changed jobs can be stored: {why}."
        return self.stopped

    def _write(self) -> None:
        """Write the jobs added since the last write, durably; set `stopped` if that fails. Switches.

        A change that is too large to be undone, and was not promised to be, is no longer saved.
        """
        if self._before.jobs:
            self._finish_part()
        if not self._finished:
            return
        finished, size, self._finished, self._size = self._finished, self._size, [], 0
        jobs = sum([before.jobs for before, _ in finished])
        self._change.jobs += jobs
        try:
            parts = run_in_thread(_encoded, finished) if size > PART_SIZE else _encoded(finished)
            self._changes.add_parts(self._change, parts)
        except (OSError, TooLarge) as error:
            self._change.jobs -= jobs
            limit = text.rough_size(self._changes.limit)
            why = f"the jobs have more than {limit}" if isinstance(error, TooLarge) else str(error)
            if isinstance(error, TooLarge) and not self._is_promised:
                self.refusal = why
                self._changes.drop(self._change)
            else:
                self.stopped = f"The last {text.counted(jobs, 'changed job')} cannot be put back: {why}."

    @property
    def outcome(self) -> str:
        """Why the change stopped or cannot be undone, and which jobs cannot be put back; empty if all were saved."""
        if self.refusal:
            return _no(self.refusal)
        lost = self._change.lost
        unread = f"{text.counted(lost, 'changed job')} cannot be put back: the body could not be read." if lost else ""
        return f"{self.stopped} {unread}".strip()

    def close(self) -> int | None:
        """Write the rest; return the number of the change, or None if it cannot be undone. May switch."""
        if self._change.number:
            self._write()
        if not self._change.number or self.refusal:
            return None
        return self._change.number if self._changes.end(self._change) else None


def merged(parts: list[SavedChange]) -> SavedChange:
    """Return the sum of the *parts* of one change. Its number is that of one of them."""
    first = parts[0]
    return msgspec.structs.replace(
        first,
        jobs=sum([one.jobs for one in parts]),
        lost=sum([one.lost for one in parts]),
        undone_at=max([one.undone_at for one in parts]) if all(one.undone_at for one in parts) else 0,
        is_open=any(one.is_open for one in parts),
    )


def _oldest_of_largest(
    changes: list[SavedChange], taken: Counter[str], weight: Callable[[SavedChange], int]
) -> Iterator[SavedChange]:
    """Yield *changes*, each time the oldest change of the user whose changes take most space.

    *taken* has the space that the changes of each user take; yielding a change reduces it by the *weight* of the
    change.
    """
    queues: dict[str, deque[SavedChange]] = {}
    for one in changes:
        queues.setdefault(one.by, deque()).append(one)
    heap = [(-taken[by], by) for by in queues]
    heapify(heap)
    while heap:
        negative, by = heap[0]
        one = queues[by].popleft()
        yield one
        if queues[by]:
            heapreplace(heap, (negative + weight(one), by))
        else:
            heappop(heap)


def _bytes_of(change: SavedChange) -> int:
    return change.size


def _place_of(change: SavedChange) -> int:
    return 1


_KINDS: Final = (BEFORE, AFTER)
"""Kinds of rows of jobs. The number of a row is the number of its change. Its name is the position of the part, four
bytes, big-endian."""


def _kinds(change: SavedChange) -> tuple[str, ...]:
    """Return the kinds of the rows of each part of *change*."""
    return (BEFORE,) if change.is_deletion else _KINDS


def _head(change: SavedChange) -> Change:
    return (HEAD, change.number, b"", msgspec.json.encode(change))


def _without(change: SavedChange) -> list[Change]:
    """Return the changes that remove the rows of *change*."""
    kinds = _kinds(change)
    parts: list[Change] = [(kind, change.number, _name(at), None) for at in range(change.parts) for kind in kinds]
    return [*parts, (HEAD, change.number, b"", None)]


def _name(part: int) -> bytes:
    return part.to_bytes(4, "big")


def _new_writer() -> SavedJobsWriter:
    return SavedJobsWriter(secrets.token_bytes(4))


def _encoded(parts: list[tuple[SavedJobsWriter, SavedJobsWriter]]) -> list[tuple[bytes, bytes]]:
    return [(before.data(), after.data() if after.jobs else b"") for before, after in parts]


def _read(data: bytes, part: int) -> SavedJobs:
    """Return the jobs of a row of the part *part*, which is missing if *data* is empty. May switch."""
    if not data:
        return SavedJobs([], f"part {part + 1} is missing")
    return run_in_thread(read_saved_jobs, data) if len(data) > 2 * PART_SIZE else read_saved_jobs(data)


def _no(why: str) -> str:
    return f"This cannot be undone: {why}."
