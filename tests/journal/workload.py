"""A random workload on a broker whose journal is on a simulated disk, and a check of the jobs after a restart.

Everything runs in one thread: `Bench.commit`, `Bench.compact` and `Bench.run_maintenance` stand in for the committer.
The journal notes the state of a job under the sequence number of each record. So the state after a restart can be
compared with every recorded state, and with the acknowledged ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, TypeVar

from greenstalk_server.core import job_attributes
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.body_cache import Bodies
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, SECOND, Job
from greenstalk_server.core.operations import (
    connecting,
    editing,
    finishing,
    kicking,
    putting,
    reserving,
    ticking,
    undoing,
)
from greenstalk_server.core.outcomes import EditOutcome, Refusal
from greenstalk_server.core.remote import RemoteReservations, Reservation
from greenstalk_server.core.tags.tags import NO_DEADLINE, TaggedJob
from greenstalk_server.core.transitions import waiting
from greenstalk_server.core.travel import Location
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal import startup
from greenstalk_server.journal.batch import BodyRead
from greenstalk_server.journal.files import Files
from greenstalk_server.journal.record import recorded_size
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.writer import JournalWriter
from tests.journal.disk import Disk
from tests.support import invariants
from tests.support.world import START, make_broker

SMALL_SEGMENT: Final = 4096
"""Bytes of a segment: small, so that segments fill, are compacted and are removed often."""

T = TypeVar("T")

TUBES: Final = (b"default", b"mail", b"a" * 200)
ON_DISK: Final = b"\0only on disk"
"""In a snapshot, the value for a body that is not in memory."""

ELSEWHERE: Final = b"elsewhere"
"""A tube that no client uses or watches."""


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """The state of a job as the journal records it.

    state   RESERVED if a client holds the job. If reserve-job took it while it was buried or delayed, that former
            state, which a restart restores.
    place   deadline if delayed, burial number if buried, else 0.
    events  events, including the current reservation.
    reservation     the current reservation, if a remote client holds the job.
    """

    tube: bytes = field(repr=False)
    body: bytes = field(repr=False)
    pri: int
    delay: int
    ttr: int
    created_at: int
    state: int
    place: int
    reserves: int
    timeouts: int
    releases: int
    buries: int
    kicks: int
    events: bytes
    attempts_base: int
    expires_from: int
    unique_key: bytes
    dead_letter: bytes
    tags: bytes
    is_truncated: bool
    reservation: Reservation | None

    @staticmethod
    def of(job: Job) -> JobSnapshot:
        """Return the snapshot of *job*. A reserved job without a holder counts as ready."""
        state, deadline, events = job.state, job.deadline, job.events
        if job.former_state:
            state, deadline = job.former_state, job.former_deadline
        reservation = None
        if job.holder is not None:
            events = job_history.add(events, job_history.RESERVED, job.reserved_at, job.holder.number)
            reservation = job.holder.remote.reservation_of(job.id) if job.holder.remote is not None else None
        elif state == RESERVED:
            state = READY
        return JobSnapshot(
            job.tube.name,
            ON_DISK if job.body is None else job.body,
            job.pri,
            job.delay,
            job.ttr,
            job.created_at,
            state,
            deadline if state in (DELAYED, BURIED) else 0,
            job.reserves,
            job.timeouts,
            job.releases,
            job.buries,
            job.kicks,
            events,
            job.attempts_base,
            job.expires_from,
            job.unique_key,
            job.dead_letter,
            job_attributes.encode_tags(job) if isinstance(job, TaggedJob) else b"",
            job.is_truncated,
            reservation,
        )

    @property
    def may_await(self) -> bool:
        """Whether the job, if it is delayed, has to wait for its group before its first reservation."""
        tags = job_attributes.tags_in(self.tags)
        return tags is not None and bool(tags.after) and not self.reserves and not self.kicks

    def settled(self, now: int) -> JobSnapshot:
        """Return the snapshot with the same state for a job that waits for its group, or has ceased to at *now*.

        A start releases a job whose group has no members, at once or in a tick.
        """
        if not self.may_await:
            return self
        if self.state == DELAYED and (self.place <= now or self.place == NO_DEADLINE):
            return replace(self, place=0)
        if self.state == READY and self.events and job_history.last(self.events) == (now, job_history.UNBLOCKED, 0):
            return replace(self, state=DELAYED, place=0, events=self.events[: -job_history.EVENT.size])
        return self

    def after_restart(self, now: int, *, ends_remote: bool = True) -> JobSnapshot | None:
        """Return the snapshot that the job must have after a restart at *now*; None if the restart deletes the job.

        If *ends_remote* is false, the reservations by remote clients continue.
        """
        if self.reservation is not None:
            return replace(self, reservation=None).after_restart(now) if ends_remote else self
        if self.is_truncated:
            return None
        events = self.events
        if self.may_await:
            return self.settled(now)
        if job_history.is_reserved(events):
            events = job_history.add(events, job_history.RETURNED, now, job_history.NOBODY)
        if self.state == RESERVED or (self.state == DELAYED and (self.place <= now or self.place == NO_DEADLINE)):
            return replace(self, state=READY, place=0, events=events)
        return self if events is self.events else replace(self, events=events)

    def without_oldest_events(self, events: bytes) -> JobSnapshot:
        """Return the snapshot with only *events*, if these are its newest ones; else return it unchanged."""
        return replace(self, events=events) if self.events.endswith(events) else self

    def before_return(self) -> JobSnapshot:
        """Return the snapshot from before a restart ended its reservation, or its wait for a group."""
        if job_history.last(self.events).kind == job_history.UNBLOCKED:
            return replace(self, state=DELAYED, place=NO_DEADLINE, events=self.events[: -job_history.EVENT.size])
        assert job_history.last(self.events).kind == job_history.RETURNED
        state = RESERVED if self.state == READY else self.state
        return replace(self, state=state, events=self.events[: -job_history.EVENT.size])


@dataclass(slots=True)
class History:
    """All recorded states in order, each with the sequence number of its record.

    jobs        snapshots by job id; None for a deleted job.
    pauses      ends of pauses by tube, nanoseconds; 0 for no pause.
    policies    documents of policies by name; empty for a deleted one.
    keys        job and end of each unique key by tube and key; zeros for a deleted one.
    groups      ids of the jobs of each group.
    records_keys    the unique key of a job is in its records, not only in memory.
    has_been_full   the disk has been full, so the oldest events of a job may be missing.
    has_been_shortened  a rewrite has recorded changes without bodies, so all events but the newest may be missing.
    """

    jobs: dict[int, list[tuple[int, JobSnapshot | None]]] = field(default_factory=dict)
    pauses: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    policies: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    keys: dict[tuple[bytes, bytes], list[tuple[int, tuple[int, int]]]] = field(default_factory=dict)
    groups: list[list[int]] = field(default_factory=list)
    records_keys: bool = True
    has_been_full: bool = False
    has_been_shortened: bool = False

    def begin(self, broker: Broker, sequence: int) -> None:
        """Store the state that *broker* has recovered as recorded under *sequence*.

        Invariant: the reservations and waits that the start has ended are the only records of this server so far.
        """
        for id in range(1, broker.next_id):
            job = broker.jobs.get(id)
            snapshot = JobSnapshot.of(job) if job is not None else None
            returned = self.jobs.get(id, [])
            before = snapshot.before_return() if returned and snapshot is not None else snapshot
            self.jobs[id] = [(sequence, before), *returned]
        for tube in broker.tubes.values():
            self.pauses[tube.name] = [(sequence, tube.paused_until)]

    def check_entries(
        self, policies: Mapping[str, bytes], keys: Mapping[tuple[bytes, bytes], tuple[int, int]], safe: int, now: int
    ) -> None:
        """Assert that *policies* and *keys*, after a restart, have all changes up to record *safe*, and no others."""
        assert policies.keys() <= self.policies.keys()
        assert keys.keys() <= self.keys.keys()
        for name, documents in self.policies.items():
            assert policies.get(name, b"") in _possible_values(documents, safe, b""), f"policy {name}"
        for key, values in self.keys.items():
            possible = [value if value[1] > now else (0, 0) for value in _possible_values(values, safe, (0, 0))]
            assert keys.get(key, (0, 0)) in possible, f"key {key!r}"

    def check_groups(self, broker: Broker) -> None:
        """Assert that all jobs of each group are there, or none; but a job may have been deleted since."""
        for group in self.groups:
            is_deleted = {id: any(one is None or one.is_truncated for _, one in self.jobs[id]) for id in group}
            there = [id for id in group if id in broker.jobs]
            assert not there or all(id in there or is_deleted[id] for id in group), f"of {group} there is only {there}"

    def check(self, broker: Broker, safe: int, now: int, acknowledged: int = 0, *, ends_remote: bool = True) -> None:
        """Assert that *broker*, after a restart, has all changes up to record *safe*, and only recorded states.

        Its next id must exceed the ids in all records up to number *acknowledged*, even if these records are lost.
        *ends_remote* as for `startup.recover`.
        """
        invariants.check(broker)
        self.check_groups(broker)
        assert broker.jobs.keys() <= self.jobs.keys(), "recovery has created a job that was never put"
        for id, entries in self.jobs.items():
            job = broker.jobs.get(id)
            found = self._recorded(JobSnapshot.of(job).settled(now) if job is not None else None)
            possible = [
                self._recorded(snapshot.after_restart(now, ends_remote=ends_remote) if snapshot is not None else None)
                for snapshot in _possible_values(entries, safe, None)
            ]
            assert found in possible or self._lacks_events(found, possible), f"job {id}: {found} is none of {possible}"
        for name, pauses in self.pauses.items():
            tube = broker.tubes.get(name)
            ends = [end if end > now else 0 for end in _possible_values(pauses, safe, 0)]
            assert (tube.paused_until if tube is not None else 0) in ends, f"pause of {name!r}"
        assigned = [id for id, entries in self.jobs.items() if entries[0][0] <= max(safe, acknowledged)]
        assert broker.next_id > max(assigned, default=0)
        for tube in broker.tubes.values():
            burials = [job.burial_number for job in tube.buried.values()]
            assert burials == sorted(set(burials)), "buried jobs are out of order"

    def _recorded(self, snapshot: JobSnapshot | None) -> JobSnapshot | None:
        """Return the part of *snapshot* that is in records."""
        if snapshot is None or self.records_keys or not snapshot.unique_key:
            return snapshot
        return replace(snapshot, unique_key=b"")

    def _lacks_events(self, found: JobSnapshot | None, possible: list[JobSnapshot | None]) -> bool:
        """Return whether *found* differs from a possible snapshot only in events that a full disk had no room for."""
        if not self.has_been_full or found is None:
            return False
        snapshots = [snapshot for snapshot in possible if snapshot is not None]
        if found.reservation is not None:  # its event may be missing
            return found in [replace(snapshot, events=found.events) for snapshot in snapshots]
        if self.has_been_shortened:
            size = job_history.EVENT.size
            last = found.events[-size:]
            similar = [snapshot for snapshot in snapshots if last in (b"", snapshot.events[-size:])]
            return found in [replace(snapshot, events=found.events) for snapshot in similar]
        return any(snapshot.without_oldest_events(found.events) == found for snapshot in snapshots)

    def latest(self, id: int) -> JobSnapshot | None:
        """Return the snapshot that was recorded last for the job *id*; None if it was deleted."""
        return self.jobs[id][-1][1]


class RecordingJournalWriter(JournalWriter):
    """A JournalWriter that notes each recorded state in `history`."""

    def __init__(self, disk: Disk, max_size: int, sync_interval: int, random: Random) -> None:
        super().__init__(disk, max_size, sync_interval, random.randbytes)
        self.history: History = History()
        self.policies: dict[str, bytes] = {}
        self.keys: dict[tuple[bytes, bytes], tuple[int, int]] = {}
        self._watch(self._rewrite, "add_change", self._note_change)
        self._watch(self._space, "note_full", self._note_full)

    def _watch(self, part: object, name: str, note: Callable[[Any], None]) -> None:
        """Call *note* with the argument of each call of the method *name* of *part*, after the call."""
        method = getattr(part, name)

        def watched(argument: Any) -> None:
            method(argument)
            note(argument)

        setattr(part, name, watched)

    def _note_change(self, job: Job) -> None:
        self.history.has_been_shortened |= job.body is not None

    def _note_full(self, error: OSError) -> None:
        self.history.has_been_full = True

    def begin_slices(
        self,
        recovery: Recovery,
        jobs: Mapping[int, Job],
        tubes: dict[bytes, Tube],
        policies: Mapping[str, bytes],
        keys: Mapping[tuple[bytes, bytes], tuple[int, int]],
        bodies: Bodies | None = None,
        locations: Mapping[int, Location] | None = None,
    ) -> Iterator[None]:
        """Begin with tables of policies and keys that the commands of `Bench` change."""
        self.policies, self.keys = dict(policies), dict(keys)
        yield from super().begin_slices(recovery, jobs, tubes, self.policies, self.keys, bodies, locations)
        sequence = self._log.recovered_sequence
        self.history.policies = {name: [(sequence, document)] for name, document in policies.items()}
        self.history.keys = {key: [(sequence, value)] for key, value in keys.items()}

    def put(self, job: Job) -> bool:
        if not super().put(job):
            return False
        assert job.id not in self.history.jobs, "an id was assigned twice"
        self._note(job.id, job)
        return True

    def put_group(self, jobs: list[Job]) -> bool:
        if not super().put_group(jobs):
            return False
        for job in jobs:
            self._note(job.id, job)
        self.history.groups.append([job.id for job in jobs])
        return True

    def move(self, job: Job, source: Tube) -> None:
        super().move(job, source)
        self._note(job.id, job)

    def update(self, job: Job) -> None:
        super().update(job)
        self._note(job.id, job)

    def reserve(self, job: Job) -> None:
        super().reserve(job)
        self._note(job.id, job)

    def replace(self, old: Job, new: Job) -> bool:
        if not super().replace(old, new):
            return False
        assert old.id == new.id
        self._note(new.id, new)
        return True

    def undelete(self, job: Job) -> bool:
        if not super().undelete(job):
            return False
        assert self.history.latest(job.id) is None, "a job that exists was put back"
        self._note(job.id, job)
        return True

    def expire_reservation(self, job: Job) -> None:
        super().expire_reservation(job)
        self._note(job.id, job)

    def delete(self, job: Job) -> None:
        super().delete(job)
        self._note(job.id, None)

    def pause(self, tube: Tube) -> None:
        super().pause(tube)
        self.history.pauses.setdefault(tube.name, []).append((self._log.sequence, tube.paused_until))

    def policy(self, name: str, document: bytes) -> None:
        super().policy(name, document)
        self.history.policies.setdefault(name, []).append((self._log.sequence, document))

    def key(self, tube: bytes, key: bytes, id: int, until: int) -> None:
        super().key(tube, key, id, until)
        self.history.keys.setdefault((tube, key), []).append((self._log.sequence, (id, until) if until else (0, 0)))

    def _note(self, id: int, job: Job | None) -> None:
        snapshot = JobSnapshot.of(job) if job is not None else None
        if snapshot is not None and snapshot.body == ON_DISK:
            before = self.history.latest(id)
            assert before is not None
            snapshot = replace(snapshot, body=before.body)
        self.history.jobs.setdefault(id, []).append((self._log.sequence, snapshot))

    @property
    def live_bytes(self) -> int:
        """Bytes of the newest records of all jobs, policies and keys, by the JournalWriter's own count."""
        return self.stats().bytes_live

    @property
    def entry_bytes(self) -> int:
        """Bytes of the newest records of all policies and keys, including expired keys until compaction."""
        assert self.policies.keys() | self.keys.keys() <= self._log.entries.keys()
        return sum(size for _, size in self._log.entries.values())

    def check_live_bytes(self) -> None:
        """Assert that the counts of live bytes of all segments match the records in them."""
        counts = dict.fromkeys(self._log.segments, 0)
        places = [(job.segment, recorded_size(job)) for job in self._log.jobs.values()]
        for number, size in [*places, *self._log.entries.values()]:
            if number in counts:
                counts[number] += size
        assert {number: segment.live_bytes for number, segment in self._log.segments.items()} == counts


