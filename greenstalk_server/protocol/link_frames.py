"""Frames of a link, the connection between two processes of a queue. docs/link-protocol.md is the specification. Pure.

A frame is a header of nine bytes (payload size, kind, channel) and the payload. Each of the two processes is the front
of its own clients and the owner of its own shard, so each of them opens channels; the kind of a frame says which of the
two it is for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeAlias

VERSION: Final = 4
"""Version of the frames, and of the commands of `link_commands`."""

OLDEST_VERSION: Final = 2
"""Oldest version that this program can speak."""

RESIGN_VERSION: Final = 3
"""Oldest version with RESIGN."""

RELAY_VERSION: Final = 4
"""Oldest version with relays, and with SWITCH."""

HEADER: Final = struct.Struct("<IBI")

HEADER_SIZE: Final = 9

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
END: Final = 14
TELL: Final = 15
PART: Final = 16
REPORTED: Final = 17
RESIGN: Final = 18
SWITCH: Final = 19
"""Kinds. HELLO and AUTH are the handshake. A front sends OPEN, PART, DATA, TELL, CLOSE and REPORTED; an owner REPLY,
END, CLOSED, HEAD and RESIGN. A process sends LEAD when it begins to lead a shard, PING so that the peer hears from
it, and SWITCH as the last frame on a connection when the link continues on another one."""

LAST_KIND: Final = SWITCH

SIZES: Final = [size.to_bytes(4, "little") for size in range(1024)]
"""The sizes of most payloads, encoded."""


Frame: TypeAlias = tuple[int, int, bytes]
"""A frame: kind, channel, and payload."""


class LinkError(Exception):
    """The peer does not follow the protocol; the message says how."""


def frame(kind: int, channel: int, payload: bytes = b"") -> bytes:
    """Return a frame; *payload* has at most MAX_PAYLOAD bytes."""
    return HEADER.pack(len(payload), kind, channel) + payload


def tail(kind: int, channel: int) -> bytes:
    """Return the part of a header that follows the size."""
    return HEADER.pack(0, kind, channel)[4:]


def first(data: bytes) -> tuple[int, bytes] | None:
    """Return the kind and the payload of the frame at the start of *data*, None if it is not whole; raise LinkError."""
    found = FrameReader().feed(data)
    return (found[0][0], found[0][2]) if found else None


class FrameReader:
    """Cuts the bytes of a link into frames."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest: bytes = b""

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that *data* completes, as kind, channel and payload; raise LinkError if one is wrong."""
        if self._rest:
            data = self._rest + data
        try:
            found, end = _cut(data, MAX_PAYLOAD, LAST_KIND)
        except ValueError as error:
            raise LinkError(str(error)) from None
        self._rest = data[end:]
        return found


def cut_in_python(data: bytes, max_payload: int, last_kind: int) -> tuple[list[Frame], int]:
    """Return the whole frames at the start of *data*, and where they end; raise ValueError if one is wrong."""
    found: list[Frame] = []
    pos, size = 0, len(data)
    while size - pos >= HEADER_SIZE:
        length, kind, channel = HEADER.unpack_from(data, pos)
        if length > max_payload or not 0 < kind <= last_kind:
            raise ValueError(f"frame of kind {kind} with {length} bytes")
        start = pos + HEADER_SIZE
        if start + length > size:
            break
        pos = start + length
        found.append((kind, channel, data[start:pos]))
    return found, pos


def _fastest() -> Callable[[bytes, int, int], tuple[list[Frame], int]]:
    try:
        from greenstalk_server.protocol import _scan  # noqa: PLC0415  not in the pure Python build
    except ImportError:
        return cut_in_python
    return _scan.cut


_cut: Final = _fastest()


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
