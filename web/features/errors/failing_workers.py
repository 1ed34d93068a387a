"""The workers that failed jobs of a tube, by host and program, from the histories of a sample of jobs.

The sample is at most SAMPLE jobs of each state: the last buried ones, the first delayed and the first ready ones. An
attempt failed if it ended by a release, a burial, a timeout or a disconnect. A job that was deleted has no history, so
each share is a share of the failures, not of all attempts of a worker.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from itertools import islice
from typing import Final, NamedTuple

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import DELAYED, READY, SECOND
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.web.features.errors.failure import reservations_in
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.reads.connections import ActorRef, resolve_actors
from greenstalk_server.web.reads.jobs.events import events_of

SAMPLE: Final = 100
"""Maximum jobs of each state in the sample; a job has at most 16 events."""

WINDOW: Final = 3600 * SECOND
"""Nanoseconds: older failures are not counted."""

REUSED_FOR: Final = 10 * SECOND
"""Nanoseconds for which a result is reused: a sample takes at most about 5 ms of CPU time, in slices."""

MAX_KEPT: Final = 64
"""Tubes whose results are kept."""

MAX_SHOWN: Final = 3
"""Maximum workers that are named."""


class WorkerShare(NamedTuple):
    """A worker, identified by its host and program, and its share of the failed attempts, from 0 to 1."""

    worker: str
    share: float


class Failures(NamedTuple):
    """The failed attempts of a sample: their number, and the workers with most of them."""

    total: int = 0
    workers: tuple[WorkerShare, ...] = ()


class FailingWorkers:
    """Finds the workers that fail jobs, for the tubes of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker: Broker = broker
        self._kept: OrderedDict[bytes, tuple[int, Failures]] = OrderedDict()

    def of(self, tube: Tube, now: int) -> Failures:
        """Return the failures of *tube* within WINDOW before *now*. May switch."""
        at, found = self._kept.get(tube.name, (0, Failures()))
        if now - at >= REUSED_FOR:
            found = self._find(tube, now)
            self._kept[tube.name] = now, found
            self._kept.move_to_end(tube.name)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return found

    def _find(self, tube: Tube, now: int) -> Failures:
        jobs = [*islice(reversed(tube.buried.values()), SAMPLE)]
        jobs += [*islice(tube.walk(DELAYED), SAMPLE), *islice(tube.walk(READY), SAMPLE)]
        by_number = Counter[int]()
        for job in Pace().each([job for job in jobs if job.events]):
            for start, end in reservations_in(events_of(job)):
                if end is not None and end.at > now - WINDOW:
                    by_number[start.client] += 1
        known = resolve_actors(self._broker, set(by_number))
        by_worker = Counter[str]()
        for number, failures in by_number.items():
            by_worker[_worker(known[number])] += failures
        total = by_number.total()
        return Failures(total, tuple(WorkerShare(name, one / total) for name, one in by_worker.most_common(MAX_SHOWN)))


def _worker(actor: ActorRef) -> str:
    """Return the host and the program of *actor*: `10.0.0.5, worker`."""
    address = actor.address
    host = address[: address.index("]") + 1] if address.startswith("[") and "]" in address else address
    if host.count(":") == 1:
        host = host.partition(":")[0]
    return ", ".join(filter(None, (host or "disconnected workers", actor.name)))
