"""A session without a socket, ways to cut its input into pieces, and the size of the input that it buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import ticking
from greenstalk_server.protocol.session import Session
from tests.support import invariants
from tests.support.world import START, make_broker, slots

MARK: Final = b"list-tube-used\r\n"
"""A command without effect, to check that the session continues at the right byte."""

MARKED: Final = b"USING default\r\n"


class Talk:
    """One connection to *broker*, and the fake time. `woken` counts the wake-ups of the session."""

    def __init__(self, broker: Broker | None = None) -> None:
        self.broker: Broker = broker if broker is not None else make_broker()
        self.now = START
        self.woken = 0
        self.session = Session(self.broker, self._on_wake)

    def send(self, data: bytes) -> bytes:
        """Send *data* in one piece; return the replies of all its slices.

        A session that is closing gets no input: a server does not read from it.
        """
        if self.session.is_closing:
            return b""
        return self._rest(self.session.receive(data, self.now))

    def send_all(self, pieces: Iterable[bytes]) -> bytes:
        return b"".join([self.send(piece) for piece in pieces])

    def send_eof(self) -> bytes:
        return self._rest(self.session.receive_eof(self.now))

    def resume(self) -> bytes:
        """Resume the session after a wake-up; return its replies."""
        return self._rest(self.session.resume(self.now))

    def advance(self, seconds: float) -> None:
        """Advance the time and tick the broker; do not resume the session."""
        self.now += round(seconds * SECOND)
        while (due := ticking.tick(self.broker, self.now)) is not None and due <= self.now:
            pass
        invariants.check(self.broker)

    def close(self) -> None:
        self.session.close(self.now)
        invariants.check(self.broker)

    def _rest(self, out: bytes) -> bytes:
        outs = [out]
        while self.session.has_more:
            outs += stream_of(self.session)
            outs.append(self.session.resume(self.now))
        invariants.check(self.broker)
        return b"".join(outs)

    def _on_wake(self) -> None:
        self.woken += 1


def slices(talk: Talk, data: bytes) -> list[bytes]:
    """Send *data*; return the output of each slice."""
    out = [talk.session.receive(data, talk.now)]
    while talk.session.has_more:
        assert not talk.session.wants_input
        out.append(talk.session.resume(talk.now))
        invariants.check(talk.broker)
    return out


def stream_of(session: Session) -> list[bytes]:
    """Return the pieces of the stream that *session* has begun, as a connection sends them; none without a stream."""
    pieces = []
    if session.stream is not None:
        while piece := session.stream.next():
            pieces.append(piece)
        session.end_stream()
    return pieces


def buffered_bytes(session: Session) -> int:
    """Return the bytes of input and replies that *session* buffers, in any attribute."""
    return sum(_size(getattr(session, name)) for name in slots(session))


def _size(value: object) -> int:
    if isinstance(value, list):
        return sum(_size(item) for item in value)
    if isinstance(value, BytesIO):
        return value.getbuffer().nbytes
    return len(value) if isinstance(value, bytes) else 0


def whole(data: bytes) -> list[bytes]:
    return [data]


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def in_threes(data: bytes) -> list[bytes]:
    return [data[at : at + 3] for at in range(0, len(data), 3)]


def cut_after_cr(data: bytes) -> list[bytes]:
    return [piece for piece in data.replace(b"\r", b"\r|").split(b"|") if piece]


CUTS: Final[tuple[Callable[[bytes], list[bytes]], ...]] = (whole, byte_by_byte, in_threes, cut_after_cr)
"""Ways to cut a stream into the pieces in which it arrives."""
