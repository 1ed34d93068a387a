"""What long work leaves to the garbage collector: little, each time."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import gevent
import pytest

from greenstalk_server.broker import SLICE, Broker
from greenstalk_server.job import SECOND, Job
from greenstalk_server.journal import NullJournal
from greenstalk_server.memory import SLICES
from greenstalk_server.process import server_facts
from greenstalk_server.server import Ticker
from tests.daemon import PATIENCE

JOBS = 4 * SLICES * SLICE


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(JOBS, 1, 1_000_000_000)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("thresholds")
def test_lists_of_jobs_that_fell_due_at_once_are_looked_at_before_they_are_many() -> None:
    """They are few objects, so the collector would wait until they hold a million jobs, and then take long."""
    broker = Broker(server_facts(started_at=0), NullJournal(0), 65535)
    client = broker.connect(lambda: None)
    for _ in range(JOBS):
        broker.put(client, broker.allocate_id(), 0, SECOND, SECOND, b"", 0)
    gc.collect(1)
    ticker = Ticker(broker, lambda: SECOND)
    ticker.start()
    with gevent.Timeout(PATIENCE):
        while client.used.ready.count < JOBS:
            gevent.sleep(0.001)
    ticker.stop()
    young = [one for generation in (0, 1) for one in gc.get_objects(generation) if type(one) is list]
    assert sum(len(one) for one in young if one and type(one[0]) is Job) <= SLICES * SLICE
