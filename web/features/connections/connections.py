"""A connection as pages and the API show it: the model, and the list in an order."""

from __future__ import annotations

from dataclasses import asdict
from heapq import nsmallest
from itertools import chain, islice
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, convert

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.api.values import (
    Count,
    Instant,
    JobId,
    Pri,
    ResponseModel,
    TubeName,
    instant,
    model_of,
)
from greenstalk_server.web.framework.cooperative import Pace, in_batches
from greenstalk_server.web.framework.shards import Shards
from greenstalk_server.web.framework.sorting import Order
from greenstalk_server.web.reads.connections import (
    BATCH_SIZE,
    MAX_JOBS_LISTED,
    MAX_SCANNED_JOBS,
    MAX_TUBES_IN_ROW,
    MAX_TUBES_LISTED,
    client_rank,
    matching_clients,
    soonest_jobs,
    visible_jobs,
    visible_tubes,
)

ConnectionNumber = Annotated[
    int, Meta(ge=1, description="The number of a connection.", extra_json_schema={"maximum": 2**32 - 1}, examples=[7])
]


class HeldJob(ResponseModel):
    """A job that a connection holds."""

    id: JobId
    tube: TubeName
    pri: Pri
    size: Annotated[Count, Meta(description="Bytes of the body.")]
    reserved_at: Instant
    time_left: Annotated[Count, Meta(description="Seconds until it becomes ready again.")]


class Connection(ResponseModel):
    """A client: a connection of the beanstalk protocol, or a request to reserve over HTTP."""

    number: ConnectionNumber
    address: Annotated[str, Meta(description="The address of the client.")]
    program: Annotated[
        str,
        Meta(
            description="The client's name: from its TLS certificate, its program on a Unix socket, or `worker` in its"
            " request to reserve; empty if it has none."
        ),
    ]
    is_http: Annotated[bool, Meta(description="Whether it is a request to reserve over HTTP.")]
    is_producer: Annotated[bool, Meta(description="Whether it has put jobs.")]
    is_worker: Annotated[bool, Meta(description="Whether it has reserved jobs.")]
    connected_at: Instant
    uses: Annotated[TubeName | None, Meta(description="The tube that it puts into; null if you may not see it.")]
    watches: Annotated[
        list[TubeName],
        Meta(
            description=f"Tubes that it reserves from: the first {MAX_TUBES_IN_ROW} in lists,"
            f" {MAX_TUBES_LISTED} for a single connection."
        ),
    ]
    watched: Annotated[Count, Meta(description="The number of tubes that it watches.")]
    held: Annotated[Count, Meta(description="The number of jobs that it holds.")]
    finished: Annotated[
        Count, Meta(description="The number of jobs that it deleted, released or buried while it held them.")
    ]
    waiting_since: Annotated[
        Instant | None, Meta(description="Start of its current reserve, or wait for a job; null if it has none.")
    ]
    waits_until: Annotated[
        Instant | None, Meta(description="Time at which the reserve or wait times out; null if it has no timeout.")
    ]


class ConnectionWithJobs(Connection):
    """A connection, and the jobs that it holds."""

    jobs: Annotated[list[HeldJob], Meta(description=f"The first {MAX_JOBS_LISTED} to time out, in that order.")]


FIRST: Final = "connections.first"
PARTS: Final = "connections.parts"
"""Questions to the other shards."""

MAX_SCANNED_IN_ROW: Final = 32
"""Held jobs scanned per row, to find the ones that time out first."""

Ranked = tuple[int, int, Client]
"""The sort key, the number, and the client itself."""


def first_clients(
    broker: Broker, query: str, order: Order, limit: int, after: tuple[int, int] | None = None
) -> tuple[list[Ranked], int]:
    """Return the first *limit* clients after *after* that match *query*, and the number of all matches. May switch.

    The key of *order* is one of SORTS; *after* is the sort key and the number of a client.
    """
    pace, sort_key = Pace(), client_rank(order)
    found = matching_clients(broker, query, pace)
    ranked = [(sort_key(client), client.number, client) for client in in_batches(found, BATCH_SIZE, pace)]
    return nsmallest(limit, [one for one in ranked if after is None or one[:2] > after]), len(found)


class FirstConnections(Struct, array_like=True):
    """The first connections in an order.

    ranked      each with its sort key.
    matched     the number of connections that match the filter.
    """

    ranked: list[tuple[int, ConnectionWithJobs]]
    matched: int


