"""A broker in fake time, and clients that record the outcomes of their reserves.

Every step ends with `invariants.check`, except in bulk. Time passes only in `advance`, which ticks only when the broker
has requested a tick. So a broker that does not request a tick fails the test.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, TypeVar

from greenstalk_server.core.broker import SLICE, Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.counters import ServerFacts
from greenstalk_server.core.jobs.id_sequence import ONE_SHARD, IdSequence
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, SECOND, STATE_NAMES, Job
from greenstalk_server.core.journal import NullJournal
from greenstalk_server.core.limits import Limits
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.operations import (
    connecting,
    editing,
    finishing,
    kicking,
    putting,
    reserving,
    suspending,
    ticking,
    undoing,
)
from greenstalk_server.core.outcomes import EditOutcome, WaitOutcome
from greenstalk_server.core.remote import RemoteReservations
from greenstalk_server.core.tags.tags import Duplicate
from greenstalk_server.core.transitions import waiting
from greenstalk_server.core.transitions.dependents import wake_dependents
from greenstalk_server.core.tube_shards import TubeShards
from greenstalk_server.core.tubes.head_watch import Head, head_of
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.protocol.stats import JobStats, ServerStats, TubeStats, job_stats, server_stats, tube_stats
from greenstalk_server.protocol.tag_syntax import parse_tags
from tests.support import invariants

T = TypeVar("T")

START: Final = 1_700_000_000 * SECOND
"""Start of the fake time, nanoseconds since the Unix epoch."""

MAX_TICKS: Final = 1000
"""Maximum number of ticks at one point in time: enough for 256,000 jobs."""

Outcome: TypeAlias = int | str
"""Result of a reserve: a job's id, or one of the words below."""

WORDS: Final = {
    WaitOutcome.WAITING: "WAITING",
    WaitOutcome.TIMED_OUT: "TIMED_OUT",
    WaitOutcome.DEADLINE_SOON: "DEADLINE_SOON",
    WaitOutcome.DELETED: "DELETED",
    WaitOutcome.BURIED: "BURIED",
    WaitOutcome.NOT_FOUND: "NOT_FOUND",
    WaitOutcome.OFFERED: "OFFERED",
}


EDITS: Final = {
    EditOutcome.DONE: "DONE",
    EditOutcome.NOT_FOUND: "NOT_FOUND",
    EditOutcome.RESERVED: "RESERVED",
    EditOutcome.NO_ROOM: "NO_ROOM",
}


def make_broker(
    max_job_size: int = 65535,
    limits: Limits | None = None,
    ids: IdSequence = ONE_SHARD,
    tube_shards: TubeShards | None = None,
) -> Broker:
    """Return a broker of a server with known facts, started at START."""
    facts = ServerFacts(
        id="0123456789abcdef",
        pid=1,
        version="0",
        build="pure Python",
        hostname="host",
        os="os",
        platform="platform",
        started_at=START,
        rusage=lambda: (0.25, 1.5),
    )
    return Broker(facts, max_job_size=max_job_size, limits=limits, ids=ids, tube_shards=tube_shards)


def _seconds(text: bytes, maximum: int) -> int:
    """Return the number of seconds in *text* in nanoseconds."""
    return min(round(float(text) * SECOND), maximum * SECOND)


def outcome_of(result: Job | int | None) -> Outcome:
    """Return the result of a reserve or a wait as an Outcome."""
    assert result is not None
    return result.id if isinstance(result, Job) else WORDS[result]


def slots(one: object) -> tuple[str, ...]:
    """Return the names of the attributes of *one*, in either build: compiled classes have no `__slots__`."""
    kind: Any = type(one)
    if not hasattr(kind, "__slots__"):
        return tuple(kind.__mypyc_attrs__)
    return tuple(name for base in kind.__mro__ for name in base.__dict__.get("__slots__", ()))


class FullJournal(NullJournal):
    """A journal that has no room for records."""

    def put(self, job: Job) -> bool:
        return False

    def put_group(self, jobs: list[Job]) -> bool:
        return False

    def undelete(self, job: Job) -> bool:
        return False

    def replace(self, old: Job, new: Job) -> bool:
        return False


class DroppedTubes(BrokerListener):
    """Records the tubes that *broker* drops."""

    def __init__(self, broker: Broker) -> None:
        self.tubes: list[Tube] = []
        self.names: list[bytes] = []
        broker.subscribe(self)

    def on_tube_dropped(self, tube: Tube) -> None:
        self.tubes.append(tube)
        self.names.append(tube.name)


