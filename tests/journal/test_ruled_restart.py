"""A restart, with or without compaction before it, shows the same jobs, keys and policies. It uses real files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY
from greenstalk_server.journal.files import Directory
from tests.journal.disk import Disk, seeded
from tests.journal.ruled_workload import DOCUMENTS, RuntimeBench
from tests.journal.workload import JobSnapshot, recovered
from tests.support import invariants

UNIQUE: tuple[dict[str, Any], ...] = (
    {"tubes": ["mail"], "unique": "body", "unique_for": 20},
    {"tubes": ["*"], "unique": "body", "unique_for": "waiting", "priority": -1},
    {"tubes": ["default"], "unique": "body"},
)


class UniqueBench(RuntimeBench):
    """A bench whose policies also require unique bodies of jobs that exist already."""

    documents = (*DOCUMENTS, *UNIQUE)


def jobs_of(broker: Broker, now: int) -> dict[int, JobSnapshot]:
    """Return the state of each job after a restart, without its unique key: compare keys with `holders_of`."""
    return {
        id: replace(JobSnapshot.of(job).after_restart(now), unique_key=b"") for id, job in sorted(broker.jobs.items())
    }


def orders_of(broker: Broker) -> dict[bytes, list[list[int]]]:
    """Return the ids of the ready, delayed and buried jobs, in order, of each tube that has some."""
    orders = {
        tube.name: [[job.id for job in tube.walk(state)] for state in (READY, DELAYED, BURIED)]
        for tube in broker.tubes.values()
    }
    return {name: order for name, order in sorted(orders.items()) if any(order)}


def holders_of(broker: Broker) -> dict[tuple[bytes, bytes], set[int]]:
    """Return the jobs that hold each unique key, by tube and key."""
    return {
        (tube.name, key): {id, *tube.policy_state.other_holders.get(key, ())}
        for tube in broker.tubes.values()
        if tube.policy_state is not None and tube.policy_state.keys is not None
        for key, id in tube.policy_state.keys.items()
    }


def kept_keys_of(broker: Broker, now: int) -> dict[tuple[bytes, bytes], tuple[int, int]]:
    return {at: value for at, value in broker.retained_keys.table.items() if value[1] > now}


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_restart_shows_the_same_jobs_keys_and_policies(tmp_path: Path, seed: int, is_compacted: bool) -> None:
    files = Directory(str(tmp_path))
    bench = UniqueBench(cast(Disk, files), seeded(seed))
    for _ in range(60):
        bench.step()
    bench.rest()
    assert bench.commit()
    if is_compacted:
        bench.settle()
        assert bench.journal.stats().records_migrated > 0
    before, after = bench.broker, recovered(files, bench.now)
    invariants.check(after)
    assert len(before.jobs) > 3
    assert jobs_of(after, bench.now) == jobs_of(before, bench.now)
    assert orders_of(after) == orders_of(before)
    assert holders_of(after) == holders_of(before)
    assert kept_keys_of(after, bench.now) == kept_keys_of(before, bench.now)
    assert after.policies.policies == before.policies.policies
    assert after.next_id > max(bench.history.jobs)  # a duplicate's own id has no record, and no reply contains it
