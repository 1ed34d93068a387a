"""Roles of the dashboard's users: the tubes that a user may view, and the tubes whose jobs a user may change.

`viewer`, `operator` and `admin` always exist. The tables `[roles.NAME]` of the configuration file define more roles,
and restrict the first two to tubes whose names match a pattern, in which `*` matches any characters. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from greenstalk_server.config.tables.config_tables import (
    FLAG,
    Key,
    WrongPart,
    find_key_mistakes,
    find_name_mistakes,
)
from greenstalk_server.core.tube_names import any_of, is_tube_pattern

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"

ALL_TUBES: Final = "*"

MAX_TABLES: Final = 1000
"""Maximum number of roles, and of users."""

_FIXED_KEYS: Final = {ADMIN: ("admin", "view", "operate"), OPERATOR: ("admin",), VIEWER: ("admin", "operate")}
"""Keys that the table of a built-in role must not have."""

_ROLE_NAME: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,99}")
_USER_NAME: Final = re.compile(r"[^\x00-\x20\x7f-\xa0:\u2028-\u202e\u2066-\u2069]{1,100}")
_PASSWORD_HASH: Final = re.compile(r"(scrypt|pbkdf2)(:[a-z0-9]+){1,3}\$[A-Za-z0-9./+=]+\$[0-9a-f]{32,200}")
"""Form of a hash of werkzeug.security: method and parameters, salt, hash."""


def _texts(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) and 0 < len(text) <= 200 for text in value):
        raise ValueError
    return value


def _patterns(value: object) -> list[str]:
    for pattern in _texts(value):
        if not is_tube_pattern(pattern):
            raise WrongPart(f"{pattern!r} cannot match any tube; * matches any characters")
    return _texts(value)


def _role(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError  # noqa: TRY004  as for all wrong values
    return value


def _password_hash(value: object) -> str:
    if not _PASSWORD_HASH.fullmatch(_role(value)):
        raise ValueError
    return _role(value)


_PATTERNS_KEY: Final = Key(_patterns, "an array of tube names, in which * matches any characters")
_ROLE_KEYS: Final[Mapping[str, Key]] = {
    "view": _PATTERNS_KEY,
    "operate": _PATTERNS_KEY,
    "admin": FLAG,
    "groups": Key(_texts, "an array of names of groups"),
}
_USER_KEYS: Final[Mapping[str, Key]] = {
    "password_hash": Key(_password_hash, "the output of `greenstalk-server hash-password`", True),
    "role": Key(_role, "the name of a role: viewer, operator, admin, or NAME of a table [roles.NAME]"),
}


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of a user on tubes. `operate` implies `view`, and *is_admin* implies both for all tubes.

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
        """Whether there can be a tube whose jobs the user may change."""
        return self.is_admin or bool(self.operate)

    @property
    def operates_all(self) -> bool:
        """Whether the user may change the jobs of every tube."""
        return self.is_admin or ALL_TUBES in self.operate

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


def find_role_mistakes(name: str, table: object) -> list[tuple[str, str]]:
    """Return each mistake in *table*, `[roles.NAME]`: the key, and a complete message."""
    if mistakes := find_name_mistakes("roles", name, table, _ROLE_NAME, "1 to 100 letters, digits and -_."):
        return mistakes
    assert isinstance(table, dict)
    place = f"roles.{name}"
    mistakes = find_key_mistakes(place, table, _ROLE_KEYS)
    why = f"must not be set: the role {name} always exists. Give another name to a role with other rights"
    mistakes += [(key, f"{place}.{key}: {why}") for key in _FIXED_KEYS.get(name, ()) if key in table]
    if name not in BUILT_IN_ROLES and not any(table.get(key) for key in ("view", "operate", "admin")):
        mistakes.append(("", f"{place}: must have view, operate or admin, otherwise the role allows nothing"))
    return mistakes


def parse_role(name: str, table: Mapping[str, Any]) -> Role:
    """Return *table*, which must have no mistakes, as a Role."""
    built_in = BUILT_IN_ROLES.get(name, Role(name, Rights())).rights
    view = built_in.view if "operate" not in table else ()
    rights = Rights(
        view=frozenset(table.get("view", view)),
        operate=frozenset(table.get("operate", built_in.operate if "view" not in table else ())),
        is_admin=table.get("admin", built_in.is_admin),
    )
    return Role(name, rights, tuple(table.get("groups", ())))


def with_built_in(found: Iterable[Role]) -> Mapping[str, Role]:
    """Return the roles *found* and the built-in roles by name."""
    return {**BUILT_IN_ROLES, **{role.name: role for role in found}}


def find_user_mistakes(name: str, table: object) -> list[tuple[str, str]]:
    """Return each mistake in *table*, `[users.NAME]`: the key, and a complete message."""
    allowed = "1 to 100 visible characters without a colon"
    if mistakes := find_name_mistakes("users", name, table, _USER_NAME, allowed):
        return mistakes
    assert isinstance(table, dict)
    place = f"users.{name}"
    missing = [(key, f"{place}.{key}: must be {_USER_KEYS[key].allowed}") for key in _USER_KEYS if key not in table]
    return find_key_mistakes(place, table, _USER_KEYS) + missing


def parse_user(name: str, table: Mapping[str, str]) -> User:
    """Return *table*, which must have no mistakes, as a User."""
    return User(name, table["password_hash"], table["role"])


def _matches(patterns: frozenset[str], tube: bytes) -> bool:
    if ALL_TUBES in patterns:
        return True
    regex = _compiled(patterns)
    return regex is not None and regex.fullmatch(tube) is not None


@lru_cache(maxsize=256)
def _compiled(patterns: frozenset[str]) -> re.Pattern[bytes] | None:
    return any_of(patterns)
