"""One connection of a client: its socket, its session, and the greenlet of what may have to wait.

The poller calls on it when there is something to read, or a wait of its client has ended: what comes of that is served
there and then, in the hub, since a broker method never switches. What may have to wait is done by its greenlet, which
else is blocked on its Event: to send what the socket has not taken, to go on after a slice of a long chunk, to close.
While the greenlet is at it the connection is busy: it is not read, and nobody else sends. Replies that wait for the
journal are held; the committer sends them.

Methods say if they may switch greenlets.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import gevent
from gevent import get_hub
from gevent.event import Event
from greenlet import getcurrent

from greenstalk_server.broker import Broker
from greenstalk_server.client import Client
from greenstalk_server.clock import Clock
from greenstalk_server.committer import Committer
from greenstalk_server.job import SECOND
from greenstalk_server.journal import Journal
from greenstalk_server.limits import Limited
from greenstalk_server.listeners import describe_peer
from greenstalk_server.poller import Poller
from greenstalk_server.session import Session

RECEIVE_AT_MOST: Final = 65536 + 4096
"""Bytes read at once: the largest put of a default server, whole. With session.COMMAND_SLICE it bounds how long one
connection holds the loop."""

HELD_AT_MOST: Final = 16
"""Chunks whose replies wait for the journal, before a connection is read no further."""

NO_LIMIT: Final = 2**62
"""Bytes, more than there are."""

WRITE: Final = 2
"""Event of a gevent io watcher."""

_TCP_INFO: Final = struct.Struct("24xI28xI")
"""Of struct tcp_info (linux/tcp.h): segments that are not acknowledged; milliseconds since anything was."""


class Connection:
    """One connection. What the poller calls is a poller.Guest's; the greenlet that makes it is to run `serve`."""

    __slots__ = (
        "_clock",
        "_committer",
        "_error",
        "_fd",
        "_greenlet",
        "_has_promised",
        "_held",
        "_held_size",
        "_is_busy",
        "_is_gone",
        "_is_read",
        "_is_stopping",
        "_journal",
        "_limited",
        "_needed",
        "_output_limit",
        "_poller",
        "_recv",
        "_released",
        "_send",
        "_sock",
        "_unacknowledged_at",
        "_unsent",
        "client",
        "failure",
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
        """Run in the greenlet that is to own *sock*. *refused* is as Session has it, *output_limit* as Limits."""
        self._sock: socket.socket = sock
        self._fd: int = sock.fileno()
        self._recv: Callable[[int], bytes] = sock.recv
        self._send: Callable[[bytes], int] = sock.send
        self._clock: Clock = clock
        self._poller: Poller = poller
        self._is_read: bool = False
        self._journal: Journal = broker.journal
        self._committer: Committer | None = committer
        self._needed: Event = Event()
        self.session: Session = make_session(broker, partial(poller.wake, self))
        self.client: Client = self.session.client
        self.client.connected_at = clock()
        self.client.address, self.client.name = describe_peer(sock, address)
        self.client.hang_up = self.kill
        self.session.refused = refused
        self._greenlet: Any = getcurrent()
        self._held: list[tuple[int, bytes]] = []
        self._held_size: int = 0
        self._limited: Limited = broker.limited
        self._output_limit: int = output_limit or NO_LIMIT
        self.failure: int = 0  # errno of what ended it, if that was the socket
        self._unsent: bytes = b""
        self._released: Event | None = None
        self._unacknowledged_at: int = 0  # when that was first seen of what is on its way; 0 if nothing is
        self._has_promised: bool = False  # by slices whose reply is still to come
        self._is_busy: bool = False
        self._is_gone: bool = False
        self._is_stopping: bool = False
        self._error: Exception | None = None

    def serve(self) -> None:
        """Converse until either side closes. Switches.

        CPU of a command with canned replies: 17.6 us by gevent's socket.recv, 9.1 with a switch to this greenlet for
        each, 7.9 by a watcher's callback, 7 by the poller.
        """
        session = self.session
        self._read_if_wanted()
        while True:
            self._block()
            if self._error is not None:
                raise self._error
            if self._is_gone or not self._send_all() or not self._serve_rest():
                return
            if session.is_closing or self._is_stopping:
                self._flush()
                return
            self._is_busy = False
            self._read_if_wanted()
            if session.is_woken:
                self._poller.wake(self)

    # For the poller; none switches

    def take(self) -> bytes | None:
        """What has come; b"" at its end, None if nothing has, or the peer is gone."""
        try:
            return self._recv(RECEIVE_AT_MOST)
        except BlockingIOError:
            pass
        except OSError as error:
            self.failure = error.errno or 0
            self._is_gone = True
            self._need_greenlet(b"")
        return None

    def answer(self, data: bytes, now: int) -> bytes:
        """Serve *data*, as `take` gave it; return the replies that may leave now."""
        session, journal = self.session, self._journal
        promised = journal.promised if data or not session.is_woken else journal.safe  # as in go_on, at the end
        try:
            out = session.receive(data, now) if data else session.receive_eof(now)
        except Exception as error:  # noqa: BLE001  it is raised in the greenlet
            return self._fail(error)
        return self._settle(out, journal.promised != promised)

    def go_on(self, now: int) -> bytes:
        """Serve what a wait of the client has held up; return the replies that may leave now."""
        session, journal = self.session, self._journal
        if self._is_busy or not session.is_woken:
            return b""
        promised = journal.safe  # whoever has put the job it may have been given
        try:
            out = session.resume(now)
        except Exception as error:  # noqa: BLE001  it is raised in the greenlet
            return self._fail(error)
        if not self._is_read:
            self._read_if_wanted()
        return self._settle(out, journal.promised != promised)

    def send(self, out: bytes) -> None:
        """Send *out*; what the peer does not take at once is the greenlet's to send."""
        try:
            sent = self._send(out)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the peer is gone, and the next recv will say so
        if sent < len(out):
            self._need_greenlet(out[sent:])

    def _settle(self, out: bytes, has_promised: bool) -> bytes:
        """See who goes on after a slice that gave *out*; return what of that may leave now."""
        session = self.session
        is_over = session.has_more or session.is_closing
        if is_over:
            self._has_promised = has_promised and not out
        if out and self._committer is not None and self._is_held(self._committer, out, has_promised):
            out = b""
        if is_over:
            self._need_greenlet(out)
            return b""
        if session.is_waiting and not session.wants_input:
            self._rest()  # enough has come while it is parked
        return out

    def _is_held(self, committer: Committer, out: bytes, has_promised: bool) -> bool:
        """Whether *out* has to wait for the journal: then *committer* has it sent."""
        if not (self._held or (has_promised and not committer.commit_for(self))):
            return False
        self._held.append((self._journal.promised, out))
        self._held_size += len(out)
        committer.hold(self)
        if self._is_full():
            self._limited.note("output", self.client.address)
            self._rest()
        return True

    def _is_full(self) -> bool:
        """Whether it is read no further until some of the replies that wait for the journal have left."""
        return len(self._held) >= HELD_AT_MOST or self._held_size > self._output_limit

    def _need_greenlet(self, unsent: bytes) -> None:
        """Have the greenlet send *unsent*, and do what else may have to wait."""
        self._is_busy = True
        self._rest()
        self._unsent = unsent
        self._needed.set()

    def _fail(self, error: Exception) -> bytes:
        """Have *error* end the connection."""
        self._error = error
        self._need_greenlet(b"")
        return b""

    def _read_if_wanted(self) -> None:
        if self.session.wants_input and not self._is_full():
            self._is_read = True
            self._poller.read(self._fd, self)

    def _rest(self) -> None:
        """Read nothing, until told to. Does not switch."""
        self._is_read = False
        self._poller.rest(self._fd)

    def stop(self) -> None:
        """Close once what is in hand is done. Does not switch."""
        self._is_stopping = True
        if not self._is_busy and not self._held:
            self.kill()

    @property
    def is_deaf(self) -> bool:
        """Whether it is parked in a reserve, and not read since it has sent too much already."""
        return self.session.is_waiting and not self._is_read

    @property
    def awaits_disk(self) -> bool:
        """Whether replies wait for the journal; so it may not be read either."""
        return bool(self._held)

    def is_unanswered(self, seconds: int, now: int) -> bool:
        """Whether nothing was acknowledged for *seconds*, though something is on its way all the while.

        To be asked now and then. What the peer does not read, its system acknowledges: who is slow is there.
        """
        if self._sock.family == socket.AF_UNIX:
            return False
        info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        segments, silent = _TCP_INFO.unpack(info)
        if not segments:
            self._unacknowledged_at = 0
        elif not self._unacknowledged_at or silent * 1_000_000 < now - self._unacknowledged_at:
            self._unacknowledged_at = now
        return segments > 0 and now - self._unacknowledged_at >= seconds * SECOND

    def has_lost_its_peer(self) -> bool:
        """Whether the connection is broken, though nobody reads it."""
        poll = select.poll()
        poll.register(self._sock.fileno(), 0)  # errors and hang-ups are reported unasked
        return bool(poll.poll(0))

    def kill(self) -> None:
        """Close now. Does not switch."""
        gevent.kill(self._greenlet)

    def close(self) -> None:
        """Give the socket and the client back; call once, last. Does not switch."""
        self._is_read = False
        self._is_busy = True  # the poller may still have it among those that were woken
        self._poller.forget(self._fd)
        self._needed.unlink(self._greenlet.switch)
        self._held = []  # the committer still comes to release them, and must not have it read again
        self.session.close(self._clock())
        self._sock.close()

    def release(self, safe: int) -> None:
        """Send the replies that waited for records up to number *safe*. Run by the committer; does not switch."""
        held = self._held
        count = len(held)
        while count and held[count - 1][0] > safe:
            count -= 1
        out = held[0][1] if count == 1 else b"".join([part for _, part in held[:count]])
        was_full = self._is_full()
        self._held = held[count:]
        self._held_size -= len(out)
        if self._is_busy:
            self._unsent += out
        elif out:
            self.send(out)
        if self._released is not None:
            self._released.set()
        elif self._is_busy:
            return  # its greenlet goes on
        elif self._is_stopping:
            self._need_greenlet(b"")
        elif was_full:
            self._read_if_wanted()

    # In the connection's own greenlet

    def _block(self) -> None:
        """Return once the greenlet is needed. Switches. As Event.wait, which would take 800 bytes more meanwhile."""
        self._needed.rawlink(self._greenlet.switch)
        get_hub().switch()
        self._needed.clear()

    def _serve_rest(self) -> bool:
        """Serve what one slice left over, letting others run between slices. False if the peer is gone. Switches."""
        session, journal = self.session, self._journal
        has_promised = self._has_promised  # that slice has recorded something, and its reply is still to come
        while session.has_more:
            gevent.sleep(session.pause)
            if self._unsent and not self._send_all():  # what the journal has let go meanwhile comes first
                return False
            promised = journal.promised
            out = session.resume(self._clock())
            has_promised = has_promised or journal.promised != promised
            if out:
                if self._committer is None or not self._is_held(self._committer, out, has_promised):
                    self._unsent += out
                if not self._flush():
                    return False
                has_promised = False
        return True

    def _flush(self) -> bool:
        """Wait until all replies are safe and sent. False if the peer is gone. Switches."""
        while self._held:
            self._released = Event()
            self._released.wait()
            self._released = None
        return self._send_all()

    def _send_all(self) -> bool:
        """Send `_unsent` as the peer takes it. False if the peer is gone. Switches."""
        while self._unsent:
            try:
                self._unsent = self._unsent[self._send(self._unsent) :]
            except BlockingIOError:
                self._await_writable()
            except OSError:
                return False
        return True

    def _await_writable(self) -> None:
        """Return when the peer takes more. Switches."""
        hub = get_hub()
        watcher = hub.loop.io(self._fd, WRITE)
        try:
            hub.wait(watcher)
        finally:
            watcher.close()
