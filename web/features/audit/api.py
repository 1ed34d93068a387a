"""The audit log, as the API returns it."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from greenstalk_server.web.features.audit.entries import (
    END_OF_TIME,
    MAX_CURSOR,
    MAX_FILTER_LENGTH,
    Filter,
    find_entries,
    require_audit_access,
)
from greenstalk_server.web.framework.api.cursors import DEFAULT_LIMIT, Cursor, Limit, NextCursor, dump, load
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.values import (
    Count,
    Instant,
    JobId,
    RequestModel,
    ResponseModel,
    checked_id,
    instant,
    model_of,
    nanoseconds,
)
from greenstalk_server.web.store.audit import Audit


class AuditEntry(ResponseModel):
    """A change, or a refused request."""

    number: Annotated[Count, Meta(description="Increases by one per entry, across restarts.")]
    at: Instant
    who: Annotated[str, Meta(description="The user name, or the kind of token.")]
    address: Annotated[str, Meta(description="The address of the client.")]
    what: Annotated[str, Meta(description="The operation.", examples=["tube/pause"])]
    details: dict[str, str | int]


class AuditList(ResponseModel):
    """A page of the audit log, newest first."""

    entries: list[AuditEntry]
    next_cursor: NextCursor
    trouble: Annotated[str, Meta(description="Reason why some entries are not on disk; empty if all are.")]


class ListAuditRequest(RequestModel):
    """Selects entries as the dashboard's audit page does, and a page of the list."""

    who: Annotated[
        str, Meta(max_length=MAX_FILTER_LENGTH, description="Only entries with this text in the name; case is ignored.")
    ] = ""
    what: Annotated[
        str,
        Meta(
            max_length=MAX_FILTER_LENGTH,
            description="Only entries with this text in the operation, or in its effect on jobs: `delete` finds"
            " `tube/clear`.",
        ),
    ] = ""
    tube: Annotated[
        str,
        Meta(
            max_length=MAX_FILTER_LENGTH,
            description="Only entries with this text in the name of the tube, or of the tube that jobs were moved to.",
        ),
    ] = ""
    id: Annotated[JobId | UnsetType, Meta(description="Only entries about this job, or about a copy of it.")] = UNSET
    since: Annotated[Instant | UnsetType, Meta(description="Only entries at this time or later.")] = UNSET
    until: Annotated[Instant | UnsetType, Meta(description="Only entries before this time.")] = UNSET
    cursor: Cursor | UnsetType = UNSET
    limit: Limit = DEFAULT_LIMIT


class _AuditPlace(Struct, array_like=True):
    """The number of the last entry of the previous page."""

    before: Annotated[int, Meta(ge=1, le=MAX_CURSOR)]


class AuditEndpoints:
    """The audit log: changes, and refused requests."""

    def __init__(self, audit: Audit) -> None:
        self._audit: Audit = audit

    @endpoint("GET", "/audit", errors={403: "Only admins may read the audit log."})
    def list_audit(self, query: ListAuditRequest) -> AuditList:
        """List the changes and the refused requests, newest first."""
        require_audit_access()
        before = load(query.cursor, _AuditPlace).before if query.cursor is not UNSET else 0
        wanted = Filter(
            who=query.who.strip(),
            what=query.what.strip(),
            tube=query.tube.strip(),
            id=0 if query.id is UNSET else checked_id("id", query.id),
            since=0 if query.since is UNSET else nanoseconds(query.since),
            until=END_OF_TIME if query.until is UNSET else nanoseconds(query.until),
        )
        entries, following, _ = find_entries(self._audit, wanted, before, query.limit)
        return AuditList(
            entries=[model_of(AuditEntry, one, at=instant(one.at)) for one in entries],
            next_cursor=dump(_AuditPlace(following)) if following else None,
            trouble=self._audit.store.last_error,
        )
