"""The conditions that need attention, as the API returns them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from greenstalk_server.web.features.conditions.monitor import ConditionMonitor
from greenstalk_server.web.features.conditions.visible import Condition, shown_condition, visible_conditions
from greenstalk_server.web.framework.api.cursors import DEFAULT_LIMIT, Limit
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.values import Count, Instant, RequestModel, ResponseModel, instant


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


class AttentionEndpoints:
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
            conditions=[shown_condition(condition) for condition in conditions[: query.limit]],
        )
