"""Notifications from the broker to the objects around it: the ticker, the log, the metrics.

This module is not compiled, so that interpreted classes can inherit from `BrokerListener`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from greenstalk_server.core.client import Client
    from greenstalk_server.core.jobs.job import Job
    from greenstalk_server.core.tubes.tube import Tube


class BrokerListener:
    """Base class of listeners. Each method does nothing by default, must not switch greenlets, and must not raise.

    Listeners subscribe by `Broker.subscribe`, in any order.
    """

    def on_earlier_deadline(self, when: int) -> None:
        """Call `ticking.tick` at *when*, nanoseconds.

        A deadline was set that is earlier than the last tick's return value.
        """

    def on_tube_dropped(self, tube: Tube) -> None:
        """Save the counters of *tube*, which is no longer among the broker's tubes."""

    def on_tube_paused(self, tube: Tube) -> None:
        """Handle the start, the change or the end of a pause of *tube*; `pause` is 0 if it has ended."""

    def on_reservation_timeout(self, client: Client, job: Job) -> None:
        """Handle the timeout of *client*'s reservation of *job*. The job is not yet ready again."""

    def on_drain(self, client: Client, is_draining: bool) -> None:
        """Handle the start or the end of a drain, requested by *client*."""

    def on_limit_hit(self, limit: str, address: str, what: str) -> None:
        """Handle a hit of *limit*: it refused or delayed the request *what* from *address*, or closed the connection.

        *what* and *address* may be empty.
        """
