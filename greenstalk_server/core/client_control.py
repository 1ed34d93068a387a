"""The operations on clients: connect, disconnect, and choose the tubes that a client uses and watches.

`Broker` inherits from `ClientControl`.
"""

from __future__ import annotations

from collections.abc import Callable

from greenstalk_server.core.client import Client, ignore_call
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.outcomes import Refusal
from greenstalk_server.core.policy_control import PolicyControl
from greenstalk_server.core.transitions import MAX_RECENT_WORKERS, SLICE
from greenstalk_server.core.tubes.weighting import FIFO, MAX_WEIGHTED_TUBES, Weighting


class ClientControl(PolicyControl):
    """See the module's docstring; the base classes describe the attributes."""

    def connect(self, wake: Callable[[], None]) -> Client:
        """Add a client that uses and watches `default`. The broker calls *wake* to end a wait."""
        self.counters.total_connections += 1
        self._last_client = self._last_client % job_history.LAST_CLIENT + 1
        client = Client(self.default_tube, wake, self._last_client)
        self.default_tube.using += 1
        self.default_tube.watching += 1
        self.clients[client] = None
        return client

    def disconnect(self, client: Client, now: int) -> None:
        """Remove *client*: end its wait, and requeue the jobs that it holds, in the order of their reservation.

        This call handles one slice of its jobs and one slice of its watches; later ticks do the rest.
        """
        self.cancel_wait(client)
        client.is_closed = True
        client.wake = client.hang_up = ignore_call  # both refer to the connection, which refers back: a cycle
        del self.clients[client]
        self.producer_count -= client.is_producer
        self.worker_count -= client.is_worker
        if client.is_worker:
            self.recent_workers[client.number] = client.address
            if len(self.recent_workers) > MAX_RECENT_WORKERS:
                self.recent_workers.popitem(last=False)
        client.used.using -= 1
        self._drop_if_unneeded(client.used)
        self._leave_tube_set(client)
        self.closing_clients[client] = iter(list(client.reserved)), iter(list(client.watched))
        self._close_some(client, SLICE, now)
        if self._unsettled:
            self._settle(now)

    def note_producer(self, client: Client) -> None:
        """Count *client* among the producers, once."""
        if not client.is_producer:
            client.is_producer = True
            self.producer_count += 1

    def note_worker(self, client: Client) -> None:
        """Count *client* among the workers, once."""
        if not client.is_worker:
            client.is_worker = True
            self.worker_count += 1

    def use(self, client: Client, name: bytes) -> bool:
        """Send *client*'s puts to the tube *name*, created if it does not exist. Return False if a limit forbids it."""
        if self.quotas is not None and self._refuse_tube(name, client):
            return False
        tube = self.tube(name)
        tube.using += 1
        old, client.used = client.used, tube
        old.using -= 1
        self._drop_if_unneeded(old)
        return True

    def watch(self, client: Client, name: bytes) -> int:
        """Add the tube *name* to those that *client* watches; return how many it watches, or the Refusal."""
        if name not in client.watched:
            refusal = self._refuse_watch(name, client)
            if refusal:
                return refusal
            tube = self.tube(name)
            tube.watching += 1
            client.watched[name] = tube
            self._leave_tube_set(client)
        return len(client.watched)

    def ignore(self, client: Client, name: bytes) -> int:
        """End a watch; return how many tubes *client* watches, or 0 if *name* is its only one, which stays."""
        tube = client.watched.get(name)
        if tube is not None:
            if len(client.watched) == 1:
                return 0
            del client.watched[name]
            if client.weighting is not None:
                client.weighting.set_weight(name, 1)
            self._leave_tube_set(client)
            tube.watching -= 1
            self._drop_if_unneeded(tube)
        return len(client.watched)

    def set_weight(self, client: Client, name: bytes, weight: int) -> None:
        """Set the weight of the tube *name*, which *client* watches, to *weight*, 1 to MAX_WEIGHT."""
        if client.weighting is None:
            if weight == 1:
                return
            client.weighting = Weighting()
        client.weighting.set_weight(name, weight)

    def set_reserve_mode(self, client: Client, mode: int) -> bool:
        """Set the mode by which reserves of *client* select a tube: FIFO, WEIGHTED or WEIGHTED_FAIR.

        Return False, and change nothing, if *client* watches too many tubes for *mode*.
        """
        if mode != FIFO and len(client.watched) > MAX_WEIGHTED_TUBES:
            self._refuse(Refusal.WATCHED, client, b"")
            return False
        if client.weighting is None:
            client.weighting = Weighting()
        client.weighting.mode = mode
        return True
