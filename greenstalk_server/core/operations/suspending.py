"""Suspended clients: remote clients without a link. Pure.

When the link to the front of a remote client is lost, or the owner of the shard is restarted, the client is suspended:
it keeps its jobs, and none of its reservations times out. It is resumed when its front reports the session again, and
disconnected if the front has ended or reports that the session has.
"""

from __future__ import annotations

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client, ignore_call
from greenstalk_server.core.operations import connecting
from greenstalk_server.core.remote import RemoteReservations
from greenstalk_server.core.transitions.waiting import cancel_wait, decline_offer


def suspend(broker: Broker, client: Client, now: int) -> None:
    """Suspend the remote *client*; disconnect it if it holds no job."""
    remote = client.remote
    if remote is None or not client.reserved or broker.is_stopping:
        connecting.disconnect(broker, client, now)
        return
    cancel_wait(broker, client)
    decline_offer(broker, client, now)
    client.wake = client.hang_up = ignore_call
    broker.timers.disarm(client)
    _add(broker, client, remote)


def suspended(broker: Broker, front: str, session: int) -> Client:
    """Return the suspended client of the *session* of *front*, for the jobs that a journal has recovered."""
    client = broker.suspended.get(front, {}).get(session)
    if client is None:
        client = connecting.connect(broker, ignore_call)
        remote = RemoteReservations(front, session)
        connecting.become_remote(broker, client, None, remote)
        _add(broker, client, remote)
    return client


def _add(broker: Broker, client: Client, remote: RemoteReservations) -> None:
    client.is_suspended = True
    broker.suspended.setdefault(remote.front, {})[remote.session] = client


def resume(broker: Broker, client: Client, reserved: int, now: int) -> None:
    """Give the new remote *client* the jobs of the suspended client of the same session, if there is one.

    Their time to run begins again. The front has received the first *reserved* reservations of the session. It does not
    know of the others, whose replies were lost: they end, uncounted.
    """
    remote = client.remote
    assert remote is not None
    remote.reserved = reserved
    former = broker.suspended.get(remote.front, {}).get(remote.session)
    if former is None:
        return
    assert former.remote is not None
    client.number, client.finished = former.number, former.finished
    client.is_worker, former.is_worker = former.is_worker, False
    for id, job in list(former.reserved.items()):
        number = former.remote.numbers[id]
        if number > reserved:
            job.reserves -= 1
            continue
        former.drop(job)
        job.holder = client
        job.deadline = now + job.ttr
        client.hold(job)
        remote.numbers[id] = number
    soonest = client.soonest()
    if soonest is not None:
        broker.arm(client, soonest.deadline)
    connecting.disconnect(broker, former, now)


def end(broker: Broker, front: str, session: int, now: int) -> None:
    """Disconnect the suspended client of the *session* of *front*, unless it was resumed."""
    client = broker.suspended.get(front, {}).get(session)
    if client is not None:
        connecting.disconnect(broker, client, now)
