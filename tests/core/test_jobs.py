"""JobTable compared with a plain dict, and iteration over ids while the table changes."""

from __future__ import annotations

from random import Random

import pytest

from greenstalk_server.core.jobs.id_sequence import ID_END, IdSequence
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.jobs.job_table import DENSE, PAGE, SPARSE, JobTable
from greenstalk_server.core.tubes.tube import Tube

TUBE = Tube(b"t", {})


def job(id: int) -> Job:
    return Job(id, TUBE, b"", 0, 0, 1, 0)


def table_of(ids: range, sequence: IdSequence | None = None) -> JobTable:
    table = JobTable(sequence) if sequence is not None else JobTable()
    for id in ids:
        table[id] = job(id)
    return table


FIRST_IDS = (1, PAGE - 30, 3 * PAGE, SPARSE - 1, SPARSE, 5 * SPARSE)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share_kept", [0.1, 0.5, 0.9])
def test_table_behaves_like_a_dict(seed: int, share_kept: float) -> None:
    """Ids are dense or sparse, and increase or not."""
    random, table, plain = Random(seed), JobTable(), dict[int, Job]()  # noqa: S311
    width = random.choice((40, PAGE, SPARSE))
    for step in range(20_000):
        id = random.choice(FIRST_IDS) + random.randrange(width) + (step // 4 if seed % 2 else 0)
        if id in plain and random.random() > share_kept:
            del table[id], plain[id]
        else:
            table[id] = plain[id] = job(id)
        assert len(table) == len(plain) and bool(table) == bool(plain)
        if step % 2000 == 0:
            assert dict(table) == plain
            assert list(table.ids_above(PAGE)) == sorted(id for id in plain if id > PAGE)
    assert dict(table) == plain and set(table.values()) == set(plain.values())
    assert table.keys() & {1, SPARSE} == plain.keys() & {1, SPARSE}
    assert [table.get(id) for id in range(SPARSE + 50)] == [plain.get(id) for id in range(SPARSE + 50)]


@pytest.mark.parametrize("ids", [range(1, 3 * PAGE), range(5 * SPARSE, 0, -PAGE)])
def test_cleared_table_can_be_used_again(ids: range) -> None:
    table = table_of(ids)
    table.clear()
    assert len(table) == 0 and not table and list(table.values()) == []
    assert all(table.get(id) is None for id in ids)
    for id in ids:
        table[id] = job(id)
    assert dict(table).keys() == set(ids) and len(table) == len(ids)


@pytest.mark.parametrize("id", [1, SPARSE, 2**63])
def test_unknown_id_raises_key_error(id: int) -> None:
    table = table_of(range(2, 5))
    assert table.get(id) is None and id not in table and table.pop(id, None) is None
    with pytest.raises(KeyError):
        table[id]
    with pytest.raises(KeyError):
        del table[id]
    assert len(table) == 3


@pytest.mark.parametrize("ids", [range(1, 40 * SPARSE, SPARSE // 2), range(40 * SPARSE, 0, -PAGE), range(1, 9 * PAGE)])
def test_empty_table_keeps_no_pages(ids: range) -> None:
    table = JobTable()
    for id in ids:
        table[id] = job(id)
        table[id + 1] = job(id + 1)
        del table[id], table[id + 1]
    assert not table._sparse and len(table._pages) <= 1  # the page for new ids


def test_sparse_table_takes_little_memory() -> None:
    table = table_of(range(1, 100 * PAGE))
    for id in range(1, 99 * PAGE):
        if id % 100:
            del table[id]
    assert len(table._pages) <= 2
    assert list(table.ids_above(0))[:50] == list(range(100, 5001, 100))


def test_dense_late_jobs_take_little_memory() -> None:
    """In a journal, a copy of an old job follows later jobs, so recovery adds ids out of order."""
    table = table_of(range(5 * SPARSE, 5 * SPARSE + 10))
    for id in range(SPARSE, 3 * SPARSE):
        table[id] = job(id)
    assert sum(len(jobs) for jobs in table._sparse.values()) < DENSE
    assert list(table.ids_above(0)) == [*range(SPARSE, 3 * SPARSE), *range(5 * SPARSE, 5 * SPARSE + 10)]


def test_iteration_over_ids_survives_changes() -> None:
    """The iteration yields each job that exists throughout exactly once, and ends, while jobs are put and deleted."""
    table, seen, last = table_of(range(1, 3 * SPARSE)), [], 3 * SPARSE
    for id in table.ids_above(0):
        seen.append(id)
        table.pop(id - 1, None)
        table.pop(last - 2 * id, None)
        table[last + id] = job(last + id)
    present = {id for id in range(1, 3 * SPARSE) if id in table}
    assert present <= set(seen) and len(seen) == len(set(seen)) and len(seen) < 4 * SPARSE


# A shard among others


@pytest.mark.parametrize("shards", [1, 2, 3, 16, 1024])
@pytest.mark.parametrize(("base", "place"), [(0, "first"), (3 * PAGE + 1, "first"), (3 * PAGE + 1, "last")])
def test_table_of_a_shard_behaves_like_a_dict(shards: int, base: int, place: str) -> None:
    """The ids are own ones, foreign ones, and ones below the base."""
    random = Random(shards + base)  # noqa: S311
    sequence = IdSequence(base, shards, 0 if place == "first" else shards - 1)
    table, plain, own = JobTable(sequence), dict[int, Job](), sequence.next_after(0)
    for step in range(20_000):
        match random.randrange(4):
            case 0 | 1:
                id, own = own, own + shards
            case 2:
                id = random.randrange(1, base + PAGE * shards)
            case _:
                id = random.choice([*plain] if step % 100 == 0 else [own - shards * random.randrange(1, 900), 1])
        if id in plain and random.random() > 0.3:
            del table[id], plain[id]
        elif id > 0:
            table[id] = plain[id] = job(id)
        assert len(table) == len(plain)
        if step % 2000 == 0:
            assert table.foreign == sum(
                sequence.home(id) != sequence.shard if id >= base else sequence.shard > 0 for id in plain
            )
            above = random.choice((0, base, own // 2))
            assert dict(table) == plain
            assert list(table.ids_above(above)) == sorted(id for id in plain if id > above)
    assert set(table.values()) == set(plain.values())
    assert [table.get(id) for id in range(5000)] == [plain.get(id) for id in range(5000)]
    for id in [*plain]:
        del table[id]
    assert not table._sparse and len(table._pages) <= 1 and not table.foreign


@pytest.mark.parametrize("shards", [2, 4, 1024])
def test_pages_of_a_shard_are_dense(shards: int) -> None:
    table = table_of(range(base := 10 * PAGE, base + 20 * PAGE * shards, shards), IdSequence(base, shards, 0))
    assert len(table._pages) == 20 and not table._sparse


def test_jobs_of_the_queue_from_before_are_dense() -> None:
    table = table_of(range(1, 20 * PAGE), IdSequence(20 * PAGE, 4, 0))
    assert len(table._pages) == 20 and not table._sparse


def test_foreign_id_far_above_does_not_affect_own_pages() -> None:
    table = JobTable(IdSequence(0, 4, 1))
    table[ID_END - 1] = job(ID_END - 1)
    for id in range(1, 40 * PAGE, 4):
        table[id] = job(id)
    assert len(table._pages) == 10 and len(table) == 10 * PAGE + 1
    assert list(table.ids_above(40 * PAGE - 4)) == [40 * PAGE - 3, ID_END - 1]


def test_no_id_of_a_client_finds_the_job_of_another_id() -> None:
    """The slots of ids that no server assigns differ from those of all jobs."""
    sequence = IdSequence(0, 4, 1)
    table = table_of(range(1, 100), sequence)
    for shift in range(53, 66):
        assert all(table.get((2**shift + low) * factor) is None for low in range(100) for factor in (1, 4))
        assert all(table.get((2**shift - 2**53 + low) * 4 + 1) is None for low in range(1000) if shift > 53)
