"""The throughput of workers: how many jobs each finished within the last minute.

The core counts the finished reservations of each client (`Client.finished`). A sampler copies these counters every
INTERVAL seconds, and the throughput is the difference from the oldest copy. With 10,000 workers a copy takes about a
millisecond, in slices, and 0.6 MB.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.supervisor import Service
from greenstalk_server.web.framework.cooperative import in_batches, repeated

INTERVAL: Final = 15
"""Seconds between two copies."""

KEPT: Final = 5
"""Copies kept. The oldest is 60 to 75 seconds old."""

MIN_TIME: Final = 10 * SECOND
"""Minimum nanoseconds over which a throughput is averaged, so that the first job of a new worker causes no peak."""

BATCH_SIZE: Final = 256
"""Clients between two checks of the time slice."""


class WorkerRates:
    """Measures the throughput of the workers of *broker* from now on."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        first = {client.number: client.finished for client in broker.clients if client.finished}
        self._sampler: Service = Service("worker-rates", repeated(self.tick))
        self._copies: deque[tuple[int, dict[int, int]]] = deque([(clock(), first)], maxlen=KEPT)

    def start(self) -> None:
        """Start a greenlet that samples for as long as this object is referenced. Does not switch."""
        self._sampler.start()

    def stop(self) -> None:
        """Stop sampling. Switches."""
        self._sampler.stop()

    def tick(self) -> float:
        """Copy the counters; return INTERVAL. Only one greenlet may call this. May switch."""
        now = self._clock()
        counts: dict[int, int] = {}
        for client in in_batches(list(self._broker.clients), BATCH_SIZE):
            if client.finished:
                counts[client.number] = client.finished
        self._copies.append((now, counts))
        return INTERVAL

    def per_minute(self, client: Client, now: int) -> float:
        """Return the jobs per minute that *client* finished since the oldest copy, or since it connected."""
        at, counts = self._copies[0]
        elapsed = max(now - max(at, client.connected_at), MIN_TIME)
        return (client.finished - counts.get(client.number, 0)) * 60 * SECOND / elapsed
