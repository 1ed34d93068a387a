"""The remote client of a session at one shard, and what a front needs to know about the shards. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.operations import connecting
from greenstalk_server.core.tubes.head_watch import Head
from greenstalk_server.protocol.link_frames import LinkError
from greenstalk_server.protocol.reply_reader import ReplyReader

if TYPE_CHECKING:
    from greenstalk_server.protocol.front_session import FrontSession

NO_SHARD: Final = -1


class Wire(Protocol):
    """The bytes of one channel."""

    def send(self, data: bytes) -> None:
        """Send *data*; keep it while the shard cannot be reached. Does not switch."""

    def close(self) -> None:
        """Disconnect the remote client. This must be the last call."""


class Routes(Protocol):
    """The shards of the queue, as a front sees them.

    own         the shard of this process.
    ids         the ids that it assigns.
    heads       the heads of tubes of other shards, as published; tubes without a job are missing.
    """

    own: int
    ids: IdSequence
    heads: dict[bytes, Head]

    def shard_of(self, tube: bytes) -> int:
        """Return the shard that owns *tube*."""

    def is_linked(self, shard: int) -> bool:
        """Return whether *shard* can be reached now."""

    def open(self, shard: int, session: FrontSession, receive: Callable[[bytes | None], None]) -> Wire:
        """Connect a remote client for *session* at *shard*. *receive* gets its replies, and None if they are lost."""


class Channel:
    """The remote client of a session at one shard. It expects one reply to each command that it sends.

    has_reserved    the client may hold a job there.
    is_awaiting     the client waits there, or has an offer.
    """

    def __init__(self, session: FrontSession, shard: int) -> None:
        self.has_reserved: bool = False
        self.is_awaiting: bool = False
        self._session: FrontSession = session
        self._shard: int = shard
        self._reader: ReplyReader = ReplyReader()
        self._expected: deque[bool] = deque()  # for each reply to come, whether the session wants it
        self._wire: Wire = session.routes.open(shard, session, self._receive)

    def ask(self, data: bytes, count: int) -> None:
        """Send *data*, which has *count* commands; pass each reply to the session."""
        self._expected.extend([True] * count)
        self._wire.send(data)

    def tell(self, data: bytes, count: int = 1) -> None:
        """Send *data*, which has *count* commands; ignore the replies."""
        self._expected.extend([False] * count)
        self._wire.send(data)

    def end_await(self) -> None:
        """Ignore the reply to the await, if there was none yet. The caller must send another command, which ends it."""
        self.is_awaiting = False
        self._expected = deque([False] * len(self._expected))

    def close(self) -> None:
        """Disconnect the remote client."""
        self._wire.close()

    def _receive(self, data: bytes | None) -> None:
        if data is None:
            self._session.lose(self._shard)
            return
        for reply in self._reader.feed(data):
            if not self.has_reserved and reply.startswith(b"RESERVED"):
                self.has_reserved = self._session.has_reserved_there = True
                connecting.note_worker(self._session.broker, self._session.client)
            if not self._expected:
                raise LinkError("a reply to no command")
            if self._expected.popleft():
                self._session.receive_reply(self._shard, reply)
