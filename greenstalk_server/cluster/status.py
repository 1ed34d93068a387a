"""The status of a server in its cluster, as one value for every output. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The status of one server among those that share a journal.

    is_active   whether this server is the leader; if not, it is a standby.
    journal     name of the journal.
    name        name of this server.
    leader      name of the active server; empty if none is known.
    epoch       number of the current lead, raised by each takeover and each reconnection; 0 if unknown.
    behind      seconds since a standby last read everything there was; None before the first time.
    trouble     why the database does not answer; empty if it does.
    standbys    the standbys of an active server: name, and seconds behind.
    """

    is_active: bool
    journal: str
    name: str
    leader: str = ""
    epoch: int = 0
    behind: float | None = None
    trouble: str = ""
    standbys: tuple[tuple[str, float], ...] = ()
