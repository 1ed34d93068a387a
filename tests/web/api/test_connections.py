"""Connections over the API: the list, single connections, and closing one."""

from __future__ import annotations

import pytest

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import connecting, reserving
from greenstalk_server.core.outcomes import WaitOutcome

from ..conftest import Queue
from .conftest import Program, problem


def numbers(program: Program, **query: object) -> list[int]:
    return [one["number"] for page in program.pages("/connections", "connections", **query) for one in page]


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_lists_in_every_order(queue: Queue, program: Program, limit: int) -> None:
    queue.put("mail", count=2)  # number 1 puts them and is gone
    clients = [queue.connect() for _ in range(5)]
    for at in (3, 1):
        connecting.watch(queue.broker, clients[at], b"mail")
        reserving.reserve(queue.broker, clients[at], queue.now)
        queue.now += SECOND
    for at in (4, 0):
        assert reserving.wait(queue.broker, clients[at], None, queue.now) == WaitOutcome.WAITING
        queue.now += SECOND
    assert numbers(program, limit=limit) == [2, 3, 4, 5, 6]
    assert numbers(program, sort="held", limit=limit) == [5, 3, 2, 4, 6]
    assert numbers(program, sort="waiting", limit=limit) == [6, 2, 3, 4, 5]
    assert numbers(program, sort="held", desc="true", limit=limit) == [3, 5, 2, 4, 6], "without a job: last"
    assert numbers(program, desc="true", limit=limit) == numbers(program, sort="connected")[::-1] == [6, 5, 4, 3, 2]
    assert numbers(program, q="MAIL", limit=limit) == [3, 5]
    assert numbers(program, q="10.0.0.4", limit=limit) == [4]
    assert numbers(program, q="nobody", limit=limit) == []


def test_one_connection(queue: Queue, program: Program) -> None:
    ids = queue.put("mail", count=3)
    client = queue.connect()
    connecting.watch(queue.broker, client, b"mail")
    connecting.note_worker(queue.broker, client)
    for _ in ids:
        reserving.reserve(queue.broker, client, queue.now)
    queue.now += 2 * SECOND
    assert reserving.wait(queue.broker, client, queue.now + 10 * SECOND, queue.now) == WaitOutcome.WAITING
    found = program.get(f"/connections/{client.number}")
    assert found["jobs"] == [
        {"id": id, "tube": "mail", "pri": 2000, "size": 4, "reserved_at": "2027-01-15T08:00:00Z", "time_left": 58}
        for id in ids
    ]
    assert found["finished"] == 0
    assert (found["held"], found["watched"], found["watches"], found["uses"]) == (3, 2, ["default", "mail"], "default")
    assert (found["address"], found["is_worker"], found["is_producer"]) == ("10.0.0.2:4711", True, False)
    assert found["waiting_since"] == "2027-01-15T08:00:02Z"
    assert found["waits_until"] == "2027-01-15T08:00:12Z"
    row = {key: value for key, value in found.items() if key != "jobs"}
    assert program.get("/connections")["connections"] == [row]


def test_close(queue: Queue, program: Program) -> None:
    (id,) = queue.put("mail")
    client = queue.connect()
    reserving.reserve_job(queue.broker, client, id, queue.now)
    program.do("DELETE", f"/connections/{client.number}", None, 204)
    assert client.is_closed
    assert program.get(f"/jobs/{id}")["state"] == "ready"
    (entry,) = program.get("/audit")["entries"]
    assert (entry["what"], entry["details"]["number"]) == ("connection/close", client.number)
    problem(program.ask("DELETE", f"/connections/{client.number}"), 404)
    problem(program.ask("GET", f"/connections/{client.number}"), 404)


def test_cursor_of_another_order_is_refused(queue: Queue, program: Program) -> None:
    queue.connect()
    queue.connect()
    cursor = program.get("/connections", limit=1)["next_cursor"]
    problem(program.ask("GET", "/connections", query_string={"cursor": cursor, "sort": "held"}), 400, "cursor")
    problem(program.ask("GET", "/connections", query_string={"cursor": cursor, "desc": "true"}), 400, "cursor")
    problem(program.ask("GET", "/connections", query_string={"cursor": cursor[:-2]}), 400, "cursor")
