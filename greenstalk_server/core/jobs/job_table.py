"""The table of all jobs, by id.

Ids increase, and most jobs with recent ids exist. So jobs are in pages of PAGE ids each: a page is a list indexed by
the id's low bits, which takes eight bytes per job and needs no hashing. A page is created when an id is beyond the
newest page, and dissolved when only FEW of its jobs are left. These move to a dict, as does a job whose id has no page.
There is one dict for each range of SPARSE ids: a single dict of a million entries would stop the server for 30 ms
whenever it grows, and so would a copy of its keys. A dict whose jobs become dense, as when a journal is read, is
converted into pages again.

Pages and dicts are numbered by slots. In a queue of one shard, the slot of an id is the id. A shard among others
assigns every `shards`-th id, and its own ids have consecutive slots, so that its pages are as dense. Foreign ids (see
greenstalk_server.core.jobs.id_sequence) have slots above all others, and their jobs are in dicts. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, ValuesView
from heapq import merge
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar, cast, overload

from greenstalk_server.core.gc_untrack import untrack
from greenstalk_server.core.jobs.id_sequence import ID_END, ONE_SHARD, IdSequence
from greenstalk_server.core.jobs.job import Job

if TYPE_CHECKING:
    from mypy_extensions import i64

PAGE_BITS: Final = 10
PAGE: Final = 1 << PAGE_BITS
"""Slots per page."""

FEW: Final = PAGE // 16
"""Number of jobs at which a page is dissolved. With more jobs, a page takes less than 128 bytes per job."""

SPARSE_BITS: Final = 14
SPARSE: Final = 1 << SPARSE_BITS
"""Slots per dict. A dict of this size grows in about half a millisecond."""

DENSE: Final = SPARSE // 4
"""Number of jobs at which a dict is converted into pages. The conversion takes half a millisecond."""

MIN_PAGE: Final = PAGE // 8
"""Minimum number of jobs of a page that is made from a dict."""

_FOREIGN: Final = ID_END
"""First slot of the foreign ids: the slot of the foreign id N is `_FOREIGN + N`."""

_END: Final = 2**63
"""Every slot is below this. With one shard, a journal from before ID_END was defined may have ids above that."""

T = TypeVar("T")


class Page:
    """The jobs of PAGE slots, indexed by the low bits of the slot. `count` is the number of jobs."""

    __slots__ = ("count", "jobs")

    def __init__(self) -> None:
        self.count: int = 0
        self.jobs: list[Job | None] = [None] * PAGE
        untrack(self.jobs)


class JobTable(MutableMapping[int, Job]):
    """A dict of jobs by id, in no order.

    foreign     number of jobs with foreign ids.

    Invariant: no slot has both a page and an entry in a dict.
    Invariant: no dict is empty.
    Invariant: `_newest` is the number of the last page that was created for a new id.
    """

    def __init__(self, ids: IdSequence = ONE_SHARD) -> None:
        """*ids* are the ids that the shard assigns."""
        self._base: int = ids.base
        self._shards: int = ids.shards
        self._shard: int = ids.shard
        self._is_interleaved: bool = ids.shards > 1
        self.foreign: int = 0
        self._count: int = 0
        self._newest: int = -1
        self._pages: dict[int, Page] = {}
        self._sparse: dict[int, dict[int, Job]] = {}

    @overload
    def get(self, id: int, default: None = None, /) -> Job | None: ...
    @overload
    def get(self, id: int, default: Job | T, /) -> Job | T: ...
    def get(self, id: int, default: T | None = None, /) -> Job | T | None:
        """Return the job *id*, or *default*."""
        slot = self._slot_of(id) if self._is_interleaved else id
        page = self._pages.get(slot >> PAGE_BITS)
        if page is None:
            late = self._sparse.get(slot >> SPARSE_BITS)
            return default if late is None else late.get(slot, default)
        job = page.jobs[slot & (PAGE - 1)]
        return default if job is None else job

    def __getitem__(self, id: int) -> Job:
        job = self.get(id)
        if job is None:
            raise KeyError(id)
        return job

    def __setitem__(self, id: int, job: Job) -> None:
        assert id == job.id
        self.set(job)

    def set(self, job: Job) -> None:
        """Insert *job* under `job.id`, or replace the job there. Faster than `table[id] = job`."""
        slot = self._slot_of(job.id) if self._is_interleaved else job.id
        page = self._pages.get(slot >> PAGE_BITS)
        if page is None:
            if slot >> PAGE_BITS <= self._newest or slot >= _FOREIGN:
                self._set_late(slot, job)
                return
            page = self._create_page(slot >> PAGE_BITS)
        at = slot & (PAGE - 1)
        if page.jobs[at] is None:
            page.count += 1
            self._count += 1
            self.foreign += slot >= _FOREIGN
        page.jobs[at] = job

    def __delitem__(self, id: int) -> None:
        self.remove(id)

    def remove(self, id: int) -> None:
        """Remove the job *id*; raise KeyError if there is none. Faster than `del table[id]`."""
        slot = self._slot_of(id) if self._is_interleaved else id
        number = slot >> PAGE_BITS
        page = self._pages.get(number)
        if page is None:
            late = self._sparse[slot >> SPARSE_BITS]
            del late[slot]
            if not late:
                del self._sparse[slot >> SPARSE_BITS]
        else:
            at = slot & (PAGE - 1)
            if page.jobs[at] is None:
                raise KeyError(id)
            page.jobs[at] = None
            page.count -= 1
            if page.count <= FEW and number != self._newest:
                self._dissolve_page(number)
        self._count -= 1
        self.foreign -= slot >= _FOREIGN

    def clear(self) -> None:
        """Remove all jobs: 0.1 s for a million."""
        self._pages.clear()
        self._sparse.clear()
        self.foreign, self._count, self._newest = 0, 0, -1

    def __len__(self) -> int:
        return self._count

    def __contains__(self, id: object) -> bool:
        return self.get(cast(int, id)) is not None

    def __iter__(self) -> Iterator[int]:
        """Iterate over all ids. Valid until the table changes."""
        return (job.id for job in self.values())

    def values(self) -> ValuesView[Job]:
        """Return a view of all jobs. Its iterators are valid until the table changes."""
        return _Jobs(self)

    def ids_above(self, id: int) -> Iterator[int]:
        """Iterate over the ids above *id*, in increasing order, so that a scan can continue where another ended.

        The table may change during the iteration. Jobs that exist throughout are included; others may be.
        """
        if not self._is_interleaved:
            return self._scan(id, id, _END)
        own_slot = id if id < self._base else self._base + (id - self._base) // self._shards
        return merge(self._scan(id, own_slot, _FOREIGN), self._scan(id, _FOREIGN + id, _END))

    def _slot_of(self, id: int) -> int:
        """Return the slot of *id*, which any client may have chosen. No two ids have the same slot."""
        if not self._is_interleaved:
            return id
        if id < self._base:
            return id if not self._shard else _FOREIGN + id
        if id >= ID_END:
            return _FOREIGN + id
        number: i64 = id - self._base
        shards: i64 = self._shards
        local = number // shards
        if number - local * shards != self._shard:
            return _FOREIGN + id
        return self._base + local

    def _scan(self, id: int, first_slot: int, end_slot: int) -> Iterator[int]:
        """Iterate over the ids above *id* in the slots from *first_slot* to below *end_slot*, in increasing order."""
        bits = SPARSE_BITS - PAGE_BITS
        numbers = {number >> bits for number in self._pages}.union(self._sparse)
        for number in sorted(one for one in numbers if first_slot >> SPARSE_BITS <= one < end_slot >> SPARSE_BITS):
            found: list[Iterable[Job | None]] = [self._sparse.get(number, {}).values()]
            for page_number in range(number << bits, (number + 1) << bits):
                page = self._pages.get(page_number)
                if page is not None:
                    found.append(page.jobs)
            yield from sorted([job.id for job in chain.from_iterable(found) if job is not None and job.id > id])

    def _create_page(self, number: int) -> Page:
        """Create the page *number*, which is above all earlier ones."""
        before, self._newest = self._newest, number
        page = self._pages[number] = Page()
        if before in self._pages and self._pages[before].count <= FEW:
            self._dissolve_page(before)
        return page

    def _dissolve_page(self, number: int) -> None:
        """Move the few jobs of the page *number* to a dict."""
        for job in self._pages.pop(number).jobs:
            if job is not None:
                slot = self._slot_of(job.id)
                self._sparse.setdefault(slot >> SPARSE_BITS, {})[slot] = job

    def _set_late(self, slot: int, job: Job) -> None:
        """Insert or replace *job*, whose *slot* has no page, in a dict. Turn a dense dict into pages."""
        late = self._sparse.setdefault(slot >> SPARSE_BITS, {})
        before = len(late)
        late[slot] = job
        self._count += len(late) - before
        if slot >= _FOREIGN:
            self.foreign += len(late) - before
        if before < len(late) == DENSE:
            self._make_pages(slot >> SPARSE_BITS)

    def _make_pages(self, number: int) -> None:
        """Turn the dense parts of the dict *number* into pages."""
        by_page: dict[int, dict[int, Job]] = {}
        for slot, job in self._sparse.pop(number).items():
            by_page.setdefault(slot >> PAGE_BITS, {})[slot] = job
        rest: dict[int, Job] = {}
        for page_number, jobs in by_page.items():
            if len(jobs) < MIN_PAGE:
                rest.update(jobs)
                continue
            page = self._pages[page_number] = Page()
            page.count = len(jobs)
            for slot, job in jobs.items():
                page.jobs[slot & (PAGE - 1)] = job
        if rest:
            self._sparse[number] = rest


class _Jobs(ValuesView[Job]):
    """A view of all jobs of a table, which iterates without a lookup for each job."""

    _mapping: JobTable

    def __iter__(self) -> Iterator[Job]:
        pages = chain.from_iterable([page.jobs for page in self._mapping._pages.values()])
        late = chain.from_iterable([jobs.values() for jobs in self._mapping._sparse.values()])
        return filter(None, chain(pages, late))
