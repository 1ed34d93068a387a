"""The cookies of a session and of a sign-in in progress.

Over HTTPS a cookie is Secure, and has the prefix `__Host-`, so that no other host and no unencrypted page can set it.
Under a path prefix, the cookie has the prefix `__Secure-` instead, since browsers accept `__Host-` only for the whole
site. The name contains the port, so that several servers of one host do not sign each other's users out: browsers send
cookies to every port.

SameSite is Lax, not Strict: a link from a chat or a wiki, and the redirect from an identity provider, must reach a page
on which the user is still signed in. A request that changes something needs more than the cookie (guard.py).
"""

from __future__ import annotations

from typing import Final

from flask import request
from werkzeug.wrappers import Response

SESSION: Final = "greenstalk"
SIGN_IN: Final = "greenstalk-sign-in"


def read_cookie(name: str) -> str:
    """Return the value of the cookie *name*; empty if there is none."""
    return request.cookies.get(_full_name(name), "")


def set_cookie(response: Response, name: str, value: str, seconds: int) -> None:
    """Set the cookie *name*, which the browser keeps for *seconds*."""
    response.set_cookie(
        _full_name(name),
        value,
        max_age=seconds,
        path=_path(),
        secure=request.is_secure,
        httponly=True,
        samesite="Lax",
    )


def delete_cookie(response: Response, name: str) -> None:
    """Delete the cookie *name*."""
    response.delete_cookie(_full_name(name), path=_path(), secure=request.is_secure, httponly=True, samesite="Lax")


def _path() -> str:
    return request.script_root or "/"


def _full_name(name: str) -> str:
    port = request.host.rpartition("]")[2].partition(":")[2]
    name = f"{name}-{port}" if port.isascii() and port.isdigit() else name
    if not request.is_secure:
        return name
    return f"__Host-{name}" if _path() == "/" else f"__Secure-{name}"
