"""One connection of a client: its socket, its session, and the greenlet that waits for it.

The poller calls the connection when input has arrived, or when the client's wait for a job has ended. The call serves
the commands in the hub, which is possible since no broker method switches. The greenlet does all work that may have to
wait: it sends the bytes that the socket did not accept, sends large replies in pieces, pauses a client that exceeds its
rate, and closes the socket. Otherwise it blocks on its Event. A reply whose record is not safe yet is held, and the
committer sends it later. A connection is in one of these states:

              _pause              _need_greenlet            close
    READING ──────────▶ PAUSED ──────────────────▶ BUSY ──────────▶ CLOSED
       ▲  │ _proceed     │  ▲         _run          │ ▲
       └──┼──────────────┘  └───────────────────────┘ │
          └───────────── _need_greenlet ──────────────┘

    READING  the poller receives, serves and sends.
    PAUSED   the poller does not receive. It serves what has been received, and sends. The reason is that input is
             deferred, that the session has enough input, or that too many replies are held.
    BUSY     the greenlet works. The connection is not read, and only the greenlet sends.
    CLOSED   the socket is closed.

It ends in one of these ways. A later one replaces an earlier one:

    STOPPING the server stops: close when the pending replies are sent.
    GONE     receiving or sending has failed: drop the unsent replies, and close.
    KILLED   close now.

A close or a `quit` takes effect in the broker in the call that serves it, before any command that arrives later: the
client leaves, and the state becomes BUSY in the same batch. The greenlet closes the socket afterwards.

`Connection.check` asserts the invariants of these states, which hold between two batches.

Docstrings say which methods may switch greenlets.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import gevent
from gevent import get_hub
from gevent.event import Event
from greenlet import GreenletExit, getcurrent

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.journal import Journal
from greenstalk_server.core.limits import LimitCounters
from greenstalk_server.net.committer import Committer
from greenstalk_server.net.listeners import describe_peer
from greenstalk_server.net.poller import COMMAND_QUANTUM, Handler, Poller
from greenstalk_server.protocol.session import Session
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.system import IS_PORTABLE, has_peer_closed, unacknowledged

RECEIVE_SIZE: Final = 65536 + 4096
"""Bytes per recv: the largest put that a server with the default -z accepts, whole."""

MAX_HELD_REPLIES: Final = 16
"""Chunks of replies that wait for the journal; at this number, reading from the connection pauses."""

STREAM_BATCH: Final = 262144
"""Bytes of a large reply that are sent before other connections are served."""

COSTLY: Final = 8192
"""Cost above which a call counts toward the poller's budget even if no input is left."""

TLS_WEIGHT: Final = 4
"""Cost per received byte of TLS overhead. A `recv` of records without data takes 6 to 10 ms."""

NO_LIMIT: Final = 2**62
"""Bytes: an output limit that is never reached."""

WRITE: Final = 2
"""Event of a gevent io watcher."""

READING: Final = 0
PAUSED: Final = 1
BUSY: Final = 2
CLOSED: Final = 3

OPEN: Final = 0
STOPPING: Final = 1
GONE: Final = 2
KILLED: Final = 3

try:
    from greenstalk_server.net._plain_socket import PlainSocket
except ImportError:  # not compiled
    PlainSocket = None  # type: ignore[assignment,misc]


def _ignore_leave(client: Client) -> None:
    """Do nothing: the default of `Connection.on_leave`."""


def run_then(run: Callable[[], None], finish: Callable[[], None]) -> None:
    """Call *run*, and then *finish*, also if *run* raises: the main function of a greenlet.

    In the compiled build it has no Python frame. The interpreter allocates a stack for each greenlet that has one, and
    writes a page of it: 4 kB for each connection.
    """
    try:
        run()
    finally:
        finish()


def receive_and_arm(recv: Callable[[int], bytes], poller: Poller, fd: int, size: int) -> bytes:
    """Call *recv*, and let *poller* expect more input at the socket *fd* unless the stream ends. Raises OSError."""
    try:
        data = recv(size)
    except BlockingIOError:
        poller.arm(fd)
        raise
    if data:
        poller.arm(fd)
    return data


