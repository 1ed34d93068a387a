"""Keeping workers from the ready jobs of a tube for a time."""

from __future__ import annotations

import click

from greenstalkctl.exits import Nothing
from greenstalkctl.params import DURATION, TUBE
from greenstalkctl.settings import Settings, Verb


@click.command(cls=Verb, short_help="Give out no job of a tube for a time.")
@click.argument("tube", type=TUBE)
@click.argument("time", type=DURATION)
@click.pass_obj
def pause(settings: Settings, tube: str, time: int) -> None:
    """Give out no job of TUBE for TIME: seconds, or such as 5m, 2h, 1d. Puts go on."""
    _pause(settings, tube, time)
    settings.out.show({"tube": tube, "pause": time}, f"{tube} is paused for {time} s")


@click.command(cls=Verb, short_help="End the pause of a tube.")
@click.argument("tube", type=TUBE)
@click.pass_obj
def resume(settings: Settings, tube: str) -> None:
    """End the pause of TUBE."""
    _pause(settings, tube, 0)
    settings.out.show({"tube": tube, "pause": 0}, f"{tube} is not paused")


def _pause(settings: Settings, tube: str, seconds: int) -> None:
    with settings.connect() as server:
        if not server.pause(tube, seconds):
            raise Nothing(f"there is no tube {tube} on {server.address}; `greenstalkctl tubes` lists those there are")
