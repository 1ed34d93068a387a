"""Alerts, as the API returns them: receivers, silences and the log."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from greenstalk_server.config.tables.receivers import CONDITION_KINDS
from greenstalk_server.config.tables.roles import ADMIN, OPERATOR
from greenstalk_server.core.jobs.job import MAX_ID
from greenstalk_server.core.tube_names import is_tube_pattern
from greenstalk_server.web.features.alerts.changes import AlertChanges, require_alerts
from greenstalk_server.web.features.alerts.silences import MAX_REASON_LENGTH, MAX_SILENCE, Silence
from greenstalk_server.web.features.alerts.state import Delivery, ReceiverName
from greenstalk_server.web.features.alerts.status import AlertStatus, alert_status
from greenstalk_server.web.framework.api.cursors import DEFAULT_LIMIT, Limit
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.api.values import RequestModel, ResponseModel


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


class AlertsEndpoints:
    """Alerts: messages about the conditions that need attention, to the receivers in the configuration file."""

    def __init__(self, changes: AlertChanges) -> None:
        self._changes: AlertChanges = changes

    @endpoint("GET", "/alerts", errors=HIDDEN)
    def get_alerts(self, query: ListDeliveriesRequest) -> AlertStatus:
        """Get the receivers of alerts, and the last attempts to send messages."""
        require_alerts()
        return alert_status(self._changes.alerts, query.limit)

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
        return self._changes.test(body.receiver)

    @endpoint("GET", "/alerts/silences", errors=HIDDEN)
    def list_silences(self) -> SilenceList:
        """List the silences that have not ended."""
        require_alerts()
        return SilenceList(silences=self._changes.alerts.silences.all())

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
        return self._changes.silence(body.tubes, body.condition, body.seconds, reason)

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
