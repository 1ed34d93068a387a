"""Sessions of remote clients outlive their link: at the owner they are suspended, and their front opens them again."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import gevent
import pytest

from greenstalk_server.core.broker import SLICE
from greenstalk_server.core.jobs.job import READY, RESERVED, SECOND
from greenstalk_server.protocol import link_frames as frames
from tests.net.in_process import read_to_end, wait_until
from tests.net.link_peer import Peer, Process
from tests.net.test_link_routes import change, receive
from tests.support import invariants
from tests.support.daemon import TIMEOUT
from tests.support.shards import tube_on

TUBE = tube_on(1)
SETUP = b"use mail\r\nwatch mail\r\n"
PUT = b"put 0 0 60 1\r\nx\r\n"
JOB = 3
"""Id of the first job of shard 0."""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(str(tmp_path / "0"))
    yield process
    process.stop()


def request(peer: Peer, channel: int, data: bytes) -> bytes:
    """Send *data*; return the replies."""
    peer.send(frames.DATA, channel, data)
    replies = b""
    while True:
        kind, number, payload = peer.read()
        if number == channel and kind in (frames.REPLY, frames.END):
            replies += payload
            if kind == frames.END:
                return replies


def state(process: Process) -> int:
    return process.broker.jobs[JOB].state


@pytest.fixture
def held(process: Process) -> Process:
    """The process, after the loss of the link to a1, whose session 1 holds the job JOB."""
    peer = process.linked("a1")
    peer.open(1)
    assert request(peer, 1, SETUP + PUT + b"claim\r\n").endswith(b"RESERVED 3 1\r\nx\r\n")
    peer.sock.close()
    wait_until(lambda: bool(process.broker.suspended))
    return process


# The owner


def test_jobs_of_a_lost_link_stay_reserved_until_their_front_has_ended(held: Process) -> None:
    assert state(held) == RESERVED
    held.membership.ended.add("a1")
    held.membership.on_change()
    wait_until(lambda: state(held) == READY)
    assert held.broker.remote_count == 0


def test_jobs_are_ready_at_once_if_the_front_has_ended_before_the_link_is_lost(process: Process) -> None:
    peer = process.linked("a1")
    peer.open(1)
    request(peer, 1, SETUP + PUT + b"claim\r\n")
    process.membership.ended.add("a1")
    peer.sock.close()
    wait_until(lambda: state(process) == READY)


def test_session_continues_on_the_next_link(held: Process) -> None:
    peer = held.linked("a1")
    peer.open(7, session=1, reserved=1)
    assert request(peer, 7, b"touch 3\r\ndelete 3\r\n") == b"TOUCHED\r\nDELETED\r\n"
    assert not held.broker.suspended


def test_reservation_that_the_front_does_not_know_of_ends(held: Process) -> None:
    peer = held.linked("a1")
    peer.open(7, session=1, reserved=0)
    assert request(peer, 7, b"touch 3\r\n") == b"NOT_FOUND\r\n"
    assert state(held) == READY
    assert held.broker.jobs[JOB].reserves == 0


def test_sessions_that_are_not_opened_again_end_with_the_report(held: Process) -> None:
    peer = held.linked("a1")
    peer.open(7, session=2)
    request(peer, 7, b"stats\r\n")
    assert state(held) == RESERVED
    peer.send(frames.REPORTED, 0, b"")
    wait_until(lambda: state(held) == READY)


def test_report_of_another_front_ends_nothing(held: Process) -> None:
    peer = held.linked("b1", 2)
    peer.send(frames.REPORTED, 0, b"")
    peer.open(7)
    request(peer, 7, b"stats\r\n")
    assert state(held) == RESERVED


def test_new_link_takes_the_session_of_one_that_is_not_lost_yet(process: Process) -> None:
    former = process.linked("a1")
    former.open(1)
    request(former, 1, SETUP + PUT + b"claim\r\n")
    peer = process.linked("a1")
    peer.open(7, session=1, reserved=1)
    assert request(peer, 7, b"release 3 0 0\r\n") == b"RELEASED\r\n"
    read_to_end(former.sock)


class Probe:
    """Calls *look* in each iteration of the event loop."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._watcher: Any = gevent.get_hub().loop.check(ref=False)
        self._watcher.start(look)

    def stop(self) -> None:
        self._watcher.stop()
        self._watcher.close()


MANY: Final = 10 * SLICE


@pytest.fixture
def many(process: Process) -> Process:
    """The process, after the loss of the link to a1, whose session 1 holds MANY jobs."""
    peer = process.linked("a1")
    peer.open(1)
    request(peer, 1, SETUP)
    for _ in range(0, MANY, 256):
        request(peer, 1, PUT * 256)
        request(peer, 1, b"claim-batch 256\r\n")
    assert process.broker.totals.reserved == MANY
    peer.sock.close()
    wait_until(lambda: bool(process.broker.suspended))
    return process


