"""The conditions that were sent to one receiver, and its next message. Pure: no clock, no I/O.

A condition is sent when it has lasted for the receiver's `wait`, again when its severity rises, and again after each
`repeat`. Its end is sent once, when the condition has been over for `resolve_after`.

Invariant: a receiver has at most MAX_ALERTS alerts of each severity, and one alert about the conditions in excess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from operator import itemgetter
from typing import Final, NamedTuple

from msgspec import Struct

from greenstalk_server.config.tables.receivers import Receiver
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.features.conditions.measures import (
    CRITICAL,
    SEVERITIES,
    ActiveCondition,
    ConditionKey,
    Link,
    Rank,
    Severity,
    rank,
)
from greenstalk_server.web.framework import text
from greenstalk_server.web.store.rows import Time

MAX_ALERTS: Final = 50
"""Maximum alerts of each severity. Further conditions are only counted."""

MAX_CANDIDATES: Final = 256
"""Maximum new conditions that are compared in one round to fill free places."""

RESTORED_TIME: Final = 900 * SECOND
"""A condition that was sent before a restart does not end during the first RESTORED_TIME after it, nanoseconds. Growth
is measured over 15 minutes, and some conditions have a delay, so a condition may hold although the first rounds do not
find it."""

MORE: Final = "more"
"""Kind of the alert about the conditions in excess."""


class Alert(Struct, kw_only=True):
    """A condition at one receiver, which the store keeps as JSON.

    since           when the condition began.
    is_present      whether the last round found the condition.
    ended_at        when a round first found that it no longer holds.
    sent_at         when it was last sent as firing.
    sent_severity   the severity that was sent.
    kept_until      it does not end before this time.
    """

    kind: str
    tube: str
    detail: str
    severity: Severity
    sentence: str
    since: Time
    value: float
    threshold: float
    link: Link
    is_present: bool = True
    ended_at: Time = 0
    sent_at: Time = 0
    sent_severity: str = ""
    kept_until: Time = 0

    @property
    def key(self) -> ConditionKey:
        return self.kind, self.tube.encode(), self.detail

    @property
    def is_resolved(self) -> bool:
        return bool(self.ended_at)

    @property
    def is_repeat(self) -> bool:
        """Whether the next message repeats the condition."""
        return bool(self.sent_at) and not self.ended_at


class Batch(NamedTuple):
    """Copies of the alerts that are due for a receiver: the worst first, the resolved conditions last."""

    items: tuple[Alert, ...]

    def summary(self) -> str:
        """Return the numbers of items, such as `2 firing, 1 resolved`."""
        resolved = sum(item.is_resolved for item in self.items)
        counts = ((len(self.items) - resolved, "firing"), (resolved, "resolved"))
        return ", ".join([f"{count} {word}" for count, word in counts if count])


IsAcknowledged = Callable[[str, bytes], bool]
"""Whether conditions of a kind and a tube are acknowledged; an empty tube is the server."""


class ReceiverAlerts:
    """The alerts of one receiver. A round calls `begin_round`, `take` for each active condition, and `end_round`.

    more            conditions in excess in the last round.
    sent_at         when a message was last accepted, nanoseconds.
    """

    def __init__(self, receiver: Receiver, restored: Iterable[Alert] = ()) -> None:
        """*restored* are alerts that were sent before a restart."""
        self.receiver: Receiver = receiver
        self.alerts: dict[ConditionKey, Alert] = {alert.key: alert for alert in restored}
        self.more: int = 0
        self.sent_at: int = 0
        self._seen: set[ConditionKey] = set()
        self._candidates: list[tuple[Rank, ActiveCondition]] = []
        self._omitted: int = 0

    def begin_round(self) -> None:
        self._seen, self._candidates, self._omitted = set(), [], 0

    def take(self, condition: ActiveCondition, is_acknowledged: IsAcknowledged) -> None:
        """Add an active condition of this round."""
        measure = condition.measure
        if not self.receiver.wants(measure.kind.name, measure.severity, measure.tube):
            return
        key = measure.key
        alert = self.alerts.get(key)
        if alert is not None:
            self._seen.add(key)
            _update(alert, condition)
        elif not is_acknowledged(measure.kind.name, measure.tube):
            self._candidates.append((rank(condition), condition))
            if len(self._candidates) >= MAX_CANDIDATES:
                self._candidates.sort(key=itemgetter(0))
                self._omitted += len(self._candidates) - 2 * MAX_ALERTS
                del self._candidates[2 * MAX_ALERTS :]

    def end_round(self, now: int) -> None:
        """Record the conditions that have ended, and fill free places with the worst new conditions."""
        for key, alert in list(self.alerts.items()):
            alert.is_present = key in self._seen
            if alert.is_present:
                alert.ended_at = 0
            elif key[0] != MORE and now >= alert.kept_until:
                self._end(alert, now)
        self._candidates.sort(key=itemgetter(0))
        left_out = None
        free = {severity: MAX_ALERTS - self._count(severity) for severity in SEVERITIES}
        for _, condition in self._candidates:
            measure = condition.measure
            if free[measure.severity] > 0:
                free[measure.severity] -= 1
                alert = _new_alert(condition)
                self.alerts[alert.key] = alert
            else:
                self._omitted += 1
                left_out = left_out or condition
        self.more = self._omitted
        self._note_more(left_out, now)
        self._candidates = []

    def due(self, now: int, is_acknowledged: IsAcknowledged) -> Batch:
        """Return the batch that is due at *now*. Changes nothing."""
        receiver = self.receiver
        begun, again, resolved, soon = list[Alert](), list[Alert](), list[Alert](), list[Alert]()
        for alert in self.alerts.values():
            if alert.ended_at:
                if now - alert.ended_at >= receiver.resolve_after:
                    resolved.append(alert)
            elif not alert.is_present or is_acknowledged(alert.kind, alert.tube.encode()):
                continue
            elif not alert.sent_at or (alert.severity == CRITICAL != alert.sent_severity):
                if now - alert.since >= receiver.wait:
                    begun.append(alert)
            elif receiver.repeat and now - alert.sent_at >= receiver.repeat:
                again.append(alert)
            elif receiver.repeat and now - alert.sent_at >= receiver.repeat * 9 // 10:
                soon.append(alert)  # in the same message as the others, instead of in one of its own
        is_urgent = any(alert.severity == CRITICAL for alert in begun)
        if not (begun or again or resolved) or (now - self.sent_at < receiver.interval and not is_urgent):
            return Batch(())
        firing = [*begun, *again, *soon]
        return Batch(tuple([copy(alert) for some in (firing, resolved) for alert in sorted(some, key=_order)]))

    def accept(self, items: Iterable[Alert], now: int) -> None:
        """Record that the receiver has accepted *items*."""
        self.sent_at = now
        for item in items:
            alert = self.alerts.get(item.key)
            if alert is None:
                continue
            if not item.is_resolved:
                alert.sent_at, alert.sent_severity = now, item.severity
            elif alert.ended_at:
                del self.alerts[item.key]
            else:
                alert.sent_at, alert.sent_severity = 0, ""  # the condition began again while its end was sent

    def waiting(self, now: int, is_acknowledged: IsAcknowledged) -> int:
        """Return the number of items that are due at *now*."""
        return len(self.due(now, is_acknowledged).items)

    def _end(self, alert: Alert, now: int) -> None:
        """Record the end of the condition of *alert*; remove the alert if no message about the end is needed."""
        alert.ended_at = alert.ended_at or now
        is_over = now - alert.ended_at >= self.receiver.resolve_after
        if not alert.sent_at or (is_over and not self.receiver.with_resolved):
            del self.alerts[alert.key]

    def _count(self, severity: str) -> int:
        return sum(alert.severity == severity and alert.kind != MORE for alert in self.alerts.values())

    def _note_more(self, worst: ActiveCondition | None, now: int) -> None:
        """Begin, continue or end the alert about the conditions in excess; *worst* is the worst of them."""
        key = (MORE, b"", "")
        alert = self.alerts.get(key)
        if worst is None:
            if alert is not None:
                self._end(alert, now)
            return
        verb = "condition needs" if self.more == 1 else "conditions need"
        sentence = f"{text.number(self.more)} more {verb} attention; the dashboard shows them."
        if alert is None:
            alert = self.alerts[key] = _new_alert(worst)
            alert.kind, alert.tube, alert.detail, alert.since = MORE, "", "", now
            alert.threshold, alert.link = 0.0, Link("overview", {})
        alert.severity, alert.sentence, alert.value = worst.measure.severity, sentence, float(self.more)
        alert.is_present, alert.ended_at = True, 0


def _new_alert(condition: ActiveCondition) -> Alert:
    measure = condition.measure
    return Alert(
        kind=measure.kind.name,
        tube=measure.tube.decode(),
        detail=measure.detail,
        severity=measure.severity,
        sentence=measure.sentence,
        since=condition.since,
        value=measure.value,
        threshold=measure.threshold,
        link=measure.link,
    )


def _update(alert: Alert, condition: ActiveCondition) -> None:
    measure = condition.measure
    if alert.sent_at == 0:
        alert.since = condition.since  # after a restart, a condition that was sent keeps its beginning
    alert.severity, alert.sentence, alert.link = measure.severity, measure.sentence, measure.link
    alert.value, alert.threshold = measure.value, measure.threshold


def _order(alert: Alert) -> tuple[int, int, str]:
    return SEVERITIES.index(alert.severity), alert.since, alert.tube
