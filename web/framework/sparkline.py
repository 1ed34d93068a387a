"""Sparklines: a series of values as an SVG path, drawn without a script. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

INSET = 1
"""Units of margin above and below, so that a line up to two units wide is not clipped."""


def path(values: Sequence[float], width: float, height: float, top: float | None = None) -> str:
    """Return the `d` of a path through *values*, oldest at the left, zero at the bottom, *top* at the top.

    *top* defaults to the largest value. The line breaks at NaN, which means unknown. Empty if all values are unknown.
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
        # A point between two breaks becomes a line of length zero, which a round cap draws as a dot.
        is_alone = pen == "M" and (at + 1 == len(values) or isnan(values[at + 1]))
        parts.append(f"{pen}{at * across:.1f} {height - INSET - value * up:.1f}{'h0' if is_alone else ''}")
        pen = "L"
    return "".join(parts)
