"""The conditions that need attention, as the API returns them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from greenstalk_server.web.features.conditions.measures import Condition as ActiveCondition
from greenstalk_server.web.features.conditions.monitor import ConditionMonitor
from greenstalk_server.web.features.conditions.visible import href_of, sentence_of, visible_conditions
from greenstalk_server.web.framework.api.cursors import DEFAULT_LIMIT, Limit
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.values import Count, Instant, RequestModel, ResponseModel, instant


class Condition(ResponseModel):
    """A condition that needs attention."""

    condition: Annotated[
        str, Meta(description="The kind; docs/dashboard.md lists all.", examples=["no_consumers", "limit"])
    ]
    severity: Annotated[
        Literal["critical", "warning"],
        Meta(description="`critical`: puts are refused, or soon will be."),
    ]
    tube: Annotated[str | None, Meta(description="Null for a condition of the server.", examples=["mail"])]
    limit: Annotated[str | None, Meta(description="The limit that is near, or that refused requests; else null.")]
    since: Annotated[Instant, Meta(description="When the value reached its threshold.")]
    value: Annotated[float, Meta(description="In seconds, jobs, bytes, or as a share of a limit.")]
    threshold: Annotated[float, Meta(description="In the unit of `value`.")]
    sentence: Annotated[str, Meta(description="Describes the condition, with its numbers.")]
    link: Annotated[str, Meta(description="Path of the page about the jobs or workers concerned.")]


class AttentionList(ResponseModel):
    """The active conditions."""

    evaluated_at: Annotated[
        Instant | None, Meta(description="When all tubes were last evaluated; null before the first time.")
    ]
    total: Annotated[Count, Meta(description="Number of active conditions; at most the worst 1000 can be listed.")]
    conditions: Annotated[list[Condition], Meta(description="The worst first.")]


class ListConditionsRequest(RequestModel):
    """Bounds the list."""

    limit: Limit = DEFAULT_LIMIT


class Attention:
    """The conditions that need attention, by the thresholds of the configuration file."""

    def __init__(self, monitor: ConditionMonitor) -> None:
        self._monitor: ConditionMonitor = monitor

    @endpoint("GET", "/attention")
    def list_conditions(self, query: ListConditionsRequest) -> AttentionList:
        """List the conditions that need attention, the worst first.

        The server is evaluated once a second, and each tube about every five seconds.
        """
        at = self._monitor.evaluated_at
        conditions, counts = visible_conditions(self._monitor)
        return AttentionList(
            evaluated_at=instant(at) if at else None,
            total=counts.total(),
            conditions=[_model(condition) for condition in conditions[: query.limit]],
        )


def _model(condition: ActiveCondition) -> Condition:
    measure = condition.measure
    return Condition(
        condition=measure.kind.name,
        severity="critical" if measure.severity == "critical" else "warning",
        tube=measure.tube.decode() or None,
        limit=measure.detail or None,
        since=instant(condition.since),
        value=measure.value,
        threshold=measure.threshold,
        sentence=sentence_of(measure),
        link=href_of(measure),
    )
