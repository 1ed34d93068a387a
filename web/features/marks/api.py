"""API endpoints of marks: texts at points in time, which charts show."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.features.marks.changes import VisibleMarks, add_mark
from greenstalk_server.web.features.marks.marks import MAX_FUTURE, MAX_PAST, MAX_TEXT, Mark, Marks
from greenstalk_server.web.framework.api.cursors import DEFAULT_LIMIT, Limit
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.api.values import (
    Instant,
    RequestModel,
    ResponseModel,
    TubeName,
    nanoseconds,
)
from greenstalk_server.web.store.audit import Audit


class MarkList(ResponseModel):
    """Marks, oldest first."""

    marks: list[Mark]


class AddMarkRequest(RequestModel):
    """A mark to add."""

    text: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT, examples=["deployed 4.2"])]
    tube: Annotated[TubeName | UnsetType, Meta(description="The tube; without it, the whole server.")] = UNSET
    at: Annotated[Instant | UnsetType, Meta(description="Within the last 90 days; by default now.")] = UNSET


class ListMarksRequest(RequestModel):
    """Selects marks."""

    tube: Annotated[
        TubeName | UnsetType, Meta(description="Only marks of this tube and of the whole server; by default all.")
    ] = UNSET
    since: Annotated[Instant | UnsetType, Meta(description="Only marks at this time or later.")] = UNSET
    until: Annotated[Instant | UnsetType, Meta(description="Only marks at this time or earlier.")] = UNSET
    limit: Limit = DEFAULT_LIMIT


class MarksEndpoints:
    """Marks: deploys and other events that charts show as vertical lines."""

    def __init__(self, marks: Marks, visible: VisibleMarks, clock: Clock, audit: Audit) -> None:
        self._marks: Marks = marks
        self._visible: VisibleMarks = visible
        self._clock: Clock = clock
        self._audit: Audit = audit

    @endpoint("GET", "/marks")
    def list_marks(self, query: ListMarksRequest) -> MarkList:
        """List the marks, oldest first; if there are more than `limit`, the latest."""
        since = 0 if query.since is UNSET else nanoseconds(query.since)
        until = self._clock() + MAX_FUTURE if query.until is UNSET else nanoseconds(query.until)
        marks = self._visible.find(None if query.tube is UNSET else query.tube, since, until)
        return MarkList(marks=marks[-query.limit :])

    @endpoint(
        "POST",
        "/marks",
        role=OPERATOR,
        status=201,
        errors={403: "You may not add marks to the tube or to the whole server."},
    )
    def add_mark(self, body: AddMarkRequest) -> Mark:
        """Add a mark, such as a deploy.

        The server keeps the last 500 marks of users and programs, and the last 500 marks of its own.
        """
        now = self._clock()
        at = now if body.at is UNSET else nanoseconds(body.at)
        if not now - MAX_PAST <= at <= now + MAX_FUTURE:
            refuse("at", "must be within the last 90 days")
        text = " ".join(body.text.split())
        if not text:
            refuse("text", "must have a character that is not a space")
        return add_mark(self._marks, self._audit, text, "" if body.tube is UNSET else body.tube, at)
