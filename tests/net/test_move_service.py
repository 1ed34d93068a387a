"""Jobs that move from one process to another, here two processes in one event loop, or a peer that speaks by hand."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gevent.event import Event

from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.jobs.job import READY, SECOND, Job
from greenstalk_server.core.operations import editing, putting
from greenstalk_server.core.outcomes import EditOutcome
from greenstalk_server.net import move_service
from greenstalk_server.net.link_calls import Message
from greenstalk_server.protocol import link_frames as frames
from greenstalk_server.protocol.job_transfer import encode_job
from tests.net.in_process import is_readable, wait_until
from tests.net.link_peer import PROCESS, Peer, Process, linked_pair
from tests.net.test_link_routes import change
from tests.support.daemon import TIMEOUT
from tests.support.shards import tube_on
from tests.support.world import START, make_broker

HERE, THERE = tube_on(0), tube_on(1)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Process]]:
    with linked_pair(tmp_path) as both:
        yield both


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(str(tmp_path / "0"))
    yield process
    process.stop()


def put(process: Process, body: bytes = b"x") -> int:
    broker = process.broker
    return putting.put_into(broker, HERE, 0, 0, 60 * SECOND, body, process.links.clock())


def move(process: Process, *ids: int) -> None:
    for id in ids:
        assert editing.edit_job(process.broker, id, process.links.clock(), tube=THERE) == EditOutcome.DONE


def outbox(process: Process) -> dict[int, Job]:
    assert process.broker.moves is not None
    return process.broker.moves.outbox


def warnings(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, object]]]:
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [(each.getMessage(), {key: vars(each).get(key) for key in ("jobs", "job", "tube")}) for each in records]


def test_malformed_job_is_refused_alone_and_stays(pair: list[Process], caplog: pytest.LogCaptureFixture) -> None:
    ids = [put(pair[0]) for _ in range(3)]
    pair[0].broker.jobs[ids[1]].ttr = 0
    move(pair[0], *ids)
    wait_until(lambda: not outbox(pair[0]))
    assert list(pair[1].broker.jobs) == [ids[0], ids[2]]
    assert [(id, job.state) for id, job in pair[0].broker.jobs.items()] == [(ids[1], READY)]
    message = "shard 1 cannot take jobs, which stay where they are: malformed job: invalid number"
    assert warnings(caplog) == [(message, {"jobs": 1, "job": ids[1], "tube": HERE.decode()})]


def test_job_that_is_too_large_for_the_link_stays(pair: list[Process], caplog: pytest.LogCaptureFixture) -> None:
    """Such a job was put when -z was larger."""
    ids = [put(pair[0]), put(pair[0], bytes(5 * 2**20)), put(pair[0])]
    move(pair[0], *ids)
    wait_until(lambda: not outbox(pair[0]))
    assert list(pair[1].broker.jobs) == [ids[0], ids[2]]
    assert [(id, job.state) for id, job in pair[0].broker.jobs.items()] == [(ids[1], READY)]
    [(message, facts)] = warnings(caplog)
    assert "the message is too large" in message
    assert facts["job"] == ids[1]


def test_internal_error_is_logged_once_and_tried_again_ever_later(
    pair: list[Process], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_service, "RETRY_INTERVAL", 0.01)
    call, times = pair[0].links.call, list[float]()

    def fail(shard: int, name: str, arguments: Message) -> Message:
        times.append(time.monotonic())
        if len(times) < 5:
            raise KeyError(name)
        return call(shard, name, arguments)

    monkeypatch.setattr(pair[0].links, "call", fail)
    move(pair[0], put(pair[0]))
    wait_until(lambda: not outbox(pair[0]))
    assert all(after - before >= 0.01 * 2**at for at, (before, after) in enumerate(pairwise(times[:5])))
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage() == "internal error: no jobs move to shard 1; trying again"
    assert record.exc_info is not None


def message(facts: dict[str, object], body: bytes = b"") -> bytes:
    text = json.dumps(facts).encode()
    return len(text).to_bytes(4, "little") + text + body


def read_message(peer: Peer, kind: int) -> tuple[int, Any]:
    """Return the number and the JSON of the next message of *kind*, which has one frame."""
    while True:
        found, number, payload = peer.read()
        if found == kind:
            return number, json.loads(payload[4 : 4 + int.from_bytes(payload[:4], "little")])


def test_jobs_behind_one_of_unknown_size_have_no_answer(process: Process) -> None:
    source = make_broker(ids=IdSequence(0, 3, 1))
    jobs = []
    for _ in range(3):
        id = putting.put_into(source, THERE, 0, 0, 60 * SECOND, b"x", START)
        assert editing.edit_job(source, id, START, tube=HERE) == EditOutcome.DONE
        jobs.append(encode_job(source.jobs[id], b"x"))
    jobs[1]["size"] = "1"
    peer = process.linked("a1", 1)
    peer.send(frames.CALL, 7, message({"name": "accept-jobs", "timeout": 5, "value": jobs}, b"xxx"))
    _, answer = read_message(peer, frames.ANSWER)
    assert answer == {"value": [0, "malformed job: not a number in its range"]}
    assert list(process.broker.jobs) == [jobs[0]["id"]]


def test_jobs_without_an_answer_are_sent_again(process: Process) -> None:
    peer = process.linked("a1", 1)
    change(process, {0: PROCESS, 1: "a1"})
    ids = [put(process) for _ in range(3)]
    move(process, *ids)
    for count, answers in ((3, [0]), (2, ["no", 0])):
        number, request = read_message(peer, frames.CALL)
        assert len(request["value"]) == count
        peer.send(frames.ANSWER, number, message({"value": answers}))
    wait_until(lambda: not outbox(process))
    assert list(process.broker.jobs) == [ids[1]]


def ask(sock: socket.socket, line: bytes) -> bytes:
    """Return the reply to *line*, whole since it is short; both processes run meanwhile."""
    sock.sendall(line + b"\r\n")
    wait_until(lambda: is_readable(sock))
    return sock.recv(65536)


@pytest.mark.parametrize("front", [0, 1])
def test_arrived_job_is_found_while_the_answer_is_held(pair: list[Process], front: int) -> None:
    is_released, handlers = Event(), pair[1].links.handlers
    accept = handlers["accept-jobs"]

    def hold(source: int, arguments: Message) -> Message:
        answer = accept(source, arguments)
        is_released.wait()
        return answer

    handlers["accept-jobs"] = hold
    id = put(pair[0])
    move(pair[0], id)
    wait_until(lambda: id in pair[1].broker.jobs)
    assert id in outbox(pair[0])
    with socket.create_connection(("127.0.0.1", pair[front].port), TIMEOUT) as client:
        assert ask(client, b"watch %b" % THERE) == b"WATCHING 2\r\n"
        assert ask(client, b"reserve") == b"RESERVED %d 1\r\nx\r\n" % id
        for verb, reply in ((b"touch", b"TOUCHED"), (b"delete", b"DELETED"), (b"delete", b"NOT_FOUND")):
            assert ask(client, b"%b %d" % (verb, id)) == reply + b"\r\n"
    is_released.set()
    wait_until(lambda: not outbox(pair[0]))
    assert not pair[0].broker.jobs


def test_job_that_has_not_arrived_counts_as_held_by_another_client(process: Process) -> None:
    """The peer has read the call, and does not know of the job: it skips each command about it."""
    peer = process.linked("a1", 1)
    change(process, {0: PROCESS, 1: "a1"})
    id = put(process)
    move(process, id)
    read_message(peer, frames.CALL)
    with socket.create_connection(("127.0.0.1", process.port), TIMEOUT) as client:
        for verb, reply in ((b"delete", b"NOT_FOUND\r\n"), (b"peek", b"FOUND %d 1\r\nx\r\n" % id)):
            client.sendall(b"%b %d\r\n" % (verb, id))
            while (found := peer.read())[0] != frames.DATA:
                pass
            assert found[2] == b"expect 1\r\n%b %d\r\n" % (verb, id)
            peer.send(frames.END, found[1], b"SKIPPED\r\n")
            assert peer.read() == (frames.DATA, found[1], b"continue\r\n")
            wait_until(lambda: is_readable(client))
            assert client.recv(65536) == reply
