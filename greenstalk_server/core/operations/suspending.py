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
    if remote is not None and remote.unresumed:
        resume_some(broker, client, len(remote.unresumed), now)
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


def resume(broker: Broker, client: Client, reserved: int, now: int) -> bool:
    """Have the new remote *client* take the place of the suspended client of the same session, if there is one.

    The front has received the first *reserved* reservations of the session. It does not know of the others, whose
    replies were lost: they end, uncounted. Return whether the suspended client has jobs: then call `resume_some` until
    it returns False, before the client does anything. Until then the suspended client must not be ended, unless the
    new one is too.
    """
    remote = client.remote
    assert remote is not None
    remote.reserved = reserved
    former = broker.suspended.get(remote.front, {}).get(remote.session)
    if former is None:
        return False
    client.number, client.finished = former.number, former.finished
    client.is_worker, former.is_worker = former.is_worker, False
    assert former.remote is not None
    former.remote.received = reserved
    remote.unresumed = list(former.reserved)
    remote.unresumed.reverse()
    return bool(remote.unresumed) or resume_some(broker, client, 0, now)


def resume_some(broker: Broker, client: Client, limit: int, now: int) -> bool:
    """Give *client* up to *limit* jobs of the suspended client, with the whole time to run; return whether more follow.

    After the last ones, the suspended client ends.
    """
    remote = client.remote
    assert remote is not None
    former = broker.suspended.get(remote.front, {}).get(remote.session)
    if former is None:
        remote.unresumed.clear()
        return False
    assert former.remote is not None
    for _ in range(min(limit, len(remote.unresumed))):
        id = remote.unresumed.pop()
        job = former.reserved.get(id)
        if job is None:
            continue  # an operator has taken it
        number = former.remote.numbers[id]
        if number > former.remote.received:
            continue
        former.drop(job)
        job.holder = client
        job.deadline = now + job.ttr
        client.hold(job)
        remote.numbers[id] = number
    soonest = client.soonest()
    if soonest is not None:
        broker.arm(client, soonest.deadline)
    if not remote.unresumed:
        connecting.disconnect(broker, former, now)
    return bool(remote.unresumed)


def end(broker: Broker, front: str, session: int, now: int) -> None:
    """Disconnect the suspended client of the *session* of *front*, unless it was resumed."""
    client = broker.suspended.get(front, {}).get(session)
    if client is not None:
        connecting.disconnect(broker, client, now)
