"""A link: the connection to one other process of the queue, with a channel for each client that needs both processes.

On a link, this process is the front of its own clients: a `LinkWire` carries the commands of one of them to the other
process. And it is the owner of its shard: a `ServedClient` is a client of the other process, served by a session like
that of a connection. Frames of up to four batches are sent together, after the journal's records are written.

Bounds: a front sends a client's next run of commands when it has all replies to the one before. Each side sends at most
`WINDOW` bytes of channels that the other has not taken. A ServedClient is not served while more than `MAX_UNSENT` bytes
wait for the socket. A peer that does not follow the protocol loses the link.

A link that is relayed can continue on another connection, without loss: each side changes over between two frames.

Docstrings say which methods may switch greenlets.
"""

from __future__ import annotations

import json
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

import gevent
from gevent import get_hub
from gevent.event import Event
from mypy_extensions import mypyc_attr

from greenstalk_server.core.broker import SLICE, Broker
from greenstalk_server.core.journal import Journal
from greenstalk_server.core.operations import connecting, suspending
from greenstalk_server.core.remote import RemoteReservations
from greenstalk_server.core.tubes.head_watch import NO_HEAD, Head
from greenstalk_server.net.committer import Committer
from greenstalk_server.net.link_calls import CallHandler, LinkCalls
from greenstalk_server.net.poller import Handler, Poller
from greenstalk_server.protocol import link_frames as frames
from greenstalk_server.protocol.costs import DISCONNECT_COST, OUTPUT_SLICE
from greenstalk_server.protocol.front_channel import NO_SHARD, Channel, Wire
from greenstalk_server.protocol.link_frames import FrameReader, LinkError, frame
from greenstalk_server.protocol.session import Session
from greenstalk_server.runtime.clock import Clock

RECEIVE_SIZE: Final = 2**17
"""Bytes per recv: the size of the buffer of PlainSocket."""

MAX_UNSENT: Final = 2**20
"""Bytes waiting for the socket above which no ServedClient is served, and no call is sent."""

MAX_QUEUED: Final = 2**24
"""Bytes waiting for the socket above which the link is closed. Only channels that open and close do not wait."""

MAX_OVERHEAD: Final = 4 * 2**20
"""Bytes of a call beside three times the largest job, which is a request to put it with its bytes escaped."""

MAX_CHANNELS: Final = 2**20
"""Open channels of a peer. A process on Linux has no more connections than that (`fs.nr_open`)."""

FRAME_BATCH: Final = 1024
"""Frames that are handled before the poller serves others: one to three milliseconds."""

OPENED_BATCH: Final = 32
"""Channels that are opened before the poller serves others: about a millisecond."""

MAX_NUMBER: Final = 2**63 - 1
"""Maximum number of a session, and of a reservation in it."""

RESIGN_INTERVAL: Final = 0.005
"""Seconds between two checks whether a request is still being served."""

WRITE: Final = 2
"""Event of a gevent io watcher."""

try:
    from greenstalk_server.net._plain_socket import PlainSocket
except ImportError:  # not compiled
    PlainSocket = None  # type: ignore[assignment,misc]

log = logging.getLogger(__name__)


class Host(Protocol):
    """The parts of its process that a link needs.

    poller, clock, broker, committer    those of the server.
    own         the shard that it leads; NO_SHARD if it leads none.
    heads       the heads of tubes of other shards.
    handlers    answer the calls of other processes, by name.
    """

    own: int
    poller: Poller
    clock: Clock
    broker: Broker
    committer: Committer | None
    heads: dict[bytes, Head]
    handlers: dict[str, CallHandler]

    def make_session(self, wake: Callable[[], None], facts: dict[str, Any]) -> Session:
        """Return the session of a client of another process; *facts* are those of its OPEN."""

    def note_output(self, link: Link) -> None:
        """Call `flush` of *link* soon."""

    def drop(self, link: Link) -> None:
        """Close *link*, which has failed."""

    def note_served(self, client: ServedClient, remote: RemoteReservations) -> None:
        """Note that *client* serves the session *remote*; end a former one, whose link is lost. Raise LinkError."""

    def forget_served(self, client: ServedClient, remote: RemoteReservations) -> None:
        """Note that *client* has ended."""

    def note_reported(self, link: Link) -> None:
        """Disconnect the suspended clients of the peer of *link*: it has opened the sessions of all others again."""

    def note_lead(self, link: Link, shard: int) -> None:
        """Send to *link* what waits for *shard*, which its peer leads from now on. Raise LinkError."""

    def note_resigned(self, link: Link) -> None:
        """Close *link*, whose peer no longer leads its shard; what it has not replied to has had no effect."""


