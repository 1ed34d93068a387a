"""Garbage-collector and malloc tuning for a process with millions of jobs.

The collector does not track jobs (see core.gc_untrack). It collects young objects as usual. `collect_old` collects old
objects, every few seconds while the server runs. Frozen objects are never collected: a frozen object is still freed
when its last reference goes, but cyclic garbage that includes one is not.

All objects that exist at startup are frozen, since collecting them takes 20 ms. Old objects are frozen whenever there
are more than MAX_UNFROZEN. A collection runs first: each HTTP request leaves cyclic garbage, which would otherwise stay
for the life of the process.

glibc's malloc does not return free memory to the system while a block above it in the heap is in use, unless it is
asked to trim the heap.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import time
from pathlib import Path
from typing import Any, Final

from gevent import get_hub

YOUNG_THRESHOLD: Final = 3_000
"""Allocations between two collections of the youngest generation."""

MIDDLE_THRESHOLD: Final = 1
"""The middle generation is collected too after more than this number of collections of the youngest one: every third
time, at most 9,000 objects, about 1 ms."""

OLD_THRESHOLD: Final = 1_000_000_000
"""Collections of the middle generation before the oldest one is collected too: never; `collect_old` collects it."""

MAX_UNFROZEN: Final = 10_000
"""Maximum old objects that are not frozen. Collecting as many takes about 2 ms."""

SLOW_COLLECTION: Final = 0.02
"""Seconds of CPU time. After a longer collection, the remaining objects are frozen. Elapsed time would be wrong: on a
busy machine, every collection would freeze them."""

MIN_TRIM: Final = 16 * 2**20
"""Bytes that must have become free before the heap is trimmed."""


def pause_gc() -> None:
    """Stop the collector while a journal is read and the dashboard is created. Neither leaves garbage."""
    gc.disable()


def tune_gc() -> None:
    """Freeze all objects, restart the collector, and from now on freeze old objects whenever there are many.

    Call once, in the hub's thread, when the server is set up.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(YOUNG_THRESHOLD, MIDDLE_THRESHOLD, OLD_THRESHOLD)
    gc.callbacks.append(_Freezer())


def collect_old() -> None:
    """Free cyclic garbage among old objects. This takes about 2 ms.

    If it took longer than SLOW_COLLECTION, for example because of a dict with many jobs, freeze the remaining objects,
    so that the next collection is fast.
    """
    began = time.thread_time()
    gc.collect()
    if time.thread_time() - began > SLOW_COLLECTION:
        gc.freeze()


class Heap:
    """glibc's heap. With another libc, or with glibc before 2.33, `trim` does nothing."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._mallinfo: Any = getattr(libc, "mallinfo2", None)
        self._malloc_trim: Any = getattr(libc, "malloc_trim", None)
        if self._mallinfo is not None:
            self._mallinfo.restype = _MallInfo
        self._min_free: int = self._free_bytes()

    def trim(self) -> None:
        """Return free memory to the system if MIN_TRIM bytes have become free since the last trim; takes some ms.

        mallinfo2 does not say which free blocks still have pages. Those that were free at the last trim have none,
        unless they have been used since then.
        """
        free = self._free_bytes()
        if free > self._min_free + MIN_TRIM:
            self._malloc_trim(0)
            self._min_free = free
        else:
            self._min_free = min(free, self._min_free)

    def _free_bytes(self) -> int:
        return int(self._mallinfo().fordblks) if self._mallinfo is not None else 0


def resident_bytes() -> int:
    """Return the bytes of this process that are in memory (proc(5), statm); 0 if the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


class _Freezer:
    """A callback of the collector that freezes old objects when there are more than MAX_UNFROZEN.

    A collection cannot begin within another one, so the hub collects and freezes in its next iteration. The collection
    that calls this may have run in any thread.
    """

    def __init__(self) -> None:
        self._call_in_hub: Any = get_hub().loop.run_callback_threadsafe
        self._is_due: bool = False

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 1 and not self._is_due and len(gc.get_objects(2)) > MAX_UNFROZEN:
            self._is_due = True
            self._call_in_hub(self._freeze)

    def _freeze(self) -> None:
        self._is_due = False
        gc.collect()
        gc.freeze()


class _MallInfo(ctypes.Structure):
    """struct mallinfo2 of malloc.h; fordblks is the bytes in free blocks, including trimmed ones."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]
