"""Log limit hits, rate-limited.

A limit can be hit a thousand times a second. Each limit is logged at most once per second; the next line about it
states how many hits were not logged.
"""

from __future__ import annotations

import logging
from typing import Final

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.limits import LIMIT_DESCRIPTIONS
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.runtime.clock import Clock

log = logging.getLogger(__name__)

LOG_INTERVAL: Final = SECOND
"""Minimum nanoseconds between two lines about the same limit."""


class LimitLog(BrokerListener):
    """Writes a warning for each limit that clients hit. No method switches."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Clock = clock
        self._logged_at: dict[str, int] = {}
        self._suppressed: dict[str, int] = {}

    def on_limit_hit(self, limit: str, address: str, what: str) -> None:
        """Log that the client at *address* hit *limit* with the request *what*, or count the hit for a later line."""
        if self._was_just_logged(limit):
            self._suppressed[limit] = self._suppressed.get(limit, 0) + 1
        else:
            self._log({"limit": limit, "address": address, "what": what})

    def flush(self) -> None:
        """Log the hits that were suppressed, for each limit that may be logged again."""
        for limit in [limit for limit in self._suppressed if not self._was_just_logged(limit)]:
            self._log({"limit": limit})

    def _was_just_logged(self, limit: str) -> bool:
        logged_at = self._logged_at.get(limit)
        return logged_at is not None and self._clock() - logged_at < LOG_INTERVAL

    def _log(self, facts: dict[str, str]) -> None:
        limit = facts["limit"]
        self._logged_at[limit] = self._clock()
        extra = facts | {"more": self._suppressed.pop(limit, 0)}
        shown = {name: value for name, value in extra.items() if value}
        log.warning("%s: %s", limit, LIMIT_DESCRIPTIONS[limit], extra=shown)
