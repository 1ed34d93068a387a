"""Changes of alerts, with their audit entries: silences, and tests of receivers."""

from __future__ import annotations

from typing import Final

from werkzeug.exceptions import Forbidden, NotFound, TooManyRequests

from greenstalk_server.web.features.alerts.alerts import Alerts
from greenstalk_server.web.features.alerts.silences import Silence
from greenstalk_server.web.features.alerts.state import Delivery
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.store.audit import Audit

MAX_TESTS: Final = 2
"""Maximum tests at the same time: each may use a thread until its timeout."""


def sees_alerts() -> bool:
    """Return whether the principal may see receivers, silences and the log."""
    who = principal()
    return who.is_admin or who.sees_audit or (who.operates_any and who.sees_all)


def require_alerts() -> None:
    """Raise Forbidden unless the principal may see receivers, silences and the log."""
    if not sees_alerts():
        raise Forbidden("Only admins, and operators who may see all tubes, may see the alerts.")


class AlertChanges:
    """The changes of alerts by principals."""

    def __init__(self, alerts: Alerts, audit: Audit) -> None:
        self.alerts: Alerts = alerts
        self._audit: Audit = audit
        self._tests: int = 0

    def silence(self, tubes: str, kind: str, seconds: int, reason: str) -> Silence:
        """Silence conditions; raise Forbidden or Conflict. Switches."""
        _require_silencing(tubes)
        silence = self.alerts.silence(tubes, kind, seconds, principal().name, reason)
        self._audit.note("alerts/silence", silence=silence.id, tubes=tubes, kind=kind, seconds=seconds, reason=reason)
        return silence

    def end_silence(self, id: int) -> None:
        """End a silence; raise Forbidden or NotFound. Switches."""
        silence = self.alerts.silences.get(id)
        if silence is None:
            raise NotFound(f"There is no silence {id}: it has ended.")
        _require_silencing(silence.tubes or "")
        self.alerts.end_silence(id)
        self._audit.note("alerts/silence/end", silence=id, tubes=silence.tubes or "", kind=silence.condition or "")

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


def may_silence(tubes: str) -> bool:
    """Return whether the principal may silence the conditions of the pattern *tubes*; empty for all conditions."""
    who = principal()
    return who.is_admin or (bool(tubes) and "*" not in tubes and who.operates(tubes.encode()))


def _require_silencing(tubes: str) -> None:
    """Raise Forbidden unless `may_silence` returns True."""
    require_alerts()
    if not may_silence(tubes):
        raise Forbidden("You may silence only single tubes whose jobs you may change, not patterns or the server.")
