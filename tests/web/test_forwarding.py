"""Requests and responses that one process of the queue passes on to another."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from flask.testing import FlaskClient
from werkzeug.security import generate_password_hash
from werkzeug.test import TestResponse

from greenstalk_server.config.tables.roles import Rights, Role, User
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import connecting, putting
from greenstalk_server.net.link_calls import CallHandler, Message
from greenstalk_server.web.app import create_dashboard
from greenstalk_server.web.auth import forwarding
from greenstalk_server.web.auth.forwarding import END, HTTP, NEXT, PASSED_HOME, Sender
from greenstalk_server.web.framework.access import NOBODY
from greenstalk_server.web.framework.shards import Shards
from tests.net import link_peer
from tests.net.link_peer import Process, linked_pair
from tests.support.shards import tube_on

from .conftest import Queue
from .linked import dashboard_of
from .test_guard import basic


class EndlessResponse:
    """Links to a process whose response has a piece for each call."""

    front: Broker | None = None

    def __init__(self) -> None:
        self.handlers: dict[str, CallHandler] = {}
        self.calls: list[str] = []

    def standbys(self) -> list[str]:
        return []

    def call(self, target: int | str, name: str, arguments: Message, timeout: float) -> Message:
        self.calls.append(name)
        return Message(arguments.value, b"next")

    def shard_of(self, tube: bytes) -> int:
        return 1

    def is_linked(self, shard: int) -> bool:
        return True

    def is_relayed(self, shard: int) -> bool:
        return False


def test_response_of_another_process_ends_with_the_session() -> None:
    links, is_live = EndlessResponse(), [True]
    shards = Shards(IdSequence(0, 2, 0), links)
    pieces = Sender(shards.call, 0)._pieces(1, 7, b"first", replace(NOBODY, lasts=lambda: bool(is_live)))
    assert [next(pieces), next(pieces)] == [b"first", b"next"]
    is_live.clear()
    with pytest.raises(ConnectionAbortedError):
        next(pieces)
    assert links.calls == [NEXT, END]


def test_only_owner_serves_requests_that_a_standby_passes_on(queue: Queue) -> None:
    """A queue of one shard has no other owners, but may have standbys."""
    links = EndlessResponse()
    create_dashboard(queue.broker, queue.clock, links=links)
    environ = {"PATH_INFO": "/api/v1/server", "REQUEST_METHOD": "GET", "HTTP_HOST": "localhost"}
    answer = links.handlers[HTTP](0, Message({"environ": environ, PASSED_HOME: True}))
    assert answer.value["status"] == "200 OK" and json.loads(answer.body)["shards"] == 1


# Which process serves a request. Two processes and a real link

MINE: Final = [tube_on(shard).decode() for shard in range(2)]
HIDDEN: Final = [tube_on(shard, 1).decode() for shard in range(2)]
PASSWORD: Final = "tea-time"  # noqa: S105  only for the test


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Process]]:
    """The home process and another one. Each has a tube of MINE and one of HIDDEN, with a job in each."""
    with linked_pair(tmp_path_factory.mktemp("pair")) as both:
        for process, *tubes in zip(both, MINE, HIDDEN, strict=True):
            for tube in tubes:
                assert putting.put_into(process.broker, tube.encode(), 0, 0, SECOND, b"x", 0) > 0
        yield both


@pytest.fixture(scope="module")
def visitor(processes: list[Process]) -> FlaskClient:
    """A client of the home process, whose user may see and operate the tubes MINE."""
    roles = {"mine": Role("mine", Rights(operate=frozenset(MINE)))}
    users = [User("ann", generate_password_hash(PASSWORD), "mine")]
    dashboards = [dashboard_of(process, roles=roles, users=users) for process in processes]
    client: FlaskClient = dashboards[0].app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = basic("ann", PASSWORD)["Authorization"]
    client.environ_base["HTTP_SEC_FETCH_SITE"] = "same-origin"
    return client


@pytest.mark.parametrize("member", MINE)
@pytest.mark.parametrize("tube", MINE)
def test_member_of_the_body_does_not_outrank_the_query(visitor: FlaskClient, tube: str, member: str) -> None:
    response = visitor.post(f"/api/v1/tube/resume?tube={tube}", json={"tube": member})
    assert (response.status_code, response.get_json()["name"]) == (200, tube)


@pytest.mark.parametrize("mine", MINE)
@pytest.mark.parametrize("hidden", HIDDEN)
def test_two_names_of_a_tube_give_no_access_to_one_that_is_not_allowed(
    processes: list[Process], visitor: FlaskClient, mine: str, hidden: str
) -> None:
    assert visitor.post("/tube/pause", data={"tube": mine, "seconds": "60"}).status_code == 303
    for outer, inner in ((mine, hidden), (hidden, mine), (hidden, hidden)):
        form = {"tube": inner, "seconds": "60", "count": "1", "state": "ready", "confirm": inner}
        for path in ("/tube/pause", "/tube/clear", "/tube/put"):
            visitor.post(f"{path}?tube={outer}", data=form | {"body": "x", "pri": "0", "delay": "0", "ttr": "1"})
        for path, body in (("pause", {"seconds": 60}), ("flush", {}), ("clear", {"state": "ready"}), ("kick", {})):
            visitor.post(f"/api/v1/tube/{path}?tube={outer}", json=body | {"tube": inner})
    for process in processes:
        for name in HIDDEN:
            tube = process.broker.tubes.get(name.encode())
            assert tube is None or (tube.paused_until, tube.cmd_delete, tube.total_jobs) == (0, 0, 1)
        assert not process.broker.tubes.keys() - {b"default"} - {each.encode() for each in MINE + HIDDEN}


def export(visitor: FlaskClient) -> TestResponse:
    """Return the beginning of a response of the other process that has several pieces."""
    return visitor.get(f"/export?q=size:>1000&tube={MINE[1]}&format=jsonl", buffered=False)


@pytest.fixture
def long_export(processes: list[Process]) -> None:
    for _ in range(2 * forwarding.PIECE // 60_000):
        assert putting.put_into(processes[1].broker, MINE[1].encode(), 0, 0, SECOND, b"x" * 60_000, 0) > 0


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not any(record.exc_info for record in found)
    return [record.getMessage() for record in found]


@pytest.mark.usefixtures("long_export")
def test_response_for_which_there_is_no_room_is_refused_with_one_line(
    visitor: FlaskClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(export(visitor).data) > 2 * forwarding.PIECE - 60_000
    monkeypatch.setattr(forwarding, "MAX_RESPONSES", 0)
    response = export(visitor)
    assert response.status_code == 503
    assert "Too many large responses are being sent." in response.text
    assert lines(caplog) == ["dashboard: refused a call of shard 0: Too many large responses are being sent."]


@pytest.mark.usefixtures("long_export")
def test_response_whose_rest_is_lost_is_cut_with_one_line_at_each_process(
    visitor: FlaskClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "UNREAD_TIMEOUT", -1.0)
    response = export(visitor)
    export(visitor).close()  # drops the rest of the one before, which has not been read for too long
    with pytest.raises(BrokenPipeError):
        assert response.data
    refused, cut = lines(caplog)
    assert refused == "dashboard: refused a call of shard 0: The response was not read for too long."
    assert cut.startswith("dashboard: a response is cut: The process of shard 1 does not answer: The response was not")


@pytest.mark.usefixtures("long_export")
def test_part_of_an_export_may_stay_unread_for_longer_than_a_response(
    visitor: FlaskClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a shard wait while those of others come first."""
    monkeypatch.setattr(visitor.application.extensions["dashboard"].shards, "others", (1,))  # shard 2 does not exist

    def export_all() -> TestResponse:
        return visitor.get("/export?q=size:>1000&format=jsonl", buffered=False)

    size = len(export_all().data)
    assert size > 2 * forwarding.PIECE - 60_000
    monkeypatch.setattr(forwarding, "UNREAD_TIMEOUT", -1.0)
    waiting = export_all()
    export_all().close()  # drops what has not been read for too long
    assert len(waiting.data) == size and lines(caplog) == []
    monkeypatch.setattr(forwarding, "UNREAD_PART_TIMEOUT", -1.0)
    waiting = export_all()
    export_all().close()
    with pytest.raises(BrokenPipeError):
        assert waiting.data
    assert len(lines(caplog)) == 2


def test_job_from_before_the_queue_had_several_shards_is_found_on_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_peer, "IDS", IdSequence(100, 2, 0))
    with linked_pair(tmp_path) as both:
        clients = [dashboard_of(process).app.test_client() for process in both]
        for process, id in zip(both, (7, 8), strict=True):
            client = connecting.connect(process.broker, lambda: None)
            assert putting.put(process.broker, client, id, 0, 0, SECOND, b"x", 0) == id
        found = [[client.get(f"/api/v1/jobs/{id}").status_code for id in (7, 8, 9)] for client in clients]
        assert found == [[200, 200, 404]] * 2
        both[0].links.drop(both[0].links._links["b1"])
        assert [clients[0].get(f"/api/v1/jobs/{id}").status_code for id in (7, 8)] == [200, 503]
