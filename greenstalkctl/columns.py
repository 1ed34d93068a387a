"""Columns of the tables of tubes, by the names that `tubes --sort` and `top --sort` have in common."""

from __future__ import annotations

from typing import Final

from greenstalkctl.table import Column

TUBE: Final = "tube"
BY_IMPORTANCE: Final = (
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
"""A narrow terminal has the first of these."""


def column(name: str, title: str = "") -> Column:
    """Return the column *name*, under *title* if that is another."""
    return Column(title or name.replace("-", " "), BY_IMPORTANCE.index(name), "name" if name == TUBE else "figure")
