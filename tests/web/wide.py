"""A dashboard whose texts are as long as they can be: `python -m tests.web.wide`. It serves as tests.web.served does.

It has the queue of tests.web.aged, but with names of 200 characters and with large numbers.
"""

from __future__ import annotations

from typing import Final

from flask import Flask

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import connecting, editing, finishing, reserving
from greenstalk_server.web.changes.operations import MAX_REASON_LENGTH

from . import aged
from .conftest import Queue
from .forms import SAME_ORIGIN
from .served import serve

LONG: Final = "notifications.push.android.high-priority.region-eu-central-1.tenant-" + "0123456789abcdef" * 8 + ".dlq"
SOLID: Final = "x" * 200
MANY: Final = 1_234_567_890

assert len(LONG) == len(SOLID) == 200

POLICY: Final = {
    "dead_letter": LONG, "max_attempts": 3, "expire_after": 86_400, "max_jobs": MANY, "max_bytes": MANY, "rate": 1e6,
}  # fmt: skip


def widen(queue: Queue, app: Flask) -> None:
    """Add tubes, jobs, connections and a policy with long texts."""
    broker = queue.broker
    for name in (LONG, SOLID):
        first, *_ = queue.put(name, count=3, pri=2**32 - 1)
        queue.put(name, delay=2**32 - 1)
        (buried,) = queue.put(name)
        finishing.bury_job(broker, buried, queue.now)
        client = queue.connect()
        connecting.use(broker, client, name.encode())
        for other in (LONG, SOLID, "mail"):
            connecting.watch(broker, client, other.encode())
        connecting.note_worker(broker, client)
        client.address = "[2001:db8:1234:5678:9abc:def0:1234:5678%eth0]:65535"
        client.name = "worker-of-" + name
        client.finished = MANY
        reserving.reserve_job(broker, client, first, queue.now - SECOND)
        tube = broker.tubes[name.encode()]
        tube.total_jobs = tube.cmd_delete = tube.total_reserves = MANY
        editing.pause_tube(broker, name.encode(), (2**32 - 1) * SECOND, queue.now)
    with app.test_client() as admin:
        headers = SAME_ORIGIN
        pause = {"seconds": 2**32 - 1, "reason": "w" * MAX_REASON_LENGTH}
        assert admin.post(f"/api/v1/tube/pause?tube={LONG}", json=pause, headers=headers).status_code < 300
        response = admin.put(f"/api/v1/policies/{'p' * 100}", json={"tubes": ["*"]} | POLICY, headers=headers)
        assert response.status_code < 300, response.text


def main() -> None:
    queue = Queue()
    queue.broker.max_job_size = 2_000_000
    app = queue.app()
    aged.fill(queue)
    aged.live(queue, app.extensions["dashboard"].history)
    aged.administer(queue, app)
    widen(queue, app)
    serve(app)


if __name__ == "__main__":
    main()