class _Offer(NamedTuple):
    """A connection on which a link can continue.

    nonce   names it.
    unread  bytes that have arrived on it.
    """

    nonce: bytes
    sock: socket.socket
    unread: bytes


class LinkWire(Wire):
    """The channel of a client of this process to the owner of a shard. It outlives a link that is not up yet.

    channel     whose bytes it carries.
    is_closed   the session has closed it.
    """

    __slots__ = ("_data_tail", "_link", "_number", "_part_tail", "_tell_tail", "channel", "is_closed")

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self.channel: Channel = channel
        self.is_closed: bool = False
        self._link: Link | None = None
        self._number: int = 0
        self._part_tail: bytes = b""
        self._data_tail: bytes = b""
        self._tell_tail: bytes = b""

    def attach(self, link: Link) -> None:
        """Open the channel on *link*, and send what the channel begins with."""
        self._link = link
        self._number = link.open(self)
        self._part_tail = frames.tail(frames.PART, self._number)
        self._data_tail = frames.tail(frames.DATA, self._number)
        self._tell_tail = frames.tail(frames.TELL, self._number)
        self.is_attached = True
        for is_told, data in self.channel.begin():
            self.tell(data) if is_told else self.send(data)

    def send(self, data: bytes) -> None:
        """Send *data*. Does not switch."""
        assert self._link is not None
        self._link.send_data(self._part_tail, self._data_tail, data)

    def tell(self, data: bytes) -> None:
        """Send *data*, commands whose replies are not sent back. Does not switch."""
        assert self._link is not None
        self._link.send_data(self._tell_tail, self._tell_tail, data)

    def close(self) -> None:
        """Close the channel. Does not switch."""
        self.is_closed = True
        if self._link is not None:
            self._link.close_wire(self._number)

    def lose(self, *, is_unserved: bool = False) -> None:
        """Tell the session that the link is lost, unless the session is closed; *is_unserved* as of Channel."""
        if not self.is_closed:
            self.channel.lose(is_unserved=is_unserved)


