"""The pages of a sign-in with OpenID Connect: the redirect to the provider, and the callback."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Flask, g, redirect, request, url_for
from werkzeug.exceptions import BadGateway, HTTPException, ServiceUnavailable
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.roles import Role
from greenstalk_server.web.auth.accounts import OPEN_ID, Account
from greenstalk_server.web.auth.cookies import SIGN_IN, delete_cookie, read_cookie, set_cookie
from greenstalk_server.web.auth.oidc import FLOW_TIME, Flow, OpenIdClient, SignInFailed
from greenstalk_server.web.auth.sessions import Session
from greenstalk_server.web.features.sessions.pages.signin import SignIn, next_path
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.store.audit import Audit

MAX_ID_TOKEN = 8192
"""Maximum characters of a provider's token; a longer one is not kept for the sign-out."""


class OpenIdPages:
    """The pages of the sign-in by *client*."""

    def __init__(self, client: OpenIdClient, sign_in: SignIn, audit: Audit, roles: Mapping[str, Role]) -> None:
        self._client: OpenIdClient = client
        self._sign_in: SignIn = sign_in
        self._audit: Audit = audit
        self._roles: Mapping[str, Role] = roles
        sign_in.provider = client.provider.label
        sign_in.sign_out_url = self.sign_out_url

    def init_app(self, app: Flask) -> None:
        """Add the pages to *app*."""
        app.add_url_rule("/oidc/start", "oidc_start", self.start)
        app.add_url_rule("/oidc/callback", "oidc_callback", self.callback)

    def start(self) -> Response:
        """Serve `/oidc/start?next=`: redirect to the provider. Switches."""
        flow = self._client.begin(next_path(request.args))
        try:
            where = self._client.authorization_url(flow, _callback())
        except (BadGateway, ServiceUnavailable) as error:
            return self._sign_in.refused(flow.where, error.description or "", error)
        response = redirect(where, 303)
        set_cookie(response, SIGN_IN, flow.cookie, FLOW_TIME)
        return response

    def callback(self) -> Response:
        """Serve `/oidc/callback?code=&state=`, or `error=`: start a session, and redirect to the page. Switches."""
        given, where, error = request.args, url_for("overview"), ""
        cause: HTTPException | None = None
        at_provider = ""
        try:
            flow = self._client.resume(read_cookie(SIGN_IN), given.get("state", ""))
            where = next_path({"next": flow.where})
            response = self._finish(flow, given, where)
        except _NoRole as failed:
            error, at_provider = str(failed), self._client.sign_out_url(failed.id_token, _signed_out())
        except SignInFailed as failed:
            error = str(failed)
        except (BadGateway, ServiceUnavailable) as failure:
            error, cause = failure.description or "", failure
        if error:
            self._audit.note_refusal("login/failed", method=OPEN_ID, why=error)
            response = self._sign_in.refused(where, error, cause, at_provider)
        delete_cookie(response, SIGN_IN)
        return response

    def sign_out_url(self, session: Session) -> str:
        """Return the address at the provider that ends *session* there too; empty if there is none."""
        return self._client.sign_out_url(session.id_token, _signed_out())

    def _finish(self, flow: Flow, given: Mapping[str, str], where: str) -> Response:
        """Return the response of a successful sign-in; raise SignInFailed. Switches."""
        if given.get("error") or not given.get("code"):
            why = " ".join((given.get("error_description") or given.get("error") or "no code")[:200].split())
            raise SignInFailed(f"The provider refused the sign-in: {why}")
        found = self._client.finish(flow, given["code"], _callback(), given.get("iss", ""))
        g.principal = self._sign_in.unverified(found.name)
        roles = tuple(name for name, role in self._roles.items() if found.groups.intersection(role.groups))
        if not roles:
            why = f"You are signed in as {principal().name}, but none of your groups has a role here."
            raise _NoRole(why, found.id_token)
        id_token = found.id_token if len(found.id_token) <= MAX_ID_TOKEN else ""
        return self._sign_in.start(Account(found.name, roles, OPEN_ID), where, id_token)


class _NoRole(SignInFailed):
    """The user has no role. With *id_token* the user can sign out at the provider, to sign in as another user."""

    def __init__(self, message: str, id_token: str) -> None:
        super().__init__(message)
        self.id_token: str = id_token


def _callback() -> str:
    return url_for("oidc_callback", _external=True)


def _signed_out() -> str:
    """Return the address to which the provider returns after a sign-out there."""
    return url_for("login", out="1", _external=True)
