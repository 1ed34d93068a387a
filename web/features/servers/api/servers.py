"""This server and the others in the configuration, as the API returns them."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from greenstalk_server.web.features.servers.servers import STANDBY, ServerStatus, require_servers
from greenstalk_server.web.features.servers.servers import Figures as ServerFigures
from greenstalk_server.web.features.servers.servers import Servers as ServerList
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.values import Count, Instant, ResponseModel, instant, model_of

API_WAIT: Final = 5.0
"""Maximum seconds that a response waits for other servers."""


class Totals(ResponseModel):
    """The figures of a server."""

    version: str
    hostname: str
    uptime: Annotated[Count, Meta(description="Seconds since the start.")]
    connections: Count
    ready: Count
    reserved: Count
    delayed: Count
    buried: Count
    put: Annotated[float, Meta(description="Puts per second, averaged over the last ten seconds.")]
    reserve: Annotated[float, Meta(description="Reservations per second.")]
    delete: Annotated[float, Meta(description="Deletions per second.")]
    conditions: Annotated[Count, Meta(description="Conditions that need attention.")]
    worst: Annotated[str | None, Meta(description="The sentence of the worst condition.")]
    severity: Annotated[str | None, Meta(description="The severity of the worst condition.", examples=["warning"])]


class ListedServer(ResponseModel):
    """A server as this one sees it."""

    name: Annotated[str, Meta(description="Its name in the configuration; the host name for this server.")]
    address: Annotated[
        str, Meta(description="Scheme and host, or where the address is configured; empty for this one.")
    ]
    is_this: bool
    state: Annotated[
        Literal["reachable", "standby", "unreachable", "pending"],
        Meta(description="`pending`: it has not responded yet."),
    ]
    role: Annotated[str | None, Meta(description="`leader`, `standby` or `single`; null if it is not known.")]
    problem: Annotated[str, Meta(description="Why it did not respond; for a standby, its state; else empty.")]
    at: Annotated[Instant | None, Meta(description="Time of the response or the failure.")]
    figures: Annotated[Totals | None, Meta(description="Null unless it is reachable.")]


class AllServers(ResponseModel):
    """This server, and the others in the configuration."""

    servers: Annotated[list[ListedServer], Meta(description="This server first.")]


class Servers:
    """Servers: this one, and the others in the configuration file, as their APIs describe them."""

    def __init__(self, servers: ServerList) -> None:
        self._servers: ServerList = servers

    @endpoint("GET", "/servers", errors={403: "Only users who may see all tubes may see the servers."})
    def list_servers(self) -> AllServers:
        """List this server and the others in the configuration file.

        Each of the others is queried at most every five seconds. The response takes at most about five seconds.
        """
        require_servers()
        return AllServers(servers=[_model(status) for status in self._servers.statuses(API_WAIT)])


def _model(status: ServerStatus) -> ListedServer:
    figures = status.figures
    return model_of(
        ListedServer,
        status,
        state=_state(status),
        role=status.role or None,
        at=instant(status.at) if status.at else None,
        figures=_totals(figures) if figures is not None else None,
    )


def _state(status: ServerStatus) -> Literal["reachable", "standby", "unreachable", "pending"]:
    if status.role == STANDBY:
        return "standby"
    if status.is_reachable:
        return "reachable"
    return "unreachable" if status.at else "pending"


def _totals(figures: ServerFigures) -> Totals:
    return model_of(Totals, figures, worst=figures.worst or None, severity=figures.severity or None)