class ServedClient(Handler):
    """A client that is connected to the other process of *link*, and its session here."""

    __slots__ = (
        "_committer",
        "_end_tail",
        "_held",
        "_input",
        "_input_rest",
        "_is_begun",
        "_is_closed",
        "_is_complete",
        "_is_end_due",
        "_is_ending",
        "_is_partial",
        "_is_quiet",
        "_journal",
        "_link",
        "_number",
        "_poller",
        "_reply_tail",
        "_told",
        "remote",
        "session",
    )

    def __init__(self, link: Link, number: int, facts: dict[str, Any]) -> None:
        super().__init__()
        host = link.host
        self._link: Link = link
        self._number: int = number
        self._poller: Poller = host.poller
        self._committer: Committer | None = host.committer
        self._journal: Journal = host.broker.journal
        self._end_tail: bytes = frames.tail(frames.END, number)
        self._reply_tail: bytes = frames.tail(frames.REPLY, number)
        self._told: list[bytes] = []
        self._input: bytes = b""
        self._input_rest: list[bytes] = []
        self._is_partial: bool = False  # the rest of a request is still to come
        self._is_quiet: bool = False  # the commands that are served were told
        self._is_begun: bool = False  # a request is being served
        self._is_complete: bool = False  # the replies of the last slice complete those to all that has arrived
        self._is_end_due: bool = False  # a part of the replies was sent, not their end
        self._held: deque[tuple[int, bytes, bool]] = deque()
        self._is_closed: bool = False
        self._is_ending: bool = False
        self.remote: RemoteReservations = RemoteReservations(link.peer, facts["session"])
        host.note_served(self, self.remote)
        self.session: Session = host.make_session(self.wake, facts)
        client = self.session.client
        connecting.become_remote(host.broker, client, link, self.remote)
        if suspending.resume(host.broker, client, facts["reserved"], host.clock()):
            host.poller.queue(self)
        client.number, client.address, client.name = facts["number"], facts["address"], facts["name"]
        client.connected_at = host.clock()
        client.hang_up = self._hang_up

    @property
    def is_lost(self) -> bool:
        """Whether the link is lost."""
        return self._link.is_lost

    @property
    def is_serving(self) -> bool:
        """Whether a request is being served, other than a wait for a job, or its replies are to be sent."""
        session = self.session
        if self._is_closed:
            return False
        return bool(self._held) or session.is_woken or (self._is_begun and not session.is_waiting)

    def wake(self) -> None:
        """Have the poller call `resume`, since the session can continue."""
        self._poller.queue(self)

    def push(self, kind: int, data: bytes) -> None:
        """Serve *data* of a frame of *kind*, which has arrived, in the next batch."""
        if kind == frames.TELL:
            self._told.append(data)
        elif self._input:
            self._input_rest.append(data)
        else:
            self._input = data
        self._is_partial = kind == frames.PART
        self._poller.queue(self)

    def resume(self, now: int, limit: int) -> bytes:
        """Continue after a wait or a slice, or serve the input; return the replies to be sent."""
        session = self.session
        if self._is_closed:
            return b""
        if self.resume_some(now):
            self._poller.queue(self)
            return b""
        if self._is_ending:
            self._finish(now, limit)
            return b""
        if self._has_ended():
            return b""
        if session.stream is not None or self._link.is_lost:
            return b""
        if self._held or self._link.is_full:
            self._link.note_stalled(self)
            return b""
        promised = self._journal.promised if self._committer is not None else 0
        if session.is_woken or session.has_more:
            out = session.resume(now, limit)
        elif (self._input or self._told) and (self.is_serving or not self._link.is_resigning):
            out = self._serve_input(now, limit)
        else:
            return b""
        self._poller.spend(session.cost)
        if session.is_closing or session.has_more or self._input or self._told:
            self._poller.queue(self)
        return b"" if self._is_quiet else self._settle_slice(out, promised)

    def resume_some(self, now: int) -> bool:
        """Take a slice of the jobs of the session from before the loss of a link; return whether more follow."""
        if not self.remote.unresumed:
            return False
        self._poller.spend(SLICE * DISCONNECT_COST)
        return suspending.resume_some(self._link.host.broker, self.session.client, SLICE, now)

    def _settle_slice(self, out: bytes, promised: int) -> bytes:
        """Hold *out*, the replies of a slice, if they wait for the journal; return what can be sent now."""
        session = self.session
        is_busy = session.has_more or session.is_waiting or session.stream is not None
        self._is_complete = not (is_busy or self._input or self._is_partial)
        self._is_begun = not self._is_complete
        if not out:
            if self._is_complete and self._is_end_due:
                self._emit(b"", True)
            return b""
        if self._committer is not None and (session.reports or self._journal.promised != promised):
            self._held.append((self._journal.promised, out, self._is_complete))
            self._link.commit_held(self)
            return b""
        return out

    def _serve_input(self, now: int, limit: int) -> bytes:
        """Serve the commands that were told, then the others; return the replies to the others."""
        if self._told:
            data, self._told = b"".join(self._told), []
            self._is_quiet = True
            self._link.grant(len(data))
            self.session.receive(data, now, limit)
            if self.session.has_more or not self._input:
                return b""
        self._is_quiet = False
        data, self._input = self._input, b""
        if self._input_rest:
            data, self._input_rest = b"".join([data, *self._input_rest]), []
        self._link.grant(len(data))
        return self.session.receive(data, now, limit)

    def send(self, out: bytes) -> None:
        """Send *out*, then the stream that follows it."""
        self._emit(out, self._is_complete)
        if self.session.stream is not None:
            self.pump()

    def _emit(self, out: bytes, is_complete: bool) -> None:
        """Send *out*; if *is_complete*, it ends the replies to all that has arrived."""
        self._is_end_due = not is_complete
        self._link.send_data(self._reply_tail, self._end_tail if is_complete else self._reply_tail, out)

    def pump(self) -> None:
        """Send the stream of the session as far as there is room."""
        session = self.session
        while session.stream is not None and not self._held:
            if self._link.is_full:
                self._link.note_stalled(self)
                return
            piece = session.stream.next()
            if piece:
                self._emit(piece, False)
            else:
                session.end_stream()
                self._poller.queue(self)

    def release(self, safe: int) -> None:
        """Send the replies that waited for records up to number *safe*. Called by the committer. Does not switch."""
        while self._held and self._held[0][0] <= safe and not self._is_closed:
            _, out, is_complete = self._held.popleft()
            self._emit(out, is_complete)
        if not self._held:
            self.pump()
            self._poller.queue(self)
        self._link.host.note_output(self._link)

    def end(self) -> None:
        """Disconnect the client once its input, and that of the clients before it, is served."""
        self._is_ending = True
        self._poller.queue(self)

    def _finish(self, now: int, limit: int) -> None:
        """Serve the rest of the input, whose replies nobody reads, then disconnect the client."""
        session = self.session
        session.end_stream()
        if session.has_more:
            session.resume(now, limit)
        elif self._input or self._told:
            self._serve_input(now, limit)
        self._poller.spend(session.cost)
        if (session.has_more or self._input or self._told) and not session.is_closing:
            self._poller.queue(self)
        else:
            self.close(now)

    def close(self, now: int) -> None:
        """Disconnect the client, once."""
        if not self._is_closed:
            self._note_end()
            self.session.close(now)
            if self.remote.unresumed:
                suspending.end(self._link.host.broker, self.remote.front, self.remote.session, now)

    def suspend(self, now: int) -> None:
        """Suspend the client, whose link is lost, unless it has ended."""
        if not self._is_closed:
            self._note_end()
            self.session.suspend(now)

    def _note_end(self) -> None:
        """Drop the input."""
        self._is_closed = True
        self._link.grant(len(self._input) + sum(map(len, self._input_rest)) + sum(map(len, self._told)))
        self._input, self._input_rest, self._told = b"", [], []
        self._link.host.forget_served(self, self.remote)

    def is_client(self) -> bool:
        """Return True."""
        return True

    def fail(self, error: Exception) -> None:
        """Log *error*, and close."""
        log.error("internal error: the client is disconnected", exc_info=error)
        self._hang_up()

    def settle(self) -> None:
        """Send the held replies whose records are safe by now, and have the committer release the others."""
        assert self._committer is not None
        self.release(self._journal.safe)
        if self._held:
            self._committer.hold(self)

    def _has_ended(self) -> bool:
        """Return whether the session has closed; if so, disconnect the client once its replies are sent."""
        if self.session.is_closing and not self._held and self.session.stream is None:
            self._hang_up()
        return self.session.is_closing

    def _hang_up(self) -> None:
        """Disconnect the client, and tell its front."""
        if not self._is_closed:
            self.close(self._link.host.clock())
            self._link.send_closed(self._number)


