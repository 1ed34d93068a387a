"""Relays: this process passes on the bytes between two others that do not reach each other.

A relay has one connection to each of both, and reads none of what it passes on; docs/link-protocol.md has the rest.

Bounds: there are at most `MAX_RELAYS`. A relay receives from one side only when it has sent to the other side all that
it has received before, so it holds one `RECEIVE_SIZE` of net.link for each direction. It takes turns with all other
handlers of the poller.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any, Final

from gevent import get_hub

from greenstalk_server.net.link import WRITE, ProcessSocket
from greenstalk_server.net.poller import Poller
from greenstalk_server.protocol.link_frames import LinkError

MAX_RELAYS: Final = 64
"""Relays at a time; further ones are refused."""

RECEIVE_COST: Final = 2048
"""Cost of each input that is passed on, as of `Poller.spend`: about 40 us with TLS."""

BYTES_PER_COST: Final = 8
"""Bytes passed on for a further cost of 1."""

Side = tuple[str, socket.socket]
"""A process, and the connection to it."""

log = logging.getLogger(__name__)


class RelayError(LinkError):
    """This process does not relay to the process *target*."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(f"cannot relay to process {target}: {reason}")
        self.target: str = target


class Relays:
    """The relays of this process. No method switches."""

    def __init__(self) -> None:
        self._relays: dict[tuple[str, str], Relay] = {}

    def check(self, process: str, target: str) -> None:
        """Raise RelayError if there are too many relays for one more, between *process* and *target*."""
        if len(self._relays) >= MAX_RELAYS and (process, target) not in self._relays:
            raise RelayError(target, f"there are {MAX_RELAYS} relays")

    def start(self, poller: Poller, one: Side, other: Side, unread: bytes) -> None:
        """Relay between *one*, of which *unread* has arrived, and *other*, in place of a former relay between them.

        Raise RelayError if there are too many.
        """
        pair = one[0], other[0]
        self.check(*pair)
        if pair in self._relays:
            self._relays[pair].close("it is replaced")

        def end(reason: str) -> None:
            del self._relays[pair]
            log.info("the relay between processes %s and %s has ended: %s", *pair, reason)

        relay = Relay(poller, one, other, end)
        self._relays[pair] = relay
        log.info("relaying between processes %s and %s, which have no direct connection", *pair)
        relay.start(unread)

    def end_silent(self, limit: int) -> None:
        """End the relays of which a side has sent nothing during *limit* calls."""
        for relay in list(self._relays.values()):
            relay.end_silent(limit)

    def stop(self) -> None:
        """End all relays."""
        for relay in list(self._relays.values()):
            relay.close("this process stops")


class Relay:
    """Two connections; the input of each is the output of the other."""

    def __init__(self, poller: Poller, one: Side, other: Side, on_end: Callable[[str], None]) -> None:
        """*on_end* is called with the reason when the relay has ended."""
        self._poller: Poller = poller
        self._on_end: Callable[[str], None] = on_end
        self._ends: tuple[_End, _End] = _End(self, poller, *one), _End(self, poller, *other)
        self.is_closed: bool = False

    def start(self, unread: bytes) -> None:
        """Begin to pass on: *unread* first, which has arrived from the first process."""
        one, other = self._ends
        one.other, other.other = other, one
        try:
            one.start()
            other.start()
        except OSError as error:
            self.close(f"cannot poll its connections: {error.strerror}")
        else:
            other.pass_on(unread)

    def end_silent(self, limit: int) -> None:
        """Close if a side from which it receives has sent nothing during *limit* calls."""
        for end in self._ends:
            if end.is_silent(limit):
                self.close(f"process {end.process} sends nothing")

    def close(self, reason: str) -> None:
        """Close both connections, once."""
        if not self.is_closed:
            self.is_closed = True
            for end in self._ends:
                end.close()
            self._on_end(reason)


class _End(ProcessSocket):
    """The connection to one of both processes.

    other   the other end.
    process id of the process.
    """

    other: _End

    def __init__(self, relay: Relay, poller: Poller, process: str, sock: socket.socket) -> None:
        super().__init__(poller, sock)
        self.process: str = process
        self._relay: Relay = relay
        self._is_paused: bool = False  # there may be input, which is received when the other end has sent all
        self._unsent: bytes = b""
        self._is_last: bool = False  # no output follows _unsent
        self._watcher: Any = None

    def is_silent(self, limit: int) -> bool:
        """Return whether nothing was received during *limit* calls, in which this end could receive."""
        self.silence += not self._is_paused
        return self.silence > limit

    # Output

    @property
    def is_sending(self) -> bool:
        """Whether output waits for the socket."""
        return bool(self._unsent)

    def pass_on(self, data: bytes) -> None:
        """Send *data*, which the other end has received; it receives no more until all is sent."""
        self._unsent = data
        self._send()

    def finish(self, reason: str) -> None:
        """Close the relay for *reason* once all is sent."""
        self._is_last = True
        if not self._unsent:
            self._relay.close(reason)

    def _send(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            self._watcher = get_hub().loop.io(self._sock.fileno(), WRITE)
            self._watcher.start(self._send_rest)
        except OSError:
            self._relay.close(f"process {self.process} has closed its connection")
        else:
            if self._is_last:
                self._relay.close(f"process {self.other.process} has closed its connection")
            else:
                self.other.continue_receiving()

    def _send_rest(self) -> None:
        self._unwatch()
        self._send()

    def _unwatch(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher.close()
            self._watcher = None

    def continue_receiving(self) -> None:
        """Receive what has arrived while the other end could not send."""
        if self._is_paused:
            self._is_paused = False
            self.note_unread()

    def close(self) -> None:
        """Close the connection."""
        self._unwatch()
        self._close_socket()

    # Called by the poller. No method switches.

    def receive(self) -> bytes | None:
        """Return what has arrived, b"" at the end of the stream, or None if there is nothing, or no room for it."""
        if self.other.is_sending:
            self._is_paused = True
            return None
        return super().receive()

    def serve(self, data: bytes, now: int, limit: int) -> bytes:
        """Pass on *data*."""
        if not self._relay.is_closed:
            if data:
                self._poller.spend(RECEIVE_COST + len(data) // BYTES_PER_COST)
                self.other.pass_on(data)
            else:
                self.other.finish(f"process {self.process} has closed its connection")
        return b""

    def resume(self, now: int, limit: int) -> bytes:
        """Receive again."""
        if not self._relay.is_closed:
            data = self.receive()
            if data is not None:
                self.serve(data, now, limit)
        return b""

    def defer(self, data: bytes) -> None:
        """Pass on *data* now: there is room for it."""
        self.serve(data, 0, 0)

    def fail(self, error: Exception) -> None:
        """Log *error*, and close the relay."""
        log.error("internal error: a relay is closed", exc_info=error)
        self._relay.close("internal error")
