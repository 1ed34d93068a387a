"""Garbage-collector and malloc tuning for a process with millions of jobs.

The collector does not track jobs (see core.gc_untrack). It collects young objects as usual. `collect_old` collects old
objects, every few seconds while the server runs. Frozen objects are never collected: a frozen object is still freed
when its last reference goes, but cyclic garbage that includes one is not.

CPython measures the young generation by the number of objects allocated, less the number of all objects freed. While a
server frees old objects and allocates as many young ones, as with thousands of HTTP clients, that number does not grow,
and the young generation is unbounded: with 35,000 objects, one collection takes 15 ms. So `Upkeep` collects it
regularly too.

All objects that exist at startup are frozen, since collecting them takes 20 ms. Old objects are frozen whenever there
are more than MAX_UNFROZEN. A collection runs first: each HTTP request leaves cyclic garbage, which would otherwise stay
for the life of the process.

glibc's malloc does not return free memory to the system while a block above it in the heap is in use, unless it is
asked to trim the heap. That takes 0.1 ms for each MiB, and blocks all threads that need memory, so a native thread
would not help. `Upkeep` trims the heap in portions of about MIN_TRIM instead, while the memory becomes free.
"""

from __future__ import annotations

import ctypes
import gc
import time
from typing import Any, Final

from gevent import get_hub

YOUNG_THRESHOLD: Final = 3_000
"""Allocations between two collections of the youngest generation."""

MIDDLE_THRESHOLD: Final = 1
"""The middle generation is collected too after more than this number of collections of the youngest one: every third
time, at most 9,000 objects, about 1 ms."""

OLD_THRESHOLD: Final = 1_000_000_000
"""Collections of the middle generation before the oldest one is collected too. This number is never reached;
`collect_old` collects the oldest generation."""

MAX_UNFROZEN: Final = 10_000
"""Maximum old objects that are not frozen. Collecting as many takes about 2 ms."""

SLOW_COLLECTION: Final = 0.02
"""Seconds of CPU time. After a longer collection, the remaining objects are frozen. Elapsed time would be wrong: on a
busy machine, every collection would freeze them."""

UPKEEP_INTERVAL: Final = 0.005
"""Seconds between two runs of `Upkeep` in a busy server. If it ran in each iteration of the event loop, a command would
take 5 % more instructions."""

MIN_WORK: Final = 1_000_000
"""Minimum nanoseconds of CPU time between the starts of two pauses: the end of a pause wakes up the event loop."""

COLLECTION_INTERVAL: int = 50_000_000
"""Nanoseconds of CPU time between two collections by `Upkeep`. Not Final, so that a test can change it."""

MIN_TRIM: Final = 16 * 2**20
"""Bytes that must have become free before the heap is trimmed."""

CHECK_SHARE: int = 200
"""`Upkeep` spends at most 1/CHECK_SHARE of the elapsed time on checks whether the heap is to be trimmed, each of which
takes 0.3 ms in an empty server. Not Final, so that a test can change it."""

CHECK_CPU_SHARE: int = 20
"""`Upkeep` spends at most about 1/CHECK_CPU_SHARE of the CPU time on these checks. This delays them while the server is
idle. The share is higher than that of the elapsed time, so that an idle server returns its free memory within seconds.
Not Final, so that a test can change it."""


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


class Upkeep:
    """Collects young objects, and returns free memory to the system, while the event loop has work.

    The check watcher runs after the loop has waited for input. While the server is busy, the watcher pauses for
    UPKEEP_INTERVAL after each run. In an idle server it does not pause, since the end of a pause wakes up the loop.

    With a libc that is not glibc, or with glibc before 2.33, it returns no memory.
    """

    def __init__(self) -> None:
        libc = ctypes.PyDLL(None)  # the calls keep the GIL
        self._mallinfo: Any = getattr(libc, "mallinfo2", None)
        self._malloc_trim: Any = getattr(libc, "malloc_trim", None)
        if self._mallinfo is not None:
            self._mallinfo.restype = _MallInfo
        self._min_free: int = self._free_bytes()
        self._pause_at: int = 0  # CPU time of this thread
        self._collect_at: int = 0  # CPU time of this thread
        self._check_at: int = 0  # elapsed time
        self._check_at_cpu: int = 0  # CPU time of this thread
        loop = get_hub().loop
        self._watcher: Any = loop.check(ref=False)
        self._pause: Any = loop.timer(UPKEEP_INTERVAL, UPKEEP_INTERVAL, ref=False)

    def start(self) -> None:
        """Begin. Call it in the hub's thread."""
        self._watcher.start(self._run)

    def stop(self) -> None:
        """End."""
        self._watcher.stop()
        self._pause.stop()

    def _resume(self) -> None:
        self._pause.stop()
        self._watcher.start(self._run)

    def _run(self) -> None:
        now = time.thread_time_ns()
        if now >= self._pause_at:
            self._pause_at = now + MIN_WORK
            self._watcher.stop()
            self._pause.again(self._resume)
        if now >= self._collect_at:
            gc.collect(1)
            self._collect_at = now + COLLECTION_INTERVAL
        if now >= self._check_at_cpu and time.monotonic_ns() >= self._check_at:
            began = time.thread_time_ns()
            free = self._free_bytes()
            took = time.thread_time_ns() - began
            self._check_at = time.monotonic_ns() + CHECK_SHARE * took
            self._check_at_cpu = began + CHECK_CPU_SHARE * took
            self._trim(free)

    def _trim(self, free: int) -> None:
        """Return free memory to the system if MIN_TRIM of the *free* bytes have become free since the last trim.

        mallinfo2 does not say which free blocks still have pages. A block that was free at the last trim has none,
        unless it has been used since then.
        """
        if free > self._min_free + MIN_TRIM:
            self._malloc_trim(0)
            self._min_free = free
        else:
            self._min_free = min(free, self._min_free)

    def _free_bytes(self) -> int:
        return int(self._mallinfo().fordblks) if self._mallinfo is not None else 0


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
