"""Policies whose tubes are on different shards."""

from __future__ import annotations

import pytest

from greenstalk_server.core.operations import policy_changes
from greenstalk_server.core.policies.policy import PolicyError, parse_policy
from greenstalk_server.core.tube_shards import Pin
from tests.support.shards import Front, Shards, tube_on

HERE, SAME_SHARD, THERE = (name.decode() for name in (tube_on(0, 0), tube_on(0, 1), tube_on(1)))


def set_policy(queue: Shards, **document: object) -> None:
    for shard in queue.shards:
        policy_changes.set_policy(shard.broker, parse_policy("p", document), queue.now)


def put(client: Front, tube: str) -> bytes:
    return client.send(b"put-in-tube %b 0 0 60 1\r\nx\r\n" % tube.encode())


FULL: dict[str, object] = {"max_jobs": 1, "overflow": "dead-letter-oldest"}


@pytest.mark.parametrize(("key", "value", "more"), [("copy_to", [SAME_SHARD, THERE], {}), ("dead_letter", THERE, FULL)])
def test_a_policy_across_shards_is_refused_with_the_pin_that_allows_it(
    key: str, value: object, more: dict[str, object]
) -> None:
    document = {"tubes": ["any*", HERE], key: value, **more}
    with pytest.raises(PolicyError) as found:
        set_policy(Shards(), **document)
    assert found.value.key == key
    assert str(found.value) == (
        f"policy p: {key} {THERE}: {THERE} is on shard 1, and {HERE} on shard 0; to have both on one shard,"
        f" start with --pin {HERE},{THERE}=0"
    )
    set_policy(Shards(pins=[Pin((HERE, THERE), 0)]), **document)
    set_policy(Shards(count=1), **document)
    set_policy(Shards(), **document | {key: SAME_SHARD if key == "dead_letter" else [SAME_SHARD]})


def test_a_put_whose_copy_would_be_on_another_shard_is_refused_and_counted() -> None:
    queue = Shards()
    set_policy(queue, tubes=["t*"], copy_to=[THERE])
    client = queue.client(0)
    assert put(client, HERE) == b"OUT_OF_MEMORY\r\n"
    assert put(client, THERE).startswith(b"INSERTED")
    assert queue.shards[0].broker.limit_counters.counts()["shards"] == 1
    assert len(queue.shards[0].broker.jobs) == 0


def test_a_put_that_would_push_a_job_out_to_another_shard_is_refused_and_counted() -> None:
    queue = Shards()
    set_policy(queue, tubes=["t*"], dead_letter=THERE, **FULL)
    client = queue.client(2)
    assert put(client, HERE).startswith(b"INSERTED")
    assert put(client, HERE) == b"OUT_OF_MEMORY\r\n"
    assert queue.shards[0].broker.limit_counters.counts()["shards"] == 1
    assert THERE.encode() not in queue.shards[0].broker.tubes
