"""The requests to receivers, in the form of each template. Pure. docs/alerts.md describes the forms."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from greenstalk_server.config.tables.receivers import PAGERDUTY, SLACK, Receiver
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.features.alerts.receiver_alerts import Alert, Batch
from greenstalk_server.web.features.conditions.measures import FAILURE, WARNING, ConditionKey, Link

VERSION: Final = 1
"""Version of the template `json`. New keys do not change it."""

SIGNATURE: Final = "X-Greenstalk-Signature"
"""Header with `sha256=` and the HMAC of the body in hexadecimal digits."""

MAX_LINES: Final = 20
"""Maximum conditions in a message to a chat."""

MAX_SUMMARY: Final = 1000
MAX_DEDUP_KEY: Final = 255
"""Characters that the Events API of PagerDuty accepts."""

TEST: Final = "test"
"""Kind of the condition of a test."""

TEST_SENTENCE: Final = "This is a test of the receiver. Nothing needs attention."

Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Message:
    """One request about *items*: *build* returns its headers and its body for the receiver's secret."""

    items: tuple[Alert, ...]
    build: Callable[[str], tuple[Headers, bytes]]


def messages(
    receiver: Receiver, batch: Batch, more: int, source: str, path_of: Callable[[Link], str], now: int
) -> Iterator[Message]:
    """Yield the requests that send *batch* to *receiver*, in order.

    source      name of this server, or of the journal that it shares; `source` of the receiver overrides it.
    path_of     returns the path of a page below the dashboard's address.
    """
    make = _MessageFormatter(receiver, receiver.source or source, path_of, now)
    if receiver.template == PAGERDUTY:
        for item in batch.items:
            yield Message((item,), _as_body(receiver, lambda secret, item=item: make.event(item, secret)))  # type: ignore[misc]
        return
    document = make.chat_text(batch, more) if receiver.template == SLACK else make.document(batch, more)
    yield Message(batch.items, _as_body(receiver, lambda _: document))


def test_batch(now: int) -> Batch:
    """Return a batch with one item, a test."""
    test = Alert(
        kind=TEST,
        tube="",
        detail="",
        severity=WARNING,
        sentence=TEST_SENTENCE,
        since=now,
        value=0.0,
        threshold=0.0,
        link=Link("overview", {}),
    )
    return Batch((test,))


def dedup_key(source: str, key: ConditionKey) -> str:
    """Return the name of a condition, which is the same in every message about it."""
    kind, tube, detail = key
    name = "/".join(["greenstalk", source, kind, *filter(None, (tube.decode(), detail))])
    return name if len(name) <= MAX_DEDUP_KEY else f"greenstalk/{sha256(name.encode()).hexdigest()}"


def _as_body(receiver: Receiver, document: Callable[[str], Any]) -> Callable[[str], tuple[Headers, bytes]]:
    def build(secret: str) -> tuple[Headers, bytes]:
        body = json.dumps(document(secret), ensure_ascii=False).encode(errors="replace")
        headers = {"Content-Type": "application/json", **receiver.headers}
        if secret and receiver.template != PAGERDUTY:
            headers[SIGNATURE] = f"sha256={hmac.new(secret.encode(), body, sha256).hexdigest()}"
        return headers, body

    return build


class _MessageFormatter:
    """Makes the documents of one batch. The constructor makes the links, which needs the event loop."""

    def __init__(self, receiver: Receiver, source: str, path_of: Callable[[Link], str], now: int) -> None:
        self._receiver: Receiver = receiver
        self._source: str = source
        self._path_of: Callable[[Link], str] = path_of
        self._now: int = now

    def document(self, batch: Batch, more: int) -> dict[str, Any]:
        """Return the message in the form `json`."""
        return {
            "version": VERSION,
            "receiver": self._receiver.name,
            "source": self._source,
            "dashboard": self._receiver.dashboard_url or None,
            "sent_at": _time(self._now),
            "status": _status(all(item.is_resolved for item in batch.items)),
            "conditions": [self._condition(item) for item in batch.items],
            "more": more,
        }

    def _condition(self, item: Alert) -> dict[str, Any]:
        return {
            "id": dedup_key(self._source, item.key),
            "status": _status(item.is_resolved),
            "is_repeat": item.is_repeat,
            "condition": item.kind,
            "severity": item.severity,
            "tube": item.tube or None,
            "limit": item.detail or None,
            "since": _time(item.since),
            "value": item.value,
            "threshold": item.threshold,
            "sentence": item.sentence,
            "link": self._link(item) or None,
        }

    def chat_text(self, batch: Batch, more: int) -> dict[str, str]:
        """Return the message in the form `slack`: one text with a line for each condition."""
        lines = [f"*{_escaped(self._source)}*: {_headline(batch)}"]
        for item in batch.items[:MAX_LINES]:
            word = "resolved" if item.is_resolved else item.severity
            link = self._link(item)
            lines.append(f"• *{word}* {_escaped(item.sentence)}{f' <{link}|Open>' if link else ''}")
        if left := len(batch.items) - MAX_LINES + more if len(batch.items) > MAX_LINES else more:
            lines.append(f"• {left} more")
        return {"text": "\n".join(lines)}

    def event(self, item: Alert, routing_key: str) -> dict[str, Any]:
        """Return the event of *item* in the form `pagerduty`."""
        event: dict[str, Any] = {
            "routing_key": routing_key,
            "event_action": "resolve" if item.is_resolved else "trigger",
            "dedup_key": dedup_key(self._source, item.key),
        }
        if item.is_resolved:
            return event
        event["payload"] = {
            "summary": f"{self._source}: {item.sentence}"[:MAX_SUMMARY],
            "source": self._source,
            "severity": "error" if item.severity == FAILURE else item.severity,
            "timestamp": _time(item.since),
            "component": item.tube or "server",
            "class": item.kind,
            "custom_details": {"value": item.value, "threshold": item.threshold},
        }
        event["client"] = "Greenstalk Server"
        if link := self._link(item):
            event["client_url"] = link
        return event

    def _link(self, item: Alert) -> str:
        base = self._receiver.dashboard_url
        return f"{base}{self._path_of(item.link)}" if base else ""


def _headline(batch: Batch) -> str:
    if any(item.kind == TEST for item in batch.items):
        return "test"
    return batch.summary()


def _status(is_resolved: bool) -> str:
    return "resolved" if is_resolved else "firing"


def _time(nanoseconds: int) -> str:
    at = datetime.fromtimestamp(nanoseconds // SECOND, UTC)
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")


def _escaped(value: str) -> str:
    """Return *value* with markup escaped, so that it cannot mention anyone."""
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")
