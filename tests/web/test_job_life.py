"""The history on a job's page: its events, with their times and clients, and the count of those no longer kept."""

from __future__ import annotations

import re
from html import unescape

from flask.testing import FlaskClient

from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import connecting, editing, finishing, kicking, reserving, ticking
from greenstalk_server.core.operations.connecting import MAX_RECENT_WORKERS

from .conftest import Queue
from .table import Page


def history_entries(client: FlaskClient, id: int) -> list[str]:
    """Return the text of each entry of the job's history."""
    html = client.get("/job", query_string={"id": id}).text
    entries = re.findall(r"<li.*?</li>", html[html.index('<ol class="life">') :], re.DOTALL)
    return [
        " ".join(unescape(re.sub(r"<[^>]*>", " ", entry)).replace("\xa0", " ").split()).replace(" ,", ",")
        for entry in entries
    ]


def test_history_lists_events_since_the_put(queue: Queue, client: FlaskClient) -> None:
    (id,) = queue.put("mail")
    broker, worker = queue.broker, queue.connect()
    queue.now += 10 * SECOND
    reserving.reserve_job(broker, worker, id, queue.now)
    queue.now += 5 * SECOND
    finishing.release(broker, worker, id, 5, 30 * SECOND, queue.now)
    kicking.kick_job(broker, id, queue.now)
    finishing.bury_job(broker, id, queue.now)
    queue.now += SECOND
    editing.edit_job(broker, id, queue.now, pri=9)
    editing.edit_job(broker, id, queue.now, tube=b"other")
    by = f"by connection {worker.number}, {worker.address}"
    assert history_entries(client, id) == [
        "Put 2027-01-15 08:00:00 UTC, 16 s ago",
        f"Reserved {by} 2027-01-15 08:00:10 UTC, 6 s ago",
        f"Released {by} 2027-01-15 08:00:15 UTC, 1 s ago",
        "Kicked 2027-01-15 08:00:15 UTC, 1 s ago",
        "Buried from the dashboard 2027-01-15 08:00:15 UTC, 1 s ago",
        "Edited from the dashboard 2027-01-15 08:00:16 UTC, 0 s ago",
        "Moved to another tube from the dashboard 2027-01-15 08:00:16 UTC, 0 s ago",
    ]
    assert "Buried for 1 s" in " ".join(Page(client.get(f"/job?id={id}").text).text.replace("\xa0", " ").split())


def test_timed_out_and_abandoned_reservations(queue: Queue, client: FlaskClient) -> None:
    (id,) = queue.put("mail")
    slow, gone = queue.connect(), queue.connect()
    reserving.reserve_job(queue.broker, slow, id, queue.now)
    queue.now += 60 * SECOND
    ticking.tick(queue.broker, queue.now)
    reserving.reserve_job(queue.broker, gone, id, queue.now)
    connecting.note_worker(queue.broker, gone)
    connecting.disconnect(queue.broker, gone, queue.now)
    entries = history_entries(client, id)
    assert entries[2].startswith(f"Timed out while held by connection {slow.number}, {slow.address} ")
    assert entries[4].startswith(f"Returned on disconnect by connection {gone.number}, disconnected, from 10.")
    for _ in range(MAX_RECENT_WORKERS + 1):  # enough others to evict its address
        other = queue.connect()
        connecting.note_worker(queue.broker, other)
        connecting.disconnect(queue.broker, other, queue.now)
    assert f"connection {gone.number}, disconnected 2027" in history_entries(client, id)[4]


def test_events_beyond_the_history_are_counted(queue: Queue, client: FlaskClient) -> None:
    (id,) = queue.put("mail")
    worker = queue.connect()
    for _ in range(20):
        reserving.reserve_job(queue.broker, worker, id, queue.now)
        finishing.release(queue.broker, worker, id, 5, 0, queue.now)
    entries = history_entries(client, id)
    assert entries[1].startswith("Older events: reserved 12 times, released 12 times Only the last 16 events are kept")
    assert len(entries) == 2 + job_history.MAX_EVENTS
    queue.broker.jobs[id].events = b""  # as restored from a journal of an earlier version
    entries = history_entries(client, id)
    assert entries[1].startswith("Older events: reserved 20 times, released 20 times")
    assert len(entries) == 2
    assert "The last worker is no longer known" in client.get(f"/job?id={id}").text


def test_live_history_and_hint_of_an_edit(queue: Queue, client: FlaskClient) -> None:
    (id,) = queue.put("mail")
    html = client.get(f"/job?id={id}").text
    args = unescape(re.findall(r'data-live-args="([^"]*)"', html)[0])
    assert client.get(f"/live?page=job&{args}").json["shown"] == {"edited": False}
    editing.edit_job(queue.broker, id, queue.now, body=b"other")
    live = client.get(f"/live?page=job&{args}").json
    assert live["shown"] == {"edited": True}
    assert "Edited" in live["parts"]["life"]
    again = unescape(re.findall(r'data-live-args="([^"]*)"', client.get(f"/job?id={id}").text)[0])
    assert client.get(f"/live?page=job&{again}").json["shown"] == {"edited": False}
