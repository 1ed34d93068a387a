"""Jobs that are moving to a tube of another shard (see core.moves)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.travel import Travel
from greenstalk_server.web.framework.access import principal


def target_of(job: Job) -> str:
    """Return the tube to which *job* is moving, as the principal may see it; empty if it is not moving."""
    return principal().name_of(Travel.unpack(job.travel).target)


def moving_since(job: Job) -> int:
    """Return the time at which the move of *job* began, nanoseconds."""
    return Travel.unpack(job.travel).at


def holders(broker: Broker) -> Iterator[Client]:
    """Return what holds reserved jobs: the clients, and the outbox of jobs that are moving."""
    return chain(broker.clients, [broker.moves.holder] if broker.moves is not None else [])


def moves_of(broker: Broker, now: int) -> tuple[tuple[int, int, int], ...]:
    """Return, for each shard to which jobs are moving: its number, their number, and for how long the first, in ns."""
    leaving = broker.moves.leaving if broker.moves is not None else {}
    return tuple(
        [
            (shard, len(jobs), max(0, now - moving_since(next(iter(jobs.values())))))
            for shard, jobs in leaving.items()
            if jobs
        ]
    )
