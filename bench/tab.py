"""The CPU time of a browser tab that shows the overview with live updates. Needs Chromium and playwright."""

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .errors import BenchError

ACTIVE_TUBES: Final = 100
"""Tubes that change every second: as many as the overview shows."""

SETTLE_SECONDS: Final = 3.0
FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")


@contextmanager
def live_load(port: int) -> Iterator[None]:
    """Put a job into each of ACTIVE_TUBES tubes of the first page, once a second."""
    is_over = threading.Event()
    puts = b"".join([b"use tube-%04d\r\nput 0 0 60 2\r\n{}\r\n" % number for number in range(ACTIVE_TUBES)])

    def run() -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as sock, sock.makefile("rb") as replies:
            while not is_over.wait(1.0):
                sock.sendall(puts)
                for _ in range(2 * ACTIVE_TUBES):
                    replies.readline()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def tab_cpu_percent(web_port: int, seconds: float) -> float:
    """Return the share of a CPU that the tab's main thread uses for the overview, in percent."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  needed by this figure alone

    command = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium"))), None)
    if command is None:
        raise BenchError("Chromium is missing: apt-get install chromium-headless-shell")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=command, args=list(FLAGS))
        page = chromium.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"http://127.0.0.1:{web_port}/?sort=name&q=tube-00")
        page.wait_for_selector("#live")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")

        def task_seconds() -> float:
            metrics = session.send("Performance.getMetrics")["metrics"]
            return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))

        time.sleep(SETTLE_SECONDS)
        before, began = task_seconds(), time.monotonic()
        time.sleep(seconds)
        used = (task_seconds() - before) / (time.monotonic() - began)
        chromium.close()
    return used * 100
