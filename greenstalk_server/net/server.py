"""Serves one broker to the network: accepts connections, closes them, and calls the broker's tick.

Each connection's socket is owned by its own greenlet (see connection). The greenlet of `Ticker` calls the broker's
tick, and another greenlet does the housekeeping. Docstrings say which methods may switch greenlets.
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
from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.core.limits import Limits
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.operations import draining, ticking
from greenstalk_server.net.acceptor import Acceptor, DescriptorBudget
from greenstalk_server.net.admission import Admission
from greenstalk_server.net.committer import Committer
from greenstalk_server.net.connection import Connection, run_then
from greenstalk_server.net.idle import find_dead, find_idle
from greenstalk_server.net.limit_log import LimitLog
from greenstalk_server.net.links import Links
from greenstalk_server.net.listeners import Listener, describe_peer, notice_dead_peers
from greenstalk_server.net.move_service import MoveService
from greenstalk_server.net.poller import Poller
from greenstalk_server.net.tls import Certificates, TlsSocket, reason_of, shake_hands
from greenstalk_server.protocol.access import Rule, grants
from greenstalk_server.protocol.front_channel import NO_SHARD
from greenstalk_server.protocol.front_session import FrontSession
from greenstalk_server.protocol.restricted_session import RestrictedSession
from greenstalk_server.protocol.session import Session
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.gc_tuning import Upkeep, collect_old
from greenstalk_server.runtime.scheduling import yield_to_loop
from greenstalk_server.runtime.supervisor import Service

log = logging.getLogger(__name__)

STOP_GRACE: Final = 10.0
"""Seconds allowed for sending pending replies when the server stops."""

HANDSHAKE_TIMEOUT: Final = 10.0
"""Seconds that a TLS handshake may take from accepting the connection; the next housekeeping pass after that ends it.
With timers of their own, thousands of handshakes would end in one iteration of the loop."""

HOUSEKEEPING_INTERVAL: Final = 2.0
"""Seconds between housekeeping passes."""

FULL_COLLECTION_PASSES: Final = 5
"""Housekeeping passes per full garbage collection."""

DEAD_PEER_CHECKS: Final = 8
"""Checks of each connection within the dead-peer timeout."""

TIMEOUT_CHECK_BATCH: Final = 100
"""Connections checked for timeouts before the loop serves others: about a millisecond."""

CLOSE_BATCH: Final = 32
"""Connections closed by a timeout before the loop serves others: about a millisecond."""

MAX_JOBS_LOGGED: Final = 100
"""Jobs listed in the debug line about a connection that held some when it was closed."""

MAX_COMMAND_LOGGED: Final = 224
"""Bytes of a refused command in its debug line. No valid command is longer."""

MAX_SLEEP: Final = 3600.0
"""Maximum seconds that the ticker sleeps. A deadline can be a century away, which exceeds the range of timers."""

ACCEPT_BATCH: Final = 16
"""Connections accepted before others are served: fewer than the poller serves per call, so that a flood of connections
is not accepted faster than it is served."""

SHARED_ACCEPT_BATCH: Final = 4
"""Like ACCEPT_BATCH, if other processes accept from the same sockets. Of 400 connections that arrived at once at four
idle processes, the first to wake up accepted 211 to 268 in batches of 16, and 133 in batches of 4."""

TLS_ACCEPT_BATCH: Final = 10
"""Like ACCEPT_BATCH, for TLS. A handshake takes some milliseconds."""


class Server:
    """Serves *broker* on *listeners*, whose sockets are bound and non-blocking."""

    def __init__(
        self,
        broker: Broker,
        listeners: Sequence[Listener],
        clock: Clock,
        committer: Committer | None = None,
        *,
        files: DescriptorBudget,
        limits: Limits,
        rules: Sequence[Rule] = (),
        certificates: Certificates | None = None,
        links: Links | None = None,
    ) -> None:
        """*committer* belongs to the broker's journal, if it is durable; *certificates* are for the TLS listeners.

        *links* are those to the other processes of the queue, which accept from the same sockets; None if there are
        none.
        """
        self.broker: Broker = broker
        self.clock: Clock = clock
        self.connections: set[Connection] = set()
        self._committer: Committer | None = committer
        self._limits: Limits = limits
        self._rules: Sequence[Rule] = rules
        self._certificates: Certificates | None = certificates
        self._links: Links | None = links
        self._moves: MoveService | None = None
        if links is not None and links.own != NO_SHARD and broker.moves is not None:
            self._moves = MoveService(links, broker.moves, broker, clock, committer)
        self._admission: Admission = Admission(limits)
        self._handshakes: dict[Any, int] = {}  # greenlets, with the times at which their handshakes time out
        self._is_stopping: bool = False
        for listener in listeners:
            notice_dead_peers(listener.sock, limits.dead_peer_timeout)
        self._poller: Poller = Poller(clock)
        if committer is not None:
            self._poller.before_send = committer.commit_before_send
            self._poller.has_held_replies = committer.has_held_replies
        most = SHARED_ACCEPT_BATCH if links is not None else ACCEPT_BATCH
        self._acceptors: list[Acceptor] = [
            Acceptor(listener.sock, partial(self._admit, listener), files, self._poller, _accept_batch(listener, most))
            for listener in listeners
        ]
        self._tickers: list[Ticker] = []
        self._limit_log: LimitLog = LimitLog(clock)
        self._former: Broker | None = None
        self._subscribe_to(broker)
        self._housekeeper: Service = Service("housekeeping", self._run_housekeeping)
        self._upkeep: Upkeep = Upkeep()
        self._is_stopped: Event = Event()

    def start(self) -> None:
        """Listen, and start accepting connections; raise StartError if the address is taken. Does not switch."""
        self._tickers[0].start()
        self._poller.start()
        if self._links is not None:
            self._links.start(self._poller)
        if self._moves is not None:
            self._moves.start()
        self._housekeeper.start()
        self._upkeep.start()
        if self._committer is not None:
            self._committer.start()
        for acceptor in self._acceptors:
            acceptor.start()

    def _subscribe_to(self, broker: Broker) -> Ticker:
        """Let *broker* tick, and log its events; return its ticker, not started."""
        ticker = Ticker(broker, self.clock)
        self._tickers.append(ticker)
        for listener in (self._limit_log, _EventLog(), ticker):
            broker.subscribe(listener)
        return ticker

    def lead(self, broker: Broker, committer: Committer) -> None:
        """Serve the shard of *broker*, which this process leads from now on. Raise OSError. Does not switch.

        The connections that are there keep the former broker, which has no jobs, and reach the shard over a link.
        """
        assert self._links is not None
        self._former, self.broker, self._committer = self.broker, broker, committer
        self._poller.before_send = committer.commit_before_send
        self._poller.has_held_replies = committer.has_held_replies
        committer.start()
        self._subscribe_to(broker).start()
        if self._former.is_draining:
            draining.drain(broker)
        self._links.lead(broker.ids.shard, broker, committer)
        if broker.moves is not None:
            self._moves = MoveService(self._links, broker.moves, broker, self.clock, committer)
            self._moves.start()

    def serve_for(self, seconds: float) -> None:
        """Serve clients for *seconds* from now, if that is positive; then they wait. Does not switch."""
        self._poller.serve_for(int(seconds * SECOND))

    def drain(self) -> None:
        """Enter drain mode, which refuses puts, until the process ends. Does not switch."""
        draining.drain(self.broker)
        log.info("draining: puts are refused; all other commands are served")

    def stop(self) -> None:
        """Stop accepting, send pending replies within `STOP_GRACE`, close every connection. Idempotent. Switches."""
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
        if self._moves is not None:
            self._moves.stop()
        if self._links is not None:
            self._links.resign()
            self._links.stop()
        self._poller.stop()
        for ticker in self._tickers:
            ticker.stop()
        self._housekeeper.stop()
        self._upkeep.stop()
        if self._committer is not None:
            self._committer.stop()
        self._is_stopped.set()

    def serve_forever(self) -> None:
        """Start, and return after `stop`. Switches."""
        self.start()
        self._is_stopped.wait()

    def _run_housekeeping(self) -> None:
        """Every `HOUSEKEEPING_INTERVAL`, close timed-out connections, and flush the limit log. Switches.

        Each step takes some milliseconds, so the loop serves others between them.
        """
        for number in count(1):
            gevent.sleep(HOUSEKEEPING_INTERVAL)
            if not number % FULL_COLLECTION_PASSES:
                collect_old()
                yield_to_loop()
            self._close_timed_out(number)
            self._end_handshakes()
            self._limit_log.flush()

    def _close_timed_out(self, number: int) -> None:
        """Close idle, stalled and dead connections in housekeeping pass *number*. Switches."""
        limits = self._limits
        if limits.idle_timeout or limits.command_timeout:
            self._close_found(find_idle)
        passes = max(1, int(limits.dead_peer_timeout / HOUSEKEEPING_INTERVAL) // DEAD_PEER_CHECKS)
        if limits.dead_peer_timeout and not number % passes:
            self._close_found(find_dead)

    def _close_found(self, find: Callable[[list[Connection], Limits, int], Iterator[tuple[Connection, str]]]) -> None:
        """Close each connection that *find* yields. Switches."""
        connections, closed = list(self.connections), 0
        while connections:
            batch = [one for one in connections[-TIMEOUT_CHECK_BATCH:] if one in self.connections]
            del connections[-TIMEOUT_CHECK_BATCH:]  # else all that were closed would be freed together at the end
            for connection, limit in find(batch, self._limits, self.clock()):
                if limit:
                    self.broker.limit_counters.note(limit, connection.client.address)
                connection.client.hang_up()
                closed += 1
                if not closed % CLOSE_BATCH:
                    yield_to_loop()
            yield_to_loop()

    def _end_handshakes(self) -> None:
        """End the TLS handshakes that have timed out. Switches."""
        now = self.clock()
        due = [greenlet for greenlet, until in self._handshakes.items() if until <= now]
        for begin in range(0, len(due), CLOSE_BATCH):
            for greenlet in due[begin : begin + CLOSE_BATCH]:
                if greenlet in self._handshakes:
                    gevent.kill(greenlet, TimeoutError("the handshake took too long"))
            yield_to_loop()

    def _admit(self, listener: Listener, sock: socket.socket, address: object) -> Callable[[], None] | None:
        """Admit a connection to *listener*; return the function that its greenlet runs, or None if a limit forbids it.

        A plain connection is registered with the broker in this call, before input that arrives later is served. Does
        not switch.
        """
        host = address[0] if isinstance(address, tuple) else ""
        limit = self._admission.enter(host)
        if limit is not None:
            self.broker.limit_counters.note(limit, describe_peer(sock, address)[0])
            return None
        if listener.is_tls:
            return partial(self._serve_tls, listener, sock, address, host)
        connection = self._connect(listener, sock, address, host, [])
        if connection is None:
            return None
        return partial(run_then, connection.run, partial(self._finish, connection, host))

    def _serve_tls(self, listener: Listener, sock: socket.socket, address: object, host: str) -> None:
        """Complete the TLS handshake, then serve the connection. Switches."""
        assert self._certificates is not None
        greenlet, peer = getcurrent(), describe_peer(sock, address)[0]
        self._handshakes[greenlet] = self.clock() + round(HANDSHAKE_TIMEOUT * SECOND)
        secured: TlsSocket | None = None
        try:
            if not self._is_stopping:  # `stop` has ended the handshakes in progress, but not those about to begin
                secured = shake_hands(self._certificates, sock)
        except OSError as error:
            self.broker.limit_counters.note("handshake", peer, reason_of(error))
        except GreenletExit:
            pass
        finally:
            self._handshakes.pop(greenlet, None)
            if secured is None:
                self._admission.leave(host)
        if secured is not None:
            connection = self._connect(listener, secured, address, host, secured.peer_names())
            if connection is not None:
                run_then(connection.run, partial(self._finish, connection, host))

    def _connect(
        self, listener: Listener, sock: socket.socket, address: object, host: str, names: list[str]
    ) -> Connection | None:
        """Return a connection whose client certificate has *names*, or close it and return None if it cannot be polled.

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

    def _finish(self, connection: Connection, host: str) -> None:
        """Close *connection*, from *host*, whose `run` has ended."""
        self.connections.discard(connection)
        try:
            connection.close()
        except Exception as error:  # noqa: BLE001  logged below
            connection.crash = error
        if connection.crash is not None:
            log.error(
                "internal error: the connection is closed", exc_info=connection.crash, extra=_fields(connection.client)
            )
        self._admission.leave(host)
        if connection.failure == errno.ETIMEDOUT:
            self.broker.limit_counters.note("dead_peer_timeout", connection.client.address)

    def _session_maker(self, listener: Listener, names: list[str]) -> Callable[[Broker, Callable[[], None]], Session]:
        """Return the constructor of a connection's session: a RestrictedSession if a rule or limit applies."""
        limits = self._limits
        if self._links is not None:
            granted = grants(self._rules, listener.name, names) if self._rules else None
            return partial(
                FrontSession,
                grants=granted,
                rate=limits.rate,
                now=self.clock(),
                routes=self._links,
                origin=(listener.name, names),
                is_timed=bool(limits.rate or limits.idle_timeout or limits.command_timeout),
            )
        if not (self._rules or limits.rate or limits.idle_timeout or limits.command_timeout):
            return Session
        granted = grants(self._rules, listener.name, names) if self._rules else None
        return partial(RestrictedSession, grants=granted, rate=limits.rate, now=self.clock())


