"""Roles of the dashboard's users: the tubes that a user may view, and the tubes whose jobs a user may change.

`viewer`, `operator` and `admin` always exist. The tables `[roles.NAME]` of the configuration file define more roles,
and restrict the first two to tubes whose names match a pattern, in which `*` matches any characters. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from greenstalk_server.core.tubes.patterns import any_of, is_tube_pattern

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"

ALL_TUBES: Final = "*"

MAX_TABLES: Final = 1000
"""Maximum number of roles, and of users."""

_ROLE_KEYS: Final = ("view", "operate", "admin", "groups")
_USER_KEYS: Final = ("password_hash", "role")

_FIXED_KEYS: Final = {ADMIN: ("admin", "view", "operate"), OPERATOR: ("admin",), VIEWER: ("admin", "operate")}
"""Keys that the table of a built-in role must not have."""

_ROLE_NAME: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,99}")
_USER_NAME: Final = re.compile(r"[^\x00-\x20\x7f-\xa0:\u2028-\u202e\u2066-\u2069]{1,100}")
_PASSWORD_HASH: Final = re.compile(r"(scrypt|pbkdf2)(:[a-z0-9]+){1,3}\$[A-Za-z0-9./+=]+\$[0-9a-f]{32,200}")
"""Form of a hash of werkzeug.security: method and parameters, salt, hash."""


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


def find_role_mistakes(document: object) -> list[tuple[str, str]]:
    """Return each mistake in *document*, the tables `[roles.NAME]`: the key below it, and a complete message."""
    if not isinstance(document, dict):
        return [("", "roles: must be tables, each headed [roles.NAME]")]
    mistakes = _too_many("roles", document)
    for name, table in document.items():
        mistakes += _name_mistakes("roles", name, table) or _role_mistakes(name, table)
    return mistakes


def read_roles(document: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Role]:
    """Return the roles of *document*, which must have no mistakes, and the built-in roles."""
    roles = dict(BUILT_IN_ROLES)
    for name, table in document.items():
        built_in = BUILT_IN_ROLES.get(name, Role(name, Rights())).rights
        view = built_in.view if "operate" not in table else ()
        rights = Rights(
            view=frozenset(table.get("view", view)),
            operate=frozenset(table.get("operate", built_in.operate if "view" not in table else ())),
            is_admin=table.get("admin", built_in.is_admin),
        )
        roles[name] = Role(name, rights, tuple(table.get("groups", ())))
    return roles


def find_user_mistakes(document: object) -> list[tuple[str, str]]:
    """Return each mistake in *document*, the tables `[users.NAME]`: the key below it, and a complete message."""
    if not isinstance(document, dict):
        return [("", "users: must be tables, each headed [users.NAME]")]
    mistakes = _too_many("users", document)
    for name, table in document.items():
        mistakes += _name_mistakes("users", name, table) or _user_mistakes(name, table)
    return mistakes


def read_users(document: Mapping[str, Mapping[str, str]]) -> tuple[User, ...]:
    """Return the users of *document*, which must have no mistakes."""
    return tuple([User(name, table["password_hash"], table["role"]) for name, table in document.items()])


def _too_many(kind: str, document: Mapping[str, object]) -> list[tuple[str, str]]:
    if len(document) <= MAX_TABLES:
        return []
    return [("", f"{kind}: must be at most {MAX_TABLES} tables, not {len(document)}")]


def _name_mistakes(kind: str, name: str, table: object) -> list[tuple[str, str]]:
    if not isinstance(table, dict):
        return [(name, f"{kind}.{name[:60]}: must be a table: write [{kind}.{name[:60]}], and its keys below it")]
    if (_ROLE_NAME if kind == "roles" else _USER_NAME).fullmatch(name):
        return []
    allowed = "letters, digits and -_." if kind == "roles" else "visible characters without a colon"
    return [(name, f"{kind}: {name[:60]!r}: must be a name of 1 to 100 {allowed}")]


def _role_mistakes(name: str, table: Mapping[str, object]) -> list[tuple[str, str]]:
    place, mistakes = f"roles.{name}", _unknown_keys("roles", name, table, _ROLE_KEYS)
    for key in ("view", "operate", "groups"):
        texts = table.get(key, [])
        if not isinstance(texts, list) or not all(isinstance(text, str) and 0 < len(text) <= 200 for text in texts):
            allowed = "names of groups" if key == "groups" else "tube names, in which * matches any characters"
            mistakes.append((f"{name}.{key}", f"{place}.{key}: must be an array of {allowed}"))
        elif key != "groups":
            wrong = [text for text in texts if not is_tube_pattern(text)]
            why = "cannot match any tube; * matches any characters"
            mistakes += [(f"{name}.{key}", f"{place}.{key}: {pattern!r} {why}") for pattern in wrong]
    if type(table.get("admin", False)) is not bool:
        mistakes.append((f"{name}.admin", f"{place}.admin: must be true or false"))
    why = f"must not be set: the role {name} always exists. Give another name to a role with other rights"
    mistakes += [(f"{name}.{key}", f"{place}.{key}: {why}") for key in _FIXED_KEYS.get(name, ()) if key in table]
    if name not in BUILT_IN_ROLES and not any(table.get(key) for key in ("view", "operate", "admin")):
        mistakes.append((name, f"{place}: must have view, operate or admin, otherwise the role allows nothing"))
    return mistakes


def _user_mistakes(name: str, table: Mapping[str, object]) -> list[tuple[str, str]]:
    place, mistakes = f"users.{name}", _unknown_keys("users", name, table, _USER_KEYS)
    given = table.get("password_hash")
    if not isinstance(given, str) or not _PASSWORD_HASH.fullmatch(given):
        why = "must be the output of `greenstalk-server hash-password`"
        mistakes.append((f"{name}.password_hash", f"{place}.password_hash: {why}"))
    if not isinstance(table.get("role"), str):
        why = "must be the name of a role: viewer, operator, admin, or NAME of a table [roles.NAME]"
        mistakes.append((f"{name}.role", f"{place}.role: {why}"))
    return mistakes


def _unknown_keys(kind: str, name: str, table: Mapping[str, object], known: tuple[str, ...]) -> list[tuple[str, str]]:
    mistakes = []
    for key in table:
        if key not in known:
            nearest = difflib.get_close_matches(key[:60], known, n=1, cutoff=0.0)[0]
            message = f"{kind}.{name}: unknown key {key[:60]!r}: did you mean {nearest}?"
            mistakes.append((f"{name}.{key}", message))
    return mistakes


def _matches(patterns: frozenset[str], tube: bytes) -> bool:
    if ALL_TUBES in patterns:
        return True
    regex = _compiled(patterns)
    return regex is not None and regex.fullmatch(tube) is not None


@lru_cache(maxsize=256)
def _compiled(patterns: frozenset[str]) -> re.Pattern[bytes] | None:
    return any_of(patterns)
