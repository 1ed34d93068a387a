"""The `greenstalkctl` command group, and the mapping of errors to messages and exit codes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import TextIO

import click

from greenstalkctl.commands import (
    bury,
    capacity,
    cluster,
    completion,
    connections,
    delete,
    doctor,
    drain,
    errors,
    flush,
    help,
    jobs,
    kick,
    lease,
    mark,
    move,
    pause,
    peek,
    ping,
    policy,
    put,
    raw,
    redrive,
    reprioritize,
    servers,
    stats,
    tail,
    top,
    wait,
    work,
)
from greenstalkctl.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_NO_RESULT, EXIT_USAGE, CommandError
from greenstalkctl.settings import PROGRAM, CommandGroup, Settings
from greenstalkctl.text import printable
from greenstalkctl.version import full_version


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(full_version(), prog_name=PROGRAM)
def cli() -> None:
    """Inspect and change the jobs of a beanstalk server: Greenstalk Server or beanstalkd.

    With --api, which only Greenstalk Server has, you can also list and search jobs, move them with their ids, change
    many of them at once, set tube policies, and move dead letters back.

    \b
    Exit codes:
      0    done
      1    nothing found or nothing done, or the output could not be written
      2    invalid command line, or --yes is missing where there is no terminal to ask on
      3    cannot connect to the server, or the connection was lost
      4    the server refused (DRAINING, OUT_OF_MEMORY, JOB_TOO_BIG, a wrong token, ...)
      130  interrupted
    """  # noqa: D301  \b tells click not to wrap a paragraph


for command in (
    ping.ping,
    doctor.doctor,
    stats.stats,
    stats.tubes,
    stats.tube,
    stats.stats_group,
    top.top,
    peek.peek,
    jobs.jobs,
    errors.errors,
    tail.tail,
    put.put,
    wait.wait,
    work.work,
    kick.kick,
    bury.bury,
    reprioritize.reprioritize,
    lease.reserve,
    lease.release,
    lease.lease,
    delete.delete,
    delete.clear,
    flush.flush,
    flush.truncate,
    move.move,
    redrive.redrive,
    drain.drain_to,
    drain.drain,
    drain.undrain,
    pause.pause,
    pause.resume,
    policy.policy,
    connections.connections,
    mark.mark,
    raw.raw,
    servers.servers,
    cluster.cluster,
    capacity.capacity,
    completion.completion,
    help.help,
):
    cli.add_command(command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with *argv* (default: the arguments of the process); return its exit code."""
    _prepare_streams()
    try:
        code = cli.main(argv, PROGRAM, standalone_mode=False, obj=Settings())
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        return _write_error(error.format_message(), EXIT_USAGE)
    except click.UsageError as error:
        return _report_error(f"{_sentence(error.format_message())} {_hint(error)}", EXIT_USAGE)
    except click.ClickException as error:  # for example a file that cannot be read
        return _report_error(error.format_message(), EXIT_USAGE)
    except CommandError as error:
        return _report_error(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _report_error("interrupted", EXIT_INTERRUPTED)
    except MemoryError:
        return _report_error("out of memory", EXIT_NO_RESULT)
    except BrokenPipeError:  # the reader of the pipe has closed it
        _discard(sys.stdout)
        return EXIT_NO_RESULT
    except OSError as error:  # for example a full disk
        _discard(sys.stdout)
        return _report_error(f"cannot write to stdout: {error.strerror}", EXIT_NO_RESULT)
    return code if isinstance(code, int) else EXIT_DONE


def _prepare_streams() -> None:
    """Ensure that stdin, stdout and stderr exist, and that stdout writes everything or raises."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by a script: output is discarded, and reading fails
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), mode))
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    if isinstance(sys.stdout.buffer, io.RawIOBase):  # PYTHONUNBUFFERED is set; a TextIOWrapper ignores short writes
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(sys.stdout.buffer), sys.stdout.encoding)
    sys.stdout.reconfigure(errors="backslashreplace")  # the locale may lack characters of a body


def _discard(stream: TextIO) -> None:
    """Discard what *stream* still buffers, which the interpreter would fail to flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _sentence(message: str) -> str:
    return message if message.endswith((".", "?", "!")) else f"{message}."


def _hint(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx is not None else PROGRAM
    return f"See {path} --help."


def _report_error(message: str, code: int) -> int:
    return _write_error(f"{PROGRAM}: {printable(' '.join(message.split()))}", code)


def _write_error(message: str, code: int) -> int:
    try:
        click.echo(message, err=True)
    except OSError:  # stderr is not writable either
        _discard(sys.stderr)
    return code
