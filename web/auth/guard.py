"""The guard: the checks that every request passes before a view runs, and the headers of every response.

The checks, in this order:

1. The Host is allowed.
2. A request that changes something comes from one of our own pages.
3. A request that changes nothing does not load a subresource, such as an image or a frame, of a page of another site.
4. The principal has a session, or sends the right password.
5. The path is under the prefix.
6. A request that changes something comes from a principal with the role that the endpoint declares
   (web.framework.rights).

The guard does not check rights to tubes. Views, operations and tasks check them with `sees` and `operates` of the
Principal (web.framework.access).

A browser that requests a page with neither a session nor a password is redirected to the sign-in page. Programs get 401
and a challenge for basic auth. Browsers do not get the challenge, so they show no prompt of their own.

For an API request with a bearer token, the token replaces checks 1 to 4, since no browser adds a token to a request.

An API request without a token needs the password or a session, if a password is set. If there are only API tokens, the
request is refused, unless it is for API_DOCUMENT, which is checked like a page. If there are neither passwords nor
API tokens, check 1 applies. Then checks 2 and 3 apply, with one exception to check 2: a change without Sec-Fetch-Site
and Origin, as programs send it, is accepted if an HTML form cannot send it (`_check_same_origin`).
"""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from flask import Flask, Request, Response, abort, current_app, g, redirect, request, url_for
from jinja2 import StrictUndefined
from werkzeug.datastructures import Authorization, WWWAuthenticate
from werkzeug.exceptions import (
    BadHost,
    Forbidden,
    MisdirectedRequest,
    NotFound,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
)
from werkzeug.routing import MapAdapter

from greenstalk_server.config.tables.roles import ADMIN, OPERATOR, VIEWER, united
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.scheduling import yield_to_loop
from greenstalk_server.web.auth.accounts import Account, Accounts, digest
from greenstalk_server.web.auth.cookies import SESSION, read_cookie
from greenstalk_server.web.auth.home_sessions import HomeSessions
from greenstalk_server.web.auth.logins import MAX_FAILURES, FailedLogins
from greenstalk_server.web.auth.proxies import IS_OUTSIDE, Prefix, TrustedProxies
from greenstalk_server.web.auth.sessions import Session, Sessions
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import FORWARDED, NOBODY, Principal, is_api_request, principal
from greenstalk_server.web.framework.assets import static_folder, template_folder
from greenstalk_server.web.framework.bounded_request import MAX_SIGN_IN_FORM, BoundedRequest
from greenstalk_server.web.framework.fields import own_path
from greenstalk_server.web.framework.links import LazyRule
from greenstalk_server.web.framework.page_template import PageTemplate
from greenstalk_server.web.framework.rights import least_role
from greenstalk_server.web.framework.shards import ALONE, Shards
from greenstalk_server.web.options import WebOptions
from greenstalk_server.web.store.audit import Audit
from greenstalk_server.web.store.store import Store

SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: it would turn the Origin of our own forms into `null`, which is refused.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
# No Cross-Origin-Opener-Policy: over plain HTTP on a host name, browsers ignore it and log a warning.

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

OIDC_ENDPOINTS: Final = ("oidc_start", "oidc_callback")
"""Endpoints of the sign-in with OpenID Connect."""

LOGIN: Final = "login"
"""Endpoint of the sign-in page."""

WITHOUT_PASSWORD: Final = frozenset(
    {"static", "theme", "zone", "healthz", "readyz", LOGIN, "sign_in", "logout", *OIDC_ENDPOINTS}
)
"""Endpoints that show nothing about jobs: sign-in and sign-out, files of the sign-in page, and health checks."""

WITHOUT_USE: Final = frozenset({"live", "events", "api_watch", "tube_history_json", "server_history_json"})
"""Endpoints that pages request without a user action. Their requests do not count as use of the session."""

ANY_HOST: Final = frozenset({"healthz", "readyz"})
"""Endpoints that accept every Host, since platforms call them by any name."""

WITHOUT_PREFIX: Final = ANY_HOST | {"metrics"}
"""Endpoints that are also served outside the prefix, where platforms and monitoring expect them."""

