"""The remote client of a session at one shard, and what a front needs to know about the shards. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.tubes.head_watch import Head
from greenstalk_server.protocol import replies
from greenstalk_server.protocol.link_frames import LinkError
from greenstalk_server.protocol.replies import CRLF

if TYPE_CHECKING:
    from greenstalk_server.protocol.front_session import FrontSession

NO_SHARD: Final = -1

AWAIT_REPLIES: Final = (b"OFFERED ", b"NEAR_DEADLINE ")
"""Beginnings of the replies to an await. They may arrive when the session has sent another request already, and then in
one piece with the replies to it."""


class Wire(Protocol):
    """The bytes of one channel."""

    def send(self, data: bytes) -> None:
        """Send *data*; keep it while the shard cannot be reached. Does not switch."""

    def tell(self, data: bytes) -> None:
        """Send *data*, commands whose replies are not sent back; keep it as `send` does. Does not switch."""

    def close(self) -> None:
        """Disconnect the remote client. This must be the last call."""


Receive: TypeAlias = Callable[[bytes | None, bool], None]
"""Gets a part of the replies, and whether it completes them; or None if they are lost."""


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

    def open(self, shard: int, session: FrontSession, receive: Receive) -> Wire:
        """Connect a remote client for *session* at *shard*; *receive* gets its replies."""


class Channel:
    """The remote client of a session at one shard. It serves one request at a time: one or more commands.

    is_awaiting     the client waits there, or has an offer.
    """

    def __init__(self, session: FrontSession, shard: int) -> None:
        self.is_awaiting: bool = False
        self._session: FrontSession = session
        self._shard: int = shard
        self._is_asked: bool = False
        self._parts: list[bytes] = []
        self._awaits: int = 0
        self._wire: Wire = session.routes.open(shard, session, self._receive)

    def ask(self, data: bytes) -> None:
        """Send the request *data*; the session gets all replies to it as one piece."""
        self._is_asked = True
        self._wire.send(data)

    def send(self, line: bytes) -> None:
        """Send *line*, a command without a reply."""
        self._wire.send(line + CRLF)

    def tell(self, data: bytes) -> None:
        """Send the commands *data*, whose replies are not needed."""
        self._wire.tell(data)

    def begin_await(self) -> None:
        """Wait at the shard for the offer of a job."""
        self.is_awaiting = True
        self._awaits += 1
        self._wire.send(b"await %d\r\n" % self._awaits)

    def end_await(self) -> None:
        """Ignore the reply to the await. The caller must send another command, which ends it."""
        self.is_awaiting = False

    def close(self) -> None:
        """Disconnect the remote client."""
        self._wire.close()

    def _receive(self, data: bytes | None, is_complete: bool) -> None:
        if data is None:
            self._session.lose(self._shard)
            return
        if not is_complete or self._parts:
            self._parts.append(data)
            if not is_complete:
                return
            data, self._parts = b"".join(self._parts), []
        while self._awaits and data.startswith(AWAIT_REPLIES):
            line, end, data = data.partition(CRLF)
            line += end
            if self.is_awaiting and line in (replies.offered(self._awaits), replies.near_deadline(self._awaits)):
                self._session.receive_offer(self._shard, is_offered=line.startswith(b"OFFERED"))
            if not data:
                return
        if self._is_asked:
            self._is_asked = False
            self._session.receive_reply(self._shard, data)
        else:
            raise LinkError("a reply to no command")
