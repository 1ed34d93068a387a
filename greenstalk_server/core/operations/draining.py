"""Drains, during which the server refuses puts, and the stop of the server. Pure."""

from __future__ import annotations

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client


def drain(broker: Broker) -> None:
    """Refuse puts until the process ends."""
    broker.is_draining = broker.is_drain_final = True


def drain_for(broker: Broker, client: Client) -> None:
    """Refuse puts until `undrain_for`, at the request of *client*."""
    if not broker.is_draining:
        broker.is_draining = True
        for listener in broker.listeners:
            listener.on_drain(client, True)


def undrain_for(broker: Broker, client: Client) -> bool:
    """Accept puts again at the request of *client*; return whether puts are accepted now."""
    if broker.is_drain_final or broker.is_stopping:
        return not broker.is_draining
    if broker.is_draining:
        broker.is_draining = False
        for listener in broker.listeners:
            listener.on_drain(client, False)
    return True


def stop(broker: Broker) -> None:
    """From now on, leave jobs reserved when their clients disconnect.

    The next start requeues them, as after a crash. So a job that reserve-job took while it was buried or delayed is
    buried or delayed again.
    """
    broker.is_stopping = True
