"""One client under load: sends commands in batches, and records in the ledger what it sent and what was answered.

The commands of a batch are pipelined. A client has jobs of its own: those that it holds, those that it has buried, and
those in the tube that only it watches. No other client touches them, so it knows the one correct reply. Jobs with a
short TTR are the exception: a reservation may expire at any moment, and then another client reserves the job.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from tests.crash.ledger import BURIED, DELAYED, GONE, READY, Known, Ledger, State
from tests.support.daemon import TIMEOUT

SHARED_TUBES: Final = (b"shared-a", b"shared-b")
MAX_LIVE: Final = 1500
"""Jobs above which clients delete more than they put."""

LARGE: Final = 60_000
NOISE: Final = b"delete 1\r\nput 0 0 1 1\r\n\x00\xff GSJOURNL"
TTRS: Final = (300, 1000, 100_000, 4_294_967_295)
SHORT_TTR: Final = b"0.02"
"""Seconds; `stats-job` shows 0. Used in shared tubes only."""

DELAYS: Final = (0, 0, 0, 1, 2)
LONG_DELAYS: Final = (7, 3600)
"""Used in private tubes only, where a delayed job can still be deleted and kicked."""

_Answered: TypeAlias = Callable[[bytes], bool]
"""Handles a reply; returns whether the reply is correct. Called under the ledger's lock."""


class _Ended(Exception):
    """The server has closed the connection."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A command, and the handler of its reply."""

    request: bytes
    answered: _Answered


def private_tube(number: int) -> bytes:
    """Return the tube that only the client *number* uses and watches."""
    return b"private-%d" % number


