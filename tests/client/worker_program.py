"""A worker for tests: prints `begin BODY` and `end BODY`; the body has the seconds that the job takes.

python worker_program.py PORT CONCURRENCY PREFETCH STOP_TIMEOUT
"""

from __future__ import annotations

import logging
import sys
import time

from greenstalk_client import Job, work


def handle(job: Job[bytes]) -> None:
    print("begin", job.body.decode(), flush=True)
    time.sleep(float(job.body))
    print("end", job.body.decode(), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    port, concurrency, prefetch = map(int, sys.argv[1:4])
    work(
        "mail",
        handle,
        server=("127.0.0.1", port),
        concurrency=concurrency,
        prefetch=prefetch,
        stop_timeout=float(sys.argv[4]),
    )
    print("returned", flush=True)