class Connection(Handler):
    """One connection. Call `start`, then `run` in a greenlet of its own, then `close`.

    on_leave   called with the client before the broker disconnects it.
    failure    errno that ended the connection, or 0 if the socket did not fail.
    crash      unexpected exception that ended `run`, or None.
    """

    __slots__ = (
        "_awaited",
        "_clock",
        "_committer",
        "_deferred",
        "_end",
        "_error",
        "_fd",
        "_greenlet",
        "_has_hung_up",
        "_has_left",
        "_has_unread",
        "_held_bytes",
        "_held_replies",
        "_is_readable",
        "_journal",
        "_limit_counters",
        "_needed",
        "_output_limit",
        "_poller",
        "_recv",
        "_released",
        "_replies",
        "_send",
        "_sock",
        "_state",
        "_unacknowledged_at",
        "_unsent",
        "client",
        "crash",
        "failure",
        "on_leave",
        "session",
    )

    def __init__(
        self,
        broker: Broker,
        sock: socket.socket,
        address: object,
        clock: Clock,
        poller: Poller,
        committer: Committer | None,
        refused: Callable[[Client, bytes, bytes], None],
        make_session: Callable[[Broker, Callable[[], None]], Session] = Session,
        output_limit: int = 0,
    ) -> None:
        """Connect a client to *broker*. *refused* is `Session.refused`; *output_limit* is `Limits.output`."""
        super().__init__()
        self._sock: socket.socket = sock
        self._fd: int = sock.fileno()
        plain = sock if PlainSocket is None or type(sock) is not socket.socket else PlainSocket(self._fd)
        self._recv: Callable[[int], bytes] = plain.recv
        if IS_PORTABLE:
            self._recv = partial(receive_and_arm, plain.recv, poller, self._fd)
        self._send: Callable[[bytes], int] = plain.send
        self._has_unread: Callable[[], bool] | None = getattr(sock, "has_unread", None)
        self._clock: Clock = clock
        self._poller: Poller = poller
        self._journal: Journal = broker.journal
        self._committer: Committer | None = committer
        self._needed: Event = Event()
        self.session: Session = make_session(broker, self.wake)
        self.client: Client = self.session.client
        self.client.connected_at = clock()
        self.client.address, self.client.name = describe_peer(sock, address)
        self.client.hang_up = self.kill
        self.session.refused = refused
        self.on_leave: Callable[[Client], None] = _ignore_leave
        self._greenlet: Any = None
        self._held_replies: list[tuple[int, bytes]] = []
        self._held_bytes: int = 0
        self._awaited: int = 0  # number of the last record that unsent replies wait for; 0 for none
        self._limit_counters: LimitCounters = broker.limit_counters
        self._output_limit: int = output_limit or NO_LIMIT
        self.failure: int = 0
        self.crash: Exception | None = None
        self._replies: list[bytes] | None = None  # replies of the turns served in this batch
        self._unsent: bytes = b""
        self._released: Event | None = None
        self._unacknowledged_at: int = 0  # when sent data was first seen unacknowledged; 0 if none is
        self._deferred: bytes | None = None  # received, not served yet
        self._state: int = READING
        self._end: int = OPEN
        self._is_readable: bool = False  # input was left unread
        self._has_hung_up: bool = False  # epoll has reported the end of the stream, which may be unread
        self._has_left: bool = False  # the client is disconnected from the broker
        self._error: Exception | None = None

    def start(self) -> None:
        """Add the connection to the poller; raise OSError if the system cannot poll it. Does not switch."""
        self._poller.add(self._fd, self)

    def wake(self) -> None:
        """Have the poller call `resume`, since the session can continue. Does not switch."""
        self._poller.queue(self)

    def run(self) -> None:
        """Do the work that may have to wait, until either side closes or the greenlet is killed. Switches.

        CPU per command with canned replies: 17.6 us with gevent's socket.recv, 9.1 with a switch to this greenlet for
        each command, 7.9 in a watcher's callback, 7 in the poller.
        """
        try:
            self._run()
        except GreenletExit:
            pass
        except Exception as error:  # noqa: BLE001  the server logs it
            self.crash = error

    def _run(self) -> None:
        session = self.session
        self._greenlet = getcurrent()
        while self._end != KILLED:
            self._block()
            if self._error is not None:
                raise self._error
            if self._end >= GONE or not self._send_all() or not self._send_stream():
                return
            if session.pause and session.has_more:
                gevent.sleep(session.pause)
            if session.is_closing or (self._end == STOPPING and not session.has_more):
                self._flush()
                return
            if not self._send_all():  # replies that the journal has released since
                return
            self._state = PAUSED
            self._proceed()

    # Called by the poller. No method switches.

    def receive(self) -> bytes | None:
        """Return the bytes that have arrived, b"" at the end of the stream, or None if nothing is to be served."""
        if self._state != READING:
            self._is_readable = True
            return None
        try:
            data = self._recv(RECEIVE_SIZE)
        except BlockingIOError:
            data = None
        except OSError as error:
            self.failure = error.errno or 0
            self._advance_end(GONE)
            return b""
        if self._has_unread is not None:
            self._poller.spend(TLS_WEIGHT * getattr(self._sock, "overhead", 0))
            if self._has_unread() or (self._has_hung_up and data):
                self.note_unread()
        elif data and (len(data) == RECEIVE_SIZE or self._has_hung_up):
            self.note_unread()
        return data

    def note_unread(self) -> None:
        """Have the poller call `resume`, which receives again, even if epoll reports nothing new."""
        self._is_readable = True
        self._poller.queue(self)

    def note_hang_up(self) -> None:
        """Receive up to the end of the stream: epoll reports nothing new after the peer has closed."""
        self._has_hung_up = True
        self.note_unread()

    def defer(self, data: bytes) -> None:
        """Keep *data*, the result of `receive`, and have the poller call `resume`, which serves it."""
        self._deferred = data
        self._pause()
        self._poller.queue(self)

    def serve(self, data: bytes, now: int, limit: int) -> bytes:
        """Serve *data*, the result of `receive`; return the replies that can be sent now."""
        session = self.session
        if data and self._committer is None:  # the most frequent case
            return self._settle(session.receive(data, now, limit), False, now)
        promised = self._journal.promised
        if data:
            out = session.receive(data, now, limit)
        elif self._end >= GONE:
            session.is_closing = True
            out = b""
        else:
            out = session.receive_eof(now, limit)
        return self._settle(out, self._depends_on_journal(promised), now)

    def resume(self, now: int, limit: int) -> bytes:
        """Continue after a wait or a slice, or serve deferred or unread input; return the replies to be sent now."""
        session, is_wait_over = self.session, False
        if self._state >= BUSY:
            return b""
        if not session.is_woken:
            if not session.has_more:
                is_wait_over = self._has_hung_up and self._is_closed_unread()
                if not is_wait_over:
                    return self._serve_unread(now, limit)
            if self._is_full():
                return b""
        promised = self._journal.promised if self._committer is not None else 0
        out = session.end_wait(now, limit) if is_wait_over else session.resume(now, limit)
        out = self._settle(out, self._committer is not None and self._depends_on_journal(promised), now)
        if not session.has_more and self._state < BUSY:
            if self._end == STOPPING:
                self._need_greenlet(b"" if self._hold_reply(out) else out)
                return b""
            if self._state == PAUSED or self._is_readable:
                self._proceed()
        return out

    def serve_more(self, now: int) -> bool:
        """Serve another turn of the input, and keep the replies; return whether more input is left."""
        promised = self._journal.promised
        out = self.session.resume(now, COMMAND_QUANTUM)
        self._note_slice(out, self._depends_on_journal(promised), now)
        return self._is_unfinished()

    def _depends_on_journal(self, promised: int) -> bool:
        """Return whether the replies of a slice wait for the journal, which had promised *promised* before the slice.

        They wait until all that the journal has promised is safe, if they acknowledge a change or report on a job: a
        crash must undo nothing that a client knows.
        """
        return self.session.reports or self._journal.promised != promised

    def collect(self) -> bytes:
        """Return the replies of all turns that can be sent now."""
        session = self.session
        out = b"".join(self._replies) if self._replies else b""
        self._replies = None
        if self._is_unfinished():
            return out
        if session.is_closing or session.has_more or self._end == STOPPING:
            self._need_greenlet(b"" if self._hold_reply(out) else out)
            return b""
        self._proceed()
        return out

    def send(self, out: bytes) -> None:
        """Send *out*, or hold it if its records are not safe."""
        if (self._awaited or self._held_replies) and self._hold_reply(out):
            return
        self._send_now(out)

    def _send_now(self, out: bytes) -> None:
        """Send *out*; the greenlet sends the bytes that the socket does not accept now."""
        try:
            sent = self._send(out)
        except BlockingIOError:
            sent = 0
        except OSError:  # the peer is gone; its unserved input is dropped
            self._advance_end(GONE)
            self._leave(self._clock())
            self._need_greenlet(b"")
            return
        if sent < len(out):
            self._need_greenlet(out[sent:])

    def is_client(self) -> bool:
        """Return True."""
        return True

    def fail(self, error: Exception) -> None:
        """Make the greenlet raise *error*, which ends the connection."""
        self._error = error
        self._need_greenlet(b"")

    def _serve_unread(self, now: int, limit: int) -> bytes:
        """Serve deferred input, or receive and serve unread input."""
        data, self._deferred = self._deferred, None
        if data is not None:
            self._state = READING
            if self._is_readable:
                self._poller.queue(self)
        elif self._is_readable and self._state == READING:
            self._is_readable = False
            data = self.receive()
        return b"" if data is None else self.serve(data, now, limit)

    def _settle(self, out: bytes, must_wait: bool, now: int) -> bytes:
        """Decide what follows a slice with the replies *out*; return those replies that can be sent now."""
        session = self.session
        if session.has_more or session.is_closing:
            self._pause()
            self._note_slice(out, must_wait, now)
            if not self._is_unfinished():
                return self.collect()
            self._poller.note_unfinished(self)
            return b""
        if session.cost > COSTLY:
            self._poller.spend(session.cost)
        if must_wait:
            self._awaited = self._journal.promised
        if session.is_waiting and not session.wants_input:
            self._pause()  # enough input is kept while the client waits for a job
            if self._has_hung_up:
                self._poller.queue(self)
        return out

    def _note_slice(self, out: bytes, must_wait: bool, now: int) -> None:
        """Keep *out*, the replies of a slice that is followed by more input or that ends the session."""
        session = self.session
        self._poller.spend(session.cost)
        if must_wait:
            self._awaited = self._journal.promised
        if out:
            if self._replies is None:
                self._replies = []
            self._replies.append(out)
        elif must_wait and self._committer is not None:
            self._committer.limit_records()  # the reply may be many slices away
        if session.is_closing:
            self._leave(now)

    def _is_unfinished(self) -> bool:
        """Return whether more input can be served without a wait."""
        session = self.session
        return session.has_more and session.stream is None and not session.pause and not session.is_closing

    def _leave(self, now: int) -> None:
        """Disconnect the client from the broker, once."""
        if not self._has_left:
            self._has_left = True
            try:
                self.on_leave(self.client)
            finally:
                self.session.close(now)
                self._poller.spend(self.session.cost)

    def _hold_reply(self, out: bytes) -> bool:
        """Hold *out* until the committer releases it, if it has to wait for the journal; return whether it is held."""
        if not out:
            return False
        awaited, self._awaited, held = self._awaited, 0, self._held_replies
        if self._committer is None or not (held or awaited > self._journal.safe):
            return False
        held.append((max(awaited, held[-1][0]) if held else awaited, out))
        self._held_bytes += len(out)
        self._committer.hold(self)
        if self._is_full():
            self._limit_counters.note("output", self.client.address)
            self._pause()
        return True

    def _is_full(self) -> bool:
        """Return whether serving pauses until some of the replies that wait for the journal have been sent."""
        return len(self._held_replies) >= MAX_HELD_REPLIES or self._held_bytes > self._output_limit

    def _need_greenlet(self, unsent: bytes) -> None:
        """Wake the greenlet to send *unsent* and to do other work that may block."""
        self._state = BUSY
        self._unsent = unsent
        self._needed.set()

    def _pause(self) -> None:
        """Stop receiving."""
        if self._state == READING:
            self._state = PAUSED

    def _proceed(self) -> None:
        """Read again, unless busy or full; queue the connection if input or a job came while it was not read."""
        session = self.session
        if self._state >= BUSY:
            return
        must_pause = self._is_full() or self._deferred is not None or not session.wants_input
        self._state = PAUSED if must_pause else READING
        is_unread = self._deferred is not None or (self._is_readable and not must_pause)
        if is_unread or session.is_woken or session.has_more or (self._has_hung_up and session.is_waiting):
            self._poller.queue(self)

    def _advance_end(self, end: int) -> None:
        self._end = max(self._end, end)

    # Called by the server

    def stop(self) -> None:
        """Close after the pending replies are sent. Does not switch."""
        self._advance_end(STOPPING)
        if self._state < BUSY and not self._held_replies and not self.session.has_more:
            self.kill()

    def _is_closed_unread(self) -> bool:
        """Return whether the peer has closed its side, and the end of its input is unread while the client waits."""
        if not self.is_waiting_unread or self.session.is_blocked:
            return False
        return has_peer_closed(self._fd)  # urgent data sets `_has_hung_up` too

    @property
    def is_waiting_unread(self) -> bool:
        """Whether the client waits for a job while its input is not read, since too much is kept already."""
        return self.session.is_waiting and self._state != READING

    @property
    def awaits_disk(self) -> bool:
        """Whether replies wait for the journal. Then reading may be paused as well."""
        return bool(self._held_replies)

    def is_unanswered(self, seconds: int, now: int) -> bool:
        """Return whether sent data has been unacknowledged for *seconds*.

        Call it several times within *seconds*. A slow reader does not count: its kernel still acknowledges.
        """
        if self._sock.family == socket.AF_UNIX:
            return False
        segments, silent = unacknowledged(self._sock)
        if not segments:
            self._unacknowledged_at = 0
        elif not self._unacknowledged_at or silent * 1_000_000 < now - self._unacknowledged_at:
            self._unacknowledged_at = now
        return segments > 0 and now - self._unacknowledged_at >= seconds * SECOND

    def kill(self) -> None:
        """Close now. Does not switch."""
        self._advance_end(KILLED)
        if self._greenlet is not None:
            gevent.kill(self._greenlet)

    def close(self) -> None:
        """Close the socket and disconnect the client. This must be the last call, and the only one. Does not switch."""
        self._state = CLOSED  # the poller may still have it in its queue
        self._poller.remove(self._fd)
        if self._greenlet is not None:
            self._needed.unlink(self._greenlet.switch)
        self._held_replies = []  # the committer still calls `release`, which must not resume reading
        try:
            self._leave(self._clock())
        finally:
            # A closed socket raises. A PlainSocket would use the descriptor, which another connection may have by then.
            self._recv, self._send = self._sock.recv, self._sock.send
            self._sock.close()

    def release(self, safe: int) -> None:
        """Send the replies that waited for records up to number *safe*. Called by the committer. Does not switch."""
        held = self._held_replies
        count = len(held)
        while count and held[count - 1][0] > safe:
            count -= 1
        out = held[0][1] if count == 1 else b"".join([part for _, part in held[:count]])
        was_full = self._is_full()
        self._held_replies = held[count:]
        self._held_bytes -= len(out)
        if self._state >= BUSY:
            self._unsent += out
        elif out:
            try:
                self._send_now(out)
            except Exception as error:  # noqa: BLE001  the greenlet raises it, the committer continues
                self.fail(error)
        if self._released is not None:
            self._released.set()
        elif self._state >= BUSY:
            return  # the greenlet calls `_proceed`
        elif self._end == STOPPING and not self.session.has_more:
            self._need_greenlet(b"")
        elif was_full:
            self._proceed()

    def check(self) -> None:
        """Assert the invariants of the states. Call it between two batches."""
        session = self.session
        must_pause = self._is_full() or self._deferred is not None or not session.wants_input
        assert self._state != READING or not must_pause
        assert self._state != PAUSED or must_pause
        assert self._state >= BUSY or not (self._has_left or session.is_closing or self._unsent)
        assert self._state == CLOSED or session.is_closing or self._end >= GONE or not self._has_left
        assert self._held_bytes == sum(len(out) for _, out in self._held_replies) or self._state == CLOSED
        assert self._held_replies == sorted(self._held_replies, key=lambda held: held[0])

    # Called in the connection's own greenlet

    def _block(self) -> None:
        """Wait until the greenlet is needed. Switches. Event.wait would do, but takes 800 bytes more while it waits."""
        self._needed.rawlink(self._greenlet.switch)
        get_hub().switch()
        self._needed.clear()

    def _flush(self) -> bool:
        """Wait until all replies are safe and sent; return False if the peer is gone. Switches."""
        while self._held_replies:
            self._released = Event()
            self._released.wait()
            self._released = None
        return self._send_all()

    def _send_stream(self) -> bool:
        """Send the session's stream, if any, after all other replies; return False if the peer is gone. Switches."""
        stream = self.session.stream
        if stream is None:
            return True
        if not self._flush():
            return False
        self._poller.turns.take()
        sent = 0
        while piece := stream.next():
            self._unsent = piece
            if not self._send_all():
                return False
            sent += len(piece)
            if sent >= STREAM_BATCH:
                sent = 0
                self._poller.turns.take()
        self.session.end_stream()
        return True

    def _send_all(self) -> bool:
        """Send `_unsent`; return False if the peer is gone. Switches."""
        while self._unsent:
            try:
                self._unsent = self._unsent[self._send(self._unsent) :]
            except BlockingIOError:
                self._await_writable()
            except OSError:
                return False
        return True

    def _await_writable(self) -> None:
        """Wait until the socket accepts more bytes. Switches."""
        hub = get_hub()
        watcher = hub.loop.io(self._fd, WRITE)
        try:
            hub.wait(watcher)
        finally:
            watcher.close()
