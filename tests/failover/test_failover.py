"""A short run of `make failover-test`, and PostgreSQL's own failover."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.failover.rounds import HANGS, KILLED, WAKES, Promotions, Rounds, summary
from tests.support.cluster import Cluster

SEED = 22

SELDOM_LOCKED: Final = ("greenstalk_batch", "greenstalk_standby", "greenstalk_schema")
"""Tables that no server needs to renew its lease; `make failover-test` locks them too."""


LONGEST: Final = 8.0
"""Seconds without service that a round may take on a busy machine: PostgreSQL's own timeouts take longer."""


def test_takeovers_lose_no_acknowledged_change(cluster: Cluster, tmp_path: Path) -> None:
    rounds = Rounds(cluster, tmp_path, SEED)
    try:
        rounds.begin()
        for kind in [kind for kind in rounds.kinds if not kind.endswith(SELDOM_LOCKED)]:
            report = rounds.run(kind)
            print(report)
            assert report.gap < LONGEST
        rounds.finish()
        print(summary(rounds.reports), rounds.history.acknowledged, "acknowledgements")
    finally:
        rounds.close()


def test_promotion_of_the_database_standby_loses_no_acknowledged_change(tmp_path: Path) -> None:
    """The old primary may continue later, beside the new one; without its standby it cannot commit."""
    rounds = Promotions(tmp_path, SEED)
    try:
        rounds.begin()
        for way in (KILLED, HANGS, WAKES):
            report = rounds.run(way)
            print(report)
            assert report.gap < LONGEST
        rounds.finish()
    finally:
        rounds.close()
