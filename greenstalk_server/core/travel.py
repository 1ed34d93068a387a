"""The moves of a job between the shards of a queue: packed state of the job, and the places of jobs that have left.

A job that has been on another shard, or is about to move to one, has a *travel*: the number of its moves so far, the
shard from which it came, and the move that is under way. It is an attribute of the job (see job_attributes). Pure.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

NOWHERE: Final = 0xFFFF
"""Stands for a shard: the job is deleted; or the job came from no other shard."""

MAX_HOPS: Final = 2**32 - 1

_ARRIVAL: Final = struct.Struct("<IH")
"""hops, source."""
_MOVE: Final = struct.Struct("<IHBBQ")
"""hops, source, kind, reason, at; the name of the target tube follows."""


class Travel(NamedTuple):
    """The moves of a job between shards.

    hops    number of its moves that were accepted. It tells a repeated request from a new one.
    source  shard from which the job came; NOWHERE if it has always been here.
    target  tube of another shard to which it is moving; empty if it is not moving, and then the rest is 0.
    kind    event of the move: job_history.DEAD_LETTERED, REDRIVEN or MOVED.
    reason  for DEAD_LETTERED, the DeadLetterReason.
    at      time of the begin of the move, nanoseconds.
    """

    hops: int
    source: int
    target: bytes = b""
    kind: int = 0
    reason: int = 0
    at: int = 0

    def pack(self) -> bytes:
        """Return the value of `Job.travel`."""
        if self.target:
            return _MOVE.pack(self.hops, self.source, self.kind, self.reason, self.at) + self.target
        return _ARRIVAL.pack(self.hops, self.source) if self.hops else b""

    @staticmethod
    def unpack(data: bytes) -> Travel:
        """Return the travel in *data*, a value of `Job.travel`; raise ValueError."""
        if not data:
            return Travel(0, NOWHERE)
        if len(data) == _ARRIVAL.size:
            hops, source = _ARRIVAL.unpack(data)
            return Travel(hops, source)
        if len(data) <= _MOVE.size:
            raise ValueError("incomplete")
        hops, source, kind, reason, at = _MOVE.unpack_from(data)
        return Travel(hops, source, data[_MOVE.size :], kind, reason, at)


def is_moving(travel: bytes) -> bool:
    """Whether *travel*, a value of `Job.travel`, has a move that is under way."""
    return len(travel) > _ARRIVAL.size


class Location(NamedTuple):
    """The place of a job that was on this shard.

    shard   shard to which it has moved; NOWHERE if it was deleted here.
    hops    number of its moves, the one to *shard* included.
    source  shard from which it had come here, and which may not know yet that it has arrived; NOWHERE if there is none.
    """

    shard: int
    hops: int
    source: int


NO_LOCATION: Final = Location(NOWHERE, 0, NOWHERE)
"""Stands for the location of a job about which nothing is kept."""
