"""Keeping workers from the ready jobs of a tube for a time."""

from __future__ import annotations

import click

from greenstalkctl.api import Api
from greenstalkctl.params import DURATION, TUBE
from greenstalkctl.selection import no_tube
from greenstalkctl.settings import Settings, Verb


@click.command(cls=Verb, short_help="Give out no job of a tube for a time.")
@click.argument("tube", type=TUBE, help="The tube to pause.")
@click.argument("time", type=DURATION, help="For how long: seconds, or such as 5m, 1h30m, 2d.")
@click.option("--reason", default="", help="Why, for whoever looks at the tube; needs --api.")
@click.pass_obj
def pause(settings: Settings, tube: str, time: int, reason: str) -> None:
    """Give out no job of TUBE for TIME: seconds, or such as 5m, 1h30m, 2d. Puts go on."""
    with settings.reach_api("reasons for a pause") if reason else settings.reach() as queue:
        is_done = queue.pause(tube, time, reason) if isinstance(queue, Api) else queue.pause(tube, time)
        if not is_done:
            raise no_tube(queue, tube)
    settings.out.show({"tube": tube, "pause": time}, f"{tube} is paused for {time} s")


@click.command(cls=Verb, short_help="End the pause of a tube.")
@click.argument("tube", type=TUBE, help="The tube that is paused.")
@click.pass_obj
def resume(settings: Settings, tube: str) -> None:
    """End the pause of TUBE."""
    with settings.reach() as queue:
        if not queue.pause(tube, 0):
            raise no_tube(queue, tube)
    settings.out.show({"tube": tube, "pause": 0}, f"{tube} is not paused")
