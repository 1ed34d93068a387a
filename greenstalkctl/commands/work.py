"""The `work` command: run a command for each job."""

from __future__ import annotations

import logging
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import click
import greenstalk

from greenstalk_client import Worker
from greenstalk_client.worker import MAX_CONCURRENCY
from greenstalkctl.errors import Interrupted, InvalidUsage, NoResult, Refused
from greenstalkctl.params import COUNT, DURATION
from greenstalkctl.runner import Retries, Runner
from greenstalkctl.selection import tube_argument
from greenstalkctl.settings import Command, Settings
from greenstalkctl.text import plural, printable

ENDLESS: Final = float("inf")
_COMMAND: Final = "greenstalkctl.command"


class _WithCommand(Command):
    """A command whose arguments after -- are a command of the system; the context's `meta` has them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "--", "COMMAND..."]


@click.command(cls=_WithCommand, short_help="Run a command for each job.")
@tube_argument("The tubes to reserve from.", is_list=True)
@click.option(
    "--concurrency",
    type=click.IntRange(1, MAX_CONCURRENCY),
    default=1,
    show_default=True,
    metavar="N",
    help="Commands that run at the same time.",
)
@click.option(
    "--attempts",
    type=click.IntRange(0),
    default=5,
    show_default=True,
    metavar="N",
    help="Attempts before a job is buried; 0 sets no limit.",
)
@click.option("--backoff", type=DURATION, default=10, help="Delay after the first failure; it doubles. Default: 10s.")
@click.option("--max-backoff", type=DURATION, default=3600, help="Longest delay after a failure. Default: 1h.")
@click.option(
    "--on-failure",
    type=click.Choice(("release", "bury")),
    default="release",
    show_default=True,
    help="Result of exit codes other than 0, 65 and 75.",
)
@click.option("--count", type=COUNT, metavar="N", help="End after this number of jobs.")
@click.option("--until-empty", is_flag=True, help="End when no job is ready.")
@click.pass_context
def work(
    ctx: click.Context,
    tubes: tuple[str, ...],
    concurrency: int,
    attempts: int,
    backoff: float,
    max_backoff: float,
    on_failure: str,
    count: int | None,
    until_empty: bool,
) -> None:
    """Reserve the jobs of each TUBE and run COMMAND for each, with the body on standard input.

    \b
    Exit codes of the command:
      0      the job is deleted
      65     the job is buried
      75     the job is released with a delay, and buried after its last attempt
      other  the same as 75, or with --on-failure bury as 65

    The command finds the job in the variables GREENSTALK_JOB_ID, GREENSTALK_JOB_TUBE, GREENSTALK_JOB_PRI,
    GREENSTALK_JOB_TTR and GREENSTALK_JOB_ATTEMPT. --timeout limits the time of each command.

    The first SIGTERM or Ctrl-C lets running commands end, the second sends SIGTERM to them, the third SIGKILL.
    """  # noqa: D301  \b tells click not to wrap a paragraph
    settings, command = ctx.ensure_object(Settings), _checked(ctx.meta[_COMMAND])
    time_limit = settings.take_timeout()
    with settings.connect() as server:  # reports a wrong address or certificate before the first job
        server.has_extensions()
    runner = Runner(command, Retries(attempts, backoff, max_backoff, on_failure == "bury"), time_limit)
    worker = Worker(
        tubes,
        runner,
        server=settings.connector(),
        concurrency=concurrency,
        stop_timeout=ENDLESS,
        max_jobs=count,
        until_empty=until_empty,
        always_meta=True,
    )
    with _logging(settings), _stopped_by_signals(settings, worker, runner) as signals:
        try:
            worker.run()
        except greenstalk.UnknownCommandError as error:
            why = "its access rules do not allow reserves from these tubes"
            raise Refused("UNKNOWN_COMMAND", f"{server.address} answered UNKNOWN_COMMAND: {why}") from error
    if len(signals) > 1:
        raise Interrupted("the commands were ended, and their jobs are ready again")
    if runner.failed and (count or until_empty):
        raise NoResult(f"the command failed for {plural(runner.failed)}")


def _checked(command: list[str]) -> list[str]:
    """Return *command*; raise InvalidUsage if it is missing, or no program."""
    if not command:
        raise InvalidUsage("write the command after --, as in `work mail -- ./send-mail`")
    if shutil.which(command[0]) is None:
        raise InvalidUsage(f"there is no program {command[0]}, or it is not executable")
    return command


@contextmanager
def _logging(settings: Settings) -> Iterator[None]:
    """Write the messages of the worker to stderr, with --quiet only warnings."""

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            settings.out.warn(printable(record.getMessage()))

    handler = Notes()
    loggers = [logging.getLogger(name) for name in ("greenstalkctl", "greenstalk_client")]
    for each in loggers:
        each.setLevel(logging.WARNING if settings.is_quiet else logging.INFO)
        each.addHandler(handler)
    try:
        yield
    finally:
        for each in loggers:
            each.removeHandler(handler)


@contextmanager
def _stopped_by_signals(settings: Settings, worker: Worker, runner: Runner) -> Iterator[list[int]]:
    """Handle SIGTERM and SIGINT; yield the list of signals that have arrived."""
    signals: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        if len(signals) == 1:
            worker.stop()
            settings.out.note("stopping when the running commands have ended; a second signal ends them")
        else:
            runner.end(signal.SIGTERM if len(signals) == 2 else signal.SIGKILL)

    saved = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield signals
    finally:
        for number, former in saved.items():
            signal.signal(number, former)
