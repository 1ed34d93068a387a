"""Who may: what is asked of every request before a view sees it, and the headers that every response bears.

In this order: the Host is one of ours, a change comes from our own pages, the password is right.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection
from hashlib import sha256
from ipaddress import ip_address
from typing import Final

from flask import Flask, Response, request
from werkzeug.datastructures import WWWAuthenticate
from werkzeug.exceptions import Forbidden, MisdirectedRequest, Unauthorized

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

WITHOUT_PASSWORD: Final = frozenset({"static", "healthz", "readyz"})
"""Endpoints that tell nothing of the jobs: the look of the page that asks for a password, and health checks."""

ANY_HOST: Final = frozenset({"healthz", "readyz"})
"""Endpoints for platforms, which call them by whatever name they like."""

_host_header: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{1,5})?")


class Guard:
    """Refuses what must not reach a view.

    Host. A page of another site can have its own name resolve to our address, and then read us as same-origin
    (DNS rebinding). So while there is no password, a Host must be an IP literal, which needs no DNS; localhost; or
    one of *hosts*. With a password any will do: a browser sends a password only to the name it was given for. And
    so a dashboard behind a proxy needs no list of names.
    """

    def __init__(self, hosts: Collection[str], password: str | None) -> None:
        self._hosts: frozenset[str] = frozenset({"localhost", *(_plain(host) for host in hosts)})
        self._password: bytes | None = _digest(password) if password else None

    def install(self, app: Flask) -> None:
        """Have *app* ask this guard before each request, and put the headers on each response."""
        app.before_request(self.check)
        app.after_request(add_headers)

    def check(self) -> None:
        """Raise the HTTPException that refuses the current request, if one does."""
        if self._password is None and request.endpoint not in ANY_HOST:
            self._check_host()
        if request.method not in SAFE_METHODS:
            check_same_origin()
        if self._password is not None and request.endpoint not in WITHOUT_PASSWORD:
            self._check_password(self._password)

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

    def _check_password(self, expected: bytes) -> None:
        given = request.authorization
        if given is not None and given.type == "basic" and given.password is not None:
            # Digests, since compare_digest is constant-time only among equal lengths.
            if hmac.compare_digest(_digest(given.password), expected):
                return
            message = "That is not this dashboard's password. The user name does not matter."
        else:
            message = "This dashboard asks for a password; any user name will do."
        challenge = WWWAuthenticate("basic", {"realm": "Greenstalk Server", "charset": "UTF-8"})
        raise Unauthorized(message, www_authenticate=challenge)


def check_same_origin() -> None:
    """Raise Forbidden unless the current request comes from a page of ours, as the browser's own headers tell."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is None:  # as browsers have it on plain HTTP, other than to loopback
        host = request.headers.get("Host", "")
        is_ours = request.headers.get("Origin") in (f"http://{host}", f"https://{host}")
    else:
        is_ours = site == "same-origin"
    if not is_ours:
        raise Forbidden("Only this dashboard's own pages may change something, and this request came from elsewhere.")


def add_headers(response: Response) -> Response:
    """Add what every response bears. Static files are kept but asked for anew each time; all else is not kept."""
    response.headers.update(SECURITY_HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
    return response


def _digest(password: str) -> bytes:
    return sha256(password.encode(errors="surrogateescape")).digest()


def _plain(host: str) -> str:
    return host.lower().rstrip(".")


def _is_ip_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
