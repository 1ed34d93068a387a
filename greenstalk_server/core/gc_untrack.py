"""Exempt jobs, their cold state, and long lists of jobs and their keys from the cyclic garbage collector.

When the last reference to a job is dropped, the job is in no reference cycle, so reference counting frees it. But the
collector traverses each tracked object once or twice while the object is young, which takes 300 ns per job. It
traverses all tracked objects again in each full collection, which takes 100 ms for a million jobs; no client is served
during that time. `untrack` costs 20 ns in the compiled build and 150 ns in pure Python.

A table of jobs that is discarded before the process ends has to be cleared: the table holds the jobs, the jobs hold
their tubes, and the tubes hold the table.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final


def _find_untrack() -> Callable[[object], None]:
    try:
        from greenstalk_server.core import _untrack  # noqa: PLC0415  not in the pure Python build
    except ImportError:
        return ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyObject_GC_UnTrack", ctypes.pythonapi))
    return _untrack.untrack


untrack: Final = _find_untrack()
"""Untrack a list, or an instance of a class, from the cyclic collector (CPython's C API). The object must not be in a
cycle when its last reference is dropped."""
