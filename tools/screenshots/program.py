"""A program that works with the queue: `python -m tools.screenshots.program SOCKET NAME`. It runs until it is killed.

The server learns the name of a client on a Unix socket from its process, so each program is a process of its own.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import greenstalk

from tools.screenshots.jobs import body_of

RECONNECT_INTERVAL: Final = 0.5
BACKOFF: Final = 2


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one program.

    puts            jobs that it puts per second, by tube.
    watches         tubes that its workers reserve from.
    workers         number of its workers, each with a connection.
    seconds         average time that a worker needs for a job.
    fails           share of jobs that a worker buries.
    releases        a worker releases every job: none of its attempts succeeds.
    """

    puts: tuple[tuple[str, float], ...] = ()
    watches: tuple[str, ...] = ()
    workers: int = 0
    seconds: float = 0.2
    fails: float = 0.0
    releases: bool = False


PROGRAMS: Final = {
    "shop-frontend": Work(puts=(
        ("orders.new", 2.0), ("mail.transactional", 1.2), ("fraud.score", 1.0), ("inventory.reserve", 0.7),
        ("events.analytics", 4.0), ("search.index", 2.5), ("webhooks.deliver", 2.6), ("sessions.expire", 0.05),
    )),
    "scheduler": Work(puts=(
        ("media.thumbnails", 1.5), ("billing.invoices", 0.4), ("shipping.tracking", 0.5), ("push.ios", 1.0),
        ("push.android", 1.2), ("crm.sync", 0.3), ("inventory.sync", 0.5), ("cache.warm", 0.8), ("geo.lookup", 0.7),
        ("reports.daily", 0.1), ("imports.csv", 0.05), ("events.audit", 0.5),
    )),
    "webhook-sender": Work(watches=("webhooks.deliver",), workers=5, seconds=2.2, fails=0.2),
    "order-worker": Work(watches=("orders.new", "orders.fulfil", "orders.archive"), workers=3, seconds=0.3),
    "mail-worker": Work(watches=("mail.transactional", "mail.digest"), workers=3, seconds=0.4),
    "newsletter": Work(watches=("mail.bulk",), workers=3, seconds=1.2, releases=True),
    "billing-worker": Work(
        watches=("billing.capture", "billing.invoices", "billing.dunning", "billing.refunds"), workers=2, seconds=0.8
    ),
    "indexer": Work(watches=("search.index", "search.reindex"), workers=3, seconds=0.7),
    "media-worker": Work(
        watches=("media.thumbnails", "media.transcode", "media.ocr", "documents.sign"), workers=3, seconds=0.9,
        fails=0.003,
    ),
    "analytics": Work(watches=("events.analytics", "geo.lookup", "cache.warm"), workers=2, seconds=0.15),
    "push-gateway": Work(
        watches=("push.ios", "push.android", "sms", "notifications.reminders"), workers=2, seconds=0.4
    ),
    "back-office": Work(
        watches=(
            "crm.sync", "crm.contacts.merge", "inventory.sync", "inventory.reserve", "shipping.labels",
            "shipping.tracking", "fraud.score", "users.provision", "users.delete", "imports.csv", "imports.suppliers",
            "exports.csv", "sessions.expire", "backup.nightly", "reports.daily",
        ),
        workers=4, seconds=0.5, fails=0.002,
    ),
}  # fmt: skip


def _produce(socket: str, tube: str, rate: float) -> None:
    with greenstalk.Client(socket, use=tube) as queue:
        while True:
            time.sleep(random.expovariate(rate))
            queue.put(json.dumps(body_of(tube, random.Random())), ttr=120)  # noqa: S311


def _consume(socket: str, work: Work) -> None:
    with greenstalk.Client(socket, watch=list(work.watches)) as queue:
        while True:
            job = queue.reserve()
            time.sleep(random.uniform(0.5, 1.5) * work.seconds)  # noqa: S311
            if work.releases:
                queue.release(job, delay=BACKOFF)
            elif random.random() < work.fails:  # noqa: S311
                queue.bury(job)
            else:
                queue.delete(job)


def _forever(run: Callable[..., None], *args: object) -> None:
    """Call *run* again when the server has closed the connection."""
    while True:
        try:
            run(*args)
        except OSError:
            time.sleep(RECONNECT_INTERVAL)


def main(socket: str, name: str) -> None:
    """Run the program *name*."""
    Path("/proc/self/comm").write_text(name)
    work = PROGRAMS[name]
    threads = [threading.Thread(target=_forever, args=(_produce, socket, *put), daemon=True) for put in work.puts]
    threads += [
        threading.Thread(target=_forever, args=(_consume, socket, work), daemon=True) for _ in range(work.workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
