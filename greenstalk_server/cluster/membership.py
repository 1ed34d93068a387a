"""The processes of a queue in a database, and the shards that they lead, as this process knows them.

One greenlet reads the database several times a second, and reports that this process lives. While the database does not
answer, the last answer counts: a link that works is still of use.

Docstrings say which methods may switch greenlets.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Final

import gevent
from gevent.event import Event

from greenstalk_server.cluster import assignment
from greenstalk_server.cluster.assignment import PATIENCE, ShardView
from greenstalk_server.cluster.shard_move import ShardMove, request_move
from greenstalk_server.journal.postgresql.connection import DATABASE_RETRY_INTERVAL
from greenstalk_server.journal.postgresql.members import PROCESS_TIMEOUT, Members, Queue, Snapshot
from greenstalk_server.runtime.exit_codes import EXIT_JOURNAL, StartError
from greenstalk_server.runtime.supervisor import Service
from greenstalk_server.runtime.threads import run_in_thread

POLL_INTERVAL: Final = 0.2
LEADER_POLL_INTERVAL: Final = 0.4
"""Seconds between two reads by a process that leads no shard, and so may take one over; and by one that leads."""

HEARTBEAT_INTERVAL: Final = 1.0
"""Seconds between two reports that this process lives."""

NAMESAKE_WAIT: Final = 1.5 * HEARTBEAT_INTERVAL
"""Seconds in which another process with the name of this one reports that it lives, if it does."""

MAX_ENDED: Final = 1024
"""Processes of which it is noted that they have ended."""

MIN_READ_INTERVAL: Final = 0.05
"""Minimum seconds between two reads, however often one is requested."""

log = logging.getLogger(__name__)


class Membership:
    """The shards and processes of the queue.

    me          id of this process.
    time        the database's time when `open` returned, nanoseconds.
    snapshot    the last answer of the database.
    read_at     time of that answer, by the monotonic clock.
    on_change   called in the event loop when an owner or an address has changed.
    on_read     called after each read while the database also accepts reports; may switch, and raise OSError.
    on_forgotten    called when the others have counted this process as dead: its clients have lost their jobs.
    leads       whether this process leads its shard.
    relays      returns the ids of the processes that relay the links of this one, by the ids of the peers.
    """

    def __init__(self, members: Members, me: str) -> None:
        self.me: str = me
        self.queue: Queue
        self.time: int
        self.snapshot: Snapshot
        self.read_at: float
        self.on_change: Callable[[], None] = _ignore
        self.on_read: Callable[[], None] = _ignore
        self.on_forgotten: Callable[[], None] = _ignore
        self.leads: bool = False
        self.relays: Callable[[], Mapping[str, str]] = dict
        self._members: Members = members
        self._shard: int | None = None
        self._free_since: dict[int, float] = {}
        self._silent_since: dict[str, float] = {}
        self._ended: dict[str, None] = {}  # the last processes that have ended
        self._addresses: dict[str, str] = {}
        self._wake: Event = Event()
        self._reported_at: float = 0.0
        self._has_reported: bool = False  # the last report has not failed
        self._began: float = time.monotonic()
        self._is_settled: bool = False
        self._service: Service = Service("membership", self._run)

    def open(self, is_stopping: Callable[[], bool]) -> bool:
        """Read the queue from the database once it answers; return False if the process must stop first. Switches.

        Raise StartError if the queue cannot be served with these options, or another server has the name of this one.
        """
        is_failing = False
        while not is_stopping():
            try:
                self.queue = run_in_thread(self._members.open)
                self._refuse_namesake()
                run_in_thread(self._members.forget_former)
                self._report()
                self._note(run_in_thread(self._members.read))
                self.time = run_in_thread(self._members.time)
            except OSError as error:
                if not is_failing:
                    log.error("%s; retrying until the database answers", error)  # noqa: TRY400  the message is complete
                is_failing = True
                gevent.sleep(DATABASE_RETRY_INTERVAL)
            else:
                return True
        return False

    def _refuse_namesake(self) -> None:
        """Raise StartError if another living server has the name of this one: each would end the other. Switches."""
        before = run_in_thread(self._members.namesakes)
        if not before:
            return
        gevent.sleep(NAMESAKE_WAIT)
        if not run_in_thread(self._members.namesakes) <= before:
            raise StartError(self._members.namesake_problem, EXIT_JOURNAL)

    def start(self) -> None:
        """Begin to read. Does not switch."""
        self._service.start()

    def stop(self) -> None:
        """End, and remove the row of this process if the database answers. Switches."""
        self._service.stop()
        try:
            run_in_thread(self._members.remove)
        except OSError as error:
            log.warning("cannot remove this process from the queue: %s", error)

    # The shards and processes

    def owner_of(self, shard: int) -> str | None:
        """Return the id of the process that leads *shard*, or whose lead has ended without a successor; else None."""
        return self.snapshot.shards[shard].holder or None

    def is_led(self, shard: int) -> bool:
        """Return whether the lease of *shard* has not ended."""
        return not self.snapshot.shards[shard].is_free

    def addresses(self) -> Mapping[str, str]:
        """Return the addresses of the links of all processes, this one included, by their ids."""
        return self._addresses

    def has_ended(self, process: str) -> bool:
        """Return whether *process* was among `addresses`, and no longer is. Does not switch.

        A process that this one has never seen has ended if it has no row once this one has lived for PROCESS_TIMEOUT:
        a process has a row before it has a link, until it ends.
        """
        if process in self._ended:
            return True
        return self._is_settled and process not in self._addresses and not self._has_row(process)

    def _has_row(self, process: str) -> bool:
        return any(each.id == process for each in self.snapshot.processes)

    def refresh(self) -> None:
        """Read soon, since another process has begun to lead a shard. Does not switch."""
        self._wake.set()

    @property
    def relayed_links(self) -> int:
        """Number of links between processes of the queue that a third one relays."""
        return len(self.snapshot.relayed_links())

    def request_move(self, shard: int, process: str) -> ShardMove:
        """Request a move as `shard_move.request_move` does. Switches; raise MoveRefused, or OSError."""
        return run_in_thread(request_move, self._members, shard, process)

    # The shard of this process

    @property
    def shard(self) -> int | None:
        """The shard that this process leads or follows; None at first."""
        return self._shard

    def assign(self) -> bool:
        """Choose the shard to follow, and make the lease of this process be about it; return whether it is another one.

        Does not switch.
        """
        shard = assignment.choose(self._views(), self.me, self._shard, self.wanted, random.random)
        if shard == self._shard:
            return False
        self._shard = shard
        self._members.assign(self.queue, shard)
        self._reported_at = 0.0
        self._wake.set()
        return True

    @property
    def wanted(self) -> int | None:
        """The shard that an operator wants this process to lead; None for none."""
        return next((each.wanted for each in self.snapshot.processes if each.id == self.me), None)

    @property
    def is_wanted(self) -> bool:
        """Whether an operator wants this process to lead the shard that it follows."""
        return self._shard is not None and self.wanted == self._shard

    @property
    def is_reserved(self) -> bool:
        """Whether an operator wants another process to lead the shard that this one follows."""
        return self._shard is not None and self._is_reserved(self._shard)

    def _is_reserved(self, shard: int) -> bool:
        since = self._free_since.get(shard)
        if since is not None and time.monotonic() - since > PATIENCE:
            return False
        return any(each.wanted == shard and each.is_alive and each.id != self.me for each in self.snapshot.processes)

    def _views(self) -> list[ShardView]:
        now, snapshot = time.monotonic(), self.snapshot
        machines = {each.id: each.machine for each in snapshot.processes}
        mine = machines.get(self.me, "")
        views = []
        for number, state in enumerate(snapshot.shards):
            followers, machine = snapshot.followers(number), machines.get(state.holder)
            view = ShardView(
                is_free=state.is_free,
                free_for=now - self._free_since.get(number, now),
                followers=[each.id for each in followers],
                near=[each.id for each in followers if each.machine == machine],
                is_reserved=self._is_reserved(number),
                is_near=machine == mine,
            )
            views.append(view)
        return views

    # Reading

    def _run(self) -> None:
        """Read, and report, until the process ends. Switches."""
        is_failing = False
        while True:
            try:
                if time.monotonic() > self._reported_at + HEARTBEAT_INTERVAL:
                    self._report()
                self._note(run_in_thread(self._members.read))
                self._forget_silent()
                if self._has_reported:
                    self.on_read()
                is_failing = False
            except OSError as error:
                if not is_failing:
                    log.error("cannot read who leads the shards: %s; retrying until the database answers", error)  # noqa: TRY400
                is_failing = True
                self._silent_since.clear()  # the others could not report either
            gevent.sleep(MIN_READ_INTERVAL)
            self._wake.wait((LEADER_POLL_INTERVAL if self.leads else POLL_INTERVAL) - MIN_READ_INTERVAL)
            self._wake.clear()

    def _report(self) -> None:
        self._reported_at, self._has_reported = time.monotonic(), False
        if not run_in_thread(self._members.report, self._shard, self.leads, self.relays()):
            self.on_forgotten()
        self._has_reported = True

    def _forget_silent(self) -> None:
        """Delete the rows of the processes that have been silent for PROCESS_TIMEOUT since this one noticed it.

        Their clients lose their jobs only then, and they find out before they are members again. Switches.
        """
        before = time.monotonic() - PROCESS_TIMEOUT
        if silent := [id for id, since in self._silent_since.items() if since < before]:
            run_in_thread(self._members.forget, silent)

    def _note(self, snapshot: Snapshot) -> None:
        """Replace the snapshot, and call `on_change` if an owner or an address has changed."""
        now = time.monotonic()
        before = [each.holder for each in self.snapshot.shards] if hasattr(self, "snapshot") else None
        self.snapshot, self.read_at = snapshot, now
        free = [number for number, each in enumerate(snapshot.shards) if each.is_free]
        self._free_since = {number: self._free_since.get(number, now) for number in free}
        silent = [each.id for each in snapshot.processes if not each.is_alive]
        self._silent_since = {id: self._silent_since.get(id, now) for id in silent}
        addresses = {each.id: each.address for each in snapshot.processes}
        is_changed = before != [each.holder for each in snapshot.shards] or addresses != self._addresses
        for id in self._addresses.keys() - addresses.keys():
            self._ended[id] = None
        for id in addresses:
            self._ended.pop(id, None)
        while len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        self._addresses = addresses
        if not self._is_settled and now > self._began + PROCESS_TIMEOUT:
            self._is_settled = is_changed = True
        if is_changed:
            self.on_change()


def _ignore() -> None:
    """Stand in for `Membership.on_change`, `on_read` and `on_forgotten`."""
