"""The scopes of keys in a queue of several shards: one pin, or one tube."""

from __future__ import annotations

import pytest

from greenstalk_server.core.tube_shards import Pin, TubeShards, parse_pins
from tests.support.shards import SHARDS, Front, Shards, tube_on

ONE, SAME_SHARD = tube_on(0, 0), tube_on(0, 1)
PIN = Pin(("work.*", "failed"), 2)


def put(client: Front, tube: bytes, tags: bytes) -> int:
    reply = client.send(b"put-in-tube %b 0 0 60 1 %b\r\nx\r\n" % (tube, tags))
    assert reply.startswith(b"INSERTED"), reply
    return int(reply.split()[1])


def is_ready(client: Front, id: int) -> bool:
    return b"\nstate: ready\n" in client.send(b"stats-job %d\r\n" % id)


def reserve_all(client: Front, *tubes: bytes) -> list[int]:
    """Return the ids of the jobs that can be reserved from *tubes*."""
    for tube in tubes:
        client.send(b"watch %b\r\n" % tube)
    found = []
    while (reply := client.send(b"reserve-with-timeout 0\r\n")).startswith(b"RESERVED"):
        found.append(int(reply.split()[1]))
    return found


def test_an_exact_name_wins_then_the_longer_pattern_then_the_first() -> None:
    shards = TubeShards(8, [Pin(("a*", "*b"), 1), Pin(("*c*", "ab"), 2), Pin(("a.long*", "*d*"), 3)])
    expected = {b"a": 1, b"ab": 2, b"xb": 1, b"xcx": 2, b"ac": 1, b"a.long": 3, b"xcdx": 2, b"xdx": 3}
    assert {name: shards.shard_of(name) for name in expected} == expected
    assert shards.shard_of(b"other") == TubeShards(8).shard_of(b"other")


def test_a_group_counts_within_a_tube_without_a_pin() -> None:
    queue = Shards()
    client = queue.client(1)
    put(client, ONE, b"grp:g")
    assert is_ready(client, put(client, SAME_SHARD, b"aft:g"))
    assert not is_ready(client, put(client, ONE, b"aft:g"))


def test_a_group_counts_within_the_tubes_of_a_pin() -> None:
    queue = Shards(pins=[PIN])
    client = queue.client(0)
    member = put(client, b"work.a", b"grp:g")
    waiting = put(client, b"failed", b"aft:g")
    assert not is_ready(client, waiting)
    assert client.send(b"delete %d\r\n" % member) == b"DELETED\r\n"
    assert is_ready(client, waiting)


def test_a_concurrency_key_counts_within_a_tube_or_a_pin() -> None:
    queue = Shards(pins=[PIN])
    client = queue.client(1)
    apart = [put(client, ONE, b"con:k"), put(client, SAME_SHARD, b"con:k")]
    together = [put(client, b"work.a", b"con:k"), put(client, b"work.b", b"con:k"), put(client, b"failed", b"con:k")]
    assert sorted(reserve_all(client, ONE, SAME_SHARD)) == sorted(apart)
    assert reserve_all(queue.client(2), b"work.a", b"work.b", b"failed") == together[:1]


def test_stats_group_adds_up_the_scopes_of_all_shards() -> None:
    queue = Shards(pins=[PIN])
    client = queue.client(0)
    ids = [put(client, tube, b"grp:g") for tube in (ONE, SAME_SHARD, tube_on(1), b"work.a")]
    put(client, ONE, b"aft:g")
    put(client, b"failed", b"aft:g")
    stats = b"---\nname: g\nready: %d\nreserved: 0\ndelayed: 0\nburied: 0\nwaiting-jobs: %d\n"
    for body in (stats % (4, 2), stats % (3, 1)):
        assert client.send(b"stats-group g\r\n") == b"OK %d\r\n%b\r\n" % (len(body), body)
        client.send(b"delete %d\r\n" % ids.pop())
    for id in ids:
        client.send(b"delete %d\r\n" % id)
    for id in reserve_all(client, ONE, b"failed"):
        client.send(b"delete %d\r\n" % id)
    assert client.send(b"stats-group g\r\n") == b"NOT_FOUND\r\n"


def test_one_shard_keeps_one_scope_for_all_tubes() -> None:
    queue = Shards(count=1)
    client = queue.client(0)
    put(client, b"a", b"grp:g con:k")
    assert not is_ready(client, put(client, b"b", b"aft:g"))
    put(client, b"c", b"con:k")
    assert len(reserve_all(client, b"a", b"c")) == 1


def test_scopes_are_never_confused_with_names() -> None:
    shards = TubeShards(SHARDS, [PIN, Pin(("x",), 0)])
    scopes = [shards.scope_of(name) for name in (b"a", b"a.b", b"work.a", b"failed", b"x")]
    assert scopes == [b"a:", b"a.b:", b"*0:", b"*0:", b"*1:"]


@pytest.mark.parametrize(
    ("text", "pins"),
    [
        ("a=0", [(("a",), 0)]),
        ("mail.*,failed=1,news=2", [(("mail.*", "failed"), 1), (("news",), 2)]),
        (" a , b = 0 ", None),
        ("a", None),
        ("a=1,b", None),
        ("=1", None),
        ("a b=1", None),
        ("a=-1", None),
        ("a=1024", None),
    ],
)
def test_pins_are_patterns_with_a_shard(text: str, pins: list[Pin] | None) -> None:
    if pins is None:
        with pytest.raises(ValueError):  # noqa: PT011  the type of the option has the message
            parse_pins(text)
    else:
        assert list(parse_pins(text)) == pins
        assert ",".join(map(str, parse_pins(text))) == text