class Bench:
    """A server from its start on *disk* to a crash, with clients that send random commands.

    records_keys    as in `History`.
    safe        number of the last record that must survive a loss of power.
    refused     number of refused puts.
    """

    records_keys: bool = True

    def __init__(
        self,
        disk: Disk,
        random: Random,
        now: int = START,
        max_size: int = SMALL_SEGMENT,
        sync_interval: int = 0,
        *,
        is_memory_short: bool = False,
        bodies: Bodies | None = None,
    ) -> None:
        """*now*: start of the fake time. *bodies*: the memory limit, if any.

        If *is_memory_short*, the limit is such that every body that can be evicted is evicted.
        """
        self.disk: Disk = disk
        self.random: Random = random
        self.now: int = now
        self.refused: int = 0
        self.deleted: list[Job] = []
        self.journal: RecordingJournalWriter = RecordingJournalWriter(disk, max_size, sync_interval, random)
        self.history: History = self.journal.history
        self.history.records_keys = self.records_keys
        self.broker: Broker = make_broker()
        self.broker.journal = self.journal
        self.broker.bodies = exhausted_bodies() if is_memory_short else bodies
        startup.recover(disk, self.broker, self.journal, now, is_strict=False)
        self.broker.retained_keys.table = self.journal.keys  # compaction copies the keys of this table
        self.safe: int = self.journal.safe
        self.history.begin(self.broker, self.safe)
        self._crashes: int = 0
        self._sessions: int = 0
        self.clients: list[Client] = [self._connect(is_remote=number == 0) for number in range(3)]

    # The work of the committer

    def commit(self, commands: int = 0) -> bool:
        """Write and sync all records; return False if the disk failed. Run *commands* commands during the batch."""
        if self.journal.wants_rewrite and not self._rewrite(commands):
            return False
        batch = self.journal.take_batch(is_synced=self.journal.sync_interval == 0)
        self.run_commands(commands)
        try:
            batch.run()
        except OSError as error:
            self.journal.note_failure(error, batch)
            if self.journal.write_error is not None:
                return False
        else:
            self.journal.complete_batch(batch)
        if self.journal.wants_rewrite:
            self.run_maintenance(commands)
            return self.commit(commands)
        if batch.is_synced:
            self.safe = batch.sequence
        return True

    def _rewrite(self, commands: int) -> bool:
        """Record the next step of a rewrite; return False if no step has room.

        Run *commands* commands between two slices.
        """
        while not record_rewrite_step(self.journal, lambda: self.run_commands(commands)):
            if (read := self.journal.read_for_compaction()) is None:
                return False
            self.read_back(read)
        return True

    def sync(self) -> bool:
        """Sync all written records; return False if the disk failed."""
        sync = self.journal.take_sync()
        if sync is not None:
            try:
                sync.run()
            except OSError as error:
                self.journal.note_failure(error)
                return False
            self.journal.complete_sync(sync)
            self.safe = max(self.safe, sync.sequence)
        return True

    def fill_and_release(self, size: int, pri: int) -> None:
        """Put jobs of *size* bytes until one is refused; release each job with priority *pri*, and commit."""
        while self.put(size, 0):
            assert self.commit()
            self.run_maintenance()
        for id in list(self.broker.jobs):
            client = self.random.choice(self.clients)
            waiting.cancel_wait(self.broker, client)
            if reserving.reserve_job(self.broker, client, id, self.now):
                assert finishing.release(self.broker, client, id, pri, 0, self.now)
        assert self.commit(30)

    def compact(self) -> None:
        """Run a slice of compaction, as the committer does after each batch; if memory is short, first evict bodies."""
        if self.broker.bodies is not None and self.random.random() < 0.7:
            self.journal.evict(self.random.choice((1, 10, 1000)))
        read = self.journal.read_for_compaction()
        if read is not None:
            self.read_back(read)
        self.journal.compact(self.random.choice((100, 1000, 65536)))

    def read_back(self, read: BodyRead, ahead: tuple[int, ...] = ()) -> None:
        """Run *read*, then some commands, which may delete its jobs, and complete it."""
        read.run()
        assert read.errors == {}
        self.run_commands(self.random.choice((0, 0, 3)))
        self.journal.complete_read(read, ahead)

    def read_some_back(self, jobs: list[Job]) -> None:
        """Read back the bodies of up to five random *jobs*, some of them ahead of their reservation."""
        sample = self.random.sample(jobs, min(len(jobs), 5))
        self.read_back(self.journal.read(sample), tuple(job.id for job in sample[::2]))

    def run_maintenance(self, commands: int = 0) -> None:
        """Create and remove files; run *commands* commands in between."""
        maintenance = self.journal.take_maintenance()
        if maintenance is not None:
            self.run_commands(commands)
            maintenance.run()
            self.journal.complete_maintenance(maintenance)

    def step(self) -> None:
        """Run some commands, then a random choice of the committer's tasks."""
        random = self.random
        self.run_commands(random.randrange(8))
        if random.random() < 0.8:
            self.commit(random.choice((0, 0, 3)))
        if random.random() < 0.7:
            self.compact()
        if self.journal.sync_interval and random.random() < 0.4:
            self.sync()
        if random.random() < 0.7:
            self.run_maintenance(random.choice((0, 0, 3)))
        if self.broker.bodies is not None and random.random() < 0.3:
            self.read_some_back(list(self.broker.jobs.values()))

    def settle(self, turns: int = 30) -> None:
        """Repeat the tasks of the committer *turns* times, which is enough for all that is due."""
        for _ in range(turns):
            self.commit()
            self.sync()
            read = self.journal.read_for_compaction()
            if read is not None:
                self.read_back(read)
            while self.journal.compact(65536):
                self.commit()
                self.sync()
            self.run_maintenance()

    # Commands of clients

    def run_commands(self, commands: int) -> None:
        """Run *commands* random commands; the fake time advances."""
        verbs = self.verbs()
        for _ in range(commands):
            self.now += 1
            self.random.choice(verbs)()

    def verbs(self) -> tuple[Callable[[], object], ...]:
        """Return the commands of clients; a command that is listed twice is twice as likely."""
        return (
            self.put, self.put, self.put, self.put, self.reserve, self.reserve, self.reserve, self.wait, self.release,
            self.release, self.bury, self.bury, self.kick, self.kick_job, self.delete, self.delete, self.delete_held,
            self.delete_held, self.reserve_job, self.touch, self.pause, self.reconnect, self.pass_time, self.edit,
            self.edit, self.edit, self.bury_job, self.release_job, self.delete_forced, self.put_in_tube,
            self.reprioritize, self.reprioritize, self.truncate_job, self.delete_for_undo, self.undelete,
        )  # fmt: skip

    def put(self, size: int | None = None, delay: int | None = None) -> int:
        """Put a job with *size* random bytes and *delay* in seconds, by default random; return its id, 0 if refused."""
        random, client = self.random, self._client()
        if size is None:
            size = random.choice((0, 1, 100, 500, random.randrange(2000), random.choice((100, 6000))))
        if delay is None:
            delay = random.choice((0, 0, 0, random.randrange(60)))
        id = self.broker.allocate_id()
        body = b"%d:" % id + random.randbytes(size)
        pri, ttr = random.choice((0, 10, 2**32 - 1)), random.choice((1, 30, 2**32 - 1))
        if putting.put(self.broker, client, id, pri, delay * SECOND, ttr * SECOND, body, self.now) > 0:
            return id
        self.refused += 1
        return 0

    def put_in_tube(self) -> None:
        """Put a job into a random tube, with fractions of seconds."""
        random, id = self.random, self.broker.allocate_id()
        name, body = random.choice((ELSEWHERE, *TUBES)), b"%d:" % id + random.randbytes(random.randrange(200))
        delay, ttr = random.choice((0, SECOND // 4)), random.choice((SECOND // 1000, 5 * SECOND // 2))
        self.refused += putting.put_in_tube(self.broker, self._client(), name, id, 5, delay, ttr, body, self.now) < 0

    def reprioritize(self) -> None:
        if self.broker.jobs:
            id = self._any_id()
            is_held = self.broker.jobs[id].state == RESERVED
            outcome = editing.reprioritize(self.broker, id, self.random.randrange(20), self.now)
            assert outcome == (EditOutcome.RESERVED if is_held else EditOutcome.DONE)

    def reserve(self) -> Job | None:
        return reserving.reserve(self.broker, self._client(), self.now)

    def wait(self) -> None:
        client = self._client()
        if reserving.reserve(self.broker, client, self.now) is None:
            reserving.wait(self.broker, client, self.now + 5 * SECOND, self.now)

    def reserve_job(self) -> None:
        if self.broker.jobs:
            reserving.reserve_job(self.broker, self._client(), self._any_id(), self.now)

    def release(self) -> None:
        if held := self._held():
            client, id = held
            delay = self.random.choice((0, self.random.randrange(60)))
            assert finishing.release(self.broker, client, id, self.random.randrange(5), delay * SECOND, self.now)

    def bury(self) -> None:
        if held := self._held():
            client, id = held
            assert finishing.bury(self.broker, client, id, self.random.randrange(5), self.now)

    def touch(self) -> None:
        if held := self._held():
            client, id = held
            assert reserving.touch(self.broker, client, id, self.now)

    def delete_held(self) -> None:
        if held := self._held():
            client, id = held
            assert finishing.delete(self.broker, client, id, self.now)

    def delete(self) -> None:
        if self.broker.jobs:
            finishing.delete(self.broker, self._client(), self._any_id(), self.now)

    def edit(self) -> None:
        """Edit random fields of a random job; assert that the edit is complete, or has changed nothing."""
        if not self.broker.jobs:
            return
        random, id = self.random, self._any_id()
        job = self.broker.jobs[id]
        if job.body is None:
            self.read_back(self.journal.read([job]))
            if id not in self.broker.jobs:
                return
            job = self.broker.jobs[id]
        before, is_forced = JobSnapshot.of(job), random.random() < 0.5
        outcome = editing.edit_job(
            self.broker,
            id,
            self.now,
            tube=random.choice((None, ELSEWHERE, *TUBES)),
            pri=random.choice((None, random.randrange(5))),
            delay=random.choice((None, 0, random.randrange(60) * SECOND)),
            ttr=random.choice((None, 30 * SECOND)),
            body=random.choice((None, b"", b"edited %d:" % id + random.randbytes(random.choice((9, 900, 6000))))),
            is_forced=is_forced,
        )
        if outcome != EditOutcome.DONE:
            assert outcome == (EditOutcome.RESERVED if job.state == RESERVED and not is_forced else EditOutcome.NO_ROOM)
            assert self.broker.jobs[id] is job
            assert JobSnapshot.of(job) == before

    def bury_job(self) -> None:
        if self.broker.jobs:
            finishing.bury_job(self.broker, self._any_id(), self.now, is_forced=self.random.random() < 0.5)

    def release_job(self) -> None:
        if held := self._held():
            assert finishing.release_job(self.broker, held[1], self.now)

    def delete_forced(self) -> None:
        if held := self._held():
            assert finishing.delete_job(self.broker, held[1], self.now, is_forced=True)

    def delete_for_undo(self) -> None:
        """Delete a random job as an operator, who may undo the deletion."""
        if self.broker.jobs:
            job = self.broker.jobs[self._any_id()]
            if job.body is not None and job.holder is None:
                self.deleted.append(job.copy_with(job.tube, job.body))
                assert finishing.delete_job(self.broker, job.id, self.now)

    def undelete(self) -> None:
        if self.deleted:
            deleted = self.random.choice(self.deleted)
            is_taken = deleted.id in self.broker.jobs
            refusal = undoing.undelete(self.broker, deleted, self.now)
            policies = (Refusal.KEY_TAKEN, Refusal.TUBE_FULL)
            assert (refusal == Refusal.ID_TAKEN) if is_taken else refusal in (0, Refusal.JOURNAL, *policies)

    def truncate_job(self) -> None:
        """Have a held job deleted when its reservation ends, as truncate does with each one."""
        if held := self._held():
            is_new = not self.broker.jobs[held[1]].is_truncated
            assert finishing.truncate_job(self.broker, held[1], self.now) == is_new

    def kick(self) -> None:
        tube = self.random.choice(list(self.broker.tubes.values()))
        kicking.kick(self.broker, tube, self.random.choice((BURIED, DELAYED)), self.random.randrange(1, 5), self.now)

    def kick_job(self) -> None:
        if self.broker.jobs:
            kicking.kick_job(self.broker, self._any_id(), self.now)

    def pause(self) -> None:
        name = self.random.choice(list(self.broker.tubes))
        editing.pause_tube(self.broker, name, self.random.choice((0, 0, 3, 300)) * SECOND, self.now)

    def reconnect(self) -> None:
        at = self.random.randrange(len(self.clients))
        connecting.disconnect(self.broker, self.clients[at], self.now)
        self.clients[at] = self._connect(is_remote=at == 0)

    def finish(self) -> None:
        """Reserve the next job, and delete it."""
        client = self._client()
        job = reserving.reserve(self.broker, client, self.now)
        if job is not None:
            assert finishing.delete(self.broker, client, job.id, self.now)

    def pass_time(self) -> None:
        self.now += self.random.choice((1, SECOND, 10 * SECOND))
        while (due := ticking.tick(self.broker, self.now)) is not None and due <= self.now:
            pass

    def delete_all(self) -> None:
        """Delete every job, including the reserved ones."""
        for job in list(self.broker.jobs.values()):
            assert finishing.delete(self.broker, job.holder, job.id, self.now)

    # Checks of tests

    def check_recorded(self) -> None:
        """Assert that the journal has recorded the present state of all jobs and pauses."""
        for id, job in self.broker.jobs.items():
            recorded = self.history.latest(id)
            assert recorded is not None
            snapshot = JobSnapshot.of(job)
            if job.body is None:
                read = self.journal.read([job])
                read.run()
                assert read.errors == {}
                snapshot = replace(snapshot, body=read.bodies[id])
            if not self.records_keys:
                snapshot = replace(snapshot, unique_key=recorded.unique_key)
            assert snapshot.after_restart(self.now) == recorded.after_restart(self.now)
        for id in self.history.jobs.keys() - self.broker.jobs.keys():
            assert self.history.latest(id) is None
        for name, entries in self.history.pauses.items():
            tube = self.broker.tubes.get(name)
            end = tube.paused_until if tube is not None else 0
            recorded_end = entries[-1][1]
            assert (end if end > self.now else 0) == (recorded_end if recorded_end > self.now else 0), name
        assert self.journal.live_bytes == self.live_bytes
        self.journal.check_live_bytes()

    def check_after_crash(self, disk: Disk, is_strict: bool = True) -> None:
        """Assert that a server on *disk* recovers all that it must; with *is_strict*, that it reports no damage.

        Every second one of these servers belongs to a queue of several shards.
        """
        self._crashes += 1
        ends_remote = self._crashes % 2 == 0
        broker = recovered(disk, self.now, is_strict, ends_remote=ends_remote)
        self.history.check(broker, self.safe, self.now, self.journal.safe, ends_remote=ends_remote)
        self.history.check_entries(broker.policy_store.documents, broker.retained_keys.table, self.safe, self.now)

    @property
    def live_bytes(self) -> int:
        """Bytes of the newest records of all jobs, computed from the jobs, and of all policies and keys."""
        return sum(recorded_size(job) for job in self.broker.jobs.values()) + self.journal.entry_bytes

    def _connect(self, *, is_remote: bool) -> Client:
        client = connecting.connect(self.broker, lambda: None)
        if is_remote:
            self._sessions += 1
            connecting.become_remote(self.broker, client, None, RemoteReservations("f1", self._sessions))
        connecting.use(self.broker, client, self.random.choice(TUBES))
        for name in self.random.sample(TUBES, 2):
            connecting.watch(self.broker, client, name)
        return client

    def _client(self) -> Client:
        """Return a random client, and end its wait if it waits, or the offer to it."""
        client = self.random.choice(self.clients)
        waiting.cancel_wait(self.broker, client)
        waiting.decline_offer(self.broker, client, self.now)
        return client

    def _held(self) -> tuple[Client, int] | None:
        holding = [client for client in self.clients if client.reserved]
        if not holding:
            return None
        client = self.random.choice(holding)
        waiting.cancel_wait(self.broker, client)
        return client, self.random.choice(list(client.reserved))

    def _any_id(self) -> int:
        return self.random.choice(list(self.broker.jobs))


def record_rewrite_step(journal: JournalWriter, between_slices: Callable[[], None] = lambda: None) -> bool:
    """Record a step of a rewrite; call *between_slices* between two slices; return False if no step has room."""
    slices = journal.rewrite()
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return bool(end.value)
        between_slices()


def exhausted_bodies() -> Bodies:
    """Return an account of memory that always requests eviction, and never refuses a job."""
    bodies = Bodies(2**40, can_evict=True)
    bodies.margin = bodies.limit
    return bodies


def recovered(
    files: Files, now: int, is_strict: bool = True, bodies: Bodies | None = None, *, ends_remote: bool = True
) -> Broker:
    """Return the broker of a server that has started on *files*; *ends_remote* as for `startup.recover`."""
    broker = make_broker()
    broker.bodies = bodies
    journal = broker.journal = JournalWriter(files, SMALL_SEGMENT, 0, os.urandom)
    startup.recover(files, broker, journal, now, is_strict, ends_remote=ends_remote)
    return broker


def _possible_values(entries: list[tuple[int, T]], safe: int, before: T) -> list[T]:
    """Return the value as of record *safe*, and all later ones; *before* is the value before the first entry."""
    possible = []
    for sequence, value in reversed(entries):
        possible.append(value)
        if sequence <= safe:
            return possible
    return [*possible, before]
