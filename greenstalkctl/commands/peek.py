"""Looking at one job, without taking it."""

from __future__ import annotations

import sys

import click

from greenstalkctl import text
from greenstalkctl.exits import Misuse, Nothing, Refused
from greenstalkctl.output import pairs
from greenstalkctl.params import JOB_ID, TUBE
from greenstalkctl.queue import BURIED, DELAYED, READY, Queue, Seen
from greenstalkctl.settings import Settings, Verb


@click.command(cls=Verb, short_help="Show a job, without taking it.")
@click.argument("job_id", metavar="[ID]", type=JOB_ID, required=False, help="The id of the job.")
@click.option("--tube", type=TUBE, help="Look at the next job of this tube.")
@click.option("--ready", "state", flag_value=READY, help="The next ready one (this is the default).")
@click.option("--delayed", "state", flag_value=DELAYED, help="The delayed one that is due next.")
@click.option("--buried", "state", flag_value=BURIED, help="The one that was buried first.")
@click.option("--raw", is_flag=True, help="Write the bytes of the body, and nothing else.")
@click.pass_obj
def peek(settings: Settings, job_id: int | None, tube: str | None, state: str | None, raw: bool) -> None:
    """Show a job by its id, or the one of a tube whose turn is next.

    The body is shown as JSON, as text with control characters escaped, or as base64 if it is no UTF-8.
    """
    if (job_id is None) == (tube is None) or (job_id is not None and state is not None):
        raise Misuse("say which job: either its ID, or --tube NAME with --ready, --delayed or --buried")
    with settings.reach() as queue:
        seen = _found(queue, job_id, tube, state or READY)
        if not raw:
            settings.out.show(seen.stats | text.fields(seen.body), pairs(seen.stats), "", text.block(seen.body))
        elif seen.body is None:
            raise Refused("403", f"{queue.address} hides the bodies of jobs")
        else:
            _write(seen.body)


def _found(queue: Queue, job_id: int | None, tube: str | None, state: str) -> Seen:
    if job_id is not None:
        seen, what = queue.see(job_id), f"job {job_id}"
    else:
        seen, what = queue.see_first(str(tube), state), f"{state} job in tube {tube}"
    if seen is None:
        raise Nothing(f"there is no {what} on {queue.address}")
    return seen


def _write(body: bytes) -> None:
    """Write *body* as it is; raise Misuse where a terminal would act on it."""
    if sys.stdout.isatty() and text.block(body) != body.decode(errors="replace"):
        raise Misuse("this body would send control characters to the terminal; write it to a file, or leave out --raw")
    sys.stdout.flush()
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.flush()
