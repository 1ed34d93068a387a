"""The active conditions that the principal may see, as pages and the API show them."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from flask import url_for
from msgspec import Meta

from greenstalk_server.web.features.conditions.acknowledgements import Acknowledgement
from greenstalk_server.web.features.conditions.measures import ActiveCondition, Severity
from greenstalk_server.web.features.conditions.monitor import ConditionMonitor, KindCount
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.api.values import Instant, ResponseModel, instant


class Condition(ResponseModel):
    """A condition that needs attention."""

    condition: Annotated[
        str, Meta(description="The kind; docs/dashboard.md lists all.", examples=["no_consumers", "limit"])
    ]
    severity: Annotated[
        Severity,
        Meta(description="`critical`: puts are refused, or soon will be."),
    ]
    tube: Annotated[str | None, Meta(description="Null for a condition of the server.", examples=["mail"])]
    limit: Annotated[str | None, Meta(description="The limit that is near, or that refused requests; else null.")]
    since: Annotated[Instant, Meta(description="When the value reached its threshold.")]
    value: Annotated[float, Meta(description="In seconds, jobs, bytes, or as a share of a limit.")]
    threshold: Annotated[float, Meta(description="In the unit of `value`.")]
    sentence: Annotated[str, Meta(description="Describes the condition, with its numbers.")]
    link: Annotated[str, Meta(description="Path of the page about the jobs or workers concerned.")]
    acknowledged_by: Annotated[str | None, Meta(description="Who acknowledged it; null if it is not acknowledged.")]
    acknowledged_until: Annotated[Instant | None, Meta(description="When the acknowledgement ends at the latest.")]
    reason: Annotated[str | None, Meta(description="Reason why it was acknowledged.")]


def visible_conditions(attention: ConditionMonitor) -> tuple[tuple[ActiveCondition, ...], Counter[KindCount]]:
    """Return the conditions that the principal may see, the worst first, and their number by kind. May switch."""
    who = principal()
    return (attention.conditions, attention.counts) if who.sees_all else attention.visible_to(who.sees)


def shown_condition(condition: ActiveCondition, by: Acknowledgement | None = None) -> Condition:
    """Return *condition*, acknowledged *by*, without the name of a dead-letter tube that the principal may not see."""
    measure = condition.measure
    args: dict[str, Any] = measure.link.args
    sentence, target = measure.sentence, str(args.get("tube", "")).encode()
    if target and not principal().sees(target):
        sentence = sentence.replace(f"“{target.decode()}”", "another tube")
        args = {"tube": measure.tube.decode()}
    return Condition(
        condition=measure.kind.name,
        severity=measure.severity,
        tube=measure.tube.decode() or None,
        limit=measure.detail or None,
        since=instant(condition.since),
        value=measure.value,
        threshold=measure.threshold,
        sentence=sentence,
        link=url_for(measure.link.endpoint, **args),
        acknowledged_by=by.who if by is not None else None,
        acknowledged_until=by.until if by is not None else None,
        reason=by.reason if by is not None else None,
    )
