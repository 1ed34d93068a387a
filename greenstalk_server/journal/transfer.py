"""`greenstalk-server journal export` and `journal import`: from a directory to an archive, and back.

An export reads as `journal check` does, and changes nothing. An import writes a fresh journal, one segment at a time.
Its jobs are between two marks, and the second mark is written once the archive was read to its end. So a start finds
all of the jobs or none, even if the import is interrupted.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from greenstalk_server.core.jobs.job import Job
from greenstalk_server.journal import record
from greenstalk_server.journal.archive import BadLine, Count, Key, Pause, Policy, Reader, Writer
from greenstalk_server.journal.check import Report, inspect
from greenstalk_server.journal.files import FILE_MODE, Directory, Files
from greenstalk_server.journal.lock import LOCK_NAME, DirectoryLock
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.segment import name_of
from greenstalk_server.journal.shard_file import SHARD_FILE
from greenstalk_server.runtime.exit_codes import EXIT_DAMAGED, EXIT_JOURNAL, EXIT_OK, StartError
from greenstalk_server.runtime.system import sync_all

SEGMENT_SIZE: Final = 10 * 2**20
"""Bytes of a segment that an import writes; a single larger job exceeds it."""

BUFFER: Final = 2**20

MAX_HEAD: Final = 65536
"""Maximum bytes of the first line."""


def export_journal(directory: str, target: str | None, is_quiet: bool = False) -> int:
    """Export the journal in *directory* to the file *target*, or to stdout; return the exit code; raise StartError.

    The file is created whole or not at all. Messages go to stderr; if *is_quiet*, only damage is reported.
    """
    now = time.time_ns()
    report = inspect(directory, now, "export")
    refuse_incomplete(report)
    in_use = f"{directory} is in use by {report.holder}" if report.holder else ""
    return write_archive(report.recovery, now, target, in_use, is_quiet)


def write_archive(recovery: Recovery, now: int, target: str | None, in_use: str, is_quiet: bool) -> int:
    """Write the settled *recovery* to *target*, or to stdout; return the exit code; raise StartError.

    *in_use*: message that names the server which uses the journal; empty if none does.
    """
    writer = Writer()
    jobs = [recovery.jobs[id] for id in sorted(recovery.jobs) if not recovery.jobs[id].is_truncated]
    try:
        with _output(target) as out:
            out.writelines(writer.lines(now, next_id_above(recovery), entries_of(recovery), jobs))
    except OSError as error:
        outcome = "the output is not complete" if target is None or _is_special(target) else "no file was written"
        raise StartError(f"journal export: {target or 'stdout'}: {error.strerror}; {outcome}", EXIT_JOURNAL) from error
    if in_use and not is_quiet:
        _print_status(f"{in_use}; the archive has all changes that were acknowledged before the export began")
    for damage in recovery.damage:
        _print_status(f"{damage}")
    if not is_quiet:
        _print_status(f"{_describe(writer.count)} exported")
    return EXIT_OK if recovery.is_sound else EXIT_DAMAGED


def entries_of(recovery: Recovery) -> Iterator[Pause | Policy | Key]:
    """Yield what the settled *recovery* has besides jobs, in the order of an archive."""
    yield from [Pause(name, until, length) for name, (until, length) in sorted(recovery.pauses.items())]
    yield from [Policy(name, document) for name, document in sorted(recovery.policies.items())]
    yield from [Key(tube, key, id, until) for (tube, key), (id, until) in sorted(recovery.keys.items())]


def next_id_above(recovery: Recovery) -> int:
    """Return an id above all that *recovery* has, foreign ones included, and above all that its shard has assigned."""
    used = [*recovery.jobs, *(id for id, _ in recovery.keys.values())]
    return max(recovery.next_id, max(used, default=0) + 1)


def import_journal(directory: str, source: str | None) -> int:
    """Import the file *source*, or stdin, into the empty *directory*; return the exit code; raise StartError."""
    _refuse_unless_empty(directory)
    try:
        with closing(_lock(directory)):
            _refuse_unless_empty(directory)
            read_archive(Directory(directory), directory, source)
    except OSError as error:
        message = f"journal import: {error.filename or directory}: {error.strerror}; nothing was imported"
        raise StartError(message, EXIT_JOURNAL) from error
    return EXIT_OK


def read_archive(files: Files, label: str, source: str | None) -> None:
    """Import *source* or stdin into *files*, which are empty; raise StartError or OSError. *label* is for messages."""
    with _input(source) as lines:
        reader = Reader(lines)
        try:
            count = _import(files, reader)
        except BadLine as error:
            message = f"journal import: {source or 'stdin'}:{reader.number}: {error}; nothing was imported"
            raise StartError(message, EXIT_DAMAGED) from error
    print(f"{label}: {_describe(count)} imported", file=sys.stderr)


def refuse_incomplete(report: Report, verb: str = "export") -> None:
    """Raise StartError if there is no journal, if a start would refuse it, or would first import jobs into it."""
    if report.recovery.refusal:
        message = f"{report.directory}: {report.recovery.refusal}"
    elif report.source.jobs and not report.is_imported:
        message = f"{report.directory}: start a server on it first, so that beanstalkd's files are imported"
    elif report.recovery.is_import_open and not report.source.jobs:
        message = f"{report.directory}: an import into it was interrupted; there is nothing to export"
    elif not report.sizes:
        message = f"{report.directory}: there is no journal in it"
    else:
        return
    raise StartError(f"journal {verb}: {message}", EXIT_JOURNAL)


@contextmanager
def _output(target: str | None) -> Iterator[BinaryIO]:
    """Provide the output: stdout, or a file that replaces *target* once it is on disk whole."""
    if target is None or _is_special(target):
        with open(target or sys.stdout.fileno(), "wb", BUFFER, closefd=target is not None) as out:
            yield out
        return
    part = f"{target}.part"
    try:
        with suppress(FileNotFoundError):
            Path(part).unlink()  # left by an export that was killed; it may have any mode
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE), "wb", BUFFER) as out:  # noqa: PTH123
            yield out
            out.flush()
            sync_all(out.fileno())
        Path(part).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(part).unlink()
        raise
    Directory(str(Path(target).parent)).sync_directory()


def _is_special(target: str) -> bool:
    """Return whether *target*, such as a pipe or a device, is written to instead of replaced."""
    try:
        return not stat.S_ISREG(Path(target).stat().st_mode)
    except FileNotFoundError:
        return False


@contextmanager
def _input(source: str | None) -> Iterator[Iterator[bytes]]:
    if source is None:
        if sys.stdin is None:
            raise StartError("journal import: there is no input: name a file", EXIT_JOURNAL)
        yield _lines(sys.stdin.buffer)
        return
    with Path(source).open("rb", BUFFER) as file:
        yield _lines(file)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of *file*; limit the first, since a file that is not an archive may have no line feed."""
    yield file.readline(MAX_HEAD)
    yield from file


