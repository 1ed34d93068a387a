"""The manners of the garbage collector and of malloc with a million jobs.

Jobs are not the collector's concern (see untracked). All else it looks at while that is young, as always; but never at
everything: that would be what has been there from the start, 20 ms. So what is old is frozen once it is much, as what
is there at the start is, and not looked at again: a cycle in there would stay for good. What is old and not much is
looked at now and then, since each request over HTTP leaves cycles, and a stream of events may last for days.

What glibc's malloc has been given back stays with the process, as far as something above it is in use, until
it is asked to trim its heap.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import time
from pathlib import Path
from typing import Any, Final

YOUNGEST: Final = 3_000
"""Allocations between two collections of the youngest generation."""

MIDDLE: Final = 1
"""Of those, how many until the middle generation is collected too: 6,000 objects, about a millisecond."""

NEVER: Final = 1_000_000_000

OLD_AT_MOST: Final = 10_000
"""Objects that are old and not frozen: to look at them takes about 2 ms."""

LONG: Final = 0.02
"""Seconds of CPU time that it may take; what takes longer is frozen. Not of time: on a busy machine all would be."""

WORTH_A_TRIM: Final = 16 * 2**20
"""Bytes that have become free, before the heap is trimmed."""


def collect_nothing() -> None:
    """Stop collections while a journal is read, and the dashboard made: nothing of that goes."""
    gc.disable()


def keep_collections_short() -> None:
    """Freeze what is there, and from now on what is old, once it is much. Call once, when all is set up."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(YOUNGEST, MIDDLE, NEVER)
    gc.callbacks.append(_freeze_the_old)


def collect_old() -> None:
    """Free what is old, and in cycles that nobody refers to: about 2 ms, or once longer, as for a dict of many jobs."""
    began = time.thread_time()
    gc.collect()
    if time.thread_time() - began > LONG:
        gc.freeze()


def _freeze_the_old(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == 1 and len(gc.get_objects(2)) > OLD_AT_MOST:
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
