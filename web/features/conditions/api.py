"""The conditions that need attention, and their acknowledgements, as the API returns them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from greenstalk_server.config.tables.receivers import CONDITION_KINDS
from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.core.jobs.job import MAX_ID
from greenstalk_server.core.tube_names import is_tube_pattern
from greenstalk_server.web.features.conditions.acknowledgements import (
    MAX_REASON_LENGTH,
    MAX_SECONDS,
    Acknowledgement,
)
from greenstalk_server.web.features.conditions.changes import AcknowledgementChanges
from greenstalk_server.web.features.conditions.rows import AttentionModel
from greenstalk_server.web.features.conditions.visible import Condition, shown_condition, visible_conditions
from greenstalk_server.web.framework.api.cursors import DEFAULT_LIMIT, Limit
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.api.values import Count, Instant, RequestModel, ResponseModel, instant


class AttentionList(ResponseModel):
    """The active conditions."""

    evaluated_at: Annotated[
        Instant | None, Meta(description="When all tubes were last evaluated; null before the first time.")
    ]
    total: Annotated[Count, Meta(description="Number of active conditions; at most the worst 1000 can be listed.")]
    conditions: Annotated[
        list[Condition], Meta(description="The worst first; acknowledged conditions have `acknowledged_by`.")
    ]


class ListConditionsRequest(RequestModel):
    """Bounds the list."""

    limit: Limit = DEFAULT_LIMIT


class AcknowledgementList(ResponseModel):
    """The acknowledgements that have not ended."""

    acknowledgements: Annotated[list[Acknowledgement], Meta(description="In the order of their ends.")]


class AcknowledgeConditionsRequest(RequestModel):
    """The conditions to acknowledge, why, and for how long."""

    seconds: Annotated[int, Meta(ge=1, le=MAX_SECONDS, description="Time until the acknowledgement ends.")]
    reason: Annotated[str, Meta(min_length=1, max_length=MAX_REASON_LENGTH, examples=["provider is down"])]
    tubes: Annotated[
        str,
        Meta(
            max_length=200,
            description="Name of a tube, or a pattern; empty for all tubes and the server.",
            examples=["mail"],
        ),
    ] = ""
    condition: Annotated[
        str, Meta(max_length=40, description="The kind of the conditions; empty for all.", examples=["buried"])
    ] = ""
    covers_new: Annotated[
        bool,
        Meta(
            description="Keep the acknowledgement when more jobs fail. Otherwise that of a single tube ends then. That"
            " of a pattern is always kept."
        ),
    ] = False


class AcknowledgementRequest(RequestModel):
    """The acknowledgement."""

    id: Annotated[int, Meta(ge=1, description="The id of an acknowledgement.", extra_json_schema={"maximum": MAX_ID})]


class AttentionEndpoints:
    """The conditions that need attention, by the thresholds of the configuration file."""

    def __init__(self, attention: AttentionModel, changes: AcknowledgementChanges) -> None:
        self._attention: AttentionModel = attention
        self._changes: AcknowledgementChanges = changes

    @endpoint("GET", "/attention")
    def list_conditions(self, query: ListConditionsRequest) -> AttentionList:
        """List the conditions that need attention, the worst first.

        The server is evaluated once a second, and each tube about every five seconds.
        """
        monitor = self._attention.monitor
        at = monitor.evaluated_at
        conditions, counts = visible_conditions(monitor)
        return AttentionList(
            evaluated_at=instant(at) if at else None,
            total=counts.total(),
            conditions=[
                shown_condition(condition, self._attention.covering(condition))
                for condition in conditions[: query.limit]
            ],
        )

    @endpoint("GET", "/attention/acknowledgements")
    def list_acknowledgements(self) -> AcknowledgementList:
        """List the acknowledgements that have not ended, of the tubes that you may see."""
        return AcknowledgementList(acknowledgements=self._changes.visible())

    @endpoint(
        "POST",
        "/attention/acknowledgements",
        role=OPERATOR,
        status=201,
        errors={409: "There are too many acknowledgements."},
    )
    def acknowledge_conditions(self, body: AcknowledgeConditionsRequest) -> Acknowledgement:
        """Acknowledge conditions: they are not sent to receivers of alerts until the acknowledgement ends.

        The dashboard shows them below the others, with your name and the reason. If a condition was sent before, its
        end is sent too.
        """
        if body.tubes and not is_tube_pattern(body.tubes):
            refuse("tubes", "must be a pattern of tube names: 1 to 200 characters of tube names and *")
        if body.condition and body.condition not in CONDITION_KINDS:
            refuse("condition", f"must be one of {', '.join(CONDITION_KINDS)}")
        reason = " ".join(body.reason.split())
        if not reason:
            refuse("reason", "must not be blank")
        return self._changes.acknowledge(body.tubes, body.condition, body.seconds, reason, covers_new=body.covers_new)

    @endpoint(
        "DELETE",
        "/attention/acknowledgements",
        role=OPERATOR,
        status=204,
        errors={404: "The acknowledgement has ended or does not exist."},
    )
    def end_acknowledgement(self, query: AcknowledgementRequest) -> None:
        """End an acknowledgement. Conditions that still hold are active again, and are sent within seconds."""
        self._changes.end(query.id)
