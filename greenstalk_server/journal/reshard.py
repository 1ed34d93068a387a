"""`greenstalk-server journal reshard DIR --processes N`: divide the jobs in a directory among N shards.

Pins are those of the next start (see greenstalk_server.core.tube_shards).

All jobs keep their ids and attributes. The ids of new jobs begin above all earlier ones: the `base` of the new shards
is the highest next id. A tube and all that belongs to it (jobs, pause, unique keys) go to the shard of its name.
The policies that were set at run time go to every shard.

The new journals are written beside the former ones, which are removed once the new ones are on disk: see layout.py.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from greenstalk_server.core.jobs.body_cache import resident_body
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.tags.idempotency import tube_of_scope
from greenstalk_server.core.transitions.moving import departing_copy
from greenstalk_server.core.travel import Travel
from greenstalk_server.core.tube_shards import Pin, TubeShards
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal.archive import Key, Pause, Policy
from greenstalk_server.journal.check import inspect
from greenstalk_server.journal.files import Directory
from greenstalk_server.journal.layout import (
    change_layout,
    copy_dashboard,
    create_shard,
    directory_of,
    finish_change,
    new_identities,
    read_shards,
)
from greenstalk_server.journal.lock import DirectoryLock
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.transfer import entries_of, next_id_above, refuse_incomplete, write_journal
from greenstalk_server.runtime.exit_codes import EXIT_JOURNAL, EXIT_OK, StartError

VERB: Final = "reshard"


def reshard(directory: str, shards: int, pins: Sequence[Pin] = ()) -> int:
    """Divide the jobs in *directory* among *shards* journals; return the exit code; raise StartError."""
    tube_shards = TubeShards(shards, pins)
    try:
        with closing(DirectoryLock(directory)):
            finish_change(directory)
            former = read_shards(directory)
            is_done = (len(former) or 1) == shards
            if not is_done or shards > 1:
                sources = [directory_of(directory, shard) for shard in range(len(former))]
                content = collect(_read(directory, sources))
                is_done = is_done and not content.has_misplaced(tube_shards)
            if is_done:
                print(f"{directory}: is for {_processes(shards)} already", file=sys.stderr)
                return EXIT_OK
            change_layout(directory, lambda part: _write(part, directory, content, tube_shards))
    except OSError as error:
        reason = f"journal {VERB}: {error.filename or directory}: {error.strerror}; nothing was changed"
        raise StartError(reason, EXIT_JOURNAL) from error
    print(f"{directory}: {len(content.jobs)} jobs are now divided among {_processes(shards)}", file=sys.stderr)
    return EXIT_OK


@dataclass(slots=True)
class Content:
    """The contents of the journals of a queue.

    sources     names of the journals, by shard.
    next_id     above all ids that were assigned.
    places      the tubes of the jobs and the entries, each with the number of its source.
    """

    sources: list[str] = field(default_factory=list)
    next_id: int = 1
    jobs: list[Job] = field(default_factory=list)
    entries: list[Pause | Policy | Key] = field(default_factory=list)
    places: set[tuple[bytes, int]] = field(default_factory=set)

    def has_misplaced(self, tube_shards: TubeShards) -> bool:
        """Whether a tube is not on its shard."""
        return any(tube_shards.shard_of(tube) != shard for tube, shard in self.places)

    def divide(self, tube_shards: TubeShards) -> list[list[Pause | Policy | Key | Job]]:
        """Return what belongs to each shard of *tube_shards*, jobs last."""
        parts: list[list[Pause | Policy | Key | Job]] = [[] for _ in range(tube_shards.shards)]
        for entry in self.entries:
            if isinstance(entry, Policy):
                for part in parts:
                    part.append(entry)
            else:
                parts[tube_shards.shard_of(tube_of_scope(entry.tube))].append(entry)
        for job in self.jobs:
            parts[tube_shards.shard_of(job.tube.name)].append(job)
        return parts


def _read(directory: str, shards: Sequence[str]) -> Iterable[tuple[str, Recovery]]:
    """Read the journals of *shards*, or that of *directory* if there are none; raise StartError if one is damaged."""
    for source in shards or [directory]:
        if shards:
            DirectoryLock(source).close()  # a child of a killed parent may still use it
        yield source, _recovery(source, is_shard=bool(shards))


def collect(journals: Iterable[tuple[str, Recovery]]) -> Content:
    """Return the contents of *journals*: the name and the settled recovery of each shard, in their order."""
    content = Content()
    policies: dict[str, bytes] = {}
    locations: list[tuple[int, int]] = []
    for shard, (source, recovery) in enumerate(journals):
        content.sources.append(source)
        content.next_id = max(content.next_id, next_id_above(recovery))
        content.jobs += recovery.jobs.values()
        locations += [(id, location.hops) for id, location in recovery.locations.items()]
        content.places |= {(job.tube.name, shard) for job in recovery.jobs.values()}
        for entry in entries_of(recovery):
            if isinstance(entry, Policy) and policies.setdefault(entry.name, entry.document) is not entry.document:
                if policies[entry.name] != entry.document:
                    print(f"{source}: its policy {entry.name} differs, and is dropped", file=sys.stderr)
                continue
            content.entries.append(entry)
            if not isinstance(entry, Policy):
                content.places.add((tube_of_scope(entry.tube), shard))
    content.jobs = _in_one_place(content.jobs, locations)
    return content


def _in_one_place(jobs: list[Job], locations: list[tuple[int, int]]) -> list[Job]:
    """Return *jobs*, in the order of their ids, as after all moves between shards that are under way.

    *locations* are the ids of jobs that have left a shard, and the numbers of their moves. A job that a shard has
    accepted may still be in the outbox of another one.
    """
    hops: dict[int, int] = {}
    for id, number in [*locations, *[(job.id, Travel.unpack(job.travel).hops) for job in jobs]]:
        hops[id] = max(number, hops.get(id, 0))
    found = []
    for job in sorted(jobs, key=lambda job: job.id):
        travel = Travel.unpack(job.travel)
        if travel.hops < hops[job.id]:
            continue
        settled = departing_copy(job, resident_body(job)) if travel.target else job
        if travel.target:
            settled.tube = Tube(travel.target, {})
        settled.travel = b""
        found.append(settled)
    return found


def _recovery(source: str, *, is_shard: bool) -> Recovery:
    report = inspect(source, time.time_ns(), VERB)
    if report.sizes or not is_shard:  # a shard that never started has no files
        refuse_incomplete(report, VERB)
    if not report.recovery.is_sound:
        reason = "; ".join([str(damage) for damage in report.recovery.damage])
        advice = "start the server once with the present number of processes, which drops what is damaged"
        raise StartError(f"journal {VERB}: {source}: is damaged: {reason}; {advice}", EXIT_JOURNAL)
    return report.recovery


def _write(part: Path, directory: str, content: Content, tube_shards: TubeShards) -> None:
    """Write the *content* of *directory* to *part*, a journal for each shard of *tube_shards*."""
    former, shards = read_shards(directory), tube_shards.shards
    queue = former[0].queue if former else ""
    if shards == 1:
        targets = [part]
    else:
        targets = [create_shard(part, each) for each in new_identities(shards, content.next_id, queue)]
    for source, target in zip(content.sources, targets, strict=False):
        copy_dashboard(source, target)
    for target, entries in zip(targets, content.divide(tube_shards), strict=True):
        write_journal(Directory(str(target)), content.next_id, entries)


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"