def _refuse_unless_empty(directory: str) -> None:
    """Raise StartError unless *directory* is a directory that is empty except for a lock and a shard.json."""
    try:
        names = sorted(set(Directory(directory).list()) - {LOCK_NAME, SHARD_FILE})
    except OSError as error:
        raise StartError(
            f"journal import: {directory}: {error.strerror}; it must be a directory", EXIT_JOURNAL
        ) from error
    if names:
        raise StartError(f"journal import: {directory}: must be empty, but contains {names[0]}", EXIT_JOURNAL)


def _lock(directory: str) -> DirectoryLock:
    try:
        return DirectoryLock(directory)
    except StartError as error:
        raise StartError(f"journal import: {str(error).removeprefix('-b ')}", error.exit_code) from error


def _import(files: Files, reader: Reader) -> Count:
    """Write the archive of *reader*; return its counts. Remove all files on any error."""
    next_id = reader.head()
    write_journal(files, next_id, reader.entries(next_id))
    return reader.count


def write_journal(files: Files, next_id: int, entries: Iterable[Pause | Policy | Key | Job]) -> None:
    """Write a journal with *entries*, jobs last, to *files*. Remove all files on any error."""
    segments = _Segments(files, next_id)
    has_jobs = False
    try:
        for each in entries:
            if not isinstance(each, Job):
                segments.add_entry(each)
                continue
            if not has_jobs:
                has_jobs = True
                segments.add_mark(record.IMPORT_BEGIN)
            segments.add_job(each)
        if has_jobs:
            segments.add_mark(record.IMPORT_END)
        segments.finish()
    except BaseException:
        segments.remove()
        raise


class _Segments:
    """The segments of a fresh journal, one at a time in memory."""

    def __init__(self, files: Files, next_id: int) -> None:
        """*next_id* is above every id of the archive, and every id that was assigned."""
        self.next_id: int = next_id
        self._files: Files = files
        self._number: int = 0
        self._sequence: int = 0
        self._data: bytearray = bytearray()
        self._encoder: record.Encoder = record.Encoder(b"\0\0\0\0")
        self._begin()

    def add_job(self, job: Job) -> None:
        self._sequence += 1
        self._add(self._encoder.job(job, self._sequence, job.events))

    def add_entry(self, entry: Pause | Policy | Key) -> None:
        self._sequence += 1
        if isinstance(entry, Policy):
            self._add(self._encoder.policy(entry.name, entry.document, self._sequence))
        elif isinstance(entry, Key):
            self._add(self._encoder.key(entry.tube, entry.key, entry.id, entry.until, self._sequence))
        else:
            self._add(self._encoder.pause(entry.tube, entry.until, entry.length, self._sequence))

    def add_mark(self, kind: int) -> None:
        self._sequence += 1
        self._add(self._encoder.mark(kind, self._sequence))

    def finish(self) -> None:
        """Write the last segment; then the journal is on disk."""
        self._write()
        self._files.sync_directory()

    def remove(self) -> None:
        """Remove every file that was created."""
        for number in range(1, self._number + 1):
            with suppress(OSError):
                self._files.remove(name_of(number))

    def _begin(self) -> None:
        self._number += 1
        salt = os.urandom(4)
        self._encoder = record.Encoder(salt)
        self._data[:] = record.SegmentHeader(salt, self._number, self._sequence + 1, self.next_id).encode()

    def _add(self, data: bytes) -> None:
        """Append the record *data*, and write the segment if it is full."""
        self._data += data
        if len(self._data) >= SEGMENT_SIZE:
            self._write()
            self._begin()

    def _write(self) -> None:
        """Write and sync the segment, before the next one is begun."""
        handle = self._files.create(name_of(self._number), len(self._data))
        try:
            self._files.write(handle, 0, [bytes(self._data)])
            self._files.sync(handle)
        finally:
            self._files.close(handle)


def _describe(count: Count) -> str:
    jobs = "1 job" if count.jobs == 1 else f"{count.jobs} jobs"
    pauses = "1 paused tube" if count.pauses == 1 else f"{count.pauses} paused tubes"
    policies = "1 policy" if count.policies == 1 else f"{count.policies} policies"
    keys = "1 unique key" if count.keys == 1 else f"{count.keys} unique keys"
    others = [text for text, number in ((policies, count.policies), (keys, count.keys)) if number]
    *first, last = [jobs, pauses, *others]
    return f"{', '.join(first)} and {last}"


def _print_status(text: str) -> None:
    print(f"journal export: {text}", file=sys.stderr)
