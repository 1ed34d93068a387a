"""Rewriting: after a failure, record again the state of each job whose records were discarded or are in doubt.

A rewrite records the present state of these jobs from memory. If that does not fit, it works in steps, each on disk
before the next: it first copies the jobs that have no JOB record on disk, then evacuates the oldest segments one by
one, each removed before the next is copied. A step never needs more room than `Space.compaction_room` keeps free. The
jobs of an evacuated segment need no further rewriting, so a rewrite terminates.

A step is planned and encoded in slices, and commands run between two slices. A `DiscardingSegment` notes the jobs that
they change; a later step rewrites these.
Invariant: the last step takes a single slice, so nothing changes during it.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Generator, Iterator
from typing import Final

from greenstalk_server.core.jobs.job import Job
from greenstalk_server.journal import record
from greenstalk_server.journal.batch import no_space_error
from greenstalk_server.journal.eviction import Eviction
from greenstalk_server.journal.segment import DiscardingSegment, Segment, on_disk
from greenstalk_server.journal.segment_log import UNMEASURED, SegmentLog, capacity_for
from greenstalk_server.journal.space import Space

REWRITE_BODIES: Final = 2**24
"""Bytes of bodies of jobs in finished segments that a rewrite copies.

For the remaining jobs it records only changes.
"""

REWRITE_SLICE: Final = 2048
GATHER_COST: Final = 64
PLAN_COST: Final = 3
ENCODE_COST: Final = 8
BYTES_PER_COST: Final = 512
"""REWRITE_SLICE: cost after which a rewrite yields to the event loop, about 1 ms. The cost is the sum of GATHER_COST
for each GATHER_BATCH ids, PLAN_COST for each job examined, ENCODE_COST for each record, and 1 for each BYTES_PER_COST
bytes of a record."""

GATHER_BATCH: Final = 1024
"""Number of job ids that a rewrite gathers at a time."""

ABOVE_ALL_SEQUENCES: Final = 2**63
"""A number above every sequence number."""


class Step:
    """One step of a rewrite.

    copies      jobs that get a JOB record.
    groups      lists of jobs that get JOB records too, all or none of a list.
    entries     policies, pauses and keys that get a record.
    changes     jobs whose JOB record is on disk; they get a MOVE or RESERVE record with their last event. An UPDATE
                lacks the tube and the attributes, which may have changed too.
    deletes     ids of jobs that were deleted.
    is_last     nothing remains to rewrite after it, unless commands run during the step.
    """

    def __init__(
        self,
        copies: list[Job],
        groups: list[list[Job]],
        entries: list[record.Entry],
        changes: list[Job],
        deletes: list[int],
        *,
        is_last: bool,
    ) -> None:
        self.copies: list[Job] = copies
        self.groups: list[list[Job]] = groups
        self.entries: list[record.Entry] = entries
        self.changes: list[Job] = changes
        self.deletes: list[int] = deletes
        self.is_last: bool = is_last


class SliceBudget:
    """Counts the cost of one attempt at a step, and ends its slices.

    is_sliced   other greenlets have run since the attempt began.
    """

    def __init__(self) -> None:
        self._left: int = REWRITE_SLICE
        self.is_sliced: bool = False

    def spend(self, cost: int) -> bool:
        """Count *cost*; return whether the slice is over, so that the caller must yield."""
        self._left -= cost
        if self._left > 0:
            return False
        self._left = REWRITE_SLICE
        self.is_sliced = True
        return True


class Rewrite:
    """Rewrites the records that failed batches and syncs have left in doubt.

    is_planning     a step is being planned or recorded. No body may be evicted: the plan depends on which bodies are
                    in memory.
    first_in_doubt  number of the first record that is in doubt; 0 if none is.
    """

    def __init__(self, segment_log: SegmentLog, space: Space, eviction: Eviction) -> None:
        self.is_planning: bool = False
        self.first_in_doubt: int = 0
        self._log: SegmentLog = segment_log
        self._space: Space = space
        self._eviction: Eviction = eviction
        self._failed: deque[Segment] = deque()
        self._ids: dict[int, None] = {}
        self._entries: dict[record.Entry, None] = {}
        self._recorded: set[record.Entry] = set()
        self._steps_left: int = 0
        self._superseded: list[Segment] = []
        self._highest_begun: int = 0

    def restart(self) -> None:
        """Begin the rewrite again: a batch or a sync has failed."""
        log = self._log
        if not log.wants_rewrite:
            log.forget_groups()
            log.pending_removal = deque(
                [(at if at <= log.on_disk else ABOVE_ALL_SEQUENCES, one) for at, one in log.pending_removal]
            )
        log.wants_rewrite = True
        self.first_in_doubt = min(self.first_in_doubt or ABOVE_ALL_SEQUENCES, log.on_disk + 1)
        self._steps_left = len(log.segments)
        self._recorded.clear()
        log.forget_outstanding()
        for segment in log.unsafe:
            if segment.is_begun:
                self._highest_begun = segment.number
            if segment.number:
                self._abandon(segment)
            self._failed.append(segment)
        log.newest = max([self._highest_begun, *log.segments])
        log.current = DiscardingSegment()
        log.unsafe = [log.current]

    def record_step(self) -> Generator[None, None, bool]:
        """Record the next step; see `JournalWriter.rewrite`.

        If it returns False and `Eviction.wanted` is empty, no step fits.
        """
        self.is_planning = True
        try:
            budget = SliceBudget()
            self._log.pinned.clear()
            yield from self._gather(budget)
            self._log.free = self._space.measure_free()
            step = yield from self._next_step(budget)
            if step is not None:
                self._steps_left -= 1
                yield from self._record(step, budget)
                return True
            if not self._eviction.wanted:
                self._prepare_retry()
            return False
        finally:
            self.is_planning = False

    def _prepare_retry(self) -> None:
        """Prepare the next attempt, because no step fits. It follows a maintenance, and uses all free bytes."""
        self._steps_left = len(self._log.segments)
        self._space.margin = 0
        self._log.orphaned += self._log.surplus
        self._log.surplus = []

    def _gather(self, budget: SliceBudget) -> Generator[None, None, None]:
        """List the jobs and entries of the failed segments, and those that have changed since.

        A failed segment with no bytes in its file is used again.
        """
        while self._failed:
            yield from self._gather_from(self._failed[0], budget)
            segment = self._failed.popleft()
            if not segment.is_proven and segment.handle is not None and not segment.is_begun:
                yield from self._forget_number(segment, budget)
                self._log.add_ahead([segment.reuse_file()])
        yield from self._gather_from(self._log.current, budget)

    def _gather_from(self, segment: Segment, budget: SliceBudget) -> Generator[None, None, None]:
        """List the jobs and entries of the records in *segment*."""
        touched, segment.touched = segment.touched or (), array("Q")
        entries, segment.entries = segment.entries, []
        for begin in range(0, len(entries), GATHER_BATCH):
            self._entries.update(dict.fromkeys(entries[begin : begin + GATHER_BATCH]))
            self._recorded.difference_update(entries[begin : begin + GATHER_BATCH])
            if budget.spend(GATHER_COST):
                yield
        for begin in range(0, len(touched), GATHER_BATCH):
            self._ids.update(dict.fromkeys(touched[begin : begin + GATHER_BATCH]))
            if budget.spend(GATHER_COST):
                yield

    def _forget_number(self, segment: Segment, budget: SliceBudget) -> Generator[None, None, None]:
        """Mark the jobs and entries whose newest record is in *segment* as unrecorded.

        The number of the segment is used again.
        """
        for entry in self._entries:
            if self._log.is_newest(entry, segment):
                self._log.entries[entry] = (0, self._log.entries[entry][1])
            if budget.spend(PLAN_COST):
                yield
        for id in segment.ids:
            job = self._log.jobs.get(id)
            if job is not None and job.segment == segment.number:
                job.segment = 0
            if budget.spend(PLAN_COST):
                yield

    def _next_step(self, budget: SliceBudget) -> Generator[None, None, Step | None]:
        """Plan the next step; return None if none has room, or if bodies must be read back first."""
        required_free = self._space.compaction_room()
        without_record: list[Job] = []  # with no JOB record on disk
        whole: list[Job] = []
        changed: list[Job] = []
        wanted: list[Job] = []  # as `whole`, but without a body in memory
        deletes: list[int] = []
        size = 0
        for id in self._ids:
            job = self._log.jobs.get(id)
            if job is None:
                deletes.append(id)
            elif not self._log.is_finished(job.segment):
                without_record.append(job)
            else:
                is_whole = size < REWRITE_BODIES and id not in self._eviction.lost
                size += job.size if is_whole else 0
                (changed if not is_whole else whole if job.body is not None else wanted).append(job)
            if budget.spend(PLAN_COST):
                yield
        if wanted:
            self._eviction.wanted = wanted
            return None
        groups, single = self._grouped(without_record)
        entries = list(self._entries)
        step = Step([*single, *whole], groups, entries, changed, deletes, is_last=True)
        if (yield from self._fits(step, required_free, budget)):
            return step
        self._space.note_full(no_space_error())
        smallest = Step(single, groups, entries, [*whole, *changed], deletes, is_last=True)
        if (yield from self._fits(smallest, required_free, budget)):
            return smallest
        entries = [entry for entry in entries if entry not in self._recorded and self._log.has_entry(entry)]
        if without_record:
            return (yield from self._plan_copies(single, groups, entries, deletes, budget))
        evacuation = yield from self._plan_evacuation(entries, deletes, budget)
        if evacuation is not None or self._eviction.wanted:
            return evacuation
        return smallest if (yield from self._fits(smallest, 0, budget)) else None

    def _plan_evacuation(
        self, entries: list[record.Entry], deletes: list[int], budget: SliceBudget
    ) -> Generator[None, None, Step | None]:
        """Return a step that copies the oldest segment, *entries* and, if they fit, *deletes*.

        Return None if each segment has had its turn, if the step does not fit, or if bodies must be read back first.
        """
        oldest = self._log.oldest_finished()
        if oldest is None or self._steps_left <= 0:
            return None
        live = yield from self._live_jobs(oldest, budget)
        self._eviction.wanted = [job for job in live if job.body is None]
        if not self._eviction.wanted:
            entries += [entry for entry in oldest.entries if self._log.is_newest(entry, oldest)]
            return (yield from self._plan_copies(live, [], entries, deletes, budget))
        if not self._eviction.lost.isdisjoint([job.id for job in self._eviction.wanted]):
            self._eviction.wanted = []
        return None

    def _grouped(self, jobs: list[Job]) -> tuple[list[list[Job]], list[Job]]:
        """Split *jobs*: return those that belong to groups, by group, and the others."""
        groups: list[list[Job]] = []
        if self._log.groups:
            found = {job.id: job for job in jobs}
            groups = [[found.pop(id) for id in ids if id in found] for _, ids in self._log.groups]
            jobs = list(found.values())
        return [group for group in groups if group], jobs

    def _plan_copies(
        self,
        copies: list[Job],
        groups: list[list[Job]],
        entries: list[record.Entry],
        deletes: list[int],
        budget: SliceBudget,
    ) -> Generator[None, None, Step | None]:
        """Return a step, not the last one, of *copies*, *groups*, *entries* and, if they fit, *deletes*.

        Return None if it does not fit without *deletes* either. The bytes of segments ahead that are too small for a
        record count as free if the step does not fit otherwise.
        """
        for some in (deletes, []):
            step = Step(copies, groups, entries, [], some, is_last=False)
            if (yield from self._fits(step, 0, budget)):
                return step
        if not self._log.ahead:
            return None
        self._log.give_up_ahead()
        return (yield from self._plan_copies(copies, groups, entries, deletes, budget))

    def _live_jobs(self, segment: Segment, budget: SliceBudget) -> Generator[None, None, list[Job]]:
        """Return the jobs that have their newest JOB record in *segment*."""
        found: dict[int, Job] = {}
        for id in segment.ids:
            job = self._log.jobs.get(id)
            if job is not None and job.segment == segment.number:
                found[id] = job
            if budget.spend(PLAN_COST):
                yield
        return list(found.values())

    def _fits(self, step: Step, required_free: int, budget: SliceBudget) -> Generator[None, None, bool]:
        """Return whether *step* fits on the disk, and leaves *required_free* bytes free or ahead.

        If it fits, the new segments of the step may only take the other free bytes.
        """
        ahead, left = [segment.capacity for segment in self._log.ahead], -1
        allowed = free = self._log.free - required_free
        for size in self._sizes_of(step):
            if size > left:
                planned = ahead.pop(0) if ahead else 0
                capacity = capacity_for(planned or self._log.new_capacity(free), size)
                free -= on_disk(capacity) - on_disk(planned)
                left = capacity - record.SEGMENT_HEADER_SIZE
            left -= size
            if budget.spend(PLAN_COST):
                yield
        if free + sum(ahead) < 0 or free < -required_free:
            return False
        self._log.free = allowed
        return True

    def _sizes_of(self, step: Step) -> Iterator[int]:
        """Yield the size of each record of *step*, then a 0 for the segment that a step without records begins."""
        for _ in step.deletes:
            yield record.DELETE_SIZE
        for entry in step.entries:
            yield self._log.entry_size(entry)
        for group in step.groups:
            yield self._log.group_size(group)
        for job in step.copies:
            yield self._log.copy_size(job)
        for job in step.changes:
            yield record.move_size(job, record.attributes_of(job)) + record.reserve_size(job)
        yield 0

    def _record(self, step: Step, budget: SliceBudget) -> Generator[None, None, None]:
        """Record *step*, in slices.

        Between two slices, `current` is a DiscardingSegment, and the records of commands continue the numbering from
        before the step.
        """
        discarding, numbered = self._log.current, self._log.sequence
        self._log.unsafe.clear()
        self._log.begin_segment(next(self._sizes_of(step)), self.first_in_doubt)
        for cost in self._records_of(step):
            if budget.spend(cost):
                segment, sequence = self._log.current, self._log.sequence
                self._log.current, self._log.sequence = discarding, numbered
                self._log.unsafe.append(discarding)
                yield
                self._log.unsafe.remove(discarding)
                numbered = self._log.sequence
                self._log.current, self._log.sequence = segment, sequence
        if budget.is_sliced or not step.is_last:
            self._log.current.last_sequence = self._log.sequence
            self._log.sequence = max(self._log.sequence, numbered)
            self._log.current = discarding
            self._log.unsafe.append(discarding)

    def _records_of(self, step: Step) -> Iterator[int]:
        """Append the records of *step*, and remove their jobs and entries from the lists; yield the cost of each.

        A later step handles jobs that were deleted since the step was planned.
        """
        for id in step.deletes:
            self._log.add_delete(id)
            self._ids.pop(id, None)
            yield ENCODE_COST
        for entry in step.entries:
            self._entries.pop(entry, None)
            self._recorded.add(entry)
            self._log.add_entry(entry)
            yield ENCODE_COST
        for group in step.groups:
            # A job that was edited since the step was planned is recorded with the others of its group.
            there = [job for job in [self._log.jobs.get(job.id) for job in group] if job is not None]
            for job in group:
                self._ids.pop(job.id, None)
            for job in there:
                self._log.mark_dead(job)
            if there:
                self._log.add_group(there)
                yield ENCODE_COST * len(there) + self._log.group_size(there) // BYTES_PER_COST
        for job in step.copies:
            self._ids.pop(job.id, None)
            if self._log.jobs.get(job.id) is job:
                self._log.mark_dead(job)
                yield ENCODE_COST + self._log.add_copy(job) // BYTES_PER_COST
        for job in step.changes:
            self._ids.pop(job.id, None)
            if self._log.jobs.get(job.id) is job:
                self.add_change(job)
                yield ENCODE_COST

    def add_change(self, job: Job) -> None:
        """Record the state, tube and attributes of *job* without its body, and its last events."""
        if job.events:
            self._log.add_move(job)
        if job.holder is not None:
            self._log.add_reserve(job)

    def _abandon(self, segment: Segment) -> None:
        """Keep *segment* until it is superseded. Drop it if no batch on it has succeeded: nothing depends on it."""
        if segment.is_proven:
            segment.take_pending()
            self.first_in_doubt = min(self.first_in_doubt, segment.first_sequence)
            self._superseded.append(segment)
            segment.used = max(segment.used, segment.allocated)  # its file is not truncated
            self._log.finished_bytes += segment.used
            return
        del self._log.segments[segment.number]
        if segment.has_file and (segment.handle is None or segment.is_begun):
            self._log.orphaned.append(segment)

    def complete_step(self) -> None:
        """Complete a step that is on disk and is not the last one: remove the segments that it has evacuated.

        Invariant: each step copies all jobs with no JOB record on disk, and all policies, pauses and keys that have
        changed since the failure, except those that a former step has recorded. So each of them has a record on disk
        afterwards, unless it has changed during the step; then the segment with its former record is pinned.
        """
        self._release_removals(self._log.on_disk)
        while (
            (oldest := self._log.oldest_finished()) is not None
            and not oldest.live_bytes
            and oldest.number != self._log.newest
            and oldest.number not in self._log.pinned
        ):
            self._log.remove_after(oldest, self._log.on_disk)

    def complete(self, sequence: int) -> None:
        """Complete the rewrite: its last step is on disk, up to record *sequence*. Remove the replaced segments."""
        self._release_removals(sequence)
        for segment in self._superseded:
            assert not segment.live_bytes
            self._log.remove_after(segment, sequence)
        self._superseded.clear()
        self._recorded.clear()
        self._log.groups.clear()
        self._log.free, self._space.margin, self.first_in_doubt = UNMEASURED, 0, 0
        self._log.wants_rewrite = False

    def _release_removals(self, sequence: int) -> None:
        """Allow the removal, once record *sequence* is on disk, of the segments whose copies were in doubt.

        By then the copies are rewritten.
        """
        self._log.pending_removal = deque(
            [(min(at, sequence) if at == ABOVE_ALL_SEQUENCES else at, one) for at, one in self._log.pending_removal]
        )