FOREIGN_SITES: Final = frozenset({"cross-site", "same-site"})
"""Values of Sec-Fetch-Site for a request that a page of another site caused."""

API_DOCUMENT: Final = "api_document"
"""The endpoint of the OpenAPI document, which shows no data. A principal of an open dashboard needs no token for it."""

FORM_METHODS: Final = frozenset({"POST"})
"""Methods with which an HTML form can send a change."""

REQUESTED_WITH: Final = "X-Requested-With"
NON_FORM_HEADERS: Final = f"“Content-Type: application/json”, or the header “{REQUESTED_WITH}”"
"""Headers that an HTML form cannot send, named in a message."""

TOKEN_NAMES: Final = {ADMIN: "api-token", OPERATOR: "api-operator-token", VIEWER: "api-viewer-token"}
"""Names in the audit log for requests with a token, by role."""

METRICS: Final = "metrics"
"""Name of a principal with the metrics token."""

MAX_NEXT_LENGTH: Final = 4000
"""Maximum characters of the address to which a sign-in returns."""

MAX_NAME_LENGTH: Final = 200
"""Maximum characters of a user name; longer names are cut."""

_host_header: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{1,5})?")

log = logging.getLogger(__name__)


RULES_SLICE: Final = 8
"""Rules that are added to an app between two yields to the event loop."""


class Guarded(Flask):
    """A Flask app with the templates of this package, behind the proxies of the options.

    Its routing accepts every Host; the guard checks the Host instead.

    Adding one of the 150 rules takes 0.2 ms. So the app yields to the event loop in between: a server that takes over a
    shard serves the clients of others.
    """

    request_class = BoundedRequest
    url_rule_class = LazyRule

    def __init__(self, options: WebOptions) -> None:
        super().__init__("web", template_folder=template_folder(), static_folder=static_folder())
        self.jinja_env.template_class = PageTemplate
        self.jinja_env.undefined = StrictUndefined
        self.jinja_env.filters |= text.FILTERS
        self.jinja_env.trim_blocks = self.jinja_env.lstrip_blocks = True
        if options.url_prefix:
            self.wsgi_app = Prefix(self.wsgi_app, options.url_prefix)  # type: ignore[method-assign]
        if options.trusted_proxies:
            self.wsgi_app = TrustedProxies(self.wsgi_app, options.trusted_proxies)  # type: ignore[method-assign]

    def add_url_rule(self, *args: Any, **options: Any) -> None:
        """Add a rule. May switch."""
        super().add_url_rule(*args, **options)
        if len(self.view_functions) % RULES_SLICE == 0:
            yield_to_loop()

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        try:
            return super().create_url_adapter(request)
        except BadHost:  # not a host name: a label is empty or too long
            assert request is not None
            return self.url_map.bind_to_environ({**request.environ, "HTTP_HOST": "localhost"})