def resumed(process: Process) -> tuple[int, int]:
    """Return how many jobs session 1 of a1 has, and how many it is still to get."""
    served = process.links._served.get(("a1", 1))
    return (len(served.session.client.reserved), len(served.remote.unresumed)) if served is not None else (0, 0)


def test_jobs_of_a_session_are_resumed_in_slices(many: Process) -> None:
    before = most = 0

    def measure() -> None:
        nonlocal before, most
        now = resumed(many)[0]
        before, most = now, max(most, now - before)

    peer = many.linked("a1")
    probe = Probe(measure)
    peer.open(7, session=1, reserved=MANY)
    peer.send(frames.REPORTED, 0, b"")
    ids = list(many.broker.jobs)
    assert request(peer, 7, b"touch %d\r\ntouch %d\r\n" % (ids[0], ids[-1])) == b"TOUCHED\r\n" * 2
    probe.stop()
    assert resumed(many) == (MANY, 0)
    assert 0 < most <= 3 * SLICE
    assert not many.broker.suspended
    invariants.check(many.broker)


@pytest.mark.parametrize("has_ended", [False, True])
def test_link_that_is_lost_while_jobs_are_resumed(many: Process, has_ended: bool) -> None:
    lost: list[int] = []

    def lose() -> None:
        received, left = resumed(many)
        if received and left and not lost:
            lost.append(left)
            if has_ended:
                many.membership.ended.add("a1")
            many.links.drop(many.links._links["a1"])

    peer = many.linked("a1")
    probe = Probe(lose)
    peer.open(7, session=1, reserved=MANY)
    wait_until(lambda: bool(lost) and not many.links._served)
    probe.stop()
    if has_ended:
        wait_until(lambda: not many.broker.totals.reserved)
        assert not many.broker.suspended
    else:
        [client] = many.broker.suspended["a1"].values()
        assert len(client.reserved) == MANY
    invariants.check(many.broker)


def test_client_that_leaves_while_its_jobs_are_resumed_frees_them(many: Process) -> None:
    peer = many.linked("a1")
    peer.open(7, session=1, reserved=MANY)
    peer.send(frames.CLOSE, 7, b"")
    wait_until(lambda: not many.broker.totals.reserved)
    assert not many.broker.suspended
    invariants.check(many.broker)


def test_session_cannot_be_open_twice(process: Process, caplog: pytest.LogCaptureFixture) -> None:
    peer = process.linked("a1")
    peer.open(1)
    peer.open(2, session=1)
    read_to_end(peer.sock)
    assert "link to shard 1: session 1 is open already; the link is closed" in caplog.text


@pytest.mark.parametrize("changes", [{"session": -1}, {"session": "1"}, {"reserved": 2**63}, {"reserved": True}])
def test_malformed_number_closes_the_link(process: Process, changes: dict[str, Any]) -> None:
    peer = process.linked("a1")
    facts = {"address": "", "name": "", "listener": "", "names": [], "session": 1, "reserved": 0} | changes
    peer.send(frames.OPEN, 1, json.dumps(facts).encode())
    read_to_end(peer.sock)


def test_process_that_has_ended_gets_no_link(process: Process, caplog: pytest.LogCaptureFixture) -> None:
    process.membership.ended.add("a1")
    peer = process.peer(process="a1")
    peer.shake_hands()
    read_to_end(peer.sock)
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines == ["refused a link: process a1 is not among those of the queue"]


def test_owner_that_resigns_serves_no_request_that_arrives_later(process: Process) -> None:
    peer = process.linked("a1")
    peer.open(1)
    request(peer, 1, SETUP + PUT)
    peer.send(frames.DATA, 1, b"await 1\r\n")
    resigning = gevent.spawn(process.links.resign)
    read_until(peer, frames.RESIGN)
    peer.send(frames.DATA, 1, b"decline\r\n")
    peer.send(frames.DATA, 1, b"delete 3\r\n")
    peer.sock.close()
    resigning.join()
    wait_until(lambda: not process.links._links)
    assert state(process) == READY


def test_owner_that_resigns_finishes_the_request_that_it_has_begun(process: Process) -> None:
    peer = process.linked("a1")
    peer.open(1)
    peer.send(frames.PART, 1, SETUP + PUT + b"put 0 0 60 5\r\nba")
    wait_until(lambda: JOB in process.broker.jobs)
    resigning = gevent.spawn(process.links.resign)
    wait_until(lambda: next(iter(process.links._links.values())).is_resigning)
    assert request(peer, 1, b"tch\r\n").endswith(b"INSERTED 3\r\nINSERTED 6\r\n")
    assert peer.read()[0] == frames.RESIGN
    peer.sock.close()
    resigning.join()


