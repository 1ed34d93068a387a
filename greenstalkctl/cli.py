"""The command `greenstalkctl`: its commands, and what a failure is called and exits with."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import TextIO

import click

from greenstalkctl.commands import (
    bench,
    bury,
    completion,
    delete,
    drain,
    help,
    jobs,
    kick,
    move,
    pause,
    peek,
    ping,
    put,
    stats,
    tail,
    top,
)
from greenstalkctl.exits import EXIT_DONE, EXIT_INTERRUPTED, EXIT_NOTHING, EXIT_USAGE, Failure
from greenstalkctl.settings import PROGRAM, Settings, Verbs
from greenstalkctl.text import printable


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="greenstalk-server", prog_name=PROGRAM)
def cli() -> None:
    """Look into a beanstalk server, and change what is in it. It works with ours and with beanstalkd.

    With --api, of ours, it lists and searches jobs, moves them as they are, and changes many at once.

    \b
    Exit codes:
      0    done
      1    nothing found, or not done, or what was done could not be written
      2    the command line is wrong, or lacks --yes where nobody can be asked
      3    the server cannot be connected to, or has gone away
      4    the server has refused (DRAINING, OUT_OF_MEMORY, JOB_TOO_BIG, a wrong token and the like)
      130  interrupted
    """  # noqa: D301  \b is click's mark of a paragraph that is not to be wrapped


for command in (
    ping.ping,
    stats.stats,
    stats.tubes,
    stats.tube,
    top.top,
    peek.peek,
    jobs.jobs,
    tail.tail,
    put.put,
    kick.kick,
    bury.bury,
    delete.delete,
    delete.clear,
    move.move,
    drain.drain_to,
    pause.pause,
    pause.resume,
    bench.bench,
    completion.completion,
    help.help,
):
    cli.add_command(command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with *argv*, by default the process's own arguments; return its exit code."""
    _prepare_streams()
    try:
        code = cli.main(argv, PROGRAM, standalone_mode=False, obj=Settings())
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        return _fail(error.format_message(), EXIT_USAGE)
    except click.UsageError as error:
        return _complain(f"{_sentence(error.format_message())} {_hint(error)}", EXIT_USAGE)
    except click.ClickException as error:  # a file that cannot be read
        return _complain(error.format_message(), EXIT_USAGE)
    except Failure as error:
        return _complain(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted", EXIT_INTERRUPTED)
    except MemoryError:
        return _complain("there is not enough memory for this", EXIT_NOTHING)
    except BrokenPipeError:  # whoever reads has enough
        _discard(sys.stdout)
        return EXIT_NOTHING
    except OSError as error:  # a full disk
        _discard(sys.stdout)
        return _complain(f"cannot write to stdout: {error.strerror}", EXIT_NOTHING)
    return code if isinstance(code, int) else EXIT_DONE


def _prepare_streams() -> None:
    """See to it that stdin, stdout and stderr are there, and that stdout takes all or raises."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # a script has closed it: what is written is lost, and reading fails
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), mode))
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    if isinstance(sys.stdout.buffer, io.RawIOBase):  # by PYTHONUNBUFFERED, and a TextIOWrapper ignores a short write
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(sys.stdout.buffer), sys.stdout.encoding)
    sys.stdout.reconfigure(errors="backslashreplace")  # a locale without the characters of a body ends no command


def _discard(stream: TextIO) -> None:
    """Drop what *stream* still holds: the interpreter would fail with it at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _sentence(message: str) -> str:
    return message if message.endswith((".", "?", "!")) else f"{message}."


def _hint(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx is not None else PROGRAM
    return f"See {path} --help."


def _complain(message: str, code: int) -> int:
    return _fail(f"{PROGRAM}: {printable(' '.join(message.split()))}", code)


def _fail(message: str, code: int) -> int:
    try:
        click.echo(message, err=True)
    except OSError:  # nobody can be told
        _discard(sys.stderr)
    return code
