"""The sessions of the API: the signed-in users of the dashboard."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from greenstalk_server.config.tables.roles import ADMIN
from greenstalk_server.web.auth.sessions import Session as StoredSession
from greenstalk_server.web.features.sessions.sessions import (
    MAX_FILTER_LENGTH,
    SessionChanges,
    matching_sessions,
    require_admin_view,
)
from greenstalk_server.web.framework.api.cursors import DEFAULT_LIMIT, Limit
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.values import Count, Instant, RequestModel, ResponseModel, instant

SessionNumber = Annotated[str, Meta(max_length=64, description="The number of a session.", examples=["3f9c02d81b7a"])]


class Session(ResponseModel):
    """A browser that is signed in."""

    number: SessionNumber
    name: Annotated[str, Meta(description="The user name.")]
    roles: Annotated[list[str], Meta(description="The names of the roles.", examples=[["admin"]])]
    method: Annotated[str, Meta(description="The kind of credential.", examples=["admin password", "user"])]
    address: Annotated[str, Meta(description="The address from which the user signed in.")]
    browser: Annotated[str, Meta(description="The User-Agent header of the browser.")]
    signed_in_at: Instant
    used_at: Annotated[Instant, Meta(description="The last use, to the minute.")]


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


class Sessions:
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
        return SessionList(total=len(found), sessions=[_model(session) for session in found[: query.limit]])

    @endpoint("DELETE", "/sessions/{number}", role=ADMIN, status=204, errors={404: "The session does not exist."})
    def end_session(self, number: SessionNumber) -> None:
        """End a session: its user must sign in again. Its streams and tasks end."""
        self._changes.end_session(number)

    @endpoint("DELETE", "/sessions", role=ADMIN)
    def end_sessions(self) -> SessionsEnded:
        """End all sessions except that of the request."""
        return SessionsEnded(sessions=self._changes.end_others())


def _model(session: StoredSession) -> Session:
    return Session(
        number=session.number,
        name=session.account.name,
        roles=list(session.account.roles),
        method=session.account.source,
        address=session.address,
        browser=session.browser,
        signed_in_at=instant(session.created_at),
        used_at=instant(session.seen_at),
    )
