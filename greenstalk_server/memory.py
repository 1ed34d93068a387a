"""The manners of the garbage collector and of malloc with a million jobs.

A job is tracked by the collector, though it is in no cycle that outlives it. A full collection walks over
every tracked object: 150 ms with a million jobs, in which nobody is served. So what has survived the two
young generations is frozen, which takes no time, and never looked at again.

What glibc's malloc has been given back stays with the process, as far as something above it is in use, until
it is asked to trim its heap.
"""

from __future__ import annotations

import ctypes
import gc
import resource
from pathlib import Path
from typing import Any, Final

YOUNGEST: Final = 3_000
"""Allocations between two collections of the youngest generation."""

MIDDLE: Final = 1
"""Of those, how many until the middle generation is collected too: 6,000 objects, about 2 ms if they are jobs."""

NEVER: Final = 1_000_000_000

SLICES: Final = 32
"""Slices of long work between two looks at what is young."""

WORTH_A_TRIM: Final = 16 * 2**20
"""Bytes that have become free, before the heap is trimmed."""


def collect_nothing() -> None:
    """Stop collections while a journal is read: a million new jobs would be walked over again and again."""
    gc.disable()


def keep_collections_short() -> None:
    """Freeze what is there, and from now on whatever grows old. Call once, when all is set up."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(YOUNGEST, MIDDLE, NEVER)
    gc.callbacks.append(_freeze_the_old)


def after_slice(number: int) -> None:
    """Look at what is young, if the slice *number* of some long work says so.

    Work on many jobs makes few objects, so that the collector lets them be; but those are lists of 256 jobs, and to
    look at 3,000 such lists takes 36 ms.
    """
    if not number % SLICES:
        gc.collect(1)


def _freeze_the_old(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == 1:
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
