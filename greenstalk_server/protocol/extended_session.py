"""A session with the extensions of the protocol that docs/protocol-extensions.md describes.

The server makes a plain `Session` instead in strict mode. The replies to the published commands are those of a plain
session until the client has sent an extension, but the server's option can extend those of stats from the start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.core.outcomes import EditOutcome, WaitOutcome
from greenstalk_server.core.tags.idempotency import scope_of
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.protocol import codec, replies
from greenstalk_server.protocol.codec import MAX_BATCH_LINE, MAX_PUT_LINE, Command
from greenstalk_server.protocol.costs import OUTPUT_SLICE, RESERVE_COST, WEIGHTED_COST
from greenstalk_server.protocol.extended_stats import extension, group_stats
from greenstalk_server.protocol.framing import INCOMPLETE, TOO_LONG
from greenstalk_server.protocol.replies import CRLF
from greenstalk_server.protocol.session import HANDLERS, Session
from greenstalk_server.protocol.stats import Snapshot
from greenstalk_server.protocol.streams import BodyStream
from greenstalk_server.protocol.work import DeleteBatch, FindReserved, Flush, TouchAll, Truncate


class ExtendedSession(Session):
    """A session with extensions.

    `_batch_size` is the number of jobs that the current reserve-batch asked for, 0 if there is none. `_batch` has its
    jobs, and their bodies, while the body of its last job is being read; else it is None. `_job_wait` is the id of the
    job that the client waits for, 0 if there is none. `_meta` has the fields that follow the size of each job.
    `_extends_stats` is whether replies to stats commands have the extended keys.
    """

    __slots__ = ("_batch", "_batch_size", "_extends_stats", "_job_wait", "_meta")

    def __init__(self, broker: Broker, wake: Callable[[], None]) -> None:
        """See Session."""
        super().__init__(broker, wake)
        self._handlers = EXTENDED_HANDLERS
        self._batch_size: int = 0
        self._batch: list[tuple[Job, bytes]] | None = None
        self._job_wait: int = 0
        self._meta: tuple[bytes, ...] = ()
        self._extends_stats: bool = codec.mode.extends_stats

    def _end_of_long_line(self, data: bytes, pos: int) -> int:
        """Return the end of the line of a delete-batch or a put at *pos*; or INCOMPLETE or TOO_LONG."""
        limit = 0
        if data.startswith(codec.PUT_LINE_STARTS, pos):
            limit = MAX_PUT_LINE
        elif data.startswith(codec.BATCH_LINE_START, pos):
            limit = MAX_BATCH_LINE
        if not limit or codec.mode.is_strict:
            return TOO_LONG
        end = data.find(CRLF, pos, pos + limit)
        return end if end >= 0 else INCOMPLETE if len(data) - pos < limit else TOO_LONG

    # Batches

    def _reserve_batch(self, command: Command, now: int) -> bytes | None:
        broker, client = self._broker, self.client
        _, size, timeout = command
        broker.note_worker(client)
        self._batch_size = size
        if self._reserve_cost:
            self._add_reserve_cost()
        job = broker.reserve(client, now)
        if job is not None:
            return self._fill_batch(job, now)
        outcome = broker.wait(client, now if self._is_eof else now + timeout, now)
        if outcome == WaitOutcome.WAITING:
            self.is_waiting = True
            return None
        return self._ended_wait_reply(outcome)

    def _fill_batch(self, job: Job, now: int) -> bytes | None:
        """Reserve further ready jobs for the batch that begins with *job*, up to a slice of output; return the reply.

        Return None if the reply has to wait for the body of the last job. A job whose body is on disk ends the batch.
        """
        batch: list[tuple[Job, bytes]] = []
        size, self._batch_size = self._batch_size, 0
        total = 0
        while True:
            body = job.body
            self.cost += self._reserve_cost + RESERVE_COST
            if body is None:
                self._batch = batch
                self._await_body(job, False)
                return None
            batch.append((job, body))
            total += len(body) + self._reserve_cost
            found = self._broker.reserve(self.client, now) if len(batch) < size and total <= OUTPUT_SLICE else None
            if found is None:
                return self._batch_reply(batch, now)
            job = found

    def _batch_reply(self, batch: list[tuple[Job, bytes]], now: int) -> bytes:
        """Return the reply with the jobs of *batch*. Only its last body may be sent as a stream."""
        parts = [replies.reserved_batch(len(batch))]
        parts += [self._body_reply(job, body, False, now) for job, body in batch]
        return b"".join(parts)

    def _wait_reply(self, now: int) -> bytes | None:
        outcome, size = self.client.outcome, self._batch_size
        if size and isinstance(outcome, Job):
            self.client.outcome = None
            return self._fill_batch(outcome, now)
        return super()._wait_reply(now)

    def _ended_wait_reply(self, outcome: int | None) -> bytes:
        if self._job_wait:
            id, self._job_wait = self._job_wait, 0
            return _job_wait_reply(outcome, id)
        if self._batch_size and outcome == WaitOutcome.TIMED_OUT:
            self._batch_size = 0
            return replies.reserved_batch(0)
        self._batch_size = 0
        return super()._ended_wait_reply(outcome)

    def _awaited_reply(self, now: int) -> bytes:
        batch, self._batch = self._batch, None
        job, body = self._awaited, self._body
        if batch is None or job is None:
            return super()._awaited_reply(now)
        if body is None:
            super()._awaited_reply(now)  # buries the job
        else:
            self._awaited = self._body = None
            batch.append((job, body))
        return self._batch_reply(batch, now)

    def _delete_batch(self, command: Command, now: int) -> bytes | None:
        return self._do_work(DeleteBatch(command[1]), now)

    def _touch_all(self, command: Command, now: int) -> bytes | None:
        return self._do_work(TouchAll(list(self.client.reserved)), now)

    # Tubes

    def _flush_tube(self, command: Command, now: int) -> bytes | None:
        _, name = command
        broker = self._broker
        if name not in broker.tubes and not broker.kept_keys.count(scope_of(name)):
            return replies.NOT_FOUND
        return self._do_work(Flush(broker, name, is_whole=True), now)

    def _flush_buried(self, command: Command, now: int) -> bytes | None:
        _, name = command
        if name not in self._broker.tubes:
            return replies.NOT_FOUND
        return self._do_work(Flush(self._broker, name, is_whole=False), now)

    def _truncate(self, command: Command, now: int) -> bytes | None:
        _, name = command
        if name not in self._broker.tubes:
            return replies.NOT_FOUND
        return self._do_work(Truncate(self._broker, name, is_whole=True), now)

    def _peek_reserved(self, command: Command, now: int) -> bytes | None:
        return self._do_work(FindReserved(self._broker, self.client.used), now)

    def _watch(self, command: Command, now: int) -> bytes:
        reply = super()._watch(command, now)
        if reply != replies.OUT_OF_MEMORY:
            self._broker.set_weight(self.client, command[1], command[2] if len(command) > 2 else 1)
        return reply

    def _set_reserve_mode(self, command: Command, now: int) -> bytes:
        _, name = command
        if not self._broker.set_reserve_mode(self.client, codec.RESERVE_MODES.index(name)):
            return replies.OUT_OF_MEMORY
        self._note_watched()
        return replies.using(name)

    def _note_watched(self) -> None:
        super()._note_watched()
        if self.client.is_weighted:
            self._reserve_cost = len(self.client.watched) * WEIGHTED_COST

    # The server

    def _refuse_administration(self, command: Command, now: int) -> bytes | None:
        """Refuse drain or undrain, which only an access rule allows; see `RestrictedSession`."""
        raise codec.UnknownCommand

    # Tags

    def _stats_group(self, command: Command, now: int) -> bytes:
        group = self._broker.groups.get(command[1])
        return replies.NOT_FOUND if group is None else self._count_reply(replies.stats(group_stats(group)))

    # Jobs

    def _reprioritize(self, command: Command, now: int) -> bytes:
        _, id, pri = command
        outcome = self._broker.reprioritize(id, pri, now)
        if outcome == EditOutcome.DONE:
            return replies.REPRIORITIZED
        return replies.ALREADY_RESERVED if outcome == EditOutcome.HELD else replies.NOT_FOUND

    def _wait_for_job(self, command: Command, now: int) -> bytes | None:
        _, id, timeout = command
        until = now if self._is_eof else None if timeout is None else now + timeout
        outcome = self._broker.wait_for_job(self.client, id, until, now)
        if outcome == WaitOutcome.WAITING:
            self.is_waiting = True
            self._job_wait = id
            return None
        return _job_wait_reply(outcome, id)

    def _set_stats_mode(self, command: Command, now: int) -> bytes:
        _, name = command
        self._extends_stats = name == b"extended"
        return replies.using(name)

    def _stats_reply(self, snapshot: Snapshot, subject: Tube | Job | None, now: int) -> bytes:
        if not self._extends_stats:
            return super()._stats_reply(snapshot, subject, now)
        return self._count_reply(replies.stats(snapshot, extension(self._broker, subject, now)))

    def _set_meta(self, command: Command, now: int) -> bytes:
        self._meta = command[1]
        return replies.counted(b"META", len(self._meta))

    def _body_reply(self, job: Job, body: bytes, is_peek: bool, now: int) -> bytes:
        if not self._meta:
            return super()._body_reply(job, body, is_peek, now)
        self.cost += len(body)
        values = [_META[field](job, now) for field in self._meta]
        line = replies.job_line(b"FOUND" if is_peek else b"RESERVED", job.id, body, values)
        if len(body) > OUTPUT_SLICE:
            self.stream = BodyStream(body)
            return line
        return b"".join((line, body, CRLF))


def _job_wait_reply(outcome: int | None, id: int) -> bytes:
    """Return the reply to a wait for the job *id* that has ended."""
    if outcome == WaitOutcome.DELETED:
        return replies.finished(b"DELETED", id)
    if outcome == WaitOutcome.BURIED:
        return replies.finished(b"BURIED", id)
    return replies.NOT_FOUND if outcome == WaitOutcome.NOT_FOUND else replies.TIMED_OUT


def _in_seconds(time: int) -> bytes:
    """Return *time*, nanoseconds, as seconds with at most three digits after the point."""
    text = b"%d.%03d" % (time // SECOND, time % SECOND // (SECOND // 1000))
    return text.rstrip(b"0").rstrip(b".")


_META: Final[dict[bytes, Callable[[Job, int], bytes]]] = {
    b"tube": lambda job, now: job.tube.name,
    b"pri": lambda job, now: b"%d" % job.pri,
    b"age": lambda job, now: _in_seconds(max(0, now - job.created_at)),
    b"ttr": lambda job, now: _in_seconds(job.ttr),
    b"reserves": lambda job, now: b"%d" % job.reserves,
    b"timeouts": lambda job, now: b"%d" % job.timeouts,
    b"releases": lambda job, now: b"%d" % job.releases,
    b"attempts": lambda job, now: b"%d" % job.attempts,
}
"""The value of each field of meta."""

EXTENSION_HANDLERS: Final[dict[bytes, Any]] = {
    codec.RESERVE_BATCH: ExtendedSession._reserve_batch,
    codec.DELETE_BATCH: ExtendedSession._delete_batch,
    codec.TOUCH_ALL: ExtendedSession._touch_all,
    codec.FLUSH_TUBE: ExtendedSession._flush_tube,
    codec.FLUSH_BURIED: ExtendedSession._flush_buried,
    codec.STATS_GROUP: ExtendedSession._stats_group,
    codec.TRUNCATE: ExtendedSession._truncate,
    codec.PEEK_RESERVED: ExtendedSession._peek_reserved,
    codec.REPRIORITIZE: ExtendedSession._reprioritize,
    codec.WAIT: ExtendedSession._wait_for_job,
    codec.WATCH: ExtendedSession._watch,
    codec.RESERVE_MODE: ExtendedSession._set_reserve_mode,
    codec.DRAIN: ExtendedSession._refuse_administration,
    codec.UNDRAIN: ExtendedSession._refuse_administration,
    codec.META: ExtendedSession._set_meta,
    codec.STATS_MODE: ExtendedSession._set_stats_mode,
}

EXTENDED_HANDLERS: Final[dict[bytes, Callable[[Any, Command, int], bytes | None]]] = {**HANDLERS, **EXTENSION_HANDLERS}
"""All commands. `put` and `put-in-tube` have no handler; see `Session._begin_put`."""