class World(BrokerListener):
    """A broker, its clients, and the time."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.broker = make_broker(limits=limits)
        self.broker.subscribe(self)
        self.now = START
        self.due: int | None = None
        self._is_bulk = False

    def client(self, use: bytes = b"default", watch: Iterable[bytes] = (b"default",)) -> Actor:
        """Connect a client that uses *use* and watches *watch*."""
        return Actor(self, use, list(watch))

    def remote(self, watch: Iterable[bytes] = (b"default",), front: object = "front", session: int = 0) -> Actor:
        """Connect a client of the process *front* that uses no tube and watches *watch*.

        With a *session*, which is its number, the client can be suspended.
        """
        actor = Actor(self, b"default", [b"default"])
        remote = RemoteReservations(str(front), session) if session else None
        connecting.become_remote(self.broker, actor.client, front, remote)
        connecting.subscribe(self.broker, actor.client, is_on=True)
        for name in watch:
            actor.watch(name)
        return actor

    def heads(self) -> dict[bytes, Head]:
        """Return the heads that have changed since the last call, as a process publishes them."""
        return {tube.name: head_of(tube, self.now) for tube, _ in self.broker.heads.take()}

    def advance(self, seconds: float) -> None:
        """Advance the time, and tick whenever the broker has requested it."""
        self.advance_to(self.now + round(seconds * SECOND))

    def advance_to(self, until: int) -> None:
        """Advance to a time in nanoseconds."""
        ticks = 0
        while self.due is not None and self.due <= until:
            ticks = ticks + 1 if self.due <= self.now else 0
            assert ticks < MAX_TICKS, "the broker requests ticks without end"
            self.now = max(self.now, self.due)
            self.due = ticking.tick(self.broker, self.now)
            self.check()
        self.now = until

    def check(self) -> None:
        """Handle the dependents, as a session does after a command, and verify the broker's invariants."""
        wake_dependents(self.broker, self.now)
        if not self._is_bulk:
            invariants.check(self.broker)

    def checked(self, value: T) -> T:
        """Check the broker, and return *value*."""
        self.check()
        return value

    @contextmanager
    def in_bulk(self) -> Iterator[None]:
        """Check once, at the end of the block: a check takes time in proportion to all jobs and tubes."""
        self._is_bulk = True
        try:
            yield
        finally:
            self._is_bulk = False
        self.check()

    def edit(
        self,
        id: int,
        *,
        tube: bytes | None = None,
        pri: int | None = None,
        delay: float | None = None,
        ttr: float | None = None,
        body: bytes | None = None,
        is_renewed: bool = False,
        is_forced: bool = False,
    ) -> str:
        """Edit job *id* as an operator; times in seconds. Return the outcome as a word."""
        done = editing.edit_job(
            self.broker,
            id,
            self.now,
            tube=tube,
            pri=pri,
            delay=None if delay is None else round(delay * SECOND),
            ttr=None if ttr is None else round(ttr * SECOND),
            body=body,
            is_renewed=is_renewed,
            is_forced=is_forced,
        )
        return self.checked(EDITS[done])

    def reprioritize(self, id: int, pri: int) -> str:
        return self.checked(EDITS[editing.reprioritize(self.broker, id, pri, self.now)])

    def truncate(self, name: bytes) -> int | None:
        """Truncate the tube *name* in one step; return the number of deleted jobs, or None if there is no such tube."""
        tube, below = self.broker.tubes.get(name), self.broker.next_id
        if tube is None:
            return None
        for job in [job for job in self.broker.jobs.values() if job.tube is tube and job.state == RESERVED]:
            finishing.truncate_job(self.broker, job.id, self.now)
        deleted = sum(
            finishing.clear(self.broker, tube, state, SLICE, below, self.now) for state in (READY, DELAYED, BURIED)
        )
        return self.checked(deleted)

    def bury_job(self, id: int, is_forced: bool = False) -> bool:
        return self.checked(finishing.bury_job(self.broker, id, self.now, is_forced))

    def kick_job(self, id: int) -> bool:
        return self.checked(kicking.kick_job(self.broker, id, self.now))

    def release_job(self, id: int) -> bool:
        return self.checked(finishing.release_job(self.broker, id, self.now))

    def delete_job(self, id: int, is_forced: bool = False) -> bool:
        return self.checked(finishing.delete_job(self.broker, id, self.now, is_forced))

    def snapshot(self, id: int) -> Job:
        """Return a copy of job *id*, which no client holds, for `undelete` and `revert`."""
        job = self.broker.jobs[id]
        copy = job.copy_with(job.tube, job.body or b"")
        copy.holder = None
        return copy

    def undelete(self, deleted: Job) -> int:
        """Let a deleted job return; return 0 or a Refusal."""
        return self.checked(undoing.undelete(self.broker, deleted, self.now))

    def revert(self, before: Job, after: Job) -> int:
        """Undo the change of a job, given copies from before and after; return 0 or a Refusal."""
        return self.checked(undoing.revert(self.broker, before, after, before.body or b"", self.now))

    def state(self, id: int) -> str:
        """Return the state of job *id*, or "deleted"."""
        job = self.broker.jobs.get(id)
        return STATE_NAMES[job.state] if job is not None else "deleted"

    def ready(self, tube: bytes = b"default") -> list[int]:
        """Return the ids of the ready jobs of *tube* in their order."""
        return [job.id for job in self.broker.tubes[tube].ready.walk()]

    def delayed(self, tube: bytes = b"default") -> list[int]:
        """Return the ids of the delayed jobs of *tube* in their order."""
        return [job.id for job in self.broker.tubes[tube].delayed.walk()]

    def buried(self, tube: bytes = b"default") -> list[int]:
        """Return the ids of the buried jobs of *tube* in their order."""
        return list(self.broker.tubes[tube].buried)

    def tubes(self) -> list[bytes]:
        """Return the names of the tubes in the order of creation."""
        return list(self.broker.tubes)

    def stats(self) -> ServerStats:
        """Return the reply to "stats"."""
        return server_stats(self.broker, self.now)

    def stats_tube(self, name: bytes = b"default") -> TubeStats:
        """Return the reply to "stats-tube"."""
        return tube_stats(self.broker.tubes[name], self.now)

    def stats_job(self, id: int) -> JobStats:
        """Return the reply to "stats-job"."""
        return job_stats(self.broker.jobs[id], self.now)

    def on_earlier_deadline(self, when: int) -> None:
        if self.due is None or when < self.due:
            self.due = when


