"""Who may: what is asked of every request before a view sees it, and the headers that every response bears.

In this order: the Host is one of ours, a change comes from our own pages, no page of another site embeds what is asked
for, the password is right, the path is under the prefix, and who wants to change something is an admin.

Of the API a bearer token takes the place of the first three, since no browser sends one unasked. Without one the same
is asked there as of a page, the password first; but a program, which no site has sent, may change things too: see
`_check_same_origin`.
"""

from __future__ import annotations

import hmac
import logging
import re
from hashlib import sha256
from ipaddress import ip_address
from typing import Final, NoReturn

from flask import Flask, Request, Response, g, request
from werkzeug.datastructures import Authorization, WWWAuthenticate
from werkzeug.exceptions import BadHost, Forbidden, MisdirectedRequest, NotFound, TooManyRequests, Unauthorized
from werkzeug.routing import MapAdapter

from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.auth.access import Visitor, is_api_request, visitor
from greenstalk_server.web.auth.logins import FAILURES, Logins
from greenstalk_server.web.auth.proxies import IS_OUTSIDE
from greenstalk_server.web.operations.audit import Audit
from greenstalk_server.web.options import WebOptions

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
# No Cross-Origin-Opener-Policy: over plain HTTP on a host name browsers ignore it and complain on the console.

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

WITHOUT_PASSWORD: Final = frozenset({"static", "theme", "healthz", "readyz"})
"""Endpoints that tell nothing of the jobs: the look of the page that asks for a password, and health checks."""

ANY_HOST: Final = frozenset({"healthz", "readyz"})
"""Endpoints for platforms, which call them by whatever name they like."""

WITHOUT_PREFIX: Final = ANY_HOST | {"metrics"}
"""Endpoints that are outside of the prefix too, where platforms and monitoring look for them."""

FOR_EVERYBODY: Final = frozenset({"theme", "api_search_jobs"})
"""Endpoints that are no GETs, and yet change nothing but a cookie, or what is known of the jobs."""

FOREIGN_SITES: Final = frozenset({"cross-site", "same-site"})
"""Values of Sec-Fetch-Site for a request that a page of another site caused."""

PAGES_OF_API: Final = frozenset({"api_docs", "api_document"})
"""Endpoints of the API that tell nothing but what it is, to whom the dashboard is open; tokens open them too."""

METHODS_OF_FORMS: Final = frozenset({"POST"})
"""Those of the methods that change something which a form knows."""

REQUESTED_WITH: Final = "X-Requested-With"
NO_FORM: Final = f"“Content-Type: application/json”, or the header “{REQUESTED_WITH}”"
"""What no form of another site can send."""

API_ADMIN: Final = "api-token"
API_VIEWER: Final = "api-viewer-token"
"""Who the audit log says it was that came with a token."""

_host_header: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{1,5})?")

log = logging.getLogger(__name__)


class Guarded(Flask):
    """A Flask app that knows its views and links whatever the Host: its guard alone decides about that."""

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        try:
            return super().create_url_adapter(request)
        except BadHost:  # it is no name: a label of it is empty, or too long
            assert request is not None
            return self.url_map.bind_to_environ({**request.environ, "HTTP_HOST": "localhost"})


