"""Snapshots of the server's statistics, and the rates between two of them."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from greenstalkctl.api import Api
from greenstalkctl.columns import COLUMNS
from greenstalkctl.queue import Stats
from greenstalkctl.server import Server

COUNTED: Final = ("tube", "ready", "reserved", "delayed", "buried", "waiting")
"""The columns whose statistics are in a row under the name of the column."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The statistics of the server and of all tubes at one time; `time` is in monotonic seconds."""

    time: float
    server: Stats
    tubes: dict[str, Stats]


def take_snapshot(queue: Server | Api) -> Snapshot:
    """Request all statistics."""
    stats = queue.stats()
    tubes = {str(tube["name"]): tube for tube in queue.all_tube_stats()}
    return Snapshot(monotonic(), stats, tubes)


def rows(before: Snapshot, now: Snapshot) -> list[dict[str, Any]]:
    """Return one row for each tube of *now*: its counts, and its puts and deletes per second since *before*."""
    return [_row(before.tubes.get(name, {}), stats, now.time - before.time) for name, stats in now.tubes.items()]


def _row(before: Stats, now: Stats, seconds: float) -> dict[str, Any]:
    """Return the row of a tube. Only Greenstalk Server has `oldest`, the age of the oldest ready job in seconds."""
    row = {name: now[COLUMNS[name].statistic] for name in COUNTED}
    row |= {
        "puts_per_second": _rate(before, now, "total-jobs", seconds),
        "deletes_per_second": _rate(before, now, "cmd-delete", seconds),
        "pause_left": now["pause-time-left"],
    }
    return row | ({"oldest": now["oldest-ready-age"]} if "oldest-ready-age" in now else {})


def _rate(before: Stats, now: Stats, key: str, seconds: float) -> float:
    """Return the rate of a counter. It starts at 0 in a new tube, and in one deleted and created again."""
    growth = int(now[key]) - int(before.get(key, 0))
    return round(max(growth, 0) / max(seconds, 1e-9), 1)
