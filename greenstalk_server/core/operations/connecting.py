"""The operations on clients: connect, disconnect, and choose the tubes that a client uses and watches. Pure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from greenstalk_server.core.broker import DEFAULT_TUBE, SLICE, Broker
from greenstalk_server.core.client import Client, ignore_call
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.operations.finishing import expire_reservation, record_expiry
from greenstalk_server.core.outcomes import Refusal
from greenstalk_server.core.remote import RemoteReservations
from greenstalk_server.core.transitions.reservation import remove_reserved
from greenstalk_server.core.transitions.waiting import cancel_wait, decline_offer
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.core.tubes.weighting import FIFO, MAX_WEIGHTED_TUBES, Weighting

MAX_RECENT_WORKERS: Final = 10_000
"""Maximum number of disconnected workers whose addresses are kept.

The events of a job contain only a worker's number, so the dashboard looks up the address in `recent_workers`.
"""


def connect(broker: Broker, wake: Callable[[], None]) -> Client:
    """Add a client that uses and watches `default`. The broker calls *wake* to end a wait."""
    broker.counters.total_connections += 1
    broker.last_client = _next_number(broker.last_client, broker.ids)
    client = Client(broker.default_tube, wake, broker.last_client)
    broker.default_tube.using += 1
    broker.default_tube.watching += 1
    broker.clients[client] = None
    return client


def _next_number(last: int, ids: IdSequence) -> int:
    """Return the number of the client that connects after client *last*.

    A number below FIRST_OF_FRONT names its shard, like the id of a job.
    """
    number = last + 1
    if last >= job_history.FIRST_OF_FRONT:
        return number if number <= job_history.LAST_CLIENT else job_history.FIRST_OF_FRONT
    number += (ids.shard - number) % ids.shards
    return number if number < job_history.FIRST_OF_FRONT else ids.shard or ids.shards


def become_remote(broker: Broker, client: Client, front: object, remote: RemoteReservations | None = None) -> None:
    """Make *client*, which is new, a remote client: its connection is at another process, *front*.

    It uses and watches no tube, and is not counted among the connections. *remote* is for its
    reservations, which outlive the link; without it, they end with the link.
    """
    broker.counters.total_connections -= 1
    broker.remote_count += 1
    leave(broker, client)
    unwatch(broker, client, DEFAULT_TUBE)
    client.is_remote = True
    client.front = front
    client.remote = remote


def _refuse_watch(broker: Broker, name: bytes, client: Client) -> int:
    """Return 0 if *client* may watch one more tube, *name*; else count and return the Refusal."""
    limit = broker.max_watched
    if client.is_weighted and not 0 < limit < MAX_WEIGHTED_TUBES:
        limit = MAX_WEIGHTED_TUBES
    if limit and len(client.watched) >= limit:
        return broker.refuse(Refusal.WATCHED, client, name)
    return broker.refuse_tube(name, client)


def _leave_tube_set(broker: Broker, client: Client) -> None:
    """Remove *client* from its tube set, since the tubes that it watches change."""
    tube_set, client.tube_set = client.tube_set, None
    if tube_set is not None:
        tube_set.users -= 1
        if not tube_set.users:
            tube_set.close()
            del broker.tube_sets[frozenset(tube_set.tubes)]


def disconnect(broker: Broker, client: Client, now: int) -> None:
    """Remove *client*: end its wait, and requeue the jobs that it holds, in the order of their reservation.

    This call handles one slice of its jobs and one slice of its watches; later ticks do the rest.
    """
    cancel_wait(broker, client)
    decline_offer(broker, client, now)
    client.is_closed = True
    client.wake = client.hang_up = ignore_call  # both refer to the connection, which refers back: a cycle
    del broker.clients[client]
    if client.is_remote:
        broker.remote_count -= 1
        if client.is_suspended:
            _end_suspension(broker, client)
    else:
        broker.producer_count -= client.is_producer
        broker.worker_count -= client.is_worker
    if client.is_worker:
        broker.recent_workers[client.number] = client.address
        if len(broker.recent_workers) > MAX_RECENT_WORKERS:
            broker.recent_workers.popitem(last=False)
    client.used.using -= 1
    broker.drop_if_unneeded(client.used)
    _leave_tube_set(broker, client)
    broker.closing_clients[client] = iter(list(client.reserved)), iter(list(client.watched))
    close_some(broker, client, SLICE, now)


def _end_suspension(broker: Broker, client: Client) -> None:
    """Remove *client* from the suspended clients."""
    remote = client.remote
    assert remote is not None
    client.is_suspended = False
    clients = broker.suspended[remote.front]
    del clients[remote.session]
    if not clients:
        del broker.suspended[remote.front]


def close_some(broker: Broker, client: Client, limit: int, now: int) -> None:
    """Requeue up to *limit* jobs of the closing *client*, and remove up to *limit* of its watches.

    The next ticks do the rest. While the server stops, the client keeps its jobs and watches.
    """
    if broker.is_stopping:
        return
    ids, names = broker.closing_clients[client]
    for id in islice(ids, limit):
        job = client.reserved.get(id)
        if job is not None:
            is_counted = client.remote is None or client.remote.numbers[id] <= client.remote.received
            remove_reserved(broker, job, now)
            record_expiry(job, job_history.RETURNED, client.number, now)
            if not is_counted:
                job.reserves -= 1
            expire_reservation(broker, job, now, is_attempt=is_counted)
    for name in islice(names, limit):
        _end_watch(broker, client, client.watched.pop(name))
    if client.reserved or client.watched:
        broker.arm(client, now)
    else:
        del broker.closing_clients[client]
        broker.timers.disarm(client)


def note_producer(broker: Broker, client: Client) -> None:
    """Count *client* among the producers, once; its front counts a remote client."""
    if not client.is_producer:
        client.is_producer = True
        broker.producer_count += not client.is_remote


def note_worker(broker: Broker, client: Client) -> None:
    """Count *client* among the workers, once; its front counts a remote client."""
    if not client.is_worker:
        client.is_worker = True
        broker.worker_count += not client.is_remote


def use(broker: Broker, client: Client, name: bytes) -> bool:
    """Send *client*'s puts to the tube *name*, created if it does not exist. Return False if a limit forbids it."""
    if broker.quotas is not None and broker.refuse_tube(name, client):
        return False
    tube = broker.tube(name)
    tube.using += 1
    old, client.used = client.used, tube
    old.using -= 1
    broker.drop_if_unneeded(old)
    return True


