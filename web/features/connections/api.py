"""The connections of the API: a list, single connections with their jobs and tubes, and closing them."""

from __future__ import annotations

from collections.abc import Callable
from heapq import nsmallest
from itertools import islice
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from greenstalk_server.config.tables.roles import ADMIN
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.operations import Operations
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.api.cursors import DEFAULT_LIMIT, Cursor, Limit, NextCursor, dump, load
from greenstalk_server.web.framework.api.durability import wait_until_durable
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.api.values import (
    Count,
    Instant,
    JobId,
    Pri,
    RequestModel,
    ResponseModel,
    TubeName,
    instant,
    model_of,
)
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.reads.connections import (
    MAX_FILTER_LENGTH,
    MAX_JOBS_LISTED,
    MAX_SCANNED_JOBS,
    MAX_TUBES_IN_ROW,
    MAX_TUBES_LISTED,
    SORTS,
    find_client,
    iter_batched,
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


class ConnectionList(ResponseModel):
    """A page of connections."""

    connections: list[Connection]
    next_cursor: NextCursor


class ListConnectionsRequest(RequestModel):
    """Selects connections, and a page of the list."""

    q: Annotated[
        str,
        Meta(
            max_length=MAX_FILTER_LENGTH,
            description="Only connections with this number, or with this text in their address, program or tube names.",
        ),
    ] = ""
    sort: Annotated[
        Literal["number", "held", "waiting"],
        Meta(description="`number`; `held`: the longest-held job first; `waiting`: the longest wait first."),
    ] = "number"
    cursor: Cursor | UnsetType = UNSET
    limit: Limit = DEFAULT_LIMIT


class _ConnectionPlace(Struct, array_like=True):
    """The last connection of the previous page, and the order of the list."""

    sort: str
    rank: int
    number: int


NO_CONNECTION: Final = {404: "The connection does not exist."}


class Connections:
    """Connections of producers and workers, with the jobs that they hold."""

    def __init__(self, broker: Broker, clock: Clock, commit: Callable[[], bool], operations: Operations) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._commit: Callable[[], bool] = commit
        self._operations: Operations = operations

    @endpoint("GET", "/connections")
    def list_connections(self, query: ListConnectionsRequest) -> ConnectionList:
        """List the connections."""
        pace, rank = Pace(), SORTS[query.sort][1]
        after = _after(query)
        keys = [
            (rank(client), client.number, client)
            for client in iter_batched(matching_clients(self._broker, query.q.strip(), pace), pace)
        ]
        first = nsmallest(query.limit + 1, [key for key in keys if after is None or key[:2] > after])
        connections = []
        for _, _, client in first[: query.limit]:
            if not client.is_closed:  # the client may have disconnected since the listing
                connections.append(_connection_model(client, MAX_TUBES_IN_ROW))
            pace.yield_if_due()
        is_cut = len(first) > query.limit
        following = dump(_ConnectionPlace(query.sort, *first[query.limit - 1][:2])) if is_cut else None
        return ConnectionList(connections=connections, next_cursor=following)

    @endpoint("GET", "/connections/{number}", errors=NO_CONNECTION)
    def get_connection(self, number: ConnectionNumber) -> ConnectionWithJobs:
        """Get one connection, and the jobs that it holds."""
        client, now = self._find(number), self._clock()
        connection = _connection_model(client, MAX_TUBES_LISTED)
        jobs = [_held(job, now) for job in soonest_jobs(client, MAX_JOBS_LISTED, MAX_SCANNED_JOBS)]
        return model_of(ConnectionWithJobs, connection, jobs=jobs)

    @endpoint("DELETE", "/connections/{number}", role=ADMIN, status=204, errors=NO_CONNECTION)
    def close_connection(self, number: ConnectionNumber) -> None:
        """Close a connection. The jobs that it holds become ready."""
        self._operations.close(self._find(number))
        wait_until_durable(self._commit)

    def _find(self, number: int) -> Client:
        return find_client(self._broker, {"number": str(number)})


def _after(query: ListConnectionsRequest) -> tuple[int, int] | None:
    if query.cursor is UNSET:
        return None
    place = load(query.cursor, _ConnectionPlace)
    if place.sort != query.sort:
        refuse("cursor", f"belongs to a list sorted by {place.sort[:20]}")
    return place.rank, place.number


def _connection_model(client: Client, tubes: int) -> Connection:
    """Return *client*, with the first *tubes* tubes that it watches."""
    until, watched, uses = client.wait_until if client.is_waiting else None, visible_tubes(client), client.used.name
    return model_of(
        Connection,
        client,
        program=client.name,
        connected_at=instant(client.connected_at),
        uses=uses.decode() if principal().sees(uses) else None,
        watches=[name.decode() for name in islice(watched, tubes)],
        watched=len(watched),
        held=len(visible_jobs(client)),
        waiting_since=instant(client.waiting_since) if client.is_waiting else None,
        waits_until=instant(until) if until is not None else None,
    )


def _held(job: Job, now: int) -> HeldJob:
    return model_of(
        HeldJob,
        job,
        tube=job.tube.name.decode(),
        reserved_at=instant(job.reserved_at),
        time_left=max(0, job.deadline - now) // SECOND,
    )
