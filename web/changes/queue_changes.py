"""The base class of operations, bulk changes and undos: the parts of the server that they use."""

from __future__ import annotations

from collections.abc import Callable

from greenstalk_server.core.broker import Broker
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.saved_changes import SavedChanges
from greenstalk_server.web.changes.tasks import Tasks
from greenstalk_server.web.store.audit import Audit
from greenstalk_server.web.store.saved_data import SavedData


class QueueChanges:
    """Base class of the classes that change the queue of *broker*."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        commit: Callable[[], bool],
        audit: Audit,
        tasks: Tasks,
        saved: SavedData,
        saved_changes: SavedChanges,
    ) -> None:
        """*commit* waits until all changes so far are as durable as an acknowledged command; False on a timeout."""
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._commit: Callable[[], bool] = commit
        self._audit: Audit = audit
        self._tasks: Tasks = tasks
        self._saved: SavedData = saved
        self._saved_changes: SavedChanges = saved_changes