class Guard:
    """Checks every request.

    The Host check prevents DNS rebinding: a page of another site can make its own name resolve to our address, and then
    read our responses as same-origin. So without a password, the Host must be an IP literal (which needs no DNS),
    localhost, or one of the hosts in the options. With a password every Host is allowed, since a browser sends a
    password only to the name for which it was entered. So a dashboard behind a proxy needs no list of names.
    """

    def __init__(
        self,
        options: WebOptions,
        hostname: str,
        clock: Clock,
        audit: Audit,
        store: Store,
        *,
        has_login: bool,
        shards: Shards = ALONE,
    ) -> None:
        """*store* keeps the sessions. *has_login*: the app has a sign-in page."""
        self._hosts: frozenset[str] = frozenset({"localhost", *(_plain(host) for host in (hostname, *options.hosts))})
        self.accounts: Accounts = Accounts(options, clock)
        self._metrics_token: bytes | None = digest(options.metrics_token) if options.metrics_token else None
        self._api_tokens: dict[str, bytes] = {
            role: digest(token)
            for role, token in (
                (ADMIN, options.api_token),
                (OPERATOR, options.api_operator_token),
                (VIEWER, options.api_viewer_token),
            )
            if token
        }
        self.sessions: Sessions = Sessions(
            clock,
            self.accounts.credential,
            idle_time=options.session_idle_time,
            lifetime=options.session_lifetime,
            store=store,
        )
        self._home_sessions: HomeSessions = HomeSessions(shards, self._is_live)
        self._has_login: bool = has_login
        self._needs_password: bool = self.accounts.exist
        self._options: WebOptions = options
        # Three counts, so that a misconfigured scraper or program locks out only itself.
        self._failed_logins: FailedLogins = FailedLogins(clock)
        self._failed_metrics_tokens: FailedLogins = FailedLogins(clock)
        self._failed_api_tokens: FailedLogins = FailedLogins(clock)
        self._audit: Audit = audit

    def init_app(self, app: Flask) -> None:
        """Check each request of *app*, and add the headers to each response."""
        app.before_request(self.check)
        app.after_request(add_headers)

    def check(self) -> None:
        """Raise an HTTPException if the current request must be refused; otherwise set its Principal."""
        if (facts := request.environ.get(FORWARDED)) is not None:
            g.principal, g.badges = self.forwarded_principal(facts), facts["badges"]
            return
        g.principal = _unverified_principal("")
        is_change = request.method not in SAFE_METHODS
        is_page = request.endpoint == API_DOCUMENT and not self._needs_password and _bearer() is None
        if is_api_request() and not is_page:
            self._check_api(is_change)
        else:
            self._check_page(is_change)
        if IS_OUTSIDE in request.environ and request.endpoint not in WITHOUT_PREFIX:
            raise NotFound(f"This dashboard is at {request.script_root}/. There is nothing outside that path.")
        if is_change and not principal().is_admin:
            self._check_role(least_role(current_app.view_functions.get(request.endpoint or "")))

    def forwarded_principal(self, facts: Mapping[str, Any]) -> Principal:
        """Return the principal of a request that another process of the queue has checked and passed on."""
        who, session = self._principal(facts["name"], tuple(facts["roles"])), facts["session"]
        if not session:
            return who
        return replace(who, session=session, lasts=self._home_sessions.lasts(session, who.role_names))

    def _is_live(self, number: str, roles: Sequence[str]) -> bool:
        """Return whether the session *number* has not ended, and has *roles*; see HomeSessions."""
        if not self.sessions.store.is_restored:
            raise ServiceUnavailable("The sessions are being loaded.")
        session = self.sessions.numbered(number)
        known = self._options.roles
        return session is not None and set(roles) <= {known[name].name for name in session.roles if name in known}

    def _check_page(self, is_change: bool) -> None:
        takes_token = request.endpoint == "metrics" and self._metrics_token is not None
        if not self._needs_password and not takes_token and request.endpoint not in ANY_HOST:
            self._check_host()
        if request.endpoint in WITHOUT_PASSWORD:
            request.max_content_length = MAX_SIGN_IN_FORM
        if is_change:
            self._check_same_origin()
        elif request.endpoint not in WITHOUT_PASSWORD:
            _check_not_embedded()
        if takes_token:
            g.principal = self._check_token()
        elif request.endpoint not in WITHOUT_PASSWORD:
            g.principal = self._authenticate() if self._needs_password else self._principal("", (ADMIN,))

    def _check_api(self, is_change: bool) -> None:
        """Check a request for the API.

        The credentials are checked first. If the server has API tokens, a wrong token gets the same response as missing
        credentials.
        """
        if (token := _bearer()) is not None:
            g.principal = self._check_api_token(token)
            return
        if self._needs_password:
            if (session := self.current_session()) is not None:
                g.principal = self.principal_of(session)
            else:
                try:
                    g.principal = self._log_in()
                except Unauthorized:
                    raise self._unauthorized() from None
        elif self._has_api_tokens:
            raise self._unauthorized()
        else:
            self._check_host()
            g.principal = self._principal("", (ADMIN,))
        if is_change:
            self._check_same_origin()
        else:
            _check_not_embedded()

    def _check_host(self) -> None:
        host = request.headers.get("Host", "")
        if not self._is_ours(host):
            raise MisdirectedRequest(
                f"This dashboard does not answer to the name “{host[:200]}”. Visit it by its IP address, or by the"
                " name it is bound to. With a password set, it answers to every name."
            )

    def _is_ours(self, host: str) -> bool:
        match = _host_header.fullmatch(host)
        if match is None:
            return False
        if match["v6"] is not None:
            return _is_ip_literal(match["v6"])
        return _plain(match["name"]) in self._hosts or _is_ip_literal(match["name"])

    def _check_same_origin(self) -> None:
        """Raise Forbidden unless the browser's headers say that the current request comes from a page of ours.

        An API request with neither Sec-Fetch-Site nor Origin comes from a program: current browsers send at least one
        of them with every change. In case an old browser sends neither, the request must also be one that an HTML form
        cannot send: a page of another site can send such a request only after a CORS preflight, which fails.
        """
        site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
        if site is None and origin is None and is_api_request():
            is_ours = _cannot_be_form()
        elif site is None:  # browsers omit Sec-Fetch-Site on plain HTTP, except to loopback addresses
            host = request.headers.get("Host", "")
            is_ours = origin in (f"http://{host}", f"https://{host}")
        else:
            is_ours = site == "same-origin"
        if not is_ours:
            self._audit.note_refusal("refused/cross-site", path=request.path, origin=origin or "")
            hint = f" A program must send a bearer token, or {NON_FORM_HEADERS}."
            raise Forbidden(
                "Only this dashboard's own pages may make changes, and this request came from elsewhere."
                + (hint if is_api_request() and origin is None else "")
            )

    def _authenticate(self) -> Principal:
        """Return the principal of a page, by the session or the password. May switch.

        Raise Unauthorized or TooManyRequests as `_log_in` does. Redirect a browser with neither a
        session nor a password to the sign-in page.
        """
        if "Authorization" not in request.headers and self._has_login:
            session = self.current_session()
            if session is not None:
                return self.principal_of(session)
            if _is_navigation():
                abort(redirect(self._login_url(), 303))
        return self._log_in()

    def current_session(self) -> Session | None:
        """Return the session of the current request, or None; other credentials take precedence."""
        token = read_cookie(SESSION)
        if not token or "Authorization" in request.headers:
            return None
        return self.sessions.find(token, is_use=request.endpoint not in WITHOUT_USE)

    def _login_url(self) -> str:
        """Return the address of the sign-in page; a sign-in returns to the current page, or to the page of the form."""
        if request.method in SAFE_METHODS:
            here = f"{request.script_root}{request.full_path.removesuffix('?')}"
        else:
            form = urlsplit(request.headers.get("Referer", ""))
            here = f"{form.path}?{form.query}" if form.netloc == request.host and form.query else form.path
        home = f"{request.script_root}/"
        where = own_path({"next": here[:MAX_NEXT_LENGTH]}, "next", home)
        ended = "1" if read_cookie(SESSION) else None
        return url_for(LOGIN, next=where if where == here != home else None, ended=ended)

    def sign_in(self, name: str, password: str) -> Account | None:
        """Return the account of *name* and *password*, or None if they are wrong. May switch.

        Raise TooManyRequests after too many failures from the same address.
        """
        address, name = _address(), name[:MAX_NAME_LENGTH]
        _refuse_locked(self._failed_logins, address)
        account = self.accounts.verify(name, password)
        if account is None:
            self._note_failure(name, address)
        return account

    def principal_of(self, session: Session) -> Principal:
        """Return the principal whose session is *session*."""
        account = session.account
        return replace(
            self._principal(account.name, account.roles),
            session=session.number,
            lasts=partial(self.sessions.is_live, session),
        )

    @property
    def needs_login(self) -> bool:
        """Whether a principal must sign in."""
        return self._needs_password

    def _log_in(self) -> Principal:
        """Check the password; return the principal. Raise Unauthorized, or TooManyRequests after too many failures."""
        address = _address()
        _refuse_locked(self._failed_logins, address)
        login = _basic()
        if login is None or login.type != "basic" or login.password is None:
            raise self._challenge(f"This dashboard asks for {self._credentials()}.")
        name = (login.username or "")[:MAX_NAME_LENGTH]
        account = self.accounts.verify(name, login.password)
        if account is None:
            self._fail(name, address)
        return self._principal(account.name, account.roles)

    def _check_token(self) -> Principal:
        """Check the metrics token or the password; return the principal. Raise the exceptions of `_log_in`."""
        token, address = _bearer(), _address()
        if token is not None:
            _refuse_locked(self._failed_metrics_tokens, address)
            if hmac.compare_digest(digest(token), self._metrics_token or b""):
                return Principal(METRICS, address, is_admin=False, sees_bodies=False)
            self._failed_metrics_tokens.fail(address)
            self._audit.note_refusal("refused/metrics")
            raise self._challenge("The bearer token is not the one for the metrics.", "bearer")
        if self._needs_password and "Authorization" in request.headers:
            return self._log_in()
        if (session := self.current_session()) is not None:
            return self.principal_of(session)
        raise self._challenge("The metrics need a token: “Authorization: Bearer TOKEN”.", "bearer")

    def _check_api_token(self, token: str) -> Principal:
        """Check *token*; return its principal. Raise Unauthorized, or TooManyRequests after too many failures.

        A server without API tokens refuses every token, but counts no failures, since there is no token to guess.
        """
        if not self._has_api_tokens:
            raise self._unauthorized()
        address = _address()
        _refuse_locked(self._failed_api_tokens, address)
        given = digest(token)
        found = [role for role, wanted in self._api_tokens.items() if hmac.compare_digest(given, wanted)]
        if found:
            return self._principal(TOKEN_NAMES[found[0]], (found[0],))
        is_locked = self._failed_api_tokens.fail(address)
        self._audit.note_refusal("token/locked" if is_locked else "token/failed")
        raise self._unauthorized()

    @property
    def _has_api_tokens(self) -> bool:
        return bool(self._api_tokens)

    def _unauthorized(self) -> Unauthorized:
        """Return the error for an API request without valid credentials; the message names those that are accepted."""
        accepted = ["“Authorization: Bearer TOKEN”"] if self._has_api_tokens else []
        accepted += ["the dashboard's password, by HTTP basic auth"] if self._needs_password else []
        challenges = [_authenticate("bearer")] if self._has_api_tokens else []
        challenges += [_authenticate("basic")] if self._needs_password and not self._shows_prompt() else []
        if not accepted:
            return Unauthorized("This server has no API token. Send the request without the Authorization header.")
        return Unauthorized(f"The API needs {', or '.join(accepted)}.", www_authenticate=challenges or None)

    def _fail(self, name: str, address: str) -> NoReturn:
        """Record a failed sign-in by *name*, and raise Unauthorized."""
        self._note_failure(name, address)
        if self.accounts.need_name:
            raise self._challenge("The name or the password is wrong.")
        raise self._challenge("The password is wrong. The user name does not matter.")

    def _challenge(self, message: str, kind: str = "basic") -> Unauthorized:
        """Return the error for missing or wrong credentials, with a challenge unless a browser would show a prompt."""
        if kind == "basic" and self._shows_prompt():
            return Unauthorized(message)
        return Unauthorized(message, www_authenticate=_authenticate(kind))

    def _shows_prompt(self) -> bool:
        """Return whether the sender is a browser that can use the sign-in page, and would prompt for basic auth."""
        return self._has_login and "Authorization" not in request.headers and _is_browser()

    def _note_failure(self, name: str, address: str) -> None:
        g.principal = _unverified_principal(name)
        is_locked = self._failed_logins.fail(address)
        self._audit.note_refusal("login/locked" if is_locked else "login/failed")
        if is_locked:
            log.warning("dashboard: %d failed sign-ins from %s; refusing more for a minute", MAX_FAILURES, address)

    def _credentials(self) -> str:
        return "a name and a password" if self.accounts.need_name else "a password; any user name will do"

    def _principal(self, name: str, roles: tuple[str, ...]) -> Principal:
        """Return a known principal with *roles*, without the right to change anything if the dashboard is read-only."""
        known = [role for name in roles if (role := self._options.roles.get(name)) is not None]
        rights = united(known)
        is_read_only = self._options.is_read_only
        return Principal(
            name,
            _address(),
            is_admin=rights.is_admin and not is_read_only,
            sees_bodies=not self._options.hides_bodies,
            sees_audit=rights.is_admin,
            rights=rights.without_changes() if is_read_only else rights,
            role=", ".join(role.name for role in known),
        )

    def _check_role(self, role: str | None) -> None:
        """Raise Forbidden unless the principal, who is not an admin, may use an endpoint that is open to *role*."""
        who = principal()
        if role == VIEWER or (role == OPERATOR and who.operates_any):
            return
        self._audit.note_refusal("refused/change", path=request.path)
        if self._options.is_read_only:
            raise Forbidden("This dashboard is read-only: --read-only is set, so nobody can change anything.")
        if who.operates_any:
            raise Forbidden("Only admins may do this. You may act on jobs, and pause tubes.")
        if is_api_request() and _bearer() is not None:
            raise Forbidden("This is a viewer's token. It can read, but not change anything.")
        if not self._has_admin_password:
            raise Forbidden("No admin password is set on this dashboard, so nobody can change anything.")
        raise Forbidden("You are signed in as a viewer. A viewer can see tubes and jobs, but not change anything.")

    @property
    def _has_admin_password(self) -> bool:
        return self.accounts.has_shared(ADMIN) or bool(self._options.users)


