"""Compares the jobs of a restarted server with the ledger."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from tests.crash.agent import private_tube
from tests.crash.ledger import BURIED, DELAYED, GONE, READY, Known, Ledger, State
from tests.support.daemon import Daemon
from tests.support.peer import Peer

AT_ONCE: Final = 100
"""Jobs requested per batch."""

MAX_UNSEEN: Final = 500
"""Maximum number of ids that jobs may have got, or that refused puts may have used up, without a reply that names
them."""

LEEWAY: Final = 0.25
"""Tolerance of a deadline in seconds: the server reads the wall clock only once."""

URGENT_BELOW: Final = 1024


class Audit:
    """One audit of *server*, which has no other clients: `run` adds errors to the ledger, and settles its states."""

    def __init__(self, server: Daemon, ledger: Ledger, ended_at: float, agents: int) -> None:
        """*ended_at* is the time at which the previous server, which *agents* clients used, had ended."""
        self._server: Daemon = server
        self._ledger: Ledger = ledger
        self._ended_at: float = ended_at
        self._agents: int = agents
        self._asked_at: float = 0.0
        self._found: dict[int, tuple[Known, dict[str, str]]] = {}

    def run(self, is_whole: bool, first_id: int) -> int:
        """Check each job that may exist, or each id ever given if *is_whole*; return the next id.

        *first_id* is the first id that the clients of the previous server may have got.
        """
        ledger = self._ledger
        with Peer(self._server) as peer, ledger.lock:
            next_id = self._next_id(peer)
            ids = set(range(1 if is_whole else first_id, next_id))
            ids.update(job.id for job in ledger.jobs.values() if job.id)
            for some in _by(AT_ONCE, sorted(ids)):
                self._look(peer, some)
            self._check_missing()
            self._check_counts(peer)
            self._check_burials(peer)
            self._settle()
        return next_id

    def _next_id(self, peer: Peer) -> int:
        """Return the id of a new job, which no client may have seen before.

        With a full disk, return an id above all that clients have seen.
        """
        reply = peer.ask(b"put 0 0 60 0\r\n")
        if reply == b"OUT_OF_MEMORY" and self._ledger.is_disk_small:
            return max(self._ledger.tokens, default=0) + MAX_UNSEEN
        id = int(reply.split()[1])
        assert peer.ask(b"delete %d" % id) == b"DELETED"
        if id <= max(self._ledger.tokens, default=0):
            self._wrong(f"id {id} is given, and {max(self._ledger.tokens)} was before")
        return id

    def _look(self, peer: Peer, ids: list[int]) -> None:
        """Request the jobs *ids*, and check those that exist."""
        peer.send(b"".join([b"peek %d\r\n" % id for id in ids]))
        bodies = {}
        for id in ids:
            word, *rest = peer.read_line().split()
            if word == b"FOUND":
                bodies[id] = peer.read(int(rest[1]) + 2)[:-2]
        self._asked_at = time.time()
        peer.send(b"".join([b"stats-job %d\r\n" % id for id in bodies]))
        for id, body in bodies.items():
            size = int(peer.read_line().split()[1])
            lines = peer.read(size + 2).decode().splitlines()
            self._check(id, body, dict(line.replace('"', "").split(": ", 1) for line in lines if ": " in line))

    def _check(self, id: int, body: bytes, stats: dict[str, str]) -> None:
        job = self._ledger.of_body(body)
        if id in self._ledger.gone:
            self._wrong(f"job {id} is back, and was deleted: {stats}")
        elif job is None:
            self._wrong(f"job {id} was never put: {body[:60]!r} {stats}")
        else:
            self._ledger.name(job, id)
            self._found[id] = job, stats
            if (job.body, job.tube, job.ttr) != (body, stats["tube"].encode(), int(stats["ttr"])):
                self._wrong(f"job {id} is not as it was put: {body[:60]!r}, {len(body)} bytes, {stats}")
            self._check_state(job, stats)

    def _check_state(self, job: Known, stats: dict[str, str]) -> None:
        """Find the state in which *job* came back, and make it the job's only possible state."""
        matching = [state for state in job.states if self._is_as(state, stats)]
        if not matching:
            self._wrong(f"job {job.id} is {stats}, and should be in one of {job.states}")
        state = (matching or job.states)[-1]
        if state.place == DELAYED and state.due_to is None:
            state = replace(state, due_to=self._ended_at + state.delay)
        job.states = [replace(state, reserves=int(stats["reserves"]))]

    def _is_as(self, state: State, stats: dict[str, str]) -> bool:
        """Whether *stats* match *state*. A reservation without a reply may be counted."""
        unheard = int(stats["reserves"]) - state.reserves
        names = ("pri", "delay", "releases", "buries", "kicks")
        timeouts = 0 if int(stats["ttr"]) else int(stats["reserves"])
        shown = tuple(int(stats[name]) for name in names)
        return (
            shown == (state.pri, state.delay, state.releases, state.buries, state.kicks)
            and int(stats["timeouts"]) <= timeouts
            and 0 <= unheard <= self._ledger.reserves_in_flight
            and self._is_placed(state, stats)
        )

    def _is_placed(self, state: State, stats: dict[str, str]) -> bool:
        if state.place != DELAYED:
            return stats["state"] == state.place
        now, due_to = time.time(), self._ended_at + state.delay if state.due_to is None else state.due_to
        if (
            stats["state"] == READY
        ):  # or reserved without a reply, which may happen to a delayed job when it becomes ready
            return state.due_from <= now + LEEWAY
        left = int(stats["time-left"])
        # The server computed this between request and reply, which may be far apart on a busy machine.
        return (
            stats["state"] == DELAYED
            and now + left >= state.due_from - 1 - LEEWAY
            and self._asked_at + left <= due_to + LEEWAY
        )

    def _check_missing(self) -> None:
        for job in list(self._ledger.jobs.values()):
            if job.id not in self._found:
                if all(state.place != GONE for state in job.states):
                    self._wrong(f"job {job.id} {job.token!r} is lost: {job.states}")
                del self._ledger.jobs[job.token]
                self._ledger.gone.add(job.id)
        self._ledger.gone.discard(0)

    def _check_counts(self, peer: Peer) -> None:
        """Check the server's counts, and those of each tube, except for jobs that become ready during the check."""
        peer_stats = peer.stats()
        places = Counter(stats["state"] for _, stats in self._found.values())
        shown = {place: int(peer_stats[f"current-jobs-{place}"]) for place in (READY, DELAYED, BURIED)}
        turned = shown[READY] - places[READY]
        if shown[BURIED] != places[BURIED] or turned != places[DELAYED] - shown[DELAYED] or turned < 0:
            self._wrong(f"there are {shown}, and {places} were found")
        urgent = sum(s["state"] == READY and int(s["pri"]) < URGENT_BELOW for _, s in self._found.values())
        if not urgent <= int(peer_stats["current-jobs-urgent"]) <= urgent + turned:
            self._wrong(f"{peer_stats['current-jobs-urgent']} urgent jobs, and {urgent} were found")
        if peer_stats["current-jobs-reserved"] != "0":
            self._wrong("a reserved job after a restart")
        self._check_tubes(peer)

    def _check_tubes(self, peer: Peer) -> None:
        for tube, count in Counter(stats["tube"] for _, stats in self._found.values()).items():
            tube_stats = peer.stats(b"stats-tube " + tube.encode())
            total = sum(int(tube_stats[f"current-jobs-{place}"]) for place in (READY, DELAYED, BURIED))
            if total != count:
                self._wrong(f"{total} jobs in {tube}, and {count} were found")

    def _check_burials(self, peer: Peer) -> None:
        """Check that the first buried job of each private tube is the one that was buried first."""
        for number in range(self._agents):
            tube = private_tube(number)
            buried = [job for job, stats in self._found.values() if job.tube == tube and stats["state"] == BURIED]
            if not buried:
                continue
            first = min(buried, key=lambda job: job.latest.burial)
            peer.ask(b"use " + tube)
            line = peer.ask(b"peek-buried")
            peer.read(int(line.split()[2]) + 2)
            if int(line.split()[1]) != first.id:
                self._wrong(f"{line!r} is the first buried job of {tube!r}, and {first.id} was buried before")

    def _settle(self) -> None:
        """Return each job to the client that may touch it."""
        for job, stats in self._found.values():
            if stats["state"] == BURIED and job.owner is None:
                job.owner = job.id % self._agents
            elif stats["state"] != BURIED and not job.tube.startswith(b"private"):
                job.owner = None
        self._ledger.reserves_in_flight = 0

    def _wrong(self, what: str) -> None:
        self._ledger.wrong.append(what)


def _by(size: int, ids: list[int]) -> Iterator[list[int]]:
    rest: Iterable[int] = iter(ids)
    while some := list(islice(rest, size)):
        yield some
