"""Processes that do not reach each other: a third one relays their link. Real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import gevent
import pytest
from gevent import socket as gsocket

from greenstalk_server.net import link_relay, links
from greenstalk_server.net.link import FRAME_BATCH, RECEIVE_SIZE
from greenstalk_server.net.link_relay import Relay
from greenstalk_server.net.tls import Certificates
from greenstalk_server.protocol import link_frames as frames
from greenstalk_server.protocol.front_channel import NO_SHARD
from tests.net.in_process import is_readable, read_to_end, wait_until
from tests.net.link_peer import Peer, Process
from tests.net.test_link_tls import files, read
from tests.net.test_links import refusals
from tests.support.daemon import TIMEOUT
from tests.support.shards import tube_on

__all__ = ["files"]

DELAY: Final = 0.02
"""Seconds without a link before a process asks for a relay."""

OWNERS: Final = {0: "a1", 1: "z1", 2: "m1"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "RELAY_DELAY", DELAY)


class Three:
    """The processes a1 and z1, which do not reach each other, and m1, which reaches both; and n1, if *spare* is given.

    all     the processes that run.
    """

    def __init__(
        self, certificates: Certificates | None = None, spare: int | None = None, is_silent: bool = False
    ) -> None:
        """*is_silent*: connections of a1 to z1 are not refused; nothing answers."""
        self.first = Process(None, 0, "a1", certificates)
        self.last = Process(None, 1, "z1", certificates)
        self.middle = Process(None, 2, "m1", certificates)
        self.all = [self.first, self.last, self.middle]
        if spare is not None:
            self.all.append(Process(None, spare, "n1", certificates))
        addresses = {process.links._identity.process: process.address for process in self.all}
        for process in self.all:
            process.membership.owners = OWNERS
            process.membership.processes = dict(addresses)
        self.closed = socket.socket()
        self.closed.bind(("127.0.0.1", 0))  # refuses connections while it does not listen
        if is_silent:
            self.closed.listen()
        self.first.membership.processes["z1"] = f"127.0.0.1:{self.closed.getsockname()[1]}"
        for process in self.all:
            process.membership.on_change()

    def mend(self) -> None:
        """Let a1 reach z1."""
        self.first.membership.processes["z1"] = self.last.address

    def are_relayed(self) -> list[bool]:
        """Return whether the link of a1 and z1 is relayed, as each of them knows; empty if there is none."""
        if not (self.first.links.is_linked(1) and self.last.links.is_linked(0)):
            return []
        return [self.first.links.is_relayed(1), self.last.links.is_relayed(0)]

    def stop(self) -> None:
        for process in self.all:
            process.stop()
        self.closed.close()


@pytest.fixture(params=["plain", "tls"])
def three(request: pytest.FixtureRequest, files: Path) -> Iterator[Three]:
    three = Three(read(files) if request.param == "tls" else None)
    yield three
    three.stop()


class Client:
    """A connection to *process*, whose commands are about a tube of *shard*."""

    def __init__(self, process: Process, shard: int, number: int = 0) -> None:
        self.sock = gsocket.create_connection(("127.0.0.1", process.port), TIMEOUT)
        self.reader = self.sock.makefile("rb")
        self.tube = tube_on(shard, number)
        self.rounds = 0
        assert self.ask(b"use %b\r\nwatch %b\r\nignore default\r\n" % (self.tube, self.tube)).startswith(b"USING")
        assert [self.reader.readline()[:8] for _ in range(2)] == [b"WATCHING"] * 2

    def ask(self, request: bytes) -> bytes:
        self.sock.sendall(request)
        return self.reader.readline()

    def work(self, body: bytes) -> None:
        """Put a job, reserve it, and delete it, until the client is closed."""
        while not self.sock.closed:
            line = self.ask(b"put 0 0 60 %d\r\n%b\r\n" % (len(body), body))
            assert line.startswith(b"INSERTED"), line
            id = line.split()[1]
            assert self.ask(b"reserve\r\n") == b"RESERVED %b %d\r\n" % (id, len(body))
            assert self.reader.read(len(body) + 2) == body + b"\r\n"
            assert self.ask(b"delete %b\r\n" % id) == b"DELETED\r\n"
            self.rounds += 1

    def close(self) -> None:
        self.reader.close()
        self.sock.close()


def test_link_is_relayed_until_it_continues_directly_and_no_client_notices_that(
    three: Three, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    wait_until(lambda: three.are_relayed() == [True, True])
    sides = ((three.first, 1), (three.last, 0))
    workers = [Client(process, shard, number) for process, shard in sides for number in range(4)]
    running = [gevent.spawn(worker.work, bytes(10 ** (1 + number % 4 * 1))) for number, worker in enumerate(workers)]
    waiters = [Client(process, shard, 5) for process, shard in sides]
    for waiter in waiters:
        waiter.sock.sendall(b"reserve\r\n")
    wait_until(lambda: all(worker.rounds > 5 for worker in workers))
    sessions = [set(process.links._served) for process in three.all]
    three.mend()
    wait_until(lambda: three.are_relayed() == [False, False])
    rounds = [worker.rounds for worker in workers]
    wait_until(lambda: all(worker.rounds > before + 5 for worker, before in zip(workers, rounds, strict=True)))
    assert [set(process.links._served) for process in three.all] == sessions
    for waiter, (_, shard) in zip(waiters, sides, strict=True):
        with gsocket.create_connection(("127.0.0.1", three.middle.port), TIMEOUT) as other:
            other.sendall(b"put-in-tube %b 0 0 60 1\r\nx\r\n" % tube_on(shard, 5))
            assert waiter.reader.readline().startswith(b"RESERVED ")
    wait_until(lambda: not three.middle.links._relays._relays)
    assert not [greenlet for greenlet in running if greenlet.ready()]
    gevent.killall(running)
    for client in (*workers, *waiters):
        client.close()
    lines = [record.getMessage() for record in caplog.records]
    assert lines.count("linked to shard 1 over process m1, which relays: there is no direct connection") == 1
    assert lines.count("linked to shard 0 over process m1, which relays: there is no direct connection") == 1
    assert lines.count("relaying between processes a1 and z1, which have no direct connection") == 1
    assert {"the link to shard 0 is direct again", "the link to shard 1 is direct again"} < set(lines)
    assert any(line.startswith("the relay between processes a1 and z1 has ended: ") for line in lines)
    assert not any("is lost" in line for line in lines)


def test_link_whose_relay_ends_is_relayed_by_another_process() -> None:
    three = Three(spare=NO_SHARD)
    try:
        wait_until(lambda: three.are_relayed() == [True, True])
        relays = dict(zip(("m1", "n1"), three.all[2:], strict=True))
        ends = [three.first.links._links["z1"], three.last.links._links["a1"]]
        three.all.remove(former := relays.pop(ends[0].relay))
        former.stop()
        wait_until(lambda: all(end.is_lost for end in ends))
        [other] = relays
        wait_until(lambda: three.are_relayed() == [True, True])
        assert three.first.links._links["z1"].relay == other
    finally:
        three.stop()


def test_direct_handshake_that_began_before_the_relay_does_not_replace_the_relayed_link() -> None:
    three = Three(is_silent=True)
    try:
        wait_until(lambda: three.are_relayed() == [True, True])
        link = three.first.links._links["z1"]
        wait_until(lambda: is_readable(three.closed))
        with three.closed.accept()[0] as attempt, socket.create_connection(three.last.listener.getsockname()) as late:
            ways = {attempt: late, late: attempt}
            data = b"-"
            while data and not link.is_lost:
                wait_until(lambda: link.is_lost or any(map(is_readable, ways)))
                for one in filter(is_readable, ways):
                    if data := one.recv(65536):
                        ways[one].sendall(data)
                    else:
                        break
        assert three.are_relayed() == [True, True]
        three.mend()
        wait_until(lambda: three.are_relayed() == [False, False])
        assert three.first.links._links["z1"] is link
    finally:
        three.stop()


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process(None)
    yield process
    process.stop()


class Ends:
    """A relay of *process* between the peers a1 and z1: their connections to it."""

    def __init__(self, process: Process, target: str = "z1", version: int = frames.VERSION, relay: str = "") -> None:
        """z1 has linked to the process with that *version* and over that *relay*."""
        self.process = process
        self.listener = process.peer(socket.create_server(("127.0.0.1", 0))).sock
        process.membership.processes["z1"] = f"127.0.0.1:{self.listener.getsockname()[1]}"
        process.membership.on_change()
        changes: dict[str, Any] = {"process": "z1", "version": version} | ({"relay": relay} if relay else {})
        wait_until(lambda: is_readable(self.listener))
        self.link = process.peer(self.listener.accept()[0], **changes)
        self.link.link()
        wait_until(lambda: "z1" in process.links._links)
        self.one = process.peer(process="a1", target=target)
        self.one.link()

    def accept(self) -> socket.socket:
        """Return the connection of the relay to z1."""
        wait_until(lambda: is_readable(self.listener))
        return self.process.peer(self.listener.accept()[0]).sock

    @property
    def relay(self) -> Relay:
        [relay] = self.process.links._relays._relays.values()
        return relay


def test_relay_passes_on_bytes_that_came_with_the_handshake(process: Process) -> None:
    ends = Ends(process)
    ends.one.sock.sendall(b"early")
    other = ends.accept()
    wait_until(lambda: is_readable(other))
    assert other.recv(100) == b"early"
    other.sendall(b"back")
    other.close()
    assert read_to_end(ends.one.sock) == b"back"
    wait_until(lambda: not process.links._relays._relays)


@pytest.mark.parametrize(
    "changes",
    [{"target": "q1"}, {"target": "m0"}, {"relay": "q1"}, {"version": frames.RELAY_VERSION - 1}],
    ids=["unknown target", "target itself", "second hop", "older target"],
)
def test_process_relays_only_to_a_process_to_which_it_has_a_direct_link(
    process: Process, caplog: pytest.LogCaptureFixture, changes: dict[str, str]
) -> None:
    caplog.set_level("INFO")
    ends = Ends(process, **changes)  # type: ignore[arg-type]
    assert read_to_end(ends.one.sock) == b""
    target = changes.get("target", "z1")
    again = process.peer(process="b1", target=target)
    again.link()
    assert read_to_end(again.sock) == b""
    line = f"cannot relay to process {target}: there is no direct link to it"
    assert [record.getMessage() for record in caplog.records].count(line) == 1
    assert not process.links._relays._relays


def test_refused_relay_is_logged_once_for_each_outage(process: Process, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # refuses connections, since it does not listen
        process.membership.processes["a1"] = f"127.0.0.1:{closed.getsockname()[1]}"
        for outage in (1, 2):
            process.linked("a1")
            for _ in range(2):
                refused = process.peer(process="b1", target="a1")
                refused.link()
                assert read_to_end(refused.sock) == b""
            lines = [record.getMessage() for record in caplog.records]
            assert lines.count("cannot relay to process a1: Connection refused") == outage


def test_number_of_relays_is_bounded(
    process: Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(link_relay, "MAX_RELAYS", 1)
    ends = Ends(process)
    other = ends.accept()
    refused = process.peer(process="b1", target="z1")
    refused.link()
    assert read_to_end(refused.sock) == b""
    assert caplog.records[-1].getMessage() == "cannot relay to process z1: there are 1 relays"
    again = process.peer(process="a1", target="z1")
    again.link()
    assert read_to_end(other) == b""
    assert read_to_end(ends.one.sock) == b""
    again.sock.sendall(b"x")
    ends.accept()
    wait_until(lambda: is_readable(ends.process.peers[-1].sock))
    assert ends.process.peers[-1].sock.recv(10) == b"x"


@pytest.mark.parametrize("is_forward", [True, False])
def test_relay_buffers_little_for_a_process_that_does_not_read(process: Process, is_forward: bool) -> None:
    ends = Ends(process)
    other = ends.accept()
    wait_until(lambda: bool(process.links._relays._relays))
    writer, reader = (ends.one.sock, other) if is_forward else (other, ends.one.sock)
    writer.setblocking(False)
    sent, piece = bytearray(), bytes(range(256)) * 1024
    waits = 0
    while waits < 20:
        try:
            sent += piece[: writer.send(piece)]
            waits = 0
        except BlockingIOError:
            waits += 1
        gevent.sleep(0.005)
        assert all(len(end._unsent) <= RECEIVE_SIZE for end in ends.relay._ends)
    assert any(end.is_sending for end in ends.relay._ends)
    back = b"the other direction"
    reader.sendall(back)
    wait_until(lambda: is_readable(writer))
    assert writer.recv(100) == back
    writer.close()
    assert read_to_end(reader) == sent
    wait_until(lambda: not process.links._relays._relays)


def test_relay_ends_when_a_side_is_silent(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PING_INTERVAL", 0.05)
    ends = Ends(process)
    other = ends.accept()
    wait_until(lambda: bool(process.links._relays._relays))
    for _ in range(3 * links.MAX_SILENCE):
        ends.link.send(frames.PING, 0, b"")
        ends.one.sock.sendall(b"x")
        other.sendall(b"x")
        gevent.sleep(0.05)
    assert process.links._relays._relays
    with gevent.Timeout(TIMEOUT):
        while process.links._relays._relays:
            ends.one.sock.sendall(b"x")
            gevent.sleep(0.05)


def test_process_asks_no_peer_of_an_earlier_version_to_relay(process: Process) -> None:
    older = process.peer(process="a1", version=frames.RELAY_VERSION - 1)
    older.link()
    wait_until(lambda: "a1" in process.links._links)
    assert process.links._next_relay() is None
    for name in ("b1", "c1"):
        process.linked(name, 2)
    assert [process.links._next_relay() for _ in range(3)] == ["b1", "c1", "b1"]


# The change to a direct connection, by hand


class Relayed:
    """A link of *process* to the peer a1, over a relay."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.peer = process.peer(process="a1", relay="q1")
        self.peer.link()
        wait_until(lambda: "a1" in process.links._links)
        self.link = process.links._links["a1"]
        assert self.link.relay == "q1"

    @property
    def offered(self) -> bytes:
        """The nonce of the connection on which the link can continue."""
        offer = self.link._offer
        return offer.nonce if offer is not None else b""

    def continue_on(self, nonce: str) -> Peer:
        """Return the peer on another connection, which has sent HELLO."""
        peer = self.process.peer(process="a1", nonce=nonce, continues=True)
        peer.say_hello()
        return peer


