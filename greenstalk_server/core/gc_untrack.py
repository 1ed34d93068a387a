"""What the garbage collector need not look at: jobs, their pasts, and the long lists of jobs and of heap entries.

A job is in no cycle that outlives it, so its references free it. But an instance of a class is tracked, and what is
tracked is looked at once or twice while it is young, 300 ns a job, and in a full collection again: 100 ms for a million
jobs, in which nobody is served. `untrack` takes one out, for 150 ns.

A table of jobs that is to go before the process does has to be cleared: it holds the jobs, they hold their tubes, and
those hold the table.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

untrack: Final[Any] = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyObject_GC_UnTrack", ctypes.pythonapi))
"""Have the collector look at an object no more, which must be in no cycle when it is let go (CPython's C API)."""
