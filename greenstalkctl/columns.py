"""Columns of the tube tables, by the names that `tubes --sort` and `top --sort` share."""

from __future__ import annotations

from typing import Final

from greenstalkctl.table import Column

TUBE: Final = "tube"
COLUMNS_BY_RANK: Final = (
    TUBE,
    "ready",
    "buried",
    "reserved",
    "delayed",
    "waiting",
    "puts/s",
    "deletes/s",
    "oldest",
    "pause-left",
    "urgent",
    "total",
)
"""Column names, the most important first; a narrow terminal shows only the first of them."""


def column(name: str, title: str = "") -> Column:
    """Return the column *name*, with *title* as its heading if given."""
    return Column(title or name.replace("-", " "), COLUMNS_BY_RANK.index(name), "name" if name == TUBE else "figure")