def _check_not_embedded() -> None:
    """Raise Forbidden if a page of another site loads this URL as an image, a script, a frame or the like.

    That page cannot read the response, but the browser adds the password, and a search costs the server work. Following
    a link from another site is allowed.
    """
    headers = request.headers
    is_link = (headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest")) == ("navigate", "document")
    if headers.get("Sec-Fetch-Site") in FOREIGN_SITES and not is_link:
        raise Forbidden("Pages of other sites may link to this dashboard, but may not load anything from it.")


def _refuse_locked(failed: FailedLogins, address: str) -> None:
    if left := failed.seconds_locked(address):
        raise TooManyRequests(f"Too many sign-ins from {address} have failed. Try again in {left} s.", retry_after=left)


def _unverified_principal(name: str) -> Principal:
    """Return a principal who has not passed the guard."""
    return replace(NOBODY, name=name[:MAX_NAME_LENGTH], address=_address())


def add_headers(response: Response) -> Response:
    """Add the security headers. No response may be cached except static files, which caches must always revalidate."""
    response.headers.update(SECURITY_HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
    return response


def _address() -> str:
    """Return the address of the principal, cut to 100 characters, since a proxy may have sent any text."""
    return (request.remote_addr or "")[:100]


def _is_browser() -> bool:
    """Return whether a browser sent the current request. All browsers call themselves Mozilla."""
    return "Sec-Fetch-Mode" in request.headers or request.headers.get("User-Agent", "").startswith("Mozilla/")


def _is_navigation() -> bool:
    """Return whether a browser shows the response to the current request as a page."""
    mode = request.headers.get("Sec-Fetch-Mode", "navigate")  # omitted on plain HTTP, except to loopback addresses
    return _is_browser() and mode == "navigate" and "text/html" in request.headers.get("Accept", "")


def _basic() -> Authorization | None:
    """Return the credentials of the current request, or None. Not for bearer tokens: see `_bearer`."""
    try:
        return request.authorization
    except ValueError:  # not ASCII; Werkzeug itself handles ASCII that is not base64
        return None


def _bearer() -> str | None:
    """Return the bearer token of the current request, or None."""
    # Not request.authorization, which parses a token that contains an equals sign as parameters.
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def _cannot_be_form() -> bool:
    """Return whether a page of another site could send the current request only after a CORS preflight."""
    return (
        request.method not in FORM_METHODS
        or request.mimetype == "application/json"
        or REQUESTED_WITH in request.headers
    )


def _authenticate(kind: str) -> WWWAuthenticate:
    parameters: dict[str, str | None] = {"realm": "Greenstalk Server"}
    if kind == "basic":
        parameters["charset"] = "UTF-8"
    return WWWAuthenticate(kind, parameters)


def _plain(host: str) -> str:
    return host.lower().removesuffix(".")


def _is_ip_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
