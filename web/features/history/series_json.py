"""Time series as JSON, for charts and for the API."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any, Final

from greenstalk_server.web.features.history.history import Columns
from greenstalk_server.web.features.history.rings import TIMES as TIMED
from greenstalk_server.web.framework.cooperative import Pace

DAY_SECONDS: Final = 86400
COMPARED: Final = {"day": ("a day ago", DAY_SECONDS), "week": ("a week ago", 7 * DAY_SECONDS)}
"""For each value of the field `compare`: the label, and the seconds to go back."""


def history_json(columns: Columns) -> dict[str, Any]:
    """Return *columns* as JSON: `step`, `end`, and `series`: a list of values for each series that is not empty.

    May switch.
    """
    series, pace = dict[str, list[float | int | None]](), Pace()
    for key, values in columns.series.items():
        pace.yield_if_due()
        if has_any(key, values):
            series[key] = [_rounded(value) for value in values]
    return {"step": columns.step, "end": columns.end, "series": series}


def has_any(key: str, values: Sequence[float]) -> bool:
    """Return whether the series *key* has any known value to show. Zeros count only in series of durations."""
    return any(not isnan(value) and (value or key in TIMED) for value in values)


def _rounded(value: float) -> float | int | None:
    """Return *value* rounded; None for NaN.

    Further digits are noise: a float32 has seven, and times are estimates.
    """
    if isnan(value):
        return None
    return int(value) if float(value).is_integer() else round(value, 3) if value >= 1 else round(value, 6)
