"""The counters of tubes, for the history and the metrics."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.web.features.history.rings import RATES, Counts

POLICY_ACTIONS: Final = {
    "expired": "expired",
    "dropped": "dropped",
    "dead_lettered": "dead_lettered",
    "received": "received",
    "buried": "buried",
    "retried": "retried",
    "duplicates": "duplicate",
    "copied": "copied",
    "refused": "refused",
    "rate_holds": "rate_hold",
    "reserved_holds": "reserved_hold",
}
"""For each counter of PolicyCounts, the action that metrics name."""

_protocol_counters: Final = attrgetter(
    "total_jobs",
    "total_reserves",
    "cmd_delete",
    "total_buries",
    "total_timeouts",
    "total_releases",
    "total_kicks",
)
_charted_counters: Final = attrgetter("dead_lettered", "expired")
_policy_counters: Final = attrgetter(*POLICY_ACTIONS)

_NO_CHARTED: Final[Counts] = (0, 0)

PROTOCOL_COUNTERS: Final = len(RATES) - len(_NO_CHARTED)
"""Number of counters in `all_counters` before the counters of policies."""

NO_ACTIONS: Final[Counts] = (0,) * len(POLICY_ACTIONS)


def tube_counters(tube: Tube) -> Counts:
    """Return the counters of *tube* that the history records, in the order of RATES."""
    actions = tube.policy_counts
    return _protocol_counters(tube) + (_NO_CHARTED if actions is None else _charted_counters(actions))


def all_counters(tube: Tube) -> Counts:
    """Return the PROTOCOL_COUNTERS of *tube* in the order of RATES, then its counters of POLICY_ACTIONS."""
    actions = tube.policy_counts
    return _protocol_counters(tube) + (NO_ACTIONS if actions is None else _policy_counters(actions))
