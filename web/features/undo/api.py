"""API endpoints of changes: the list of the last day's changes, and their undo."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.web.changes.saved_changes import ChangeNumber, SavedChange, SavedChanges
from greenstalk_server.web.changes.task_model import BUSY, Task, started_task
from greenstalk_server.web.changes.undo import Undo
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.values import Count, Instant, ResponseModel, instant


class Change(ResponseModel):
    """A change or a deletion of jobs by an operator."""

    number: ChangeNumber
    title: Annotated[str, Meta(description="The change, in words.")]
    by: Annotated[str, Meta(description="The user; empty if no sign-in is needed.")]
    at: Instant
    until: Annotated[Instant, Meta(description="The time until which it can be undone, unless it is dropped earlier.")]
    is_deletion: Annotated[bool, Meta(description="The jobs were deleted.")]
    jobs: Annotated[Count, Meta(description="Jobs that can be put back.")]
    lost: Annotated[Count, Meta(description="Jobs that cannot be put back, because their bodies could not be read.")]
    undone_at: Annotated[Instant | None, Meta(description="When the jobs were put back.")]


class ChangeList(ResponseModel):
    """Changes, newest first."""

    changes: list[Change]


class ChangesEndpoints:
    """Your changes of jobs in the last day (for admins, the changes of all users), and their undo."""

    def __init__(self, saved_changes: SavedChanges, undo: Undo) -> None:
        self._saved_changes: SavedChanges = saved_changes
        self._undo: Undo = undo

    @endpoint("GET", "/changes", role=OPERATOR)
    def list_changes(self) -> ChangeList:
        """List the newest 100 changes of the last day that can be undone, made by pages or the API, newest first."""
        return ChangeList(changes=[_model(one) for one in self._saved_changes.newest()])

    @endpoint(
        "POST",
        "/changes/{number}/undo",
        role=OPERATOR,
        status=202,
        errors=BUSY | {404: "There is no such change.", 409: "It is undone already, or still running."},
    )
    def undo_change(self, number: ChangeNumber) -> Task:
        """Put the jobs of a change back as they were before, as a task: deleted jobs with their former ids.

        A change can be undone only once. `refused` lists the jobs that are not put back, with the reason. A changed job
        is not put back if it has been deleted, reserved or changed since; a deleted job is not put back if a job with
        its id exists.
        Neither is put back if another job has the idempotency key or the unique body, or if a limit or a cap of the
        former tube is reached.
        """
        return started_task(self._undo.start(number))


def _model(one: SavedChange) -> Change:
    return Change(
        number=one.number,
        title=one.title,
        by=one.by,
        at=instant(one.at),
        until=instant(one.until),
        is_deletion=one.is_deletion,
        jobs=one.jobs,
        lost=one.lost,
        undone_at=instant(one.undone_at) if one.undone_at else None,
    )
