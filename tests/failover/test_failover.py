"""A short run of `make failover-test`, and PostgreSQL's own failover."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.failover.rounds import HANDOVER, HANGS, WAKES, Promotions, Rounds, summary
from tests.support.cluster import Cluster

SEED = 22

KINDS: Final = ("SIGKILL", "SIGSTOP", "cut", "power", "dead links", HANDOVER)
"""`make failover-test` also locks tables, and kills a server whose standby has dead connections."""

LONGEST: Final = 8.0
"""Seconds without service that a round may take on a busy machine: PostgreSQL's own timeouts take longer."""


def test_takeovers_lose_no_acknowledged_change(cluster: Cluster, tmp_path: Path) -> None:
    rounds = Rounds(cluster, tmp_path, SEED)
    try:
        rounds.begin()
        for kind in KINDS:
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
        for way in (HANGS, WAKES):
            report = rounds.run(way)
            print(report)
            assert report.gap < LONGEST
        rounds.finish()
    finally:
        rounds.close()
