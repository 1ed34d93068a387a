"""The visitor of the current request, and what the visitor may do: admins may change things, viewers may only look.

The guard sets a Visitor for each request before a view runs. Views and templates read it here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

from flask import g, request


@dataclass(frozen=True, slots=True)
class Visitor:
    """The sender of a request.

    name            the login name; empty where no login is needed.
    address         the sender's IP address.
    is_admin        may change things.
    sees_bodies     may see job bodies.
    sees_audit      may see the audit log. Like *is_admin*, but not affected by a read-only dashboard.
    is_known        has passed the guard; otherwise *name* is only a claim.
    """

    name: str
    address: str
    is_admin: bool
    sees_bodies: bool
    sees_audit: bool = False
    is_known: bool = True

    def sees(self, tube: bytes) -> bool:
        """Return whether the visitor may see *tube* and its jobs."""
        return self.is_known

    def operates(self, tube: bytes) -> bool:
        """Return whether the visitor may change the jobs of *tube*, and pause it."""
        return self.is_admin


NOBODY: Final = Visitor("", "", is_admin=False, sees_bodies=False, is_known=False)


API: Final = "/api/"
"""Start of every path of the API, below the prefix."""


def is_api_request() -> bool:
    """Return whether the current request is for the API. Errors are then sent as JSON."""
    return request.path.startswith(API)


def visitor() -> Visitor:
    """Return the sender of the current request; NOBODY before the guard has run."""
    return cast(Visitor, g.get("visitor", NOBODY))
