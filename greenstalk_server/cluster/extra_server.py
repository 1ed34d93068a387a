"""Extra servers: a parent starts one for a vacant shard, and the extra server ends when other servers return.

A shard is vacant if it has neither an owner nor a standby. The parent has no connection to the database, so its servers
report the vacant shards to it. An extra server decides by itself when it is not needed: as a standby, when all shards
have owners; as an owner, when a standby can take its shard. A standby ends sooner. So if several machines have started
an extra server for one shard, the owner does not move the shard to another extra server.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from greenstalk_server.cluster.placement import VACANT
from greenstalk_server.cluster.shard_move import MoveRefused, role_of

if TYPE_CHECKING:
    from greenstalk_server.cluster.membership import Membership

VACANT_FOR: Final = 5
"""Leases for which a shard must be vacant before it is reported: a takeover and a restart take less time.

Shards that have been vacant for one lease less are reported with it: they may have lost their owners at the same time.
"""

SPARE_STANDBY_FOR: Final = 2
SPARE_OWNER_FOR: Final = 4
"""Leases after which an extra server that is not needed ends, as a standby, or moves its shard, as an owner."""

REPORT_INTERVAL: Final = 1.0
"""Seconds between two reports."""

MAX_REPORTED: Final = 64
"""Shards in a report. The others follow in later ones."""

MAX_GAP: Final = 2.0
"""Maximum seconds between two reads of the membership; after a longer gap, all measured times start again."""

log = logging.getLogger(__name__)


class ExtraServers:
    """Reports vacant shards to the parent, and ends this server if it is an extra one that is not needed.

    The caller must call `look` after each read of the membership.
    """

    def __init__(
        self, membership: Membership, lease: float, report: Callable[[bytes], None], end: Callable[[], None] | None
    ) -> None:
        """*lease* is in seconds. *end* ends this server; None unless it is an extra one."""
        self._membership: Membership = membership
        self._lease: float = lease
        self._report: Callable[[bytes], None] = report
        self._end: Callable[[], None] | None = end
        self._looked_at: float = 0.0
        self._reported_at: float = 0.0
        self._vacant_since: dict[int, float] = {}
        self._spare_since: float = 0.0

    def look(self) -> None:
        """Report vacant shards. If this is an extra server that is not needed, end it, or move its shard.

        Switches; raise OSError.
        """
        now, snapshot = self._membership.read_at, self._membership.snapshot
        if now - self._looked_at > MAX_GAP:
            self._vacant_since, self._spare_since = {}, now
        self._looked_at = now
        vacant = [n for n, each in enumerate(snapshot.shards) if each.is_free and not snapshot.followers(n)]
        self._vacant_since = {shard: self._vacant_since.get(shard, now) for shard in vacant}
        before = now - VACANT_FOR * self._lease
        if min(self._vacant_since.values(), default=now) < before and now - self._reported_at > REPORT_INTERVAL:
            self._reported_at = now
            found = [shard for shard, since in self._vacant_since.items() if since < before + self._lease]
            self._report(VACANT + json.dumps(found[:MAX_REPORTED]).encode())
        if self._end is not None:
            self._end_if_spare(self._end, now)

    def _end_if_spare(self, end: Callable[[], None], now: float) -> None:
        snapshot, standbys = self._membership.snapshot, self._standbys()
        leads = self._membership.me in [each.holder for each in snapshot.shards]
        if any(each.is_free for each in snapshot.shards) or (leads and not standbys):
            self._spare_since = now
        elif not leads and now - self._spare_since > SPARE_STANDBY_FOR * self._lease:
            log.info("this extra server is not needed: all shards have owners; it ends")
            self._end = None
            end()
        elif leads and now - self._spare_since > SPARE_OWNER_FOR * self._lease:
            self._move_to(standbys)

    def _standbys(self) -> Sequence[str]:
        """Return the ids of the servers that lead no shard, followers of the shard of this one first."""
        snapshot, shard = self._membership.snapshot, self._membership.shard
        found = [each for each in snapshot.processes if role_of(snapshot, each)[0] == "follows"]
        return [
            each.id for each in sorted(found, key=lambda each: each.shard != shard) if each.id != self._membership.me
        ]

    def _move_to(self, standbys: Sequence[str]) -> None:
        """Have a standby take the shard of this server, unless one was asked before."""
        shard = self._membership.shard
        assert shard is not None
        wanted = {each.id: each.wanted for each in self._membership.snapshot.processes}
        free = [id for id in standbys if wanted[id] is None]
        if free and shard not in [wanted[id] for id in standbys]:
            log.info("this extra server is not needed: moving shard %d to process %s", shard, free[0])
            with suppress(MoveRefused):  # the standby has begun to lead a shard
                self._membership.request_move(shard, free[0])
