"""What the garbage collector looks at, and what it frees."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import gevent
import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import SECOND, Job
from greenstalk_server.runtime import gc_tuning
from greenstalk_server.runtime.gc_tuning import MAX_UNFROZEN, collect_old, tune_gc
from greenstalk_server.runtime.process import server_facts

JOBS = 10_000


@pytest.mark.parametrize("delay", [0, SECOND])
def test_jobs_and_long_lists_of_them_are_none_of_its_business(delay: int) -> None:
    broker = Broker(server_facts(started_at=0))
    client = broker.connect(lambda: None)
    for _ in range(JOBS):
        broker.put(client, broker.allocate_id(), 0, delay, SECOND, b"", 0)
    while (due := broker.tick(SECOND)) is not None and due <= SECOND:
        pass
    assert client.used.ready.count == JOBS
    assert not any(gc.is_tracked(job) for job in broker.jobs.values())
    lists = [one for one in gc.get_objects() if type(one) is list and one and isinstance(one[0], Job)]
    assert 0 < sum(len(one) for one in lists if broker.jobs.get(one[0].id) is one[0]) < JOBS / 20


class Knot:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def settled() -> Iterator[None]:
    before, callbacks = gc.get_threshold(), list(gc.callbacks)
    tune_gc()
    gc.collect(1)
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*before)
    gc.unfreeze()


def grow_old() -> None:
    for _ in range(3):
        gc.collect(1)
    gevent.sleep(0)  # old objects are frozen by a callback in the hub


@pytest.mark.usefixtures("settled")
def test_what_was_in_use_for_long_is_freed_in_the_end() -> None:
    knot = Knot()
    seen = weakref.ref(knot)
    grow_old()
    assert any(one is knot for one in gc.get_objects(2))
    del knot
    grow_old()
    assert seen() is not None
    collect_old()
    assert seen() is None


@pytest.mark.usefixtures("settled")
def test_what_is_old_and_much_is_looked_at_no_more() -> None:
    knots = [Knot() for _ in range(MAX_UNFROZEN // 4)]
    grow_old()
    assert sum(type(one) is Knot for one in gc.get_objects(2)) == len(knots)
    knots += [Knot() for _ in range(MAX_UNFROZEN)]
    grow_old()
    assert sum(type(one) is Knot for one in gc.get_objects()) < len(knots)
    assert len(gc.get_objects(2)) <= MAX_UNFROZEN


@pytest.mark.usefixtures("settled")
def test_garbage_is_freed_before_old_objects_are_frozen() -> None:
    knot = Knot()
    seen = weakref.ref(knot)
    grow_old()
    del knot
    knots = [Knot() for _ in range(MAX_UNFROZEN + 1)]
    grow_old()
    assert seen() is None
    assert sum(type(one) is Knot for one in gc.get_objects()) < len(knots)


@pytest.mark.usefixtures("settled")
def test_what_takes_long_to_look_at_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    knot = Knot()
    monkeypatch.setattr(gc_tuning, "SLOW_COLLECTION", 60.0)
    collect_old()
    assert any(one is knot for one in gc.get_objects(2))
    monkeypatch.setattr(gc_tuning, "SLOW_COLLECTION", 0.0)
    collect_old()
    assert not any(one is knot for one in gc.get_objects(2))
