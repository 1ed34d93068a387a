"""The `ping` command."""

from __future__ import annotations

from time import perf_counter

import click

from greenstalkctl.settings import Command, Settings


@click.command(cls=Command, short_help="Check that the server answers.")
@click.pass_obj
def ping(settings: Settings) -> None:
    """Connect to the server, request its statistics, and show how long the reply took.

    The exit code is 0 if the server replies, 3 if it does not, and 4 if it refuses.
    """
    with settings.open_queue() as queue:
        queue.stats()  # takes two requests: the first one asks for all statistics
        start = perf_counter()
        queue.stats()
        milliseconds = round((perf_counter() - start) * 1000, 3)
    answer = {"server": str(queue.address), "milliseconds": milliseconds}
    settings.out.show(answer, f"{queue.address} answered in {milliseconds:g} ms")
