"""Roles of the dashboard's users: the tubes that a user may view, and the tubes whose jobs a user may change.

`viewer`, `operator` and `admin` always exist. The tables `[roles.NAME]` of the configuration file define more roles,
and restrict the first two to tubes whose names match a pattern, in which `*` matches any characters. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Final

from msgspec import Meta

from greenstalk_server.config.tables.config_tables import FLAG, Key, Tables, WrongPart, tables_of_keys, typed
from greenstalk_server.core.tube_names import any_of, is_tube_pattern

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"

ALL_TUBES: Final = "*"

MAX_TABLES: Final = 1000
"""Maximum number of roles, and of users."""

_FIXED_KEYS: Final = {ADMIN: ("admin", "view", "operate"), OPERATOR: ("admin",), VIEWER: ("admin", "operate")}
"""Keys that the table of a built-in role must not have."""

_ROLE_NAMES: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,99}"), "1 to 100 letters, digits and -_."
_USER_NAMES: Final = (
    re.compile(r"[^\x00-\x20\x7f-\xa0:\u2028-\u202e\u2066-\u2069]{1,100}"),
    "1 to 100 visible characters without a colon",
)
_PASSWORD_HASH: Final = r"^(scrypt|pbkdf2)(:[a-z0-9]+){1,3}\$[A-Za-z0-9./+=]+\$[0-9a-f]{32,200}\Z"  # noqa: S105  a pattern
"""Form of a hash of werkzeug.security: method and parameters, salt, hash."""


_read_texts: Final = typed(list[Annotated[str, Meta(min_length=1, max_length=200)]])


def _patterns(value: object) -> list[str]:
    patterns: list[str] = _read_texts(value)
    for pattern in patterns:
        if not is_tube_pattern(pattern):
            raise WrongPart(f"{pattern!r} cannot match any tube; * matches any characters")
    return patterns


_PATTERNS_KEY: Final = Key(_patterns, "an array of tube names, in which * matches any characters")
_ROLE_KEYS: Final[Mapping[str, Key]] = {
    "view": _PATTERNS_KEY,
    "operate": _PATTERNS_KEY,
    "admin": FLAG,
    "groups": Key(_read_texts, "an array of names of groups"),
}
_USER_KEYS: Final[Mapping[str, Key]] = {
    "password_hash": Key(
        typed(Annotated[str, Meta(pattern=_PASSWORD_HASH)]),
        "the output of `greenstalk-server hash-password`",
        is_secret=True,
        is_required=True,
    ),
    "role": Key(
        typed(str), "the name of a role: viewer, operator, admin, or NAME of a table [roles.NAME]", is_required=True
    ),
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


def _find_contradictions(name: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in _FIXED_KEYS.get(name, ()):
        if key in table:
            why = f"the role {name} always exists. Give another name to a role with other rights"
            yield key, f"{key} must not be set: {why}"
    if name not in BUILT_IN_ROLES and not any(table.get(key) for key in ("view", "operate", "admin")):
        yield "", "must have view, operate or admin, otherwise the role allows nothing"


def parse_role(name: str, table: Mapping[str, Any]) -> Role:
    """Return *table*, which must have no errors, as a Role."""
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


def parse_user(name: str, table: Mapping[str, str]) -> User:
    """Return *table*, which must have no errors, as a User."""
    return User(name, table["password_hash"], table["role"])


ROLES: Final[Tables[Role]] = tables_of_keys(
    "roles", MAX_TABLES, _ROLE_NAMES, _ROLE_KEYS, _find_contradictions, parse_role
)
USERS: Final[Tables[User]] = tables_of_keys("users", MAX_TABLES, _USER_NAMES, _USER_KEYS, lambda *_: (), parse_user)


def _matches(patterns: frozenset[str], tube: bytes) -> bool:
    if ALL_TUBES in patterns:
        return True
    regex = _compiled(patterns)
    return regex is not None and regex.fullmatch(tube) is not None


@lru_cache(maxsize=256)
def _compiled(patterns: frozenset[str]) -> re.Pattern[bytes] | None:
    return any_of(patterns)