def read_channel(peer: Peer) -> tuple[int, int, bytes]:
    """Return the next frame that is neither a PING nor a WINDOW_GRANT."""
    while (found := peer.read())[0] in (frames.PING, frames.WINDOW_GRANT):
        pass
    return found


@pytest.mark.parametrize("is_early", [True, False])
def test_link_continues_when_it_has_switch_and_the_handshake(process: Process, is_early: bool) -> None:
    """SWITCH may arrive before the handshake of the other connection is complete, or after it."""
    relayed = Relayed(process)
    relayed.peer.open(1)
    direct = relayed.continue_on("05")
    if is_early:
        relayed.peer.send(frames.SWITCH, 0, b"05")
        wait_until(lambda: relayed.link._awaited == b"05")
    direct.authenticate()
    assert direct.read()[0] == frames.AUTH
    direct.send(frames.DATA, 1, b"list-tube-used\r\n")
    if not is_early:
        relayed.peer.send(frames.DATA, 1, b"use mail\r\n")
        assert read_channel(relayed.peer) == (frames.END, 1, b"USING mail\r\n")
        relayed.peer.send(frames.SWITCH, 0, b"05")
    assert read_channel(relayed.peer) == (frames.SWITCH, 0, b"05")
    assert read_to_end(relayed.peer.sock) == b""
    assert read_channel(direct) == (frames.END, 1, b"USING %b\r\n" % (b"" if is_early else b"mail"))
    assert process.links._links["a1"] is relayed.link
    assert not relayed.link.relay


