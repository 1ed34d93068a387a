"""The receivers, and the last messages, as the page and the API show them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from greenstalk_server.config.tables.targets import ENVIRONMENT, Target, shown_url
from greenstalk_server.web.features.alerts.alerts import Alerts
from greenstalk_server.web.features.alerts.state import Delivery, ReceiverName
from greenstalk_server.web.framework.api.values import Count, Instant, ResponseModel, instant


class Receiver(ResponseModel):
    """A receiver of alerts. The configuration file has its address, which the API does not show in full."""

    name: ReceiverName
    template: Annotated[str, Meta(examples=["json", "slack", "pagerduty"])]
    address: Annotated[str, Meta(description="Scheme and host, or where the address is configured.")]
    sent: Annotated[Count, Meta(description="Messages that it has accepted since the start.")]
    failed: Annotated[Count, Meta(description="Attempts that have failed since the start.")]
    waiting: Annotated[Count, Meta(description="Conditions that are due and that it has not accepted.")]
    error: Annotated[str, Meta(description="Reason why the last attempt failed; empty if it succeeded.")]
    next_attempt_at: Annotated[Instant | None, Meta(description="Earliest next attempt; null for no delay.")]


class AlertStatus(ResponseModel):
    """The receivers, and the last messages."""

    receivers: list[Receiver]
    deliveries: Annotated[list[Delivery], Meta(description="Newest first; at most the last 200.")]
    is_kept: Annotated[bool, Meta(description="Whether the log survives a restart.")]
    trouble: Annotated[str, Meta(description="Reason why the last change is not on disk; empty if it is.")]


def alert_status(alerts: Alerts, limit: int) -> AlertStatus:
    """Return the status of *alerts* with at most *limit* deliveries, by the current configuration. Does not switch."""
    alerts.follow_configuration()
    receivers = [
        Receiver(
            name=name,
            template=queue.receiver.template,
            address=_shown_address(queue.receiver.target),
            sent=alerts.sent[name],
            failed=alerts.failed[name],
            waiting=alerts.waiting(name),
            error=queue.error,
            next_attempt_at=instant(queue.next_try) if queue.next_try else None,
        )
        for name, queue in alerts.queues.items()
    ]
    deliveries = alerts.log[:limit]
    return AlertStatus(
        receivers=receivers, deliveries=deliveries, is_kept=alerts.store.is_kept, trouble=alerts.store.last_error
    )


def _shown_address(target: Target) -> str:
    """Return the scheme and the host of *target*, or where its address is configured."""
    if target.secret_url is None:
        return shown_url(target.url)
    kind, place = target.secret_url
    return f"in the variable {place}" if kind == ENVIRONMENT else f"in the file {place}"
