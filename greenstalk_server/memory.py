"""The garbage collector's manners: it must never walk over all jobs.

A job is tracked by the collector, though it is in no cycle that outlives it. A full collection walks over
every tracked object: 150 ms with a million jobs, in which nobody is served. So what has survived the two
young generations is frozen, which takes no time, and never looked at again.
"""

from __future__ import annotations

import gc
from typing import Any, Final

YOUNGEST: Final = 5_000
"""Allocations between two collections of the youngest generation, about 0.2 ms each."""

MIDDLE: Final = 10
"""Of those, how many until the middle generation is collected too, at most 50,000 objects, about 2 ms."""

NEVER: Final = 1_000_000_000


def keep_collections_short() -> None:
    """Freeze what is there, and from now on whatever grows old. Call once, when all is set up."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNGEST, MIDDLE, NEVER)
    gc.callbacks.append(_freeze_the_old)


def _freeze_the_old(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == 1:
        gc.freeze()