@pytest.mark.parametrize("pings", [0, FRAME_BATCH - 1])
def test_frames_that_came_with_the_handshake_follow_those_before_switch(process: Process, pings: int) -> None:
    """The link handles a batch of frames, of which SWITCH can be the last one."""
    relayed = Relayed(process)
    relayed.peer.open(1)
    direct = relayed.continue_on("05")
    ping, data = frames.frame(frames.PING, 0), frames.frame(frames.DATA, 1, b"list-tube-used\r\n")
    direct.authenticate(ping * FRAME_BATCH + data * 3)
    wait_until(lambda: relayed.offered == b"05" and bool(relayed.link._clients))
    relayed.peer.sock.sendall(ping * pings + frames.frame(frames.SWITCH, 0, b"05"))
    assert direct.read()[0] == frames.AUTH
    replies = b""
    while replies != b"USING \r\n" * 3:
        replies += read_channel(direct)[2]


def test_replies_that_wait_for_the_relay_are_sent_before_switch(process: Process) -> None:
    relayed = Relayed(process)
    relayed.peer.open(1)
    for sock, option in ((relayed.peer.sock, socket.SO_RCVBUF), (relayed.link._sock, socket.SO_SNDBUF)):
        sock.setsockopt(socket.SOL_SOCKET, option, 65536)
    body = bytes(60_000)
    put = b"put 0 0 60 %d\r\n%b\r\n" % (len(body), body)
    expected = b"USING mail\r\n"
    relayed.peer.send(frames.PART, 1, b"use mail\r\n")
    for number in range(1, 61):
        relayed.peer.send(frames.PART, 1, put)
        expected += b"INSERTED %d\r\n" % (3 * number)
    relayed.peer.send(frames.DATA, 1, b"".join([b"peek %d\r\n" % (3 * number) for number in range(1, 61)]))
    expected += b"".join([b"FOUND %d %d\r\n%b\r\n" % (3 * number, len(body), body) for number in range(1, 61)])
    wait_until(lambda: bool(relayed.link._unsent))
    direct = relayed.continue_on("05")
    direct.authenticate()
    assert direct.read()[0] == frames.AUTH
    relayed.peer.send(frames.SWITCH, 0, b"05")
    wait_until(lambda: not relayed.link.relay)
    direct.send(frames.DATA, 1, b"list-tube-used\r\n")
    replies = bytearray()
    for peer in (relayed.peer, direct):
        while (found := read_channel(peer))[0] in (frames.REPLY, frames.END):
            replies += found[2]
            if len(replies) == len(expected) + len(b"USING mail\r\n"):
                break
    assert replies == expected + b"USING mail\r\n"


