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
from greenstalk_server.core.outcomes import EditOutcome, WaitOutcome
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
    return broker.connect(lambda: None)


def put(broker: Broker, client: Client, pri: int = 0, delay: int = 0) -> int:
    id = broker.allocate_id()
    assert broker.put(client, id, pri, delay * SECOND, TTR, b"body", START) > 0
    return id


# Operations on a tube: a client uses several tubes in turn, and runs one operation on each


def use(broker: Broker, client: Client) -> None:
    """Do nothing else."""


def put_and_delete(broker: Broker, client: Client) -> None:
    broker.delete(client, put(broker, client), START)


def delay_and_delete(broker: Broker, client: Client) -> None:
    broker.delete(client, put(broker, client, delay=1000), START)


def kick_and_delete(broker: Broker, client: Client) -> None:
    id = put(broker, client, delay=1000)
    assert broker.kick(client.used, DELAYED, 1, START) == 1
    broker.delete(client, id, START)


def reserve_and_delete(broker: Broker, client: Client) -> None:
    id = put(broker, client)
    broker.watch(client, client.used.name)
    job = broker.reserve(client, START)
    assert job is not None and broker.delete(client, id, START)
    broker.ignore(client, client.used.name)


def bury_and_delete(broker: Broker, client: Client) -> None:
    id = put(broker, client)
    assert broker.reserve_job(client, id, START) is not None and broker.bury(client, id, 0, START)
    assert broker.kick(client.used, BURIED, 1, START) == 1
    broker.delete(client, id, START)


def release_behind_a_later_job(broker: Broker, client: Client) -> None:
    first, later = put(broker, client), put(broker, client)
    assert broker.reserve_job(client, first, START) is not None and broker.release(client, first, 0, 0, START)
    broker.delete(client, first, START)
    broker.delete(client, later, START)


def move_to_another_tube(broker: Broker, client: Client) -> None:
    id = put(broker, client, delay=1000)
    assert broker.edit_job(id, START, tube=b"elsewhere") == EditOutcome.DONE
    broker.delete(client, id, START)


def pause(broker: Broker, client: Client) -> None:
    broker.pause_tube(client.used.name, 1000 * SECOND, START)
    name = client.used.name
    broker.use(client, b"default")
    broker.pause_tube(name, 0, START)


def wait_and_cancel(broker: Broker, client: Client) -> None:
    broker.watch(client, client.used.name)
    assert broker.reserve(client, START) is None
    assert broker.wait(client, START + TTR, START) == WaitOutcome.WAITING
    broker.cancel_wait(client)
    broker.ignore(client, client.used.name)


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
        broker.use(client, name)
        operate(broker, client)
    broker.use(client, b"default")
    assert list(broker.tubes) == [b"default"]
    assert alive() == before


def test_dropped_tube_set_is_freed() -> None:
    broker = make_broker()
    client = connect(broker)
    before = alive()
    for name in NAMES:
        broker.watch(client, name)
    for name in NAMES:
        broker.use(client, name)
        put(broker, client)
    while (job := broker.reserve(client, START)) is not None:
        broker.delete(client, job.id, START)
    del job
    assert broker.wait(client, START + TTR, START) == WaitOutcome.WAITING
    broker.cancel_wait(client)
    assert client.tube_set is not None
    for name in NAMES:
        broker.ignore(client, name)
    broker.use(client, b"default")
    assert alive() == before


@pytest.mark.parametrize("count", [1, 2 * (MANY_TUBES - 1)])
def test_disconnected_client_is_freed(count: int) -> None:
    """The client has waited, has got a job from the wait, holds other jobs, and its timer was armed."""
    broker = make_broker()
    before = alive()
    for turn in range(3):
        producer, worker = connect(broker), connect(broker)
        for name in NAMES[:count]:
            broker.watch(worker, name)
        broker.use(producer, NAMES[0])
        assert broker.reserve(worker, START) is None
        assert broker.wait(worker, START + TTR, START) == WaitOutcome.WAITING
        ids = [put(broker, producer) for _ in range(3)]
        assert isinstance(worker.outcome, Job) and broker.reserve(worker, START) is not None
        broker.disconnect(worker, START)
        assert broker.wait(producer, START + TTR, START) == WaitOutcome.WAITING
        for id in ids:
            assert broker.delete(None, id, START)
        broker.disconnect(producer, START)
        del producer, worker
        assert alive() == before, turn
