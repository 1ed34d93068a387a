"""Which process connects to which, and where commands go when the owner of a shard changes. Real sockets."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.protocol import front_channel
from greenstalk_server.protocol import link_frames as frames
from greenstalk_server.protocol.front_channel import NO_SHARD
from tests.net.in_process import is_readable, read_to_end, wait_until
from tests.net.link_peer import IDS, PROCESS, Peer, Process
from tests.support.daemon import TIMEOUT
from tests.support.shards import tube_on
from tests.support.world import make_broker

TUBE = tube_on(1)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(str(tmp_path / "0"))
    yield process
    process.stop()


@pytest.fixture
def client(process: Process) -> Iterator[socket.socket]:
    """A client of the process."""
    with socket.create_connection(("127.0.0.1", process.port), TIMEOUT) as client:
        yield client


@pytest.fixture
def other(tmp_path: Path) -> Iterator[socket.socket]:
    """The link socket of the process z1."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "1"))
        listener.listen()
        yield listener


def change(process: Process, owners: dict[int, str], processes: dict[str, str] | None = None) -> None:
    process.membership.owners = owners
    if processes is not None:
        process.membership.processes = processes
    process.membership.on_change()


def read_command(peer: Peer, line: bytes) -> int:
    """Read frames until a channel sends *line*; return the channel."""
    while True:
        kind, channel, payload = peer.read()
        if kind == frames.DATA and payload == line + b"\r\n":
            return channel


def reply_to_use(peer: Peer) -> None:
    """Read a use of TUBE, and reply to it."""
    peer.send(frames.END, read_command(peer, b"use " + TUBE), b"USING " + TUBE + b"\r\n")


def receive(client: socket.socket, ending: bytes) -> bytes:
    data = b""
    while not data.endswith(ending):
        wait_until(lambda: is_readable(client))
        data += client.recv(65536)
        assert data
    return data


def test_smaller_id_connects_and_replaces_a_lost_link(process: Process, other: socket.socket) -> None:
    address = f"unix:{other.getsockname()}"
    change(process, {0: PROCESS}, {PROCESS: address, "a1": address, "z1": address})
    peer = process.accepted(other)
    peer.sock.close()
    process.accepted(other)


def test_no_link_to_another_process_at_an_address(
    process: Process, other: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    change(process, {}, {"z1": f"unix:{other.getsockname()}"})
    process.accepted(other, "z2")
    wait_until(lambda: bool(caplog.records))
    message = "cannot link to process z1: its address belongs to process z2; trying again"
    assert caplog.records[0].getMessage() == message


@pytest.mark.parametrize("address", ["a..b:1", "127.0.0.1:99999999999999999999", "127.0.0.1:x", "127.0.0.1", ""])
def test_what_is_no_address_is_logged(process: Process, address: str, caplog: pytest.LogCaptureFixture) -> None:
    change(process, {}, {"z1": address})
    wait_until(lambda: bool(caplog.records))
    assert caplog.records[0].getMessage() == f"cannot link to process z1: {address!r} is no address; trying again"


def test_process_that_is_gone_is_no_longer_called(
    process: Process, other: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"unix:{other.getsockname()}"
    change(process, {}, {"z1": address})
    former = process.accepted(other)
    change(process, {}, {"z2": address})
    read_to_end(former.sock)
    for _ in range(3):  # a link to z1 would be refused
        process.accepted(other, "z2").sock.close()
    assert [record.getMessage() for record in caplog.records if "cannot link" in record.getMessage()] == []


def test_command_waits_until_the_owner_leads_by_both_accounts(process: Process, client: socket.socket) -> None:
    peer = process.linked("a1", NO_SHARD)
    client.sendall(b"use " + TUBE + b"\r\n")
    change(process, {1: "a1"})
    peer.open(7)
    peer.send(frames.LEAD, 1, b"")
    reply_to_use(peer)
    assert receive(client, b"\r\n") == b"USING " + TUBE + b"\r\n"


def test_command_that_waits_is_sent_to_the_new_owner(process: Process, client: socket.socket) -> None:
    former, new = process.linked("a1"), process.linked("b1")
    change(process, {1: "a1"})
    client.sendall(b"use " + TUBE + b"\r\n")
    read_command(former, b"use " + TUBE)
    change(process, {1: "b1"})
    reply_to_use(new)
    assert receive(client, b"\r\n") == b"USING " + TUBE + b"\r\n"


@pytest.mark.pure
def test_owner_that_never_ends_its_replies_loses_the_link(
    process: Process, client: socket.socket, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_channel, "MAX_REPLIES", 100_000)
    peer = process.linked("a1")
    change(process, {1: "a1"})
    client.sendall(b"use " + TUBE + b"\r\n")
    channel = read_command(peer, b"use " + TUBE)
    for _ in range(4):
        peer.send(frames.REPLY, channel, bytes(30_000))
    read_to_end(peer.sock)
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines == [
        "link to shard 1: more than 100000 bytes of replies to one request; the link is closed",
        "the link to shard 1 is lost",
    ]


def test_client_of_a_process_without_a_shard_reserves_from_several() -> None:
    shards = {"b0": NO_SHARD, "b1": 1, "b2": 2}
    processes = [Process(None, shard, name) for name, shard in shards.items()]
    for each in processes:
        change(each, {1: "b1", 2: "b2"}, {name: one.address for name, one in zip(shards, processes, strict=True)})
    try:
        wait_until(lambda: all(processes[0].links.is_linked(shard) for shard in (1, 2)))
        with socket.create_connection(("127.0.0.1", processes[0].port), TIMEOUT) as client:
            tubes = TUBE, tube_on(2)
            client.sendall(b"".join([b"put-in-tube %b 0 0 60 1\r\nx\r\nwatch %b\r\n" % (tube, tube) for tube in tubes]))
            client.sendall(b"reserve-with-timeout 0\r\n" * 3)
            assert receive(client, b"TIMED_OUT\r\n").count(b"RESERVED") == 2
    finally:
        for each in processes:
            each.stop()


def test_session_from_before_a_takeover_uses_the_shard_of_its_own_process(tmp_path: Path) -> None:
    process = Process(str(tmp_path / "0"), NO_SHARD)
    process.membership.owners = {}
    peer = process.linked("a1", NO_SHARD)
    try:
        with socket.create_connection(("127.0.0.1", process.port), TIMEOUT) as client:
            client.sendall(b"list-tube-used\r\n")
            assert receive(client, b"\r\n") == b"USING default\r\n"
            client.sendall(b"watch " + TUBE + b"\r\nput-in-tube " + TUBE + b" 0 0 60 1\r\nx\r\nreserve\r\n")
            shard = make_broker(ids=IdSequence(IDS.base, IDS.shards, 1))
            process.links.lead(1, shard, None)
            assert peer.read() == (frames.LEAD, 1, b"")
            change(process, {1: PROCESS})
            assert receive(client, b"x\r\n") == b"WATCHING 2\r\nINSERTED 1\r\nRESERVED 1 1\r\nx\r\n"
            assert len(shard.jobs) == 1
            assert not process.broker.jobs
    finally:
        process.stop()
    assert not shard.totals.reserved
