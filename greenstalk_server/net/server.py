"""The gevent side: the connections to one broker, and its time.

One greenlet owns each connection's socket (see connection), a ticker greenlet owns time.

Methods say if they may switch greenlets.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, islice
from typing import Any, Final

import gevent
from gevent.event import Event
from gevent.timeout import Timeout
from greenlet import GreenletExit, getcurrent

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.job import SECOND, Job
from greenstalk_server.core.limits import Limits
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.net.acceptor import Acceptor, Files
from greenstalk_server.net.admission import Admission
from greenstalk_server.net.committer import Committer
from greenstalk_server.net.connection import Connection
from greenstalk_server.net.idle import Complaints, Guest, overstayed, unanswered
from greenstalk_server.net.listeners import Listener, describe_peer, notice_dead_peers
from greenstalk_server.net.poller import Poller
from greenstalk_server.net.tls import Certificates, TlsSocket, reason_of, shake_hands
from greenstalk_server.protocol.access import Rule, grants
from greenstalk_server.protocol.restricted_session import RestrictedSession
from greenstalk_server.protocol.session import TURN, Session
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.gc_tuning import Heap, collect_old

log = logging.getLogger(__name__)

STOP_GRACE: Final = 10.0
"""Seconds that replies under way have to leave when the server stops."""

HANDSHAKE_TIMEOUT: Final = 10.0
"""Seconds from a connection to the end of its TLS handshake."""

HOUSEKEEPING_EVERY: Final = 2.0
"""Seconds."""

OLD_COLLECTED: Final = 5
"""How many rounds of that until the collector looks at what is old."""

ASKED_OFTEN: Final = 8
"""How many times within the dead peer's timeout it is asked if one is."""

