"""Policies on the command line: read one from KEY=VALUE words, or from JSON or TOML; write one as TOML.

This module checks only the form. The server checks the keys and values, and its errors name what is allowed.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from greenstalkctl.errors import InvalidUsage

Policy: TypeAlias = dict[str, Any]

POLICY_NAME: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,99}")

MAX_SIZE: Final = 64 * 1024
"""Maximum bytes of a policy: the largest request that the API accepts."""

LISTS: Final = frozenset({"tubes", "copy_to"})
"""Keys whose values are lists; in a word, commas separate the elements."""

TEXTS: Final = frozenset({"dead_letter", "expired_to", "overflow", "unique"})
"""Keys whose values are text, even if the text looks like a number."""

_TABLE: Final = "policies"
_BARE_KEY: Final = re.compile(r"[-A-Za-z0-9_]+")
_WHOLE: Final = re.compile(r"-?[0-9]{1,30}")
_FRACTION: Final = re.compile(r"-?[0-9]{1,30}\.[0-9]{1,30}")


def from_words(words: Sequence[str]) -> Policy:
    """Return the policy in *words* such as `tubes=mail.*,post` and `max_attempts=5`; raise InvalidUsage."""
    policy: Policy = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise InvalidUsage(f"{word!r} is not a setting: write KEY=VALUE, such as max_attempts=5")
        if key in policy:
            raise InvalidUsage(f"{key} is given more than once; separate the values of a list with commas")
        policy[key] = _value(key, value)
    return policy


def from_file(content: bytes, name: str) -> Policy:
    """Return the policy in *content*: a JSON object or a TOML table; raise InvalidUsage.

    A TOML file may also have the table `[policies.NAME]` of the policy *name*, as the configuration file does.
    """
    if len(content) > MAX_SIZE:
        raise InvalidUsage(f"the policy is larger than {MAX_SIZE} bytes, the most that the server accepts")
    try:
        text = content.decode()
        found = _of_name(json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text), name)
        json.dumps(found, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:  # TypeError: a date, which JSON does not have
        raise InvalidUsage(f"the policy is neither JSON nor TOML with plain values: {error}") from error
    if not found:
        raise InvalidUsage("the policy is empty: it needs at least tubes and one setting")
    return found


def to_toml(name: str, policy: Mapping[str, Any]) -> str:
    """Return *policy* as the table `[policies.NAME]` of a configuration file."""
    shown = name if _BARE_KEY.fullmatch(name) else json.dumps(name)
    return "\n".join([f"[{_TABLE}.{shown}]", *[f"{key} = {json.dumps(value)}" for key, value in policy.items()]])


def _of_name(found: dict[str, Any], name: str) -> Policy:
    """Return the table of the policy *name* if *found* contains the table of all policies, else *found*."""
    if set(found) != {_TABLE}:
        return found
    policies = found[_TABLE]
    policy = policies.get(name) if isinstance(policies, dict) else None
    if isinstance(policy, dict):
        return policy
    raise ValueError(f"it has no table [{_TABLE}.{name}]")


def _value(key: str, value: str) -> Any:
    if key in LISTS:
        return [element.strip() for element in value.split(",")] if value else []
    if key in TEXTS:
        return value
    if _WHOLE.fullmatch(value):
        return int(value)
    if _FRACTION.fullmatch(value):
        number = float(value)
        return number if math.isfinite(number) else value
    return value
