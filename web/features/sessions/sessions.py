"""The sessions of signed-in users, as admins see and end them."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta
from werkzeug.exceptions import Forbidden, NotFound

from greenstalk_server.web.auth.guard import Guard
from greenstalk_server.web.auth.sessions import Sessions, StoredSession
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.api.values import Instant, ResponseModel, instant, model_of
from greenstalk_server.web.store.audit import Audit

MAX_FILTER_LENGTH: Final = 200

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


class SessionChanges:
    """Ends sessions, for admins."""

    def __init__(self, guard: Guard, audit: Audit) -> None:
        self.sessions: Sessions = guard.sessions
        self._guard: Guard = guard
        self._audit: Audit = audit

    def end_session(self, number: str) -> None:
        """End the session *number*; raise NotFound if it does not exist."""
        session = self.sessions.numbered(number)
        if session is None:
            raise NotFound("There is no such session. It may have ended.")
        self.sessions.end(session)
        self._audit.note("session/end", user=session.name)

    def end_others(self) -> int:
        """End every session except the session of the request; return the number of ended sessions."""
        own = self._guard.current_session()
        others = [session for session in self.sessions.all() if session is not own]
        for session in others:
            self.sessions.end(session)
        self._audit.note("session/end-all", sessions=len(others))
        return len(others)


def require_admin_view() -> None:
    """Raise Forbidden unless the principal may see the sessions."""
    if not principal().sees_audit:
        raise Forbidden("Only admins can see the sessions.")


def matching_sessions(sessions: Sessions, query: str) -> list[StoredSession]:
    """Return the sessions whose name, roles or address contain *query*, ignoring case, the last used first."""
    wanted = query.lower()
    return [
        session
        for session in sessions.all()
        if wanted in f"{session.name} {' '.join(session.roles)} {session.address}".lower()
    ]


def session_model(session: StoredSession) -> Session:
    """Return *session* as the page and the API show it."""
    return model_of(
        Session,
        session,
        roles=list(session.roles),
        method=session.source,
        signed_in_at=instant(session.created_at),
        used_at=instant(session.seen_at),
    )
