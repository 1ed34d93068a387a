"""A short run of what `make failover-test` does at length; and PostgreSQL's own failover."""

from __future__ import annotations

import random
import time
from pathlib import Path

from tests.failover.history import Disturbance, History
from tests.failover.nodes import Node, Nodes, wait_until
from tests.failover.rounds import SEGMENT, Load, Rounds
from tests.postgresql.cluster import Cluster

SEED = 22


def test_the_lead_goes_from_server_to_server_and_nothing_acknowledged_is_lost(
    cluster: Cluster, tmp_path: Path
) -> None:
    rounds = Rounds(cluster, tmp_path, SEED)
    try:
        rounds.begin()
        for kind in [*rounds.kinds, None]:
            print(rounds.run(kind))
        rounds.finish()
        print(rounds.summary(), rounds.history.acknowledged, "acknowledgements")
    finally:
        rounds.close()


def test_a_standby_of_the_database_is_promoted_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with Cluster() as primary, Cluster("hot_standby = on", upstream=primary) as standby:
        primary.ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.ask("SELECT pg_reload_conf()")
        wait_until(
            lambda: primary.ask("SELECT sync_state FROM pg_stat_replication") == [("sync",)],
            lambda: f"no synchronous standby: {standby.log}",
        )
        url, history = Cluster.url_by(primary.port, standby.port), History()
        with Nodes([Node(f"node-{number}", url, tmp_path, "-s", SEGMENT) for number in range(2)]) as nodes:
            nodes.wait_for_roles()
            load = Load(nodes, history, str(SEED))
            try:
                load.start()
                load.see_service()
                time.sleep(random.uniform(0.2, 1))  # noqa: S311
                begun = time.monotonic()
                primary.kill()
                standby.promote()
                nodes.wait_for_roles()
                load.see_service()
                ended = time.monotonic()
                history.disturbances.append(Disturbance("promotion", begun, ended))
                print(f"{history.longest_gap(begun, ended):.2f} s without service")
                load.audit()
            finally:
                load.stop()
