"""The principal, which is the user or the program with a token that sent the current request, and its rights.

A viewer may look at some tubes, an operator may also act on the jobs of some tubes, and an admin may do everything. The
guard sets a Principal for each request before a view runs. Views, operations and templates read it here. A task keeps
the Principal who started it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

from flask import g, request
from werkzeug.exceptions import Forbidden

from greenstalk_server.config.tables.roles import BUILT_IN_ROLES, VIEWER, Rights
from greenstalk_server.core.tags.tags import Tags

FORWARDED: Final = "greenstalk.forwarded"
"""Key in the WSGI environ of a request that another process of the queue has checked and passed on."""

PART: Final = "part"
"""Key of a forwarded request that every other shard has got too, to answer for its own jobs."""

HIDDEN_TUBE: Final = "(hidden tube)"
"""Shown instead of the name of a tube that the principal may not see. It contains a space, so no tube has this name."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request.

    name            the user name; empty if no sign-in is needed.
    address         the sender's IP address.
    is_admin        may change everything. False on a read-only dashboard.
    sees_bodies     may see job bodies.
    sees_audit      may see the audit log and the sessions. Like *is_admin*, but not affected by a read-only dashboard.
    is_known        has passed the guard; otherwise *name* is only a claim.
    rights          the rights in tubes. On a read-only dashboard, without the right to operate any.
    role            names of the roles, for pages; empty if no sign-in is needed.
    session         number of the session of a principal who signed in on the sign-in page; empty otherwise.
    lasts           returns False once the session has ended. Then streams and tasks of this principal end.
    """

    name: str
    address: str
    is_admin: bool
    sees_bodies: bool
    sees_audit: bool = False
    is_known: bool = True
    rights: Rights = BUILT_IN_ROLES[VIEWER].rights
    role: str = ""
    session: str = field(default="", compare=False)
    lasts: Callable[[], bool] = field(default=_always, compare=False, repr=False)

    def sees(self, tube: bytes) -> bool:
        """Return whether the principal may see *tube* and its jobs."""
        return self.is_known and self.rights.may_view(tube)

    def operates(self, tube: bytes) -> bool:
        """Return whether the principal may change the jobs of *tube*, and pause it."""
        return self.is_known and (self.is_admin or self.rights.may_operate(tube))

    @property
    def has_session(self) -> bool:
        """Whether the principal can sign out."""
        return bool(self.session)

    @property
    def role_names(self) -> list[str]:
        """The names of the roles."""
        return self.role.split(", ") if self.role else []

    @property
    def sees_all(self) -> bool:
        """Whether the principal may see every tube, and so the figures of the whole server."""
        return self.is_known and self.rights.views_all

    @property
    def operates_any(self) -> bool:
        """Whether there can be a tube whose jobs the principal may change."""
        return self.is_known and (self.is_admin or self.rights.operates_any)

    @property
    def operates_all(self) -> bool:
        """Whether the principal may change the jobs of every tube."""
        return self.is_known and (self.is_admin or self.rights.operates_all)

    def name_of(self, tube: bytes) -> str:
        """Return the name of *tube*, or HIDDEN_TUBE if the principal may not see it."""
        return tube.decode() if not tube or self.sees(tube) else HIDDEN_TUBE

    def shares_rights_with(self, other: Principal) -> bool:
        """Return whether both principals have the same rights."""
        return (self.rights, self.is_admin, self.sees_bodies) == (other.rights, other.is_admin, other.sees_bodies)


NOBODY: Final = Principal("", "", is_admin=False, sees_bodies=False, is_known=False, rights=Rights())


API: Final = "/api/"
"""Start of every path of the API, below the prefix."""


def is_api_request() -> bool:
    """Return whether the current request is for the API. Errors are then sent as JSON."""
    return request.path.startswith(API)


def principal() -> Principal:
    """Return the sender of the current request; NOBODY before the guard has run."""
    return cast(Principal, g.get("principal", NOBODY))


def is_part() -> bool:
    """Return whether another process merges the response to the current request with those of other shards."""
    return PART in request.environ.get(FORWARDED, ())


def require_operator(tube: bytes) -> None:
    """Raise Forbidden unless the principal may change the jobs of *tube*."""
    who = principal()
    if not who.operates(tube):
        raise Forbidden(f"You may not change jobs of the tube “{who.name_of(tube)}”, put jobs into it, or pause it.")


def require_keys(tags: Tags | None) -> None:
    """Raise Forbidden if the principal may not put *tags*: groups and concurrency keys belong to all tubes together."""
    if tags is not None and (tags.group or tags.after or tags.concurrency_key) and not principal().operates_all:
        raise Forbidden(
            "You may not put jobs with a group, a group to wait for, or a concurrency key. These affect jobs of all"
            " tubes, so they need a role that operates every tube."
        )


def require_full_view(what: str) -> None:
    """Raise Forbidden unless the principal may see every tube; *what* begins the message: `The policies`."""
    if not principal().sees_all:
        raise Forbidden(f"{what} can be seen only by users who may see all tubes.")
