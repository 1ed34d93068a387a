"""A queue that is a day old, for tests.web.wide.

Its pages have wide content: long tube names, ages of up to nine characters, pauses, large bodies, large counts, and
an audit log. The clock does not advance, so every visit shows the same.
"""

from __future__ import annotations

from typing import Final

from flask import Flask

from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import connecting, finishing, putting, reserving
from greenstalk_server.web.features.history.history import History

from .conftest import Queue
from .forms import SAME_ORIGIN

HOUR: Final = 3600 * SECOND

TUBES: Final = (
    "billing.invoices", "billing.refunds", "billing.dunning", "checkout.confirmations", "crm.sync", "default",
    "documents.thumbnails", "emails.newsletter", "events.audit", "exports.nightly", "imports", "imports.suppliers",
    "mail", "notifications.push.android.high-priority", "orders.archive", "orders.new", "reports.nightly",
    "search.reindex", "users.delete", "webhooks", "webhooks/retry",
)  # fmt: skip

PAUSED: Final = {"reports.nightly": 7199, "imports": 86_399, "webhooks/retry": 3599, "users.delete": 30 * 86_400}
"""Length of each tube's pause in seconds."""

UNWATCHED: Final = ("events.audit", "exports.nightly", "notifications.push.android.high-priority", "users.delete")

BUSY: Final = {"mail": 20, "orders.new": 4, "imports": 1}
"""Jobs put and deleted per second in the last ten minutes."""

EVIL: Final = "reason=\N{RIGHT-TO-LEFT OVERRIDE}evil\N{POP DIRECTIONAL FORMATTING}"
"""Shown as `live` where the control characters take effect."""


def fill(queue: Queue) -> Client:
    """Put jobs into every tube over a day, some of them large, held, delayed or buried; return the worker."""
    broker, worker, crowd = queue.broker, queue.connect(), queue.connect()
    connecting.note_worker(broker, worker)
    for at, tube in enumerate(TUBES):
        queue.put(tube, count=3 + at * 7 % 40)
        queue.put(tube, pri=10, count=at % 5)
        queue.put(tube, delay=40 * 86_400, count=at % 3)
        if tube not in UNWATCHED:
            connecting.watch(broker, crowd, tube.encode())
    for size in (100_000, 864_890, 1_000_004):
        put(queue, b'{"data": "' + b"x" * (size - 12) + b'"}')
    put(queue, EVIL.encode())
    put(queue, bytes(range(256)), pri=2**32 - 1, ttr=2**32 - 1)
    queue.put("billing.invoices", pri=1, count=12_000)
    queue.now += 23 * HOUR
    connecting.watch(broker, worker, b"mail")
    for at in range(30):
        job = reserving.reserve(broker, worker, queue.now)
        assert job is not None
        if at % 3:
            finishing.bury(broker, worker, job.id, job.pri, queue.now)
    return worker


def put(queue: Queue, body: bytes, pri: int = 0, ttr: int = 6 * 3600) -> int:
    """Put one job into `mail`."""
    return putting.put_into(queue.broker, b"mail", pri, 0, ttr * SECOND, body, queue.now)


def live(queue: Queue, history: History) -> None:
    """Simulate ten minutes and 28 seconds with puts and deletes."""
    for second in range(628):
        for tube, count in BUSY.items():
            for id in queue.put(tube, count=count + second // 60 % 3):
                finishing.delete_job(queue.broker, id, queue.now)
        queue.now += SECOND
        history.tick()


def administer(queue: Queue, app: Flask) -> None:
    """Make changes as an admin that leave entries in the audit log, including long ones."""
    client = app.test_client()

    def post(path: str, **form: object) -> None:
        response = client.post(path, data=form, headers=SAME_ORIGIN)
        assert response.status_code == 303, response.text

    for tube, seconds in PAUSED.items():
        post("/tube/pause", tube=tube, seconds=seconds, reason=f"The supplier of {tube} asked for it. Ask Ada, {EVIL}")
    post("/tube/put", tube="imports", body="x", pri=5, delay=0, ttr=60)
    post("/tube/kick", tube="mail", state="buried", count=1)
    post("/tube/clear", tube="crm.sync", state="delayed", confirm="crm.sync")
