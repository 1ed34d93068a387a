"""The sign-in page, the sign-out, and the list of sessions for admins.

The guard accepts requests for the sign-in page and the sign-out without credentials, but checks that a page of this
dashboard sent the form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from flask import Flask, g, make_response, redirect, render_template, request, url_for
from werkzeug.exceptions import HTTPException, ServiceUnavailable, TooManyRequests
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.roles import ADMIN, VIEWER
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.auth.accounts import Account
from greenstalk_server.web.auth.cookies import SESSION, delete_cookie, read_cookie, set_cookie
from greenstalk_server.web.auth.guard import MAX_NAME_LENGTH, Guard
from greenstalk_server.web.auth.sessions import Session, Sessions
from greenstalk_server.web.features.sessions.sessions import (
    MAX_FILTER_LENGTH,
    SessionChanges,
    matching_sessions,
    require_admin_view,
    session_model,
)
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import Principal, principal
from greenstalk_server.web.framework.api.values import instant
from greenstalk_server.web.framework.fields import Fields, own_path
from greenstalk_server.web.framework.rights import open_to
from greenstalk_server.web.store.audit import Audit

MAX_ROWS: Final = 200
"""Maximum sessions on the page: the most recently used ones."""

MAX_PASSWORD_LENGTH: Final = 1000


class SignIn:
    """The sign-in page and the sessions of one dashboard.

    provider        label of the identity provider on the sign-in page; empty without one.
    sign_out_url    returns the address at the provider that ends a session there too; empty if there is none.
    """

    def __init__(self, guard: Guard, changes: SessionChanges, audit: Audit, clock: Clock) -> None:
        self.sessions: Sessions = guard.sessions
        self._changes: SessionChanges = changes
        self._guard: Guard = guard
        self._audit: Audit = audit
        self._clock: Clock = clock
        self.provider: str = ""
        self.sign_out_url: Callable[[Session], str] = lambda _: ""

    def init_app(self, app: Flask) -> None:
        """Add the pages and forms to *app*."""
        app.add_url_rule("/login", "login", self.form)
        app.add_url_rule("/login", "sign_in", self.sign_in, methods=["POST"])
        app.add_url_rule("/logout", "logout", self.sign_out, methods=["POST"])
        app.add_url_rule("/sessions", "sessions", self.page)
        app.add_url_rule("/sessions/end", "sessions_end", self.end, methods=["POST"])

    # Sign in and out

    def form(self) -> str | Response:
        """Serve `/login?next=`: the form; a signed-in principal is redirected to the path `next`."""
        where = next_path(request.args)
        if not self._guard.needs_login or self._guard.current_session() is not None:
            return redirect(where, 303)
        return self._page(where, has_ended=request.args.get("ended") == "1", is_out=request.args.get("out") == "1")

    @open_to(VIEWER)
    def sign_in(self) -> Response:
        """Form `name`, `password`, `next`: start a session, and redirect to the path `next`. May switch."""
        form = request.form
        where, name = next_path(form), form.get("name", "").strip()[:MAX_NAME_LENGTH]
        if not self._guard.needs_login:
            return redirect(where, 303)
        try:
            account = self._guard.sign_in(name, form.get("password", ""))
        except (ServiceUnavailable, TooManyRequests) as error:
            return self._refused(where, name, error.description or "", error)
        if account is None:
            what = "The name or the password is wrong." if self._guard.accounts.need_name else "The password is wrong."
            return self._refused(where, name, what)
        return self.start(account, where)

    def start(self, account: Account, where: str, id_token: str = "") -> Response:
        """Start a session of *account*, and return a redirect to the path *where*. May switch.

        This ends the previous session of the browser.
        """
        before = self._guard.current_session()
        address, browser = principal().address, request.headers.get("User-Agent", "")
        token, session = self.sessions.create(account, address, browser, id_token)
        if before is not None:
            self.sessions.end(before)
        g.principal = self._guard.principal_of(session)
        self._audit.note("session/sign-in", role=principal().role, method=account.source)
        response = redirect(where, 303)
        set_cookie(response, SESSION, token, self.sessions.lifetime // SECOND)
        return response

    @open_to(VIEWER)
    def sign_out(self) -> Response:
        """End the session, and redirect to the sign-in page. Does not switch."""
        session, at_provider = self._guard.current_session(), ""
        if session is not None:
            g.principal = self._guard.principal_of(session)
            at_provider = self.sign_out_url(session)
            self.sessions.end(session)
            self._audit.note("session/sign-out")
        # A form may not lead to another site (form-action of the Content-Security-Policy), so the sign-in page links to
        # the provider.
        response = redirect(url_for("login", out="1"), 303) if not at_provider else self._signed_out(at_provider)
        if read_cookie(SESSION):
            delete_cookie(response, SESSION)
        return response

    def _signed_out(self, at_provider: str) -> Response:
        return make_response(self._page(url_for("overview"), is_out=True, at_provider=at_provider))

    def refused(self, where: str, error: str, cause: HTTPException | None = None, at_provider: str = "") -> Response:
        """Return the sign-in page with *error*, after a failed sign-in at the provider.

        *at_provider*: the address at the provider that ends the session there; empty for no link.
        """
        page = self._page(where, provider_error=error, at_provider=at_provider)
        response = make_response(page, 403 if cause is None else cause.code)
        return _with_retry_after(response, cause)

    def unverified(self, name: str) -> Principal:
        """Return a principal without a role, who is signed in as *name* at the provider."""
        return replace(principal(), name=name)

    def _refused(self, where: str, name: str, error: str, cause: HTTPException | None = None) -> Response:
        response = make_response(self._page(where, name, error), 401 if cause is None else cause.code)
        return _with_retry_after(response, cause)

    def _page(
        self,
        where: str,
        name: str = "",
        error: str = "",
        *,
        has_ended: bool = False,
        is_out: bool = False,
        at_provider: str = "",
        provider_error: str = "",
    ) -> str:
        accounts = self._guard.accounts
        return render_template(
            "login.html",
            next=where,
            name=name,
            error=error,
            has_ended=has_ended,
            is_out=is_out,
            at_provider=at_provider,
            provider_error=provider_error,
            has_form=accounts.have_passwords,
            needs_name=accounts.need_name,
            provider=self.provider,
            max_name=MAX_NAME_LENGTH,
            max_password=MAX_PASSWORD_LENGTH,
        )

    # Sessions

    def page(self) -> str:
        """Serve `/sessions?q=`: the sessions whose name, role or address contains `q`, for admins."""
        require_admin_view()
        query = request.args.get("q", "").strip()[:MAX_FILTER_LENGTH]
        own, found = self._guard.current_session(), matching_sessions(self.sessions, query)
        return render_template(
            "sessions.html",
            sessions=[session_model(session) for session in found[:MAX_ROWS]],
            own=own.number if own is not None else "",
            now=instant(self._clock()),
            summary=_summary(len(found)),
            query=query,
            longest_filter=MAX_FILTER_LENGTH,
            last_error=self.sessions.store.last_error,
        )

    @open_to(ADMIN)
    def end(self) -> Response:
        """Serve the form: end the session `number`, or with `all` all but the current session. Does not switch."""
        if request.form.get("all") == "1":
            self._changes.end_others()
        else:
            self._changes.end_session(request.form.get("number", ""))
        if not self._guard.needs_login or self._guard.current_session() is not None or not principal().has_session:
            return redirect(url_for("sessions", notice="ended-session", n=0), 303)
        return redirect(url_for("login"), 303)


def _with_retry_after(response: Response, cause: HTTPException | None) -> Response:
    if (retry_after := getattr(cause, "retry_after", None)) is not None:
        response.headers["Retry-After"] = str(retry_after)
    return response


def next_path(given: Fields) -> str:
    """Return the path in the field `next` if it belongs to this dashboard, else the path of the overview."""
    home = url_for("overview")
    where = own_path(given, "next", home)
    return home if where.startswith(tuple(url_for(name) for name in ("login", "logout"))) else where


def _summary(found: int) -> str:
    shown = f"first {MAX_ROWS} of " if found > MAX_ROWS else ""
    return f"{shown}{text.counted(found, 'session')}, last used first"
