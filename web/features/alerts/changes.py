"""Tests of receivers, with their audit entries."""

from __future__ import annotations

from typing import Final

from werkzeug.exceptions import Forbidden, TooManyRequests

from greenstalk_server.web.features.alerts.alerts import Alerts
from greenstalk_server.web.features.alerts.state import Delivery
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.store.audit import Audit

MAX_TESTS: Final = 2
"""Maximum tests at the same time: each may use a thread until its timeout."""


def sees_alerts() -> bool:
    """Return whether the principal may see receivers and the log."""
    who = principal()
    return who.is_admin or who.sees_audit or (who.operates_any and who.sees_all)


def require_alerts() -> None:
    """Raise Forbidden unless the principal may see receivers and the log."""
    if not sees_alerts():
        raise Forbidden("Only admins, and operators who may see all tubes, may see the alerts.")


class AlertChanges:
    """The changes of alerts by principals."""

    def __init__(self, alerts: Alerts, audit: Audit) -> None:
        self.alerts: Alerts = alerts
        self._audit: Audit = audit
        self._tests: int = 0

    def test(self, receiver: str) -> Delivery:
        """Send a test to *receiver*; raise Forbidden, NotFound or TooManyRequests. Switches."""
        if not principal().is_admin:
            raise Forbidden("Only admins may test receivers.")
        if self._tests >= MAX_TESTS:
            raise TooManyRequests("Other tests are running. Try again when they have ended.", retry_after=10)
        self._tests += 1
        try:
            delivery = self.alerts.test(receiver)
        finally:
            self._tests -= 1
        self._audit.note("alerts/test", receiver=receiver, status=delivery.status or 0, error=delivery.error)
        return delivery
