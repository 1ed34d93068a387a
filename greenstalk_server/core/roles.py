"""Roles of the dashboard's users: which tubes a user may view, and in which a user may act on jobs.

`viewer`, `operator` and `admin` always exist. The tables `[roles.NAME]` of the configuration file define more roles,
and restrict the first two to tubes whose names match a pattern, in which `*` matches any characters. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from greenstalk_server.core.patterns import any_of

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"

ALL_TUBES: Final = "*"


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of a user in tubes. `operate` implies `view`, and *is_admin* implies both for all tubes.

    view, operate   patterns of tube names.
    is_admin        may also set policies, close connections, and read the audit log.
    """

    view: frozenset[str] = frozenset()
    operate: frozenset[str] = frozenset()
    is_admin: bool = False

    @property
    def views_all(self) -> bool:
        """Whether the user may view every tube."""
        return self.is_admin or ALL_TUBES in self.view or ALL_TUBES in self.operate

    @property
    def operates_any(self) -> bool:
        """Whether there can be a tube in which the user may act on jobs."""
        return self.is_admin or bool(self.operate)

    def may_view(self, tube: bytes) -> bool:
        """Whether the user may view *tube*."""
        return self.views_all or _matches(self.view, tube) or _matches(self.operate, tube)

    def may_operate(self, tube: bytes) -> bool:
        """Whether the user may pause *tube*, put jobs into it, and change its jobs."""
        return self.is_admin or _matches(self.operate, tube)

    def without_changes(self) -> Rights:
        """Return the rights to view the same tubes, without the right to change anything."""
        return Rights(frozenset({ALL_TUBES}) if self.is_admin else self.view | self.operate)


@dataclass(frozen=True, slots=True)
class Role:
    """A named set of rights. A user whose identity provider reports one of *groups* has the role."""

    name: str
    rights: Rights
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class User:
    """A user of the configuration file. *password_hash* is in the form of `greenstalk-server hash-password`."""

    name: str
    password_hash: str = field(repr=False)
    role: str


_EVERYTHING: Final = frozenset({ALL_TUBES})

BUILT_IN_ROLES: Final[Mapping[str, Role]] = {
    VIEWER: Role(VIEWER, Rights(view=_EVERYTHING)),
    OPERATOR: Role(OPERATOR, Rights(view=_EVERYTHING, operate=_EVERYTHING)),
    ADMIN: Role(ADMIN, Rights(is_admin=True)),
}
"""The roles of a server whose configuration file has no tables `[roles.NAME]`."""


def united(roles: Iterable[Role]) -> Rights:
    """Return the rights of a user who has all of *roles*."""
    rights = [role.rights for role in roles]
    return Rights(
        view=frozenset().union(*[one.view for one in rights]),
        operate=frozenset().union(*[one.operate for one in rights]),
        is_admin=any(one.is_admin for one in rights),
    )


def _matches(patterns: frozenset[str], tube: bytes) -> bool:
    if ALL_TUBES in patterns:
        return True
    regex = _compiled(patterns)
    return regex is not None and regex.fullmatch(tube) is not None


@lru_cache(maxsize=256)
def _compiled(patterns: frozenset[str]) -> re.Pattern[bytes] | None:
    return any_of(patterns)
