"""The `raw` command: send one command of the protocol, and print the reply as it is."""

from __future__ import annotations

import os
import sys
from typing import Final

import click

from greenstalkctl.errors import InvalidUsage, NoResult, Refused
from greenstalkctl.server import MAX_LINE
from greenstalkctl.settings import Command, Settings
from greenstalkctl.text import fields, printable

NO_RESULTS: Final = ("NOT_FOUND", "TIMED_OUT", "NOT_IGNORED", "DEADLINE_SOON")
ERRORS: Final = (
    "OUT_OF_MEMORY", "INTERNAL_ERROR", "BAD_FORMAT", "UNKNOWN_COMMAND", "EXPECTED_CRLF", "JOB_TOO_BIG", "DRAINING",
    "ALREADY_RESERVED",
)  # fmt: skip
"""Error replies; DRAINING is also the reply to a `drain` that succeeds."""


@click.command(cls=Command, short_help="Send one command of the protocol.")
@click.argument("line", help="The command, such as 'stats-tube default', without the body of a put.")
@click.argument("body", required=False, help="The body of a put; its line then has no size.")
@click.pass_obj
def raw(settings: Settings, line: str, body: str | None) -> None:
    r"""Send LINE to the server and print the reply: its first line, then its body.

    A reservation ends with the connection, so a job that `reserve` returns is ready again at once. With BODY, the
    size is appended to LINE: raw 'put 0 0 60' hello. The exit code is 1 for NOT_FOUND and TIMED_OUT, and 4 for other
    error replies.
    """
    command, content = os.fsencode(line), None if body is None else os.fsencode(body)
    if not command.strip() or b"\n" in command or b"\r" in command or len(command) >= MAX_LINE:
        raise InvalidUsage(f"the command must be one line of at most {MAX_LINE - 1} bytes")
    if command.split()[0] in (b"put", b"put-in-tube") and content is None:
        raise InvalidUsage("give the body as the second argument, and no size: raw 'put 0 0 60' hello")
    with settings.connect() as server:
        reply, data = server.exchange(command, content)
    word = reply.split(" ")[0]
    if settings.is_json:
        settings.out.show({"reply": reply} | fields(data))
    elif not settings.is_quiet:
        click.echo(printable(reply))
        if data is not None and sys.stdout.isatty():
            click.echo(printable(data.decode(errors="replace"), keep="\n\t"))
        elif data is not None:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
    if word in NO_RESULTS:
        raise NoResult(f"{server.address} answered {word}")
    if word in ERRORS and not (word == "DRAINING" and command.split()[0] == b"drain"):
        raise Refused(word, f"{server.address} answered {word}")