class Connections:
    """The connections of all shards: each process has its own."""

    def __init__(self, broker: Broker, clock: Clock, shards: Shards) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._shards: Shards = shards
        shards.answer(FIRST, self._first_for_another)
        shards.answer(PARTS, self._own_parts)

    def first(
        self, query: str, order: Order, limit: int, after: tuple[int, int] | None = None, *, jobs: int = 0
    ) -> FirstConnections:
        """Return the first *limit* connections after *after* that match *query*, each with *jobs* jobs. May switch.

        The key of *order* is one of SORTS; *after* is the sort key and the number of a connection.
        """
        own = self._own_first(query, order, limit, after, jobs)
        if not self._shards.others:
            return own
        asked = {"query": query, "order": asdict(order), "limit": limit, "after": after, "jobs": jobs}
        answers = self._shards.ask_others(FIRST, **asked).values()
        found = [own, *[convert(answer, FirstConnections) for answer in answers]]
        ranked = sorted([one for part in found for one in part.ranked], key=lambda one: (one[0], one[1].number))[:limit]
        self._add_parts([connection for _, connection in ranked], MAX_TUBES_IN_ROW, jobs)
        return FirstConnections(ranked, sum([part.matched for part in found]))

    def add_parts(self, connection: ConnectionWithJobs) -> None:
        """Add what *connection*, of this process, uses, watches and holds on other shards. May switch."""
        if self._shards.others:
            self._add_parts([connection], MAX_TUBES_LISTED, MAX_JOBS_LISTED)

    def _add_parts(self, connections: list[ConnectionWithJobs], tubes: int, jobs: int) -> None:
        """Add what *connections* use, watch and hold on shards other than that of their process."""
        numbers = [connection.number for connection in connections]
        if not numbers:
            return
        found = [self._own_parts(numbers, tubes, jobs)]
        asked = {"numbers": numbers, "tubes": tubes, "jobs": jobs}
        found += [
            convert(answer, list[ConnectionWithJobs]) for answer in self._shards.ask_others(PARTS, **asked).values()
        ]
        parts: dict[int, list[ConnectionWithJobs]] = {}
        for part in chain.from_iterable(found):
            parts.setdefault(part.number, []).append(part)
        for connection in connections:
            for part in parts.get(connection.number, ()):
                _add(connection, part, tubes, jobs)

    def _own_parts(self, numbers: list[int], tubes: int, jobs: int) -> list[ConnectionWithJobs]:
        """Return the remote clients of this shard whose connections have *numbers*."""
        wanted, now = set(numbers), self._clock()
        return [
            connection_with_jobs(client, now, tubes, jobs)
            for client in in_batches(list(self._broker.clients), BATCH_SIZE)
            if client.is_remote and client.number in wanted and not client.is_closed
        ]

    def _own_first(
        self, query: str, order: Order, limit: int, after: tuple[int, int] | None, jobs: int
    ) -> FirstConnections:
        first, matched = first_clients(self._broker, query, order, limit, after)
        now, ranked = self._clock(), list[tuple[int, ConnectionWithJobs]]()
        for rank, _, client in Pace().each(first):
            if not client.is_closed:  # the client may have disconnected since the listing
                model = connection_with_jobs(client, now, MAX_TUBES_IN_ROW, jobs, MAX_SCANNED_IN_ROW)
                ranked.append((rank, model))
        return FirstConnections(ranked, matched)

    def _first_for_another(
        self, query: str, order: dict[str, Any], limit: int, after: tuple[int, int] | None, jobs: int
    ) -> FirstConnections:
        return self._own_first(query, Order(**order), limit, (after[0], after[1]) if after is not None else None, jobs)


def _add(connection: ConnectionWithJobs, part: ConnectionWithJobs, tubes: int, jobs: int) -> None:
    """Add to *connection* what it uses, watches and holds on another shard, *part*."""
    connection.uses = connection.uses or part.uses
    connection.is_producer, connection.is_worker = (
        connection.is_producer or part.is_producer,
        connection.is_worker or part.is_worker,
    )
    connection.watches = [*connection.watches, *part.watches][:tubes]
    connection.watched += part.watched
    connection.held += part.held
    connection.finished += part.finished
    connection.jobs = sorted([*connection.jobs, *part.jobs], key=lambda job: job.time_left)[:jobs]
    connection.waiting_since = connection.waiting_since or part.waiting_since
    connection.waits_until = connection.waits_until or part.waits_until


def connection_without_jobs(connection: ConnectionWithJobs) -> Connection:
    """Return *connection* as a list of the API shows it."""
    return Connection(**{name: getattr(connection, name) for name in Connection.__struct_fields__})


def connection_with_jobs(
    client: Client,
    now: int,
    tubes: int = MAX_TUBES_LISTED,
    jobs: int = MAX_JOBS_LISTED,
    scanned: int = MAX_SCANNED_JOBS,
) -> ConnectionWithJobs:
    """Return *client* with the first *tubes* that it watches, and the first *jobs* of *scanned* jobs to time out."""
    found = soonest_jobs(client, jobs, scanned)
    return ConnectionWithJobs(**_fields(client, tubes), jobs=[_held_job(job, now) for job in found])


def _fields(client: Client, tubes: int) -> dict[str, Any]:
    until, watched, uses = client.wait_until if client.is_waiting else None, visible_tubes(client), client.used.name
    return {
        "number": client.number,
        "address": client.address,
        "program": client.name,
        "is_http": client.is_http,
        "is_producer": client.is_producer,
        "is_worker": client.is_worker,
        "connected_at": instant(client.connected_at),
        "uses": uses.decode() if uses and principal().sees(uses) else None,
        "watches": [name.decode() for name in islice(watched, tubes)],
        "watched": len(watched),
        "held": len(visible_jobs(client)),
        "finished": client.finished,
        "waiting_since": instant(client.waiting_since) if client.is_waiting else None,
        "waits_until": instant(until) if until is not None else None,
    }


def _held_job(job: Job, now: int) -> HeldJob:
    return model_of(
        HeldJob,
        job,
        tube=job.tube.name.decode(),
        reserved_at=instant(job.reserved_at),
        time_left=max(0, job.deadline - now) // SECOND,
    )
