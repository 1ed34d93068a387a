"""The `peek` command: show a job without reserving it."""

from __future__ import annotations

import sys

import click

from greenstalkctl import text
from greenstalkctl.errors import InvalidUsage, NoResult, Refused
from greenstalkctl.output import key_value_lines
from greenstalkctl.params import JOB_ID, TUBE
from greenstalkctl.queue import BURIED, DELAYED, READY, JobView, Queue
from greenstalkctl.settings import Command, Settings


@click.command(cls=Command, short_help="Show a job without reserving it.")
@click.argument("job_id", metavar="[ID]", type=JOB_ID, required=False, help="The id of the job.")
@click.option("--tube", type=TUBE, help="Show the next job of this tube.")
@click.option("--ready", "state", flag_value=READY, help="The ready job that is reserved next (the default).")
@click.option("--delayed", "state", flag_value=DELAYED, help="The delayed job that becomes ready next.")
@click.option("--buried", "state", flag_value=BURIED, help="The job that was buried first.")
@click.option("--raw", is_flag=True, help="Write only the bytes of the body.")
@click.pass_obj
def peek(settings: Settings, job_id: int | None, tube: str | None, state: str | None, raw: bool) -> None:
    """Show a job by its id, or the next job of a tube.

    The body is shown as indented JSON, as text with control characters escaped, or as base64 if it is not UTF-8.
    """
    if (job_id is None) == (tube is None) or (job_id is not None and state is not None):
        raise InvalidUsage("select a job by its ID, or with --tube NAME and --ready, --delayed or --buried")
    with settings.open_queue() as queue:
        view = _load(queue, job_id, tube, state or READY)
        if not raw:
            settings.out.show(
                view.stats | text.fields(view.body), key_value_lines(view.stats), "", text.block(view.body)
            )
        elif view.body is None:
            raise Refused("403", f"{queue.address} hides the bodies of jobs")
        else:
            _write(view.body)


def _load(queue: Queue, job_id: int | None, tube: str | None, state: str) -> JobView:
    if job_id is not None:
        view, what = queue.view_job(job_id), f"job {job_id}"
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
