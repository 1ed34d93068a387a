"""The `put` command: put one job, or one for each line of the input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import click

from greenstalkctl.errors import InvalidUsage
from greenstalkctl.params import COUNT, DURATION, KEY, PRI, TUBE, WHOLE_DURATION
from greenstalkctl.queue import MAX_BODY
from greenstalkctl.server import DEFAULT_PRI, DEFAULT_TTR, DEFAULT_TUBE
from greenstalkctl.settings import Command, Settings

_CHUNK: Final = 2**20


@click.command(cls=Command, short_help="Put a job, or one per line.")
@click.argument("bodies", nargs=-1, metavar="[BODY]", help="The body of the job.")
@click.option("--file", type=click.File("rb"), help="Read the body from this file; - means standard input.")
@click.option("--tube", type=TUBE, default=DEFAULT_TUBE, help="Put the job into this tube. Default: `default`.")
@click.option("--pri", type=PRI, default=DEFAULT_PRI, show_default=True, help="Priority; 0 is the most urgent.")
@click.option("--delay", type=DURATION, default=0, help="Time until the job is ready, such as 90, 5m or 1h30m.")
@click.option(
    "--ttr",
    type=DURATION,
    default=DEFAULT_TTR,
    show_default=True,
    help="Time to run: how long a worker may hold the job.",
)
@click.option("--idempotency-key", type=KEY, help="Put no job if the tube has a job with this key.")
@click.option(
    "--idempotency-ttl",
    type=WHOLE_DURATION,
    default=0,
    help="Time that the key stays taken after the job is deleted.",
)
@click.option("--group", type=KEY, help="Group that the job belongs to.")
@click.option("--after", type=KEY, metavar="GROUP", help="Group that must be empty before the job becomes ready.")
@click.option("--concurrency-key", type=KEY, help="Key that limits the number of jobs that run at a time; see --limit.")
@click.option(
    "--limit",
    "concurrency_limit",
    type=COUNT,
    metavar="N",
    help="Maximum number of jobs with the --concurrency-key that run at a time. Default: 1.",
)
@click.option("--lines", is_flag=True, help="Put one job for each line of the input, without its newline.")
@click.pass_obj
def put(
    settings: Settings,
    /,
    bodies: tuple[str, ...],
    file: BinaryIO | None,
    tube: str,
    pri: int,
    delay: float,
    ttr: float,
    lines: bool,
    **tags: Any,
) -> None:
    """Put a job and print its id. The body is BODY, the content of --file, or standard input.

    Keys, groups and fractions of seconds need Greenstalk Server. If a job has the --idempotency-key,
    print the id of that job.
    """
    if len(bodies) > 1:
        raise InvalidUsage("put takes one argument, the body; quote it, and name the tube with --tube")
    body = next(iter(bodies), None)
    tags = {name: value for name, value in tags.items() if value}
    if "concurrency_limit" in tags and "concurrency_key" not in tags:
        raise InvalidUsage("--limit needs --concurrency-key KEY")
    if "idempotency_ttl" in tags and "idempotency_key" not in tags:
        raise InvalidUsage("--idempotency-ttl needs --idempotency-key KEY")
    if body is not None and (file is not None or lines):
        raise InvalidUsage("give the body either as BODY or as input (--file, --lines), not both")
    source = file or sys.stdin.buffer
    with settings.open_queue() as queue:
        if body is None and source.isatty():
            what = "a job on each line" if lines else "the body"
            settings.out.note(f"Type {what}, then press Ctrl-D at the start of a line. Ctrl-C cancels.")
        for content in _read_bodies(body, source, has_lines=lines):
            job_id = queue.put(tube, content, pri, delay, ttr, **tags)
            shown = {"id": job_id, "tube": tube}
            if "idempotency_key" in tags:
                shown["existing"] = job_id.state
            if job_id.state is not None:
                settings.out.note(f"job {job_id} already has this key; its state is {job_id.state}")
            settings.out.show(shown, str(job_id))


def _read_bodies(body: str | None, source: BinaryIO, *, has_lines: bool) -> Iterator[bytes]:
    """Yield each body; a line as soon as it is read, because the input may never end."""
    if body is not None:
        yield os.fsencode(body)
        return
    try:
        if not has_lines:
            yield _checked(_read_all(source))
            return
        while line := source.readline(MAX_BODY + 2):
            yield _checked(line.removesuffix(b"\n"))
    except OSError as error:
        raise InvalidUsage(f"cannot read the input: {error.strerror}") from error


def _read_all(source: BinaryIO) -> bytes:
    """Read *source* to its end, or stop above MAX_BODY bytes, because it may never end."""
    body = bytearray()
    while len(body) <= MAX_BODY:
        chunk = source.read(_CHUNK)
        body += chunk
        if len(chunk) < _CHUNK:  # end of input; on a terminal, another read would wait for a second Ctrl-D
            break
    return bytes(body)


def _checked(body: bytes) -> bytes:
    if len(body) > MAX_BODY:
        raise InvalidUsage(f"the body is larger than {MAX_BODY} bytes, the largest limit that a server can have")
    return body
