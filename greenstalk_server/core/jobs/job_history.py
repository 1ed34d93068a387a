"""The history of a job: its last events since it was put, packed, so that a million jobs can have a history.

Only events that the job survives are recorded: a job that is put, reserved and deleted has none. A reservation is
recorded when it ends. The journal also records the start of a reservation, since the process may end before the
reservation does.

Pure. Times are integer nanoseconds since the Unix epoch.
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
"""The reservation ended because its client disconnected or the server stopped."""
EDITED: Final = 7
MOVED: Final = 8
DEAD_LETTERED: Final = 9
"""A policy moved the job to a dead-letter tube."""
REDRIVEN: Final = 10
"""The job was moved from a dead-letter tube back to the tube that it came from."""
UNBLOCKED: Final = 11
"""The group that the job waited for became empty, or was empty when the job's delay ended."""

KINDS: Final = (
    "",
    "reserved",
    "released",
    "buried",
    "kicked",
    "timed out",
    "returned",
    "edited",
    "moved",
    "dead-lettered",
    "redriven",
    "unblocked",
)

NOBODY: Final = 0
"""Client number of an event that an operator or the server caused."""

EVENT: Final = struct.Struct("<QBI")
"""Time, kind, number of the client."""

LAST_CLIENT: Final = 2**32 - 1
"""The highest number of a client."""

FIRST_OF_FRONT: Final = 2**31
"""The lowest number of a client whose connection was accepted by a process that led no shard. Such a process begins at
a random number, so that two of them hardly ever assign the same numbers."""

MAX_EVENTS: Final = 16
"""Maximum number of events of a job; older ones are dropped."""

SIZES: Final = range(0, MAX_EVENTS * EVENT.size + 1, EVENT.size)
"""Possible sizes of the events of a job, bytes."""

_LAST_KIND: Final = struct.calcsize("<Q") - EVENT.size


class Event(NamedTuple):
    """An event of a job. `client` is the number of the client that caused it, or NOBODY."""

    at: int
    kind: int
    client: int


def add(events: bytes, kind: int, at: int, client: int) -> bytes:
    """Return *events* with one more at the end, and without the oldest one if there are too many."""
    return join(events, EVENT.pack(at, kind, client))


def join(events: bytes, event: bytes) -> bytes:
    """Return *events* with the packed *event* at the end, and without the oldest one if there are too many."""
    return (events + event)[-SIZES[-1] :]


def newest(events: bytes, size: int) -> bytes:
    """Return the newest of *events* that fit in *size* bytes."""
    return events[len(events) - min(size, len(events)) // EVENT.size * EVENT.size :]


def limit(events: bytes, now: int) -> bytes:
    """Return *events* with each time after *now* replaced by *now*; their size must be in SIZES."""
    if not events or max([at for at, _, _ in EVENT.iter_unpack(events)]) <= now:
        return events
    return b"".join([EVENT.pack(min(at, now), kind, client) for at, kind, client in EVENT.iter_unpack(events)])


def last(events: bytes) -> Event:
    """Return the last of *events*, which must not be empty."""
    return Event(*EVENT.unpack(events[-EVENT.size :]))


def is_kick(event: bytes) -> bool:
    """Whether the packed *event*, or the last one if there are several, is KICKED; False if *event* is empty."""
    return bool(event) and event[_LAST_KIND] == KICKED


def is_reserved(events: bytes) -> bool:
    """Whether the last of *events* is RESERVED: the job's reservation has not ended."""
    return bool(events) and events[_LAST_KIND] == RESERVED


def without_reservation(events: bytes) -> tuple[bytes, Event | None]:
    """Return *events* without the last RESERVED, and that event; None if there is none."""
    for at in range(len(events) - EVENT.size, -1, -EVENT.size):
        event = Event(*EVENT.unpack_from(events, at))
        if event.kind == RESERVED:
            return events[:at] + events[at + EVENT.size :], event
    return events, None


def highest_client(events: bytes) -> int:
    """Return the highest client number in *events* below FIRST_OF_FRONT; NOBODY if there is none.

    The size of *events* must be in SIZES.
    """
    return max([client for _, _, client in EVENT.iter_unpack(events) if client < FIRST_OF_FRONT], default=NOBODY)


def unpack(events: bytes) -> list[Event]:
    """Return the events, oldest first; skip an incomplete event at the end, and events of unknown kinds."""
    whole = len(events) - len(events) % EVENT.size
    found = [Event(*fields) for fields in EVENT.iter_unpack(events[:whole])]
    return [event for event in found if 0 < event.kind < len(KINDS)]
