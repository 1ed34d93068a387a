"""The start of a server on a directory: recovery of its jobs, and the import of beanstalkd's binlog.

All functions block; call them before clients are served.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, Job
from greenstalk_server.core.operations import policy_changes, restoring
from greenstalk_server.core.policies.policy_shards import find_split
from greenstalk_server.core.tags.idempotency import tube_of_scope
from greenstalk_server.journal import beanstalkd, record
from greenstalk_server.journal.beanstalkd import ImportedJob
from greenstalk_server.journal.files import Files
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.replayed_segment import is_begun, rewrite_points
from greenstalk_server.journal.segment import name_of, numbers
from greenstalk_server.journal.writer import JournalWriter
from greenstalk_server.runtime.exit_codes import EXIT_JOURNAL, MEMORY_ADVICE, StartError

log = logging.getLogger(__name__)

OVERRIDDEN: Final = "the policy %s, set at run time, has no effect: the configuration file defines it too"
"""Log line with the name of the policy."""


IMPORTED_DIRECTORY: Final = "beanstalkd-imported"
IMPORT_BATCH: Final = 2**24
"""Bytes of imported jobs that are written at a time."""

RETURN_SLICE: Final = 1000
"""Reservations that one slice of `resume_slices` records as ended: about a millisecond."""

PROGRESS_INTERVAL: Final = 1.0
"""Seconds between two log lines about a long recovery."""


def recover(
    files: Files, broker: Broker, journal: JournalWriter, now: int, is_strict: bool, *, ends_remote: bool = True
) -> None:
    """Fill *broker*, which must be new and empty, from *files*, and let *journal* continue in a new segment.

    Raise StartError if that fails. With *is_strict*, damage other than a torn tail is an error. beanstalkd's files, if
    there are any, are imported. If *ends_remote* is false, reservations by remote clients continue: these clients are
    suspended.
    """
    try:
        memory = broker.bodies.limit if broker.bodies is not None else None
        recovery = replay_all(files, Recovery(broker.tube, broker.jobs, memory=memory, ids=broker.ids))
        refuse_unfit(recovery, is_strict)
        _refuse_misplaced(recovery, broker, now)
        source = _read_beanstalkd(files, is_strict)
        _tidy(files, recovery)
        recovery.settle(now, ends_remote=ends_remote)
        for _ in _begin_slices(recovery, broker, journal):
            pass
        write_out(journal)  # only the header, which fits; it reserves ids, so that no put waits for a sync
        for _ in _record_returns(recovery, journal):
            pass
        next_id = max(recovery.next_id, _import_all(source, files, broker, journal, now))
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename is not None else str(error)
        raise StartError(f"journal: {reason}", EXIT_JOURNAL) from error
    except MemoryError:
        raise StartError(f"journal: not enough memory to read it; {MEMORY_ADVICE}", EXIT_JOURNAL) from None
    restoring.restore(broker, next_id, now, recovery.reservations)


def refuse_unfit(recovery: Recovery, is_strict: bool) -> None:
    """Raise StartError if another version has written the journal, or if *is_strict* and it is damaged."""
    if recovery.refusal:
        raise StartError(recovery.refusal, EXIT_JOURNAL)
    if is_strict and not recovery.is_sound:
        reasons = "; ".join(str(damage) for damage in recovery.damage)
        raise StartError(f"--strict-recovery: the journal is damaged: {reasons}", EXIT_JOURNAL)


def _refuse_misplaced(recovery: Recovery, broker: Broker, now: int) -> None:
    """Raise StartError if tubes of other shards have jobs, a pause or keys here: the pins are not what they were."""
    if broker.tube_shards.shards == 1:
        return
    jobs = Counter([job.tube.name for job in recovery.jobs.values()])
    paused = [tube.name for tube in broker.tubes.values() if tube.paused_until > now]
    kept = [tube_of_scope(scope) for (scope, _), (_, until) in recovery.keys.items() if until > now]
    misplaced = [name for name in dict.fromkeys([*jobs, *paused, *kept]) if broker.is_elsewhere(name)]
    if misplaced:
        first, shards = misplaced[0], broker.tube_shards
        pins = "".join([f" --pin {pin}" for pin in shards.pins])
        has = f"{jobs[first]} jobs" if first in jobs else "a pause or unique keys"
        raise StartError(
            f"journal: shard {broker.ids.shard} has {has} of the tube {first.decode()}, which the hash and the pins"
            f" (--pin) assign to shard {shards.shard_of(first)}; there are {len(misplaced)} such tubes here;"
            f" start with the former pins, or convert the directory DIR of -b:"
            f" greenstalk-server journal reshard DIR --processes {shards.shards}{pins}",
            EXIT_JOURNAL,
        )


def resume_from(recovery: Recovery, broker: Broker, journal: JournalWriter, now: int) -> None:
    """Settle *recovery*, which has filled the tables of *broker*, and begin *journal* after it."""
    for _ in resume_slices(recovery, broker, journal, now):
        pass


def resume_slices(
    recovery: Recovery, broker: Broker, journal: JournalWriter, now: int, ends_remote: bool = True
) -> Iterator[None]:
    """Do what `resume_from` does, and yield after each slice of it. *ends_remote*: see `Recovery.settle`."""
    yield from recovery.settle_slices(now, ends_remote=ends_remote)
    yield from _begin_slices(recovery, broker, journal)
    yield from _record_returns(recovery, journal)


def _begin_slices(recovery: Recovery, broker: Broker, journal: JournalWriter) -> Iterator[None]:
    """Begin *journal* after *recovery*, which is settled; yield after each slice of it."""
    if recovery.is_import_open:
        log.warning("journal: an import was interrupted; its jobs are ignored")
    policy_changes.load_policies(broker, recovery.policies, recovery.keys)
    if broker.moves is not None:
        broker.moves.locations.update(recovery.locations)
    for name, reason in broker.policy_store.unreadable.items():
        log.warning("journal: the policy %s has no effect: %s", name, reason)
    for name in broker.policy_store.overridden():
        log.warning(OVERRIDDEN, name)
    for policy in broker.policy_store.runtime_policies.values():
        if (split := find_split(policy, broker.tube_shards)) is not None:
            log.warning("%s", split)
    yield from journal.begin_slices(
        recovery,
        broker.jobs,
        broker.tubes,
        broker.policy_store.documents,
        broker.retained_keys.table,
        broker.bodies,
        broker.moves.locations if broker.moves is not None else None,
    )


def _record_returns(recovery: Recovery, journal: JournalWriter) -> Iterator[None]:
    """Record which reservations *recovery* has ended, and which keys it has undone; yield after each slice of them.

    On a full disk the records may need more than the first segment.
    """
    for (tube, key), (id, until) in recovery.undone_keys.items():
        journal.key(tube, key, id, until)
    returned = iter(recovery.returned)
    while slice := list(islice(returned, RETURN_SLICE)):
        for job in slice:
            if job.state == READY:
                journal.expire_reservation(job)
            else:
                journal.update(job)
        yield


def replay_all(files: Files, recovery: Recovery) -> Recovery:
    """Replay all segments of *files* into *recovery*, and return it; log damage, and the progress of a long replay."""
    found = numbers(files.list())
    newest = next((number for number in reversed(found) if is_begun(files.read(name_of(number)))), 0)
    rewritten = rewrite_points({number: files.read(name_of(number), record.SEGMENT_HEADER_SIZE) for number in found})
    began = logged = time.monotonic()
    for done, number in enumerate(found, 1):
        recovery.replay(name_of(number), number, files.read(name_of(number)), number >= newest, rewritten[number])
        if time.monotonic() - logged > PROGRESS_INTERVAL:
            logged = time.monotonic()
            log.info("journal: %d of %d files read, %d jobs so far", done, len(found), len(recovery.jobs))
    for damage in recovery.damage:
        log.warning("journal: %s", damage)
    if recovery.segments:
        took = time.monotonic() - began
        log.info("journal: %d records read in %.1f s, %d jobs", recovery.records, took, len(recovery.jobs))
    return recovery


def _tidy(files: Files, recovery: Recovery) -> None:
    """Truncate torn tails, and remove segments that were created ahead or have a torn header."""
    used = {segment.file for segment in recovery.segments}
    used |= {damage.file for damage in recovery.damage if not damage.is_torn_tail}
    for number in numbers(files.list()):
        if name_of(number) not in used:
            files.remove(name_of(number))
    for segment in recovery.segments[-1:]:
        handle = files.open(segment.file)
        try:
            files.truncate(handle, segment.end)
            segment.size = segment.end
            files.sync(handle)
        finally:
            files.close(handle)
    files.sync_directory()


# Import from beanstalkd


def _read_beanstalkd(files: Files, is_strict: bool) -> beanstalkd.BeanstalkdBinlog:
    """Read beanstalkd's files, and log their damage; raise StartError if a file has an unknown version.

    With *is_strict*, damage is an error too.
    """
    source = beanstalkd.BeanstalkdBinlog()
    for name in beanstalkd.find(files.list()):
        source.read(name, files.read(name))
    for warning in source.warnings():
        log.warning("import from beanstalkd: %s", warning)
    if unknown := source.unknown_versions:
        reasons = "; ".join(map(str, unknown))
        advice = "nothing was imported; to start without its jobs, move the file to another directory"
        raise StartError(f"import from beanstalkd: {reasons}; {advice}", EXIT_JOURNAL)
    if is_strict and not source.is_sound:
        reasons = "; ".join(source.warnings())
        raise StartError(f"--strict-recovery: beanstalkd's files are damaged: {reasons}", EXIT_JOURNAL)
    return source


def _import_all(
    source: beanstalkd.BeanstalkdBinlog, files: Files, broker: Broker, journal: JournalWriter, now: int
) -> int:
    """Import *source*, beanstalkd's files, if any was read; return a number above all their ids.

    The import is atomic: its jobs are between two marks, and the files stay until both marks are on disk. If all jobs
    are in the journal already, an earlier start was interrupted before it moved the files; they are only moved.
    Files that were not read stay.
    """
    skipped = {each.file for each in source.skipped}
    names = [name for name in beanstalkd.find(files.list()) if name not in skipped]
    if not names:
        return 1
    if broker.ids.shards > 1 and (broker.ids.shard > 0 or source.highest_id >= broker.ids.base):
        raise StartError(
            "beanstalkd's files have ids that other shards of the queue assign; import them into a queue of one shard",
            EXIT_JOURNAL,
        )
    if source.is_imported(broker.jobs):
        _move_away(files, names)
        return source.highest_id + 1
    taken = source.jobs.keys() & broker.jobs.keys()
    if taken:
        raise StartError(
            f"beanstalkd's files have {len(taken)} jobs whose ids are in the journal too; the first is {min(taken)};"
            " move them to a directory of their own, start a second server there, and drain it",
            EXIT_JOURNAL,
        )
    journal.mark(record.IMPORT_BEGIN)
    burials = max([job.burial_number for job in broker.jobs.values() if job.state == BURIED], default=0)
    for burial, imported in enumerate(source.jobs.values(), burials + 1):
        _import(imported, burial, broker, journal, now)
    journal.note_id(source.highest_id)
    journal.mark(record.IMPORT_END)
    write_out(journal)
    log.info("imported %d jobs from beanstalkd's files", len(source.jobs))
    _move_away(files, names)
    return source.highest_id + 1


def _move_away(files: Files, names: list[str]) -> None:
    for name in names:
        files.move(name, IMPORTED_DIRECTORY)
    files_of = "1 file of beanstalkd is" if len(names) == 1 else f"{len(names)} files of beanstalkd are"
    log.info("%s now in %s", files_of, IMPORTED_DIRECTORY)


def _import(imported: ImportedJob, burial: int, broker: Broker, journal: JournalWriter, now: int) -> None:
    created_at = min(imported.created_at, now)
    tube = broker.tube(imported.tube)
    job = Job(imported.id, tube, imported.body, imported.pri, imported.delay, imported.ttr, created_at)
    job.reserves, job.timeouts, job.releases = imported.reserves, imported.timeouts, imported.releases
    job.buries, job.kicks = imported.buries, imported.kicks
    job.state = imported.state
    if job.state == BURIED:
        job.burial_number = burial
    elif job.state == DELAYED and imported.deadline > now:
        job.deadline = imported.deadline
    else:
        job.state = READY
    if not journal.put(job):
        raise StartError(f"cannot import beanstalkd's jobs: {journal.refusal}", EXIT_JOURNAL)
    broker.jobs[job.id] = job
    if journal.pending_bytes > IMPORT_BATCH:
        write_out(journal)


def write_out(journal: JournalWriter) -> None:
    """Write and sync all records of *journal* in this thread; raise OSError."""
    batch = journal.take_batch(is_synced=True)
    batch.run()
    journal.complete_batch(batch)
