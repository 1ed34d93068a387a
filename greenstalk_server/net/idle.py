"""The log's word on limits, and the connections that stay for too long.

A limit that is reached may be reached a thousand times a second; so each has its line at most once in a second, which
says how often it was since the one before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from greenstalk_server.core.client import Client
from greenstalk_server.core.job import SECOND
from greenstalk_server.core.limits import LIMIT_DESCRIPTIONS, Limits
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.protocol.restricted_session import RestrictedSession
from greenstalk_server.protocol.session import Session
from greenstalk_server.runtime.clock import Clock

log = logging.getLogger(__name__)

AGAIN_AFTER: Final = SECOND
"""Nanoseconds between two lines about the same limit."""


class Complaints(BrokerListener):
    """Tells the log of limits that were reached."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Clock = clock
        self._told_at: dict[str, int] = {}
        self._untold: dict[str, int] = {}

    def on_limit_hit(self, limit: str, address: str, what: str) -> None:
        """Tell that *limit* was reached by the client at *address*, which asked for *what*. Does not switch."""
        if self._is_soon(limit):
            self._untold[limit] = self._untold.get(limit, 0) + 1
        else:
            self._tell({"limit": limit, "address": address, "what": what})

    def tell_the_rest(self) -> None:
        """Tell how often a limit was reached since its last line, though it is no more. Does not switch."""
        for limit in [limit for limit in self._untold if not self._is_soon(limit)]:
            self._tell({"limit": limit})

    def _is_soon(self, limit: str) -> bool:
        told_at = self._told_at.get(limit)
        return told_at is not None and self._clock() - told_at < AGAIN_AFTER

    def _tell(self, facts: dict[str, str]) -> None:
        limit = facts["limit"]
        self._told_at[limit] = self._clock()
        extra = facts | {"more": self._untold.pop(limit, 0)}
        shown = {name: value for name, value in extra.items() if value}
        log.warning("%s: %s", limit, LIMIT_DESCRIPTIONS[limit], extra=shown)


class Guest(Protocol):
    """A connection, as far as it can stay too long."""

    client: Client

    @property
    def session(self) -> Session: ...

    @property
    def awaits_disk(self) -> bool: ...

    def is_unanswered(self, seconds: int, now: int) -> bool: ...


def overstayed(connections: Iterable[Guest], limits: Limits, now: int) -> Iterator[tuple[Guest, str]]:
    """Those of *connections* that have sent nothing, or are in the middle of a command, for too long; with the limit.

    One that waits for a job is not idle, nor is one that holds some: its worker is at work. And it is no client's fault
    if the disk is slow: while that is waited for, time stands still.
    """
    idle_since = now - limits.idle_timeout * SECOND
    begun_before = now - limits.command_timeout * SECOND
    for connection in connections:
        session, client = connection.session, connection.client
        if not isinstance(session, RestrictedSession):
            continue
        if connection.awaits_disk:
            session.active_at = session.began_at = now
        elif limits.command_timeout and session.is_incomplete and session.began_at < begun_before:
            yield connection, "command_timeout"
        elif limits.idle_timeout and session.active_at < idle_since and not (session.is_waiting or client.reserved):
            yield connection, "idle_timeout"


def unanswered(connections: Iterable[Guest], limits: Limits, now: int) -> Iterator[tuple[Guest, str]]:
    """Those of *connections* whose other side has acknowledged nothing for too long; with the limit.

    TCP sends it again for a quarter of an hour as a rule, and asks who has nothing to acknowledge (see listeners).
    """
    for connection in connections:
        if connection.is_unanswered(limits.dead_peer_timeout, now):
            yield connection, "dead_peer_timeout"
