"""The status of a server in its cluster, shared by the pages, /readyz and the metrics. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HOME: Final = 0
"""The shard whose process serves the dashboard of the whole queue."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The status of one server among those that share a journal.

    is_active   whether this server is the leader; if not, it is a standby.
    journal     name of the journal.
    name        name of this server.
    leader      name of the active server; empty if none is known.
    epoch       number of the current leadership, raised by each takeover and each reconnection; 0 if unknown.
    behind      seconds since a standby had last read the whole journal; None if it never has.
    database_error  why the database does not answer; empty if it does.
    is_front    whether this server serves clients, be it the leader or not.
    standbys    the standbys of an active server: name, and seconds behind.
    unreached   shards whose owners live, and have not been reached for --outage-wait.
    relayed_links   number of links between servers that a third one relays.
    """

    is_active: bool
    journal: str
    name: str
    leader: str = ""
    epoch: int = 0
    behind: float | None = None
    database_error: str = ""
    standbys: tuple[tuple[str, float], ...] = ()
    is_front: bool = False
    unreached: tuple[int, ...] = ()
    relayed_links: int = 0

    @property
    def unready(self) -> str:
        """Why an active server, or one with links, should get no new clients; empty if it may get them.

        A server with links keeps its clients while the database is away.
        """
        if not self.is_front:
            return self.database_error
        shards = ", ".join(map(str, self.unreached))
        return f"cannot reach the owner of shard {shards}" if shards else ""