@mypyc_attr(allow_interpreted_subclasses=True)  # a relay is not compiled
class ProcessSocket(Handler):
    """The input of a connection to another process. No method switches.

    silence number that a subclass counts up; 0 when input arrives.
    """

    def __init__(self, poller: Poller, sock: socket.socket) -> None:
        super().__init__()
        self._poller: Poller = poller
        self.silence: int = 0
        self._use(sock)

    def _use(self, sock: socket.socket) -> None:
        """Receive from *sock* from now on."""
        self._sock: socket.socket = sock
        self._recv: Callable[[int], bytes] = _calls_of(sock)[0]
        self._has_unread: Callable[[], bool] | None = getattr(sock, "has_unread", None)  # of a TlsSocket
        self._has_hung_up: bool = False  # the kernel has announced the end of the stream

    def start(self) -> None:
        """Begin to receive; raise OSError if the system cannot poll the socket."""
        self._poller.add(self._sock.fileno(), self)

    def _close_socket(self) -> None:
        """Close the connection.

        A closed socket raises. A PlainSocket would use the descriptor, which another connection may have by then.
        """
        self._poller.remove(self._sock.fileno())
        self._recv = self._sock.recv
        self._sock.close()

    def receive(self) -> bytes | None:
        """Return the bytes that have arrived, b"" at the end of the stream, or None if there are none."""
        data: bytes | None = None
        try:
            data = self._recv(RECEIVE_SIZE)
        except BlockingIOError:
            pass
        except OSError:
            return b""
        if data != b"":
            self._poller.arm(self._sock.fileno())
        if data:
            self.silence = 0
            if len(data) == RECEIVE_SIZE or self._has_hung_up:
                self.note_unread()
        if self._has_unread is not None and self._has_unread():
            self.note_unread()
        return data

    def note_unread(self) -> None:
        """Have the poller call `resume`, which has to receive again."""
        self._poller.queue(self)

    def note_hang_up(self) -> None:
        """Have the poller call `resume` until it meets the end of the stream."""
        self._has_hung_up = True
        self._poller.queue(self)