class Actor:
    """A client; times in seconds. `ended` lists the outcomes of the reserves that waited."""

    def __init__(self, world: World, use: bytes, watch: list[bytes]) -> None:
        self.world = world
        self.broker = world.broker
        self.ended: list[Outcome] = []
        self.client: Client = connecting.connect(self.broker, self._on_wake)
        self.use(use)
        for name in watch:
            self.watch(name)
        if b"default" not in watch:
            self.ignore(b"default")

    @property
    def reserved(self) -> list[int]:
        """The ids of the jobs that the client holds, in the order of reservation."""
        return list(self.client.reserved)

    @property
    def is_waiting(self) -> bool:
        return self.client.is_waiting

    def use(self, name: bytes) -> None:
        connecting.use(self.broker, self.client, name)
        self.world.check()

    def watch(self, name: bytes, weight: int = 1) -> int:
        count = connecting.watch(self.broker, self.client, name)
        connecting.set_weight(self.client, name, weight)
        return self.world.checked(count)

    def ignore(self, name: bytes) -> int:
        return self.world.checked(connecting.ignore(self.broker, self.client, name))

    def put(self, pri: int = 0, delay: float = 0, ttr: float = 60, body: bytes = b"") -> int:
        """Put a job and return its id."""
        id = self.broker.allocate_id()
        done = putting.put(
            self.broker, self.client, id, pri, round(delay * SECOND), round(ttr * SECOND), body, self.world.now
        )
        assert self.world.checked(done) == id
        return id

    def put_in_tube(self, name: bytes, pri: int = 0, delay: float = 0, ttr: float = 60, body: bytes = b"") -> int:
        """Put a job into the tube *name*; return its id, or a Refusal."""
        id, now = self.broker.allocate_id(), self.world.now
        times = (round(delay * SECOND), round(ttr * SECOND))
        return self.world.checked(putting.put_in_tube(self.broker, self.client, name, id, pri, *times, body, now))

    def put_tagged(
        self, words: str, pri: int = 0, delay: float = 0, ttr: float = 60, tube: bytes = b"", body: bytes = b""
    ) -> int | tuple[int, str] | tuple[int, str, int]:
        """Put a job with the tags *words*; return its id, a Refusal, or what a duplicate returns: id, state and pri.

        The pri is there only if the put has raised it.
        """
        tags = parse_tags(words.encode().split(), _seconds)
        assert tags is not None
        id, times, now = self.broker.allocate_id(), (round(delay * SECOND), round(ttr * SECOND)), self.world.now
        done = self.world.checked(putting.put_tagged(self.broker, self.client, tube, id, pri, *times, body, tags, now))
        if not isinstance(done, Duplicate):
            return done
        state = STATE_NAMES[done.state] if done.state else "deleted"
        return (done.id, state) if done.pri < 0 else (done.id, state, done.pri)

    def wait_for_job(self, id: int, timeout: float | None = None) -> Outcome:
        """Wait until the job *id* is deleted or buried; return the outcome."""
        now = self.world.now
        until = None if timeout is None else now + round(timeout * SECOND)
        return self.world.checked(WORDS[reserving.wait_for_job(self.broker, self.client, id, until, now)])

    def reserve(self, timeout: float | None = None) -> Outcome:
        """Reserve a job, or wait for one like a session; return the outcome."""
        now = self.world.now
        job = reserving.reserve(self.broker, self.client, now)
        if job is not None:
            return self.world.checked(job.id)
        until = None if timeout is None else now + round(timeout * SECOND)
        return self.world.checked(WORDS[reserving.wait(self.broker, self.client, until, now)])

    def cancel_wait(self) -> None:
        waiting.cancel_wait(self.broker, self.client)
        self.world.check()

    def reserve_job(self, id: int) -> bool:
        job = reserving.reserve_job(self.broker, self.client, id, self.world.now)
        assert job is None or job.id == id
        return self.world.checked(job is not None)

    def delete(self, id: int) -> bool:
        return self.world.checked(finishing.delete(self.broker, self.client, id, self.world.now))

    def release(self, id: int, pri: int = 0, delay: float = 0) -> bool:
        done = finishing.release(self.broker, self.client, id, pri, round(delay * SECOND), self.world.now)
        return self.world.checked(done)

    def bury(self, id: int, pri: int = 0) -> bool:
        return self.world.checked(finishing.bury(self.broker, self.client, id, pri, self.world.now))

    def touch(self, id: int) -> bool:
        return self.world.checked(reserving.touch(self.broker, self.client, id, self.world.now))

    def kick(self, state: int, bound: int) -> int:
        return self.world.checked(kicking.kick(self.broker, self.client.used, state, bound, self.world.now))

    def kick_job(self, id: int) -> bool:
        return self.world.checked(kicking.kick_job(self.broker, id, self.world.now))

    def pause_tube(self, name: bytes, delay: float) -> bool:
        return self.world.checked(editing.pause_tube(self.broker, name, round(delay * SECOND), self.world.now))

    def unwatch(self, name: bytes) -> None:
        connecting.unwatch(self.broker, self.client, name)
        self.world.check()

    def leave(self) -> None:
        connecting.leave(self.broker, self.client)
        self.world.check()

    def await_offer(self) -> Outcome:
        """Wait for the offer of a job; return the outcome."""
        return self.world.checked(WORDS[reserving.await_offer(self.broker, self.client, self.world.now)])

    def claim(self) -> Outcome:
        """Reserve a job, the offered one among others, without a wait; return the outcome."""
        now = self.world.now
        job = reserving.claim(self.broker, self.client, now)
        if job is not None:
            return self.world.checked(job.id)
        return self.world.checked(WORDS[reserving.wait(self.broker, self.client, now, now)])

    def decline(self) -> None:
        waiting.decline_offer(self.broker, self.client, self.world.now)
        self.world.check()

    def suspend(self) -> None:
        """Lose the link of the remote client."""
        suspending.suspend(self.broker, self.client, self.world.now)
        self.world.check()

    def resume(self, reserved: int) -> None:
        """Continue the session of a suspended client, whose front knows of its first *reserved* reservations."""
        suspending.resume(self.broker, self.client, reserved, self.world.now)
        self.world.check()
        while suspending.resume_some(self.broker, self.client, 1, self.world.now):
            self.world.check()
        self.world.check()

    @property
    def offered(self) -> int:
        """The id of the job that is offered to the client, 0 if there is none."""
        job = self.client.offered
        return job.id if job is not None and invariants.offers_of(job.tube).get(job.id) is self.client else 0

    def disconnect(self) -> None:
        connecting.disconnect(self.broker, self.client, self.world.now)
        self.world.check()

    def take(self, count: int) -> list[int]:
        """Reserve *count* ready jobs; return their ids."""
        taken = [self.reserve(0) for _ in range(count)]
        assert all(isinstance(id, int) for id in taken), taken
        return [int(id) for id in taken]

    def _on_wake(self) -> None:
        assert not self.client.is_waiting
        self.ended.append(outcome_of(self.client.outcome))