def _accept_batch(listener: Listener, most: int) -> int:
    return min(TLS_ACCEPT_BATCH, most) if listener.is_tls else most


def _fields(client: Client) -> dict[str, object]:
    """Return the fields of log lines about *client*."""
    return {"connection": client.number, "address": client.address}


def _on_leave(client: Client) -> None:
    """Log at debug that *client* disconnected, with the jobs that it held. Does not switch."""
    if log.isEnabledFor(logging.DEBUG):
        log.debug("disconnected", extra=_fields(client) | {"jobs": list(islice(client.reserved, MAX_JOBS_LOGGED))})


def _on_refused(client: Client, command: bytes, reply: bytes) -> None:
    """Log at debug that *command* got the error *reply*. Does not switch."""
    if log.isEnabledFor(logging.DEBUG):
        facts = {"command": command[:MAX_COMMAND_LOGGED].decode(errors="replace")}
        log.debug("refused: %s", reply.decode().rstrip(), extra=_fields(client) | facts)


class _EventLog(BrokerListener):
    """Logs drains that clients request and, at level debug, each reservation that times out."""

    def on_drain(self, client: Client, is_draining: bool) -> None:
        state = "draining: puts are refused" if is_draining else "no longer draining: puts are accepted"
        log.info("%s, at the request of a client", state, extra=_fields(client))

    def on_reservation_timeout(self, client: Client, job: Job) -> None:
        if log.isEnabledFor(logging.DEBUG):
            tube = job.tube.name.decode(errors="replace")
            log.debug("job timed out", extra=_fields(client) | {"job": job.id, "tube": tube})


class Ticker(BrokerListener):
    """Calls the broker's tick when a deadline is reached, in a greenlet of its own."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._due: int | None = None
        self._earlier: Event = Event()
        self._service: Service = Service("ticker", self._run)

    def start(self) -> None:
        """Start the greenlet. Does not switch."""
        self._service.start()

    def stop(self) -> None:
        """End the greenlet. Switches."""
        self._service.stop()

    def on_earlier_deadline(self, when: int) -> None:
        if self._due is None or when < self._due:
            self._earlier.set()

    def _run(self) -> None:
        while True:
            self._earlier.clear()
            self._due = ticking.tick(self._broker, self._clock())
            if self._due is None:
                self._earlier.wait(MAX_SLEEP)
                continue
            left = self._due - self._clock()
            if left > 0:
                self._earlier.wait(min(left / SECOND, MAX_SLEEP))
            else:
                yield_to_loop()
