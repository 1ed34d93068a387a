"""The `pause` and `resume` commands."""

from __future__ import annotations

import click

from greenstalkctl.api import Api
from greenstalkctl.params import DURATION, TUBE
from greenstalkctl.selection import tube_not_found
from greenstalkctl.settings import Command, Settings


@click.command(cls=Command, short_help="Pause a tube.")
@click.argument("tube", type=TUBE, help="The tube to pause.")
@click.argument("time", type=DURATION, help="Duration: seconds, or for example 500ms, 5m, 1h30m, 2d.")
@click.option("--reason", default="", help="Reason shown on the tube's page; needs --api.")
@click.pass_obj
def pause(settings: Settings, tube: str, time: float, reason: str) -> None:
    """Pause TUBE for TIME: workers cannot reserve its jobs, but jobs can be put."""
    with settings.open_api("reasons for a pause") if reason else settings.open_queue() as queue:
        is_done = queue.pause(tube, time, reason) if isinstance(queue, Api) else queue.pause(tube, time)
        if not is_done:
            raise tube_not_found(queue, tube)
    settings.out.show({"tube": tube, "pause": time}, f"{tube} is paused for {time} s")


@click.command(cls=Command, short_help="End the pause of a tube.")
@click.argument("tube", type=TUBE, help="The paused tube.")
@click.pass_obj
def resume(settings: Settings, tube: str) -> None:
    """End the pause of TUBE."""
    with settings.open_queue() as queue:
        if not queue.pause(tube, 0):
            raise tube_not_found(queue, tube)
    settings.out.show({"tube": tube, "pause": 0}, f"{tube} is not paused")
