"""The gevent side: the connections to one broker, and its time.

One greenlet owns each connection's socket (see connection), a ticker greenlet owns time.

Methods say if they may switch greenlets.
"""

from __future__ import annotations

import logging
import socket
from itertools import islice
from typing import Final

import gevent
from gevent.event import Event
from gevent.server import StreamServer
from gevent.timeout import Timeout
from greenlet import GreenletExit

from greenstalk_server.broker import Broker
from greenstalk_server.client import Client
from greenstalk_server.clock import Clock
from greenstalk_server.committer import Committer
from greenstalk_server.connection import Connection
from greenstalk_server.job import SECOND, Job
from greenstalk_server.memory import Heap

log = logging.getLogger(__name__)

STOP_GRACE: Final = 10.0
"""Seconds that replies under way have to leave when the server stops."""

HOUSEKEEPING_EVERY: Final = 2.0
"""Seconds."""

JOBS_LOGGED: Final = 100
"""Of those that a connection held when it was closed, at debug."""

COMMAND_LOGGED: Final = 224
"""Bytes of a refused command, at debug: no command that is allowed is longer."""

SLEEP_AT_MOST: Final = 3600.0
"""Seconds the ticker sleeps; a deadline may be a century away, which no timer takes."""


class Server:
    """Serves *broker* on *listeners*, which are bound, listening, non-blocking sockets."""

    def __init__(
        self,
        broker: Broker,
        listeners: list[socket.socket],
        clock: Clock,
        committer: Committer | None = None,
    ) -> None:
        """*committer* is that of the broker's journal, if it has one on disk."""
        self.broker: Broker = broker
        self.clock: Clock = clock
        self.connections: set[Connection] = set()
        self._committer: Committer | None = committer
        self._listeners: list[_Listener] = [_Listener(sock, self._handle, spawn=gevent.spawn_raw) for sock in listeners]
        self._ticker: Ticker = Ticker(broker, clock)
        broker.timed_out = _on_time_out
        self._housekeeper: gevent.Greenlet | None = None
        self._is_stopped: Event = Event()

    def start(self) -> None:
        """Begin to accept connections. Does not switch."""
        self._ticker.start()
        self._housekeeper = gevent.spawn(self._keep_house)
        if self._committer is not None:
            self._committer.start()
        for listener in self._listeners:
            listener.start()

    def drain(self) -> None:
        """Refuse puts from now on. Does not switch."""
        self.broker.drain()
        log.info("draining: puts are refused, all else goes on")

    def stop(self) -> None:
        """Accept no more, let replies under way leave, close every connection. Switches; may be called again."""
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.stop()
        with Timeout(STOP_GRACE, False):
            while self.connections:
                gevent.sleep(0.01)
        for connection in list(self.connections):
            connection.kill()
        self._ticker.stop()
        if self._housekeeper is not None:
            self._housekeeper.kill()
        if self._committer is not None:
            self._committer.stop()
        self._is_stopped.set()

    def serve_forever(self) -> None:
        """Start, and return when `stop` has been called. Switches."""
        self.start()
        self._is_stopped.wait()

    def _keep_house(self) -> None:
        """See to what nobody tells us of: memory that has become free, and peers that are gone while not read."""
        heap = Heap()
        while True:
            gevent.sleep(HOUSEKEEPING_EVERY)
            heap.give_back()
            for connection in [connection for connection in self.connections if connection.is_deaf]:
                if connection.has_lost_its_peer():
                    connection.kill()

    def _handle(self, sock: socket.socket, address: object) -> None:
        connection = Connection(self.broker, sock, address, self.clock, self._committer, _on_refused)
        self.connections.add(connection)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("connected", extra=_fields(connection.client))
        try:
            connection.serve()
        except GreenletExit:
            pass
        except Exception:
            log.exception("internal error: the connection is closed", extra=_fields(connection.client))
        finally:
            self.connections.discard(connection)
            if log.isEnabledFor(logging.DEBUG):
                jobs = list(islice(connection.client.reserved, JOBS_LOGGED))
                log.debug("disconnected", extra=_fields(connection.client) | {"jobs": jobs})
            connection.close()


def _fields(client: Client) -> dict[str, object]:
    """What the log says of a connection."""
    return {"connection": client.number, "address": client.address}


def _on_refused(client: Client, command: bytes, reply: bytes) -> None:
    """Note that *command* was answered by an error. Does not switch."""
    if log.isEnabledFor(logging.DEBUG):
        facts = {"command": command[:COMMAND_LOGGED].decode(errors="replace")}
        log.debug("refused: %s", reply.decode().rstrip(), extra=_fields(client) | facts)


def _on_time_out(client: Client, job: Job) -> None:
    """Note that *client* has held *job* for longer than its ttr. Does not switch."""
    if log.isEnabledFor(logging.DEBUG):
        tube = job.tube.name.decode(errors="replace")
        log.debug("job timed out", extra=_fields(client) | {"job": job.id, "tube": tube})


class _Listener(StreamServer):  # type: ignore[misc]
    """Accepts plain non-blocking sockets: gevent's own would add two watchers each that nobody uses."""

    max_accept = 100

    def do_read(self) -> tuple[socket.socket, object] | None:
        try:
            fd, address = self.socket._accept()
        except BlockingIOError:
            return None
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return sock, address


class Ticker:
    """The greenlet that calls the broker's tick when something falls due."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._due: int | None = None
        self._sooner: Event = Event()
        self._greenlet: gevent.Greenlet | None = None

    def start(self) -> None:
        """Begin. Does not switch."""
        self._broker.alarm = self._on_alarm
        self._greenlet = gevent.spawn(self._run)

    def stop(self) -> None:
        """End. Switches."""
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None

    def _on_alarm(self, when: int) -> None:
        if self._due is None or when < self._due:
            self._sooner.set()

    def _run(self) -> None:
        while True:
            self._sooner.clear()
            self._due = self._broker.tick(self._clock())
            if self._due is None:
                self._sooner.wait(SLEEP_AT_MOST)
                continue
            left = self._due - self._clock()
            if left > 0:
                self._sooner.wait(min(left / SECOND, SLEEP_AT_MOST))
            else:
                gevent.sleep(0)
