"""Putting jobs: one, or one for each line of a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import BinaryIO, Final

import click

from greenstalkctl.exits import Misuse
from greenstalkctl.params import DURATION, PRI, TUBE
from greenstalkctl.queue import MAX_BODY
from greenstalkctl.server import DEFAULT_PRI, DEFAULT_TTR, DEFAULT_TUBE
from greenstalkctl.settings import Settings, Verb

_CHUNK: Final = 2**20


@click.command(cls=Verb, short_help="Put a job, or one for each line.")
@click.argument("body", required=False, help="The body of the job.")
@click.option("--file", type=click.File("rb"), help="Read the body from this file; - is standard input.")
@click.option("--tube", type=TUBE, default=DEFAULT_TUBE, help="Put it into this tube; `default` without it.")
@click.option("--pri", type=PRI, default=DEFAULT_PRI, show_default=True, help="0 is the most urgent.")
@click.option("--delay", type=DURATION, default=0, help="Time until it is ready, such as 90, 5m or 1h30m.")
@click.option("--ttr", type=DURATION, default=DEFAULT_TTR, show_default=True, help="Time a worker has for it.")
@click.option("--lines", is_flag=True, help="One job for each line of the input, without its newline.")
@click.pass_obj
def put(
    settings: Settings, body: str | None, file: BinaryIO | None, tube: str, pri: int, delay: int, ttr: int, lines: bool
) -> None:
    """Put a job whose body is BODY, a file, or else standard input, and say its id."""
    if body is not None and (file is not None or lines):
        raise Misuse("the body is either BODY or the input, which --file and --lines read")
    source = file or sys.stdin.buffer
    with settings.reach() as queue:
        if body is None and source.isatty():
            what = "a job on each line" if lines else "the body"
            settings.out.note(f"Type {what}, then Ctrl-D at the start of a line; Ctrl-C puts nothing more.")
        for content in _bodies(body, source, has_lines=lines):
            job_id = queue.put(tube, content, pri, delay, ttr)
            settings.out.show({"id": job_id, "tube": tube}, str(job_id))


def _bodies(body: str | None, source: BinaryIO, *, has_lines: bool) -> Iterator[bytes]:
    """Each body; a line as soon as it comes, since the input may never end."""
    if body is not None:
        yield os.fsencode(body)
        return
    try:
        if not has_lines:
            yield _checked(_read(source))
            return
        while line := source.readline(MAX_BODY + 2):
            yield _checked(line.removesuffix(b"\n"))
    except OSError as error:
        raise Misuse(f"cannot read the input: {error.strerror}") from error


def _read(source: BinaryIO) -> bytes:
    """All of *source*, or more than MAX_BODY of it: it may never end."""
    body = bytearray()
    while len(body) <= MAX_BODY:
        chunk = source.read(_CHUNK)
        body += chunk
        if len(chunk) < _CHUNK:  # the end; on a terminal another read would wait for a second Ctrl-D
            break
    return bytes(body)


def _checked(body: bytes) -> bytes:
    if len(body) > MAX_BODY:
        raise Misuse(f"the body is larger than {MAX_BODY} bytes, which is the most that a server takes")
    return body