def test_owner_that_resigns_closes_the_link_to_a_peer_of_an_earlier_version(process: Process) -> None:
    peer = process.peer(process="a1", version=frames.RESIGN_VERSION - 1)
    peer.link()
    wait_until(lambda: "a1" in process.links._links)
    peer.open(1)
    assert request(peer, 1, SETUP + PUT).endswith(b"INSERTED 3\r\n")
    process.links.resign()
    process.links.stop()
    read_to_end(peer.sock)


# The front


def read_until(peer: Peer, kind: int) -> tuple[int, bytes]:
    """Read frames until one of *kind*; return its channel and payload."""
    while True:
        found, channel, payload = peer.read()
        if found == kind:
            return channel, payload


@pytest.fixture
def client(process: Process) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", process.port), TIMEOUT) as client:
        yield client


def reserve_there(process: Process, client: socket.socket) -> Peer:
    """Have *client* reserve the job 1 of shard 1; return the owner of that shard."""
    peer = process.linked("a1")
    change(process, {1: "a1"})
    client.sendall(b"reserve-job 1\r\n")
    channel, payload = read_until(peer, frames.DATA)
    assert payload == b"reserve-job 1\r\n"
    peer.send(frames.END, channel, b"RESERVED 1 1\r\nx\r\n")
    assert receive(client, b"x\r\n") == b"RESERVED 1 1\r\nx\r\n"
    return peer


def facts_of(payload: bytes) -> tuple[int, int]:
    facts = json.loads(payload)
    return facts["session"], facts["reserved"]


def test_new_link_is_reported_once_the_sessions_with_jobs_are_open(process: Process, client: socket.socket) -> None:
    former = reserve_there(process, client)
    session = process.links._sessions
    former.sock.close()
    peer = process.linked("a1")
    assert facts_of(read_until(peer, frames.OPEN)[1]) == (session, 1)
    read_until(peer, frames.REPORTED)


def test_touch_without_a_reply_is_sent_again(process: Process, client: socket.socket) -> None:
    former = reserve_there(process, client)
    client.sendall(b"touch 1\r\n")
    read_until(former, frames.DATA)
    former.sock.close()
    peer = process.linked("a1")
    channel, payload = read_until(peer, frames.DATA)
    assert payload == b"touch 1\r\n"
    peer.send(frames.END, channel, b"TOUCHED\r\n")
    assert receive(client, b"\r\n") == b"TOUCHED\r\n"


def test_delete_without_a_reply_closes_the_connection_and_its_session(process: Process, client: socket.socket) -> None:
    former = reserve_there(process, client)
    client.sendall(b"delete 1\r\n")
    read_until(former, frames.DATA)
    former.sock.close()
    assert read_to_end(client) == b""
    peer = process.linked("a1")
    while (kind := peer.read()[0]) != frames.REPORTED:
        assert kind in (frames.OPEN, frames.TELL, frames.CLOSE)


def test_delete_that_the_owner_has_not_served_before_it_resigned_is_sent_to_the_next_one(
    process: Process, client: socket.socket
) -> None:
    former = reserve_there(process, client)
    client.sendall(b"delete 1\r\n")
    read_until(former, frames.DATA)
    former.send(frames.RESIGN, 0, b"")
    read_to_end(former.sock)
    peer = process.linked("b1")
    change(process, {1: "b1"})
    channel, payload = read_until(peer, frames.DATA)
    assert payload == b"delete 1\r\n"
    peer.send(frames.END, channel, b"DELETED\r\n")
    assert receive(client, b"\r\n") == b"DELETED\r\n"


def test_commands_that_change_a_waiting_session_take_no_memory(process: Process, client: socket.socket) -> None:
    reserve_there(process, client).sock.close()
    wait_until(lambda: not process.links.is_linked(1))
    client.sendall(b"meta pri\r\n" * 100 + b"meta pri ttr\r\n")
    assert receive(client, b"META 2\r\n").count(b"META") == 101
    peer = process.linked("a1")
    channel, told = read_until(peer, frames.TELL)
    assert told.count(b"meta") == 1 and b"meta pri ttr\r\n" in told
    client.sendall(b"touch 1\r\n")
    assert read_until(peer, frames.DATA) == (channel, b"touch 1\r\n")


def test_time_to_run_begins_again_with_the_next_link(held: Process) -> None:
    before = held.broker.jobs[JOB].deadline
    peer = held.linked("a1")
    peer.open(7, session=1, reserved=1)
    request(peer, 7, b"stats\r\n")
    deadline = held.broker.jobs[JOB].deadline
    assert before < deadline <= held.links.clock() + 60 * SECOND
