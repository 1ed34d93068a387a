"""The state of the alerts that survives a restart: the sent conditions, the silences, and the log of messages.

It is one row of the store. If the row is damaged, the state starts empty: conditions that still hold are sent again.
"""

from __future__ import annotations

import json
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from types import NoneType
from typing import Any, Final, TypeVar, get_type_hints

from gevent.lock import BoundedSemaphore

from greenstalk_server.core.tube_names import is_tube_pattern
from greenstalk_server.runtime.threads import run_in_thread
from greenstalk_server.web.features.alerts.receiver_alerts import MAX_ALERTS, Alert
from greenstalk_server.web.features.alerts.silences import MAX_SILENCES, Silence, Silences
from greenstalk_server.web.features.conditions.measures import SEVERITIES, Link
from greenstalk_server.web.store.rows import Row
from greenstalk_server.web.store.store import Store

log = logging.getLogger(__name__)

ROW: Final = "alerts"
"""Kind of the row."""

VERSION: Final = 1

MAX_LOG: Final = 200
"""Maximum deliveries in the log."""

T = TypeVar("T")

MAX_TIME: Final = 2**63
"""Times and numbers in documents are below this: nanoseconds since the Unix epoch until the year 2262."""

_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""A lone surrogate: JSON may contain it, but a response may not."""

_ALERT_FIELDS: Final = tuple([field.name for field in fields(Alert)])


@dataclass(frozen=True, slots=True)
class Delivery:
    """An attempt to send a message.

    number          sequence number of the attempt; continues across restarts.
    at              when it began, nanoseconds since the Unix epoch.
    summary         number of items, without names of tubes: `2 firing, 1 resolved`, or `test`.
    attempt         1 for the first attempt after a success.
    status          HTTP status; 0 without a response.
    seconds         from the DNS query to the end of the response.
    error           reason why the receiver has not accepted the message; empty if it has.
    """

    number: int
    at: int
    receiver: str
    summary: str
    attempt: int
    status: int
    seconds: float
    error: str


class State:
    """The state of one server.

    alerts          the sent alerts by receiver, as they were at the last save; empty before the store is restored.
    """

    def __init__(self, store: Store, on_restored: Callable[[], None] = lambda: None) -> None:
        """Call *on_restored* when the state of the previous run has been read."""
        self.alerts: dict[str, list[Alert]] = {}
        self.silences: Silences = Silences()
        self.log: deque[Delivery] = deque(maxlen=MAX_LOG)
        self._store: Store = store
        self._on_restored: Callable[[], None] = on_restored
        self._saving: BoundedSemaphore = BoundedSemaphore()
        store.on_restore(ROW, self._restore)

    @property
    def is_kept(self) -> bool:
        """Whether the state survives a restart."""
        return self._store.is_kept

    @property
    def trouble(self) -> str:
        """Reason why the state in memory is not saved; empty if it is."""
        return self._store.last_error

    def save(self, alerts: Callable[[], Mapping[str, Iterable[Alert]]]) -> None:
        """Write the state with the sent ones of *alerts*, which are by receiver, or set `trouble`. Switches."""
        with self._saving:  # a later state must not be replaced by this one
            self._store.put(ROW, 0, b"", run_in_thread(_encoded, self._document(alerts())))
        self._store.save()

    def _restore(self, rows: list[Row]) -> None:
        for row in rows:
            try:
                self.alerts, self.silences, deliveries = _parse(row.data)
            except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
                lost = "silences are lost, and conditions that still hold are sent again"
                log.error("alerts: their state is damaged (%s): %s", error, lost)  # noqa: TRY400  the message is complete
            else:
                self.log.extend(deliveries)
        self._on_restored()

    def _document(self, alerts: Mapping[str, Iterable[Alert]]) -> dict[str, Any]:
        return {
            "version": VERSION,
            "alerts": {name: [_alert_document(each) for each in some if each.sent_at] for name, some in alerts.items()},
            "last_silence": self.silences.last,
            "silences": [asdict(silence) for silence in self.silences.all()],
            "log": [asdict(delivery) for delivery in self.log],
        }


def _parse(data: bytes) -> tuple[dict[str, list[Alert]], Silences, list[Delivery]]:
    """Return the parts of the document, which is untrusted.

    Raise AttributeError, KeyError, TypeError or ValueError if it is damaged.
    """
    document = json.loads(data)
    if document["version"] != VERSION:
        raise ValueError(f"its version is {document['version']!r}, not {VERSION}")
    alerts = {name: [_alert(values) for values in some] for name, some in document["alerts"].items()}
    silences = [_read(Silence, values) for values in document["silences"]]
    last = document["last_silence"]
    if type(last) is not int or len(silences) > MAX_SILENCES:
        raise ValueError("it has too many silences, or lacks the number of the last one")
    if max(map(len, alerts.values()), default=0) > 2 * MAX_ALERTS + 1:
        raise ValueError("it has too many alerts")
    if not all(is_tube_pattern(silence.tubes) for silence in silences if silence.tubes):
        raise ValueError("a silence is for a pattern that cannot match any tube")
    return alerts, Silences(silences, last), [_read(Delivery, values) for values in document["log"]]


def _encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode(errors="replace")


def _alert_document(alert: Alert) -> dict[str, Any]:
    values = {name: getattr(alert, name) for name in _ALERT_FIELDS}  # asdict takes five times as long
    return values | {"tube": alert.tube.decode(), "link": [alert.link.endpoint, alert.link.args]}


def _alert(values: dict[str, Any]) -> Alert:
    endpoint, args = values["link"]
    if not isinstance(endpoint, str) or not all(isinstance(value, str) for value in args.values()):
        raise ValueError(f"a link is of the wrong type in {str(values)[:200]}")
    if values["severity"] not in SEVERITIES:
        raise ValueError(f"a severity is unknown in {str(values)[:200]!a}")
    return _read(Alert, values | {"tube": values["tube"].encode(), "link": Link(endpoint, args)})


def _read(kind: type[T], values: dict[str, Any]) -> T:
    """Return the dataclass *kind* with *values*; raise TypeError or ValueError if they do not fit."""
    types = get_type_hints(kind)
    for field in fields(kind):  # type: ignore[arg-type]  # T is a dataclass
        wanted = types[field.name]
        given = values.get(field.name, NoneType)
        if type(given) is not wanted and not (wanted is float and type(given) is int):
            raise ValueError(f"{field.name} is of the wrong type in {str(values)[:200]}")
        if not _is_storable(given):
            raise ValueError(f"{field.name} is impossible in {str(values)[:200]!a}")
    return kind(**values)


def _is_storable(value: object) -> bool:
    """Return whether *value*, of a document, can be shown: an integer from 0 to MAX_TIME, a finite number, or text."""
    if isinstance(value, int):
        return 0 <= value < MAX_TIME
    if isinstance(value, float):
        return isfinite(value)
    return not isinstance(value, str) or _LONE_SURROGATE.search(value) is None
