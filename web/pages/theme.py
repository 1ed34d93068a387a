"""The theme: light, dark, or the browser's preference. A cookie stores it; no script is needed."""

from __future__ import annotations

from typing import Any, Final

from flask import Flask, redirect, request, url_for
from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Response

from greenstalk_server.web.fields import is_local_path

COOKIE: Final = "theme"
THEMES: Final = ("light", "dark")
AUTO: Final = "auto"

COOKIE_LIFETIME: Final = 365 * 86400
"""Seconds."""


def init_app(app: Flask) -> None:
    """Add `/theme` to *app*, and give every template `theme` (empty for auto) and `here_again` (this page's path)."""
    app.add_url_rule("/theme", "theme", set_theme, methods=["POST"])
    app.context_processor(_values)


def set_theme() -> Response:
    """Serve `/theme`: set the cookie to `theme`, or delete it for auto, and redirect to the path `back`."""
    wanted = request.form.get("theme", "")
    if wanted not in (*THEMES, AUTO):
        raise BadRequest(f"“theme” must be one of {', '.join((*THEMES, AUTO))}, not “{wanted[:40]}”.")
    back = request.form.get("back", "")
    home = url_for("overview")
    response = redirect(back if is_local_path(back, home) else home, 303)
    path = request.script_root or "/"
    if wanted == AUTO:
        response.delete_cookie(COOKIE, path=path)
    else:
        is_secure = request.is_secure
        response.set_cookie(COOKIE, wanted, COOKIE_LIFETIME, path=path, secure=is_secure, httponly=True, samesite="Lax")
    return response


def _values() -> dict[str, Any]:
    theme = request.cookies.get(COOKIE, "")
    here = f"{request.script_root}{request.full_path.removesuffix('?')}"
    is_page = request.method == "GET" and request.endpoint is not None
    return {"theme": theme if theme in THEMES else "", "here_again": here if is_page else url_for("overview")}
