"""The shards and servers of a cluster, and the move of a shard, as the API offers them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from werkzeug.exceptions import Conflict

from greenstalk_server.config.tables.roles import ADMIN
from greenstalk_server.web.features.servers.cluster import MAX_NAME, NO_CLUSTER, ClusterState, RequestedMove
from greenstalk_server.web.features.servers.cluster import Cluster as ClusterOfServer
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.values import Count, RequestModel


class MoveShardRequest(RequestModel):
    """A shard to move."""

    shard: Count
    server: Annotated[
        str,
        Meta(
            max_length=MAX_NAME,
            description="The name of a server, or the beginning of its id; without it, any follower.",
            examples=["app4:11300"],
        ),
    ] = ""


class ClusterEndpoints:
    """The cluster: the shards and servers of a queue in a database."""

    def __init__(self, cluster: ClusterOfServer) -> None:
        self._cluster: ClusterOfServer = cluster

    @endpoint(
        "GET",
        "/cluster",
        errors={403: "Only users who may see all tubes may see the servers.", 409: "The server is not in a cluster."},
    )
    def get_cluster(self) -> ClusterState:
        """Get the shards with their owners and followers, and the servers."""
        state = self._cluster.state()
        if state is None:
            raise Conflict(NO_CLUSTER)
        return state

    @endpoint(
        "POST",
        "/cluster/move",
        role=ADMIN,
        status=202,
        errors={
            404: "There is no such shard or server.",
            409: "The server leads a shard, no server follows the shard, or the server is not in a cluster.",
        },
    )
    def move_shard(self, body: MoveShardRequest) -> RequestedMove:
        """Request that another server leads a shard. Clients of its owner are disconnected.

        The response does not wait for the move: the server reads the journal of the shard first. Repeat
        `GET /cluster` until the shard has its new owner. If it is shard 0, the dashboard moves too, and requests may
        fail for some seconds.
        """
        return self._cluster.move(body.shard, body.server)
