"""The table of the jobs that a search or a bulk change matches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, STATE_NAMES, Job
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.reads.jobs.job_list import body_preview, error_preview, field_cell
from greenstalk_server.web.reads.jobs.json_fields import Path


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of matches, after the id; *key* is its CSS class.

    is_long         a cell may be cut at its end, so it shows its whole text on hover.
    """

    label: str
    key: str
    text: Callable[[Job, int], str]
    is_long: bool = False


COLUMNS: Final = (
    Column("Tube", "tube", lambda job, _: job.tube.name.decode()),
    Column("State", "state", lambda job, _: STATE_NAMES[job.state]),
    Column("Priority", "pri", lambda job, _: str(job.pri)),
    Column("Age", "age", lambda job, now: text.duration((now - job.created_at) // 1_000_000_000)),
    Column("Reserves", "reserves", lambda job, _: text.number(job.reserves)),
    Column("Bytes", "size", lambda job, _: text.number(job.size)),
)

BODY: Final = Column("Error or body", "body", lambda job, _: _error_or_body(job), is_long=True)
"""The last column, for principals who may see bodies: the error of a buried job or dead letter, else the body."""


def visible_columns(paths: Iterable[Path] = ()) -> tuple[Column, ...]:
    """Return the columns that the principal may see, with the fields *paths* of bodies."""
    return (*COLUMNS, *map(_field_column, paths), BODY) if principal().sees_bodies else COLUMNS


def match_rows(broker: Broker, ids: list[int], now: int, columns: Iterable[Column]) -> list[list[str]]:
    """Return a row for each of the jobs *ids* that exists and is visible: the id, then the *columns*. May switch."""
    sees, pace, rows = principal().sees, Pace(), list[list[str]]()
    for id in ids:
        job = broker.jobs.get(id)
        if job is not None and sees(job.tube.name):
            rows.append([str(id)])
            for column in columns:
                rows[-1].append(column.text(job, now))
                pace.yield_if_due()  # a field of a body may take several ms
    return rows


def _field_column(path: Path) -> Column:
    return Column(".".join(path), "json", lambda job, _: field_cell(job, path), is_long=True)


def _error_or_body(job: Job) -> str:
    return error_preview(job) if job.state == BURIED or job.dead_letter else body_preview(job)
