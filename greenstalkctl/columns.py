"""Columns of the tube tables, by the names that `tubes --sort` and `top --sort` share."""

from __future__ import annotations

from typing import Final, NamedTuple

from greenstalkctl.table import Column

TUBE: Final = "tube"


class TubeColumn(NamedTuple):
    """The statistic that a column shows, and its rank: a narrow terminal shows the lowest ranks only."""

    statistic: str
    rank: int


COLUMNS: Final = {
    TUBE: TubeColumn("name", 0),
    "ready": TubeColumn("current-jobs-ready", 1),
    "urgent": TubeColumn("current-jobs-urgent", 10),
    "reserved": TubeColumn("current-jobs-reserved", 3),
    "delayed": TubeColumn("current-jobs-delayed", 4),
    "buried": TubeColumn("current-jobs-buried", 2),
    "waiting": TubeColumn("current-waiting", 5),
    "total": TubeColumn("total-jobs", 11),
    "pause-left": TubeColumn("pause-time-left", 9),
    "oldest": TubeColumn("oldest-ready-age", 8),
    "puts/s": TubeColumn("puts-per-second", 6),
    "deletes/s": TubeColumn("deletes-per-second", 7),
}
OF_API: Final = ("oldest", "puts/s", "deletes/s")
"""Columns whose statistics the protocol does not have."""


def column(name: str, title: str = "") -> Column:
    """Return the column *name*, with *title* as its heading if given."""
    return Column(title or name.replace("-", " "), COLUMNS[name].rank, "name" if name == TUBE else "figure")
