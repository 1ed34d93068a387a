"""The policies of the API: settings for all tubes whose names match a pattern."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType, convert
from werkzeug.exceptions import Conflict

from greenstalk_server.config.tables.roles import ADMIN, VIEWER
from greenstalk_server.core.policies.policy import MAX_PRIORITY, Policy, PolicyError, parse_policy
from greenstalk_server.web.changes.task_model import BUSY, Task, started_task
from greenstalk_server.web.features.policies.changes import ListedPolicy
from greenstalk_server.web.features.policies.changes import Policies as PolicyOperations
from greenstalk_server.web.framework.api.durability import wait_until_durable
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.problems import WHOLE, Invalid
from greenstalk_server.web.framework.api.values import RequestModel, ResponseModel

PolicyName = Annotated[
    str,
    Meta(
        # The lookahead is for Python, where `$` also matches before a newline at the end.
        pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]{0,99}$(?!\n)",
        description="the name of a policy: 1 to 100 letters, digits and -_. beginning with a letter or a digit.",
        examples=["retries"],
    ),
]

Seconds = int | float | str
"""A number of seconds, or text with units."""

Value = int | float | str | list[str]
"""A value in a policy document."""

Bytes = int | str
"""A number of bytes, or text with a unit."""


class PolicyRequest(RequestModel):
    """A policy: the tubes that it matches, and its settings. Times are seconds, or text such as `1h30m`.

    If several policies match a tube, each setting comes from the one with the highest `priority`; among equal ones,
    from the one with the most specific pattern; then from the first one by name. 0, an empty text or an empty list
    turns a setting off.
    """

    tubes: Annotated[
        list[str],
        Meta(description="1 to 100 patterns of tube names; `*` matches any characters.", examples=[["mail.*"]]),
    ]
    priority: Annotated[
        int | UnsetType,
        Meta(description=f"From -{MAX_PRIORITY} to {MAX_PRIORITY}, 0 if absent; the highest priority wins a setting."),
    ] = UNSET
    max_attempts: Annotated[
        int | UnsetType, Meta(description="Attempts after which a job is dead-lettered instead of delivered again.")
    ] = UNSET
    dead_letter: Annotated[
        str | UnsetType, Meta(description="The tube for jobs that failed. Without one, they are buried.")
    ] = UNSET
    retry_delay: Annotated[
        Seconds | UnsetType, Meta(description="Delay after the first failed attempt; it grows with each further one.")
    ] = UNSET
    retry_delay_max: Annotated[Seconds | UnsetType, Meta(description="The longest delay after an attempt.")] = UNSET
    retry_factor: Annotated[
        int | float | UnsetType, Meta(description="Factor by which the delay grows, from 1 to 100; 2 if absent.")
    ] = UNSET
    retry_jitter: Annotated[
        int | float | UnsetType, Meta(description="Random part of the delay, from 0 to 1; 0 if absent.")
    ] = UNSET
    expire_after: Annotated[
        Seconds | UnsetType, Meta(description="Age since the put at which a job that is not reserved expires.")
    ] = UNSET
    buried_expire_after: Annotated[
        Seconds | UnsetType, Meta(description="Time since its burial after which a buried job expires.")
    ] = UNSET
    expired_to: Annotated[
        Literal["drop", "dead-letter"] | UnsetType,
        Meta(description="The destination of expired jobs; `drop` if absent."),
    ] = UNSET
    max_jobs: Annotated[int | UnsetType, Meta(description="Maximum number of jobs in a tube.")] = UNSET
    max_bytes: Annotated[Bytes | UnsetType, Meta(description="Maximum bytes of the bodies of a tube's jobs.")] = UNSET
    overflow: Annotated[
        Literal["refuse", "drop-oldest", "dead-letter-oldest"] | UnsetType,
        Meta(description="The effect of a put into a full tube; `refuse` if absent."),
    ] = UNSET
    max_reserved: Annotated[
        int | UnsetType, Meta(description="Maximum number of jobs of a tube that are reserved at the same time.")
    ] = UNSET
    rate: Annotated[int | float | UnsetType, Meta(description="Maximum number of reservations per second.")] = UNSET
    rate_burst: Annotated[int | UnsetType, Meta(description="Maximum number of reservations in a burst.")] = UNSET
    unique: Annotated[
        Literal["nothing", "body"] | UnsetType,
        Meta(description="`body`: a put with the same body as an earlier job adds nothing."),
    ] = UNSET
    unique_for: Annotated[
        Seconds | UnsetType,
        Meta(description="Period of uniqueness: `waiting`, `unfinished` (if absent), or a time since the put."),
    ] = UNSET
    copy_to: Annotated[
        list[str] | UnsetType, Meta(description="Tubes that get a copy of each new job; at most 16.")
    ] = UNSET
    ttr_min: Annotated[Seconds | UnsetType, Meta(description="Minimum TTR; a shorter TTR is raised to this.")] = UNSET
    ttr_max: Annotated[Seconds | UnsetType, Meta(description="Maximum TTR; a longer TTR is reduced to this.")] = UNSET
    max_job_size: Annotated[Bytes | UnsetType, Meta(description="Maximum bytes of a body.")] = UNSET


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


EXAMPLE: Final = {"tubes": ["mail.*"], "max_attempts": 5, "dead_letter": "mail.failed"}
Document = Annotated[PolicyRequest, Meta(examples=[EXAMPLE])]

NO_POLICY: Final = {404: "The policy does not exist."}
OF_FILE: Final = {409: "The configuration file has a policy of this name, or there are too many policies."}


class Policies:
    """Policies: retries, dead letters, expiry, caps, rates and more, for tubes whose names match a pattern.

    A policy of the configuration file can only be changed there.
    """

    def __init__(self, policies: PolicyOperations, commit: Callable[[], bool]) -> None:
        self._policies: PolicyOperations = policies
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


def _parse(name: str, body: PolicyRequest) -> Policy:
    """Return *body* as the policy *name*; raise Invalid for the first mistake."""
    values = {key: getattr(body, key) for key in PolicyRequest.__struct_fields__}
    try:
        return parse_policy(name, {key: value for key, value in values.items() if value is not UNSET})
    except PolicyError as error:
        raise Invalid(error.key or WHOLE, error.problem.removeprefix(error.key).lstrip(": ")) from error


def _policy_model(policy: ListedPolicy) -> NamedPolicy:
    return NamedPolicy(
        name=policy.name,
        source="file" if policy.is_from_file else "runtime",
        problem=policy.problem,
        document=convert(policy.document, dict[str, Value]),
    )