@pytest.mark.parametrize("relay", ["", "q1"])
def test_connection_cannot_continue_a_link_that_is_not_relayed(
    process: Process, caplog: pytest.LogCaptureFixture, relay: str
) -> None:
    peer = process.peer(process="a1")
    peer.link()
    wait_until(lambda: "a1" in process.links._links)
    other = process.peer(process="b1" if relay else "a1", continues=True)
    other.link()
    assert read_to_end(other.sock) == b""
    assert "the relayed link has ended, which this connection was to continue" in refusals(caplog)[0]
    assert "a1" in process.links._links


def test_unexpected_switch_closes_the_link(process: Process, caplog: pytest.LogCaptureFixture) -> None:
    process.linked().send(frames.SWITCH, 0, b"05")
    wait_until(lambda: not process.links._links)
    assert refusals(caplog)[0] == "link to shard 1: unexpected SWITCH; the link is closed"


def test_connections_that_are_not_used_are_closed_with_the_link(process: Process) -> None:
    relayed = Relayed(process)
    offered = []
    for nonce in ("05", "06"):
        offered.append(relayed.continue_on(nonce))
        offered[-1].authenticate()
        wait_until(lambda nonce=nonce: relayed.offered == nonce.encode())  # type: ignore[misc]
    assert offered[0].read()[0] == frames.AUTH
    assert read_to_end(offered[0].sock) == b""
    relayed.peer.sock.close()
    assert offered[1].read()[0] == frames.AUTH
    assert read_to_end(offered[1].sock) == b""
