"""The `pause` and `resume` commands."""

from __future__ import annotations

import click

from greenstalkctl.api import Api
from greenstalkctl.errors import InvalidUsage
from greenstalkctl.params import DURATION, PATTERN, TUBE
from greenstalkctl.selection import tube_argument, tube_not_found
from greenstalkctl.settings import Command, Settings
from greenstalkctl.tube_change import change_tubes


@click.command(cls=Command, short_help="Pause a tube, or tubes by a pattern.")
@click.argument(
    "words", nargs=-1, required=True, metavar="[TUBE] TIME", help="The tube, and the duration, such as 90, 5m or 1h30m."
)
@click.option("--tube", type=TUBE, help="The same as TUBE.")
@click.option("--pattern", type=PATTERN, help="Pause all tubes that match, such as 'billing.*'; needs --api.")
@click.option("--reason", default="", help="Reason shown on the tube's page; needs --api.")
@click.pass_context
def pause(ctx: click.Context, words: tuple[str, ...], tube: str | None, pattern: str | None, reason: str) -> None:
    """Pause TUBE for TIME: workers cannot reserve its jobs, but jobs can be put.

    With --pattern, pause all tubes that match, after a confirmation.
    """
    settings = ctx.ensure_object(Settings)
    *named, duration = words
    time = DURATION.convert(duration, None, ctx)
    tubes = [TUBE.convert(name, None, ctx) for name in named] + ([] if tube is None else [tube])
    if len(tubes) != (pattern is None):
        raise InvalidUsage("give either TUBE TIME, or --pattern PATTERN TIME")
    if pattern is not None:
        change_tubes(settings, "pause", pattern, {"seconds": time, "reason": reason}, "ready job")
        return
    (tube,) = tubes
    with settings.open_api("reasons for a pause") if reason else settings.open_queue() as queue:
        is_done = queue.pause(tube, time, reason) if isinstance(queue, Api) else queue.pause(tube, time)
        if not is_done:
            raise tube_not_found(queue, tube)
    settings.out.show({"tube": tube, "pause": time}, f"{tube} is paused for {time} s")


@click.command(cls=Command, short_help="End the pause of a tube, or of tubes by a pattern.")
@tube_argument("The paused tube.", is_required=False)
@click.option("--pattern", type=PATTERN, help="Resume all tubes that match, such as 'billing.*'; needs --api.")
@click.pass_obj
def resume(settings: Settings, tube: str | None, pattern: str | None) -> None:
    """End the pause of TUBE. With --pattern, end the pauses of all tubes that match, after a confirmation."""
    if (tube is None) == (pattern is None):
        raise InvalidUsage("give either TUBE or --pattern PATTERN")
    if pattern is not None:
        change_tubes(settings, "resume", pattern, {}, "ready job")
        return
    assert tube is not None
    with settings.open_queue() as queue:
        if not queue.pause(tube, 0):
            raise tube_not_found(queue, tube)
    settings.out.show({"tube": tube, "pause": 0}, f"{tube} is resumed")
