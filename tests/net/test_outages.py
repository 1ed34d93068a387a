"""Commands that wait for a shard that cannot be reached: `--outage-wait`. Real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from gevent import get_hub

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.net import links
from greenstalk_server.protocol import link_frames as frames
from tests.net.in_process import is_readable, read_to_end, wait_until
from tests.net.link_peer import Process
from tests.net.test_link_routes import change, read_command, receive
from tests.support.daemon import TIMEOUT
from tests.support.shards import tube_on

WAIT: Final = SECOND // 5
"""--outage-wait of the process, nanoseconds."""

CLIENTS: Final = 200
USE: Final = b"use %b\r\n" % tube_on(1)


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    monkeypatch.setattr(links, "CHECK_INTERVAL", 0.01)
    process = Process(str(tmp_path / "0"), outage_wait=WAIT)
    yield process
    process.stop()


def connect(process: Process) -> socket.socket:
    return socket.create_connection(("127.0.0.1", process.port), TIMEOUT)


def reserve_at(process: Process, client: socket.socket, name: str, shard: int) -> None:
    """Have *client* reserve the first job of *shard*, which the process *name* leads; then that process is gone."""
    peer = process.linked(name, shard)
    change(process, {**process.membership.owners, shard: name})
    line = b"reserve-job %d" % shard
    client.sendall(line + b"\r\n")
    peer.send(frames.END, read_command(peer, line), b"RESERVED %d 1\r\nx\r\n" % shard)
    receive(client, b"x\r\n")
    peer.sock.close()
    wait_until(lambda: not process.links.is_linked(shard))


def test_waiting_clients_are_disconnected_in_slices(process: Process) -> None:
    most, before = 0, CLIENTS

    def measure() -> None:
        nonlocal most, before
        now = len(process.server.connections)
        most = max(most, before - now)
        before = now

    with ExitStack() as stack:
        clients = [stack.enter_context(connect(process)) for _ in range(CLIENTS)]
        for client in clients:
            client.sendall(USE)
        wait_until(lambda: len(process.links._waiting.get(1, ())) == CLIENTS)
        watcher = get_hub().loop.check(ref=False)
        watcher.start(measure)
        wait_until(lambda: not process.server.connections)
        watcher.stop()
        watcher.close()
        assert [read_to_end(client) for client in clients] == [b""] * CLIENTS
    assert 0 < most <= links.BATCH


def test_wait_begins_with_the_command_and_not_with_the_outage(process: Process) -> None:
    with connect(process) as client:
        reserve_at(process, client, "a1", 1)
        lost_at = process.links.clock()
        wait_until(lambda: process.links.clock() > lost_at + WAIT)
        sent_at = process.links.clock()
        client.sendall(b"touch 1\r\n")
        assert read_to_end(client) == b""
        assert process.links.clock() - sent_at > WAIT


def test_command_for_another_shard_does_not_end_with_an_outage(process: Process) -> None:
    with connect(process) as client, connect(process) as witness:
        reserve_at(process, client, "a1", 1)
        peer = process.linked("b1", 2)
        change(process, {**process.membership.owners, 2: "b1"})
        client.sendall(b"wait 2\r\n")
        channel = read_command(peer, b"wait 2")
        witness.sendall(USE)
        assert read_to_end(witness) == b""  # it began to wait later than the client
        assert not is_readable(client)
        peer.send(frames.END, channel, b"DELETED 2\r\n")
        assert receive(client, b"\r\n") == b"DELETED 2\r\n"
