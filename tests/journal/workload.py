"""A broker over a journal on a disk in memory, a random workload, and what a restart must show of it.

Everything runs in turn, in one thread: `Bench.commit` and `Bench.keep_up` do what the committer does. The journal
is a witness that notes, with each record's sequence number, how the job it is about looks from then on;
so what a restart shows can be held against every state that was ever recorded, and against what was acknowledged.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, TypeVar

from greenstalk_server.core import job_history
from greenstalk_server.core.body_cache import Bodies
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.job import BURIED, DELAYED, READY, RESERVED, SECOND, Job
from greenstalk_server.core.outcomes import EditOutcome
from greenstalk_server.core.tube import Tube
from greenstalk_server.journal import startup
from greenstalk_server.journal.batch import Read
from greenstalk_server.journal.files import Files
from greenstalk_server.journal.record import recorded_size
from greenstalk_server.journal.writer import Binlog
from tests.journal.disk import Disk
from tests.support.world import START, make_broker

SMALL: Final = 4096
"""Bytes of a segment, so that all that happens to segments happens soon."""

T = TypeVar("T")

TUBES: Final = (b"default", b"mail", b"a" * 200)
ON_DISK: Final = b"\0on disk alone"
"""Stands in for a body that a look does not see."""

ELSEWHERE: Final = b"elsewhere"
"""A tube that no client uses or watches."""


@dataclass(frozen=True, slots=True)
class Look:
    """All that a journal is told of a job; `at` is what a restart has to show of that.

    state   of a job that reserve-job took while it was buried or delayed: that state, which a restart returns it to.
    place   the deadline if delayed, the burial's number if buried, else 0.
    events  with that of a reservation that goes on.
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

    @staticmethod
    def of(job: Job) -> Look:
        """How *job* looks; one that nobody holds any more is ready, though it may not know yet."""
        state, deadline, events = job.state, job.deadline, job.events
        if job.former_state:
            state, deadline = job.former_state, job.former_deadline
        if job.holder is not None:
            events = job_history.add(events, job_history.RESERVED, job.reserved_at, job.holder.number)
        elif state == RESERVED:
            state = READY
        return Look(
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
        )

    def at(self, now: int) -> Look:
        """What a restart at *now* has to show."""
        events = self.events
        if job_history.is_reserved(events):
            events = job_history.add(events, job_history.RETURNED, now, job_history.NOBODY)
        if self.state == RESERVED or (self.state == DELAYED and self.place <= now):
            return replace(self, state=READY, place=0, events=events)
        return replace(self, events=events)

    def forgetting(self, events: bytes) -> Look:
        """How it looks with *events* alone, if these are the newest of its own."""
        return replace(self, events=events) if self.events.endswith(events) else self

    def unreturned(self) -> Look:
        """How it looked before a restart gave it back."""
        assert job_history.last(self.events).kind == job_history.RETURNED
        state = RESERVED if self.state == READY else self.state
        return replace(self, state=state, events=self.events[: -job_history.EVENT.size])


