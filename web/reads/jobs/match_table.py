"""The table of the jobs that a search or a bulk change matches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, STATE_NAMES, Job
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.reads.jobs.job_list import (
    AGE,
    CLASS_COLUMN,
    PRI,
    RESERVES,
    SIZE,
    JobColumn,
    body_preview,
    error_preview,
    field_column,
    has_classes,
    job_row,
)
from greenstalk_server.web.reads.jobs.json_fields import Path

TUBE: Final = JobColumn("Tube", "tube", "The tube of the job", lambda _, job, now: job.tube.name.decode(), order="tube")
STATE: Final = JobColumn(
    "State", "state", "The state of the job", lambda _, job, now: STATE_NAMES[job.state], order="state"
)
COLUMNS: Final = (TUBE, STATE, PRI, AGE, RESERVES, SIZE)

BODY: Final = JobColumn(
    "Error or body", "body", "The error of a buried job or dead letter, else the first bytes of the body",
    lambda _, job, now: _error_or_body(job), is_long=True,
)  # fmt: skip
"""The last column, for principals who may see bodies."""


def visible_columns(has_class: bool = False, paths: Iterable[Path] = ()) -> tuple[JobColumn, ...]:
    """Return the columns that the principal may see, with the fields *paths* of bodies.

    has_class       include the class of the job (see list_has_classes).
    """
    if not principal().sees_bodies:
        return COLUMNS
    return (*COLUMNS, *([CLASS_COLUMN] if has_class else []), *map(field_column, paths), BODY)


def list_has_classes(broker: Broker, ids: Iterable[int]) -> bool:
    """Return whether one of the first visible jobs *ids* has a class that the principal may see."""
    found = (broker.jobs.get(id) for id in ids)
    return has_classes(job for job in found if job is not None and principal().sees(job.tube.name))


def match_rows(broker: Broker, ids: Iterable[int], now: int, columns: Iterable[JobColumn]) -> list[list[str]]:
    """Return a row for each of the jobs *ids* that exists and is visible: the id, then the *columns*. May switch."""
    sees, pace = principal().sees, Pace()
    jobs = (broker.jobs.get(id) for id in ids)  # looked up one by one, since each row may switch
    return [job_row(job, columns, now, pace) for job in jobs if job is not None and sees(job.tube.name)]


def _error_or_body(job: Job) -> str:
    return error_preview(job) if job.state == BURIED or job.dead_letter else body_preview(job)
