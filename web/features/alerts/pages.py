"""The page of alerts: receivers, conditions with their state at each receiver, and the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from flask import Flask, redirect, render_template, request, url_for
from markupsafe import Markup
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.receivers import CONDITION_KINDS, SEVERITIES, Receiver
from greenstalk_server.config.tables.roles import ADMIN
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.features.alerts.alerts import Alerts, ReceiverQueue
from greenstalk_server.web.features.alerts.changes import AlertChanges, require_alerts
from greenstalk_server.web.features.alerts.status import alert_status
from greenstalk_server.web.features.conditions.measures import ActiveCondition
from greenstalk_server.web.features.conditions.pages import acknowledge_href
from greenstalk_server.web.features.conditions.rows import AttentionModel
from greenstalk_server.web.features.conditions.visible import Condition, shown_condition
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.rights import open_to
from greenstalk_server.web.live.hub import LiveHub, State, render_blocks

MAX_CONDITIONS: Final = 100
"""Maximum conditions on the page: the worst."""

MAX_DELIVERIES: Final = 100
"""Maximum deliveries on the page: the newest."""

PARTS: Final = ("receivers", "conditions", "log")
"""Blocks of alerts.html, each within an element with its name in `data-part`."""


class AlertPages:
    """The page `/alerts`, and its forms."""

    def __init__(self, alerts: Alerts, changes: AlertChanges, attention: AttentionModel, clock: Clock) -> None:
        self._alerts: Alerts = alerts
        self._changes: AlertChanges = changes
        self._attention: AttentionModel = attention
        self._clock: Clock = clock

    def init_app(self, app: Flask, live: LiveHub) -> None:
        """Add the page to *app*, and register it with *live* for live updates."""
        app.add_url_rule("/alerts", "alerts", self.page)
        app.add_url_rule("/alerts/test", "alerts_test", self.test, methods=["POST"])
        live.register("alerts", self.state)

    def page(self) -> str:
        """Serve `/alerts`."""
        require_alerts()
        return render_template("alerts.html", **self._values(self._clock()), names=list(self._alerts.queues))

    def state(self, _: Mapping[str, str], now: int) -> State:
        """Return the live state of `/alerts`."""
        require_alerts()
        return {"parts": render_blocks("alerts.html", PARTS, self._values(now))}

    @open_to(ADMIN)
    def test(self) -> Response:
        """Serve `/alerts/test`: send a test to `receiver`. Switches."""
        delivery = self._changes.test(request.form.get("receiver", ""))
        notice, number = ("test-failed", 0) if delivery.error else ("tested", round(delivery.seconds * 1000))
        return redirect(url_for("alerts", notice=notice, n=number), 303)

    def _values(self, now: int) -> dict[str, Any]:
        alerts = self._alerts
        status = alert_status(alerts, MAX_DELIVERIES)
        texts = {name: (_receives(queue.receiver), self._state(queue, now)) for name, queue in alerts.queues.items()}
        return {
            "status": status,
            "receiver_texts": texts,
            "conditions": list(self._conditions(now)),
        }

    def _state(self, queue: ReceiverQueue, now: int) -> str:
        """Return the outcome of the last attempt to send to the receiver of *queue*, in words."""
        if queue.error:
            wait = max(0, queue.next_try - now) // SECOND
            when = f"next attempt in {text.duration(wait)}" if wait else "next attempt now"
            return f"The last attempt failed: {queue.error}; {when if queue.failures else 'it was a test'}."
        if self._alerts.sent[queue.receiver.name]:
            return "The last message was accepted."
        return "Nothing has been sent since the start."

    def _conditions(self, now: int) -> Iterator[tuple[Condition, list[tuple[str, str | Markup]], str]]:
        """Yield each condition, its state at each receiver in words, and the URL of the form that acknowledges it.

        The URL is empty if the principal may not acknowledge the condition.
        """
        for condition in self._attention.monitor.conditions[:MAX_CONDITIONS]:
            states = [(name, self._sent(queue, condition, now)) for name, queue in self._alerts.queues.items()]
            measure = condition.measure
            yield shown_condition(condition), states, acknowledge_href(measure.tube.decode(), measure.kind.name)

    def _sent(self, queue: ReceiverQueue, condition: ActiveCondition, now: int) -> str | Markup:
        """Return the state of *condition* at the receiver of *queue*, in words."""
        measure, receiver = condition.measure, queue.receiver
        if not receiver.wants(measure.kind.name, measure.severity, measure.tube):
            return "not sent to this receiver"
        alert = queue.alerts.alerts.get(measure.key)
        sent = Markup("sent {}").format(text.time_tag(alert.sent_at)) if alert is not None and alert.sent_at else ""
        if (one := self._attention.covering(condition)) is not None:
            until = Markup("acknowledged until {}").format(text.time_tag(one.until))
            return Markup("{}, now {}").format(sent, until) if sent else until
        if sent:
            return sent
        if alert is None:
            return "only counted" if queue.alerts.more else "not sent yet"
        if queue.failures:
            return "not accepted yet"
        left = receiver.wait - (now - condition.since)
        return f"is sent if it lasts for {text.duration(left // SECOND + 1)} more" if left > 0 else "being sent"


def _receives(receiver: Receiver) -> str:
    """Return the conditions that *receiver* gets, in words."""
    words = []
    if len(receiver.severities) < len(SEVERITIES):
        words.append(", ".join(sorted(receiver.severities)))
    if len(receiver.kinds) < len(CONDITION_KINDS):
        words.append(", ".join([name for name in CONDITION_KINDS if name in receiver.kinds]))
    if receiver.tubes:
        words.append(f"tubes {', '.join(receiver.tubes)}{' and the server' if receiver.with_server else ''}")
    elif not receiver.with_server:
        words.append("all tubes")
    return "; ".join(words) or "all conditions"
