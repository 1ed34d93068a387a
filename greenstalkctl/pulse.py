"""The tubes at one moment, and how fast they change from one moment to the next."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Any

from greenstalkctl.queue import Queue, Stats


@dataclass(frozen=True, slots=True)
class Look:
    """All figures at one moment; `time` is monotonic seconds."""

    time: float
    server: Stats
    tubes: dict[str, Stats]


def look(queue: Queue) -> Look:
    """Ask for all figures."""
    stats = queue.stats()
    tubes = {str(figures["name"]): figures for figures in queue.figures()}
    return Look(monotonic(), stats, tubes)


def rows(before: Look, now: Look) -> list[dict[str, Any]]:
    """One row for each tube there is now: its counts, and puts and deletes per second since *before*."""
    return [_row(name, before.tubes.get(name, {}), stats, now.time - before.time) for name, stats in now.tubes.items()]


def _row(name: str, before: Stats, now: Stats, seconds: float) -> dict[str, Any]:
    """`oldest`, the age of the oldest ready job, is known by the API alone."""
    row = {
        "tube": name,
        "ready": now["current-jobs-ready"],
        "reserved": now["current-jobs-reserved"],
        "delayed": now["current-jobs-delayed"],
        "buried": now["current-jobs-buried"],
        "waiting": now["current-waiting"],
        "puts_per_second": _rate(before, now, "total-jobs", seconds),
        "deletes_per_second": _rate(before, now, "cmd-delete", seconds),
        "pause_left": now["pause-time-left"],
    }
    return row | ({"oldest": now["oldest-ready-age"]} if "oldest-ready-age" in now else {})


def _rate(before: Stats, now: Stats, key: str, seconds: float) -> float:
    """A tube that is new has begun at nothing; one that was gone between has begun anew."""
    grown = int(now[key]) - int(before.get(key, 0))
    return round(max(grown, 0) / max(seconds, 1e-9), 1)
