"""Dropped objects are freed immediately by reference counts.

The server freezes old objects (see runtime/gc_tuning.py), so an old reference cycle would never be freed.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import BURIED, DELAYED, SECOND, ColdState, Job
from greenstalk_server.core.jobs.job_index import JobIndex
from greenstalk_server.core.operations import connecting, editing, finishing, kicking, putting, reserving
from greenstalk_server.core.outcomes import EditOutcome, WaitOutcome
from greenstalk_server.core.transitions import waiting
from greenstalk_server.core.tubes.ready_queue import ReadyQueue
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.core.tubes.tube_set import MANY_TUBES, TubeSet
from tests.support.world import START, make_broker

NAMES = [b"tube-%d" % number for number in range(2 * (MANY_TUBES - 1))]
KINDS = (Client, Job, JobIndex, ColdState, ReadyQueue, Tube, TubeSet)
TTR = 60 * SECOND


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> Counter[str]:
    """Count the live objects of each kind, including those that only the collector would free."""
    return Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, KINDS))


def connect(broker: Broker) -> Client:
    return connecting.connect(broker, lambda: None)


def put(broker: Broker, client: Client, pri: int = 0, delay: int = 0) -> int:
    id = broker.allocate_id()
    assert putting.put(broker, client, id, pri, delay * SECOND, TTR, b"body", START) > 0
    return id


# Operations on a tube: a client uses several tubes in turn, and runs one operation on each


def use(broker: Broker, client: Client) -> None:
    """Do nothing else."""


def put_and_delete(broker: Broker, client: Client) -> None:
    finishing.delete(broker, client, put(broker, client), START)


def delay_and_delete(broker: Broker, client: Client) -> None:
    finishing.delete(broker, client, put(broker, client, delay=1000), START)


def kick_and_delete(broker: Broker, client: Client) -> None:
    id = put(broker, client, delay=1000)
    assert kicking.kick(broker, client.used, DELAYED, 1, START) == 1
    finishing.delete(broker, client, id, START)


def reserve_and_delete(broker: Broker, client: Client) -> None:
    id = put(broker, client)
    connecting.watch(broker, client, client.used.name)
    job = reserving.reserve(broker, client, START)
    assert job is not None and finishing.delete(broker, client, id, START)
    connecting.ignore(broker, client, client.used.name)


def bury_and_delete(broker: Broker, client: Client) -> None:
    id = put(broker, client)
    assert reserving.reserve_job(broker, client, id, START) is not None and finishing.bury(broker, client, id, 0, START)
    assert kicking.kick(broker, client.used, BURIED, 1, START) == 1
    finishing.delete(broker, client, id, START)


def release_behind_a_later_job(broker: Broker, client: Client) -> None:
    first, later = put(broker, client), put(broker, client)
    assert reserving.reserve_job(broker, client, first, START) is not None and finishing.release(
        broker, client, first, 0, 0, START
    )
    finishing.delete(broker, client, first, START)
    finishing.delete(broker, client, later, START)


def move_to_another_tube(broker: Broker, client: Client) -> None:
    id = put(broker, client, delay=1000)
    assert editing.edit_job(broker, id, START, tube=b"elsewhere") == EditOutcome.DONE
    finishing.delete(broker, client, id, START)


def pause(broker: Broker, client: Client) -> None:
    editing.pause_tube(broker, client.used.name, 1000 * SECOND, START)
    name = client.used.name
    connecting.use(broker, client, b"default")
    editing.pause_tube(broker, name, 0, START)


def wait_and_cancel(broker: Broker, client: Client) -> None:
    connecting.watch(broker, client, client.used.name)
    assert reserving.reserve(broker, client, START) is None
    assert reserving.wait(broker, client, START + TTR, START) == WaitOutcome.WAITING
    waiting.cancel_wait(broker, client)
    connecting.ignore(broker, client, client.used.name)


OPERATIONS = [
    use,
    put_and_delete,
    delay_and_delete,
    kick_and_delete,
    reserve_and_delete,
    bury_and_delete,
    release_behind_a_later_job,
    move_to_another_tube,
    pause,
    wait_and_cancel,
]


@pytest.mark.parametrize("operate", OPERATIONS)
def test_dropped_tube_and_its_jobs_are_freed(operate: Callable[[Broker, Client], None]) -> None:
    broker = make_broker()
    client = connect(broker)
    before = alive()
    for name in NAMES:
        connecting.use(broker, client, name)
        operate(broker, client)
    connecting.use(broker, client, b"default")
    assert list(broker.tubes) == [b"default"]
    assert alive() == before


def test_dropped_tube_set_is_freed() -> None:
    broker = make_broker()
    client = connect(broker)
    before = alive()
    for name in NAMES:
        connecting.watch(broker, client, name)
    for name in NAMES:
        connecting.use(broker, client, name)
        put(broker, client)
    while (job := reserving.reserve(broker, client, START)) is not None:
        finishing.delete(broker, client, job.id, START)
    del job
    assert reserving.wait(broker, client, START + TTR, START) == WaitOutcome.WAITING
    waiting.cancel_wait(broker, client)
    assert client.tube_set is not None
    for name in NAMES:
        connecting.ignore(broker, client, name)
    connecting.use(broker, client, b"default")
    assert alive() == before


@pytest.mark.parametrize("count", [1, 2 * (MANY_TUBES - 1)])
def test_disconnected_client_is_freed(count: int) -> None:
    """The client has waited, has got a job from the wait, holds other jobs, and its timer was armed."""
    broker = make_broker()
    before = alive()
    for turn in range(3):
        producer, worker = connect(broker), connect(broker)
        for name in NAMES[:count]:
            connecting.watch(broker, worker, name)
        connecting.use(broker, producer, NAMES[0])
        assert reserving.reserve(broker, worker, START) is None
        assert reserving.wait(broker, worker, START + TTR, START) == WaitOutcome.WAITING
        ids = [put(broker, producer) for _ in range(3)]
        assert isinstance(worker.outcome, Job) and reserving.reserve(broker, worker, START) is not None
        connecting.disconnect(broker, worker, START)
        assert reserving.wait(broker, producer, START + TTR, START) == WaitOutcome.WAITING
        for id in ids:
            assert finishing.delete(broker, None, id, START)
        connecting.disconnect(broker, producer, START)
        del producer, worker
        assert alive() == before, turn
