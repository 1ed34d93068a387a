"""Whether this server leads or follows, as one value for every output. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Role:
    """How a server that shares its journal stands.

    journal     name of the journal.
    name        of this server; `leader` that of the active one, empty if none is known.
    epoch       raised with each takeover, and with each connection made anew; 0 if not known.
    behind      seconds since a standby last had read all there was; None before that.
    trouble     why the database does not answer; empty if it does.
    standbys    of an active server: who follows, and how many seconds behind.
    """

    is_active: bool
    journal: str
    name: str
    leader: str = ""
    epoch: int = 0
    behind: float | None = None
    trouble: str = ""
    standbys: tuple[tuple[str, float], ...] = ()
