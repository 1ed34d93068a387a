"""Exempt jobs, their cold state, and long lists of jobs and heap entries from the cyclic garbage collector.

A job is in no reference cycle when it is released, so reference counting frees it. But the collector traverses each
tracked object once or twice while it is young, 300 ns per job, and in each full collection: 100 ms for a million jobs,
during which no client is served. `untrack` costs 150 ns.

A table of jobs that is discarded before the process ends has to be cleared: it holds the jobs, they hold their tubes,
and those hold the table.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

untrack: Final[Any] = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyObject_GC_UnTrack", ctypes.pythonapi))
"""Untrack an object from the cyclic collector. It must not be in a cycle when it is released (CPython's C API)."""
