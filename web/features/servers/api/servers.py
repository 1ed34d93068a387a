"""This server and the others in the configuration, as the API returns them."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from greenstalk_server.web.features.servers.processes import Process
from greenstalk_server.web.features.servers.servers import ListedServer, require_servers
from greenstalk_server.web.features.servers.servers import Servers as ServerList
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.values import ResponseModel

API_WAIT: Final = 5.0
"""Maximum seconds that a response waits for other servers."""


class AllServers(ResponseModel):
    """This server, and the others in the configuration."""

    servers: Annotated[list[ListedServer], Meta(description="This server first.")]
    processes: Annotated[
        list[Process], Meta(description="The processes of this server by shard; empty if it is a single process.")
    ]


class ServersEndpoints:
    """Servers: this one, and the others in the configuration file, as their APIs describe them."""

    def __init__(self, servers: ServerList) -> None:
        self._servers: ServerList = servers

    @endpoint("GET", "/servers", errors={403: "Only users who may see all tubes may see the servers."})
    def list_servers(self) -> AllServers:
        """List this server and the others in the configuration file.

        Each of the others is queried at most every five seconds. The response takes at most about five seconds.
        """
        require_servers()
        return AllServers(servers=self._servers.statuses(API_WAIT), processes=self._servers.processes.all())