def leave(broker: Broker, client: Client) -> None:
    """Let *client* use no tube."""
    old, client.used = client.used, broker.no_tube
    old.using -= 1
    broker.no_tube.using += 1
    broker.drop_if_unneeded(old)


def watch(broker: Broker, client: Client, name: bytes) -> int:
    """Add the tube *name* to those that *client* watches; return how many it watches, or the Refusal."""
    if name not in client.watched:
        refusal = _refuse_watch(broker, name, client)
        if refusal:
            return refusal
        tube = broker.tube(name)
        tube.watching += 1
        client.watched[name] = tube
        _leave_tube_set(broker, client)
        if client.is_subscribed:
            broker.heads.subscribe(tube, client.front)
    return len(client.watched)


def ignore(broker: Broker, client: Client, name: bytes) -> int:
    """End a watch; return how many tubes *client* watches, or 0 if *name* is its only one: it stays watched."""
    if len(client.watched) == 1 and name in client.watched:
        return 0
    unwatch(broker, client, name)
    return len(client.watched)


def unwatch(broker: Broker, client: Client, name: bytes) -> None:
    """End a watch, also if *client* watches no other tube."""
    tube = client.watched.pop(name, None)
    if tube is not None:
        if client.weighting is not None:
            client.weighting.set_weight(name, 1)
        _leave_tube_set(broker, client)
        _end_watch(broker, client, tube)


def _end_watch(broker: Broker, client: Client, tube: Tube) -> None:
    """Update *tube*, which *client* watches no longer."""
    if client.is_subscribed:
        broker.heads.unsubscribe(tube, client.front)
    tube.watching -= 1
    broker.drop_if_unneeded(tube)


def subscribe(broker: Broker, client: Client, *, is_on: bool) -> None:
    """Have the front of the remote *client* told the heads of the tubes that the client watches, or no longer."""
    if client.is_subscribed != is_on:
        client.is_subscribed = is_on
        change = broker.heads.subscribe if is_on else broker.heads.unsubscribe
        for tube in client.watched.values():
            change(tube, client.front)


def set_weight(client: Client, name: bytes, weight: int) -> None:
    """Set the weight of the tube *name*, which *client* watches, to *weight*, 1 to MAX_WEIGHT."""
    if client.weighting is None:
        if weight == 1:
            return
        client.weighting = Weighting()
    client.weighting.set_weight(name, weight)


def set_reserve_mode(broker: Broker, client: Client, mode: int) -> bool:
    """Set the mode by which reserves of *client* select a tube: FIFO, WEIGHTED or WEIGHTED_FAIR.

    Return False, and change nothing, if *client* watches too many tubes for *mode*.
    """
    if mode != FIFO and len(client.watched) > MAX_WEIGHTED_TUBES:
        broker.refuse(Refusal.WATCHED, client, b"")
        return False
    if client.weighting is None:
        client.weighting = Weighting()
    client.weighting.mode = mode
    return True
