"""The server over the API: its figures, the stream of changes, the audit log, and the samples."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from werkzeug.test import TestResponse

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.journal import JournalStats, NullJournal
from greenstalk_server.core.operations import finishing
from greenstalk_server.web.live import hub

from ..conftest import Queue
from .conftest import TOKEN, Program, problem


def test_figures(queue: Queue, program: Program) -> None:
    queue.put("mail", count=3)
    found = program.get("/server")
    assert (found["stats"]["version"], found["stats"]["current_jobs_ready"]) == ("9.8.7", 3)
    assert found["stats"]["hostname"] == "queue-host"
    assert found["build"] == "compiled"
    assert found["extensions"] == ["fractions", "wait"]
    assert found["memory"] is None
    assert found["rates"]["put"] == 0
    assert (found["journal"]["is_on_disk"], found["journal"]["trouble"]) == (False, None)


def test_journal(queue: Queue) -> None:
    class Journal(NullJournal):
        def stats(self) -> JournalStats:
            return JournalStats(is_on_disk=True, is_full=True, files=3, bytes_on_disk=300, synced_ago=0.5)

    queue.broker.journal = Journal()
    queue.broker.journal.write_error = "[Errno 5] Input/output error"
    assert Program(queue.app(api_token=TOKEN)).get("/server")["journal"] == {
        "is_on_disk": True,
        "trouble": "[Errno 5] Input/output error",
        "is_full": True,
        "files": 3,
        "bytes_on_disk": 300,
        "bytes_recorded": 0,
        "bytes_live": 0,
        "synced_ago": 0.5,
    }


# The stream


def events(response: TestResponse) -> Iterator[tuple[str, Any]]:
    """Yield name and data of the events of a stream."""
    name, data = "", ""
    for chunk in response.iter_encoded():
        for line in chunk.decode().splitlines():
            key, _, value = line.partition(": ")
            if key == "event":
                name = value
            elif key == "data":
                data = value
            elif not line and data:
                yield name, json.loads(data)
                name = data = ""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "REFRESH_INTERVAL", 0.01)


@pytest.mark.usefixtures("quick")
def test_stream(queue: Queue, program: Program) -> None:
    (id,) = queue.put("mail")
    response = program.ask("GET", "/events")
    assert response.mimetype == "text/event-stream"
    stream = events(response)
    name, first = next(stream)
    assert name == ""
    assert first["server"] == program.get("/server")
    assert first["tubes"] == {tube["name"]: tube for tube in program.get("/tubes")["tubes"]}
    queue.put("other")
    _, second = next(stream)
    assert second["tubes"] == {"other": program.get("/tubes", q="other")["tubes"][0]}
    assert set(second["server"]) == {"stats"}
    finishing.delete_job(queue.broker, id, queue.now)
    _, third = next(stream)
    assert third["tubes"] == {"mail": None}
    response.close()


@pytest.mark.usefixtures("quick")
def test_stream_of_a_tube_ends_with_the_tube(queue: Queue, program: Program) -> None:
    (id,) = queue.put("mail")
    stream = events(program.ask("GET", "/events?tube=mail"))
    assert next(stream)[1] == {"tubes": {"mail": program.get("/tubes", q="mail")["tubes"][0]}}
    finishing.delete_job(queue.broker, id, queue.now)
    assert list(stream) == [("gone", {})]
    problem(program.ask("GET", "/events?tube=mail"), 404)


# The audit log


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_audit(queue: Queue, program: Program, limit: int) -> None:
    queue.put("mail")
    for seconds in range(1, 11):
        program.do("POST", "/tube/pause", {"seconds": seconds}, tube="mail")
    program.do("POST", "/tube/resume", tube="mail")
    entries = [entry for page in program.pages("/audit", "entries", limit=limit) for entry in page]
    assert [entry["number"] for entry in entries] == list(range(11, 0, -1))
    assert entries[1] == {
        "number": 10,
        "at": "2027-01-15T08:00:00Z",
        "who": "api-token",
        "address": "127.0.0.1",
        "what": "tube/pause",
        "details": {"tube": "mail", "seconds": 10},
    }
    found = [entry["what"] for page in program.pages("/audit", "entries", limit=limit, what="RESUME") for entry in page]
    assert found == ["tube/resume"]
    assert program.get("/audit", who="nobody")["entries"] == []
    problem(program.ask("GET", "/audit?cursor=WzFd1"), 400, "cursor")


def test_audit_filters(queue: Queue, program: Program) -> None:
    """The filters are the same as on the audit page."""
    first, second = queue.put("mail", count=2)
    program.do("DELETE", f"/jobs/{first}", None, 204)
    queue.now += 60 * SECOND
    queue.put("mailbox")
    program.do("POST", "/tube/pause", {"seconds": 5}, tube="mailbox")
    program.do("DELETE", f"/jobs/{second}", None, 204)

    def numbers(**wanted: Any) -> list[int]:
        return [entry["number"] for entry in program.get("/audit", **wanted)["entries"]]

    assert numbers(tube="MAILB") == [2]
    assert numbers(id=first) == [1]
    assert numbers(id=second, tube="mail") == [3]
    assert numbers(since="2027-01-15T08:01:00Z") == [3, 2]
    assert numbers(until="2027-01-15T08:01:00Z") == [1]
    assert numbers(since="2027-01-15T09:00:59.5+01:00", until="2027-01-15T08:01:00.000001Z") == [3, 2]
    assert numbers(since="9999-12-31T23:59:59-12:00") == numbers(until="0001-01-01T00:00:00+12:00") == []
    problem(program.ask("GET", "/audit?since=yesterday"), 400, "since")
    problem(program.ask("GET", "/audit?until=2027-01-15T08:01:00"), 400, "until")
    problem(program.ask("GET", "/audit?id=0"), 400, "id")


# Samples


def test_samples(program: Program) -> None:
    sample = {"name": "Welcome mail", "tube": "mail", "body": "{}\r\n", "pri": 1, "delay": 2, "ttr": 3}
    assert program.do("POST", "/samples", sample | {"name": " Welcome \t mail"}, 201) == sample
    program.do("POST", "/samples", {"name": "another", "tube": "mail"}, 201)
    assert [one["name"] for one in program.get("/samples")["samples"]] == ["another", "Welcome mail"]
    assert program.get("/samples")["samples"][1] == sample
    program.do("DELETE", "/samples", None, 204, name="Welcome mail")
    problem(program.ask("DELETE", "/samples?name=Welcome+mail"), 404)
    problem(program.ask("POST", "/samples", json={"name": " ", "tube": "mail"}), 400, "name")
    problem(program.ask("POST", "/samples", json={"name": "n", "tube": "mail", "body": "ä" * 65536}), 409)