LOOKED_AT_ONCE: Final = 500
"""Connections, before others have their turn."""

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
        listeners: Sequence[Listener],
        clock: Clock,
        committer: Committer | None = None,
        *,
        files: Files,
        limits: Limits,
        rules: Sequence[Rule] = (),
        certificates: Certificates | None = None,
    ) -> None:
        """*committer* is that of the broker's journal, if it has one on disk; *certificates* are for who speaks TLS."""
        self.broker: Broker = broker
        self.clock: Clock = clock
        self.connections: set[Connection] = set()
        self._committer: Committer | None = committer
        self._limits: Limits = limits
        self._rules: Sequence[Rule] = rules
        self._certificates: Certificates | None = certificates
        self._admission: Admission = Admission(limits)
        self._handshakes: set[Any] = set()
        self._is_stopping: bool = False
        for listener in listeners:
            notice_dead_peers(listener.sock, limits.dead_peer_timeout)
        self._poller: Poller = Poller(clock)
        self._acceptors: list[Acceptor] = [
            Acceptor(listener.sock, partial(self._admit, listener), files, self._poller, _accepted_at_once(listener))
            for listener in listeners
        ]
        self._ticker: Ticker = Ticker(broker, clock)
        self._complaints: Complaints = Complaints(clock)
        broker.subscribe(self._complaints)
        broker.subscribe(_TimeoutLog())
        broker.subscribe(self._ticker)
        self._housekeeper: gevent.Greenlet | None = None
        self._is_stopped: Event = Event()

    def start(self) -> None:
        """Begin to accept connections. Does not switch."""
        self._ticker.start()
        self._poller.start()
        self._housekeeper = gevent.spawn(self._keep_house)
        if self._committer is not None:
            self._committer.start()
        for acceptor in self._acceptors:
            acceptor.start()

    def drain(self) -> None:
        """Refuse puts from now on. Does not switch."""
        self.broker.drain()
        log.info("draining: puts are refused, all else goes on")

    def stop(self) -> None:
        """Accept no more, let replies under way leave, close every connection. Switches; may be called again."""
        self._is_stopping = True
        for acceptor in self._acceptors:
            acceptor.close()
        for greenlet in list(self._handshakes):
            gevent.kill(greenlet)
        for connection in list(self.connections):
            connection.stop()
        with Timeout(STOP_GRACE, False):
            while self.connections:
                gevent.sleep(0.01)
        for connection in list(self.connections):
            connection.kill()
        self._poller.stop()
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
        for number in count(1):
            gevent.sleep(HOUSEKEEPING_EVERY)
            if not number % OLD_COLLECTED:
                collect_old()
            heap.trim()
            self._turn_out(number)
            self._complaints.tell_the_rest()
            for connection in [connection for connection in self.connections if connection.is_deaf]:
                if connection.has_lost_its_peer():
                    connection.kill()

    def _turn_out(self, number: int) -> None:
        """Close connections that are idle, in the middle of a command, or gone for longer than they may. Switches."""
        limits = self._limits
        if limits.idle_timeout or limits.command_timeout:
            self._turn_out_those(overstayed)
        asked_every = max(1, int(limits.dead_peer_timeout / HOUSEKEEPING_EVERY) // ASKED_OFTEN)
        if limits.dead_peer_timeout and not number % asked_every:
            self._turn_out_those(unanswered)

    def _turn_out_those(self, found: Callable[[list[Connection], Limits, int], Iterator[tuple[Guest, str]]]) -> None:
        connections = list(self.connections)
        for begin in range(0, len(connections), LOOKED_AT_ONCE):
            still_there = [one for one in connections[begin : begin + LOOKED_AT_ONCE] if one in self.connections]
            for connection, limit in found(still_there, self._limits, self.clock()):
                self.broker.limit_counters.note(limit, connection.client.address)
                connection.client.hang_up()
            gevent.sleep(TURN)

    def _admit(self, listener: Listener, sock: socket.socket, address: object) -> Callable[[], None] | None:
        """Admit a connection to *listener*; return what its greenlet runs, None if it is one too many. Does not switch.

        A plain connection counts from now on, before anything that arrives later is served.
        """
        host = address[0] if isinstance(address, tuple) else ""
        limit = self._admission.enter(host)
        if limit is not None:
            self.broker.limit_counters.note(limit, describe_peer(sock, address)[0])
            return None
        if listener.is_tls:
            return partial(self._serve_by_tls, listener, sock, address, host)
        connection = self._connect(listener, sock, address, host, [])
        return None if connection is None else partial(self._serve, connection, host)

    def _serve_by_tls(self, listener: Listener, sock: socket.socket, address: object, host: str) -> None:
        """Complete the TLS handshake, and serve. Switches."""
        assert self._certificates is not None
        greenlet, where = getcurrent(), describe_peer(sock, address)[0]
        self._handshakes.add(greenlet)
        secured: TlsSocket | None = None
        try:
            if not self._is_stopping:  # `stop` has ended the handshakes in progress, but not those about to begin
                secured = shake_hands(self._certificates, sock, HANDSHAKE_TIMEOUT)
        except OSError as error:
            self.broker.limit_counters.note("handshake", where, reason_of(error))
        except GreenletExit:
            pass
        finally:
            self._handshakes.discard(greenlet)
            if secured is None:
                self._admission.leave(host)
        if secured is not None:
            connection = self._connect(listener, secured, address, host, secured.peer_names())
            if connection is not None:
                self._serve(connection, host)

    def _connect(
        self, listener: Listener, sock: socket.socket, address: object, host: str, names: list[str]
    ) -> Connection | None:
        """Return a connection whose certificate has *names*; None, and close it, if it cannot be polled.

        Does not switch.
        """
        connection = Connection(
            self.broker,
            sock,
            address,
            self.clock,
            self._poller,
            self._committer,
            _on_refused,
            self._session_maker(listener, names),
            self._limits.output,
        )
        connection.on_leave = _on_leave
        if names:
            connection.client.name = names[0]
        if log.isEnabledFor(logging.DEBUG):
            log.debug("connected", extra=_fields(connection.client))
        try:
            connection.start()
        except OSError as error:
            self.broker.limit_counters.note("epoll", connection.client.address, error.strerror or str(error))
            connection.close()
            self._admission.leave(host)
            return None
        self.connections.add(connection)
        return connection

    def _serve(self, connection: Connection, host: str) -> None:
        """Serve *connection*, from *host*, until it ends. Switches."""
        try:
            try:
                connection.run()
            finally:
                self.connections.discard(connection)
                connection.close()
        except GreenletExit:
            pass
        except Exception:
            log.exception("internal error: the connection is closed", extra=_fields(connection.client))
        finally:
            self._admission.leave(host)
            if connection.failure == errno.ETIMEDOUT:
                self.broker.limit_counters.note("dead_peer_timeout", connection.client.address)

    def _session_maker(self, listener: Listener, names: list[str]) -> Callable[[Broker, Callable[[], None]], Session]:
        """What makes the session of a connection: a plain one where nothing restricts it."""
        limits = self._limits
        if not (self._rules or limits.rate or limits.idle_timeout or limits.command_timeout):
            return Session
        granted = grants(self._rules, listener.name, names) if self._rules else None
        return partial(RestrictedSession, grants=granted, rate=limits.rate, now=self.clock())


def _accepted_at_once(listener: Listener) -> int:
    """Connections, before others have their turn: a handshake takes some ms.

    Fewer than the poller serves in a turn, else those of a flood would come faster than they go.
    """
    return 10 if listener.is_tls else 16


def _fields(client: Client) -> dict[str, object]:
    """What the log says of a connection."""
    return {"connection": client.number, "address": client.address}


def _on_leave(client: Client) -> None:
    """Note that *client* is disconnected, with the jobs that it held. Does not switch."""
    if log.isEnabledFor(logging.DEBUG):
        log.debug("disconnected", extra=_fields(client) | {"jobs": list(islice(client.reserved, JOBS_LOGGED))})


def _on_refused(client: Client, command: bytes, reply: bytes) -> None:
    """Note that *command* was answered by an error. Does not switch."""
    if log.isEnabledFor(logging.DEBUG):
        facts = {"command": command[:COMMAND_LOGGED].decode(errors="replace")}
        log.debug("refused: %s", reply.decode().rstrip(), extra=_fields(client) | facts)


class _TimeoutLog(BrokerListener):
    """Logs reservations that time out, at debug."""

    def on_reservation_timeout(self, client: Client, job: Job) -> None:
        if log.isEnabledFor(logging.DEBUG):
            tube = job.tube.name.decode(errors="replace")
            log.debug("job timed out", extra=_fields(client) | {"job": job.id, "tube": tube})


class Ticker(BrokerListener):
    """The greenlet that calls the broker's tick when something falls due."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._due: int | None = None
        self._sooner: Event = Event()
        self._greenlet: gevent.Greenlet | None = None

    def start(self) -> None:
        """Begin. Does not switch."""
        self._greenlet = gevent.spawn(self._run)

    def stop(self) -> None:
        """End. Switches."""
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None

    def on_alarm(self, when: int) -> None:
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
                gevent.sleep(TURN)