class Guard:
    """Refuses what must not reach a view.

    Host. A page of another site can have its own name resolve to our address, and then read us as same-origin
    (DNS rebinding). So while there is no password, a Host must be an IP literal, which needs no DNS; localhost; or
    one of the options' hosts. With a password any will do: a browser sends a password only to the name it was given
    for. And so a dashboard behind a proxy needs no list of names.
    """

    def __init__(self, options: WebOptions, hostname: str, clock: Clock, audit: Audit) -> None:
        self._hosts: frozenset[str] = frozenset({"localhost", *(_plain(host) for host in (hostname, *options.hosts))})
        self._user: bytes | None = _digest(options.user) if options.user else None
        self._password: bytes | None = _digest(options.password) if options.password else None
        self._viewer_password: bytes | None = _digest(options.viewer_password) if options.viewer_password else None
        self._metrics_token: bytes | None = _digest(options.metrics_token) if options.metrics_token else None
        self._api_token: bytes | None = _digest(options.api_token) if options.api_token else None
        self._api_viewer_token: bytes | None = _digest(options.api_viewer_token) if options.api_viewer_token else None
        self._asks: bool = self._password is not None or self._viewer_password is not None
        self._options: WebOptions = options
        self._logins: Logins = Logins(clock)
        self._tokens: Logins = Logins(clock)  # a scraper that is set up wrongly locks out itself, and no people
        self._api_tokens: Logins = Logins(clock)  # likewise a program
        self._audit: Audit = audit

    def init_app(self, app: Flask) -> None:
        """Have *app* ask this guard before each request, and put the headers on each response."""
        app.before_request(self.check)
        app.after_request(add_headers)

    def check(self) -> None:
        """Raise the HTTPException that refuses the current request, if one does; else its Visitor is known."""
        g.visitor = _stranger("")
        is_change = request.method not in SAFE_METHODS
        is_page = request.endpoint in PAGES_OF_API and not self._asks and _bearer() is None
        if is_api_request() and not is_page:
            self._check_api(is_change)
        else:
            self._check_page(is_change)
        if IS_OUTSIDE in request.environ and request.endpoint not in WITHOUT_PREFIX:
            raise NotFound(f"This dashboard is at {request.script_root}/, and nothing is outside of that.")
        if is_change and not visitor().is_admin and request.endpoint not in FOR_EVERYBODY:
            self._refuse_change()

    def _check_page(self, is_change: bool) -> None:
        takes_token = request.endpoint == "metrics" and self._metrics_token is not None
        if not self._asks and not takes_token and request.endpoint not in ANY_HOST:
            self._check_host()
        if is_change:
            self._check_same_origin()
        elif request.endpoint not in WITHOUT_PASSWORD:
            _check_not_embedded()
        if takes_token:
            g.visitor = self._check_token()
        elif request.endpoint not in WITHOUT_PASSWORD:
            g.visitor = self._log_in() if self._asks else self._visitor("", may_change=True)

    def _check_api(self, is_change: bool) -> None:
        """Check a request for the API. What is answered to a wrong token is what is answered to none.

        So who asks is asked first here.
        """
        if (token := _bearer()) is not None:
            g.visitor = self._check_api_token(token)
            return
        if self._asks:
            try:
                g.visitor = self._log_in()
            except Unauthorized:
                raise self._ask_for_token() from None
        elif self._asks_for_token:
            raise self._ask_for_token()
        else:
            self._check_host()
            g.visitor = self._visitor("", may_change=True)
        if is_change:
            self._check_same_origin()
        else:
            _check_not_embedded()

    def _check_host(self) -> None:
        host = request.headers.get("Host", "")
        if not self._is_ours(host):
            raise MisdirectedRequest(
                f"This dashboard does not answer to the name “{host[:200]}”. Visit it by its IP address, or by the"
                " name it is bound to; with a password set, it answers to every name."
            )

    def _is_ours(self, host: str) -> bool:
        match = _host_header.fullmatch(host)
        if match is None:
            return False
        if match["v6"] is not None:
            return _is_ip_literal(match["v6"])
        return _plain(match["name"]) in self._hosts or _is_ip_literal(match["name"])

    def _check_same_origin(self) -> None:
        """Raise Forbidden unless the current request comes from a page of ours, as the browser's own headers tell.

        Of the API also what bears neither of those headers: a browser sends at least one with every change that a
        page asks for. Should one not, then a page of another site could still send no more than a form can, without
        asking first; so it has to be something else than that.
        """
        site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
        if site is None and origin is None and is_api_request():
            is_ours = _is_no_form()
        elif site is None:  # as browsers have it on plain HTTP, other than to loopback
            host = request.headers.get("Host", "")
            is_ours = origin in (f"http://{host}", f"https://{host}")
        else:
            is_ours = site == "same-origin"
        if not is_ours:
            self._audit.note_refusal("refused/cross-site", path=request.path, origin=origin or "")
            raise Forbidden(
                "Only this dashboard's own pages may change something, and this request came from elsewhere."
                + (f" A program sends a bearer token, or {NO_FORM}." if is_api_request() and origin is None else "")
            )

    def _log_in(self) -> Visitor:
        """Return who the password tells that it is; raise Unauthorized, or TooManyRequests after many failures."""
        address = _address()
        _refuse_locked(self._logins, address)
        given = _basic()
        if given is None or given.type != "basic" or given.password is None:
            raise _challenge(f"This dashboard asks for {self._what_is_asked()}.")
        name, password = given.username or "", _digest(given.password)
        # Digests, since compare_digest is constant-time only among equal lengths; and every one is compared.
        is_user = self._user is None or hmac.compare_digest(_digest(name), self._user)
        is_admin = hmac.compare_digest(password, self._password or b"")
        is_viewer = hmac.compare_digest(password, self._viewer_password or b"")
        if not (is_admin and is_user) and not is_viewer:
            self._fail(name, address)
        return self._visitor(name, may_change=not is_viewer)

    def _check_token(self) -> Visitor:
        """Return who scrapes the metrics; raise as `_log_in` does without the token, unless a password is given."""
        token, address = _bearer(), _address()
        if token is not None:
            _refuse_locked(self._tokens, address)
            if hmac.compare_digest(_digest(token), self._metrics_token or b""):
                return Visitor("metrics", address, is_admin=False, sees_bodies=False)
            self._tokens.fail(address)
            self._audit.note_refusal("refused/metrics")
            raise _challenge("That is not the token of the metrics.", "bearer")
        if self._asks and "Authorization" in request.headers:
            return self._log_in()
        raise _challenge("The metrics ask for a token: “Authorization: Bearer TOKEN”.", "bearer")

    def _check_api_token(self, token: str) -> Visitor:
        """Return whose *token* it is; raise Unauthorized, or TooManyRequests after many failures.

        A server without tokens refuses every token too, but counts none as a failure: there is nothing to guess.
        """
        if not self._asks_for_token:
            raise self._ask_for_token()
        address = _address()
        _refuse_locked(self._api_tokens, address)
        given = _digest(token)
        is_admin = hmac.compare_digest(given, self._api_token or b"")
        is_viewer = hmac.compare_digest(given, self._api_viewer_token or b"")
        if is_admin or is_viewer:
            return self._visitor(API_ADMIN if is_admin else API_VIEWER, may_change=is_admin)
        is_locked = self._api_tokens.fail(address)
        self._audit.note_refusal("token/locked" if is_locked else "token/failed")
        raise self._ask_for_token()

    @property
    def _asks_for_token(self) -> bool:
        return self._api_token is not None or self._api_viewer_token is not None

    def _ask_for_token(self) -> Unauthorized:
        """What asks for whatever opens the API."""
        said = ["“Authorization: Bearer TOKEN”"] if self._asks_for_token else []
        said += ["the dashboard's password, by HTTP basic auth"] if self._asks else []
        challenges = [_authenticate("bearer")] if self._asks_for_token else []
        challenges += [_authenticate("basic")] if self._asks else []
        if not said:
            return Unauthorized("This server has no API token. Send the request without the Authorization header.")
        return Unauthorized(f"The API asks for {', or '.join(said)}.", www_authenticate=challenges or None)

    def _fail(self, name: str, address: str) -> NoReturn:
        """Note a failed login of *name*, and refuse it."""
        g.visitor = _stranger(name)
        is_locked = self._logins.fail(address)
        self._audit.note_refusal("login/locked" if is_locked else "login/failed")
        if is_locked:
            log.warning("dashboard: %d failed logins from %s, which is refused for a minute", FAILURES, address)
        known = "the name and password" if self._user is not None else "password. The user name does not matter"
        raise _challenge(f"That is not this dashboard's {known}.")

    def _what_is_asked(self) -> str:
        return "a name and a password" if self._user is not None else "a password; any user name will do"

    def _visitor(self, name: str, *, may_change: bool) -> Visitor:
        """Return the Visitor of this name, who is an admin if *may_change*."""
        return Visitor(
            name[:200],
            _address(),
            is_admin=may_change and not self._options.is_read_only,
            sees_bodies=not self._options.hides_bodies,
            sees_audit=may_change,
        )

    def _refuse_change(self) -> NoReturn:
        self._audit.note_refusal("refused/change", path=request.path)
        if self._options.is_read_only:
            raise Forbidden("This dashboard is read-only, as its server was told to be: it shows, and changes nothing.")
        if is_api_request() and _bearer() is not None:
            raise Forbidden("That token is a viewer's, who can look at everything and change nothing.")
        if self._password is None:
            raise Forbidden("There is no admin's password here, so nobody can change anything.")
        raise Forbidden("You are logged in as a viewer, who can look at everything and change nothing.")


