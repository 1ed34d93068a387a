"""The page of this server, its processes, and the other servers in the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flask import Flask, render_template

from greenstalk_server.web.features.servers.servers import Servers, require_servers
from greenstalk_server.web.live.hub import LiveHub, State, render_blocks

PAGE_WAIT: Final = 1.0
"""Maximum seconds that the page waits for responses. It shows a server without a response as pending."""

PARTS: Final = ("servers", "processes")


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
        return {
            "servers": statuses,
            "are_configured": len(statuses) > 1,
            "processes": self._servers.processes.all(),
        }
