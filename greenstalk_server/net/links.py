"""The links of this process to all other processes of the queue: connect, authenticate, and replace lost links.

The process with the higher shard number connects to the link socket of the other. Both check that the peer runs as the
same user, belongs to the same queue with the same number of shards, speaks a version that both know, and knows the
secret, which is never sent. A process that fails a check is refused with one line in the log.

A link that is lost takes along what depends on it: here, the jobs that clients of the other process hold become ready;
there, the clients whose commands have no reply are closed. A command for a shard that cannot be reached waits up to
`OUTAGE_WAIT`.

Docstrings say which methods may switch greenlets.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import secrets
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import gevent
from gevent import socket as gsocket
from gevent.timeout import Timeout

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.tubes.head_watch import NO_HEAD, Head, head_of
from greenstalk_server.net.committer import Committer
from greenstalk_server.net.link import Link, ServedClient, Wire
from greenstalk_server.net.link_calls import CALL_TIMEOUT, CallError, CallHandler, Message
from greenstalk_server.net.poller import Poller
from greenstalk_server.protocol import link_frames as frames
from greenstalk_server.protocol.access import Rule, grants
from greenstalk_server.protocol.front_session import FrontSession
from greenstalk_server.protocol.link_frames import FrameReader, LinkError, frame
from greenstalk_server.protocol.restricted_session import RestrictedSession
from greenstalk_server.protocol.session import Session
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.scheduling import yield_to_loop
from greenstalk_server.runtime.supervisor import Service
from greenstalk_server.runtime.system import peer_user

CONNECT_INTERVAL: Final = 0.1
"""Seconds between two attempts to connect."""

HANDSHAKE_TIMEOUT: Final = 5.0
"""Seconds for a handshake."""

OUTAGE_WAIT: Final = 30.0
"""Seconds that a command waits for a shard that cannot be reached; then its connection is closed."""

CHECK_INTERVAL: Final = 1.0
"""Seconds between two checks for commands that have waited for OUTAGE_WAIT."""

END_BATCH: Final = 32
"""Channels of a lost link that are ended before the loop serves others: about a millisecond."""

log = logging.getLogger(__name__)


class Links:
    """The other shards of the queue. Implements `front_channel.Routes` and `link.Host`."""

    def __init__(
        self,
        queue: str,
        secret: bytes,
        listener: socket.socket,
        paths: Sequence[str],
        broker: Broker,
        clock: Clock,
        committer: Committer | None,
        rules: Sequence[Rule],
    ) -> None:
        """*queue* is the id of the queue, *listener* the own link socket, *paths* those of all shards."""
        self.own: int = broker.ids.shard
        self.ids: IdSequence = broker.ids
        self.heads: dict[bytes, Head] = {}
        self.handlers: dict[str, CallHandler] = {}
        self.poller: Poller
        self.clock: Clock = clock
        self.broker: Broker = broker
        self.committer: Committer | None = committer
        self._queue: str = queue
        self._secret: bytes = secret
        self._listener: socket.socket = listener
        self._paths: Sequence[str] = paths
        self._rules: Sequence[Rule] = rules
        self._links: dict[int, Link] = {}
        self._waiting: dict[int, dict[Wire, int]] = {}  # wires without a link, with the time since when
        self._shard_of: dict[bytes, int] = {}
        self._ending: deque[Callable[[], None]] = deque()
        self._dirty: dict[Link, None] = {}
        self._is_flush_due: bool = False
        self._is_stopping: bool = False
        others = [shard for shard in range(self.ids.shards) if shard != self.own]
        self._services: list[Service] = [
            Service("links", self._accept_forever),
            Service("link-outages", self._end_outages),
            *[Service("links", partial(self._connect_forever, shard)) for shard in others if shard < self.own],
        ]

    def start(self, poller: Poller) -> None:
        """Connect to the other processes. Does not switch."""
        self.poller = poller
        poller.after_batch = self.flush
        self.broker.heads.on_change = self._note_output
        for service in self._services:
            service.start()

    def stop(self) -> None:
        """Close all links. Switches."""
        self._is_stopping = True
        for service in self._services:
            service.stop()
        for link in list(self._links.values()):
            self.drop(link)
        while self._ending:
            self._ending.popleft()()

    # Routes

    def shard_of(self, tube: bytes) -> int:
        """Return the shard that owns *tube*."""
        shard = self._shard_of.get(tube)
        if shard is None:
            if len(self._shard_of) >= MAX_KNOWN_TUBES:
                self._shard_of.clear()
            shard = self._shard_of[tube] = self.broker.tube_shards.shard_of(tube)
        return shard

    def open(self, shard: int, session: FrontSession, receive: Callable[[bytes | None], None]) -> Wire:
        """Connect a remote client for *session* at *shard*, now or when there is a link. Does not switch."""
        wire = Wire(session, receive)
        link = self._links.get(shard)
        if link is not None:
            wire.attach(link)
        else:
            self._waiting.setdefault(shard, {})[wire] = self.clock()
        return wire

    def is_linked(self, shard: int) -> bool:
        """Return whether *shard* can be reached now."""
        return shard in self._links

    # Calls

    def call(self, shard: int, name: str, arguments: Message, timeout: float = CALL_TIMEOUT) -> Message:
        """Return the answer of the process that owns *shard* to the call *name*, also if that is this process.

        Raise CallError if there is no link, or no answer within *timeout* seconds, or if the answer is an error.
        Switches.
        """
        if shard == self.own:
            return self.handlers[name](shard, arguments)
        link = self._links.get(shard)
        if link is None:
            raise CallError(f"shard {shard} cannot be reached")
        return link.calls.call(name, arguments, timeout)

    # Host

    def make_session(self, wake: Callable[[], None], facts: dict[str, Any]) -> Session:
        """Return the session of a client of another process, with the rights that it has there."""
        names = [str(name) for name in facts["names"]]
        granted = grants(self._rules, facts["listener"], names) if self._rules else None
        session = RestrictedSession(self.broker, wake, granted, 0, self.clock())
        session.may_reserve = True  # its front has checked
        return session

    def note_output(self, link: Link) -> None:
        """Call `flush` of *link* at the end of the batch; outside of a batch, in the next iteration of the loop."""
        if not self._dirty:
            self._note_output()
        self._dirty[link] = None

    def _note_output(self) -> None:
        self.poller.is_output_due = True
        if not (self.poller.is_serving or self._is_flush_due):
            self._is_flush_due = True
            gevent.get_hub().loop.run_callback(self._flush_late)

    def drop(self, link: Link) -> None:
        """Close *link*, and end its channels little by little. Does not switch."""
        if link.is_lost:
            return
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            if not self._is_stopping:
                log.warning("the link to shard %d is lost", link.peer)
        self._dirty.pop(link, None)
        wires, clients = link.close()
        link.lost.set()
        for tube in [tube for tube in self.heads if self.shard_of(tube) == link.peer]:
            del self.heads[tube]
        was_ending = bool(self._ending)
        self._ending.extend([partial(wire.receive, None) for wire in wires])
        self._ending.extend([partial(self._end, client) for client in clients])
        if not was_ending and not self._is_stopping:
            gevent.spawn(self._end_channels)

    def flush(self) -> None:
        """Publish heads that have changed, and send the output of all links. Does not switch."""
        now = self.clock()
        for tube, link in self.broker.heads.take_ended():
            assert isinstance(link, Link)
            if not link.is_lost:
                link.publish(tube.name, NO_HEAD)
        for tube, subscribers in self.broker.heads.take():
            head = head_of(tube, now)
            for link in subscribers:
                assert isinstance(link, Link)
                if not link.is_lost:
                    link.publish(tube.name, head)
        while self._dirty:
            link, _ = self._dirty.popitem()
            link.flush()

    def _flush_late(self) -> None:
        self._is_flush_due = False
        self.flush()

    def _end(self, client: ServedClient) -> None:
        client.close(self.clock())

    def _end_channels(self) -> None:
        """End the channels of lost links. Switches."""
        while self._ending:
            for _ in range(min(END_BATCH, len(self._ending))):
                self._ending.popleft()()
            yield_to_loop()

    def _end_outages(self) -> None:
        """Close the connections whose commands have waited too long for a shard. Switches."""
        while True:
            gevent.sleep(CHECK_INTERVAL)
            before = self.clock() - round(OUTAGE_WAIT * SECOND)
            for shard, wires in self._waiting.items():
                for wire in [wire for wire, since in wires.items() if wire.is_closed or since < before]:
                    if wire.is_closed:
                        del wires[wire]
                    elif wire.session.needs(shard):
                        wire.session.client.hang_up()

    # Links

    def _add(self, peer: int, sock: gsocket.socket) -> None:
        """Serve the authenticated connection *sock* to *peer*; it replaces an earlier one."""
        before = self._links.get(peer)
        if before is not None:
            self.drop(before)
        plain = socket.socket(fileno=os.dup(sock.fileno()))
        plain.setblocking(False)
        sock.close()
        link = Link(self, peer, plain)
        link.start()
        self._links[peer] = link
        log.info("linked to shard %d", peer)
        for wire in self._waiting.pop(peer, {}):
            if not wire.is_closed:
                wire.attach(link)

    def _connect_forever(self, shard: int) -> None:
        """Keep a link to *shard*. Switches."""
        is_failing = False
        while True:
            try:
                self._connect(shard)
                is_failing = False
            except (OSError, LinkError, Timeout) as error:
                if not is_failing:
                    log.warning("cannot link to shard %d: %s; trying again", shard, error)
                is_failing = True
            link = self._links.get(shard)
            if link is not None:
                link.lost.wait()
            gevent.sleep(CONNECT_INTERVAL)

    def _connect(self, shard: int) -> None:
        sock = gsocket.socket(socket.AF_UNIX)
        try:
            with Timeout(HANDSHAKE_TIMEOUT):
                sock.connect(self._paths[shard])
                peer = self._shake_hands(sock, "connects")
            if peer != shard:
                raise LinkError(f"{self._paths[shard]} belongs to shard {peer}")
            self._add(shard, sock)
        finally:
            sock.close()

    def _accept_forever(self) -> None:
        """Accept links. Switches."""
        with gsocket.socket(fileno=os.dup(self._listener.fileno())) as listener:
            while True:
                sock, _ = listener.accept()
                gevent.spawn(self._accept, sock)

    def _accept(self, sock: gsocket.socket) -> None:
        try:
            with Timeout(HANDSHAKE_TIMEOUT):
                peer = self._shake_hands(sock, "accepts")
            self._add(peer, sock)
        except (OSError, LinkError, Timeout) as error:
            log.warning("refused a link: %s", error)
        finally:
            sock.close()

    def _shake_hands(self, sock: gsocket.socket, role: str) -> int:
        """Authenticate the peer; return its shard. Raise LinkError if a check fails. Switches."""
        user = peer_user(sock)
        if user not in (os.geteuid(), 0):
            raise LinkError(f"the peer runs as user {user}, this process as user {os.geteuid()}")
        nonce = secrets.token_hex(16)
        hello = {
            "version": frames.VERSION,
            "oldest": frames.OLDEST_VERSION,
            "queue": self._queue,
            "shards": self.ids.shards,
            "base": self.ids.base,
            "shard": self.own,
            "role": role,
            "nonce": nonce,
        }
        reader = FrameReader()
        sock.sendall(frame(frames.HELLO, 0, json.dumps(hello).encode()))
        theirs = _hello(_receive(sock, reader, frames.HELLO))
        problem = self._problem(theirs, hello)
        if problem:
            raise LinkError(problem)
        sock.sendall(frame(frames.AUTH, 0, self._proof(hello, theirs["nonce"])))
        if not hmac.compare_digest(_receive(sock, reader, frames.AUTH), self._proof(theirs, nonce)):
            raise LinkError(f"shard {theirs['shard']} does not know the secret")
        return int(theirs["shard"])

    def _problem(self, theirs: dict[str, Any], ours: dict[str, Any]) -> str:
        """Return why there can be no link to the process that has sent *theirs*; empty if there can be."""
        if theirs["oldest"] > frames.VERSION or theirs["version"] < frames.OLDEST_VERSION:
            return (
                f"the peer speaks versions {theirs['oldest']} to {theirs['version']},"
                f" this process {frames.OLDEST_VERSION} to {frames.VERSION}"
            )
        for name in ("queue", "shards", "base"):
            if theirs[name] != ours[name]:
                return f"the {name} of the peer is {theirs[name]}, that of this process {ours[name]}"
        if theirs["shard"] == self.own or not 0 <= theirs["shard"] < self.ids.shards:
            return f"the peer says that it is shard {theirs['shard']}"
        return "" if theirs["role"] != ours["role"] else f"both processes say that they {ours['role'][:-1]}"

    def _proof(self, hello: dict[str, Any], nonce: str) -> bytes:
        """Return what proves that the sender of *hello* knows the secret, to the peer that has chosen *nonce*."""
        message = json.dumps([hello, nonce], sort_keys=True).encode()
        return hmac.digest(self._secret, message, hashlib.sha256)


MAX_KNOWN_TUBES: Final = 65536
"""Tubes whose shards are cached."""

_HELLO_TYPES: Final = {
    "version": int,
    "oldest": int,
    "queue": str,
    "shards": int,
    "base": int,
    "shard": int,
    "role": str,
    "nonce": str,
}


def _hello(payload: bytes) -> dict[str, Any]:
    """Return the facts of HELLO; raise LinkError if they are malformed."""
    try:
        facts = json.loads(payload)
        if all(type(facts[name]) is kind for name, kind in _HELLO_TYPES.items()):
            return {name: facts[name] for name in _HELLO_TYPES}
    except (ValueError, KeyError, TypeError):
        pass
    raise LinkError("malformed HELLO")


def _receive(sock: gsocket.socket, reader: FrameReader, kind: int) -> bytes:
    """Return the payload of the next frame; raise LinkError if it is not of *kind*. Switches."""
    while True:
        data = sock.recv(reader.missing)  # no byte of what follows the handshake
        if not data:
            raise LinkError("the peer has closed the connection during the handshake")
        for found, _, payload in reader.feed(data):
            if found != kind:
                raise LinkError(f"a frame of kind {found} during the handshake")
            return payload