class Agent:
    """The client *number*. It ends when the server does."""

    def __init__(self, port: int, number: int, batch: int, ledger: Ledger, seed: str) -> None:
        """*batch* is the maximum number of commands that the client sends before it reads a reply."""
        self._failure: BaseException | None = None
        self._thread: threading.Thread = threading.Thread(target=self._run, name=f"agent-{number}", daemon=True)
        self._port: int = port
        self._number: int = number
        self._batch: int = batch
        self._ledger: Ledger = ledger
        self._seed: str = seed
        self._rng: random.Random = random.Random(f"{seed}/{number}")  # noqa: S311  a seed, no secret
        self._private: bytes = private_tube(number)
        self._used: bytes = b"default"
        self._puts: int = 0
        self._held: list[Known] = []
        self._own: list[Known] = []
        self._buried: list[Known] = []
        self._expiring: list[Known] = []
        with ledger.lock:
            self._adopt()

    def _adopt(self) -> None:
        """Take over the jobs of this client in the previous round."""
        jobs = [job for job in self._ledger.jobs.values() if job.owner == self._number]
        self._buried = sorted([job for job in jobs if job.latest.place == BURIED], key=lambda job: job.latest.burial)
        self._own = [job for job in jobs if job.latest.place != BURIED]

    def start(self) -> None:
        """Start the client's thread."""
        self._thread.start()

    def join(self) -> None:
        """Wait until the client has ended, soon after its server; raise the exception that ended it, if any."""
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive(), f"client {self._number} has not ended"
        if self._failure is not None:
            raise AssertionError(f"client {self._number}: {self._failure!r}") from self._failure

    def _run(self) -> None:
        try:
            with socket.create_connection(("127.0.0.1", self._port), TIMEOUT) as sock, sock.makefile("rb") as reader:
                self._sock, self._reader = sock, reader
                self._exchange([self._watch(tube) for tube in (self._private, *SHARED_TUBES)])
                if self._number % 2:
                    self._exchange([Sent(b"reserve-mode weighted\r\n", lambda line: line == b"USING weighted")])
                while True:
                    self._exchange(self._next_batch())
        except (_Ended, ConnectionError):
            pass
        except BaseException as error:  # noqa: BLE001  whatever it is, the round fails with it
            self._failure = error

    # Batches

    def _next_batch(self) -> list[Sent]:
        size = self._rng.randint(1, self._batch)
        with self._ledger.lock:
            is_crowded = len(self._ledger.jobs) > MAX_LIVE and not self._ledger.is_disk_small
            kind = self._rng.choices(("put", "reserve", "settle"), (0 if is_crowded else 3, 3, 3))[0]
            if kind == "put":
                return [sent for _ in range(size) for sent in self._put()]
            if kind == "reserve" and len(self._held) < 2 * self._batch:
                return [self._reserve() for _ in range(size)]
            return [sent for _ in range(size) for sent in self._settle(is_crowded)] or [self._reserve()]

    def _exchange(self, batch: list[Sent]) -> None:
        """Send *batch*, and pass each reply to the handler of its command."""
        began = time.monotonic()
        self._sock.sendall(b"".join([sent.request for sent in batch]))
        for sent in batch:
            reply = self._read_reply()
            with self._ledger.lock:
                self._ledger.longest_wait = max(self._ledger.longest_wait, time.monotonic() - began)
                if not sent.answered(reply):
                    self._ledger.wrong.append(f"{sent.request[:60]!r} was answered {reply[:60]!r}")
                self._ledger.acknowledged += 1

    def _read_reply(self) -> bytes:
        """Return the reply without its CRLF; with a body, the line, a space and the body."""
        line: bytes = self._reader.readline()
        if not line.endswith(b"\r\n"):
            raise _Ended
        if not line.startswith(b"RESERVED"):
            return line[:-2]
        size = int(line.split()[2])
        body: bytes = self._reader.read(size + 2)
        if len(body) < size + 2:
            raise _Ended
        return line[:-2] + b" " + body[:-2]

    # Commands: each records its possible effects in the order in which the commands are sent

    def _watch(self, tube: bytes) -> Sent:
        weight = b" %d" % self._rng.randrange(1, 9) if self._number % 2 else b""
        return Sent(b"watch %b%b\r\n" % (tube, weight), lambda line: line.startswith(b"WATCHING"))

    def _use(self, tube: bytes) -> list[Sent]:
        if tube == self._used:
            return []
        self._used = tube
        return [Sent(b"use %b\r\n" % tube, lambda line: line == b"USING " + tube)]

    def _put(self) -> list[Sent]:
        rng = self._rng
        tube = rng.choice((self._private, *SHARED_TUBES))
        pri, delay, ttr = rng.choice((0, 1, 1023, 1024, 2**32 - 1)), self._delay(tube), rng.choice(TTRS)
        if tube != self._private and rng.random() < 0.2:
            ttr = 0
        self._puts += 1
        token = f"{self._seed}/{self._number}/{self._puts}".encode()
        body = token + b":" + (NOISE * (self._size() // len(NOISE) + 1))[: self._size()]
        job = Known(token, tube, ttr, body, self._number if tube == self._private else None)
        self._ledger.jobs[token] = job
        state = job.may_become(self._waiting(State(READY, pri, delay)))

        def answered(line: bytes) -> bool:
            word, _, id = line.partition(b" ")
            if word == b"OUT_OF_MEMORY" and self._ledger.is_disk_small:
                del self._ledger.jobs[token]
                self._ledger.refused += 1
                return True
            if word == b"DRAINING" and self._ledger.is_draining:
                del self._ledger.jobs[token]
                return True
            if word != b"INSERTED":
                return False
            self._ledger.name(job, int(id))
            job.has_become(state, time.time())
            if tube == self._private:
                self._own.append(job)
            return True

        request = b"%d %d %b %d\r\n%b\r\n" % (pri, delay, b"%d" % ttr if ttr else SHORT_TTR, len(body), body)
        if rng.random() < 0.2:
            return [Sent(b"put-in-tube %b %b" % (tube, request), answered)]
        return [*self._use(tube), Sent(b"put " + request, answered)]

    def _delay(self, tube: bytes) -> int:
        return self._rng.choice(DELAYS + LONG_DELAYS if tube == self._private else DELAYS)

    def _size(self) -> int:
        largest = self._rng.choices((10, 300, 5000, LARGE), (40, 50, 9, 1))[0]
        return self._rng.randint(0, largest)

    @staticmethod
    def _waiting(state: State) -> State:
        """Return *state* with the place READY, or DELAYED from now on if it has a delay."""
        if not state.delay:
            return replace(state, place=READY, due_to=None)
        return replace(state, place=DELAYED, due_from=time.time() + state.delay, due_to=None)

    def _reserve(self) -> Sent:
        self._ledger.reserves_in_flight += 1

        def answered(reply: bytes) -> bool:
            self._ledger.reserves_in_flight -= 1
            job = self._job_reserved(reply)
            if job is None:
                is_overtaken = reply.startswith(b"RESERVED") and int(reply.split()[1]) in self._ledger.overtaken
                return is_overtaken or reply in (b"TIMED_OUT", b"DEADLINE_SOON")  # DEADLINE_SOON because of a short TTR
            self._reserved(job)
            if not job.ttr:
                self._expiring.append(job)
                return True
            job.owner = self._number
            if job in self._own:
                self._own.remove(job)
            self._held.append(job)
            return True

        return Sent(b"reserve-with-timeout 0\r\n", answered)

    def _job_reserved(self, reply: bytes) -> Known | None:
        """Return the job in *reply*; None if there is none, or a different one than was put."""
        if not reply.startswith(b"RESERVED "):
            return None
        _, id, _, body = reply.split(b" ", 3)
        job = self._ledger.of_body(body)
        if job is None or job.body != body:
            return None
        self._ledger.name(job, int(id))
        return job

    @staticmethod
    def _reserved(job: Known) -> None:
        """Record that *job* is reserved. No reply makes that final: a crash may return it to its former state."""
        job.may_become(replace(job.latest, place=READY, reserves=job.latest.reserves + 1, burial=0))

    def _settle(self, is_crowded: bool) -> list[Sent]:
        """Return a command for a job that only this client may touch now."""
        rng = self._rng
        if self._expiring and rng.random() < 0.5:
            return [self._delete_expiring(self._expiring.pop())]
        if self._held and rng.random() < 0.8:
            job = self._held.pop(rng.randrange(len(self._held)))
            verbs = (self._delete, self._release, self._bury, self._touch)
            return [rng.choices(verbs, (8 if is_crowded else 3, 2, 2, 1))[0](job)]
        if self._buried and rng.random() < 0.6:
            if rng.random() < 0.2:
                return self._kick_some()
            job = self._buried.pop(rng.randrange(len(self._buried)))
            return [rng.choice((self._delete, self._kick_job, self._reserve_job))(job)]
        if self._own and (is_crowded or rng.random() < 0.3):
            job = self._own.pop(rng.randrange(len(self._own)))
            verb = self._kick_job if job.latest.place == DELAYED and rng.random() < 0.5 else self._reserve_job
            if rng.random() < 0.2:
                verb = self._reprioritize
            return [self._delete(job) if is_crowded or rng.random() < 0.3 else verb(job)]
        return []

    def _give_up(self, job: Known) -> None:
        """Make *job* available to other clients, unless it is in the private tube."""
        if job.tube == self._private:
            self._own.append(job)
        else:
            job.owner = None

    def _delete(self, job: Known) -> Sent:
        state = job.may_become(State(GONE))

        def answered(line: bytes) -> bool:
            if line == b"DELETED":
                job.has_become(state, time.time())
                self._ledger.forget(job)
            return line == b"DELETED"

        return Sent(b"delete %d\r\n" % job.id, answered)

    def _delete_expiring(self, job: Known) -> Sent:
        """Delete *job*, whose reservation may have expired: then another client may hold or have deleted the job."""
        state = job.may_become(replace(job.latest, place=GONE))

        def answered(line: bytes) -> bool:
            if line == b"DELETED":
                job.has_become(state, time.time())
                self._ledger.forget(job)
                self._ledger.overtaken.add(job.id)
            else:
                job.has_not_become(state)
            return line in (b"DELETED", b"NOT_FOUND")

        return Sent(b"delete %d\r\n" % job.id, answered)

    def _reprioritize(self, job: Known) -> Sent:
        pri = self._rng.randrange(5000)
        state = job.may_become(replace(job.latest, pri=pri))
        self._own.append(job)
        return self._to_settle(b"reprioritize %d %d\r\n" % (job.id, pri), job, state, b"REPRIORITIZED")

    def _release(self, job: Known) -> Sent:
        was, pri, delay = job.latest, self._rng.randrange(5000), self._delay(job.tube)
        state = job.may_become(self._waiting(replace(was, pri=pri, delay=delay, releases=was.releases + 1, burial=0)))
        self._give_up(job)
        return self._to_settle(b"release %d %d %d\r\n" % (job.id, pri, delay), job, state, b"RELEASED")

    def _bury(self, job: Known) -> Sent:
        was, pri = job.latest, self._rng.randrange(5000)
        burial = next(self._ledger.burials)
        state = job.may_become(replace(was, place=BURIED, pri=pri, buries=was.buries + 1, burial=burial))
        self._buried.append(job)
        return self._to_settle(b"bury %d %d\r\n" % (job.id, pri), job, state, b"BURIED")

    def _touch(self, job: Known) -> Sent:
        self._held.append(job)
        return Sent(b"touch %d\r\n" % job.id, lambda line: line == b"TOUCHED")

    def _kicked(self, job: Known) -> State:
        was = job.latest
        return job.may_become(replace(was, place=READY, kicks=was.kicks + 1, burial=0))

    def _kick_job(self, job: Known) -> Sent:
        """Kick *job*. If it was delayed it may be ready already, and then the reply is NOT_FOUND."""
        is_sure = job.latest.place == BURIED
        state = self._kicked(job)
        if is_sure:
            self._give_up(job)

        def answered(line: bytes) -> bool:
            if line == b"KICKED":
                job.has_become(state, time.time())
            else:
                job.has_not_become(state)
            if not is_sure:  # before the reply, another client could not know the state
                self._give_up(job)
            return line == b"KICKED" or (line == b"NOT_FOUND" and not is_sure)

        return Sent(b"kick-job %d\r\n" % job.id, answered)

    def _kick_some(self) -> list[Sent]:
        """Kick some buried jobs of the private tube: those that were buried first."""
        bound = self._rng.randint(1, 5)
        jobs = [job for job in self._buried if job.tube == self._private][:bound]
        if not jobs:
            return []
        states = [(job, self._kicked(job)) for job in jobs]
        for job in jobs:
            self._buried.remove(job)
            self._give_up(job)

        def answered(line: bytes) -> bool:
            if line == b"KICKED %d" % len(jobs):
                for job, state in states:
                    job.has_become(state, time.time())
            return line == b"KICKED %d" % len(jobs)

        return [*self._use(self._private), Sent(b"kick %d\r\n" % bound, answered)]

    def _reserve_job(self, job: Known) -> Sent:
        """Reserve *job*. A crash returns it to its former state: buried, delayed or ready."""
        job.may_become(replace(job.latest, reserves=job.latest.reserves + 1))

        def answered(reply: bytes) -> bool:
            self._held.append(job)
            return self._job_reserved(reply) is job

        return Sent(b"reserve-job %d\r\n" % job.id, answered)

    @staticmethod
    def _to_settle(request: bytes, job: Known, state: State, expected: bytes) -> Sent:
        def answered(line: bytes) -> bool:
            if line == expected:
                job.has_become(state, time.time())
            return line == expected

        return Sent(request, answered)
