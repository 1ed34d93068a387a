"""Tags in the journal: their size, and their state after restarts, compaction, failed writes and power loss."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from greenstalk_server.core import job_attributes
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import DEFAULT_COLD_STATE, SECOND
from greenstalk_server.core.operations import connecting, finishing, putting, ticking
from greenstalk_server.core.tags.idempotency import scope_of
from greenstalk_server.core.tags.tags import TaggedJob, Tags
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal import record
from greenstalk_server.journal.files import Directory
from tests.journal.disk import Chance, Disk, seeded
from tests.journal.tagged_workload import TaggedBench
from tests.journal.test_ruled_restart import jobs_of, kept_keys_of, orders_of
from tests.journal.workload import Bench, JobSnapshot, recovered
from tests.support import invariants
from tests.support.world import START

LONGEST = b"k" * 200
ALL = Tags(LONGEST, 2**32 * SECOND - SECOND, LONGEST, b"a" * 200, LONGEST, 2**32 - 1)


@pytest.fixture(autouse=True)
def ignore_warnings(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Suppress warnings: the starts of these tests would log thousands of torn tails."""
    with caplog.at_level(logging.ERROR):
        yield


def fields_of(tags: Tags) -> tuple[object, ...]:
    keys = (tags.idempotency_key, tags.idempotency_ttl, tags.group, tags.after)
    return (*keys, tags.concurrency_key, tags.concurrency_limit)


@pytest.mark.parametrize(
    "tags",
    [
        Tags(b"k"),
        Tags(LONGEST),
        Tags(b"k", SECOND // 2),
        Tags(group=b"g"),
        Tags(after=b"g"),
        Tags(concurrency_key=b"c", concurrency_limit=1),
        Tags(concurrency_key=b"c", concurrency_limit=7),
        ALL,
    ],
)
def test_tags_survive_their_encoding(tags: Tags) -> None:
    job = TaggedJob(1, Tube(b"t", {}), b"", 0, 0, SECOND, START, tags.packed())
    found = job_attributes.tags_in(job_attributes.encode(job))
    assert found is not None and fields_of(found) == fields_of(tags)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x05\x00",
        b"\x05\x02k",
        b"\x05\x01*",
        b"\x06\x08" + bytes(8),
        b"\x0a\x04" + bytes(4),
        b"\x07\x01-",
        b"\x09\xc9" + b"k" * 201,
        b"\xff\x01k",
    ],
)
def test_attributes_without_a_sound_tag_make_a_plain_job(data: bytes) -> None:
    assert job_attributes.tags_in(data) is None


def test_ttl_without_a_key_and_limit_without_a_key_are_ignored() -> None:
    found = job_attributes.tags_in(b"\x06\x08" + b"\x01" * 8 + b"\x0a\x04" + b"\x01" * 4 + b"\x07\x01g")
    assert found is not None and fields_of(found) == (b"", 0, b"g", b"", b"", 0)


def test_job_with_a_key_alone_needs_no_cold_state() -> None:
    bench = TaggedBench(Disk(), seeded(0))
    putting.put_tagged(bench.broker, bench.clients[0], b"t", 1, 0, 0, SECOND, b"body", Tags(b"k"), bench.now)
    job = bench.broker.jobs[1]
    assert job.cold is DEFAULT_COLD_STATE
    assert record.recorded_size(job) == record.job_size(job) + 3 + 3
    assert bench.commit()
    again = recovered(bench.disk, bench.now).jobs[1]
    assert isinstance(again, TaggedJob) and again.tags == b"k"
    assert again.cold is DEFAULT_COLD_STATE
    assert JobSnapshot.of(again) == JobSnapshot.of(job)


def groups_of(broker: Broker) -> dict[bytes, tuple[int, list[int], list[int]]]:
    """Return the members, the counts by state and the waiting jobs of each group."""
    return {name: (group.members, group.counts, group.waiting.ids()) for name, group in sorted(broker.groups.items())}


def holders_of(broker: Broker) -> dict[tuple[bytes, bytes], int]:
    """Return the job that holds each idempotency key, by tube and key."""
    tubes = [tube for tube in broker.tubes.values() if tube.idempotency is not None]
    return {(tube.name, key): job.id for tube in tubes for key, job in tube.idempotency.holders.items()}  # type: ignore[union-attr]


def limits_of(broker: Broker) -> dict[bytes, tuple[int, int]]:
    """Return the number of jobs and the limit of each concurrency key."""
    return {name: (key.jobs, key.limit) for name, key in broker.concurrency_keys.items()}


def rest(bench: TaggedBench) -> None:
    """Disconnect all clients, and tick until nothing is due."""
    for client in bench.clients:
        connecting.disconnect(bench.broker, client, bench.now)
    due: int | None = bench.now
    while due is not None and due <= bench.now:
        bench.now += 1
        due = ticking.tick(bench.broker, bench.now)


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_restart_restores_groups_and_keys(tmp_path: Path, seed: int, is_compacted: bool) -> None:
    files = Directory(str(tmp_path))
    bench = TaggedBench(cast(Disk, files), seeded(seed))
    for _ in range(90):
        bench.step()
        invariants.check(bench.broker)
    rest(bench)
    assert bench.commit()
    if is_compacted:
        bench.settle()
        assert bench.journal.stats().records_migrated > 0
    before, after = bench.broker, recovered(files, bench.now)
    invariants.check(after)
    while (due := ticking.tick(after, bench.now)) is not None and due <= bench.now:
        pass
    invariants.check(after)
    assert len(before.groups) + len(before.concurrency_keys) > 3
    assert jobs_of(after, bench.now) == jobs_of(before, bench.now)
    assert orders_of(after) == orders_of(before)
    assert groups_of(after) == groups_of(before)
    assert holders_of(after) == holders_of(before)
    assert limits_of(after) == limits_of(before)
    assert kept_keys_of(after, bench.now) == kept_keys_of(before, bench.now)


@pytest.mark.parametrize("id_before", [0, 10**6], ids=["free before", "kept before"])
def test_deletion_that_is_torn_after_its_key_undoes_the_key(id_before: int) -> None:
    """The KEY record of the deletion is on disk, its DELETE record is not, and an operator deletes the job later.

    *id_before*: a finished job whose key was kept before, 0 if there is none.
    """
    tags = Tags(b"k", 1000 * SECOND)
    bench = Bench(Disk(), seeded(1))
    client, scope, until = connecting.connect(bench.broker, lambda: None), scope_of(b"default"), START + 500 * SECOND
    assert putting.put_tagged(bench.broker, client, b"", 1, 0, 0, SECOND, b"", tags, START) == 1
    if id_before:
        bench.journal.key(scope, b"k", id_before, until)
    bench.journal.key(scope, b"k", 1, START + 1000 * SECOND)
    assert bench.commit()
    for is_deleted in (False, True):
        bench = Bench(bench.disk.crash(Chance(seeded(1), 1.0)), seeded(1))
        assert (1 in bench.broker.jobs) != is_deleted
        assert kept_keys_of(bench.broker, START) == ({(scope, b"k"): (id_before, until)} if id_before else {})
        if not is_deleted:
            assert finishing.delete_job(bench.broker, 1, START)
            assert bench.commit()