def _check_not_embedded() -> None:
    """Raise Forbidden if a page of another site loads this one as an image, a script, a frame or the like.

    Such a page cannot read the answer; but the browser adds the password, and a search costs the server work. To
    follow a link from another site is fine.
    """
    headers = request.headers
    is_link = (headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest")) == ("navigate", "document")
    if headers.get("Sec-Fetch-Site") in FOREIGN_SITES and not is_link:
        raise Forbidden("A page of another site may link to this dashboard, and load nothing from it.")


def _refuse_locked(logins: Logins, address: str) -> None:
    if left := logins.seconds_locked(address):
        raise TooManyRequests(
            f"Too many logins from {address} have failed. The next is possible in {left} s.", retry_after=left
        )


def _stranger(name: str) -> Visitor:
    """Return who has not passed the guard, whatever the name."""
    return Visitor(name[:200], _address(), is_admin=False, sees_bodies=False, is_known=False)


def add_headers(response: Response) -> Response:
    """Add what every response bears. Static files are kept but asked for anew each time; all else is not kept."""
    response.headers.update(SECURITY_HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
    return response


def _address() -> str:
    """Where the current request comes from; a proxy may have told anything."""
    return (request.remote_addr or "")[:100]


def _basic() -> Authorization | None:
    """What the current request has to say of who sends it, or None; not for bearer tokens."""
    try:
        return request.authorization
    except ValueError:  # Werkzeug expects base64, and to be ASCII at least
        return None


def _bearer() -> str | None:
    """The bearer token of the current request, or None."""
    # Not request.authorization, which takes a token with an equals sign within for parameters.
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def _is_no_form() -> bool:
    """Whether the current request is one that a browser sends for another site only after it has asked us (CORS)."""
    return (
        request.method not in METHODS_OF_FORMS
        or request.mimetype == "application/json"
        or REQUESTED_WITH in request.headers
    )


def _challenge(message: str, kind: str = "basic") -> Unauthorized:
    return Unauthorized(message, www_authenticate=_authenticate(kind))


def _authenticate(kind: str) -> WWWAuthenticate:
    parameters: dict[str, str | None] = {"realm": "Greenstalk Server"}
    if kind == "basic":
        parameters["charset"] = "UTF-8"
    return WWWAuthenticate(kind, parameters)


def _digest(text: str) -> bytes:
    return sha256(text.encode(errors="surrogateescape")).digest()


def _plain(host: str) -> str:
    return host.lower().removesuffix(".")


def _is_ip_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
