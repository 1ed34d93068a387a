"""Sessions of the home process, as the processes of other shards see them.

A request that the home process passes on may begin a task or a long response at another process. It has to end when
the session of its sender ends there, or loses a role. So this process asks the home process about the session, at most
once per `ASK_INTERVAL`, while anything here depends on it. Without an answer for `ANSWER_TIMEOUT`, it counts as ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import gevent
from werkzeug.exceptions import ServiceUnavailable

from greenstalk_server.cluster.status import HOME
from greenstalk_server.web.framework.shards import Shards

ASK_INTERVAL: Final = 1.0
"""Seconds between two questions about a session."""

ANSWER_TIMEOUT: Final = 10.0
"""Seconds without an answer after which a session counts as ended."""

SESSION: Final = "session-lasts"
"""Question: whether a session has not ended, and has some roles."""

log = logging.getLogger(__name__)


class HomeSessions:
    """Answers whether sessions last, at the home process itself, or by asking it."""

    def __init__(self, shards: Shards, is_live: Callable[[str, Sequence[str]], bool]) -> None:
        """*is_live* returns whether the home process has the session of a number, with some roles; does not switch."""
        self._shards: Shards = shards
        self._is_live: Callable[[str, Sequence[str]], bool] = is_live
        shards.answer(SESSION, is_live)

    def lasts(self, number: str, roles: Sequence[str]) -> Callable[[], bool]:
        """Return a function that returns whether the session *number* lasts and has *roles*. It does not switch."""
        if self._shards.is_home:
            return lambda: self._is_live(number, roles)
        return _Watch(self._shards, number, roles).lasts


class _Watch:
    """What this process knows of a session, which the home process has just seen."""

    def __init__(self, shards: Shards, number: str, roles: Sequence[str]) -> None:
        self._shards: Shards = shards
        self._number: str = number
        self._roles: Sequence[str] = roles
        self._is_live: bool = True
        self._is_asking: bool = False
        self._asked_at: float = time.monotonic()
        self._unanswered_since: float | None = None

    def lasts(self) -> bool:
        """Return whether the session has not ended, as far as this process knows; ask if it is time."""
        now = time.monotonic()
        if self._is_live and not self._is_asking and now - self._asked_at >= ASK_INTERVAL:
            self._is_asking, self._asked_at = True, now
            if self._unanswered_since is None:
                self._unanswered_since = now
            gevent.spawn(self._ask)
        if self._unanswered_since is not None and now - self._unanswered_since > ANSWER_TIMEOUT:
            self._is_live = False
        return self._is_live

    def _ask(self) -> None:
        """Ask the home process. Switches."""
        try:
            if not self._shards.ask(HOME, SESSION, number=self._number, roles=self._roles):
                self._is_live = False
            self._unanswered_since = None
        except ServiceUnavailable as error:
            log.info("dashboard: cannot ask about a session: %s", error.description)
        finally:
            self._is_asking = False
