"""The table of jobs against a plain dict, and the walk over all ids while it changes."""

from __future__ import annotations

from random import Random

import pytest

from greenstalk_server.job import Job
from greenstalk_server.jobs import SHARD, JobTable
from greenstalk_server.tube import Tube

TUBE = Tube(b"t", {})


def job(id: int) -> Job:
    return Job(id, TUBE, b"", 0, 0, 1, 0)


def table_of(ids: range) -> JobTable:
    table = JobTable()
    for id in ids:
        table[id] = job(id)
    return table


def test_it_is_a_dict() -> None:
    random, table, plain = Random(1), JobTable(), dict[int, Job]()  # noqa: S311
    for _ in range(20_000):
        id = random.choice((1, SHARD - 1, SHARD, 5 * SHARD)) + random.randrange(40)
        if id in plain and random.random() < 0.5:
            del table[id], plain[id]
        else:
            table[id] = plain[id] = job(id)
        assert len(table) == len(plain) and bool(table) == bool(plain)
    assert dict(table) == plain and set(table.values()) == set(plain.values())
    assert table.keys() & {1, SHARD} == plain.keys() & {1, SHARD}
    assert [table.get(id) for id in range(SHARD + 50)] == [plain.get(id) for id in range(SHARD + 50)]


@pytest.mark.parametrize("id", [1, SHARD, 2**63])
def test_what_is_not_there(id: int) -> None:
    table = table_of(range(2, 5))
    assert table.get(id) is None and id not in table and table.pop(id, None) is None
    with pytest.raises(KeyError):
        table[id]
    with pytest.raises(KeyError):
        del table[id]
    assert len(table) == 3


def test_shards_that_are_empty_take_no_room() -> None:
    table = JobTable()
    for id in range(1, 40 * SHARD, SHARD // 2):
        table[id] = job(id)
        del table[id]
    assert not table._shards


def test_a_walk_over_all_ids_bears_changes() -> None:
    """It has every job that is there all along once, and stops, though jobs are put and deleted between any two."""
    table, seen, last = table_of(range(1, 3 * SHARD)), [], 3 * SHARD
    for id in table.ids_above(0):
        seen.append(id)
        table.pop(id - 1, None)
        table.pop(last - 2 * id, None)
        table[last + id] = job(last + id)
    stayed = {id for id in range(1, 3 * SHARD) if id in table}
    assert stayed <= set(seen) and len(seen) == len(set(seen)) and len(seen) < 4 * SHARD
