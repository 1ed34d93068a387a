"""The form of a policy: converts a policy to text fields, and submitted fields to a policy document.

A field is empty if the policy does not have the setting. If the value of a setting is a tube or a list of tubes, the
text `""` or `[]`, as in documents, turns off the setting of another policy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from greenstalk_server.core.policies.policy import Policy, find_errors, parse_policy
from greenstalk_server.web.features.policies.changes import ListedPolicy
from greenstalk_server.web.features.policies.setting_texts import SETTING_TEXTS, TUBE, TUBES
from greenstalk_server.web.framework.fields import Fields

MAX_FIELD_LENGTH: Final = 20_000
"""Maximum number of characters read from a field: enough for 100 patterns of 200 characters."""

NAME: Final = "name"
PATTERNS: Final = "tubes"
PRIORITY: Final = "priority"

_NO_TUBE: Final = '""'
_NO_TUBES: Final = "[]"
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,30}")
_FRACTION: Final = re.compile(r"[+-]?[0-9]{0,20}\.[0-9]{1,20}")
_SEPARATORS: Final = re.compile(r"[\s,]+")
_ANY_NAME: Final = "policy"


@dataclass(frozen=True, slots=True)
class PolicyForm:
    """The values of the form.

    version         identifies the policy that the form was opened with; empty for a new policy. See `version_of`.
    values          the text of each field by key: NAME, PATTERNS, PRIORITY and the settings.
    errors          the mistake in each field that has one.
    """

    version: str
    values: Mapping[str, str]
    errors: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_new(self) -> bool:
        return not self.version

    def text(self, key: str) -> str:
        """Return the text of the field *key*."""
        return self.values.get(key, "")


def version_of(policy: ListedPolicy | None) -> str:
    """Return a digest of *policy*; empty if it does not exist."""
    if policy is None:
        return ""
    return blake2b(json.dumps(policy.document).encode(), digest_size=8).hexdigest()


def form_of(name: str, document: Mapping[str, object], version: str) -> PolicyForm:
    """Return the form with the values of the policy *name*."""
    values = {key: _field_text(document[key]) for key in SETTING_TEXTS if key in document}
    patterns, priority = document.get(PATTERNS, []), document.get(PRIORITY, 0)
    values |= {NAME: name, PATTERNS: "\n".join(patterns) if isinstance(patterns, list) else "", PRIORITY: str(priority)}
    return PolicyForm(version, values)


def submitted_form(given: Fields) -> tuple[PolicyForm, Policy | None]:
    """Return the form as it was submitted, with its mistakes, and the policy; None if there are mistakes."""
    values = {key: given.get(key, "").strip()[:MAX_FIELD_LENGTH] for key in (NAME, PATTERNS, PRIORITY, *SETTING_TEXTS)}
    document: dict[str, object] = {PATTERNS: _names(values[PATTERNS])}
    if values[PRIORITY]:
        document[PRIORITY] = _number(values[PRIORITY])
    for key in SETTING_TEXTS:
        if values[key]:
            document[key] = _value(key, values[key])
    mistakes = find_errors(values[NAME], document)
    if mistakes and not mistakes[0].key:  # an invalid name hides the other mistakes
        mistakes += find_errors(_ANY_NAME, document)
    errors = {mistake.key or NAME: mistake.problem for mistake in mistakes}
    form = PolicyForm(given.get("version", ""), values, errors)
    return form, None if errors else parse_policy(values[NAME], document)


def _names(given: str) -> list[str]:
    return [name for name in _SEPARATORS.split(given) if name]


def _number(given: str) -> object:
    """Return *given* as a number if possible, else unchanged, so that the policy's parser reports it."""
    if _WHOLE.fullmatch(given):
        return int(given)
    return float(given) if _FRACTION.fullmatch(given) else given


def _value(key: str, given: str) -> object:
    kind = SETTING_TEXTS[key].kind
    if kind == TUBE:
        return "" if given == _NO_TUBE else given
    if kind == TUBES:
        return [] if given == _NO_TUBES else _names(given)
    return _number(given) if kind else given


def _field_text(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or _NO_TUBES
    return str(value) or _NO_TUBE
