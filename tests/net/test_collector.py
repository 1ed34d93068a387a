"""Garbage collection: jobs are untracked, many old objects are frozen, and old garbage is freed."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import gevent
import pytest
from gevent import get_hub

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.runtime import gc_tuning
from greenstalk_server.runtime.gc_tuning import MAX_UNFROZEN, MIN_TRIM, UPKEEP_INTERVAL, Upkeep, collect_old, tune_gc
from greenstalk_server.runtime.memory import resident_bytes
from tests.support.daemon import REPOSITORY, TIMEOUT

JOBS = 10_000
BATCH = 100


UNTRACKED = f"""
import gc
import sys

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.operations import connecting, putting, ticking
from greenstalk_server.runtime.process import server_facts

broker = Broker(server_facts(started_at=0))
client = connecting.connect(broker, lambda: None)
for _ in range({JOBS}):
    putting.put(broker, client, broker.allocate_id(), 0, int(sys.argv[1]), {SECOND}, b"", 0)
while (due := ticking.tick(broker, {SECOND})) is not None and due <= {SECOND}:
    pass
assert client.used.ready.count == {JOBS}
assert not any(gc.is_tracked(job) for job in broker.jobs.values())
lists = [one for one in gc.get_objects() if type(one) is list and one and isinstance(one[0], Job)]
assert 0 < sum(len(one) for one in lists if broker.jobs.get(one[0].id) is one[0]) < {JOBS} / 20
"""
"""Runs in a process of its own: the collector of the tests tracks jobs."""


@pytest.mark.parametrize("delay", [0, SECOND])
def test_jobs_and_long_lists_of_jobs_are_untracked(delay: int) -> None:
    subprocess.run([sys.executable, "-c", UNTRACKED, str(delay)], check=True, cwd=REPOSITORY, timeout=TIMEOUT)


class Cycle:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.reference = self


@pytest.fixture
def tuned() -> Iterator[None]:
    before, callbacks = gc.get_threshold(), list(gc.callbacks)
    tune_gc()
    gc.collect(1)
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*before)
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # as tests/conftest.py does


def age_objects() -> None:
    """Move all objects to the oldest generation."""
    for _ in range(3):
        gc.collect(1)
    gevent.sleep(0)  # a callback in the hub freezes old objects


@pytest.mark.usefixtures("tuned")
def test_old_garbage_is_freed() -> None:
    cycle = Cycle()
    seen = weakref.ref(cycle)
    age_objects()
    assert any(one is cycle for one in gc.get_objects(2))
    del cycle
    age_objects()
    assert seen() is not None
    collect_old()
    assert seen() is None


def let_upkeep_run() -> None:
    """The pause of Upkeep may end in the same iteration of the loop as the first sleep. It runs in the next one."""
    gevent.sleep(2 * UPKEEP_INTERVAL)
    gevent.sleep(UPKEEP_INTERVAL)


@pytest.fixture
def upkeep(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Upkeep that collects and checks in each of its runs."""
    monkeypatch.setattr(gc_tuning, "COLLECTION_INTERVAL", 0)
    monkeypatch.setattr(gc_tuning, "CHECK_SHARE", 0)
    monkeypatch.setattr(gc_tuning, "CHECK_CPU_SHARE", 0)
    running = Upkeep()
    running.start()
    yield
    running.stop()


@pytest.mark.usefixtures("tuned", "upkeep")
def test_young_objects_are_collected_even_if_as_many_old_ones_are_freed() -> None:
    cycles = [Cycle() for _ in range(10 * BATCH)]
    let_upkeep_run()
    for at in range(0, len(cycles), BATCH):
        cycles[at : at + BATCH] = [Cycle() for _ in range(BATCH)]
        let_upkeep_run()
        assert sum(type(one) is Cycle for one in gc.get_objects(0)) == 0


@pytest.mark.linux_form
@pytest.mark.usefixtures("upkeep")
def test_memory_is_returned_in_portions_while_it_becomes_free() -> None:
    size, kept = 1000, 0
    blocks = [bytes(size) for _ in range(20 * MIN_TRIM // size // 4)]
    above = bytes(size)  # else glibc returns the memory at the end of the heap itself
    let_upkeep_run()
    used = resident_bytes() - size * len(blocks)
    while blocks:
        del blocks[-(MIN_TRIM // size // 4) :]
        let_upkeep_run()
        kept = max(kept, resident_bytes() - size * len(blocks) - used)
    assert MIN_TRIM / 2 < kept < 2 * MIN_TRIM
    assert above


@pytest.mark.usefixtures("upkeep")
def test_heap_is_not_checked_while_the_server_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    free_bytes, checks = Upkeep._free_bytes, 0

    def counted(upkeep: Upkeep) -> int:
        nonlocal checks
        checks += 1
        return free_bytes(upkeep)

    monkeypatch.setattr(Upkeep, "_free_bytes", counted)
    let_upkeep_run()
    assert checks
    monkeypatch.setattr(gc_tuning, "CHECK_CPU_SHARE", 10**9)
    let_upkeep_run()  # the check that sets the time of the next one
    checks = 0
    for _ in range(3):
        let_upkeep_run()
    assert not checks


def test_event_in_an_idle_server_wakes_it_up_once() -> None:
    iterations, events = 0, 20

    def count() -> None:
        nonlocal iterations
        iterations += 1

    running, watcher = Upkeep(), get_hub().loop.check(ref=False)
    running.start()
    watcher.start(count)
    for _ in range(events):
        gevent.sleep(2 * UPKEEP_INTERVAL)
    running.stop()
    watcher.close()
    assert events <= iterations < 1.5 * events


@pytest.mark.usefixtures("tuned")
def test_many_old_objects_are_frozen() -> None:
    cycles = [Cycle() for _ in range(MAX_UNFROZEN // 4)]
    age_objects()
    assert sum(type(one) is Cycle for one in gc.get_objects(2)) == len(cycles)
    cycles += [Cycle() for _ in range(MAX_UNFROZEN)]
    age_objects()
    assert sum(type(one) is Cycle for one in gc.get_objects()) < len(cycles)
    assert len(gc.get_objects(2)) <= MAX_UNFROZEN


@pytest.mark.usefixtures("tuned")
def test_garbage_is_freed_before_old_objects_are_frozen() -> None:
    cycle = Cycle()
    seen = weakref.ref(cycle)
    age_objects()
    del cycle
    cycles = [Cycle() for _ in range(MAX_UNFROZEN + 1)]
    age_objects()
    assert seen() is None
    assert sum(type(one) is Cycle for one in gc.get_objects()) < len(cycles)


@pytest.mark.usefixtures("tuned")
def test_slow_collection_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cycle = Cycle()
    monkeypatch.setattr(gc_tuning, "SLOW_COLLECTION", 60.0)
    collect_old()
    assert any(one is cycle for one in gc.get_objects(2))
    monkeypatch.setattr(gc_tuning, "SLOW_COLLECTION", 0.0)
    collect_old()
    assert not any(one is cycle for one in gc.get_objects(2))
