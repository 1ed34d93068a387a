"""A connection as pages and the API show it: the model, and the list in an order."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict
from heapq import nsmallest
from itertools import chain, islice
from typing import Annotated, Any, Final, NamedTuple

import gevent
from msgspec import Meta, Struct, convert
from werkzeug.exceptions import NotFound, ServiceUnavailable

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
from greenstalk_server.web.framework.shards import Shards, Target
from greenstalk_server.web.framework.sorting import Order
from greenstalk_server.web.reads.connections import (
    BATCH_SIZE,
    MAX_JOBS_LISTED,
    MAX_SCANNED_JOBS,
    MAX_TUBES_IN_ROW,
    MAX_TUBES_LISTED,
    client_rank,
    is_visible,
    matching_clients,
    soonest_jobs,
    visible_jobs,
    visible_tubes,
)
from greenstalk_server.web.reads.policies import hold_text
from greenstalk_server.web.store.audit import Audit

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


MATCHING: Final = "connections.matching"
FIRST: Final = "connections.first"
PARTS: Final = "connections.parts"
ONE: Final = "connection"
FORMER: Final = "connection.former"
CLOSE: Final = "connection.close"
"""Questions to the other processes."""

MAX_MATCHING: Final = 20_000
"""Maximum number of connections that a filter finds by tubes and jobs on shards other than that of their process."""

MAX_HOLDS: Final = 5
"""Maximum number of held tubes that the page of a connection shows."""

CLOSE_TIMEOUT: Final = 1.0
"""Seconds to wait for a connection to close. Normally it closes in the next iteration of the event loop."""

MAX_SCANNED_IN_ROW: Final = 32
"""Held jobs scanned per row, to find the ones that time out first."""

Ranked = tuple[int, int, Client]
"""The sort key, the number, and the client itself."""


def first_clients(
    brokers: Iterable[Broker],
    query: str,
    order: Order,
    limit: int,
    after: tuple[int, int] | None = None,
    known: Collection[int] = (),
) -> tuple[list[Ranked], int]:
    """Return the first *limit* clients after *after* that match *query*, and the number of all matches. May switch.

    The key of *order* is one of SORTS; *after* is the sort key and the number of a client. Those with a number in
    *known* match.
    """
    pace, sort_key = Pace(), client_rank(order)
    found = [client for broker in brokers for client in matching_clients(broker, query, pace, known)]
    ranked = [(sort_key(client), client.number, client) for client in in_batches(found, BATCH_SIZE, pace)]
    return nsmallest(limit, [one for one in ranked if after is None or one[:2] > after]), len(found)


class FirstConnections(Struct, array_like=True):
    """The first connections in an order.

    ranked      each with its sort key.
    matched     the number of connections that match the filter.
    """

    ranked: list[tuple[int, ConnectionWithJobs]]
    matched: int


class Part(Struct, array_like=True):
    """A client of a connection: that of the connection itself, or its remote client at a shard.

    holds       watched tubes whose ready jobs a policy holds back while the client waits, with the reasons.
    """

    connection: ConnectionWithJobs
    is_remote: bool
    is_visible: bool
    holds: list[tuple[str, str]]


class FoundConnection(NamedTuple):
    """A connection, and the process that has it."""

    connection: ConnectionWithJobs
    holds: list[tuple[str, str]]
    target: Target


class Connections:
    """The connections to all processes: each has its own."""

    def __init__(self, clock: Clock, shards: Shards, audit: Audit) -> None:
        self._clock: Clock = clock
        self._shards: Shards = shards
        self._audit: Audit = audit
        shards.answer(MATCHING, self._matching_here)
        shards.answer(FIRST, self._first_for_another)
        shards.answer(PARTS, self._own_parts)
        shards.answer(ONE, self._parts_of)
        shards.answer(FORMER, self._former_address)
        shards.answer(CLOSE, self._close)

    def first(
        self, query: str, order: Order, limit: int, after: tuple[int, int] | None = None, *, jobs: int = 0
    ) -> FirstConnections:
        """Return the first *limit* connections after *after* that match *query*, each with *jobs* jobs. May switch.

        The key of *order* is one of SORTS; *after* is the sort key and the number of a connection.
        """
        if not self._shards.are_linked:
            return self._own_first(query, order, limit, after, jobs)
        known = self._matching(query) if query or not principal().sees_all else set()
        asked = {"query": query, "order": asdict(order), "limit": limit, "after": after, "jobs": jobs}
        if known:
            asked["known"] = list(known)
        answers = self._shards.ask_fronts(FIRST, **asked).values()
        own = self._own_first(query, order, limit, after, jobs, known)
        found = [own, *[convert(answer, FirstConnections) for answer in answers]]
        ranked = sorted([one for part in found for one in part.ranked], key=lambda one: (one[0], one[1].number))[:limit]
        self._add_parts([connection for _, connection in ranked], MAX_TUBES_IN_ROW, jobs)
        return FirstConnections(ranked, sum([part.matched for part in found]))

    def _matching(self, query: str) -> set[int]:
        """Return the numbers of the connections that match *query* by the tubes or jobs of their remote clients."""
        answers: Iterable[list[int]] = self._shards.ask_others(MATCHING, query=query).values()
        return set(islice(chain(self._matching_here(query), *answers), MAX_MATCHING))

    def _matching_here(self, query: str) -> list[int]:
        """Return the numbers of the remote clients of this shard that match *query*."""
        pace, brokers = Pace(), self._shards.brokers
        found = [client for broker in brokers for client in matching_clients(broker, query, pace, are_remote=True)]
        return [client.number for client in found[:MAX_MATCHING]]

    def find(self, number: int) -> FoundConnection:
        """Return the connection *number*, with all that it uses, watches and holds. May switch.

        Raise NotFound unless it is open and visible.
        """
        found: list[tuple[Target, Part]] = [(self._shards.own, part) for part in self._parts_of(number)]
        for target, answer in self._shards.ask_fronts(ONE, number=number).items():
            found += [(target, part) for part in convert(answer, list[Part])]
        parts = [part for _, part in found]
        target, whole = next(((target, part) for target, part in found if not part.is_remote), (0, None))
        if whole is None or not any(part.is_visible for part in parts):
            raise NotFound(f"Connection {number} is not open: {self._reason_closed(number)}.")
        for part in parts:
            if part is not whole:
                _add(whole.connection, part.connection, MAX_TUBES_LISTED, MAX_JOBS_LISTED)
        holds = list(chain.from_iterable(part.holds for part in parts))
        return FoundConnection(whole.connection, holds[:MAX_HOLDS], target)

    def close(self, number: int) -> None:
        """Close the connection *number*. The jobs that it holds become ready. Switches; raise NotFound."""
        found = self.find(number)
        if found.target == self._shards.own:
            self._close(number)
        else:
            self._shards.ask(found.target, CLOSE, number=number)
        connection = found.connection
        self._audit.note("connection/close", number=number, address=connection.address, jobs=connection.held)

    def _close(self, number: int) -> None:
        """Close the connection *number* of this process. Switches."""
        for client in self._clients(number):
            if not client.is_remote:
                client.hang_up()
                with gevent.Timeout(CLOSE_TIMEOUT, False):
                    while not client.is_closed:
                        gevent.sleep(CLOSE_TIMEOUT / 1000)
                if not client.is_closed:
                    raise ServiceUnavailable(f"Connection {number} was asked to close and is still open. Try again.")

    def _clients(self, number: int) -> list[Client]:
        return [client for broker in self._shards.brokers for client in broker.clients if client.number == number]

    def _parts_of(self, number: int) -> list[Part]:
        """Return the clients of the connection *number* at this process."""
        now = self._clock()
        return [
            Part(connection_with_jobs(client, now), client.is_remote, is_visible(client), _holds(client, now))
            for client in self._clients(number)
        ]

    def _reason_closed(self, number: int) -> str:
        """Return why the connection *number* is not open."""
        answers = self._shards.ask_fronts(FORMER, number=number)
        known = [self._former_address(number), *answers.values()]
        address = next(filter(None, known), "") if principal().sees_all else ""
        if address:
            return f"it came from {address} and has ended"
        if len(answers) < len(self._shards.fronts()):
            return "it has ended or never existed, or its process does not answer"
        return "it has ended or never existed"

    def _former_address(self, number: int) -> str:
        """Return the address of the worker *number* if it has disconnected from this process, else an empty text."""
        return next(filter(None, [broker.recent_workers.get(number) for broker in self._shards.brokers]), "")

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
            for broker in self._shards.brokers
            for client in in_batches(list(broker.clients), BATCH_SIZE)
            if client.is_remote and client.number in wanted and not client.is_closed
        ]

    def _own_first(
        self,
        query: str,
        order: Order,
        limit: int,
        after: tuple[int, int] | None,
        jobs: int,
        known: Collection[int] = (),
    ) -> FirstConnections:
        first, matched = first_clients(self._shards.brokers, query, order, limit, after, known)
        now, ranked = self._clock(), list[tuple[int, ConnectionWithJobs]]()
        for rank, _, client in Pace().each(first):
            if not client.is_closed:  # the client may have disconnected since the listing
                model = connection_with_jobs(client, now, MAX_TUBES_IN_ROW, jobs, MAX_SCANNED_IN_ROW)
                ranked.append((rank, model))
        return FirstConnections(ranked, matched)

    def _first_for_another(
        self,
        query: str,
        order: dict[str, Any],
        limit: int,
        after: tuple[int, int] | None,
        jobs: int,
        known: Collection[int] = (),
    ) -> FirstConnections:
        begin = (after[0], after[1]) if after is not None else None
        return self._own_first(query, Order(**order), limit, begin, jobs, set(known))


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


def _holds(client: Client, now: int) -> list[tuple[str, str]]:
    """Return the first watched tubes whose ready jobs a policy holds back while *client* waits, with the reasons."""
    if not client.is_waiting:
        return []
    sees = principal().sees
    watched = [tube for tube in islice(client.watched.values(), MAX_TUBES_LISTED) if sees(tube.name)]
    found = [(tube.name.decode(), hold_text(tube, now)) for tube in watched]
    return [("Held back", f"{name}: {hold}") for name, hold in found if hold][:MAX_HOLDS]


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
