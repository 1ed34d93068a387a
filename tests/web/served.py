"""A dashboard over a queue with some hours of fake history: `python -m tests.web.served HOURS`.

It prints its URL, and serves until its standard input ends.
"""

from __future__ import annotations

import sys

import gevent
from flask import Flask
from gevent.pywsgi import WSGIServer

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import connecting, finishing, reserving
from greenstalk_server.web.features.history.history import History

from .conftest import Queue


def work(queue: Queue, history: History, hours: float, tube: str) -> None:
    """Put at least six jobs every ten seconds; reserve most of them, and delete, bury or release those."""
    broker, worker = queue.broker, queue.connect()
    connecting.watch(broker, worker, tube.encode())
    for at in range(int(hours * 360)):
        queue.put(tube, count=6 + at // 40 % 3 * 4)
        for turn in range(5 + at // 60 % 2 * 4):
            job = reserving.reserve(broker, worker, queue.now - SECOND)
            assert job is not None
            if turn == 1:
                finishing.bury(broker, worker, job.id, 0, queue.now)
            elif turn == 2:
                finishing.release(broker, worker, job.id, 9, 0, queue.now)
            else:
                finishing.delete(broker, worker, job.id, queue.now)
        for _ in range(5):
            queue.now += 2 * SECOND
            history.tick()


def main(hours: float) -> None:
    """Serve a queue in which the tube `mail` was used for *hours*."""
    queue = Queue()
    app = queue.app()
    work(queue, app.extensions["dashboard"].history, hours, "mail")
    serve(app)


def serve(app: Flask) -> None:
    """Serve *app* on a free port, print its address, and stop when standard input ends."""
    server = WSGIServer(("127.0.0.1", 0), app, log=None)
    server.start()
    print(f"http://127.0.0.1:{server.server_port}/", flush=True)
    gevent.get_hub().threadpool.apply(sys.stdin.read)
    server.stop(timeout=0.1)


if __name__ == "__main__":
    main(float(sys.argv[1]))
