"""A process of a queue with a link socket, and peers that speak the link protocol by hand."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.limits import Limits
from greenstalk_server.net.acceptor import DescriptorBudget
from greenstalk_server.net.link_handshake import Identity
from greenstalk_server.net.links import OUTAGE_WAIT, Links
from greenstalk_server.net.listeners import Listener
from greenstalk_server.net.server import Server
from greenstalk_server.net.tls import Certificates
from greenstalk_server.protocol import link_frames as frames
from greenstalk_server.runtime.clock import steady_clock
from tests.net.in_process import is_readable, listen, wait_until
from tests.support.world import make_broker

SECRET: Final = b"secret"
QUEUE: Final = "a1b2"
IDS: Final = IdSequence(0, 3, 0)
PROCESS: Final = "m0"


class FixedMembership:
    """A membership that the test changes by hand."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.owners: dict[int, str] = {0: PROCESS}
        self.processes: dict[str, str] = {}
        self.ended: set[str] = set()

    def refresh(self) -> None:
        pass

    def owner_of(self, shard: int) -> str | None:
        return self.owners.get(shard)

    def is_led(self, shard: int) -> bool:
        return shard in self.owners

    def addresses(self) -> dict[str, str]:
        return self.processes

    def has_ended(self, process: str) -> bool:
        return process in self.ended


class Process:
    """The process *name*, which leads *shard*. It serves links at *address*, and clients at *port*."""

    def __init__(
        self,
        path: str | None,
        shard: int = 0,
        name: str = PROCESS,
        certificates: Certificates | None = None,
        host: str = "127.0.0.1",
        outage_wait: int = OUTAGE_WAIT,
    ) -> None:
        """*path* is that of a Unix socket for links; without one, links use a port of *host*."""
        self.peers: list[Peer] = []
        self.broker: Broker = make_broker(ids=IdSequence(IDS.base, IDS.shards, max(shard, 0)))
        self.membership = FixedMembership()
        if path is not None:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(path)
            self.listener.listen()
            self.address = f"unix:{path}"
        else:
            self.listener = socket.create_server((host, 0), backlog=1024)
            self.address = f"{host}:{self.listener.getsockname()[1]}"
        self.clients: Listener = listen()
        self.port: int = self.clients.sock.getsockname()[1]
        clock = steady_clock()
        identity = Identity(QUEUE, SECRET, name, IDS)
        self.links = Links(
            identity, self.membership, [self.listener], self.broker, clock, None, (), shard, certificates, outage_wait
        )
        files = DescriptorBudget(1000, self.broker.limit_counters)
        self.server = Server(self.broker, [self.clients], clock, files=files, limits=Limits(), links=self.links)
        self.server.start()

    def stop(self) -> None:
        for peer in self.peers:
            peer.sock.close()
        self.server.stop()
        self.listener.close()
        self.clients.sock.close()

    def peer(self, sock: socket.socket | None = None, secret: bytes = SECRET, **changes: object) -> Peer:
        """Return a peer at the other end of *sock*, by default of a new connection to the link socket."""
        if sock is None:
            sock = socket.socket(self.listener.family)
            sock.connect(self.listener.getsockname())
        self.peers.append(Peer(sock, secret, **changes))
        return self.peers[-1]

    def linked(self, name: str = "a1", shard: int = 1) -> Peer:
        """Link to this process as the process *name*, whose id is smaller."""
        peer = self.peer(process=name, shard=shard)
        peer.link()
        wait_until(lambda: name in self.links._links)
        return peer

    def accepted(self, listener: socket.socket, name: str = "z1") -> Peer:
        """Accept a link of this process as the process *name*, whose id is larger."""
        wait_until(lambda: is_readable(listener))
        peer = self.peer(listener.accept()[0], process=name)
        peer.link()
        return peer


@contextmanager
def linked_pair(directory: Path) -> Iterator[list[Process]]:
    """Run the processes b0 and b1 of shards 0 and 1 of three, which are linked."""
    both = [Process(str(directory / f"{shard}"), shard, f"b{shard}") for shard in (0, 1)]
    for process in both:
        process.membership.owners = {0: "b0", 1: "b1"}
        process.membership.processes = {"b0": both[0].address, "b1": both[1].address}
        process.membership.on_change()
    wait_until(lambda: both[0].links.is_linked(1) and both[1].links.is_linked(0))
    yield both
    for process in both:
        process.stop()


class Peer:
    """The process of another shard, by hand."""

    def __init__(self, sock: socket.socket, secret: bytes = SECRET, **changes: object) -> None:
        """*sock* is connected to the process under test. *changes* are made to the HELLO."""
        self.sock = sock
        self.secret = secret
        self.hello: dict[str, Any] = {
            "version": frames.VERSION,
            "oldest": frames.OLDEST_VERSION,
            "queue": QUEUE,
            "shards": 3,
            "base": 0,
            "process": "a1",
            "shard": 1,
            "nonce": "00",
        } | changes
        self.reader = frames.FrameReader()
        self.frames: list[tuple[int, int, bytes]] = []

    def send(self, kind: int, channel: int, payload: bytes) -> None:
        self.sock.sendall(frames.frame(kind, channel, payload))

    def read(self) -> tuple[int, int, bytes]:
        """Return the next frame."""
        while not self.frames:
            wait_until(lambda: is_readable(self.sock))
            data = self.sock.recv(65536)
            assert data
            self.frames += self.reader.feed(data)
        return self.frames.pop(0)

    def say_hello(self) -> None:
        self.send(frames.HELLO, 0, json.dumps(self.hello).encode())

    def shake_hands(self) -> None:
        self.say_hello()
        self.authenticate()

    def authenticate(self, rest: bytes = b"") -> None:
        """Receive HELLO, and send AUTH, with *rest* behind it."""
        kind, _, payload = self.read()
        assert kind == frames.HELLO
        message = json.dumps([self.hello, json.loads(payload)["nonce"]], sort_keys=True).encode()
        proof = hmac.digest(self.secret, message, hashlib.sha256)
        self.sock.sendall(frames.frame(frames.AUTH, 0, proof) + rest)

    def link(self) -> None:
        """Complete the handshake."""
        self.shake_hands()
        assert self.read()[0] == frames.AUTH

    def open(self, channel: int, session: int = 0, reserved: int = 0) -> None:
        """Open *channel*; the number of its *session* is by default that of the channel."""
        facts: dict[str, Any] = {"number": 1, "address": "here", "name": "", "listener": "here", "names": []}
        facts |= {"session": session or channel, "reserved": reserved}
        self.send(frames.OPEN, channel, json.dumps(facts).encode())
