"""WSGI middleware for deployments behind trusted proxies and under a path prefix.

It wraps the Flask app, since it must rewrite a request before it is routed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Final

from werkzeug.middleware.proxy_fix import ProxyFix

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

IS_OUTSIDE: Final = "greenstalk.is_outside"
"""Key in the WSGI environ of a request whose path is not under the prefix."""

_PREFIX: Final = re.compile(r"(/(?!\.\.?(/|$))[A-Za-z0-9._~-]+)+")
"""A path without the segments `.` and `..`, since links with these would lead out of the prefix."""


class TrustedProxies:
    """Applies X-Forwarded-For, -Proto, -Host and -Prefix from proxies in *networks*, and ignores them from others."""

    def __init__(self, app: WSGIApplication, networks: Sequence[IPv4Network | IPv6Network]) -> None:
        self._app: WSGIApplication = app
        self._networks: Sequence[IPv4Network | IPv6Network] = networks

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        app = self._app
        if self._is_trusted(environ.get("REMOTE_ADDR", "")):
            # The prefix becomes part of links: a value that is not a plain path could lead elsewhere.
            if not _PREFIX.fullmatch(environ.get("HTTP_X_FORWARDED_PREFIX", "/")):
                environ.pop("HTTP_X_FORWARDED_PREFIX", None)
            # Pass on a single value: in a list, ProxyFix honours quotation marks, so a client could send an opening
            # quotation mark to hide the addresses that proxies append.
            environ["HTTP_X_FORWARDED_FOR"] = self._sender(environ.get("HTTP_X_FORWARDED_FOR", ""))
            app = ProxyFix(app, x_for=1, x_proto=1, x_host=1, x_prefix=1)
        return app(environ, start_response)

    def _sender(self, forwarded: str) -> str:
        """Return the last address in X-Forwarded-For that is not a trusted proxy's own, or else the first."""
        addresses = [part.strip() for part in forwarded.split(",")]
        while len(addresses) > 1 and self._is_trusted(addresses[-1]):
            addresses.pop()
        return addresses[-1]

    def _is_trusted(self, text: str) -> bool:
        address = _address(text)
        return address is not None and any(address in network for network in self._networks)


class Prefix:
    """Serves an app under *prefix*. Requests for other paths are marked with IS_OUTSIDE; the guard refuses most."""

    def __init__(self, app: WSGIApplication, prefix: str) -> None:
        self._app: WSGIApplication = app
        self._prefix: str = prefix

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == self._prefix or path.startswith(f"{self._prefix}/"):
            environ["PATH_INFO"] = path.removeprefix(self._prefix) or "/"
        else:
            environ[IS_OUTSIDE] = True
        environ["SCRIPT_NAME"] = environ.get("SCRIPT_NAME", "") + self._prefix
        return self._app(environ, start_response)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address in *text*, or None. An IPv4-mapped IPv6 address becomes an IPv4 one."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
