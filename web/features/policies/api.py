"""API endpoints of policies: settings for all tubes whose names match a pattern."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, convert
from werkzeug.exceptions import Conflict

from greenstalk_server.config.tables.roles import ADMIN, VIEWER
from greenstalk_server.core.policies.policy import MAX_PATTERNS, MAX_PRIORITY, Policy, PolicyError, parse_policy
from greenstalk_server.web.changes.task_model import BUSY, Task, started_task
from greenstalk_server.web.features.policies.changes import ListedPolicy, PolicyChanges
from greenstalk_server.web.features.policies.setting_texts import (
    COUNT,
    NUMBER,
    RATE,
    SETTING_TEXTS,
    SIZE,
    TIME,
    TUBE,
    TUBES,
    UNIQUE_FOR,
    SettingText,
)
from greenstalk_server.web.framework.api.durability import wait_until_durable
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.problems import WHOLE, Invalid, refuse
from greenstalk_server.web.framework.api.values import ResponseModel

PolicyName = Annotated[
    str,
    Meta(
        # The lookahead is for Python, where `$` also matches before a newline at the end.
        pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]{0,99}$(?!\n)",
        description="the name of a policy: 1 to 100 letters, digits and -_. beginning with a letter or a digit.",
        examples=["retries"],
    ),
]

Value = int | float | str | list[str]
"""A value in a policy document."""


class NamedPolicy(ResponseModel):
    """A policy and its source."""

    name: PolicyName
    source: Annotated[
        Literal["file", "runtime"],
        Meta(description="`file`: the policy is in the configuration file, and can only be changed there."),
    ]
    problem: Annotated[str, Meta(description="The reason why the policy has no effect; empty if it has one.")]
    document: Annotated[
        dict[str, Value],
        Meta(description="The policy, as `PUT` takes it; empty if this version cannot read it."),
    ]


class PolicyList(ResponseModel):
    """All policies, by name."""

    policies: list[NamedPolicy]
    warnings: Annotated[list[str], Meta(description="Loops of dead letters, whose jobs are buried instead.")]


class PolicySaved(ResponseModel):
    """A policy that is in force."""

    policy: NamedPolicy
    warnings: Annotated[list[str], Meta(description="Loops of dead letters, whose jobs are buried instead.")]


_TYPES: Final[Mapping[str, list[str]]] = {
    COUNT: ["integer"],
    NUMBER: ["number"],
    RATE: ["number"],
    TIME: ["number", "string"],
    UNIQUE_FOR: ["number", "string"],
    SIZE: ["integer", "string"],
    TUBE: ["string"],
}
"""Types in JSON of the kinds of settings: times and sizes may have units."""


def _schema(setting: SettingText) -> dict[str, Any]:
    """Return the JSON schema of *setting*."""
    if setting.kind == TUBES:
        return {"type": "array", "items": {"type": "string"}, "description": setting.help}
    if not setting.kind:
        return {"enum": list(setting.words), "description": f"{setting.help} Default: `{setting.words[0]}`."}
    return {"type": _TYPES[setting.kind], "description": setting.help}


FIELDS: Final[Mapping[str, dict[str, Any]]] = {
    "tubes": {
        "type": "array",
        "items": {"type": "string"},
        "description": f"1 to {MAX_PATTERNS} patterns of tube names; `*` matches any characters.",
    },
    "priority": {
        "type": "integer",
        "description": f"From -{MAX_PRIORITY} to {MAX_PRIORITY}, 0 if absent; the highest wins a setting.",
    },
    **{key: _schema(setting) for key, setting in SETTING_TEXTS.items()},
}
"""The JSON schema of each field of a policy."""

Document = Annotated[
    dict[str, Any],
    Meta(
        description="A policy: the tubes that it matches, and its settings. Times are seconds, or text such as `1h30m`."
        " If several policies match a tube, each setting comes from the one with the highest `priority`; among equal"
        " ones, from the one with the most specific pattern; then from the first one by name. 0, an empty text or an"
        " empty list turns a setting off.",
        examples=[{"tubes": ["mail.*"], "max_attempts": 5, "dead_letter": "mail.failed"}],
        extra_json_schema={
            "properties": FIELDS,
            "required": ["tubes"],
            "additionalProperties": False,
        },
    ),
]

NO_POLICY: Final = {404: "The policy does not exist."}
OF_FILE: Final = {409: "The configuration file has a policy of this name, or there are too many policies."}


class PoliciesEndpoints:
    """Policies: retries, dead letters, expiry, caps, rates and more, for tubes whose names match a pattern.

    A policy of the configuration file can only be changed there.
    """

    def __init__(self, policies: PolicyChanges, commit: Callable[[], bool]) -> None:
        self._policies: PolicyChanges = policies
        self._commit: Callable[[], bool] = commit

    @endpoint("GET", "/policies")
    def list_policies(self) -> PolicyList:
        """List all policies.

        If a policy in the configuration file and one set at run time have the same name, both are listed.
        """
        return PolicyList(
            policies=[_policy_model(policy) for policy in self._policies.all()], warnings=self._policies.warnings()
        )

    @endpoint("GET", "/policies/{name}", errors=NO_POLICY)
    def get_policy(self, name: PolicyName) -> NamedPolicy:
        """Get one policy."""
        return _policy_model(self._policies.get(name))

    @endpoint("PUT", "/policies/{name}", role=ADMIN, errors=OF_FILE)
    def set_policy(self, name: PolicyName, body: Document) -> PolicySaved:
        """Set a policy, or replace it as a whole.

        It applies to new jobs at once, and to existing jobs within moments. It survives restarts and takeovers.
        """
        policy = _parse(name, body)
        try:
            self._policies.set(policy)
        except PolicyError as error:
            raise Conflict(f"{error}.") from error
        response = PolicySaved(policy=_policy_model(self._policies.get(name)), warnings=self._policies.warnings())
        wait_until_durable(self._commit)
        return response

    @endpoint("DELETE", "/policies/{name}", role=ADMIN, status=204, errors=NO_POLICY | OF_FILE)
    def remove_policy(self, name: PolicyName) -> None:
        """Remove a policy. Its past effects on jobs remain."""
        try:
            self._policies.remove(name)
        except PolicyError as error:
            raise Conflict(f"{error}.") from error
        wait_until_durable(self._commit)

    @endpoint("POST", "/policies/{name}/dry-run", role=VIEWER, status=202, errors=OF_FILE | BUSY)
    def dry_run_policy(self, name: PolicyName, body: Document) -> Task:
        """Count what a policy would do to existing jobs, as a task that changes nothing.

        The counts are in `effect` of the task. The response comes within half a second, with the progress so far. The
        task ends after a minute at the latest.
        """
        policy = _parse(name, body)
        try:
            task = self._policies.dry_run(policy)
        except PolicyError as error:
            raise Conflict(f"{error}.") from error
        return started_task(task)


def _parse(name: str, document: dict[str, Any]) -> Policy:
    """Return *document* as the policy *name*; raise Invalid for the first error."""
    for key in document:
        if key not in FIELDS:
            refuse(key, f"is not known: the fields are {', '.join(FIELDS)}")
    try:
        return parse_policy(name, document)
    except PolicyError as error:
        raise Invalid(error.key or WHOLE, error.problem.removeprefix(error.key).lstrip(": ")) from error


def _policy_model(policy: ListedPolicy) -> NamedPolicy:
    return NamedPolicy(
        name=policy.name,
        source="file" if policy.is_from_file else "runtime",
        problem=policy.problem,
        document=convert(policy.document, dict[str, Value]),
    )
