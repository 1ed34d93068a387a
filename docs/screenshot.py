"""Make docs/screenshot.png: the overview of a server under a simulated load, in Chromium.

    .venv/bin/python docs/screenshot.py [MINUTES]

MINUTES is the length of the load, 10 by default: the charts need some history.
"""

# ruff: noqa: INP001  beside the screenshot, not in a package

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
SCREENSHOT: Final = REPOSITORY / "docs" / "screenshot.png"
CHROMIUM: Final = "/usr/bin/chromium"
SIZE: Final = ViewportSize(width=1280, height=750)

PRIORITIES: Final = (100, 65536, 65536, 65536)
"""Priorities of jobs, chosen at random; below 1024 is urgent."""

done = threading.Event()


@dataclass(frozen=True, slots=True)
class Load:
    """The load on one tube: a producer, and *workers* that need *seconds* for a job on average.

    The producer puts *rate* jobs per second on average. The rate rises and falls in waves.
    """

    tube: str
    rate: float
    workers: int
    seconds: float
    wave: float
    """Seconds from one peak of the rate to the next."""
    failing: float = 0.0
    """Share of jobs that a worker buries, 0 to 1."""
    delay: int = 0


LOADS: Final = (
    Load("mail", 24.0, 4, 0.12, 260.0, failing=0.0004),
    Load("thumbnails", 9.0, 4, 0.30, 190.0, failing=0.0012),
    Load("webhooks", 14.0, 3, 0.16, 330.0, failing=0.002),
    Load("invoices", 1.5, 1, 0.45, 420.0),
    Load("search-index", 30.0, 3, 0.06, 150.0),
    Load("reports", 0.25, 0, 1.0, 300.0),
    Load("reminders", 0.8, 1, 0.1, 380.0, delay=3600),
    Load("sms", 0.1, 0, 1.0, 240.0),
)


def produce(load: Load, port: int) -> None:
    """Put jobs until `done` is set."""
    began = time.monotonic()
    with greenstalk.Client(("127.0.0.1", port), use=load.tube) as queue:
        while True:
            factor = 1 + 0.7 * math.sin(math.tau * (time.monotonic() - began) / load.wave)
            if done.wait(random.expovariate(load.rate * factor)):
                return
            queue.put(json.dumps({"to": len(load.tube)}), random.choice(PRIORITIES), load.delay, ttr=120)  # noqa: S311


def consume(load: Load, port: int) -> None:
    """Reserve and delete or bury jobs until `done` is set."""
    with greenstalk.Client(("127.0.0.1", port), watch=load.tube) as queue:
        while not done.is_set():
            try:
                job = queue.reserve(timeout=1)
            except greenstalk.TimedOutError:
                continue
            done.wait(random.uniform(0.5, 1.5) * load.seconds)  # noqa: S311
            if random.random() < load.failing:  # noqa: S311
                queue.bury(job)
            else:
                queue.delete(job)


def take_screenshot(url: str) -> None:
    """Write the screenshot of the overview at *url*."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--headless"])
        page = chromium.new_page(viewport=SIZE, color_scheme="light")
        page.goto(url)
        page.wait_for_selector("svg.spark")
        page.screenshot(path=SCREENSHOT)
        chromium.close()


def main() -> None:
    """Run a server with the load, and take the screenshot."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    with tempfile.TemporaryDirectory() as directory:
        flags = ("-b", directory, "-l", "127.0.0.1", "-p", "0", "--web-port", "0")
        command = (sys.executable, "-m", "greenstalk_server", *flags)
        with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603
            assert server.stdout is not None
            first_lines = "".join(server.stdout.readline() for _ in range(4))
            port = int(re.findall(r"protocol: .*:(\d+)", first_lines)[0])
            threads = [threading.Thread(target=produce, args=(load, port)) for load in LOADS]
            threads += [
                threading.Thread(target=consume, args=(load, port)) for load in LOADS for _ in range(load.workers)
            ]
            for thread in threads:
                thread.start()
            time.sleep(60 * minutes / 2)
            with greenstalk.Client(("127.0.0.1", port)) as queue:
                queue.pause_tube("reports", 7200)
            time.sleep(60 * minutes / 2)
            take_screenshot(re.findall(r"dashboard: (\S+)", first_lines)[0])
            done.set()
            for thread in threads:
                thread.join()
            server.terminate()


if __name__ == "__main__":
    main()
