"""`greenstalk-server journal check DIR`: report the content of a journal directory, and its damage.

It reads the files and reports what a start would find, but writes nothing: no file is created, truncated, moved or
locked. A server may run on the directory; the report lacks what that server has not written yet.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, SECOND, Job
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal import beanstalkd, record
from greenstalk_server.journal.files import Directory
from greenstalk_server.journal.lock import holder_of
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.replayed_segment import Damage, ReplayedSegment, is_begun, rewrite_points
from greenstalk_server.journal.segment import name_of, numbers
from greenstalk_server.journal.shard_file import ids_of
from greenstalk_server.runtime.exit_codes import EXIT_DAMAGED, EXIT_JOURNAL, EXIT_OK, StartError

MAX_ATTEMPTS: Final = 20
"""Maximum number of attempts; an attempt fails if a running server removes a file meanwhile."""

KINDS: Final = {
    "job": record.JOB_KINDS,
    "group": (record.GROUP,),
    "update": (record.UPDATE,),
    "move": (record.MOVE,),
    "reserve": (record.RESERVE,),
    "delete": (record.DELETE,),
    "pause": (record.PAUSE,),
    "policy": (record.POLICY,),
    "key": (record.KEY,),
    "location": (record.LOCATION,),
    "import begun": (record.IMPORT_BEGIN,),
    "import ended": (record.IMPORT_END,),
    "import undone": (record.IMPORT_UNDO,),
    "ids": (record.IDS,),
}
"""Names of records in the report, and the kinds that each covers."""

STATES: Final = (READY, DELAYED, BURIED)
"""States of jobs after a start, in the order of the report."""


@dataclass(slots=True)
class Report:
    """The content of a directory, as a start would find it now.

    recovery    the jobs in the files of the journal.
    holder      phrase for the process that has locked the directory; "" if none has.
    sizes       bytes of each file of the journal, including segments created ahead.
    kinds       number of sound records of each kind.
    source      beanstalkd's files, which a start would import; without blank files.
    is_imported an earlier start has imported all of their jobs, and a start would only move the files.
    taken       ids that both the journal and beanstalkd's files use, which would make a start fail.
    """

    directory: str
    recovery: Recovery
    holder: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    kinds: Counter[int] = field(default_factory=Counter)
    source: beanstalkd.BeanstalkdBinlog = field(default_factory=beanstalkd.BeanstalkdBinlog)
    is_imported: bool = False
    taken: set[int] = field(default_factory=set)

    @property
    def exit_code(self) -> int:
        """Exit code of the command: EXIT_JOURNAL if every start would fail, EXIT_DAMAGED if a strict one would."""
        if self.recovery.refusal or self.source.unknown_versions or self.taken:
            return EXIT_JOURNAL
        return EXIT_OK if self.recovery.is_sound and self.source.is_sound else EXIT_DAMAGED


def check(directory: str) -> int:
    """Print the report on *directory*; return its exit code; raise StartError."""
    report = inspect(directory, time.time_ns())
    print("\n".join(describe(report)))
    return report.exit_code


def inspect(directory: str, now: int, verb: str = "check") -> Report:
    """Return a report on *directory*; raise StartError if it is not a directory, or if a file in it cannot be read.

    *verb* is the verb of the `journal` command, for messages.
    """
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return _inspect(directory, now)
        except OSError as error:
            is_gone = isinstance(error, FileNotFoundError) and Path(directory).is_dir()
            if not is_gone or attempt == MAX_ATTEMPTS:
                reason = f"{error.filename or directory}: {error.strerror}"
                raise StartError(f"journal {verb}: {reason}", EXIT_JOURNAL) from error
    raise AssertionError


def _inspect(directory: str, now: int) -> Report:
    files = Directory(directory)
    names = files.list()
    jobs: dict[int, Job] = {}
    tubes: dict[bytes, Tube] = {}

    def tube_of(name: bytes) -> Tube:
        return tubes.get(name) or tubes.setdefault(name, Tube(name, jobs))

    report = Report(directory, Recovery(tube_of, jobs, ids=ids_of(directory)), holder_of(directory))
    _replay(files, numbers(names), report)
    report.recovery.settle(now)
    for name in beanstalkd.find(names):
        data = files.read(name)
        if data.strip(b"\0"):
            report.source.read(name, data)
    report.is_imported = report.source.is_imported(jobs)
    if not report.is_imported:
        report.taken = report.source.jobs.keys() & jobs.keys()
    return report


def _replay(files: Directory, found: list[int], report: Report) -> None:
    """Replay the segments *found*.

    The last segment that has a complete header when this function starts is taken as the newest one. Later segments are
    replayed from the bytes read at that time, without the records that a server has written since. Otherwise the report
    could contain a later segment and miss records of an earlier one.
    """
    newest = 0
    unbegun: dict[int, bytes] = {}
    for number in reversed(found):
        data = files.read(name_of(number))
        if is_begun(data):
            newest = number
            break
        unbegun[number] = data
    heads = {number: files.read(name_of(number), record.SEGMENT_HEADER_SIZE) for number in found if number <= newest}
    rewritten = rewrite_points(heads | unbegun)
    for number in found:
        name = name_of(number)
        data = files.read(name) if number <= newest else unbegun[number]
        report.sizes[name] = len(data)
        segment = report.recovery.replay(name, number, data, number >= newest, rewritten[number])
        if segment is not None:
            report.kinds.update(_kinds(segment, data, report.recovery.damage))


def _kinds(segment: ReplayedSegment, data: bytes, damage: list[Damage]) -> Iterator[int]:
    """Yield the kind of each sound record of *segment*, which was replayed."""
    unsound = {each.offset: each.bytes_lost for each in damage if each.file == segment.file and each.bytes_lost}
    at = record.SEGMENT_HEADER_SIZE
    while at < segment.end:
        if at in unsound:
            at += unsound[at]
            continue
        _, _, length, _, kind = record.HEADER.unpack_from(data, at)
        yield kind
        at += record.HEADER_SIZE + length


# As text


def describe(report: Report) -> list[str]:
    """Return *report* as lines for an operator."""
    refused = "WRITTEN BY ANOTHER VERSION" if report.recovery.refusal else "CANNOT BE IMPORTED"
    state = {EXIT_OK: "sound", EXIT_DAMAGED: "DAMAGED", EXIT_JOURNAL: refused}[report.exit_code]
    return [
        f"{report.directory}: {state}",
        *_lock_holder(report),
        *_shard(report.recovery.ids),
        *_files(report),
        *_jobs(report.recovery),
        *_pauses(report.recovery),
        *_entries(report.recovery),
        *_damage(report.recovery),
        *_import(report),
        *_beanstalkd(report),
    ]


def _lock_holder(report: Report) -> Iterator[str]:
    if report.holder:
        yield f"in use by {report.holder}: the report lacks records that it has not written yet"


def _shard(ids: IdSequence) -> Iterator[str]:
    if ids.shards > 1:
        yield f"shard: {ids.shard} of {ids.shards} shards, base of the ids: {ids.base}"


def _files(report: Report) -> Iterator[str]:
    recovery = report.recovery
    if not report.sizes:
        yield "journal: no file"
        return
    used = {segment.file: segment.records for segment in recovery.segments}
    bad = {damage.file for damage in recovery.damage}
    live = sum([record.recorded_size(job) for job in recovery.jobs.values()])
    entries: list[record.Entry] = [
        *recovery.policies,
        *recovery.pauses,
        *recovery.keys,
        *recovery.locations,
    ]
    live += sum([recovery.entries[entry][1] for entry in entries])
    yield f"journal: {_counted(len(report.sizes), 'file')}, {_counted(recovery.records, 'record')}"
    for name in sorted(report.sizes, key=lambda name: numbers([name])):
        held = _counted(used[name], "record") if name in used else "unreadable" if name in bad else "allocated ahead"
        yield f"  {name}: {_counted(report.sizes[name], 'byte')}, {held}"
    counts = {name: sum([report.kinds[kind] for kind in kinds]) for name, kinds in KINDS.items()}
    yield f"records: {', '.join([f'{count} {name}' for name, count in counts.items() if count]) or 'none'}"
    yield f"bytes: {live} live of {sum(report.sizes.values())} on disk"
    yield f"next job id: {recovery.next_id}"


def _jobs(recovery: Recovery) -> Iterator[str]:
    counts = Counter([(job.tube.name, job.state) for job in recovery.jobs.values()])
    names = sorted({name for name, _ in counts})
    yield f"jobs: {len(recovery.jobs)}"
    for name in names:
        yield f"  {name.decode()}: " + ", ".join(
            f"{counts[name, state]} {word}" for state, word in zip(STATES, ("ready", "delayed", "buried"), strict=True)
        )


def _pauses(recovery: Recovery) -> Iterator[str]:
    for name, (until, _) in sorted(recovery.pauses.items()):
        end = datetime.fromtimestamp(until / SECOND, UTC).isoformat(" ", "seconds")
        yield f"paused: {name.decode()}, until {end}"


def _entries(recovery: Recovery) -> Iterator[str]:
    if recovery.policies:
        yield f"policies: {', '.join(sorted(recovery.policies))}"
    if recovery.keys:
        yield f"unique keys that outlive their jobs: {len(recovery.keys)}"
    if recovery.locations:
        yield f"jobs that moved to other shards, or were deleted after they had moved: {len(recovery.locations)}"


def _damage(recovery: Recovery) -> Iterator[str]:
    last = numbers([segment.file for segment in recovery.segments])[-1:]
    for damage in recovery.damage:
        how = "DAMAGE"
        if damage.is_torn_tail:
            is_rewritten = numbers([damage.file]) < last
            how = "rewritten after a disk failure" if is_rewritten else "torn by a crash"
        yield f"{how}: {damage}"
    if recovery.refusal:
        yield f"a start would fail: {recovery.refusal}"


def _import(report: Report) -> Iterator[str]:
    if report.recovery.is_import_open:
        next_step = "a start repeats it" if report.source.files else "repeat it, in an empty directory"
        yield f"an import was interrupted, and its jobs are ignored: {next_step}"


def _beanstalkd(report: Report) -> Iterator[str]:
    source = report.source
    if source.unknown_versions:
        yield "beanstalkd: a start would fail: a file has an unknown version"
    elif source.files or source.skipped:
        jobs = _counted(len(source.jobs), "job")
        todo = f"only move the files: the journal has their {jobs}" if report.is_imported else f"import {jobs}"
        files, records = _counted(source.files, "file"), _counted(source.records, "record")
        yield f"beanstalkd: {files}, {records}; a start would {todo}"
    for warning in source.warnings():
        yield f"  {warning}"
    if report.taken:
        ids = f"{len(report.taken)} of their ids are in the journal too; the first is {min(report.taken)}"
        yield f"  a start would fail: {ids}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
