"""One connection of a client: its socket, its session, and the greenlet that moves bytes between them.

The greenlet sleeps in the hub until its socket is readable or its client's Event is set, whichever is first; a broker
method never switches, so between two sleeps it has the broker for itself. Replies that wait for the journal are held;
the committer sends them.

Methods say if they may switch greenlets.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final

import gevent
from gevent import get_hub
from gevent.event import Event
from greenlet import getcurrent

from greenstalk_server.broker import Broker
from greenstalk_server.client import Client
from greenstalk_server.clock import Clock
from greenstalk_server.committer import Committer
from greenstalk_server.journal import Journal
from greenstalk_server.limits import Limited
from greenstalk_server.listeners import describe_peer
from greenstalk_server.memory import after_slice
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


class Connection:
    """One connection: its socket, its session, and the greenlet that moves bytes between them."""

    __slots__ = (
        "_clock",
        "_committer",
        "_event",
        "_fd",
        "_greenlet",
        "_held",
        "_held_size",
        "_is_busy",
        "_is_read",
        "_is_stopping",
        "_journal",
        "_limited",
        "_output_limit",
        "_poller",
        "_recv",
        "_released",
        "_sock",
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
        self._clock: Clock = clock
        self._poller: Poller = poller
        self._is_read: bool = False
        self._journal: Journal = broker.journal
        self._committer: Committer | None = committer
        self._event: Event = Event()
        self.session: Session = make_session(broker, partial(_wake, self._event, poller))
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
        self._is_busy: bool = False
        self._is_stopping: bool = False

    def serve(self) -> None:
        """Converse until either side closes. Switches.

        The poller calls back to serve what has come: a command costs one recv that succeeds and one send, and no
        system call to wait; nor a switch of greenlets, unless something has to wait. Then, and when the Event is set,
        it is this greenlet's turn. CPU of a command with canned replies: 17.6 us by gevent's socket.recv, 9.1 with a
        switch to this greenlet for each, 7.9 by a watcher's callback, 7 so.
        """
        sleep, session, journal = get_hub().switch, self.session, self._journal
        self._read_on()
        self._event.rawlink(self._greenlet.switch)
        while not (session.is_closing or self._is_stopping):
            woken_by = sleep()
            if woken_by is None:
                return
            if woken_by is self._event:
                promised = journal.safe  # whoever has put the job it may have been given
                out = self._on_event()
                has_promised = journal.promised != promised
            else:
                out, has_promised = woken_by
                if self._unsent and not self._send_unsent():
                    return
            if out and not (self._deliver(out, has_promised) and (not self._unsent or self._send_unsent())):
                return
            if session.has_more and not self._serve_rest(has_promised and not out):
                return
            self._watch_no_more_than_wanted()
        self._finish()

    def _on_readable(self) -> None:
        """Serve what has come, and have the greenlet do what may have to wait. Run by the poller; does not switch.

        That is told None if the peer is gone, else a reply to deliver, and whether that promises anything.
        """
        if self._event.is_set():
            return  # the greenlet's turn is on its way; nothing may overtake it
        session, journal = self.session, self._journal
        try:
            data = self._recv(RECEIVE_AT_MOST)
        except BlockingIOError:
            return
        except OSError as error:
            self.failure = error.errno or 0
            self._greenlet.switch(None)
            return
        promised = journal.promised
        try:
            out = session.receive(data, self._clock()) if data else session.receive_eof(self._clock())
        except Exception as error:  # noqa: BLE001  it is raised in the greenlet
            self._greenlet.throw(error)
            return
        has_promised = journal.promised != promised
        if session.has_more or session.is_closing:
            self._greenlet.switch((out, has_promised))
        elif out and not self._deliver(out, has_promised):
            self._greenlet.switch(None)
        elif self._unsent:
            self._greenlet.switch((b"", False))
        elif session.is_waiting:
            self._watch_no_more_than_wanted()

    def _watch_no_more_than_wanted(self) -> None:
        """Read no further while parked, once enough has come. Does not switch."""
        if self.session.is_waiting and not self.session.wants_input:
            self._rest()

    def _read_on(self) -> None:
        self._is_read = True
        self._poller.read(self._fd, self._on_readable)

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
        self._poller.forget(self._fd)
        self._event.unlink(self._greenlet.switch)
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
        if self._is_busy or self._unsent:
            self._unsent += out
        elif out:
            try:
                sent = self._sock.send(out)
            except BlockingIOError:
                sent = 0
            except OSError:
                sent = len(out)  # the peer is gone, and the next recv will say so
            self._unsent = out[sent:]
        if self._released is not None:
            self._released.set()
        elif self._unsent or self._is_stopping:
            self._event.set()
        elif was_full and not self._is_full() and self.session.wants_input:
            self._read_on()

    # In the connection's own greenlet

    def _on_event(self) -> bytes:
        """Go on after the Event: replies left unsent, or the end of a wait. Switches if there are some."""
        self._event.clear()
        self._event.rawlink(self._greenlet.switch)
        if self._unsent and not self._send_unsent():
            return b""  # the peer is gone, and the next recv will say so
        out = self.session.resume(self._clock()) if self.session.is_woken else b""
        if not self._is_read and self.session.wants_input and not self._is_full():
            self._read_on()
        return out

    def _deliver(self, out: bytes, has_promised: bool) -> bool:
        """Send *out*, or hold it until the journal has what it promises. False if the peer is gone. Does not switch.

        What the peer does not take at once is `_unsent` then.
        """
        committer = self._committer
        if committer is not None and (self._held or (has_promised and not committer.commit_for(self))):
            self._held.append((self._journal.promised, out))
            self._held_size += len(out)
            committer.hold(self)
            if self._is_full():
                self._limited.note("output", self.client.address)
                self._rest()
            return True
        try:
            sent = self._sock.send(out)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if sent < len(out):
            self._unsent = out[sent:]
        return True

    def _is_full(self) -> bool:
        """Whether it is read no further until some of the replies that wait for the journal have left."""
        return len(self._held) >= HELD_AT_MOST or self._held_size > self._output_limit

    def _serve_rest(self, has_promised: bool) -> bool:
        """Serve what one slice left over, letting others run between slices. False if the peer is gone. Switches.

        *has_promised*: that slice has recorded something, and its reply is still to come.
        """
        session, journal = self.session, self._journal
        self._begin_busy()
        for number in count(1):
            if not session.has_more:
                break
            after_slice(number)
            gevent.sleep(session.pause)
            if self._unsent and not self._send_all():  # what the journal has let go meanwhile comes first
                return False
            promised = journal.promised
            out = session.resume(self._clock())
            has_promised = has_promised or journal.promised != promised
            if out:
                if not (self._deliver(out, has_promised) and self._flush()):
                    return False
                has_promised = False
        self._end_busy()
        return True

    def _finish(self) -> None:
        """Let the replies to what has been served leave. Switches."""
        self._begin_busy()
        self._flush()

    def _flush(self) -> bool:
        """Wait until all replies are safe and sent; for a busy connection. False if the peer is gone. Switches."""
        while self._held:
            self._released = Event()
            self._released.wait()
            self._released = None
        return self._send_all()

    def _send_unsent(self) -> bool:
        self._begin_busy()
        is_sent = self._send_all()
        self._end_busy()
        return is_sent

    def _send_all(self) -> bool:
        """Send `_unsent` as the peer takes it. False if the peer is gone. Switches."""
        hub = get_hub()
        watcher = hub.loop.io(self._sock.fileno(), WRITE)
        try:
            while self._unsent:
                try:
                    self._unsent = self._unsent[self._sock.send(self._unsent) :]
                except BlockingIOError:
                    hub.wait(watcher)
                except OSError:
                    return False
        finally:
            watcher.stop()
            watcher.close()
        return True

    def _begin_busy(self) -> None:
        """Read no more, and let nothing but what is waited for wake this greenlet."""
        self._is_busy = True
        self._rest()
        self._event.unlink(self._greenlet.switch)

    def _end_busy(self) -> None:
        self._is_busy = False
        self._read_on()
        self._event.rawlink(self._greenlet.switch)


def _wake(event: Event, poller: Poller) -> None:
    """Have the greenlet go on that waits for *event*. No method: the client would refer to its connection."""
    event.set()
    poller.has_woken = True
