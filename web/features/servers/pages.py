"""The page of this server, its processes, its cluster, and the other servers in the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flask import Flask, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.roles import ADMIN
from greenstalk_server.core.jobs.id_sequence import MAX_SHARDS
from greenstalk_server.web.features.servers.cluster import MAX_NAME, Cluster
from greenstalk_server.web.features.servers.servers import Servers, require_servers
from greenstalk_server.web.framework import fields
from greenstalk_server.web.framework.rights import open_to
from greenstalk_server.web.live.hub import LiveHub, State, render_blocks

PAGE_WAIT: Final = 1.0
"""Maximum seconds that the page waits for responses. It shows a server without a response as pending."""

PARTS: Final = ("servers", "processes")


class ServerPages:
    """The page `/servers`, and its form that moves a shard."""

    def __init__(self, servers: Servers, cluster: Cluster) -> None:
        self._servers: Servers = servers
        self._cluster: Cluster = cluster

    def init_app(self, app: Flask, live: LiveHub) -> None:
        """Add the page to *app*, and register it with *live* for live updates."""
        app.add_url_rule("/servers", "servers", self.page)
        app.add_url_rule("/servers/move", "servers_move", self.move, methods=["POST"])
        live.register("servers", self.state)

    def page(self) -> str:
        """Serve `/servers`. Switches."""
        require_servers()
        return render_template("servers.html", **self._values(PAGE_WAIT))

    @open_to(ADMIN)
    def move(self) -> Response:
        """Serve the form: request that `server` leads `shard`; without a server, any follower. Switches."""
        shard = fields.number(request.form, "shard", 0, MAX_SHARDS - 1)
        self._cluster.move(shard, fields.line(request.form, "server", MAX_NAME))
        return redirect(url_for("servers", notice="moving-shard", n=shard), 303)

    def state(self, _: Mapping[str, str], now: int) -> State:
        """Return the live state of `/servers`."""
        require_servers()
        values = self._values(0)
        parts = (*PARTS, "cluster") if values["cluster"] is not None else PARTS
        return {"parts": render_blocks("servers.html", parts, values)}

    def _values(self, wait: float) -> dict[str, Any]:
        statuses = self._servers.statuses(wait)
        return {
            "servers": statuses,
            "are_configured": len(statuses) > 1,
            "processes": self._servers.processes.all(),
            "cluster": self._cluster.state(),
        }
