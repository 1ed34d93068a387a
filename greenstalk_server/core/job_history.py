"""What has happened to a job since it was put: its last events, packed so that a million jobs can afford them.

Only what survives a reservation, or is done to a job from outside, is noted: a job that is put, reserved and deleted
costs nothing here. A reservation is noted when it ends; the journal, which may outlive it, notes its beginning too.

Pure; times are integer nanoseconds since the Unix epoch.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

RESERVED: Final = 1
RELEASED: Final = 2
BURIED: Final = 3
KICKED: Final = 4
TIMED_OUT: Final = 5
RETURNED: Final = 6
"""Its reservation ended with its client's connection, or with the server."""
EDITED: Final = 7
MOVED: Final = 8

KINDS: Final = ("", "reserved", "released", "buried", "kicked", "timed out", "returned", "edited", "moved")

NOBODY: Final = 0
"""Instead of a client's number: an admin, or the server itself."""

EVENT: Final = struct.Struct("<QBI")
"""time, kind, number of the client."""

LAST_CLIENT: Final = 2**32 - 1
"""The highest number of a client."""

KEPT: Final = 16
"""Events of one job; the oldest give way."""

SIZES: Final = range(0, KEPT * EVENT.size + 1, EVENT.size)
"""What the events of a job may take, bytes."""

_LAST_KIND: Final = struct.calcsize("<Q") - EVENT.size


class Event(NamedTuple):
    """One of a job's events; *client* is the number of the connection that did it, or NOBODY."""

    at: int
    kind: int
    client: int


def add(events: bytes, kind: int, at: int, client: int) -> bytes:
    """Return *events* with one more at their end."""
    return join(events, EVENT.pack(at, kind, client))


def join(events: bytes, event: bytes) -> bytes:
    """Return *events* with *event*, packed, at their end."""
    return (events + event)[-SIZES[-1] :]


def newest(events: bytes, size: int) -> bytes:
    """So many of *events* as take *size* bytes, the newest."""
    return events[len(events) - min(size, len(events)) // EVENT.size * EVENT.size :]


def last(events: bytes) -> Event:
    """The last of *events*, of which there are some."""
    return Event(*EVENT.unpack(events[-EVENT.size :]))


def is_reserved(events: bytes) -> bool:
    """Whether the last of *events* is a reservation, which then goes on."""
    return bool(events) and events[_LAST_KIND] == RESERVED


def highest_client(events: bytes) -> int:
    """The highest number of a client that *events*, whole ones, tell of; NOBODY if they tell of none."""
    return max([client for _, _, client in EVENT.iter_unpack(events)], default=NOBODY)


def unpack(events: bytes) -> list[Event]:
    """The events, oldest first; what is no whole event at their end, or of no known kind, is left out."""
    whole = len(events) - len(events) % EVENT.size
    found = [Event(*fields) for fields in EVENT.iter_unpack(events[:whole])]
    return [event for event in found if 0 < event.kind < len(KINDS)]
