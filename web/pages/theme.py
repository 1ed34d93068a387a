"""Light, dark, or as the browser prefers: a cookie of each visitor, set without a script."""

from __future__ import annotations

import re
from typing import Any, Final

from flask import Flask, redirect, request, url_for
from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Response

COOKIE: Final = "theme"
THEMES: Final = ("light", "dark")
AUTO: Final = "auto"

KEPT_FOR: Final = 365 * 86400
"""Seconds."""

# What a browser takes for a path of the same site: no second slash, nor a backslash or control character, which
# browsers read as one or leave out.
_PATH: Final = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]*")


def init_app(app: Flask) -> None:
    """Add `/theme` to *app*, and give every template `theme`, which is empty for auto, and `here_again`."""
    app.add_url_rule("/theme", "theme", set_theme, methods=["POST"])
    app.context_processor(_values)


def set_theme() -> Response:
    """`theme`, `back`: remember light or dark, forget either for auto; then lead to the path *back*."""
    wanted = request.form.get("theme", "")
    if wanted not in (*THEMES, AUTO):
        raise BadRequest(f"“theme” must be one of {', '.join((*THEMES, AUTO))}, not “{wanted[:40]}”.")
    back = request.form.get("back", "")
    response = redirect(back if _is_ours(back) else url_for("overview"), 303)
    path = request.script_root or "/"
    if wanted == AUTO:
        response.delete_cookie(COOKIE, path=path)
    else:
        is_secure = request.is_secure
        response.set_cookie(COOKIE, wanted, KEPT_FOR, path=path, secure=is_secure, httponly=True, samesite="Lax")
    return response


def _is_ours(back: str) -> bool:
    """Whether *back* is a path of this dashboard, and of no other site."""
    return _PATH.fullmatch(back) is not None and back.startswith(url_for("overview"))


def _values() -> dict[str, Any]:
    theme = request.cookies.get(COOKIE, "")
    here = f"{request.script_root}{request.full_path.removesuffix('?')}"
    is_page = request.method == "GET" and request.endpoint is not None
    return {"theme": theme if theme in THEMES else "", "here_again": here if is_page else url_for("overview")}