@dataclass(slots=True)
class History:
    """What was recorded, in order: by job and by tube, each with the sequence number of its record.

    A job that is gone looks None; a pause is its end, 0 if there is none.

    has_been_full   the disk was, and the oldest events of a job may be missing since.
    has_been_shortened  a rewrite had no room for jobs whole, and any but the newest event may be missing since.
    """

    jobs: dict[int, list[tuple[int, Look | None]]] = field(default_factory=dict)
    pauses: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    has_been_full: bool = False
    has_been_shortened: bool = False

    def begin(self, broker: Broker, sequence: int) -> None:
        """Take what *broker* has recovered as recorded under *sequence*, but for what the start itself has recorded."""
        for id in range(1, broker.next_id):
            job = broker.jobs.get(id)
            look = Look.of(job) if job is not None else None
            given_back = self.jobs.get(id, [])
            before = look.unreturned() if given_back and look is not None else look
            self.jobs[id] = [(sequence, before), *given_back]
        for tube in broker.tubes.values():
            self.pauses[tube.name] = [(sequence, tube.paused_until)]

    def check(self, broker: Broker, safe: int, now: int, acknowledged: int = 0) -> None:
        """Assert that *broker*, recovered, shows all up to record *safe*, and nothing that never was.

        The next id is above those of all records up to number *acknowledged*, though these may be lost.
        """
        broker.check()
        assert broker.jobs.keys() <= self.jobs.keys(), "a job was invented"
        for id, entries in self.jobs.items():
            job = broker.jobs.get(id)
            found = Look.of(job) if job is not None else None
            possible = [look.at(now) if look is not None else None for look in _since(entries, safe, None)]
            assert found in possible or self._was_forgotten(found, possible), f"job {id}: {found} is none of {possible}"
        for name, pauses in self.pauses.items():
            tube = broker.tubes.get(name)
            ends = [end if end > now else 0 for end in _since(pauses, safe, 0)]
            assert (tube.paused_until if tube is not None else 0) in ends, f"pause of {name!r}"
        given = [id for id, entries in self.jobs.items() if entries[0][0] <= max(safe, acknowledged)]
        assert broker.next_id > max(given, default=0)
        for tube in broker.tubes.values():
            places = [job.deadline for job in tube.buried.values()]
            assert places == sorted(set(places)), "the order of the buried jobs"

    def _was_forgotten(self, found: Look | None, possible: list[Look | None]) -> bool:
        """Whether *found* is a possible look but for its oldest events, which were left out when the disk was full."""
        if not self.has_been_full or found is None:
            return False
        looks = [look for look in possible if look is not None]
        if self.has_been_shortened:
            size = job_history.EVENT.size
            last = found.events[-size:]
            return found in [replace(look, events=found.events) for look in looks if last in (b"", look.events[-size:])]
        return any(look.forgetting(found.events) == found for look in looks)

    def latest(self, id: int) -> Look | None:
        """How the job *id* was recorded last."""
        return self.jobs[id][-1][1]


class Witness(Binlog):
    """A binlog that keeps a history of all that it is told."""

    def __init__(self, disk: Disk, max_size: int, sync_interval: int, random: Random) -> None:
        super().__init__(disk, max_size, sync_interval, random.randbytes)
        self.history: History = History()
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

    def put(self, job: Job) -> bool:
        if not super().put(job):
            return False
        assert job.id not in self.history.jobs, "an id was given twice"
        self._note(job.id, job)
        return True

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

    def lapse(self, job: Job) -> None:
        super().lapse(job)
        self._note(job.id, job)

    def delete(self, job: Job) -> None:
        super().delete(job)
        self._note(job.id, None)

    def pause(self, tube: Tube) -> None:
        super().pause(tube)
        self.history.pauses.setdefault(tube.name, []).append((self._log.sequence, tube.paused_until))

    def _note(self, id: int, job: Job | None) -> None:
        look = Look.of(job) if job is not None else None
        if look is not None and look.body == ON_DISK:
            before = self.history.latest(id)
            assert before is not None
            look = replace(look, body=before.body)
        self.history.jobs.setdefault(id, []).append((self._log.sequence, look))

    @property
    def live_bytes(self) -> int:
        """What it believes that the newest JOB records of all jobs take."""
        return self._log.live_bytes


