"""API endpoints of connections: a list, single connections with their jobs and tubes, and closing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from greenstalk_server.config.tables.roles import ADMIN
from greenstalk_server.web.features.connections.connections import (
    Connection,
    ConnectionNumber,
    Connections,
    ConnectionWithJobs,
    connection_without_jobs,
)
from greenstalk_server.web.framework.api.cursors import DEFAULT_LIMIT, Cursor, Limit, NextCursor, dump, load
from greenstalk_server.web.framework.api.durability import wait_until_durable
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.api.values import RequestModel, ResponseModel
from greenstalk_server.web.framework.sorting import Order
from greenstalk_server.web.reads.connections import MAX_FILTER_LENGTH


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
        Literal["number", "connected", "held", "waiting"],
        Meta(
            description="`number`; `connected`: the oldest connection first; `held`: the longest-held job first;"
            " `waiting`: the longest wait first."
        ),
    ] = "number"
    desc: Annotated[bool, Meta(description="Whether the order is reversed.")] = False
    cursor: Cursor | UnsetType = UNSET
    limit: Limit = DEFAULT_LIMIT


class _ConnectionPosition(Struct, array_like=True):
    """The last connection of the previous page, and the order of the list: its key, with a hyphen if descending."""

    sort: str
    rank: int
    number: int


NO_CONNECTION: Final = {404: "The connection does not exist."}


class ConnectionsEndpoints:
    """Connections of producers and workers, with the jobs that they hold."""

    def __init__(self, commit: Callable[[], bool], connections: Connections) -> None:
        self._commit: Callable[[], bool] = commit
        self._connections: Connections = connections

    @endpoint("GET", "/connections")
    def list_connections(self, query: ListConnectionsRequest) -> ConnectionList:
        """List the connections."""
        order = Order(query.sort, query.desc)
        ranked = self._connections.first(query.q.strip(), order, query.limit + 1, _after(query)).ranked
        following = None
        if len(ranked) > query.limit:
            rank, last = ranked[query.limit - 1]
            following = dump(_ConnectionPosition(_sort_of(query), rank, last.number))
        return ConnectionList(
            connections=[connection_without_jobs(one) for _, one in ranked[: query.limit]], next_cursor=following
        )

    @endpoint("GET", "/connections/{number}", errors=NO_CONNECTION)
    def get_connection(self, number: ConnectionNumber) -> ConnectionWithJobs:
        """Get one connection, and the jobs that it holds."""
        return self._connections.find(number).connection

    @endpoint("DELETE", "/connections/{number}", role=ADMIN, status=204, errors=NO_CONNECTION)
    def close_connection(self, number: ConnectionNumber) -> None:
        """Close a connection. The jobs that it holds become ready."""
        self._connections.close(number)
        wait_until_durable(self._commit)


def _sort_of(query: ListConnectionsRequest) -> str:
    return f"{'-' if query.desc else ''}{query.sort}"


def _after(query: ListConnectionsRequest) -> tuple[int, int] | None:
    if query.cursor is UNSET:
        return None
    position = load(query.cursor, _ConnectionPosition)
    if position.sort != _sort_of(query):
        refuse("cursor", f"belongs to a list sorted by {position.sort[:20]}")
    return position.rank, position.number
