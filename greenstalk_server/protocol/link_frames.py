"""Frames of a link, the connection between two processes of a queue. docs/link-protocol.md is the specification. Pure.

A frame is a header of nine bytes (payload size, kind, channel) and the payload. Each of the two processes is the front
of its own clients and the owner of its own shard, so each of them opens channels; the kind of a frame says which of the
two it is for.
"""

from __future__ import annotations

import struct
from typing import Final

VERSION: Final = 2
"""Version of the frames, and of the commands of `link_commands`."""

OLDEST_VERSION: Final = 2
"""Oldest version that this program can speak."""

HEADER: Final = struct.Struct("<IBI")

MAX_PAYLOAD: Final = 65536
"""Bytes of a payload. A larger payload is an error of the peer, which closes the link."""

WINDOW: Final = 4 * 2**20
"""Bytes of channels that a process sends before the peer has granted more with WINDOW_GRANT."""

HELLO: Final = 1
AUTH: Final = 2
OPEN: Final = 3
DATA: Final = 4
CLOSE: Final = 5
REPLY: Final = 6
CLOSED: Final = 7
HEAD: Final = 8
WINDOW_GRANT: Final = 9
CALL: Final = 10
ANSWER: Final = 11
LEAD: Final = 12
PING: Final = 13
"""Kinds. HELLO and AUTH are the handshake. A front sends OPEN, DATA and CLOSE; an owner REPLY, CLOSED and HEAD.
A process sends LEAD when it begins to lead a shard, and PING so that the peer hears from it."""

KINDS: Final = range(HELLO, PING + 1)


class LinkError(Exception):
    """The peer does not follow the protocol; the message says how."""


def frame(kind: int, channel: int, payload: bytes = b"") -> bytes:
    """Return a frame; *payload* has at most MAX_PAYLOAD bytes."""
    return HEADER.pack(len(payload), kind, channel) + payload


def pieces(data: bytes) -> list[bytes]:
    """Return *data* in payloads."""
    if len(data) <= MAX_PAYLOAD:
        return [data]
    return [data[at : at + MAX_PAYLOAD] for at in range(0, len(data), MAX_PAYLOAD)]


def first(data: bytes) -> tuple[int, bytes] | None:
    """Return the kind and the payload of the frame at the start of *data*, None if it is not whole; raise LinkError."""
    if len(data) < HEADER.size:
        return None
    length, kind, _ = HEADER.unpack_from(data)
    _check(length, kind)
    end = HEADER.size + length
    return (kind, data[HEADER.size : end]) if len(data) >= end else None


def _check(length: int, kind: int) -> None:
    """Raise LinkError unless a frame can have this payload size and kind."""
    if length > MAX_PAYLOAD or kind not in KINDS:
        raise LinkError(f"frame of kind {kind} with {length} bytes")


class FrameReader:
    """Cuts the bytes of a link into frames."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest: bytes = b""

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Return the frames that *data* completes, as kind, channel and payload; raise LinkError if one is wrong."""
        if self._rest:
            data = self._rest + data
        found: list[tuple[int, int, bytes]] = []
        pos, size = 0, len(data)
        while size - pos >= HEADER.size:
            length, kind, channel = HEADER.unpack_from(data, pos)
            _check(length, kind)
            end = pos + HEADER.size + length
            if end > size:
                break
            found.append((kind, channel, data[pos + HEADER.size : end]))
            pos = end
        self._rest = data[pos:]
        return found


def encode_head(tube: bytes, pri: int, ready_since: int) -> bytes:
    """Return the payload of HEAD; *pri* is -1 if the tube has no job to reserve."""
    return b"%d %d %b" % (pri, ready_since, tube)


def decode_head(payload: bytes) -> tuple[bytes, int, int]:
    """Return the tube, the priority and the time of a HEAD; raise LinkError if it is malformed."""
    try:
        pri, since, tube = payload.split(b" ", 2)
        return tube, int(pri), int(since)
    except ValueError:
        raise LinkError("malformed HEAD") from None
