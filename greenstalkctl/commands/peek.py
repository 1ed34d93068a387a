"""Looking at one job, without taking it."""

from __future__ import annotations

import sys

import click

from greenstalkctl import text
from greenstalkctl.exits import Misuse, Nothing
from greenstalkctl.output import Output, pairs
from greenstalkctl.params import JOB_ID, TUBE
from greenstalkctl.server import BURIED, DELAYED, READY, Job, Server
from greenstalkctl.settings import Settings, Verb


@click.command(cls=Verb, short_help="Show a job, without taking it.")
@click.argument("job_id", metavar="[ID]", type=JOB_ID, required=False)
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
    with settings.connect() as server:
        job = _found(server, job_id, tube, state or READY)
        if raw:
            _write(job.body)
        else:
            _show(settings.out, server, job)


def _found(server: Server, job_id: int | None, tube: str | None, state: str) -> Job:
    if job_id is not None:
        job, what = server.peek(job_id), f"job {job_id}"
    else:
        job, what = server.first(str(tube), state), f"{state} job in tube {tube}"
    if job is None:
        raise Nothing(f"there is no {what} on {server.address}")
    return job


def _show(out: Output, server: Server, job: Job) -> None:
    figures = server.job(job.id) or {"id": job.id}  # that is all, if it has been deleted since
    figures["bytes"] = len(job.body)
    out.show(figures | text.fields(job.body), pairs(figures), "", text.block(job.body))


def _write(body: bytes) -> None:
    """Write *body* as it is; raise Misuse where a terminal would act on it."""
    if sys.stdout.isatty() and text.block(body) != body.decode(errors="replace"):
        raise Misuse("this body would send control characters to the terminal; write it to a file, or leave out --raw")
    sys.stdout.flush()
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.flush()
