"""The links of this process to all other processes of the queue: connect, authenticate, and replace lost links.

Of two processes, the one with the smaller id connects to the other. Both check that the peer belongs to the same queue,
speaks a version that both know, and knows the secret, which is never sent. A process that fails a check is refused with
one line in the log. A `Membership` says which processes there are, and which of them leads each shard.

A command for a shard is sent to the process that leads it, once that process has confirmed this over its link; until
then it waits, up to `outage_wait`. When a link is lost, the clients of the other process are suspended here, with the
jobs that they hold. When there is a link again, the other process opens the sessions of those that still exist, and
then reports this: all others end. They also end when the membership says that the other process has ended.

A process that cannot be reached over TCP is reached over a third one, which relays, until a direct connection succeeds.

Docstrings say which methods may switch greenlets.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, Final

import gevent
from gevent import socket as gsocket
from gevent.event import Event
from gevent.timeout import Timeout

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.limits import Limits
from greenstalk_server.core.operations import suspending
from greenstalk_server.core.remote import RemoteReservations
from greenstalk_server.core.tubes.head_watch import NO_HEAD, Head, head_of
from greenstalk_server.net import link_transport as transport
from greenstalk_server.net.admission import Admission
from greenstalk_server.net.committer import Committer
from greenstalk_server.net.link import Link, LinkWire, ServedClient
from greenstalk_server.net.link_calls import CALL_TIMEOUT, CallError, CallHandler, Message
from greenstalk_server.net.link_handshake import Identity, Peer, SameShard, connects, shake_hands
from greenstalk_server.net.link_relay import RelayError, Relays
from greenstalk_server.net.membership import Membership
from greenstalk_server.net.poller import Poller
from greenstalk_server.net.tls import Certificates, reason_of
from greenstalk_server.protocol import replies
from greenstalk_server.protocol.access import Rule, grants
from greenstalk_server.protocol.front_channel import NO_SHARD, Channel
from greenstalk_server.protocol.link_frames import LinkError
from greenstalk_server.protocol.restricted_session import RemoteSession, RestrictedSession
from greenstalk_server.protocol.session import Session
from greenstalk_server.protocol.stats import server_stats
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.scheduling import yield_to_loop
from greenstalk_server.runtime.supervisor import Service

CONNECT_INTERVAL: Final = 0.1
MAX_CONNECT_INTERVAL: Final = 2.0
"""Seconds between two attempts to connect: at first, and at most. The interval doubles with each failure."""

RELAY_DELAY: Final = 1.0
"""Seconds without a link to a process, after which another one is asked to relay. It doubles with each failure."""

HANDSHAKE_TIMEOUT: Final = 5.0
"""Seconds for a handshake."""

HANDSHAKES: Final = Limits(connections=1024, connections_per_address=64)
"""Handshakes of accepted links at a time; further connections are closed. Unix sockets count in total alone."""

OUTAGE_WAIT: Final = 30 * SECOND
"""Nanoseconds that a command waits for a shard that cannot be reached; then its connection is closed."""

CHECK_INTERVAL: Final = 0.5
"""Seconds between two checks for commands that have waited for too long."""

CHECK_BATCH: Final = 512
"""Channels that are checked before the loop serves others: about half a millisecond."""

PING_INTERVAL: Final = 2.0
"""Seconds between two pings on each link."""

MAX_SILENCE: Final = 5
"""Pings without any byte of the peer, after which the link is lost: 10 s. Time that this process was stopped, and could
not hear the peer, does not count."""

MAX_REFUSALS: Final = 10
"""Refused links that are logged per PING_INTERVAL; anyone who reaches the port can be refused often."""

RESIGN_TIMEOUT: Final = 1.0
"""Seconds for the requests in progress, and for the fronts to close their links, when the process resigns."""

BATCH: Final = 32
"""Channels of a lost link that are ended, or of a new one that are opened, or connections that are closed, before the
loop serves others: about a millisecond."""

MAX_KNOWN_TUBES: Final = 65536
"""Tubes whose shards are cached."""

log = logging.getLogger(__name__)


class Links:
    """The other processes of the queue. Implements `front_channel.Routes` and `link.Host`.

    front       the broker of the clients that this process accepted while it led no shard; None if it always led one.
    on_rival    called with the id of a process that says that it leads the shard of this one. Does not switch.
    """

    def __init__(
        self,
        identity: Identity,
        membership: Membership,
        listeners: Sequence[socket.socket],
        broker: Broker,
        clock: Clock,
        committer: Committer | None,
        rules: Sequence[Rule],
        shard: int = NO_SHARD,
        certificates: Certificates | None = None,
        outage_wait: int = OUTAGE_WAIT,
    ) -> None:
        """*listeners* accept the links of other processes; this process leads *shard*, whose jobs *broker* has.

        *certificates* are for links over TCP; None: without TLS, which is for loopback addresses alone. *outage_wait*:
        nanoseconds that a command waits for a shard that cannot be reached; then its connection is closed.
        """
        self.own: int = shard
        self.front: Broker | None = broker if shard == NO_SHARD else None
        self.ids: IdSequence = identity.ids
        self.heads: dict[bytes, Head] = {}
        self.handlers: dict[str, CallHandler] = {}
        self.on_rival: Callable[[str], None] = _ignore_rival
        self.poller: Poller
        self.clock: Clock = clock
        self.broker: Broker = broker
        self.committer: Committer | None = committer
        self._identity: Identity = identity
        self._membership: Membership = membership
        self._rules: Sequence[Rule] = rules
        self._certificates: Certificates | None = certificates
        self._outage_wait: int = outage_wait
        self._links: dict[str, Link] = {}  # by the id of the other process
        self._loopback: Link | None = None  # the end of the owner
        self._owners: dict[int, str] = {}  # the last owner of each shard
        self._members: set[str] = set()
        self._connectors: dict[str, tuple[Service, ...]] = {}
        self._relays: Relays = Relays()
        self._attempts: dict[str, socket.socket] = {}  # on which this process shakes hands with others
        self._last_asked: str = ""  # the process that was asked to relay last
        self._not_relayed: set[str] = set()  # targets of refused relays, logged since the last link or relay
        self._waiting: dict[int, dict[LinkWire, int]] = {}  # wires without a link, and since when a command waits, or 0
        self._attaching: set[int] = set()
        self._unreached: dict[int, int] = {}  # shards whose owners live, with the time since when there is no link
        self._shard_of: dict[bytes, int] = {}
        self._ending: deque[Callable[[], None]] = deque()
        self._dirty: dict[Link, None] = {}
        self._served: dict[tuple[str, int], ServedClient] = {}  # by the front and the number of the session
        self._sessions: int = 0
        self._is_flush_due: bool = False
        self._is_stopping: bool = False
        self._changed: Event = Event()
        self._refusals: int = 0
        self._handshakes: Admission = Admission(HANDSHAKES)
        self._services: list[Service] = [
            *[Service("links", partial(self._accept_forever, listener)) for listener in listeners],
            Service("links", self._follow_membership),
            Service("links", self._ping_forever),
            Service("link-outages", self._end_outages),
        ]

    def start(self, poller: Poller) -> None:
        """Connect to the other processes. Does not switch."""
        self.poller = poller
        poller.after_batches = self.flush
        self.broker.heads.on_change = self._note_output
        self._membership.on_change = self._changed.set
        for service in self._services:
            service.start()

    def stop(self) -> None:
        """Close all links. Switches."""
        self._is_stopping = True
        for service in [*self._services, *chain.from_iterable(self._connectors.values())]:
            service.stop()
        self._relays.stop()
        for link in [*self._links.values(), *([self._loopback] if self._loopback is not None else [])]:
            self.drop(link)
        while self._ending:
            self._ending.popleft()()

    def resign(self) -> None:
        """Finish the requests of other processes that are in progress, and accept no others. Switches."""
        self._is_stopping = True
        links = [link for link in self._links.values() if link.peer != self._identity.process]
        if self.own != NO_SHARD:
            gevent.joinall([gevent.spawn(link.resign) for link in links], timeout=RESIGN_TIMEOUT)

    def lead(self, shard: int, broker: Broker, committer: Committer | None) -> None:
        """Serve *shard*, whose jobs *broker* has, from now on. Raise OSError if there is no loopback. Does not switch.

        The process has led no shard, and `start` was called. Its sessions from before reach the shard over a link of
        the process to itself, as they do not use *broker*.
        """
        ends = socket.socketpair()
        if self.front is not None:
            self.front.facts = replace(self.front.facts, rusage=_no_usage)  # `stats` adds the usage of both brokers
        self.broker, self.committer = broker, committer
        broker.heads.on_change = self._note_output
        self.own = shard
        for link in self._links.values():
            link.announce(shard)
        for end in ends:
            end.setblocking(False)
        process = self._identity.process
        front, self._loopback = Link(self, process, shard, ends[0]), Link(self, process, shard, ends[1])
        front.start()
        self._loopback.start()
        self._links[process] = front
        self._attach_waiting(shard)

    # Routes

    def shard_of(self, tube: bytes) -> int:
        """Return the shard that owns *tube*."""
        shard = self._shard_of.get(tube)
        if shard is None:
            if len(self._shard_of) >= MAX_KNOWN_TUBES:
                self._shard_of.clear()
            shard = self._shard_of[tube] = self.broker.tube_shards.shard_of(tube)
        return shard

    def new_session(self) -> int:
        """Return the number of a new session, which no other session of this process has."""
        self._sessions += 1
        return self._sessions

    def standby_stats(self, broker: Broker) -> list[bytes]:
        """Return the statistics of `front` of each process, up to PING_INTERVAL old, without those of *broker*."""
        found = [link.peer_stats for link in self._links.values() if link.peer_stats]
        return found if self.front in (None, broker) else [self._front_stats(), *found]

    def _front_stats(self) -> bytes:
        return replies.stats(server_stats(self.front, self.clock())) if self.front is not None else b""

    def standbys(self) -> list[str]:
        """Return the ids of the other processes that lead no shard, and that can be reached now."""
        return [link.peer for link in self._links.values() if link.shard == NO_SHARD]

    def open(self, shard: int, channel: Channel) -> LinkWire:
        """Connect a remote client at *shard*, now or when there is a link. Does not switch."""
        wire = LinkWire(channel)
        link = self._link_to(shard)
        if link is not None:
            wire.attach(link)
        else:
            self._waiting.setdefault(shard, {})[wire] = 0
        return wire

    def is_linked(self, shard: int) -> bool:
        """Return whether *shard* can be reached now."""
        return self._link_to(shard) is not None

    def is_relayed(self, shard: int) -> bool:
        """Return whether *shard* is reached over a third process now."""
        link = self._link_to(shard)
        return link is not None and bool(link.relay)

    def relays(self) -> dict[str, str]:
        """Return the ids of the processes that relay the links of this one, by the ids of the peers."""
        return {link.peer: link.relay for link in self._links.values() if link.relay}

    def unreached(self) -> list[int]:
        """Return the shards whose owners live, and have not been reached for `outage_wait`."""
        before = self.clock() - self._outage_wait
        return [shard for shard, since in self._unreached.items() if since < before]

    def _link_to(self, shard: int) -> Link | None:
        """Return the link to the process that leads *shard*, and that has confirmed this; None if there is none."""
        owner = self._membership.owner_of(shard)
        link = self._links.get(owner) if owner is not None else None
        return link if link is not None and link.shard == shard else None

    # Calls

    def call(self, target: int | str, name: str, arguments: Message, timeout: float = CALL_TIMEOUT) -> Message:
        """Return the answer of *target* to the call *name*.

        *target* is the id of another process, or a shard, whose owner answers, even if that is this process. Raise
        CallError if there is no link, or no answer within *timeout* seconds, or if the answer is an error. Switches.
        """
        if target == self.own:
            handler = self.handlers.get(name)
            if handler is None:
                raise CallError(f"unknown call {name}")
            return handler(self.own, arguments)
        link = self._links.get(target) if isinstance(target, str) else self._link_to(target)
        if link is None:
            raise CallError(f"{'process' if isinstance(target, str) else 'shard'} {target} cannot be reached")
        return link.calls.call(name, arguments, timeout)

    # Host

    def make_session(self, wake: Callable[[], None], facts: dict[str, Any]) -> Session:
        """Return the session of a client of another process, with the rights that it has there."""
        names = [str(name) for name in facts["names"]]
        granted = grants(self._rules, facts["listener"], names) if self._rules else None
        if granted is None:
            return RemoteSession(self.broker, wake)
        session = RestrictedSession(self.broker, wake, granted, 0, self.clock())
        session.may_reserve = True  # its front has checked
        return session

    def note_output(self, link: Link) -> None:
        """Call `flush` of *link* after this batch or a few more; outside of a batch, in the loop's next iteration."""
        if not self._dirty:
            self._note_output()
        self._dirty[link] = None

    def _note_output(self) -> None:
        self.poller.is_output_due = True
        if not (self.poller.is_serving or self._is_flush_due):
            self._is_flush_due = True
            gevent.get_hub().loop.run_callback(self._flush_late)

    def drop(self, link: Link, *, is_unserved: bool = False) -> None:
        """Close *link*, and end its channels little by little; *is_unserved* as of Channel.lose. Does not switch."""
        if link.is_lost:
            return
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            if not (self._is_stopping or is_unserved):
                log.warning("the link to %s is lost", link.label)
        self._dirty.pop(link, None)
        wires, clients = link.close()
        link.lost.set()
        for tube in [tube for tube in self.heads if self.shard_of(tube) == link.shard]:
            del self.heads[tube]
        self._end_later([partial(wire.lose, is_unserved=is_unserved) for wire in wires])
        self._end_later([partial(self._end, client) for client in clients])

    def note_served(self, client: ServedClient, remote: RemoteReservations) -> None:
        """Note that *client* serves the session *remote*; suspend a former one, whose link is lost. Raise LinkError.

        Does not switch.
        """
        key = remote.front, remote.session
        former = self._served.get(key)
        if former is not None:
            if not former.is_lost:
                raise LinkError(f"session {remote.session} is open already")
            former.suspend(self.clock())
        self._served[key] = client

    def forget_served(self, client: ServedClient, remote: RemoteReservations) -> None:
        """Note that *client* has ended. Does not switch."""
        del self._served[remote.front, remote.session]

    def note_reported(self, link: Link) -> None:
        """Disconnect the suspended clients of the peer of *link*: it has opened the sessions of all others again.

        Does not switch.
        """
        self._end_later([partial(self._end_suspended, link.peer)])

    def _end_suspended(self, front: str) -> None:
        """Disconnect the suspended clients of *front*, little by little; those of a lost link are suspended by now."""
        numbers = list(self.broker.suspended.get(front, ()))
        self._end_later([partial(self._end_session, front, number) for number in numbers])

    def _end_session(self, front: str, number: int) -> None:
        if (front, number) not in self._served:  # else its jobs go to the client of the new link, little by little
            suspending.end(self.broker, front, number, self.clock())

    def note_lead(self, link: Link, shard: int) -> None:
        """Send to *link* what waits for *shard*, which its peer leads from now on. Raise LinkError. Does not switch."""
        if shard >= self.ids.shards:
            raise LinkError(f"the peer says that it leads shard {shard}")
        link.shard = shard
        log.info("process %s leads shard %d", link.peer, link.shard)
        if link.shard == self.own:
            self.on_rival(link.peer)
        self._membership.refresh()
        self._attach_waiting(link.shard)

    def note_resigned(self, link: Link) -> None:
        """Close *link*, whose peer no longer leads its shard, and keep what it has not served. Does not switch."""
        log.info("%s gets another owner; commands for it wait", link.label)
        self.drop(link, is_unserved=True)

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
        """End *client*, whose link is lost."""
        if self._membership.has_ended(client.remote.front):
            client.close(self.clock())
        elif client.resume_some(self.clock()):
            self._ending.appendleft(partial(self._end, client))
        else:
            client.suspend(self.clock())

    def _end_later(self, ends: Sequence[Callable[[], None]]) -> None:
        """Call each of *ends*, which end channels or clients, little by little. Does not switch."""
        was_ending = bool(self._ending)
        self._ending.extend(ends)
        if ends and not was_ending and not self._is_stopping:
            gevent.spawn(self._end_channels)

    def _end_channels(self) -> None:
        """End the channels of lost links, and suspended clients. Switches."""
        while self._ending:
            for _ in range(min(BATCH, len(self._ending))):
                self._ending.popleft()()
            yield_to_loop()

    def _end_outages(self) -> None:
        """Close the connections whose commands have waited too long for a shard. Switches."""
        while True:
            gevent.sleep(CHECK_INTERVAL)
            self._note_unreached()
            for shard in list(self._waiting):
                self._check_waiting(shard)

    def _note_unreached(self) -> None:
        """Note the shards whose owners live, and to which there is no link."""
        now = self.clock()
        for shard in range(self.ids.shards):
            if shard == self.own or self.is_linked(shard) or not self._membership.is_led(shard):
                self._unreached.pop(shard, None)
            else:
                self._unreached.setdefault(shard, now)

    def _check_waiting(self, shard: int) -> None:
        """Close the connections whose commands have waited too long for *shard*, little by little. Switches."""
        wires, closed = list(self._waiting.get(shard, ())), 0
        while wires:
            batch = wires[-CHECK_BATCH:]
            del wires[-CHECK_BATCH:]  # else all that were closed would be freed together at the end
            while batch:
                wire = batch.pop()
                if self._has_expired(shard, wire):
                    wire.channel.session.client.hang_up()
                    closed += 1
                    if not closed % BATCH:
                        yield_to_loop()
            yield_to_loop()

    def _has_expired(self, shard: int, wire: LinkWire) -> bool:
        """Whether a command has waited too long for *shard*, to which *wire* has no link; note since when it waits."""
        waiting, now = self._waiting.get(shard, {}), self.clock()
        since = waiting.get(wire)
        if since is None:
            return False
        if wire.is_closed:
            del waiting[wire]
        elif not wire.channel.session.needs(shard):
            waiting[wire] = 0
        elif not since:
            waiting[wire] = now
        else:
            return since < now - self._outage_wait
        return False

    def _ping_forever(self) -> None:
        """Ping the other processes, and drop the links to those that are silent. Switches."""
        while True:
            gevent.sleep(PING_INTERVAL)
            if self._refusals > MAX_REFUSALS:
                log.warning("refused %d more links", self._refusals - MAX_REFUSALS)
            self._refusals = 0
            stats = self._front_stats()
            others = [link for link in self._links.values() if link.peer != self._identity.process]
            for link in others:
                if link.silence < MAX_SILENCE:
                    link.ping(stats)
                else:
                    log.warning("%s has sent nothing for %g s", link.label, MAX_SILENCE * PING_INTERVAL)
                    self.drop(link)
            self._relays.end_silent(MAX_SILENCE)

    # Links

    def _add(self, sock: socket.socket, expected: str | None, relay: str = "", unread: bytes = b"") -> None:
        """Shake hands with the peer of *sock*, and use the connection as the peer, or this process, wants. Switches.

        *expected* is the id of the peer if this process has connected, None if it has accepted. *unread* has arrived
        from the process *relay*, over which this process has connected.
        """
        shard = self.own
        continued = self._links.get(expected) if expected is not None and not relay else None
        request: dict[str, str | bool] = {"relay": relay} if relay else {"continues": True} if continued else {}
        peer = self._shake_hands(sock, expected, request, unread)
        if peer.target:
            self._relay(sock, peer)
        elif peer.continues or continued is not None:
            self._continue(sock, peer, continued)
        else:
            self._serve(sock, peer, relay or peer.relay, shard)

    def _shake_hands(
        self, sock: socket.socket, expected: str | None, request: dict[str, str | bool], unread: bytes = b""
    ) -> Peer:
        """Return the peer of *sock*, if it belongs to the queue; raise LinkError otherwise. Switches.

        *request* and *unread* are as of link_handshake.shake_hands.
        """
        try:
            peer = shake_hands(sock, self._identity, self.own, expected is not None, request, unread)
        except SameShard as error:
            self.on_rival(error.process)
            raise
        if expected not in (None, peer.process):
            raise LinkError(f"its address belongs to process {peer.process}")
        if self._is_stopping:
            raise LinkError("this process is stopping")
        if self._membership.has_ended(peer.process):
            raise LinkError(f"process {peer.process} is not among those of the queue")
        return peer

    def _relay(self, sock: socket.socket, peer: Peer) -> None:
        """Relay from *sock*, the connection of *peer*, to the process that it wants to reach. Switches."""
        link = self._links.get(peer.target)
        address = self._membership.addresses().get(peer.target)
        if link is None or not link.can_relay or address is None or peer.target == self._identity.process:
            raise RelayError(peer.target, "there is no direct link to it")
        self._relays.check(peer.process, peer.target)
        try:
            target = transport.connect(address, self._certificates)
        except OSError as error:
            raise RelayError(peer.target, reason_of(error)) from error
        try:
            self._relays.start(self.poller, (peer.process, sock), (peer.target, target), peer.unread)
        except BaseException:
            target.close()
            raise
        self._not_relayed.discard(peer.target)

    def _continue(self, sock: socket.socket, peer: Peer, continued: Link | None) -> None:
        """Continue the relayed link to *peer*, which is *continued* if this side has connected, on *sock*."""
        link = self._links.get(peer.process)
        if link is None or not link.relay or (continued is not None and continued is not link):
            raise LinkError("the relayed link has ended, which this connection was to continue")
        link.change_over(peer.nonce, sock, peer.unread, is_first=continued is not None)

    def _serve(self, sock: socket.socket, peer: Peer, relay: str, shard: int) -> None:
        """Serve the link to *peer*, which replaces an earlier one; *shard* is as of the handshake. Does not switch."""
        before = self._links.get(peer.process)
        if before is not None:
            self.drop(before)
        link = Link(self, peer.process, peer.shard, sock, peer.version, relay)
        link.start()
        self._links[peer.process] = link
        self._not_relayed.discard(peer.process)
        if relay:
            log.warning("linked to %s over process %s, which relays: there is no direct connection", link.label, relay)
        else:
            log.info("linked to %s", link.label)
        if self.own != shard:
            link.announce(self.own)
        if peer.unread:
            link.serve(peer.unread, self.clock(), 1)
        self._attach_waiting(link.shard)

    def _attach_waiting(self, shard: int) -> None:
        """Attach the wires that wait for *shard*, if it can be reached now, then report this. Does not switch."""
        link = self._link_to(shard)
        if link is not None and shard not in self._attaching and (shard in self._waiting or not link.is_reported):
            self._attaching.add(shard)
            gevent.spawn(self._attach, shard)

    def _attach(self, shard: int) -> None:
        """Attach the wires that wait for *shard*, as long as it can be reached, then report this. Switches."""
        try:
            while (link := self._link_to(shard)) is not None:
                wires = self._waiting.get(shard, {})
                for wire in list(islice(wires, BATCH)):
                    del wires[wire]
                    if not wire.is_closed:
                        wire.attach(link)
                if not (wires or self._ending):  # `_ending` may have wires of an earlier link, which will wait too
                    if not link.is_reported:
                        link.report()
                    break
                yield_to_loop()
        finally:
            self._attaching.discard(shard)
        if not self._waiting.get(shard):
            self._waiting.pop(shard, None)

    def _follow_membership(self) -> None:
        """Connect to new processes, and drop the links to those that have ended or lost their shard. Switches."""
        while True:
            self._changed.clear()
            own, addresses = self._identity.process, self._membership.addresses()
            for process in [process for process in self._connectors if process not in addresses]:
                for service in self._connectors.pop(process):
                    service.stop()
            for process, address in addresses.items():
                if connects(own, process) and process not in self._connectors:
                    ways = [self._connect_forever]
                    if transport.is_remote(address):
                        ways.append(self._ask_for_relays)
                    self._connectors[process] = tuple([Service("links", partial(way, process)) for way in ways])
                    for service in self._connectors[process]:
                        service.start()
            self._drop_former(set(addresses))
            for front in self.broker.suspended:
                if self._membership.has_ended(front):
                    self._end_later([partial(self._end_suspended, front)])
            for shard in range(self.ids.shards):
                self._attach_waiting(shard)
            self._changed.wait()

    def _drop_former(self, members: set[str]) -> None:
        """Drop the links to processes that are no longer in *members*, or no longer lead the shard that they led."""
        former, self._members = self._members - members, members
        self._not_relayed &= members
        for shard in range(self.ids.shards):
            before, owner = self._owners.get(shard), self._membership.owner_of(shard)
            if owner is not None:
                self._owners[shard] = owner
                if before is not None and before != owner:
                    former.add(before)
        former.discard(self._identity.process)
        for process in former & self._links.keys():
            self.drop(self._links[process])

    def _connect_forever(self, process: str) -> None:
        """Keep a link to *process*, and connect directly while it is relayed. Switches."""
        interval = CONNECT_INTERVAL
        while True:
            try:
                self._connect(process)
                interval = CONNECT_INTERVAL
            except (OSError, LinkError) as error:
                if interval == CONNECT_INTERVAL:
                    log.warning("cannot link to process %s: %s; trying again", process, reason_of(error))
                interval = min(2 * interval, MAX_CONNECT_INTERVAL)
            link = self._links.get(process)
            if link is not None and not link.relay:
                link.lost.wait()
            gevent.sleep(interval)

    def _ask_for_relays(self, process: str) -> None:
        """Have the link to *process* relayed while there is no direct connection. Switches."""
        interval = RELAY_DELAY
        while True:
            gevent.sleep(interval)
            link, relay = self._links.get(process), self._next_relay()
            if link is not None:
                link.lost.wait()
                interval = RELAY_DELAY
            elif relay is not None:
                try:
                    self._connect_over(relay, process)
                except (OSError, LinkError) as error:
                    if interval == RELAY_DELAY:
                        log.info("process %s does not relay to process %s: %s", relay, process, reason_of(error))
                    interval = min(2 * interval, MAX_CONNECT_INTERVAL)

    def _next_relay(self) -> str | None:
        """Return the process to ask next for a relay, in turn; None if there is none."""
        able = sorted([peer for peer, link in self._links.items() if link.can_relay and peer != self._identity.process])
        if not able:
            return None
        self._last_asked = next((peer for peer in able if peer > self._last_asked), able[0])
        return self._last_asked

    def _connect_over(self, relay: str, process: str) -> None:
        """Link to *process* over the process *relay*. Switches."""
        address = self._membership.addresses().get(relay)
        if address is None:
            return
        with _handshake_timeout():
            sock = transport.connect(address, self._certificates)
            try:
                unread = self._shake_hands(sock, relay, {"target": process}).unread
                if process in self._links:
                    raise LinkError("there is a link meanwhile")  # noqa: TRY301
                if process in self._attempts:  # it began without a relayed link, which it would replace
                    with suppress(OSError):  # the peer is gone
                        self._attempts[process].shutdown(socket.SHUT_RDWR)
                self._attempt(sock, process, relay, unread)
            except BaseException:
                sock.close()
                raise

    def _connect(self, process: str) -> None:
        address = self._membership.addresses().get(process)
        if address is None:
            return
        with _handshake_timeout():
            sock = transport.connect(address, self._certificates)
            try:
                if process in self._attempts:
                    raise LinkError("a handshake over a relay is in progress")  # noqa: TRY301
                self._attempt(sock, process)
            except BaseException:
                sock.close()
                raise

    def _attempt(self, sock: socket.socket, process: str, relay: str = "", unread: bytes = b"") -> None:
        """Call `_add` about *sock*, which is connected to *process*. Switches."""
        self._attempts[process] = sock
        try:
            self._add(sock, process, relay, unread)
        finally:
            if self._attempts.get(process) is sock:
                del self._attempts[process]

    def _accept_forever(self, listening: socket.socket) -> None:
        """Accept links. Switches."""
        with gsocket.socket(fileno=os.dup(listening.fileno())) as listener:
            while True:
                try:
                    accepted, address = listener.accept()
                except OSError as error:  # such as too many open files
                    self._note_refusal(None, error)
                    gevent.sleep(CONNECT_INTERVAL)
                    continue
                sock = transport.plain(accepted)
                host = transport.host_of(address)
                if self._handshakes.enter(host) is None:
                    gevent.spawn(self._accept, sock, address)
                else:
                    sock.close()
                    self._note_refusal(address, LinkError("too many connections of that address shake hands"))
                yield_to_loop()  # accept does not switch while connections wait

    def _accept(self, sock: socket.socket, address: object) -> None:
        """Accept the link *sock* from *address*, or log why not. Switches."""
        try:
            with _handshake_timeout():
                sock = transport.secure(sock, self._certificates, is_client=False)
                self._add(sock, None)
        except RelayError as error:
            sock.close()
            if error.target not in self._not_relayed:
                self._not_relayed.add(error.target)
                log.info("%s", error)
        except (OSError, LinkError) as error:
            sock.close()
            self._note_refusal(address, error)
        finally:
            self._handshakes.leave(transport.host_of(address))

    def _note_refusal(self, address: object, error: Exception) -> None:
        """Log why a link from *address* was refused, unless others were refused just before."""
        self._refusals += 1
        if self._refusals <= MAX_REFUSALS and not self._is_stopping:
            log.warning("refused a link%s: %s", transport.origin(address), reason_of(error))


def _no_usage() -> tuple[float, float]:
    """Return no CPU time. Stand in for `ServerFacts.rusage`."""
    return 0.0, 0.0


def _ignore_rival(process: str) -> None:
    """Stand in for `Links.on_rival`."""


def _handshake_timeout() -> Timeout:
    """Return a context that raises LinkError when a handshake takes too long."""
    return Timeout(HANDSHAKE_TIMEOUT, LinkError(f"the handshake takes more than {HANDSHAKE_TIMEOUT:g} s"))
