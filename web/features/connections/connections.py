"""A connection as pages and the API show it: the model, and the list in an order."""

from __future__ import annotations

from heapq import nsmallest
from itertools import islice
from typing import Annotated, Any

from msgspec import Meta

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import SECOND, Job
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


def connection_model(client: Client) -> Connection:
    """Return *client* as a list shows it."""
    return Connection(**_fields(client, MAX_TUBES_IN_ROW))


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
        "uses": uses.decode() if principal().sees(uses) else None,
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
