"""A series as the path of an SVG: what a page draws without a script. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

INSET = 1
"""Units above and below that are left free, so that a line of that width is not cut."""


def path(values: Sequence[float], width: float, height: float, top: float | None = None) -> str:
    """Return the `d` of a path through *values*, oldest at the left, zero at the bottom, *top* at the top.

    *top* is by default the largest of them. NaN is unknown: the line breaks there. Empty if nothing is known.
    """
    known = [value for value in values if not isnan(value)]
    scale = max(known, default=0.0) if top is None else top
    across = width / max(1, len(values) - 1)
    up = (height - 2 * INSET) / scale if scale > 0 else 0.0
    parts, pen = [], "M"
    for at, value in enumerate(values):
        if isnan(value):
            pen = "M"
            continue
        # A point between two breaks is a line of no length, which a round cap makes a dot.
        is_alone = pen == "M" and (at + 1 == len(values) or isnan(values[at + 1]))
        parts.append(f"{pen}{at * across:.1f} {height - INSET - value * up:.1f}{'h0' if is_alone else ''}")
        pen = "L"
    return "".join(parts)