class Bench:
    """One life of a server: recovered from *disk*, worked on, committed.

    safe        number of the last record that has to survive a loss of power.
    refused     puts that were refused.
    """

    def __init__(
        self,
        disk: Disk,
        random: Random,
        now: int = START,
        max_size: int = SMALL,
        sync_interval: int = 0,
        *,
        is_memory_short: bool = False,
    ) -> None:
        """If *is_memory_short*, no body stays in memory that may go."""
        self.disk: Disk = disk
        self.random: Random = random
        self.now: int = now
        self.refused: int = 0
        self.binlog: Witness = Witness(disk, max_size, sync_interval, random)
        self.history: History = self.binlog.history
        self.broker: Broker = make_broker()
        self.broker.journal = self.binlog
        if is_memory_short:
            self.broker.bodies = short_of_memory()
        startup.recover(disk, self.broker, self.binlog, now, is_strict=False)
        self.safe: int = self.binlog.safe
        self.history.begin(self.broker, self.safe)
        self.clients: list[Client] = [self._connect() for _ in range(3)]

    # The committer's part

    def commit(self, commands: int = 0) -> bool:
        """Write and sync all there is, with so many *commands* meanwhile; False if the disk failed."""
        if self.binlog.wants_rewrite and not self._rewrite(commands):
            return False
        batch = self.binlog.take(is_synced=self.binlog.sync_interval == 0)
        self.work(commands)
        try:
            batch.run()
        except OSError as error:
            self.binlog.failed(error, batch)
            if self.binlog.trouble is not None:
                return False
        else:
            self.binlog.done(batch)
        if self.binlog.wants_rewrite:
            self.keep_up(commands)
            return self.commit(commands)
        if batch.is_synced:
            self.safe = batch.sequence
        return True

    def _rewrite(self, commands: int) -> bool:
        """Record the next step of a rewrite, with so many *commands* between its slices; False if it has no room."""
        while not rewrite_step(self.binlog, lambda: self.work(commands)):
            if (read := self.binlog.read_for_compaction()) is None:
                return False
            self.take_in(read)
        return True

    def sync(self) -> bool:
        """Sync what is written; False if the disk failed."""
        sync = self.binlog.take_sync()
        if sync is not None:
            try:
                sync.run()
            except OSError as error:
                self.binlog.failed(error)
                return False
            self.binlog.synced(sync)
            self.safe = max(self.safe, sync.sequence)
        return True

    def fill_and_release(self, size: int, pri: int) -> None:
        """Put bodies of *size* bytes until one is refused, release each job with priority *pri*, and commit."""
        while self.put(size, 0):
            assert self.commit()
            self.keep_up()
        for id in list(self.broker.jobs):
            client = self.random.choice(self.clients)
            self.broker.cancel_wait(client)
            if self.broker.reserve_job(client, id, self.now):
                assert self.broker.release(client, id, pri, 0, self.now)
        assert self.commit(30)

    def compact(self) -> None:
        """Copy a slice, as the committer does after each batch."""
        if self.broker.bodies is not None and self.random.random() < 0.7:
            self.binlog.let_go(self.random.choice((1, 10, 1000)))
        read = self.binlog.read_for_compaction()
        if read is not None:
            self.take_in(read)
        self.binlog.compact(self.random.choice((100, 1000, 65536)))

    def take_in(self, read: Read, ahead: tuple[int, ...] = ()) -> None:
        """Read bodies back, with some commands meanwhile, after which some of the jobs may be gone."""
        read.run()
        assert read.errors == {}
        self.work(self.random.choice((0, 0, 3)))
        self.binlog.have_read(read, ahead)

    def look_at(self, jobs: list[Job]) -> None:
        """Read the bodies of some *jobs* back, some of them ahead of a reserve."""
        some = self.random.sample(jobs, min(len(jobs), 5))
        self.take_in(self.binlog.read(some), tuple(job.id for job in some[::2]))

    def keep_up(self, commands: int = 0) -> None:
        """Make and remove files, with so many *commands* meanwhile."""
        upkeep = self.binlog.upkeep()
        if upkeep is not None:
            self.work(commands)
            upkeep.run()
            self.binlog.kept(upkeep)

    def turn(self) -> None:
        """Some commands, and whatever the committer may do next."""
        random = self.random
        self.work(random.randrange(8))
        if random.random() < 0.8:
            self.commit(random.choice((0, 0, 3)))
        if random.random() < 0.7:
            self.compact()
        if self.binlog.sync_interval and random.random() < 0.4:
            self.sync()
        if random.random() < 0.7:
            self.keep_up(random.choice((0, 0, 3)))
        if self.broker.bodies is not None and random.random() < 0.3:
            self.look_at(list(self.broker.jobs.values()))

    def settle(self, turns: int = 30) -> None:
        """Let the committer do all it has to do."""
        for _ in range(turns):
            self.commit()
            self.sync()
            read = self.binlog.read_for_compaction()
            if read is not None:
                self.take_in(read)
            while self.binlog.compact(65536):
                self.commit()
                self.sync()
            self.keep_up()

    # The clients' part

    def work(self, commands: int) -> None:
        """So many random commands, and time that passes."""
        verbs = (
            self.put, self.put, self.put, self.put, self.reserve, self.reserve, self.reserve, self.wait, self.release,
            self.release, self.bury, self.bury, self.kick, self.kick_job, self.delete, self.delete, self.delete_held,
            self.delete_held, self.reserve_job, self.touch, self.pause, self.reconnect, self.pass_time, self.edit,
            self.edit, self.edit, self.bury_job, self.release_job, self.delete_forced,
        )  # fmt: skip
        for _ in range(commands):
            self.now += 1
            self.random.choice(verbs)()

    def put(self, size: int | None = None, delay: int | None = None) -> int:
        """Put a job of *size* bytes, by default any; return its id, 0 if it was refused."""
        random, client = self.random, self._client()
        if size is None:
            size = random.choice((0, 1, 100, 500, random.randrange(2000), random.choice((100, 6000))))
        if delay is None:
            delay = random.choice((0, 0, 0, random.randrange(60)))
        id = self.broker.allocate_id()
        body = b"%d:" % id + random.randbytes(size)
        pri, ttr = random.choice((0, 10, 2**32 - 1)), random.choice((1, 30, 2**32 - 1))
        if self.broker.put(client, id, pri, delay * SECOND, ttr * SECOND, body, self.now) > 0:
            return id
        self.refused += 1
        return 0

    def reserve(self) -> Job | None:
        return self.broker.reserve(self._client(), self.now)

    def wait(self) -> None:
        client = self._client()
        if self.broker.reserve(client, self.now) is None:
            self.broker.wait(client, self.now + 5 * SECOND, self.now)

    def reserve_job(self) -> None:
        if self.broker.jobs:
            self.broker.reserve_job(self._client(), self._any_id(), self.now)

    def release(self) -> None:
        if held := self._held():
            client, id = held
            delay = self.random.choice((0, self.random.randrange(60)))
            assert self.broker.release(client, id, self.random.randrange(5), delay * SECOND, self.now)

    def bury(self) -> None:
        if held := self._held():
            client, id = held
            assert self.broker.bury(client, id, self.random.randrange(5), self.now)

    def touch(self) -> None:
        if held := self._held():
            client, id = held
            assert self.broker.touch(client, id, self.now)

    def delete_held(self) -> None:
        if held := self._held():
            client, id = held
            assert self.broker.delete(client, id, self.now)

    def delete(self) -> None:
        if self.broker.jobs:
            self.broker.delete(self._client(), self._any_id(), self.now)

    def edit(self) -> None:
        """Change anything of any job; it is done, or nothing has changed."""
        if not self.broker.jobs:
            return
        random, id = self.random, self._any_id()
        job = self.broker.jobs[id]
        if job.body is None:
            self.take_in(self.binlog.read([job]))
            if id not in self.broker.jobs:
                return
            job = self.broker.jobs[id]
        before, is_forced = Look.of(job), random.random() < 0.5
        outcome = self.broker.edit_job(
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
            assert outcome == (EditOutcome.HELD if job.state == RESERVED and not is_forced else EditOutcome.NO_ROOM)
            assert self.broker.jobs[id] is job
            assert Look.of(job) == before

    def bury_job(self) -> None:
        if self.broker.jobs:
            self.broker.bury_job(self._any_id(), self.now, is_forced=self.random.random() < 0.5)

    def release_job(self) -> None:
        if held := self._held():
            assert self.broker.release_job(held[1], self.now)

    def delete_forced(self) -> None:
        if held := self._held():
            assert self.broker.delete_job(held[1], self.now, is_forced=True)

    def kick(self) -> None:
        tube = self.random.choice(list(self.broker.tubes.values()))
        self.broker.kick(tube, self.random.choice((BURIED, DELAYED)), self.random.randrange(1, 5), self.now)

    def kick_job(self) -> None:
        if self.broker.jobs:
            self.broker.kick_job(self._any_id(), self.now)

    def pause(self) -> None:
        name = self.random.choice(list(self.broker.tubes))
        self.broker.pause_tube(name, self.random.choice((0, 0, 3, 300)) * SECOND, self.now)

    def reconnect(self) -> None:
        at = self.random.randrange(len(self.clients))
        self.broker.disconnect(self.clients[at], self.now)
        self.clients[at] = self._connect()

    def pass_time(self) -> None:
        self.now += self.random.choice((1, SECOND, 10 * SECOND))
        while (due := self.broker.tick(self.now)) is not None and due <= self.now:
            pass

    def delete_all(self) -> None:
        """Delete every job, held or not."""
        for job in list(self.broker.jobs.values()):
            assert self.broker.delete(job.holder, job.id, self.now)

    # What a test asks

    def check_told(self) -> None:
        """Assert that the broker has told the journal all that a restart has to show."""
        for id, job in self.broker.jobs.items():
            recorded = self.history.latest(id)
            assert recorded is not None
            look = Look.of(job)
            if job.body is None:
                read = self.binlog.read([job])
                read.run()
                assert read.errors == {}
                look = replace(look, body=read.bodies[id])
            assert look.at(self.now) == recorded.at(self.now)
        for id in self.history.jobs.keys() - self.broker.jobs.keys():
            assert self.history.latest(id) is None
        for name, entries in self.history.pauses.items():
            tube = self.broker.tubes.get(name)
            end = tube.paused_until if tube is not None else 0
            recorded_end = entries[-1][1]
            assert (end if end > self.now else 0) == (recorded_end if recorded_end > self.now else 0), name
        assert self.binlog.live_bytes == self.live_bytes

    def check_after_crash(self, disk: Disk, is_strict: bool = True) -> None:
        """Assert that a server that finds *disk* shows all that it has to; by default, that no damage is reported."""
        self.history.check(recovered(disk, self.now, is_strict), self.safe, self.now, self.binlog.safe)

    @property
    def live_bytes(self) -> int:
        """Bytes that the newest JOB records of all jobs take."""
        return sum(recorded_size(job) for job in self.broker.jobs.values())

    def _connect(self) -> Client:
        client = self.broker.connect(lambda: None)
        self.broker.use(client, self.random.choice(TUBES))
        for name in self.random.sample(TUBES, 2):
            self.broker.watch(client, name)
        return client

    def _client(self) -> Client:
        """A client that does not wait; if all do, one whose wait ends."""
        client = self.random.choice(self.clients)
        self.broker.cancel_wait(client)
        return client

    def _held(self) -> tuple[Client, int] | None:
        holding = [client for client in self.clients if client.reserved]
        if not holding:
            return None
        client = self.random.choice(holding)
        self.broker.cancel_wait(client)
        return client, self.random.choice(list(client.reserved))

    def _any_id(self) -> int:
        return self.random.choice(list(self.broker.jobs))


def rewrite_step(binlog: Binlog, meanwhile: Callable[[], None] = lambda: None) -> bool:
    """Have *binlog* record a step of a rewrite, and call *meanwhile* between slices; False if it has no room."""
    slices = binlog.rewrite()
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return bool(end.value)
        meanwhile()


def short_of_memory() -> Bodies:
    """Bodies that are always to be let go, and jobs that have room all the same."""
    bodies = Bodies(2**40, can_let_go=True)
    bodies.margin = bodies.limit
    return bodies


def recovered(files: Files, now: int, is_strict: bool = True, bodies: Bodies | None = None) -> Broker:
    """The broker of a server that starts on *files*."""
    broker = make_broker()
    broker.bodies = bodies
    binlog = broker.journal = Binlog(files, SMALL, 0, os.urandom)
    startup.recover(files, broker, binlog, now, is_strict)
    return broker


def _since(entries: list[tuple[int, T]], safe: int, before: T) -> list[T]:
    """What stood after record *safe*, and all that came later; *before* stood before the first."""
    possible = [before]
    for sequence, value in entries:
        if sequence <= safe:
            possible.clear()
        possible.append(value)
    return possible