class Link(ProcessSocket):
    """The connection to one other process, after the handshake.

    peer    id of the other process.
    shard   the shard that the other process leads, by its own account; NO_SHARD if it leads none.
    host    this process.
    silence number of `ping` since the peer was last heard.
    peer_stats  the statistics of the clients that the peer accepted while it led no shard; empty if it always led one.
    lost    set when the link is lost.
    is_reported     `report` was called.
    is_resigning    `resign` was called.
    calls   the calls of both processes.
    relay   id of the process that relays the link; empty if the connection is direct.
    """

    def __init__(
        self, host: Host, peer: str, shard: int, sock: socket.socket, version: int = frames.VERSION, relay: str = ""
    ) -> None:
        """*version* is the newest version that the peer speaks."""
        super().__init__(host.poller, sock)
        self.host: Host = host
        self.peer: str = peer
        self.shard: int = shard
        self.peer_stats: bytes = b""
        self.lost: Event = Event()
        self.is_lost: bool = False
        self.is_reported: bool = False
        self.is_resigning: bool = False
        self.relay: str = relay
        self._version: int = version
        self.calls: LinkCalls = LinkCalls(self, host.handlers, 3 * host.broker.max_job_size + MAX_OVERHEAD)
        self._sender: socket.socket = sock  # another one than _sock while the link changes over
        self._offer: _Offer | None = None  # the connection on which the link can continue
        self._awaited: bytes = b""  # the nonce of the connection to which the peer has changed over already
        self._is_last: bool = False  # _unsent is the last output on this connection
        self._send: Callable[[bytes], int] = _calls_of(sock)[1]
        self._reader: FrameReader = FrameReader()
        self._unserved: list[frames.Frame] = []  # behind a batch; if there are any, the link is queued
        self._wires: dict[int, LinkWire] = {}
        self._clients: dict[int, ServedClient] = {}
        self._last_wire: int = 0
        self._out: list[bytes] = []
        self._unsent: bytes = b""
        self._queued: int = 0
        self._is_dirty: bool = False  # `flush` is due
        self._credit: int = frames.WINDOW
        self._blocked: deque[tuple[bytes, bytes]] = deque()
        self._granted: int = frames.WINDOW  # bytes that the peer may still send
        self._taken: int = 0  # bytes taken and not granted again yet
        self._stalled: dict[ServedClient | LinkCalls, None] = {}
        self._settling: dict[ServedClient, None] = {}
        self._published: dict[bytes, Head] = {}
        self._unpublished: dict[bytes, Head] = {}  # heads that wait until the socket accepts more
        self._watcher: Any = None

    @property
    def label(self) -> str:
        """The peer, for the log."""
        return f"shard {self.shard}" if self.shard != NO_SHARD else f"process {self.peer}"

    @property
    def can_relay(self) -> bool:
        """Whether the peer can relay, or can be reached over a relay."""
        return self._version >= frames.RELAY_VERSION and not self.relay

    # As front

    def open(self, wire: LinkWire) -> int:
        """Open a channel for *wire*; return its number."""
        self._last_wire += 1
        number = self._last_wire
        self._wires[number] = wire
        session = wire.channel.session
        listener, names = session.origin
        facts = {
            "number": session.client.number,
            "address": session.client.address,
            "name": session.client.name,
            "listener": listener,
            "names": names,
            "session": session.number,
            "reserved": wire.channel.reserved,
        }
        self._write(frame(frames.OPEN, number, json.dumps(facts).encode()[: frames.MAX_PAYLOAD]))
        return number

    def close_wire(self, number: int) -> None:
        """Close the channel *number*, behind its data."""
        if self._wires.pop(number, None) is not None:
            self._send_piece(frames.tail(frames.CLOSE, number), b"")

    def report(self) -> None:
        """Tell the peer that all sessions with jobs there have been opened again."""
        self._write(frame(frames.REPORTED, 0))
        self.is_reported = True

    # As owner

    @property
    def is_full(self) -> bool:
        """Whether too much output waits for the socket, or for the peer."""
        return self._queued > MAX_UNSENT or bool(self._blocked)

    def note_stalled(self, client: ServedClient | LinkCalls) -> None:
        """Have *client* continue when output has been sent."""
        self._stalled[client] = None

    def commit_held(self, client: ServedClient) -> None:
        """Call `settle` of *client* once the batch is committed."""
        self._settling[client] = None
        self.host.note_output(self)

    def send_closed(self, number: int) -> None:
        """Tell the front that the channel *number* is closed, behind its data."""
        self._clients.pop(number, None)
        self._send_piece(frames.tail(frames.CLOSED, number), b"")

    def publish(self, tube: bytes, head: Head) -> None:
        """Publish the *head* of *tube*, if it differs from the last one, once there is room for it."""
        self._unpublished.pop(tube, None)
        if self._published.get(tube, NO_HEAD) == head:
            return
        if self._queued > MAX_UNSENT:
            self._unpublished[tube] = head
            return
        if head == NO_HEAD:
            del self._published[tube]
        else:
            self._published[tube] = head
        self._write(frame(frames.HEAD, 0, frames.encode_head(tube, *head)))

    def grant(self, count: int) -> None:
        """Note that *count* bytes of channels have been taken."""
        self._taken += count
        if self._taken > frames.WINDOW // 4:
            self._granted += self._taken
            self._write(frame(frames.WINDOW_GRANT, self._taken))
            self._taken = 0

    def ping(self, stats: bytes) -> None:
        """Send a PING; *stats* become the peer's `peer_stats`."""
        self.silence += 1
        self._write(frame(frames.PING, 0, stats))

    def announce(self, shard: int) -> None:
        """Tell the peer that this process leads *shard* from now on."""
        self._write(frame(frames.LEAD, shard))

    def resign(self) -> None:
        """Begin to serve no other request. Then tell the peer that the others have had no effect. Switches.

        Return when the peer has closed the link: it has read all replies then.
        """
        self.is_resigning = True
        for client in list(self._clients.values()):
            while client.is_serving:
                gevent.sleep(RESIGN_INTERVAL)
        if self._version >= frames.RESIGN_VERSION:
            self._send_piece(frames.tail(frames.RESIGN, 0), b"")  # behind the replies
            self.lost.wait()

    # Output

    def send_data(self, tail: bytes, last_tail: bytes, data: bytes) -> None:
        """Send *data* in frames, as far as the window allows; keep the rest. Does not switch.

        *tail* is the part of the header of each frame that follows the size; *last_tail* that of the last frame.
        """
        limit = frames.MAX_PAYLOAD
        if len(data) <= limit:
            self._send_piece(last_tail, data)
            return
        for start in range(0, len(data), limit):
            self._send_piece(tail if start + limit < len(data) else last_tail, data[start : start + limit])

    def _send_piece(self, tail: bytes, piece: bytes) -> None:
        """Send a frame with the header's *tail* and the payload *piece* if the window allows it; else keep it."""
        size = len(piece)
        if self._blocked or self._credit < size:
            self._blocked.append((tail, piece))
            return
        self._credit -= size
        out = self._out
        out.append(frames.SIZES[size] if size < len(frames.SIZES) else size.to_bytes(4, "little"))
        out.append(tail)
        out.append(piece)
        self._note_queued(frames.HEADER_SIZE + size)

    def send_frame(self, kind: int, number: int, payload: bytes) -> None:
        """Send a frame that does not count in the window. Does not switch."""
        self._write(frame(kind, number, payload))

    def _write(self, data: bytes) -> None:
        self._out.append(data)
        self._note_queued(len(data))

    def _note_queued(self, size: int) -> None:
        self._queued += size
        if not self._is_dirty:
            self._is_dirty = True
            self.host.note_output(self)

    def flush(self) -> None:
        """Settle the held replies, and send what the socket accepts. Does not switch."""
        self._is_dirty = False
        while self._settling:
            client, _ = self._settling.popitem()
            client.settle()
        if self._queued > MAX_QUEUED and not self.is_lost:
            log.error("link to %s: more than %d bytes wait for the peer; the link is closed", self.label, MAX_QUEUED)
            self.host.drop(self)
        if self._watcher is not None or self.is_lost or not self._out:
            return
        data, self._out = b"".join([self._unsent, *self._out]), []
        try:
            sent = self._send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.host.drop(self)
            return
        self._unsent = data[sent:]
        self._queued = len(self._unsent)
        if self._unsent:
            self._watch()
        elif self._stalled or self._unpublished:
            self._continue_stalled()

    def _watch(self) -> None:
        """Call `_flush_rest` when the socket accepts more."""
        self._watcher = get_hub().loop.io(self._sender.fileno(), WRITE)
        self._watcher.start(self._flush_rest)

    def _flush_rest(self) -> None:
        self._unwatch()
        if self._is_last and not self._send_last():
            return
        self._out.append(b"")
        self.flush()

    def _unwatch(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher.close()
            self._watcher = None

    def _continue_stalled(self) -> None:
        heads, self._unpublished = self._unpublished, {}
        for tube, head in heads.items():
            self.publish(tube, head)
        stalled, self._stalled = self._stalled, {}
        for client in stalled:
            client.pump()
            self.host.poller.queue(client)

    # Another connection. No method switches.

    def change_over(self, nonce: str, sock: socket.socket, unread: bytes, *, is_first: bool) -> None:
        """Continue on *sock*, a connection of that *nonce* on which *unread* has arrived, and close the present one.

        *is_first*: begin to send there now, as this side has connected. Otherwise wait until the peer sends there.
        """
        if self._offer is not None:
            self._offer.sock.close()
        self._offer = _Offer(nonce.encode(), sock, unread)
        if is_first:
            self.relay = ""
            self._end_output()
        elif self._awaited == self._offer.nonce:
            self._change_input()

    def _note_switch(self, nonce: bytes) -> None:
        """Handle SWITCH, the last frame on this connection."""
        if self._offer is not None and self._offer.nonce == nonce:
            self._change_input()
        elif self.relay:
            self._awaited = nonce  # its handshake is not complete yet
        else:
            raise LinkError("unexpected SWITCH")

    def _end_output(self) -> None:
        """Send what waits, and SWITCH, on this connection. `_send_last` sends later output on the other one."""
        assert self._offer is not None
        last = frame(frames.SWITCH, 0, self._offer.nonce)
        self._unsent = b"".join([self._unsent, *self._out, last])
        self._out = []
        self._queued += len(last)
        self._is_last = True
        if self._watcher is None:
            self._watch()

    def _send_last(self) -> bool:
        """Send the last output on this connection; return whether all is sent, and the other one is in use."""
        try:
            sent = self._send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.host.drop(self)
            return False
        self._unsent = self._unsent[sent:]
        self._queued -= sent
        if self._unsent:
            self._watch()
            return False
        former, self._sender = self._sender, self._sock if self._offer is None else self._offer.sock
        self._send = _calls_of(self._sender)[1]
        self._is_last = False
        if former is not self._sock:
            former.close()
        return True

    def _change_input(self) -> None:
        """Receive on the other connection from now on, and send there too."""
        offer = self._offer
        assert offer is not None
        if self._sender is self._sock and not self._is_last:
            self._end_output()
        former, self._offer, self.relay = self._sock, None, ""
        self._use(offer.sock)
        self.host.poller.remove(former.fileno())
        if former is not self._sender:
            former.close()
        try:
            self.start()
        except OSError as error:
            self.fail(error)
            return
        log.info("the link to %s is direct again", self.label)
        try:
            self._unserved = self._reader.feed(offer.unread)
        except LinkError as error:
            self._refuse(error)
        self.note_unread()

    # Called by the poller. No method switches.

    def serve(self, data: bytes, now: int, limit: int) -> bytes:
        """Pass on the frames in *data*."""
        if self.is_lost:
            return b""
        if not data:
            self.host.drop(self)
            return b""
        try:
            self._serve_frames(self._reader.feed(data))
        except LinkError as error:
            self._refuse(error)
        return b""

    def _serve_frames(self, found: list[frames.Frame]) -> None:
        """Handle the frames *found*, in order; after a batch, keep the rest for `resume`. Raise LinkError."""
        left = FRAME_BATCH
        self._unserved = []
        for at, (kind, channel, payload) in enumerate(found):  # mypyc makes a loop of this, but not with a start
            self._handle(kind, channel, payload)
            left -= FRAME_BATCH // OPENED_BATCH if kind == frames.OPEN else 1
            if left <= 0:
                self._unserved = found[at + 1 :] + self._unserved  # SWITCH, the last frame, may have brought more
                self.host.poller.spend(OUTPUT_SLICE)
                self.host.poller.queue(self)
                return

    def _refuse(self, error: LinkError) -> None:
        """Log *error*, a frame that the peer may not send, and close the link."""
        log.error("link to %s: %s; the link is closed", self.label, error)
        self.host.drop(self)

    def resume(self, now: int, limit: int) -> bytes:
        """Handle the frames that are left, or receive again."""
        if self.is_lost:
            return b""
        if self._unserved:
            self.host.poller.queue(self)  # to receive again: an event may have come meanwhile
            try:
                self._serve_frames(self._unserved)
            except LinkError as error:
                self._refuse(error)
            return b""
        data = self.receive()
        if data is not None:
            self.serve(data, now, limit)
        return b""

    def defer(self, data: bytes) -> None:
        """Pass on the frames in *data* now: this costs little, and the channels take turns later."""
        self.serve(data, self.host.clock(), 1)

    def fail(self, error: Exception) -> None:
        """Log *error*, and close the link."""
        log.error("internal error: the link to %s is closed", self.label, exc_info=error)
        self.host.drop(self)

    def _handle(self, kind: int, channel: int, payload: bytes) -> None:
        """Handle one frame; raise LinkError if the peer may not send it."""
        if kind == frames.END or kind == frames.REPLY:
            self._take(len(payload))
            self.grant(len(payload))
            wire = self._wires.get(channel)
            if wire is not None:
                wire.channel.receive(payload, kind == frames.END)
        elif kind == frames.DATA or kind == frames.TELL or kind == frames.PART:
            self._take(len(payload))
            client = self._clients.get(channel)
            if client is not None:
                client.push(kind, payload)
            else:
                self.grant(len(payload))
        elif kind in (frames.OPEN, frames.CLOSE):
            self._handle_client(kind, channel, payload)
        elif kind == frames.CLOSED:
            wire = self._wires.pop(channel, None)
            if wire is not None:
                wire.channel.lose(is_ended=True)
        elif kind == frames.HEAD:
            self._note_head(payload)
        elif kind in (frames.CALL, frames.ANSWER):
            self.calls.receive_frame(kind, channel, payload)
        elif kind == frames.SWITCH:
            self._note_switch(payload)
        else:
            self._handle_control(kind, channel, payload)

    def _handle_control(self, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame about the link itself; raise LinkError if the peer may not send it."""
        if kind == frames.WINDOW_GRANT:
            self._use_grant(number)
        elif kind == frames.LEAD:
            self.host.note_lead(self, number)
        elif kind == frames.REPORTED:
            self.host.note_reported(self)
        elif kind == frames.RESIGN:
            self.host.note_resigned(self)
        elif kind == frames.PING:
            self.peer_stats = payload
        else:
            raise LinkError(f"unexpected frame of kind {kind}")

    def _take(self, count: int) -> None:
        """Note that *count* bytes of channels have arrived."""
        self._granted -= count
        if self._granted < 0:
            raise LinkError("more bytes than the window allows")

    def _handle_client(self, kind: int, channel: int, payload: bytes) -> None:
        """Handle OPEN or CLOSE."""
        client = self._clients.pop(channel, None)
        if kind == frames.OPEN:
            if client is not None:
                raise LinkError(f"channel {channel} is open already")
            if self.host.own == NO_SHARD:
                raise LinkError("this process leads no shard")
            if len(self._clients) == MAX_CHANNELS:
                raise LinkError(f"more than {MAX_CHANNELS} channels")
            self._clients[channel] = ServedClient(self, channel, _facts(payload))
        elif client is not None:
            client.end()

    def _note_head(self, payload: bytes) -> None:
        """Handle HEAD."""
        tube, pri, since = frames.decode_head(payload)
        if self.shard in (self.host.own, NO_SHARD):  # a link of the process to itself, or to one without tubes
            return
        if pri < 0:
            self.host.heads.pop(tube, None)
        else:
            self.host.heads[tube] = (pri, since)

    def _use_grant(self, count: int) -> None:
        """Send the data that was blocked, as far as *count* more bytes allow."""
        self._credit += count
        if self._credit > frames.WINDOW:
            raise LinkError("a grant of more than the window")
        blocked, self._blocked = self._blocked, deque()
        while blocked and self._credit >= len(blocked[0][1]):
            tail, piece = blocked.popleft()
            self._send_piece(tail, piece)
        self._blocked = blocked

    def close(self) -> tuple[list[LinkWire], list[ServedClient]]:
        """Close the socket; return the wires and clients that the caller has to end. Does not switch."""
        self.is_lost = True
        self._unwatch()
        if self._sender is not self._sock:
            self._sender.close()
        if self._offer is not None:
            self._offer.sock.close()
        self._send = self._sock.send
        self._close_socket()
        self._out, self._unserved, self._stalled, self._settling = [], [], {}, {}
        self.calls.close()
        wires, self._wires = list(self._wires.values()), {}
        clients, self._clients = list(self._clients.values()), {}
        return wires, clients


def _calls_of(sock: socket.socket) -> tuple[Callable[[int], bytes], Callable[[bytes], int]]:
    """Return recv and send of *sock*, the fastest that there are."""
    plain = sock if PlainSocket is None or type(sock) is not socket.socket else PlainSocket(sock.fileno())
    return plain.recv, plain.send


def _facts(payload: bytes) -> dict[str, Any]:
    """Return the facts of OPEN; raise LinkError if they are malformed."""
    try:
        facts: dict[str, Any] = json.loads(payload)
        texts = [facts["address"], facts["name"], facts["listener"], *facts["names"]]
        numbers = [facts["session"], facts["reserved"]]
    except (ValueError, KeyError, TypeError):
        raise LinkError("malformed OPEN") from None
    if not all(isinstance(text, str) for text in texts) or type(facts.get("number")) is not int:
        raise LinkError("malformed OPEN")
    if not all(type(number) is int and 0 <= number <= MAX_NUMBER for number in numbers):
        raise LinkError("malformed OPEN")
    return facts
