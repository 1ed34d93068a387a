"""Who asks, and what they may: admins change things, viewers look on.

The guard puts a Visitor on each request before a view sees it; views and templates ask here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

from flask import g, request


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who sent the current request.

    name            as logged in, or empty where nobody has to.
    address         where from.
    is_admin        may change things.
    sees_bodies     may see what is in jobs.
    sees_audit      may see who changed what; an admin of a dashboard that is read-only may, too.
    is_known        has passed the guard; else the name is only what was claimed.
    """

    name: str
    address: str
    is_admin: bool
    sees_bodies: bool
    sees_audit: bool = False
    is_known: bool = True


NOBODY: Final = Visitor("", "", is_admin=False, sees_bodies=False, is_known=False)


API: Final = "/api/"
"""What the paths of the API begin with, under the prefix."""


def is_api_request() -> bool:
    """Whether the current request is for the API, and so is refused as programs want it."""
    return request.path.startswith(API)


def visitor() -> Visitor:
    """Who sent the current request."""
    return cast(Visitor, g.get("visitor", NOBODY))
