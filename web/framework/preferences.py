"""Preferences of a browser: the theme, and the time zone of times. Cookies store them.

theme       light, dark, or the browser's preference. No script is needed.
zone        UTC, or the browser's own zone: static/times.js rewrites the times, since only the browser knows its zone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from flask import Flask, redirect, request, url_for
from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.roles import VIEWER
from greenstalk_server.web.framework import fields
from greenstalk_server.web.framework.rights import open_to

COOKIE_LIFETIME: Final = 365 * 86400
"""Seconds that the browser keeps a cookie."""


@dataclass(frozen=True, slots=True)
class Preference:
    """A preference: *name* is the name of its cookie, its form field and its endpoint.

    values          the values that the cookie may have.
    default         the value that deletes the cookie.
    """

    name: str
    values: tuple[str, ...]
    default: str

    @property
    def chosen(self) -> str:
        """The value in the cookie of the current request; empty for the default."""
        value = request.cookies.get(self.name, "")
        return value if value in self.values else ""

    @open_to(VIEWER)
    def set(self) -> Response:
        """Serve the form: set the cookie, or delete it for the default, and redirect to the path in `back`."""
        wanted = request.form.get(self.name, "")
        choices = (*self.values, self.default)
        if wanted not in choices:
            raise BadRequest(f"“{self.name}” must be one of {', '.join(choices)}, not “{wanted[:40]}”.")
        response = redirect(fields.own_path(request.form, "back", url_for("overview")), 303)
        path, is_secure = request.script_root or "/", request.is_secure
        if wanted == self.default:
            response.delete_cookie(self.name, path=path)
        else:
            response.set_cookie(
                self.name, wanted, COOKIE_LIFETIME, path=path, secure=is_secure, httponly=True, samesite="Lax"
            )
        return response


THEME: Final = Preference("theme", ("light", "dark"), "auto")
ZONE: Final = Preference("zone", ("local",), "utc")


def init_app(app: Flask) -> None:
    """Add `/theme` and `/zone` to *app*, and their values and `here_again` (this page's path) to every template."""
    for one in (THEME, ZONE):
        app.add_url_rule(f"/{one.name}", one.name, one.set, methods=["POST"])
    app.context_processor(_values)


def _values() -> dict[str, Any]:
    here = f"{request.script_root}{request.full_path.removesuffix('?')}"
    is_page = request.method == "GET" and request.endpoint is not None
    return {
        "theme": THEME.chosen,
        "zone": ZONE.chosen,
        "here_again": here if is_page else url_for("overview"),
    }
