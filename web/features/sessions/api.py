"""API endpoints of sessions: the signed-in users of the dashboard."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from greenstalk_server.config.tables.roles import ADMIN
from greenstalk_server.web.features.sessions.sessions import (
    MAX_FILTER_LENGTH,
    Session,
    SessionChanges,
    SessionNumber,
    matching_sessions,
    require_admin_view,
    session_model,
)
from greenstalk_server.web.framework.api.cursors import DEFAULT_LIMIT, Limit
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.values import Count, RequestModel, ResponseModel


class SessionList(ResponseModel):
    """The sessions, most recently used first."""

    total: Annotated[Count, Meta(description="The number of sessions that match.")]
    sessions: list[Session]


class SessionsEnded(ResponseModel):
    """The number of ended sessions."""

    sessions: Count


class ListSessionsRequest(RequestModel):
    """Selects sessions."""

    q: Annotated[
        str,
        Meta(max_length=MAX_FILTER_LENGTH, description="Only sessions with this text in the name, role or address."),
    ] = ""
    limit: Limit = DEFAULT_LIMIT


FOR_ADMINS: Final = {403: "Only admins may see and end sessions."}


class SessionsEndpoints:
    """Sessions: browsers that are signed in on the dashboard.

    A program that sends a password or a token with each request has no session.
    """

    def __init__(self, changes: SessionChanges) -> None:
        self._changes: SessionChanges = changes

    @endpoint("GET", "/sessions", errors=FOR_ADMINS)
    def list_sessions(self, query: ListSessionsRequest) -> SessionList:
        """List the sessions."""
        require_admin_view()
        found = matching_sessions(self._changes.sessions, query.q.strip())
        return SessionList(total=len(found), sessions=[session_model(session) for session in found[: query.limit]])

    @endpoint("DELETE", "/sessions/{number}", role=ADMIN, status=204, errors={404: "The session does not exist."})
    def end_session(self, number: SessionNumber) -> None:
        """End a session: its user must sign in again. Its streams and tasks end."""
        self._changes.end_session(number)

    @endpoint("DELETE", "/sessions", role=ADMIN)
    def end_sessions(self) -> SessionsEnded:
        """End all sessions except the session of the request."""
        return SessionsEnded(sessions=self._changes.end_others())
