"""The `ping` command."""

from __future__ import annotations

from time import monotonic, perf_counter, sleep
from typing import Final

import click

from greenstalkctl.errors import Unreachable
from greenstalkctl.settings import Queue, Settings, seconds_between
from greenstalkctl.watching import ReadCommand

RETRY_INTERVAL: Final = 0.5
"""Seconds between two attempts to connect."""


@click.command(cls=ReadCommand, short_help="Check that the server answers.")
@click.option("--wait", type=seconds_between(0, 86400), metavar="DURATION", help="Retry for up to this time.")
@click.pass_obj
def ping(settings: Settings, wait: float | None) -> None:
    """Connect to the server, request its statistics, and show how long the reply took.

    The exit code is 0 if the server replies, 3 if it does not, and 4 if it refuses. With --wait, retry twice a second
    until the server replies or the time has passed, for example after a start.
    """
    with _connect(settings, monotonic() + (wait or 0)) as queue:
        queue.stats()  # takes two requests: the first one asks for all statistics
        start = perf_counter()
        queue.stats()
        milliseconds = round((perf_counter() - start) * 1000, 3)
    answer = {"server": str(queue.address), "milliseconds": milliseconds}
    settings.out.show(answer, f"{queue.address} answered in {milliseconds:g} ms")


def _connect(settings: Settings, until: float) -> Queue:
    while True:
        try:
            return settings.open_queue()
        except Unreachable:
            if monotonic() + RETRY_INTERVAL > until:
                raise
            sleep(RETRY_INTERVAL)
