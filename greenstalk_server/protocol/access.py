"""Access rules: which connections may use which tubes.

A rule applies to connections through a given listener, to those with a matching name in their certificate, to those
that satisfy both conditions, or to all. It grants rights to produce, consume and inspect in tubes whose names match a
pattern, and rights to keys of tags, which belong to the whole server: groups and concurrency keys. Grants add up.
Without any rule nothing is checked; with a rule, everything that no rule grants is refused.
docs/security.md lists the grant that each command needs; `RestrictedSession` checks it. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from greenstalk_server.core.tube_names import any_of, is_tube_pattern, to_regex

KINDS: Final = ("produce", "consume", "inspect")
"""Kinds of grants."""

KEYS: Final = "keys"
"""Key of a rule that grants the use of keys of tags."""

ADMINISTER: Final = "administer"
"""Key of a rule that grants the commands that affect the whole server: drain and undrain."""

MATCHERS: Final = ("listener", "client")
"""Keys that select the connections to which a rule applies."""

EVERY: Final = "*"
"""The pattern that matches every name."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    listener    name of the listener to whose connections the rule applies; None means any.
    client      pattern of a name in the client's certificate; None means any client, with a certificate or without.
    produce, consume, inspect   patterns of tube names, in which `*` matches any characters.
    administer  whether the rule allows drain and undrain.
    keys        patterns of the keys that tags of puts may name, other than idempotency keys. None means every key if
                the rule allows puts into every tube, otherwise no key.
    """

    listener: str | None
    client: str | None
    produce: tuple[str, ...]
    consume: tuple[str, ...]
    inspect: tuple[str, ...]
    administer: bool = False
    keys: tuple[str, ...] | None = None

    @property
    def granted_keys(self) -> tuple[str, ...]:
        """The patterns of the keys that the rule allows."""
        if self.keys is not None:
            return self.keys
        return (EVERY,) if EVERY in self.produce else ()

    def to_json(self) -> dict[str, object]:
        """Return the rule as JSON, with the keys of the configuration file."""
        found = {name: getattr(self, name) for name in (*MATCHERS, *KINDS, ADMINISTER)}
        rule = {name: list(value) if name in KINDS else value for name, value in found.items() if value}
        return rule if self.keys is None else rule | {KEYS: list(self.keys)}


def read_rules(value: object) -> tuple[Rule, ...]:
    """Return the rules in *value*, the TOML tables `[[access]]`; raise ValueError that names the wrong rule and key."""
    if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
        raise ValueError("must be tables, each headed [[access]]")
    return tuple(_rule(table, f"rule {number}") for number, table in enumerate(value, 1))


def _rule(table: dict[str, Any], where: str) -> Rule:
    known = (*MATCHERS, *KINDS, KEYS, ADMINISTER)
    for name in table:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise ValueError(f"{where}: unknown key {name!r}: did you mean {nearest}?")
    for name in MATCHERS:
        if name in table and not (isinstance(table[name], str) and table[name]):
            raise ValueError(f"{where}: {name}: must be a non-empty string")
    if type(table.get(ADMINISTER, False)) is not bool:
        raise ValueError(f"{where}: {ADMINISTER}: must be true or false")
    return Rule(
        listener=table.get("listener"),
        client=table.get("client"),
        produce=_patterns(table, "produce", where),
        consume=_patterns(table, "consume", where),
        inspect=_patterns(table, "inspect", where),
        administer=table.get(ADMINISTER, False),
        keys=_patterns(table, KEYS, where) if KEYS in table else None,
    )


def _patterns(table: dict[str, Any], kind: str, where: str) -> tuple[str, ...]:
    patterns = table.get(kind, [])
    if type(patterns) is not list:
        what = "keys" if kind == KEYS else "tube names"
        raise ValueError(f"{where}: {kind}: must be an array of {what}, in which * matches any characters")
    for pattern in patterns:
        if not (isinstance(pattern, str) and is_tube_pattern(pattern)):
            what = "key" if kind == KEYS else "tube"
            raise ValueError(f"{where}: {kind}: {pattern!r} cannot match any {what}; * stands for any characters")
    return tuple(patterns)


class Grants:
    """The rights of one connection in each tube."""

    __slots__ = ("_consume", "_inspect", "_inspects_all", "_keys", "_produce", "administers")

    def __init__(
        self,
        produce: Collection[str],
        consume: Collection[str],
        inspect: Collection[str],
        administers: bool = False,
        keys: Collection[str] = (),
    ) -> None:
        """*produce*, *consume* and *inspect* are patterns of tube names, *keys* of keys.

        *administers* allows drain and undrain.
        """
        self.administers: bool = administers
        self._produce: re.Pattern[bytes] | None = any_of(produce)
        self._consume: re.Pattern[bytes] | None = any_of(consume)
        self._inspect: re.Pattern[bytes] | None = any_of(inspect)
        self._inspects_all: bool = EVERY in inspect
        self._keys: re.Pattern[bytes] | None = any_of(keys)

    def may_produce(self, tube: bytes) -> bool:
        """Whether the connection may put into *tube*."""
        return self._produce is not None and self._produce.fullmatch(tube) is not None

    def may_consume(self, tube: bytes) -> bool:
        """Whether the connection may watch and pause *tube*, and reserve, delete and kick its jobs."""
        return self._consume is not None and self._consume.fullmatch(tube) is not None

    def may_inspect(self, tube: bytes) -> bool:
        """Whether the connection may inspect *tube*."""
        return self._inspect is not None and self._inspect.fullmatch(tube) is not None

    def may_any(self, tube: bytes) -> bool:
        """Whether the connection may produce into, consume from or inspect *tube*."""
        return self.may_produce(tube) or self.may_consume(tube) or self.may_inspect(tube)

    def may_use_key(self, key: bytes) -> bool:
        """Whether the connection may put jobs with tags that name *key*, a group or a concurrency key."""
        return self._keys is not None and self._keys.fullmatch(key) is not None

    def may_inspect_group(self, key: bytes) -> bool:
        """Whether the connection may inspect the group *key*, which may have jobs in any tube."""
        return self.inspects and (self._inspects_all or self.may_use_key(key))

    @property
    def inspects(self) -> bool:
        """Whether there is a tube that the connection may inspect."""
        return self._inspect is not None


def grants(rules: Iterable[Rule], listener: str, names: Iterable[str]) -> Grants:
    """Return the grants of *rules* to a connection through *listener* whose certificate, if any, has *names*."""
    names = list(names)
    matching = [rule for rule in rules if _is_for(rule, listener, names)]
    return Grants(
        [pattern for rule in matching for pattern in rule.produce],
        [pattern for rule in matching for pattern in rule.consume],
        [pattern for rule in matching for pattern in rule.inspect],
        any(rule.administer for rule in matching),
        [pattern for rule in matching for pattern in rule.granted_keys],
    )


def _is_for(rule: Rule, listener: str, names: list[str]) -> bool:
    if rule.listener is not None and rule.listener != listener:
        return False
    return rule.client is None or any(re.fullmatch(to_regex(rule.client), name, re.DOTALL) for name in names)
