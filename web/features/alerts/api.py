"""Alerts, as the API returns them: receivers, silences and the log."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from greenstalk_server.config.tables.receivers import CONDITION_KINDS
from greenstalk_server.config.tables.roles import ADMIN, OPERATOR
from greenstalk_server.core.jobs.job import MAX_ID
from greenstalk_server.core.tube_names import is_tube_pattern
from greenstalk_server.web.features.alerts.alerts import address_of
from greenstalk_server.web.features.alerts.changes import AlertChanges, require_alerts
from greenstalk_server.web.features.alerts.silences import MAX_REASON_LENGTH, MAX_SILENCE
from greenstalk_server.web.features.alerts.silences import Silence as StoredSilence
from greenstalk_server.web.features.alerts.state import Delivery as StoredDelivery
from greenstalk_server.web.framework.api.cursors import DEFAULT_LIMIT, Limit
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.api.values import Count, Instant, RequestModel, ResponseModel, instant, model_of

ReceiverName = Annotated[
    str, Meta(min_length=1, max_length=40, description="The name of a receiver.", examples=["ops"])
]


class Receiver(ResponseModel):
    """A receiver of alerts. The configuration file has its address, which the API does not show in full."""

    name: ReceiverName
    template: Annotated[str, Meta(examples=["json", "slack", "pagerduty"])]
    address: Annotated[str, Meta(description="Scheme and host, or where the address is configured.")]
    sent: Annotated[Count, Meta(description="Messages that it has accepted since the start.")]
    failed: Annotated[Count, Meta(description="Attempts that have failed since the start.")]
    waiting: Annotated[Count, Meta(description="Conditions that are due and that it has not accepted.")]
    error: Annotated[str, Meta(description="Why the last attempt failed; empty if it succeeded.")]
    next_attempt_at: Annotated[Instant | None, Meta(description="Earliest next attempt; null for no delay.")]


class Delivery(ResponseModel):
    """An attempt to send a message."""

    at: Instant
    receiver: ReceiverName
    summary: Annotated[str, Meta(examples=["2 firing, 1 resolved", "test"])]
    attempt: Annotated[Count, Meta(description="1 for the first attempt after a success.")]
    status: Annotated[int | None, Meta(description="The HTTP status; null without a response.")]
    seconds: Annotated[float, Meta(description="Duration of the attempt.")]
    error: Annotated[str, Meta(description="Reason why the receiver has not accepted the message; empty if it has.")]


class Silence(ResponseModel):
    """Conditions that are not sent for a while."""

    id: Annotated[int, Meta(ge=1)]
    tubes: Annotated[str | None, Meta(description="Pattern of the tubes; null for all tubes and the server.")]
    condition: Annotated[str | None, Meta(description="The kind of the conditions; null for all.")]
    until: Instant
    since: Instant
    who: Annotated[str, Meta(description="Name of the user who set it.")]
    reason: str


class AlertStatus(ResponseModel):
    """The receivers, and the last messages."""

    receivers: list[Receiver]
    deliveries: Annotated[list[Delivery], Meta(description="Newest first; at most the last 200.")]
    is_kept: Annotated[bool, Meta(description="Whether silences and the log survive a restart.")]
    trouble: Annotated[str, Meta(description="Reason why the last change is not on disk; empty if it is.")]


class SilenceList(ResponseModel):
    """The silences that have not ended."""

    silences: Annotated[list[Silence], Meta(description="In the order of their ends.")]


class ListDeliveriesRequest(RequestModel):
    """Bounds the list."""

    limit: Limit = DEFAULT_LIMIT


class TestReceiverRequest(RequestModel):
    """The receiver."""

    receiver: ReceiverName


class SilenceConditionsRequest(RequestModel):
    """The conditions to silence, and for how long."""

    seconds: Annotated[int, Meta(ge=1, le=MAX_SILENCE, description="Time until the silence ends.")]
    tubes: Annotated[
        str,
        Meta(
            max_length=200, description="Pattern of the tubes; empty for all tubes and the server.", examples=["mail.*"]
        ),
    ] = ""
    condition: Annotated[
        str, Meta(max_length=40, description="The kind of the conditions; empty for all.", examples=["no_consumers"])
    ] = ""
    reason: Annotated[str, Meta(max_length=MAX_REASON_LENGTH)] = ""


class SilenceRequest(RequestModel):
    """The silence."""

    id: Annotated[int, Meta(ge=1, description="The id of a silence.", extra_json_schema={"maximum": MAX_ID})]


HIDDEN: Final = {403: "Only admins and operators may see alerts."}


class Alerts:
    """Alerts: messages about the conditions that need attention, to the receivers in the configuration file."""

    def __init__(self, changes: AlertChanges) -> None:
        self._changes: AlertChanges = changes

    @endpoint("GET", "/alerts", errors=HIDDEN)
    def get_alerts(self, query: ListDeliveriesRequest) -> AlertStatus:
        """Get the receivers of alerts, and the last attempts to send messages."""
        require_alerts()
        alerts = self._changes.alerts
        alerts.follow_configuration()
        return AlertStatus(
            receivers=[
                Receiver(
                    name=name,
                    template=queue.receiver.template,
                    address=address_of(queue.receiver),
                    sent=alerts.sent[name],
                    failed=alerts.failed[name],
                    waiting=alerts.waiting(name),
                    error=queue.error,
                    next_attempt_at=instant(queue.next_try) if queue.next_try else None,
                )
                for name, queue in alerts.queues.items()
            ],
            deliveries=[_delivery_model(delivery) for delivery in alerts.log[: query.limit]],
            is_kept=alerts.is_kept,
            trouble=alerts.trouble,
        )

    @endpoint(
        "POST",
        "/alerts/test",
        role=ADMIN,
        errors={404: "The receiver is not configured.", 429: "Other tests are running."},
    )
    def test_receiver(self, body: TestReceiverRequest) -> Delivery:
        """Send a test to a receiver, and return whether it accepted it.

        The response is sent after the response of the receiver, or after its timeout. A failed test is not repeated.
        """
        return _delivery_model(self._changes.test(body.receiver))

    @endpoint("GET", "/alerts/silences", errors=HIDDEN)
    def list_silences(self) -> SilenceList:
        """List the silences that have not ended."""
        require_alerts()
        return SilenceList(silences=[_silence_model(silence) for silence in self._changes.alerts.silences.all()])

    @endpoint("POST", "/alerts/silences", role=OPERATOR, status=201, errors={409: "There are too many silences."})
    def silence_conditions(self, body: SilenceConditionsRequest) -> Silence:
        """Silence conditions: they are not sent until the silence ends.

        The dashboard still shows them. The end of a condition that was sent before is still sent.
        """
        if body.tubes and not is_tube_pattern(body.tubes):
            refuse("tubes", "must be a pattern of tube names: 1 to 200 characters of tube names and *")
        if body.condition and body.condition not in CONDITION_KINDS:
            refuse("condition", f"must be one of {', '.join(CONDITION_KINDS)}")
        reason = " ".join(body.reason.split())
        return _silence_model(self._changes.silence(body.tubes, body.condition, body.seconds, reason))

    @endpoint(
        "DELETE",
        "/alerts/silences",
        role=OPERATOR,
        status=204,
        errors={404: "The silence has ended or does not exist."},
    )
    def end_silence(self, query: SilenceRequest) -> None:
        """End a silence. Conditions that still hold are sent within seconds."""
        self._changes.end_silence(query.id)


def _delivery_model(delivery: StoredDelivery) -> Delivery:
    return model_of(Delivery, delivery, at=instant(delivery.at), status=delivery.status or None)


def _silence_model(silence: StoredSilence) -> Silence:
    return model_of(
        Silence,
        silence,
        tubes=silence.tubes or None,
        condition=silence.kind or None,
        until=instant(silence.until),
        since=instant(silence.since),
    )
