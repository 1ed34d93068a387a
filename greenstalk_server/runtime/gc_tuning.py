"""Garbage-collector and malloc tuning for a process with millions of jobs.

The collector does not track jobs (see untracked). It collects young objects as usual, but never all objects: those that
exist since the start alone take 20 ms. So the objects that exist at the start are frozen, and so are old objects when
there are many of them. A frozen object is still freed when its last reference goes, but the collector ignores it, and
garbage in a cycle with it is never freed. Therefore old objects are collected once more before they are frozen: each
HTTP request leaves cyclic garbage, which would stay for the life of the process. Old objects that are few are collected
every few seconds.

glibc's malloc does not return free memory to the system while something above it in the heap is in use, until it is
told to trim the heap.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import time
from pathlib import Path
from typing import Any, Final

from gevent import get_hub

YOUNGEST: Final = 3_000
"""Allocations between two collections of the youngest generation."""

MIDDLE: Final = 1
"""Of those, how many until the middle generation is collected too: 6,000 objects, about a millisecond."""

NEVER: Final = 1_000_000_000

OLD_AT_MOST: Final = 10_000
"""Old objects that are not frozen; collecting them takes about 2 ms."""

LONG: Final = 0.02
"""Seconds of CPU time that it may take; what takes longer is frozen. Not of time: on a busy machine all would be."""

WORTH_A_TRIM: Final = 16 * 2**20
"""Bytes that have become free, before the heap is trimmed."""


def collect_nothing() -> None:
    """Stop collections while a journal is read, and the dashboard made: nothing of that goes."""
    gc.disable()


def keep_collections_short() -> None:
    """Freeze all objects, and from now on old objects when there are many.

    Call once, in the hub's thread, when the server is set up.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(YOUNGEST, MIDDLE, NEVER)
    gc.callbacks.append(_Freezer())


def collect_old() -> None:
    """Free what is old, and in cycles that nobody refers to: about 2 ms, or once longer, as for a dict of many jobs."""
    began = time.thread_time()
    gc.collect()
    if time.thread_time() - began > LONG:
        gc.freeze()


class _Freezer:
    """A callback of the collector that freezes old objects when there are more than `OLD_AT_MOST`.

    A collection cannot begin within another, so the hub collects and freezes in its next iteration. The collection
    that ends may have run in any thread.
    """

    def __init__(self) -> None:
        self._call_in_hub: Any = get_hub().loop.run_callback_threadsafe
        self._is_due: bool = False

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 1 and not self._is_due and len(gc.get_objects(2)) > OLD_AT_MOST:
            self._is_due = True
            self._call_in_hub(self._freeze)

    def _freeze(self) -> None:
        self._is_due = False
        gc.collect()
        gc.freeze()


class _MallInfo(ctypes.Structure):
    """struct mallinfo2 of malloc.h; fordblks is the bytes of all free blocks, trimmed ones too."""

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


class Heap:
    """glibc's heap; where there is another libc, or one older than 2.33, it does nothing."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._mallinfo: Any = getattr(libc, "mallinfo2", None)
        self._malloc_trim: Any = getattr(libc, "malloc_trim", None)
        if self._mallinfo is not None:
            self._mallinfo.restype = _MallInfo
        self._least_free: int = self._free()

    def give_back(self) -> None:
        """Give free memory back to the system, if more of it has become free since the last time: some ms then.

        Free blocks do not say whether the system has their pages; those of the last time it has, unless they were used.
        """
        free = self._free()
        if free > self._least_free + WORTH_A_TRIM:
            self._malloc_trim(0)
            self._least_free = free
        else:
            self._least_free = min(free, self._least_free)

    def _free(self) -> int:
        return int(self._mallinfo().fordblks) if self._mallinfo is not None else 0


def resident() -> int:
    """Bytes of the process that are in memory (proc(5), statm); 0 where that is not told."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()
