"""The list of tube names: a snapshot that does not change, and that is cheap to create with any number of tubes."""

from __future__ import annotations

import random
import time
from typing import Any

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.operations import connecting
from greenstalk_server.core.tubes.name_list import CHUNK_SIZE, NameBudget, TubeNames


def test_list_is_cheap_with_many_tubes(broker: Broker) -> None:
    """Copying the names of 50,000 tubes and adding up their lengths would take 1 ms."""
    for number in range(50_000):
        broker.tube(b"tube-%d" % number)
    times = []
    for number in range(20):
        broker.tube(b"new-%d" % number)
        started_at = time.perf_counter()
        names = broker.name_list()
        times.append(time.perf_counter() - started_at)
    assert min(times) < 0.00025
    assert names.size == len("---\n") + sum(len(name) + len("- \n") for name in broker.tubes)


def test_list_has_the_tubes_in_the_order_of_creation(broker: Broker) -> None:
    client = connecting.connect(broker, lambda: None)
    for number in range(3 * CHUNK_SIZE):
        connecting.watch(broker, client, b"tube-%d" % number)
    for number in range(0, 3 * CHUNK_SIZE, 2):
        connecting.ignore(broker, client, b"tube-%d" % number)
    assert broker.name_list().names() == list(broker.tubes)
    assert len(broker.name_list().names()) == 3 * CHUNK_SIZE // 2 + 1


def test_lists_do_not_change_after_their_creation() -> None:
    """Names are added and removed at random; each list is compared with a plain dict."""
    chance = random.Random(1)  # noqa: S311  not for security
    names, plain, chunks = TubeNames(NameBudget()), dict[bytes, None](), dict[bytes, Any]()
    lists = []
    for number in range(20_000):
        if plain and chance.random() < (0.3 if number < 10_000 else 0.6):
            name = chance.choice(list(plain)) if number % 100 == 0 else next(reversed(plain))
            del plain[name]
            names.remove(name, chunks.pop(name))
        else:
            name = b"%d" % number
            plain[name] = None
            chunks[name] = names.add(name)
        if number % 1000 == 0:
            lists.append((names.list(), list(plain)))
    for listed, expected in lists:
        assert listed.names() == expected
        assert listed.count == len(expected)
        assert listed.size == len("---\n") + sum(len(name) + len("- \n") for name in expected)
        assert all(0 < len(chunk) <= CHUNK_SIZE for chunk in listed.chunks)
