"""The log's word on limits, and the connections that stay for too long.

A limit that is reached may be reached a thousand times a second; so each has its line at most once in a second, which
says how often it was since the one before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from greenstalk_server.client import Client
from greenstalk_server.clock import Clock
from greenstalk_server.job import SECOND
from greenstalk_server.limits import LIMITED, Limits
from greenstalk_server.restricted import RestrictedSession
from greenstalk_server.session import Session

log = logging.getLogger(__name__)

AGAIN_AFTER: Final = SECOND
"""Nanoseconds between two lines about the same limit."""


class Complaints:
    """Tells the log of limits that were reached."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Clock = clock
        self._told_at: dict[str, int] = {}
        self._untold: dict[str, int] = {}

    def __call__(self, limit: str, address: str, what: str) -> None:
        """Tell that *limit* was reached by the client at *address*, which asked for *what*. Does not switch."""
        now = self._clock()
        told_at = self._told_at.get(limit)
        if told_at is not None and now - told_at < AGAIN_AFTER:
            self._untold[limit] = self._untold.get(limit, 0) + 1
            return
        self._told_at[limit] = now
        facts = {"limit": limit, "address": address, "what": what, "more": self._untold.pop(limit, 0)}
        log.warning("%s: %s", limit, LIMITED[limit], extra={name: value for name, value in facts.items() if value})


class Guest(Protocol):
    """A connection, as far as it can stay too long."""

    client: Client

    @property
    def session(self) -> Session: ...


def overstayed(connections: Iterable[Guest], limits: Limits, now: int) -> Iterator[tuple[Guest, str]]:
    """Those of *connections* that have sent nothing, or are in the middle of a command, for too long; with the limit.

    One that waits for a job is not idle, nor is one that holds some: its worker is at work.
    """
    idle_since = now - limits.idle_timeout * SECOND
    begun_before = now - limits.command_timeout * SECOND
    for connection in connections:
        session, client = connection.session, connection.client
        if not isinstance(session, RestrictedSession):
            continue
        if limits.command_timeout and session.is_incomplete and session.began_at < begun_before:
            yield connection, "command_timeout"
        elif limits.idle_timeout and session.active_at < idle_since and not (client.is_waiting or client.reserved):
            yield connection, "idle_timeout"
