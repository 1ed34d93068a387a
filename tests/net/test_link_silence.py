"""Peers of a link that stall: they are noticed, and memory stays bounded meanwhile. Real sockets and processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gevent.socket import wait_read

from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.net import links
from greenstalk_server.net.link import MAX_QUEUED, MAX_UNSENT
from greenstalk_server.protocol import link_frames as frames
from greenstalk_server.protocol.front_channel import NO_SHARD
from tests.net.in_process import read_to_end, wait_until
from tests.net.link_peer import IDS, PROCESS, Process
from tests.net.test_links import refusals
from tests.support.daemon import TIMEOUT
from tests.support.world import make_broker

INTERVAL = 0.1


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(str(tmp_path / "0"))
    yield process
    process.stop()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PING_INTERVAL", INTERVAL)


@pytest.mark.usefixtures("quick")
def test_peer_that_pings_keeps_its_link_and_hears_pings(process: Process, caplog: pytest.LogCaptureFixture) -> None:
    peer = process.linked()
    for _ in range(2 * links.MAX_SILENCE):
        while peer.read() != (frames.PING, 0, b""):
            pass
        peer.send(frames.PING, 0, b"")
    assert refusals(caplog) == []


@pytest.mark.usefixtures("quick")
def test_silent_peer_loses_its_link_and_keeps_its_jobs_while_it_lives(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    peer = process.linked("a1")
    peer.open(1)
    peer.send(frames.DATA, 1, b"use mail\r\nwatch mail\r\nput 0 0 60 1\r\nx\r\nclaim\r\n")
    wait_until(lambda: process.broker.totals.reserved == 1)
    read_to_end(peer.sock)
    wait_until(lambda: len(refusals(caplog)) == 2)
    assert refusals(caplog) == ["shard 1 has sent nothing for 0.5 s", "the link to shard 1 is lost"]
    assert process.broker.totals.reserved == 1
    process.membership.ended.add("a1")
    process.membership.on_change()
    wait_until(lambda: not process.broker.totals.reserved)


@pytest.mark.usefixtures("quick")
def test_link_of_a_process_to_itself_is_never_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = Process(str(tmp_path / "0"), NO_SHARD)
    try:
        peer = process.linked("a1", NO_SHARD)
        process.links.lead(1, make_broker(ids=IdSequence(IDS.base, IDS.shards, 1)), None)
        for _ in range(2 * links.MAX_SILENCE):
            while peer.read()[0] != frames.PING:
                pass
            peer.send(frames.PING, 0, b"")
        assert PROCESS in process.links._links
        assert refusals(caplog) == []
    finally:
        process.stop()


PINGING = """
import socket, sys, time
sock = socket.socket(fileno=int(sys.argv[1]))
print(flush=True)
sys.stdin.read(1)
for number in range(10**6):
    sock.sendall(bytes.fromhex(sys.argv[2]))
    if number == 100:
        print(flush=True)
    time.sleep(0.01)
"""


@pytest.mark.usefixtures("quick")
def test_stopped_process_loses_its_link(process: Process) -> None:
    """The peer is in a process of its own, which pings until it is stopped."""
    peer = process.peer()
    fd, ping = peer.sock.fileno(), frames.frame(frames.PING, 0).hex()
    command = [sys.executable, "-c", PINGING, str(fd), ping]
    with subprocess.Popen(command, pass_fds=[fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        wait_read(child.stdout.fileno(), TIMEOUT)
        child.stdout.read(1)
        peer.link()
        child.stdin.write(b"x")
        wait_read(child.stdout.fileno(), TIMEOUT)
        assert process.links._links
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: not process.links._links)
        child.kill()


def test_heads_for_a_peer_that_does_not_read_wait_and_only_the_last_are_sent(process: Process) -> None:
    peer = process.linked()
    found = process.links._links["a1"]
    tubes = [b"%0200d" % number for number in range(10)]
    for time in range(50_000):
        found.publish(tubes[time % len(tubes)], (1, time))
    found.flush()
    assert found._queued < MAX_UNSENT + 65536
    last: dict[bytes, int] = {}
    while len([time for time in last.values() if time >= 49_990]) < len(tubes):
        kind, _, payload = peer.read()
        if kind == frames.HEAD:
            tube, _, time = frames.decode_head(payload)
            last[tube] = time


def test_peer_that_does_not_read_at_all_loses_its_link(process: Process, caplog: pytest.LogCaptureFixture) -> None:
    process.linked()
    found = process.links._links["a1"]
    while not found.is_lost:
        assert found._queued <= MAX_QUEUED + 65536
        found.send_frame(frames.CALL, 1, bytes(65000))
        found.flush()
    reason = "link to shard 1: more than 16777216 bytes wait for the peer; the link is closed"
    assert refusals(caplog) == [reason, "the link to shard 1 is lost"]
