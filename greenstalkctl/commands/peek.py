"""The `peek` command: show a job without reserving it."""

from __future__ import annotations

import sys

import click

from greenstalkctl import text
from greenstalkctl.errors import InvalidUsage, NoResult, Refused
from greenstalkctl.output import key_value_lines
from greenstalkctl.params import JOB_OR_TUBE, TUBE
from greenstalkctl.queue import BURIED, DELAYED, READY, JobView
from greenstalkctl.selection import parse_words
from greenstalkctl.settings import Queue, Settings
from greenstalkctl.watching import ReadCommand


@click.command(cls=ReadCommand, short_help="Show a job without reserving it.")
@click.argument("word", metavar="ID|TUBE", type=JOB_OR_TUBE, required=False, help="The id of the job, or its tube.")
@click.option("--tube", type=TUBE, help="The same as TUBE, also for a name that is a number.")
@click.option("--ready", "state", flag_value=READY, help="The ready job that is reserved next (the default).")
@click.option("--delayed", "state", flag_value=DELAYED, help="The delayed job that becomes ready next.")
@click.option("--buried", "state", flag_value=BURIED, help="The job that was buried first.")
@click.option("--raw", is_flag=True, help="Write only the bytes of the body.")
@click.pass_obj
def peek(settings: Settings, word: int | str | None, tube: str | None, state: str | None, raw: bool) -> None:
    """Show a job by its id, or the next job of a tube.

    The body is shown as indented JSON, as text with control characters escaped, or as base64 if it is not UTF-8.
    """
    ids, tube = parse_words([word] if word is not None else [], tube)
    if bool(ids) == bool(tube) or (ids and state is not None):
        raise InvalidUsage("select a job by its ID, or by TUBE and --ready, --delayed or --buried")
    with settings.open_queue() as queue:
        view = _load(queue, ids, tube, state or READY)
        if not raw:
            settings.out.show(
                view.stats | text.fields(view.body), key_value_lines(view.stats), "", text.block(view.body)
            )
        elif view.body is None:
            raise Refused("403", f"{queue.address} hides the bodies of jobs")
        else:
            _write(view.body)


def _load(queue: Queue, ids: tuple[int, ...], tube: str | None, state: str) -> JobView:
    if ids:
        view, what = queue.view_job(ids[0]), f"job {ids[0]}"
    else:
        view, what = queue.view_next(str(tube), state), f"{state} job in tube {tube}"
    if view is None:
        raise NoResult(f"there is no {what} on {queue.address}")
    return view


def _write(body: bytes) -> None:
    """Write *body* unchanged; raise InvalidUsage if stdout is a terminal and the body has control characters."""
    if sys.stdout.isatty() and text.block(body) != body.decode(errors="replace"):
        raise InvalidUsage(
            "this body contains control characters for the terminal; redirect it to a file, or remove --raw"
        )
    sys.stdout.flush()
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.flush()
