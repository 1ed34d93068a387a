"""Who may use which tube: the operator's rules, and what they grant to one connection.

A rule is for connections by a certain listener, with a certain name in their certificate, or for all; it grants to
produce, to consume and to inspect in tubes whose names match a pattern. Grants add up. Without any rule nothing
is looked at; with one, what no rule grants is refused. Which command wants which grant is said in docs/security.md,
and seen to in `restricted`.

Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

KINDS: Final = ("produce", "consume", "inspect")
"""What a rule may grant."""

MATCHERS: Final = ("listener", "client")
"""Whom a rule may be for."""

_TUBE_PATTERN: Final = re.compile(r"[-A-Za-z0-9+/;.$_()*]{1,200}")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    listener    it is for connections by the listener that is called so; None is any.
    client      pattern of a name in the client's certificate; None is any client, with a certificate or without.
    produce, consume, inspect   patterns of tubes, in which `*` stands for any characters.
    """

    listener: str | None
    client: str | None
    produce: tuple[str, ...]
    consume: tuple[str, ...]
    inspect: tuple[str, ...]

    def told(self) -> dict[str, object]:
        """The rule as JSON may hold it: as it stands in the file."""
        found = {name: getattr(self, name) for name in (*MATCHERS, *KINDS)}
        return {name: list(value) if name in KINDS else value for name, value in found.items() if value}


def read_rules(value: object) -> tuple[Rule, ...]:
    """Return the rules in *value*, what TOML has in `[[access]]`; raise ValueError saying what is wrong with which."""
    if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
        raise ValueError("must be tables, each headed [[access]]")
    return tuple(_rule(table, f"rule {number}") for number, table in enumerate(value, 1))


def _rule(table: dict[str, Any], where: str) -> Rule:
    for name in table:
        if name not in (*MATCHERS, *KINDS):
            nearest = difflib.get_close_matches(name, (*MATCHERS, *KINDS), n=1, cutoff=0.0)[0]
            raise ValueError(f"{where}: unknown key {name!r}: did you mean {nearest}?")
    for name in MATCHERS:
        if name in table and not (isinstance(table[name], str) and table[name]):
            raise ValueError(f"{where}: {name}: must be a text in quotes, of at least one character")
    return Rule(
        listener=table.get("listener"),
        client=table.get("client"),
        produce=_patterns(table, "produce", where),
        consume=_patterns(table, "consume", where),
        inspect=_patterns(table, "inspect", where),
    )


def _patterns(table: dict[str, Any], kind: str, where: str) -> tuple[str, ...]:
    patterns = table.get(kind, [])
    if type(patterns) is not list:
        raise ValueError(f"{where}: {kind}: must be an array of names of tubes, in which * stands for any characters")
    for pattern in patterns:
        if not (isinstance(pattern, str) and _TUBE_PATTERN.fullmatch(pattern)):
            raise ValueError(f"{where}: {kind}: {pattern!r} cannot match any tube; * stands for any characters")
    return tuple(patterns)


class Grants:
    """What one connection may do, by the name of a tube."""

    __slots__ = ("_consume", "_inspect", "_produce")

    def __init__(self, produce: Iterable[str], consume: Iterable[str], inspect: Iterable[str]) -> None:
        """Each is patterns of tubes."""
        self._produce: re.Pattern[bytes] | None = _any_of(produce)
        self._consume: re.Pattern[bytes] | None = _any_of(consume)
        self._inspect: re.Pattern[bytes] | None = _any_of(inspect)

    def may_produce(self, tube: bytes) -> bool:
        """Whether it may put into *tube*."""
        return self._produce is not None and self._produce.fullmatch(tube) is not None

    def may_consume(self, tube: bytes) -> bool:
        """Whether it may take jobs of *tube*, and do to them what a worker does."""
        return self._consume is not None and self._consume.fullmatch(tube) is not None

    def may_inspect(self, tube: bytes) -> bool:
        """Whether it may look into *tube*."""
        return self._inspect is not None and self._inspect.fullmatch(tube) is not None

    def may_any(self, tube: bytes) -> bool:
        """Whether it may do any of that."""
        return self.may_produce(tube) or self.may_consume(tube) or self.may_inspect(tube)

    @property
    def inspects(self) -> bool:
        """Whether there is any tube that it may look into."""
        return self._inspect is not None


def grants(rules: Iterable[Rule], listener: str, names: Iterable[str]) -> Grants:
    """What *rules* grant to a connection by *listener* whose certificate has *names*; without one it has none."""
    names = list(names)
    matching = [rule for rule in rules if _is_for(rule, listener, names)]
    return Grants(
        [pattern for rule in matching for pattern in rule.produce],
        [pattern for rule in matching for pattern in rule.consume],
        [pattern for rule in matching for pattern in rule.inspect],
    )


def _is_for(rule: Rule, listener: str, names: list[str]) -> bool:
    if rule.listener is not None and rule.listener != listener:
        return False
    return rule.client is None or any(re.fullmatch(_regex(rule.client), name, re.DOTALL) for name in names)


def _any_of(patterns: Iterable[str]) -> re.Pattern[bytes] | None:
    """Matches what one of *patterns* does; None if there is none."""
    told = "|".join([_regex(pattern) for pattern in patterns])
    return re.compile(told.encode()) if told else None


def _regex(pattern: str) -> str:
    """As a regular expression that never tries again what is between two stars: many stars would take for ever."""
    first, *rest = map(re.escape, pattern.split("*"))
    if not rest:
        return first
    return first + "".join([f"(?>.*?{part})" for part in rest[:-1]]) + f".*{rest[-1]}"
