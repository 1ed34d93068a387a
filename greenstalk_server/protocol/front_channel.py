"""The remote client of a session at one shard, and what a front needs to know about the shards. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from mypy_extensions import mypyc_attr

from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.tubes.head_watch import Head
from greenstalk_server.protocol import replies
from greenstalk_server.protocol.link_frames import LinkError
from greenstalk_server.protocol.replies import CRLF

if TYPE_CHECKING:
    from greenstalk_server.core.broker import Broker
    from greenstalk_server.protocol.front_session import FrontSession

NO_SHARD: Final = -1

MAX_REPLIES: Final = 2**31 + 2**24
"""Bytes of the replies to one request: two jobs of the largest size that -z allows, or a list of 4,000,000 tubes."""

MAX_DIGITS: Final = 10
"""Digits of a number of jobs."""

AWAIT_REPLIES: Final = (b"OFFERED ", b"NEAR_DEADLINE ")
"""Beginnings of the replies to an await. They may arrive when the session has sent another request already, and then in
one piece with the replies to it."""


Message: TypeAlias = tuple[bool, bytes]
"""Whether the data is told (its replies are not sent back), and the data."""


@mypyc_attr(allow_interpreted_subclasses=True)  # the tests define a subclass
class Wire:
    """The bytes of one channel, to the owner of the shard once that can be reached.

    A base class, not a Protocol: compiled code calls the methods of a subclass without a lookup by name.

    is_attached     there is a link. Before, nothing can be sent; when there is one, `Channel.begin` is called.
    """

    __slots__ = ("is_attached",)

    def __init__(self) -> None:
        self.is_attached: bool = False

    def send(self, data: bytes) -> None:
        """Send *data*. Does not switch."""
        raise NotImplementedError

    def tell(self, data: bytes) -> None:
        """Send *data*, commands whose replies are not sent back. Does not switch."""
        raise NotImplementedError

    def close(self) -> None:
        """Disconnect the remote client. This must be the last call. Does not switch."""
        raise NotImplementedError


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

    def new_session(self) -> int:
        """Return the number of a new session, which no other session of this process has."""

    def standby_stats(self, broker: Broker) -> list[bytes]:
        """Return the last known statistics of the clients that processes accepted while they led no shard.

        The clients of *broker* are left out.
        """

    def open(self, shard: int, channel: Channel) -> Wire:
        """Connect a remote client at *shard*, now or when it can be reached: see Channel."""


class Channel:
    """The remote client of a session at one shard. It serves one request at a time: one or more commands.

    session         whose client it is.
    shard           the shard.
    reserved        number of jobs that the session has received from it. The owner numbers the reservations, so this
                    tells it which of them the session knows of.
    is_awaiting     the client waits there, or has an offer.
    """

    def __init__(self, session: FrontSession, shard: int) -> None:
        self.session: FrontSession = session
        self.reserved: int = 0
        self.is_awaiting: bool = False
        self.shard: int = shard
        self._request: bytes = b""
        self._is_asked: bool = False
        self._parts: bytearray = bytearray()
        self._awaits: int = 0
        self._wire: Wire = session.routes.open(shard, self)

    @property
    def is_attached(self) -> bool:
        """Whether there is a link."""
        return self._wire.is_attached

    def reopen(self) -> None:
        """Connect the remote client again after the link was lost. It keeps its jobs; the request is lost."""
        self.is_awaiting = self._is_asked = False
        self._parts = bytearray()
        self._wire = self.session.routes.open(self.shard, self)

    def begin(self) -> list[Message]:
        """Return what the wire sends first: the state of the session, then the request or the await, if there is one.

        The wire calls this when it is attached.
        """
        messages: list[Message] = [(True, self.session.state_at(self.shard))]
        if self._is_asked:
            messages.append((False, self._request))
            if self.session.is_eof:
                messages.append((False, b"decline\r\n"))
        elif self.is_awaiting:
            messages.append((False, b"await %d\r\n" % self._awaits))
        return messages

    def ask(self, data: bytes) -> None:
        """Send the request *data*; the session gets all replies to it as one piece."""
        self._request = data
        self._is_asked = True
        if self._wire.is_attached:
            self._wire.send(data)

    def send(self, line: bytes) -> None:
        """Send *line*, a command without a reply. Before there is a link, `begin` makes it unnecessary."""
        if self._wire.is_attached:
            self._wire.send(line + CRLF)

    def tell(self, data: bytes) -> None:
        """Send *data*, commands that change the state of the session, whose replies are not needed."""
        if self._wire.is_attached:
            self._wire.tell(data)

    def begin_await(self) -> None:
        """Wait at the shard for the offer of a job."""
        self.is_awaiting = True
        self._awaits += 1
        self.send(b"await %d" % self._awaits)

    def end_await(self) -> None:
        """Ignore the reply to the await. The caller must send another command, which ends it."""
        self.is_awaiting = False

    def close(self) -> None:
        """Disconnect the remote client. Reservations by a request without a reply end uncounted."""
        if self._is_asked:
            self.send(b"received %d" % self.reserved)
        self._wire.close()

    def lose(self, *, is_ended: bool = False, is_unserved: bool = False) -> None:
        """Note that the link is lost; or, if *is_ended*, that the owner has disconnected the client.

        *is_unserved*: the request that has no reply yet has had no effect.
        """
        self.session.lose(self.shard, is_ended=is_ended, is_unserved=is_unserved)

    def receive(self, data: bytes, is_complete: bool) -> None:
        """Take *data*, a part of the replies; *is_complete*: it is the last one."""
        if not is_complete or self._parts:
            self._parts += data
            if len(self._parts) > MAX_REPLIES:
                raise LinkError(f"more than {MAX_REPLIES} bytes of replies to one request")
            if not is_complete:
                return
            data, self._parts = bytes(self._parts), bytearray()
        while self._awaits and data.startswith(AWAIT_REPLIES):
            line, end, data = data.partition(CRLF)
            line += end
            if self.is_awaiting and line in (replies.offered(self._awaits), replies.near_deadline(self._awaits)):
                self.session.receive_offer(self.shard, is_offered=line.startswith(b"OFFERED"))
            if not data:
                return
        if self._is_asked:
            self._is_asked = False
            if data.startswith(b"RESERVED"):  # a command that reserves is alone in its request
                self._note_reserved(data)
            self.session.receive_reply(self.shard, data)
        else:
            raise LinkError("a reply to no command")

    def _note_reserved(self, reply: bytes) -> None:
        """Count the jobs in *reply*."""
        count = 1
        if reply.startswith(b"RESERVED_BATCH "):
            text = reply[15 : reply.find(CRLF)]
            if not (text.isdigit() and len(text) <= MAX_DIGITS):
                raise LinkError("malformed reply")
            count = int(text)
        if count:
            self.reserved += count
            self.session.note_holding(self.shard)
