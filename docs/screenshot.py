"""Make docs/screenshot.png: a server under a day's work in small, and its overview in Chromium.

    .venv/bin/python docs/screenshot.py [MINUTES]

The charts need some minutes of history, ten by default.
"""

# ruff: noqa: INP001  beside its picture, not in a package

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import greenstalk
from playwright.sync_api import ViewportSize, sync_playwright

REPOSITORY: Final = Path(__file__).resolve().parent.parent
PICTURE: Final = REPOSITORY / "docs" / "screenshot.png"
CHROMIUM: Final = "/usr/bin/chromium"
SIZE: Final = ViewportSize(width=1280, height=750)

PRIORITIES: Final = (100, 65536, 65536, 65536)
"""Of jobs; below 1024 is urgent."""

done = threading.Event()


@dataclass(frozen=True, slots=True)
class Work:
    """One tube. Its producer puts *rate* jobs a second in the mean, by waves; each of its *workers* takes *seconds*."""

    tube: str
    rate: float
    workers: int
    seconds: float
    wave: float
    """Seconds from one rush to the next."""
    failing: float = 0.0
    """Share of jobs that a worker buries."""
    delay: int = 0


WORKS: Final = (
    Work("mail", 24.0, 4, 0.12, 260.0, failing=0.0004),
    Work("thumbnails", 9.0, 4, 0.30, 190.0, failing=0.0012),
    Work("webhooks", 14.0, 3, 0.16, 330.0, failing=0.002),
    Work("invoices", 1.5, 1, 0.45, 420.0),
    Work("search-index", 30.0, 3, 0.06, 150.0),
    Work("reports", 0.25, 0, 1.0, 300.0),
    Work("reminders", 0.8, 1, 0.1, 380.0, delay=3600),
    Work("sms", 0.1, 0, 1.0, 240.0),
)


def produce(work: Work, port: int) -> None:
    """Put jobs until it is done."""
    began = time.monotonic()
    with greenstalk.Client(("127.0.0.1", port), use=work.tube) as queue:
        while True:
            rush = 1 + 0.7 * math.sin(math.tau * (time.monotonic() - began) / work.wave)
            if done.wait(random.expovariate(work.rate * rush)):
                return
            queue.put(json.dumps({"to": len(work.tube)}), random.choice(PRIORITIES), work.delay, ttr=120)  # noqa: S311


def labour(work: Work, port: int) -> None:
    """Do jobs until it is done."""
    with greenstalk.Client(("127.0.0.1", port), watch=work.tube) as queue:
        while not done.is_set():
            try:
                job = queue.reserve(timeout=1)
            except greenstalk.TimedOutError:
                continue
            done.wait(random.uniform(0.5, 1.5) * work.seconds)  # noqa: S311
            if random.random() < work.failing:  # noqa: S311
                queue.bury(job)
            else:
                queue.delete(job)


def photograph(url: str) -> None:
    """Write the picture of the overview."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--headless"])
        page = chromium.new_page(viewport=SIZE, color_scheme="light")
        page.goto(url)
        page.wait_for_selector("svg.spark")
        page.screenshot(path=PICTURE)
        chromium.close()


def main() -> None:
    """Serve, work, and take the picture."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    with tempfile.TemporaryDirectory() as directory:
        flags = ("-b", directory, "-l", "127.0.0.1", "-p", "0", "--web-port", "0")
        command = (sys.executable, "-m", "greenstalk_server", *flags)
        with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603
            assert server.stdout is not None
            said = "".join(server.stdout.readline() for _ in range(4))
            port = int(re.findall(r"protocol: .*:(\d+)", said)[0])
            threads = [threading.Thread(target=produce, args=(work, port)) for work in WORKS]
            threads += [
                threading.Thread(target=labour, args=(work, port)) for work in WORKS for _ in range(work.workers)
            ]
            for thread in threads:
                thread.start()
            time.sleep(60 * minutes / 2)
            with greenstalk.Client(("127.0.0.1", port)) as queue:
                queue.pause_tube("reports", 7200)
            time.sleep(60 * minutes / 2)
            photograph(re.findall(r"dashboard: (\S+)", said)[0])
            done.set()
            for thread in threads:
                thread.join()
            server.terminate()


if __name__ == "__main__":
    main()
