"""Alerts, as the API returns them: receivers and the log."""

from __future__ import annotations

from typing import Final

from greenstalk_server.config.tables.roles import ADMIN
from greenstalk_server.web.features.alerts.changes import AlertChanges, require_alerts
from greenstalk_server.web.features.alerts.state import Delivery, ReceiverName
from greenstalk_server.web.features.alerts.status import AlertStatus, alert_status
from greenstalk_server.web.framework.api.cursors import DEFAULT_LIMIT, Limit
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.values import RequestModel


class ListDeliveriesRequest(RequestModel):
    """Bounds the list."""

    limit: Limit = DEFAULT_LIMIT


class TestReceiverRequest(RequestModel):
    """The receiver."""

    receiver: ReceiverName


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
