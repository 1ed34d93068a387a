"""The table of the jobs that a search or a bulk change matches."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, STATE_NAMES, Job
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.shards import Shards
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
    suggested_paths,
)
from greenstalk_server.web.reads.jobs.json_fields import MAX_SUGGESTED, Path
from greenstalk_server.web.reads.jobs.places import LookedUp, Places, look_up, moved_from

ROWS: Final = "jobs.rows"
CONTENTS: Final = "jobs.contents"
"""Questions to the shards of the jobs."""

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

    has_class       include the class of the job (see MatchTable.contents).
    """
    if not principal().sees_bodies:
        return COLUMNS
    return (*COLUMNS, *([CLASS_COLUMN] if has_class else []), *map(field_column, paths), BODY)


class MatchTable:
    """Reads the rows of jobs of all shards."""

    def __init__(self, broker: Broker, clock: Clock, shards: Shards) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._shards: Shards = shards
        shards.answer(ROWS, self._rows_here)
        shards.answer(CONTENTS, self._contents_here)

    def contents(self, places: Places) -> tuple[bool, list[str]]:
        """Return whether one of the first visible jobs of *places* has a class, and paths of fields in their bodies.

        If bodies are hidden from the principal, there are none. Switches.
        """
        ids = dict[int, dict[str, list[int]]]()
        for id, shard in places.items():
            ids.setdefault(shard, {"ids": []})["ids"].append(id)
        found = self._shards.ask_each(CONTENTS, ids).values()
        paths = dict.fromkeys(chain.from_iterable(paths for _, paths in found))
        return any(has_class for has_class, _ in found), list(paths)[:MAX_SUGGESTED]

    def rows(self, places: Places, has_class: bool, paths: Iterable[Path] = ()) -> list[list[str]]:
        """Return a row for each job of *places* that exists and is visible: the id, then `visible_columns`. Switches.

        Jobs of shards that cannot be reached are left out.
        """
        found = look_up(self._shards, ROWS, places, has_class=has_class, paths=list(paths)).found
        return [found[id] for id in places if id in found]

    def _rows_here(self, ids: list[int], has_class: bool, paths: list[Any]) -> LookedUp:
        sees, pace, jobs, now = principal().sees, Pace(), self._broker.jobs, self._clock()
        columns, found = visible_columns(has_class, map(tuple, paths)), dict[int, list[str]]()
        for id in ids:
            job = jobs.get(id)  # looked up one by one, since each row may switch
            if job is not None and sees(job.tube.name):
                found[id] = job_row(job, columns, now, pace)
        return LookedUp(found, moved_from(self._broker, self._shards, ids))

    def _contents_here(self, ids: list[int]) -> tuple[bool, list[str]]:
        """Return whether a job has a class, and the paths of fields in the bodies, of the first visible jobs."""
        sees, found = principal().sees, (self._broker.jobs.get(id) for id in ids)
        visible = [job for job in found if job is not None and sees(job.tube.name)]
        return has_classes(visible), suggested_paths(self._broker, [job.id for job in visible])


def _error_or_body(job: Job) -> str:
    return error_preview(job) if job.state == BURIED or job.dead_letter else body_preview(job)
