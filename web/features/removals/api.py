"""The deletions of the API: a list of those of the last day, and their undo."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.web.changes.removals import Removal as KeptRemoval
from greenstalk_server.web.changes.removals import RemovalNumber, Removals
from greenstalk_server.web.changes.task_model import BUSY, Task, started_task
from greenstalk_server.web.changes.undo import Undo
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.values import Count, Instant, ResponseModel, instant


class Removal(ResponseModel):
    """A deletion of jobs by an operator."""

    number: RemovalNumber
    title: Annotated[str, Meta(description="What was deleted.")]
    by: Annotated[str, Meta(description="The user; empty if no sign-in is needed.")]
    at: Instant
    until: Annotated[Instant, Meta(description="The time until which it can be undone, unless it is dropped earlier.")]
    jobs: Annotated[Count, Meta(description="Jobs that can be put back.")]
    lost: Annotated[Count, Meta(description="Deleted jobs that cannot be put back.")]
    undone_at: Annotated[Instant | None, Meta(description="When the jobs were put back.")]


class RemovalList(ResponseModel):
    """Deletions, newest first."""

    removals: list[Removal]


class RemovalsEndpoints:
    """Deletions: those of the last day that you made, or all for admins, and their undo."""

    def __init__(self, removals: Removals, undo: Undo) -> None:
        self._removals: Removals = removals
        self._undo: Undo = undo

    @endpoint("GET", "/removals", role=OPERATOR)
    def list_removals(self) -> RemovalList:
        """List the newest 100 deletions of the last day that were made by pages or the API, newest first."""
        return RemovalList(removals=[_model(one) for one in self._removals.newest()])

    @endpoint(
        "POST",
        "/removals/{number}/undo",
        role=OPERATOR,
        status=202,
        errors=BUSY | {404: "There is no such deletion.", 409: "It is undone already, or still running."},
    )
    def undo_removal(self, number: RemovalNumber) -> Task:
        """Put the jobs of a deletion back, as a task: with their ids, priorities, delays, tags and states.

        A deletion is undone once. `refused` lists the jobs that cannot come back: another job has the id, the
        idempotency key or the unique body, or a limit or a cap is reached.
        """
        return started_task(self._undo.start(number))


def _model(one: KeptRemoval) -> Removal:
    return Removal(
        number=one.number,
        title=one.title,
        by=one.by,
        at=instant(one.at),
        until=instant(one.until),
        jobs=one.jobs,
        lost=one.lost,
        undone_at=instant(one.undone_at) if one.undone_at else None,
    )
