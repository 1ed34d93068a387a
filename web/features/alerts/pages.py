"""The page of alerts: receivers, conditions with their state at each receiver, silences, and the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from flask import Flask, make_response, redirect, render_template, request, url_for
from markupsafe import Markup
from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.receivers import CONDITION_KINDS, SEVERITIES, Receiver
from greenstalk_server.config.tables.roles import ADMIN, OPERATOR
from greenstalk_server.core.jobs.job import MAX_ID, SECOND
from greenstalk_server.core.tube_names import is_tube_pattern
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.features.alerts.alerts import Alerts, ReceiverQueue
from greenstalk_server.web.features.alerts.changes import AlertChanges, may_silence, require_alerts
from greenstalk_server.web.features.alerts.silences import MAX_REASON_LENGTH, MAX_SILENCE
from greenstalk_server.web.features.alerts.status import alert_status
from greenstalk_server.web.features.conditions.measures import KINDS, ActiveCondition, Measure
from greenstalk_server.web.features.conditions.monitor import ConditionMonitor
from greenstalk_server.web.features.conditions.visible import Condition, shown_condition
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.framework.api.values import instant
from greenstalk_server.web.framework.rights import open_to
from greenstalk_server.web.live.hub import LiveHub, State, render_blocks

MAX_CONDITIONS: Final = 100
"""Maximum conditions on the page: the worst."""

MAX_DELIVERIES: Final = 100
"""Maximum deliveries on the page: the newest."""

PARTS: Final = ("receivers", "conditions", "silences", "log")
"""Blocks of alerts.html, each within an element with its name in `data-part`."""

DURATIONS: Final = ((3600, "1 hour"), (4 * 3600, "4 hours"), (24 * 3600, "1 day"), (7 * 24 * 3600, "7 days"))
"""Seconds and labels that the form offers."""

KIND_LABELS: Final = {kind.name: kind.label for kind in KINDS}


class AlertPages:
    """The page `/alerts`, and its forms."""

    def __init__(self, alerts: Alerts, changes: AlertChanges, attention: ConditionMonitor, clock: Clock) -> None:
        self._alerts: Alerts = alerts
        self._changes: AlertChanges = changes
        self._attention: ConditionMonitor = attention
        self._clock: Clock = clock

    def init_app(self, app: Flask, live: LiveHub) -> None:
        """Add the page to *app*, and register it with *live* for live updates."""
        app.add_url_rule("/alerts", "alerts", self.page)
        app.add_url_rule("/alerts/test", "alerts_test", self.test, methods=["POST"])
        app.add_url_rule("/alerts/silence", "alerts_silence", self.silence, methods=["POST"])
        app.add_url_rule("/alerts/silence/end", "alerts_silence_end", self.end_silence, methods=["POST"])
        live.register("alerts", self.state)

    def page(self) -> str:
        """Serve `/alerts?tubes=&kind=`; the arguments fill the form that silences conditions."""
        require_alerts()
        return self._render({name: request.args.get(name, "")[:200] for name in ("tubes", "kind")}, "")

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

    @open_to(OPERATOR)
    def silence(self) -> Response:
        """Serve `/alerts/silence`: silence conditions of `kind` and `tubes` for `seconds`. Switches."""
        require_alerts()
        form = request.form
        try:
            tubes, kind, seconds, reason = read_silence(form)
        except BadRequest as error:
            return make_response(self._render(form, error.description or ""), 400)
        silence = self._changes.silence(tubes, kind, seconds, reason)
        return redirect(url_for("alerts", notice="silenced", n=silence.id), 303)

    @open_to(OPERATOR)
    def end_silence(self) -> Response:
        """Serve `/alerts/silence/end`: end the silence `id`. Switches."""
        self._changes.end_silence(fields.number(request.form, "id", 1, MAX_ID))
        return redirect(url_for("alerts", notice="ended-silence", n=0), 303)

    def _render(self, form: Mapping[str, str], refused: str) -> str:
        return render_template(
            "alerts.html",
            **self._values(self._clock()),
            form=form,
            refused=refused,
            kinds=[(name, f"{KIND_LABELS[name]} ({name})") for name in CONDITION_KINDS],
            durations=DURATIONS,
            longest_reason=MAX_REASON_LENGTH,
            names=list(self._alerts.queues),
        )

    def _values(self, now: int) -> dict[str, Any]:
        alerts = self._alerts
        status = alert_status(alerts, MAX_DELIVERIES)
        texts = {name: (_receives(queue.receiver), self._state(queue, now)) for name, queue in alerts.queues.items()}
        return {
            "status": status,
            "receiver_texts": texts,
            "conditions": list(self._conditions(now)),
            "silences": [silence for silence in alerts.silences.all() if silence.until > instant(now)],
            "kind_labels": KIND_LABELS,
            "may_silence": may_silence,
            "now": instant(now),
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
        """Yield each condition, its state at each receiver in words, and the URL of the form that silences it.

        The URL is empty if the principal may not silence the condition.
        """
        for condition in self._attention.conditions[:MAX_CONDITIONS]:
            states = [(name, self._sent(queue, condition, now)) for name, queue in self._alerts.queues.items()]
            yield shown_condition(condition), states, _silence_href(condition.measure)

    def _sent(self, queue: ReceiverQueue, condition: ActiveCondition, now: int) -> str | Markup:
        """Return the state of *condition* at the receiver of *queue*, in words."""
        measure, receiver = condition.measure, queue.receiver
        if not receiver.wants(measure.kind.name, measure.severity, measure.tube):
            return "not sent to this receiver"
        alert = queue.alerts.alerts.get(measure.key)
        sent = Markup("sent {}").format(text.time_tag(alert.sent_at)) if alert is not None and alert.sent_at else ""
        if (silence := self._alerts.silences.covers(measure.kind.name, measure.tube, now)) is not None:
            until = Markup("silenced until {}").format(text.time_tag(silence.until))
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


def read_silence(form: Mapping[str, str]) -> tuple[str, str, int, str]:
    """Return the fields `tubes`, `kind`, `seconds` and `reason` of *form*; raise BadRequest."""
    tubes, kind = form.get("tubes", "").strip(), form.get("kind", "")
    if tubes and not is_tube_pattern(tubes):
        raise BadRequest(
            f"“tubes” must be a pattern of tube names, not “{tubes[:60]}”: 1 to 200 characters of tube names and *, or"
            " empty for all."
        )
    if kind and kind not in CONDITION_KINDS:
        raise BadRequest(f"“kind” must be one of {', '.join(CONDITION_KINDS)}, or empty for all.")
    seconds = fields.number(form, "seconds", 1, MAX_SILENCE)
    return tubes, kind, seconds, fields.line(form, "reason", MAX_REASON_LENGTH)


def _silence_href(measure: Measure) -> str:
    tube = measure.tube.decode()
    if not may_silence(tube):
        return ""
    return url_for("alerts", tubes=tube or None, kind=measure.kind.name, _anchor="silence")
