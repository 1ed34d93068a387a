"""Commands that take several slices, because the number of their jobs or tubes has no limit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from greenstalk_server.core.broker import SLICE, Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, Job
from greenstalk_server.core.operations import editing, finishing, kicking, reserving
from greenstalk_server.core.tags.idempotency import scope_of
from greenstalk_server.core.transitions import moving
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.protocol import replies
from greenstalk_server.protocol.costs import COPIED_IDS, JOB_COST, KICK_COST, OUTPUT_SLICE, SCAN_COST
from greenstalk_server.protocol.session_state import SessionState, SlicedCommand


class Kick(SlicedCommand):
    """A kick of up to *bound* jobs of *tube* in *state*."""

    __slots__ = ("_bound", "_done", "_state", "_tube")

    def __init__(self, tube: Tube, state: int, bound: int) -> None:
        self._tube: Tube = tube
        self._state: int = state
        self._bound: int = bound
        self._done: int = 0

    def do_slice(self, session: SessionState, broker: Broker, now: int) -> bytes | None:
        """Kick one slice of jobs."""
        done = kicking.kick(broker, self._tube, self._state, self._bound - self._done, now)
        session.cost += KICK_COST * done
        self._done += done
        return None if done and self._done < self._bound else replies.kicked(self._done)


class DeleteBatch(SlicedCommand):
    """A deletion of the jobs *ids*."""

    __slots__ = ("_deleted", "_done", "_ids", "_moved")

    def __init__(self, ids: list[int]) -> None:
        self._ids: list[int] = ids
        self._done: int = 0
        self._deleted: int = 0
        self._moved: list[tuple[int, int]] = []  # jobs that the front has to look for on other shards

    def do_slice(self, session: SessionState, broker: Broker, now: int) -> bytes | None:
        """Delete one slice of jobs."""
        ids = self._ids[self._done : self._done + SLICE]
        self._done += len(ids)
        session.cost += JOB_COST * len(ids)
        deleted, moved = delete_here(session, ids, now)
        self._deleted += deleted
        self._moved += moved
        if self._done < len(self._ids):
            return None
        return replies.deleted_batch(self._deleted, len(self._ids) - self._deleted, self._moved)


def delete_here(session: SessionState, ids: list[int], now: int) -> tuple[int, list[tuple[int, int]]]:
    """Delete those of the jobs *ids* that are on this shard; return how many, and the places of those that are not."""
    broker, deleted = session.broker, 0
    moved: list[tuple[int, int]] = []
    for id in ids:
        place = moving.HERE if broker.moves is None else moving.find(broker, id)
        if place != moving.HERE:
            moved.append((id, place[0]))
        elif session.may_delete(id):
            deleted += finishing.delete(broker, session.client, id, now)
    return deleted, moved


class TouchAll(SlicedCommand):
    """A touch of the jobs *ids*, which the client holds."""

    __slots__ = ("_done", "_ids", "_touched")

    def __init__(self, ids: list[int]) -> None:
        self._ids: list[int] = ids
        self._done: int = 0
        self._touched: int = 0

    def do_slice(self, session: SessionState, broker: Broker, now: int) -> bytes | None:
        """Touch one slice of jobs."""
        ids = self._ids[self._done : self._done + SLICE]
        self._done += len(ids)
        session.cost += JOB_COST * len(ids)
        for id in ids:
            self._touched += reserving.touch(broker, session.client, id, now)
        return None if self._done < len(self._ids) else replies.counted(b"TOUCHED_ALL", self._touched)


class Flush(SlicedCommand):
    """A deletion of all jobs, or of all buried jobs, that the tube *name* has when it begins.

    A deletion of all jobs first frees the idempotency keys that have outlived their jobs.

    A pass deletes the ready, delayed and buried jobs, then those that clients hold. Between two slices a job may change
    to a state that the pass has already handled, so passes repeat until one finds no job.
    """

    __slots__ = ("_below", "_deleted", "_found", "_found_before", "_is_whole", "_keys", "_name", "_reserved", "_states")

    def __init__(self, broker: Broker, name: bytes, is_whole: bool) -> None:
        self._name: bytes = name
        self._below: int = broker.next_id
        self._is_whole: bool = is_whole
        self._keys: int = broker.retained_keys.count(scope_of(name)) if is_whole else 0
        self._states: list[int] = []
        self._reserved: Iterator[Job | None] = iter(())
        self._deleted: int = 0
        self._found: int = 0
        self._found_before: int = -1

    def do_slice(self, session: SessionState, broker: Broker, now: int) -> bytes | None:
        """Delete one slice of jobs."""
        limit = session.cost + OUTPUT_SLICE // 2
        reply = None
        while reply is None and session.cost < limit:
            reply = self._do_step(session, broker, now)
        return reply

    def _do_step(self, session: SessionState, broker: Broker, now: int) -> bytes | None:
        """Free up to SLICE keys, or delete up to SLICE jobs of one state; return the reply when nothing is left."""
        if self._keys > 0:
            freed = editing.forget_keys(broker, self._name, min(self._keys, SLICE))
            self._keys = self._keys - freed if freed else 0
            session.cost += JOB_COST * SLICE
            return None
        tube = broker.tubes.get(self._name)
        if tube is not None and not self._states and self._found > self._found_before:  # another pass
            self._found_before = self._found
            self._states = [READY, DELAYED, BURIED, RESERVED] if self._is_whole else [BURIED]
            self._reserved = reserved_jobs(broker) if tube.reserved_count else iter(())
        if tube is None or not self._states:
            return self._reply()
        state = self._states[0]
        if state == RESERVED:
            jobs = list(islice(self._reserved, SLICE))
            here = [job.id for job in jobs if job is not None and job.tube is tube]
            ids = [id for id in here if broker.ids.is_older(id, self._below)]
            found, is_done = self._end_reserved(ids, broker, now), not jobs
            session.cost += _scan_cost(jobs, broker)
        else:
            found = finishing.clear(broker, tube, state, SLICE, self._below, now)
            self._deleted += found
            is_done = not found
        if is_done:
            del self._states[0]
        self._found += found
        session.cost += JOB_COST * max(1, found)
        return None

    def _end_reserved(self, ids: list[int], broker: Broker, now: int) -> int:
        """Delete the reserved jobs *ids*; return the number deleted."""
        deleted = sum([finishing.delete_job(broker, id, now, is_forced=True) for id in ids])
        self._deleted += deleted
        return deleted

    def _reply(self) -> bytes:
        return replies.counted(b"FLUSHED", self._deleted)


class Truncate(Flush):
    """Like Flush, but each reserved job is deleted when its reservation ends."""

    __slots__ = ()

    def _end_reserved(self, ids: list[int], broker: Broker, now: int) -> int:
        """Mark the reserved jobs *ids* for deletion; return the number that were not marked before."""
        return sum([finishing.truncate_job(broker, id, now) for id in ids])

    def _reply(self) -> bytes:
        return replies.counted(b"TRUNCATED", self._deleted)


class FindReserved(SlicedCommand):
    """A search for the reserved job of *tube* with the lowest id."""

    __slots__ = ("_first", "_jobs", "_tube")

    def __init__(self, broker: Broker, tube: Tube) -> None:
        self._tube: Tube = tube
        self._jobs: Iterator[Job | None] = reserved_jobs(broker)
        self._first: int = 0

    def do_slice(self, session: SessionState, broker: Broker, now: int) -> bytes | None:
        """Examine one slice of jobs."""
        tube = self._tube
        jobs = list(islice(self._jobs, SLICE)) if tube.reserved_count else []
        session.cost += _scan_cost(jobs, broker)
        for job in jobs:
            if job is not None and job.tube is tube and not 0 < self._first < job.id:
                self._first = job.id
        if len(jobs) == SLICE:
            return None
        first = broker.jobs.get(self._first)
        if first is not None and first.state == RESERVED and first.tube is tube:
            return session.peek_reply(first, now)
        if not tube.reserved_count:
            return session.peek_reply(None, now)
        self._first, self._jobs = 0, reserved_jobs(broker)  # the reservation has ended between two slices
        return None


def _scan_cost(jobs: list[Job | None], broker: Broker) -> int:
    """Return the maximum cost of *jobs*, a slice of `reserved_jobs`."""
    copied = broker.totals.reserved if None in jobs else 0
    return SCAN_COST * len(jobs) + copied // COPIED_IDS


def reserved_jobs(broker: Broker) -> Iterator[Job | None]:
    """Iterate over the jobs that clients hold when the iteration reaches them; yield None before each client's jobs.

    The None bounds the time of a step: the ids of the client's jobs are copied after this None. The broker may change
    during the iteration. The iteration may miss a job that is reserved during it.
    """
    clients: list[Client] = [*broker.clients, *broker.closing_clients]
    for client in clients:
        yield None
        for id in list(client.reserved):
            job = client.reserved.get(id)
            if job is not None:
                yield job
