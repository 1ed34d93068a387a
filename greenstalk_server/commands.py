"""The commands of the program `greenstalk-server`, such as `config` and `journal`: all that is not the server."""

from __future__ import annotations

import getpass
import os
import sys
from typing import Final

from greenstalk_server import BUILD, __version__
from greenstalk_server.config import show
from greenstalk_server.config.command_line import (
    CheckConfig,
    Command,
    Handover,
    HashPassword,
    Information,
    JournalCheck,
    JournalExport,
    JournalImport,
    JournalReshard,
    MoveShard,
    ShowCluster,
    ShowConfig,
    ShowVersion,
    parse,
)
from greenstalk_server.config.options import PROGRAM, Options, UsageError
from greenstalk_server.config.text import is_database_url, without_password
from greenstalk_server.journal import record
from greenstalk_server.journal.backups import export_dated
from greenstalk_server.journal.check import check
from greenstalk_server.journal.reshard import reshard
from greenstalk_server.journal.transfer import export_journal, import_journal
from greenstalk_server.preflight import MAX_PASSWORD, check_start, importing_psycopg
from greenstalk_server.runtime.exit_codes import EXIT_JOURNAL, EXIT_OK, MEMORY_ADVICE, StartError
from greenstalk_server.runtime.gc_tuning import pause_gc

EXIT_UNWRITTEN: Final = 1
"""The output of a command could not be written to stdout."""


def run_and_flush(command: Command) -> int:
    """Run *command*; return EXIT_UNWRITTEN, with a message on stderr, if the output cannot be written to stdout."""
    try:
        code = _run_within_memory(command)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the interpreter fails at its exit
        if not isinstance(error, BrokenPipeError):  # the reader has closed the pipe on purpose
            print(f"{PROGRAM}: cannot write to stdout: {error.strerror}", file=sys.stderr)
        return EXIT_UNWRITTEN
    return code


def _run_within_memory(command: Command) -> int:
    """Run *command*; raise StartError if there is too little memory for a journal: its largest job must fit."""
    try:
        return _run_command(command)
    except MemoryError:
        match command:
            case JournalCheck(where):
                what = f"check: {where}: not enough memory to read it"
            case JournalExport(where, target):
                outcome = "nothing was exported" if target is not None else "the output is not complete"
                where = without_password(where) if is_database_url(where) else where
                what = f"export: {where}: not enough memory to read it; {outcome}"
            case JournalReshard(where):
                where = without_password(where) if is_database_url(where) else where
                what = f"reshard: {where}: not enough memory to read it; nothing was changed"
            case JournalImport(_, source):
                what = f"import: {source or 'stdin'}: not enough memory to read it; nothing was imported"
            case _:
                raise
        raise StartError(f"journal {what}; {MEMORY_ADVICE}", EXIT_JOURNAL) from None


def _run_command(command: Command) -> int:
    """Run *command*, which may be any but Options; return the exit code."""
    match command:
        case Information(text):
            print(text, end="")
        case ShowVersion():
            print(f"{PROGRAM} {__version__} ({BUILD.name}), journal format {record.VERSION}")
        case ShowConfig(options, is_json):
            for warning in options.warnings:
                print(f"{PROGRAM}: warning: {warning}", file=sys.stderr)
            print(show.as_json(options) if is_json else show.as_table(options), end="")
        case CheckConfig(checked, problems):
            return check_start(checked, problems, os.environ)
        case Handover(options):
            with importing_psycopg():
                from greenstalk_server.cluster.leadership import hand_over  # noqa: PLC0415  optional dependency
            return hand_over(options)
        case ShowCluster(options):
            with importing_psycopg():
                from greenstalk_server.cluster.queue_command import show_cluster  # noqa: PLC0415  optional dependency
            return show_cluster(options)
        case MoveShard(options, shard, process):
            with importing_psycopg():
                from greenstalk_server.cluster.queue_command import move_shard  # noqa: PLC0415  optional dependency
            return move_shard(options, shard, process)
        case HashPassword():
            return _hash_password()
        case _:
            return _run_journal_command(command)
    return EXIT_OK


def _run_journal_command(command: Command) -> int:
    """Run *command*, one of the commands `journal`; return the exit code."""
    match command:
        case JournalCheck(where):
            return _check_journal(where)
        case JournalExport():
            return _export_journal(command)
        case JournalImport(where, source):
            if is_database_url(where):
                with importing_psycopg():
                    from greenstalk_server.journal.postgresql.transfer import import_shared  # noqa: PLC0415
                return import_shared(where, _journal_name(), source)
            return import_journal(where, source)
        case JournalReshard(where, shards, pins):
            pause_gc()
            if is_database_url(where):
                with importing_psycopg():
                    from greenstalk_server.journal.postgresql.reshard import reshard_shared  # noqa: PLC0415
                return reshard_shared(where, _journal_name(), shards, pins)
            return reshard(where, shards, pins)
    raise AssertionError(command)


def _check_journal(where: str) -> int:
    """Report the contents of the journal in the directory *where*; raise UsageError for a database."""
    if is_database_url(where):
        advice = "use `journal export`, which reads all of a database's journal"
        raise UsageError(f"journal check: {without_password(where)}: must be a directory; {advice}")
    return check(where)


def _export_journal(command: JournalExport) -> int:
    pause_gc()

    def export(target: str | None) -> int:
        if not is_database_url(command.directory):
            return export_journal(command.directory, target, command.is_quiet)
        with importing_psycopg():
            from greenstalk_server.journal.postgresql.transfer import export_shared  # noqa: PLC0415
        return export_shared(command.directory, _journal_name(), target, command.is_quiet)

    if command.target is None or command.keep is None:
        return export(command.target)
    return export_dated(command.target, command.keep, export)


def _hash_password() -> int:
    """Read a password from the terminal or the first line of stdin, and print its hash."""
    from werkzeug.security import generate_password_hash  # noqa: PLC0415  imports half of Flask

    if sys.stdin.isatty():
        password = getpass.getpass("Password: ")
        if password != getpass.getpass("Again: "):
            raise UsageError("hash-password: the passwords differ")
    else:
        password = sys.stdin.readline(MAX_PASSWORD + 2).rstrip("\r\n")
    if not 0 < len(password) <= MAX_PASSWORD:
        raise UsageError(f"hash-password: the first line of stdin must be a password of 1 to {MAX_PASSWORD} characters")
    print(generate_password_hash(password))
    return EXIT_OK


def _journal_name() -> str:
    """Return the name of the journal in a database, for an export or import; raise UsageError if it is invalid."""
    variable = "GREENSTALK_JOURNAL_NAME"
    options = parse((), {variable: os.environ.get(variable, "")})
    assert isinstance(options, Options)
    return options.journal_name
