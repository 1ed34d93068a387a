"""The shards and servers of a queue in a database, and the move of a shard to another server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta
from werkzeug.exceptions import Conflict, NotFound, ServiceUnavailable

from greenstalk_server.cluster.shard_move import SHOWN_ID, MoveRefused, Role, role_of
from greenstalk_server.web.features.servers.servers import require_servers
from greenstalk_server.web.framework.api.values import Count, ResponseModel
from greenstalk_server.web.store.audit import Audit

if TYPE_CHECKING:
    from greenstalk_server.cluster.membership import Membership
    from greenstalk_server.journal.postgresql.members import Snapshot

MAX_NAME: Final = 300
"""Maximum characters of the name or id of a server in a request."""

NO_CLUSTER: Final = "The server is not one of a cluster: its shards have no followers, and cannot be moved."

ServerId = Annotated[str, Meta(description="Random id of a server, another one after each start.")]
Lag = Annotated[
    float | None, Meta(description="Seconds since it had read the whole journal of the shard; null if it never has.")
]


class Follower(ResponseModel):
    """A server that follows a shard, and can take it over."""

    server: str
    id: ServerId
    behind: Lag


class Shard(ResponseModel):
    """A shard, its owner and its followers."""

    shard: Count
    owner: Annotated[str | None, Meta(description="The server that leads it; null while none does.")]
    owner_id: Annotated[str | None, Meta(description="Id of the owner.")]
    epoch: Annotated[Count, Meta(description="Number of the leadership, raised by each new one.")]
    followers: list[Follower]


class ClusterServer(ResponseModel):
    """A server of the cluster."""

    server: str
    id: ServerId
    machine: str
    links: Annotated[str, Meta(description="Address at which the other servers reach it.")]
    version: str
    state: Annotated[Role, Meta(description="`starting`: it follows no shard yet. `silent`: no sign of life for 10 s.")]
    shard: Annotated[Count | None, Meta(description="The shard that it leads or follows.")]
    behind: Lag

    @property
    def short_id(self) -> str:
        """The part of the id that is shown, and that names the server."""
        return self.id[:SHOWN_ID]


class RelayedLink(ResponseModel):
    """Two servers without a direct connection, which reach each other over a third one."""

    server: str
    peer: str
    relay: Annotated[str, Meta(description="The server that relays their link.")]


class ClusterState(ResponseModel):
    """The shards and servers of a queue in a database."""

    queue: str
    age: Annotated[float, Meta(description="Seconds since this was read: more than 1 if the database does not answer.")]
    shards: list[Shard]
    servers: list[ClusterServer]
    relayed: list[RelayedLink]


class RequestedMove(ResponseModel):
    """A move that was requested: it is done when another server than `owner_id` leads the shard."""

    shard: Count
    owner: Annotated[str | None, Meta(description="The owner before the move; null if there was none.")]
    owner_id: str | None
    server: Annotated[str | None, Meta(description="The server that is to lead the shard; null for any follower.")]
    server_id: str | None


class Cluster:
    """The servers of a queue with shards in a database, this one among them."""

    def __init__(self, membership: Membership | None, audit: Audit) -> None:
        """*membership* is None for any other queue."""
        self._membership: Membership | None = membership
        self._audit: Audit = audit

    def state(self) -> ClusterState | None:
        """Return the shards and servers as the database last described them; None without a cluster."""
        require_servers()
        membership = self._membership
        if membership is None:
            return None
        snapshot = membership.snapshot
        return ClusterState(
            queue=membership.queue.name,
            age=time.monotonic() - membership.read_at,
            shards=_shards(snapshot),
            servers=_servers(snapshot),
            relayed=[RelayedLink(**link._asdict()) for link in snapshot.relayed_links()],
        )

    def move(self, shard: int, server: str) -> RequestedMove:
        """Request that *server*, a name or the beginning of an id, leads *shard*; empty for any follower. Switches.

        Raise NotFound, Conflict or ServiceUnavailable.
        """
        if self._membership is None:
            raise Conflict(NO_CLUSTER)
        try:
            move = self._membership.request_move(shard, server)
        except MoveRefused as error:
            raise (NotFound if error.is_unknown else Conflict)(f"The shard was not moved: {error}.") from error
        except OSError as error:
            raise ServiceUnavailable(f"The shard was not moved: {error}.") from error
        before, target = move.before, move.target
        self._audit.note(
            "cluster/move", shard=shard, owner=before.holder_name, server=target.name if target is not None else ""
        )
        return RequestedMove(
            shard=shard,
            owner=before.holder_name or None,
            owner_id=before.holder or None,
            server=target.name if target is not None else None,
            server_id=target.id if target is not None else None,
        )


def _shards(snapshot: Snapshot) -> list[Shard]:
    return [
        Shard(
            shard=number,
            owner=None if one.is_free else one.holder_name,
            owner_id=None if one.is_free else one.holder,
            epoch=one.epoch,
            followers=[
                Follower(server=each.name, id=each.id, behind=each.behind) for each in snapshot.followers(number)
            ],
        )
        for number, one in enumerate(snapshot.shards)
    ]


def _servers(snapshot: Snapshot) -> list[ClusterServer]:
    found = []
    for each in snapshot.processes:
        state, shard = role_of(snapshot, each)
        found.append(
            ClusterServer(
                server=each.name,
                id=each.id,
                machine=each.machine,
                links=each.address,
                version=each.version,
                state=state,
                shard=shard,
                behind=each.behind if state == "follows" else None,
            )
        )
    return found
