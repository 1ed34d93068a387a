"""The state of the alerts that survives a restart: the sent conditions, and the log of messages.

It is one row of the store. If the row is damaged, the state starts empty: conditions that still hold are sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from greenstalk_server.web.features.alerts.receiver_alerts import MAX_ALERTS, Alert
from greenstalk_server.web.framework.api.values import Count, Instant, ResponseModel
from greenstalk_server.web.store.rows import Row, decoded
from greenstalk_server.web.store.store import Store

ROW: Final = "alerts"
"""Kind of the row."""

MAX_LOG: Final = 200
"""Maximum deliveries in the log."""

ReceiverName = Annotated[
    str, Meta(min_length=1, max_length=40, description="The name of a receiver.", examples=["ops"])
]


class Delivery(ResponseModel):
    """An attempt to send a message."""

    at: Instant
    receiver: ReceiverName
    summary: Annotated[
        str, Meta(description="Number of items, without names of tubes.", examples=["2 firing, 1 resolved", "test"])
    ]
    attempt: Annotated[Count, Meta(description="1 for the first attempt after a success.")]
    status: Annotated[int | None, Meta(description="The HTTP status; null without a response.")]
    seconds: Annotated[float, Meta(description="From the DNS query to the end of the response.")]
    error: Annotated[str, Meta(description="Reason why the receiver has not accepted the message; empty if it has.")]


class SavedState(Struct):
    """The row as JSON.

    alerts          the sent alerts by receiver.
    log             the oldest delivery first.
    """

    version: Literal[2]
    alerts: dict[str, Annotated[list[Alert], Meta(max_length=2 * MAX_ALERTS + 1)]]
    log: list[Delivery]


class State:
    """The state of one server.

    alerts          the sent alerts by receiver, as they were at the last save; empty before the store is restored.
    """

    def __init__(self, store: Store, on_restored: Callable[[], None] = lambda: None) -> None:
        """Call *on_restored* when the state of the previous run has been read."""
        self.alerts: dict[str, list[Alert]] = {}
        self.log: deque[Delivery] = deque(maxlen=MAX_LOG)
        self._store: Store = store
        self._on_restored: Callable[[], None] = on_restored
        store.on_restore(ROW, self._restore)

    def save(self, alerts: Mapping[str, Iterable[Alert]]) -> None:
        """Write the state with the sent alerts among *alerts*, by receiver. Switches.

        On failure, set `store.last_error`.
        """
        sent = {name: [alert for alert in some if alert.sent_at] for name, some in alerts.items()}
        state = SavedState(2, sent, list(self.log))
        self._store.put(ROW, 0, b"", msgspec.json.encode(state))
        self._store.save()

    def _restore(self, rows: list[Row]) -> None:
        for _, _, saved in decoded(rows, SavedState, "so alerts about conditions that still hold are sent again"):
            self.alerts = saved.alerts
            self.log.extend(saved.log)
        self._on_restored()
