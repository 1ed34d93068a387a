"""Clients of a server with several processes: they send commands for several shards at once, and record all replies.

A connection may end only with the process that accepted it, or if a command that changes a job was outstanding at a
process that ended: then nobody knows whether that command took effect. Each other end is an error. While its connection
lives, a client keeps its wait and its jobs.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Final

from greenstalk_server.core.tube_shards import shard_of_tube
from tests.support.history import DELETE, HANG_UP, KICK, PUT, RELEASE, RESERVE, TOUCH, History, Step
from tests.support.load import MAX_LIVE, PAUSE, TTR, Connection, Gone

SHARDS: Final = 3
TUBES_PER_SHARD: Final = 2

WORKERS: Final = 6
WAITERS_PER_SHARD: Final = 2

MAX_BATCH: Final = 6
"""Commands that a client sends before it reads a reply."""

MAX_HELD: Final = 8
SIZES: Final = (0, 50, 2000, 2000, 60_000)
"""Bytes of bodies; the largest take more than one frame of a link together with others."""

REPLY_TIMEOUT: Final = 45.0
"""Seconds for a reply: a command waits up to 30 for a process that is restarted."""

RETRY_PAUSE: Final = 0.01
PROBE_PAUSE: Final = 0.02


def _tubes(prefix: str, count: int) -> list[bytes]:
    """Return the names of *count* tubes of each shard."""
    found: dict[int, list[bytes]] = {shard: [] for shard in range(SHARDS)}
    number = 0
    while any(len(names) < count for names in found.values()):
        name = f"{prefix}-{number}".encode()
        of = found[shard_of_tube(name, SHARDS)]
        if len(of) < count:
            of.append(name)
        number += 1
    return [name for shard in range(SHARDS) for name in found[shard]]


WORK_TUBES: Final = (b"default", *_tubes("work", TUBES_PER_SHARD))
WAIT_TUBES: Final = tuple(_tubes("wait", WAITERS_PER_SHARD))
PROBE_TUBES: Final = tuple(_tubes("probe", 1))
"""One for each shard, in which only probes put jobs."""

ALL_SHARDS: Final = frozenset(range(SHARDS))

HOLD_TUBES: Final = tuple(_tubes("hold", 2))

HOLD_TTR: Final = 3
"""Seconds to run of jobs whose holders must touch them to keep them. Longer than any delay without a fault."""

TOUCH_INTERVAL: Final = 0.1

ALL_TUBES: Final = (*WORK_TUBES, *WAIT_TUBES, *PROBE_TUBES, *HOLD_TUBES)


@dataclass(frozen=True, slots=True)
class Cut:
    """The end of a connection by the server.

    front       id of the process that had accepted it.
    since       monotonic seconds when the outstanding commands were sent; infinite if none was.
    at          when the client noticed.
    shards      of the outstanding commands whose outcome is unknown.
    needed      shards that the first of them waited for.
    what        the outstanding commands.
    """

    client: str
    front: int
    since: float
    at: float
    shards: frozenset[int]
    needed: frozenset[int]
    what: str


Job = tuple[int, bytes]
"""An id and a token."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A command, and the handler of its reply: a line, and the jobs in it. The handler returns whether it is correct.

    shards  those that may or may not have carried it out when they die; empty if the front sends it again.
    needs   those without which there is no reply, if `shards` is empty.
    tubes   those from which it reserves a job.
    """

    request: bytes
    answered: Callable[[bytes, list[Job]], bool]
    shards: frozenset[int] = frozenset()
    needs: frozenset[int] = frozenset()
    tubes: frozenset[bytes] = frozenset()


@dataclass(slots=True)
class Record:
    """The observations of all clients.

    sizes   the size of each body, by token.
    """

    history: History = field(default_factory=lambda: History(SHARDS))
    cuts: list[Cut] = field(default_factory=list)
    sizes: dict[bytes, int] = field(default_factory=dict)
    replies: int = 0


class _Client(threading.Thread):
    """A client, which runs until `is_over` is set. It connects to each of its ports in turn.

    is_settled  whether it has ended, or keeps its connection and its jobs until `may_leave`.
    held        the jobs that it holds.
    """

    def __init__(self, name: str, ports: Sequence[int], record: Record, seed: str) -> None:
        super().__init__(name=name, daemon=True)
        self.failure: BaseException | None = None
        self.is_over: threading.Event = threading.Event()
        self.is_settled: threading.Event = threading.Event()
        self.may_leave: threading.Event = threading.Event()
        self.held: list[Job] = []
        self.front: int = 0
        self._ports: Sequence[int] = ports
        self._record: Record = record
        self._history: History = record.history
        self._random: random.Random = random.Random(f"{seed}/{name}")  # noqa: S311  a seed, no secret
        self._seed: str = seed
        self._count: int = 0
        self._lives: int = 0
        self._heard_at: float = 0.0
        self._sent_at: float = inf
        self._outstanding: list[Sent] = []
        self._connection: Connection

    def run(self) -> None:
        try:
            while not self.is_over.is_set():
                self._visit()
        except BaseException as error:  # noqa: BLE001  raised by the thread that joins
            self.failure = error
        self.is_settled.set()

    @property
    def _who(self) -> str:
        """This client on this connection."""
        return f"{self.name}/{self._lives}"

    def use(self) -> None:
        """Use the connection until `is_over` is set."""
        raise NotImplementedError

    def leave(self) -> None:
        """Close the connection, which ends the reservations."""
        self._end_life(time.monotonic())

    def _visit(self) -> None:
        """Use one connection as long as it lives."""
        self._lives += 1
        self.front, self._outstanding = 0, []
        try:
            with Connection(self._ports[self._lives % len(self._ports)], REPLY_TIMEOUT) as connection:
                self._connection = connection
                self.front = int(connection.stats(b"stats")[b"pid"])
                self._heard_at = time.monotonic()
                self.use()
                self.is_settled.set()
                self.may_leave.wait()
                self.leave()
        except TimeoutError:
            if self.front:
                self._history.wrong.append(f"{self._who} has no reply to {self._outstanding[:1]}")
                self._end_life(self._heard_at)
        except (Gone, OSError):
            self._history.unanswered += [(self._sent_at, sent.tubes) for sent in self._outstanding if sent.tubes]
            if self.front:
                self.note_cut()
            self._end_life(self._heard_at)
            time.sleep(RETRY_PAUSE)

    def note_cut(self) -> None:
        """Note that the server has closed the connection."""
        shards = frozenset().union(*[sent.shards for sent in self._outstanding])
        what = b" ".join([sent.request[:30] for sent in self._outstanding]).decode(errors="replace")
        since = self._sent_at if self._outstanding else inf
        needed = frozenset().union(*[sent.shards | sent.needs for sent in self._outstanding[:1]])
        self._record.cuts.append(Cut(self._who, self.front, since, time.monotonic(), shards, needed, what))

    def _end_life(self, since: float) -> None:
        """Note that the server may have ended the reservations at any time after *since*."""
        self._history.add(Step(self._who, HANG_UP, b"", since))
        self.held = []

    def exchange(self, batch: list[Sent]) -> None:
        """Send *batch*; pass each reply to its handler."""
        self._outstanding, self._sent_at = list(batch), time.monotonic()
        self._connection.send(b"".join([sent.request for sent in batch]))
        for sent in batch:
            line, jobs = self._read_reply()
            self._heard_at = time.monotonic()
            del self._outstanding[0]
            self._record.replies += 1
            if not sent.answered(line, jobs):
                self._history.wrong.append(f"{self._who}: {sent.request[:60]!r} was answered {line[:60]!r} {jobs}")

    def _read_reply(self) -> tuple[bytes, list[Job]]:
        """Return the line of a reply, with the data that follows an OK, and the jobs in it."""
        line = self._connection.read_line()
        if line.startswith(b"RESERVED_BATCH"):
            return line, [self._read_job(self._connection.read_line()) for _ in range(int(line.split()[1]))]
        if line.startswith(b"RESERVED"):
            return line, [self._read_job(line)]
        if line.startswith(b"OK "):
            line += b"\r\n" + self._connection.read(int(line.split()[1]))
        return line, []

    def _read_job(self, line: bytes) -> Job:
        _, id, size = line.split()
        body = self._connection.read(int(size))
        token = body.partition(b":")[0]
        if body != token + b":" + bytes(self._record.sizes.get(token, -1)):
            self._history.wrong.append(f"{self._who} got another body than was put for {token!r}")
        return int(id), token

    # Commands

    def watch(self, tube: bytes) -> Sent:
        return Sent(b"watch %b\r\n" % tube, lambda line, _: line.startswith(b"WATCHING"), needs=ALL_SHARDS)

    def put(self, tube: bytes, size: int = 0, delay: int = 0, ttr: int = TTR) -> list[Sent]:
        self._count += 1
        token = f"{self._seed}/{self.name}/{self._count}".encode()
        self._history.tubes[token], self._record.sizes[token] = tube, size
        step = self._begin(PUT, token)

        def answered(line: bytes, _: list[Job]) -> bool:
            word, _space, id = line.partition(b" ")
            if word != b"INSERTED":
                return False
            self._history.name(int(id), token)
            self._end(step)
            return int(id) % SHARDS == shard_of_tube(tube, SHARDS)

        priority = self._random.randrange(3)
        rest = b"%d %d %d %d\r\n%b:%b\r\n" % (priority, delay, ttr, len(token) + 1 + size, token, bytes(size))
        shards = frozenset([shard_of_tube(tube, SHARDS)])
        if self._random.random() < 0.5:
            return [Sent(b"put-in-tube %b %b" % (tube, rest), answered, shards)]
        return [
            Sent(b"use %b\r\n" % tube, lambda line, _: line == b"USING " + tube, needs=shards),
            Sent(b"put " + rest, answered, shards),
        ]

    def reserve(self, request: bytes, nothing: bytes, watched: frozenset[bytes]) -> Sent:
        """Return the reserve *request*, which replies *nothing* if there is no job."""
        begun = time.monotonic()

        def answered(line: bytes, jobs: list[Job]) -> bool:
            for id, token in jobs:
                self._history.deliver(Step(self._who, RESERVE, token, begun), id)
                self.held.append((id, token))
            return (bool(jobs) or line == nothing) and all(
                self._history.tubes.get(token) in watched for _, token in jobs
            )

        return Sent(request, answered, tubes=watched)

    def settle(self, kind: str, job: Job, request: bytes, expected: bytes, is_repeated: bool = False) -> Sent:
        """Return *request* about *job*. NOT_FOUND is checked later: another client may have deleted a ready job."""
        id, token = job
        step = self._begin(kind, token)

        def answered(line: bytes, _: list[Job]) -> bool:
            self._end(step, is_refused=line == b"NOT_FOUND")
            return line in (expected, b"NOT_FOUND")

        shards = frozenset([id % SHARDS])
        return Sent(request, answered, frozenset() if is_repeated else shards, shards)

    def delete(self, job: Job) -> Sent:
        return self.settle(DELETE, job, b"delete %d\r\n" % job[0], b"DELETED")

    def _touched(self, job: Job) -> Sent:
        return self.settle(TOUCH, job, b"touch %d\r\n" % job[0], b"TOUCHED", is_repeated=True)

    def count(self, job: Job) -> Sent:
        """Return a command that reads how many reservations of *job* the server has counted."""

        def answered(reply: bytes, _: list[Job]) -> bool:
            found = re.search(rb"^reserves: (\d+)\r?$", reply, re.MULTILINE)
            self._history.counts.append((job[1], int(found[1]) if found else -1, time.monotonic()))
            return found is not None

        return Sent(b"stats-job %d\r\n" % job[0], answered, needs=frozenset([job[0] % SHARDS]))

    def _begin(self, kind: str, token: bytes) -> Step:
        return self._history.add(Step(self._who, kind, token, time.monotonic()))

    @staticmethod
    def _end(step: Step, is_refused: bool = False) -> None:
        step.ended, step.is_done, step.is_refused = time.monotonic(), not is_refused, is_refused


class Worker(_Client):
    """Puts, reserves and finishes jobs of several shards."""

    def use(self) -> None:
        self._buried: list[Job] = []
        self._watched = frozenset([b"default", *self._random.sample(WORK_TUBES, self._random.randint(1, 4))])
        self.exchange([self.watch(tube) for tube in self._watched])
        if self._random.random() < 0.5 and len(self._watched) > 1:
            self._watched -= {b"default"}
            self.exchange([Sent(b"ignore default\r\n", lambda line, _: line.startswith(b"WATCHING"))])
        while not self.is_over.is_set():
            batch: list[Sent] = []
            for _ in range(self._random.randint(1, MAX_BATCH)):
                batch += self._next()
            self.exchange(batch)
            time.sleep(PAUSE)
        self.exchange([self._touched(job) for job in self.held])

    def _next(self) -> list[Sent]:
        choices = self._random.choices((self._put, self._reserve, self._finish, self._look), (4, 4, 6, 1))
        return choices[0]()

    def _put(self) -> list[Sent]:
        if self._history.live > MAX_LIVE:
            return self._finish()
        tube = self._random.choice(WAIT_TUBES if self._random.random() < 0.1 else WORK_TUBES)
        return self.put(tube, self._random.choice(SIZES), delay=self._random.random() < 0.1)

    def _reserve(self) -> list[Sent]:
        if len(self.held) >= MAX_HELD:
            return self._finish()
        request, nothing = self._random.choice(
            (
                (b"reserve-with-timeout 0\r\n", b"TIMED_OUT"),
                (b"reserve-with-timeout 1\r\n", b"TIMED_OUT"),
                (b"reserve-batch 3 0\r\n", b"RESERVED_BATCH 0"),
            )
        )
        return [self.reserve(request, nothing, self._watched)]

    def _finish(self) -> list[Sent]:
        """Return a command for a job that the client holds, or has buried."""
        if self._buried and self._random.random() < 0.3:
            return self._kick(self._buried.pop())
        if not self.held:
            return []
        act = self._random.choices(
            (self._delete_one, self._delete_some, self._release, self._bury, self._touch, self._touch_all),
            (4, 1, 2, 1, 1, 1),
        )[0]
        return act(self.held.pop(self._random.randrange(len(self.held))))

    def _delete_one(self, job: Job) -> list[Sent]:
        return [self.count(job), self.delete(job)]

    def _delete_some(self, job: Job) -> list[Sent]:
        """Delete jobs of all shards with one command."""
        jobs, self.held = [job, *self.held], []
        steps = [self._begin(DELETE, token) for _, token in jobs]

        def answered(line: bytes, _: list[Job]) -> bool:
            word, deleted, missing = line.split()
            if missing == b"0":
                for step in steps:
                    self._end(step)
            return word == b"DELETED_BATCH" and int(deleted) == len(jobs) and missing == b"0"

        return [Sent(b" ".join([b"delete-batch", *[b"%d" % id for id, _ in jobs]]) + b"\r\n", answered, ALL_SHARDS)]

    def _release(self, job: Job) -> list[Sent]:
        delay = self._random.random() < 0.2
        return [
            self.settle(RELEASE, job, b"release %d %d %d\r\n" % (job[0], self._random.randrange(3), delay), b"RELEASED")
        ]

    def _bury(self, job: Job) -> list[Sent]:
        self._buried.append(job)
        return [self.settle(RELEASE, job, b"bury %d 1\r\n" % job[0], b"BURIED")]

    def _kick(self, job: Job) -> list[Sent]:
        """Kick *job*, or jobs of its tube; another client may have kicked it."""
        if self._random.random() < 0.5:
            return [self.settle(KICK, job, b"kick-job %d\r\n" % job[0], b"KICKED")]
        tube, shards = self._history.tubes[job[1]], frozenset([job[0] % SHARDS])
        return [
            Sent(b"use %b\r\n" % tube, lambda line, _: line == b"USING " + tube, needs=shards),
            Sent(b"kick 2\r\n", lambda line, _: line.startswith(b"KICKED "), shards),
        ]

    def _touch(self, job: Job) -> list[Sent]:
        self.held.append(job)
        return [self._touched(job)]

    def _touch_all(self, job: Job) -> list[Sent]:
        self.held.append(job)
        return [Sent(b"touch-all\r\n", lambda line, _: line.startswith(b"TOUCHED_ALL "), needs=ALL_SHARDS)]

    def _look(self) -> list[Sent]:
        """Return a command that reads from one shard, or from all."""
        request = self._random.choice((b"stats", b"list-tubes", b"stats-tube default", b"list-tubes-watched"))
        return [Sent(request + b"\r\n", lambda line, _: line.startswith(b"OK "), needs=ALL_SHARDS)]


class Holder(_Client):
    """Holds a job, and touches it again and again.

    held_since  monotonic time of the reservation; infinite if it holds none.
    """

    def __init__(self, number: int, ports: Sequence[int], record: Record, seed: str, ttr: int) -> None:
        super().__init__(f"holder-{number}", ports, record, seed)
        self.held_since: float = inf
        self._tube: bytes = HOLD_TUBES[number]
        self._ttr: int = ttr

    def use(self) -> None:
        self.held_since = inf
        self.exchange([self.watch(self._tube)])
        self.exchange([Sent(b"ignore default\r\n", lambda line, _: line == b"WATCHING 1")])
        self.exchange([self.reserve(b"reserve-with-timeout 0\r\n", b"TIMED_OUT", frozenset([self._tube]))])
        if not self.held:
            self.exchange(self.put(self._tube, ttr=self._ttr))
            self.exchange([self.reserve(b"reserve\r\n", b"", frozenset([self._tube]))])
        self.held_since = time.monotonic()
        while not self.is_over.wait(TOUCH_INTERVAL):
            self.exchange([self._touched(self.held[0])])
        self.exchange([self.delete(self.held.pop())])


class Waiter(_Client):
    """Waits in a reserve nearly all the time, at two shards."""

    def __init__(self, number: int, ports: Sequence[int], record: Record, seed: str) -> None:
        super().__init__(f"waiter-{number}", ports, record, seed)
        tubes = WAIT_TUBES[number:] + WAIT_TUBES[:number]
        self._watched = frozenset([tubes[0], tubes[WAITERS_PER_SHARD]])

    def use(self) -> None:
        self.exchange([self.watch(tube) for tube in self._watched])
        self.exchange([Sent(b"ignore default\r\n", lambda line, _: line == b"WATCHING 2")])
        while not self.is_over.is_set():
            self.exchange([self.reserve(b"reserve\r\n", b"", self._watched)])
            self.exchange([self.count(self.held[0]), self.delete(self.held.pop())])

    def stop(self) -> None:
        """End the wait by closing the connection."""
        self.is_over.set()
        self._connection.hang_up()

    def note_cut(self) -> None:
        if not self.is_over.is_set():
            super().note_cut()


class Probe(_Client):
    """Puts jobs on one shard, to measure how long it does not serve.

    puts    times when each acknowledged put began and ended, monotonic seconds.
    """

    def __init__(self, shard: int, ports: Sequence[int], record: Record, seed: str) -> None:
        super().__init__(f"probe-{shard}", ports, record, seed)
        self.shard: int = shard
        self.puts: list[tuple[float, float]] = []

    def use(self) -> None:
        while not self.is_over.wait(PROBE_PAUSE):
            begun = time.monotonic()
            self.exchange(self.put(PROBE_TUBES[self.shard]))
            self.puts.append((begun, time.monotonic()))

    def service_after(self, since: float) -> float:
        """Return the seconds from *since* until the first acknowledgement of a put that began later; else infinity."""
        return min([ended for begun, ended in list(self.puts) if begun > since], default=inf) - since

    def longest_gap(self, since: float) -> float:
        """Return the longest time in seconds between two acknowledgements, the later one after *since*."""
        return max([later - earlier for (_, earlier), (_, later) in pairwise(list(self.puts)) if later > since])

    def longest_put(self, since: float) -> float:
        """Return the longest time for a put that ended after *since*, in seconds."""
        return max([ended - begun for begun, ended in list(self.puts) if ended > since], default=0.0)
