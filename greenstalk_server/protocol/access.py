"""Access rules: which connections may use which tubes.

A rule applies to connections through a given listener, to those with a matching name in their certificate, to those
that satisfy both conditions, or to all. It grants rights to produce, consume and inspect in tubes whose names match a
pattern. Grants add up. Without any rule nothing is checked; with a rule, everything that no rule grants is refused.
docs/security.md lists the grant that each command needs; `RestrictedSession` checks it. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from greenstalk_server.core.patterns import any_of, is_tube_pattern, to_regex

KINDS: Final = ("produce", "consume", "inspect")
"""Kinds of grants."""

ADMINISTER: Final = "administer"
"""Key that grants the commands that affect the whole server: drain and undrain."""

MATCHERS: Final = ("listener", "client")
"""Keys that select the connections to which a rule applies."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    listener    name of the listener to whose connections the rule applies; None means any.
    client      pattern of a name in the client's certificate; None means any client, with a certificate or without.
    produce, consume, inspect   patterns of tube names, in which `*` matches any characters.
    administer  whether the rule allows drain and undrain.
    """

    listener: str | None
    client: str | None
    produce: tuple[str, ...]
    consume: tuple[str, ...]
    inspect: tuple[str, ...]
    administer: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the rule as JSON, with the keys of the configuration file."""
        found = {name: getattr(self, name) for name in (*MATCHERS, *KINDS, ADMINISTER)}
        return {name: list(value) if name in KINDS else value for name, value in found.items() if value}


def read_rules(value: object) -> tuple[Rule, ...]:
    """Return the rules in *value*, the TOML tables `[[access]]`; raise ValueError that names the wrong rule and key."""
    if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
        raise ValueError("must be tables, each headed [[access]]")
    return tuple(_rule(table, f"rule {number}") for number, table in enumerate(value, 1))


def _rule(table: dict[str, Any], where: str) -> Rule:
    for name in table:
        if name not in (*MATCHERS, *KINDS, ADMINISTER):
            nearest = difflib.get_close_matches(name, (*MATCHERS, *KINDS, ADMINISTER), n=1, cutoff=0.0)[0]
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
    )


def _patterns(table: dict[str, Any], kind: str, where: str) -> tuple[str, ...]:
    patterns = table.get(kind, [])
    if type(patterns) is not list:
        raise ValueError(f"{where}: {kind}: must be an array of tube names, in which * matches any characters")
    for pattern in patterns:
        if not (isinstance(pattern, str) and is_tube_pattern(pattern)):
            raise ValueError(f"{where}: {kind}: {pattern!r} cannot match any tube; * stands for any characters")
    return tuple(patterns)


class Grants:
    """The rights of one connection in each tube."""

    __slots__ = ("_consume", "_inspect", "_produce", "administers")

    def __init__(
        self, produce: Iterable[str], consume: Iterable[str], inspect: Iterable[str], administers: bool = False
    ) -> None:
        """Each argument but the last is a list of tube-name patterns. *administers* allows drain and undrain."""
        self.administers: bool = administers
        self._produce: re.Pattern[bytes] | None = any_of(produce)
        self._consume: re.Pattern[bytes] | None = any_of(consume)
        self._inspect: re.Pattern[bytes] | None = any_of(inspect)

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
    )


def _is_for(rule: Rule, listener: str, names: list[str]) -> bool:
    if rule.listener is not None and rule.listener != listener:
        return False
    return rule.client is None or any(re.fullmatch(to_regex(rule.client), name, re.DOTALL) for name in names)
