"""A worker for tests: prints `begin BODY` and `end BODY`; the body has the seconds that the job takes.

python worker_program.py main|other PORT CONCURRENCY PREFETCH STOP_TIMEOUT

With `other`, another thread than the main thread receives the signals, so that they interrupt no wait of the main
thread.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time

from greenstalk_client import Job, work


def handle(job: Job[bytes]) -> None:
    print("begin", job.body.decode(), flush=True)
    time.sleep(float(job.body))
    print("end", job.body.decode(), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    port, concurrency, prefetch = map(int, sys.argv[2:5])
    if sys.argv[1] == "other":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    work(
        "mail",
        handle,
        server=("127.0.0.1", port),
        concurrency=concurrency,
        prefetch=prefetch,
        stop_timeout=float(sys.argv[5]),
    )
    print("returned", flush=True)
