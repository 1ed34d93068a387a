"""The page of this server and the others in the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from flask import Flask, render_template, url_for
from markupsafe import Markup

from greenstalk_server.web.features.servers.servers import (
    LEADER,
    STANDBY,
    Figures,
    Servers,
    ServerStatus,
    require_servers,
)
from greenstalk_server.web.framework import text
from greenstalk_server.web.live.hub import LiveHub, State, render_blocks

PAGE_WAIT: Final = 1.0
"""Maximum seconds that the page waits for responses. It shows a server without a response as pending."""

PARTS: Final = ("servers",)

ROLES: Final = {LEADER: "leader", STANDBY: "standby", "": text.NONE, "single": "single"}


@dataclass(frozen=True, slots=True)
class ServerRow:
    """A server as text; *state* is `reachable`, `standby`, `unreachable` or `asked`. Unknown figures are empty."""

    name: str
    address: str
    href: str
    is_this: bool
    state: str
    problem: str
    at: str | Markup
    role: str
    version: str
    uptime: str
    connections: str
    jobs: tuple[tuple[str, str], ...]
    rates: tuple[tuple[str, str], ...]
    conditions: str
    severity: str
    worst: str


class ServerPages:
    """The page `/servers`."""

    def __init__(self, servers: Servers) -> None:
        self._servers: Servers = servers

    def init_app(self, app: Flask, live: LiveHub) -> None:
        """Add the page to *app*, and register it with *live* for live updates."""
        app.add_url_rule("/servers", "servers", self.page)
        live.register("servers", self.state)

    def page(self) -> str:
        """Serve `/servers`. Switches."""
        require_servers()
        return render_template("servers.html", **self._values(PAGE_WAIT))

    def state(self, _: Mapping[str, str], now: int) -> State:
        """Return the live state of `/servers`."""
        require_servers()
        return {"parts": render_blocks("servers.html", PARTS, self._values(0))}

    def _values(self, wait: float) -> dict[str, Any]:
        statuses = self._servers.statuses(wait)
        return {"servers": [_row(status) for status in statuses], "are_configured": len(statuses) > 1}


def _row(status: ServerStatus) -> ServerRow:
    figures = status.figures
    if status.is_reachable:
        state = STANDBY if status.role == STANDBY else "reachable"
    else:
        state = "unreachable" if status.at else "asked"
    return ServerRow(
        name=status.name,
        address=status.address,
        href=url_for("overview") if status.is_this else status.href,
        is_this=status.is_this,
        state=state,
        problem=status.problem,
        at=text.time_tag(status.at) if status.at else text.NONE,
        role=ROLES[status.role],
        version=figures.version if figures is not None else text.NONE,
        uptime=text.duration(figures.uptime) if figures is not None else text.NONE,
        connections=text.number(figures.connections) if figures is not None else text.NONE,
        jobs=_jobs(figures) if figures is not None else (),
        rates=_rates(figures) if figures is not None else (),
        conditions=text.number(figures.conditions) if figures is not None else text.NONE,
        severity=figures.severity if figures is not None else "",
        worst=figures.worst if figures is not None else "",
    )


def _jobs(figures: Figures) -> tuple[tuple[str, str], ...]:
    states = ("ready", "reserved", "delayed", "buried")
    return tuple([(state, text.number(getattr(figures, state))) for state in states])


def _rates(figures: Figures) -> tuple[tuple[str, str], ...]:
    return tuple([(name, text.rate(getattr(figures, name))) for name in ("put", "reserve", "delete")])
