"""The commands of the published protocol: one method for each.

`Framing` cuts the input into commands, and describes the states of a session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, DELAYED, Job
from greenstalk_server.core.outcomes import WaitOutcome
from greenstalk_server.core.tubes.name_list import NameList, list_of
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.protocol import codec, replies, stats
from greenstalk_server.protocol.codec import Command
from greenstalk_server.protocol.costs import (
    EXAMINE_COST,
    NAME_COST,
    NEW_TUBE_COST,
    OUTPUT_SLICE,
    SHORT_LIST,
    UNPAUSE_COST,
    WATCHED_BATCH,
    WATCHED_COST,
)
from greenstalk_server.protocol.framing import Framing, Handler
from greenstalk_server.protocol.streams import BodyStream, NameStream
from greenstalk_server.protocol.work import Kick, Work


class Session(Framing):
    """The conversation of one connection with the broker; `Framing` describes the attributes."""

    __slots__ = ()

    def __init__(self, broker: Broker, wake: Callable[[], None]) -> None:
        """See Framing."""
        super().__init__(broker, wake)
        self._handlers = HANDLERS

    # Verbs: each returns its reply, or None if the commands after it have to wait

    def _reserve(self, command: Command, now: int) -> bytes | None:
        self._broker.counters.cmd_reserve += 1
        return self._reserve_until(None, now)

    def _reserve_with_timeout(self, command: Command, now: int) -> bytes | None:
        self._broker.counters.cmd_reserve_with_timeout += 1
        _, timeout = command
        return self._reserve_until(None if timeout is None else now + timeout, now)

    def _reserve_until(self, until: int | None, now: int) -> bytes | None:
        broker, client = self._broker, self.client
        if not client.is_worker:
            broker.note_worker(client)
        if self._reserve_cost:
            self._add_reserve_cost()
        job = broker.reserve(client, now)
        if job is not None:
            return self._job_reply(job, False, now)
        outcome = broker.wait(client, now if self._is_eof else until, now)
        if outcome == WaitOutcome.WAITING:
            self.is_waiting = True
            return None
        return self._ended_wait_reply(outcome)

    def _wait_reply(self, now: int) -> bytes | None:
        """Return the reply that ends the client's wait."""
        outcome, self.client.outcome = self.client.outcome, None  # else a deleted job would stay in memory
        return self._job_reply(outcome, False, now) if isinstance(outcome, Job) else self._ended_wait_reply(outcome)

    def _ended_wait_reply(self, outcome: int | None) -> bytes:
        """Return the reply to a wait that ended without a job."""
        return replies.DEADLINE_SOON if outcome == WaitOutcome.DEADLINE_SOON else replies.TIMED_OUT

    def _job_reply(self, job: Job, is_peek: bool, now: int) -> bytes | None:
        """Return the reply with *job*, RESERVED or, if *is_peek*, FOUND; None if it has to wait for the body."""
        body = job.body
        if body is None:
            self._await_body(job, is_peek)
            return None
        return self._body_reply(job, body, is_peek, now)

    def _body_reply(self, job: Job, body: bytes, is_peek: bool, now: int) -> bytes:
        self.cost += len(body)
        if len(body) > OUTPUT_SLICE:
            self.stream = BodyStream(body)
            return replies.found_line(job.id, body) if is_peek else replies.reserved_line(job.id, body)
        return replies.found(job.id, body) if is_peek else replies.reserved(job.id, body)

    def _await_body(self, job: Job, is_peek: bool) -> None:
        """Park until the body of *job* is read back."""
        bodies = self._broker.bodies
        assert bodies is not None
        self.is_waiting = True
        self._awaited, self._is_peek = job, is_peek
        self._is_body_here = False
        bodies.fetch(job, self._take_body)

    def _take_body(self, body: bytes | None) -> None:
        """Take the body that the session waits for, None if it is lost, and have `resume` called."""
        if self._awaited is not None:
            self._body = body
            self._is_body_here = True
            self.client.wake()

    def _awaited_reply(self, now: int) -> bytes:
        """Return the reply that waited for a body."""
        job, body = self._awaited, self._body
        assert job is not None
        self._awaited = self._body = None
        if body is not None:
            return self._body_reply(job, body, self._is_peek, now)
        if self._is_peek:
            return replies.INTERNAL_ERROR if job.id in self._broker.jobs else replies.NOT_FOUND
        self._broker.bury(self.client, job.id, job.pri, now)  # else later reserves would fail on the same job
        return replies.INTERNAL_ERROR

    def _reserve_job(self, command: Command, now: int) -> bytes | None:
        _, id = command
        job = self._broker.reserve_job(self.client, id, now)
        if job is None:
            return replies.NOT_FOUND
        self._broker.note_worker(self.client)
        return self._job_reply(job, False, now)

    def _delete(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_delete += 1
        _, id = command
        return replies.DELETED if self._broker.delete(self.client, id, now) else replies.NOT_FOUND

    def _release(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_release += 1
        _, id, pri, delay = command
        is_released = self._broker.release(self.client, id, pri, delay, now)
        return replies.RELEASED if is_released else replies.NOT_FOUND

    def _bury(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_bury += 1
        _, id, pri = command
        return replies.BURIED if self._broker.bury(self.client, id, pri, now) else replies.NOT_FOUND

    def _touch(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_touch += 1
        _, id = command
        return replies.TOUCHED if self._broker.touch(self.client, id, now) else replies.NOT_FOUND

    def _peek(self, command: Command, now: int) -> bytes | None:
        self._broker.counters.cmd_peek += 1
        _, id = command
        return self.peek_reply(self._broker.jobs.get(id), now)

    def _peek_ready(self, command: Command, now: int) -> bytes | None:
        self._broker.counters.cmd_peek_ready += 1
        return self.peek_reply(self.client.used.ready.peek(), now)

    def _peek_delayed(self, command: Command, now: int) -> bytes | None:
        self._broker.counters.cmd_peek_delayed += 1
        return self.peek_reply(self.client.used.delayed.first(), now)

    def _peek_buried(self, command: Command, now: int) -> bytes | None:
        self._broker.counters.cmd_peek_buried += 1
        return self.peek_reply(self.client.used.first_buried(), now)

    def _begin_kick(self, command: Command, now: int) -> bytes | None:
        self._broker.counters.cmd_kick += 1
        _, bound = command
        tube = self.client.used
        state = BURIED if tube.buried else DELAYED
        present = len(tube.buried) or tube.delayed.count
        return self._do_work(Kick(tube, state, min(bound, present)), now)

    def _do_work(self, work: Work, now: int) -> bytes | None:
        """Do a slice of *work*; return the reply when it is done, else None, with `has_more` or `is_waiting` set."""
        reply = work.do_slice(self, self._broker, now)
        self.has_more = reply is None and not self.is_waiting
        self._work = work if self.has_more else None
        return reply

    def may_delete(self, id: int) -> bool:
        """Whether the client may delete the job *id*; True if there is no such job."""
        return True

    def peek_reply(self, job: Job | None, now: int) -> bytes | None:
        """Return the reply to a peek; None if it has to wait for the body."""
        return replies.NOT_FOUND if job is None else self._job_reply(job, True, now)

    def _kick_job(self, command: Command, now: int) -> bytes:
        _, id = command
        return replies.KICKED if self._broker.kick_job(id, now) else replies.NOT_FOUND

    def _use(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_use += 1
        _, name = command
        self._add_tube_cost(name)
        return replies.using(name) if self._broker.use(self.client, name) else replies.OUT_OF_MEMORY

    def _watch(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_watch += 1
        name = command[1]
        self._add_tube_cost(name)
        count = self._broker.watch(self.client, name)
        self._note_watched()
        return replies.watching(count) if count > 0 else replies.OUT_OF_MEMORY

    def _ignore(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_ignore += 1
        _, name = command
        count = self._broker.ignore(self.client, name)
        self._add_tube_cost(name)
        self._note_watched()
        return replies.watching(count) if count else replies.NOT_IGNORED

    def _note_watched(self) -> None:
        """Update the cost of a reserve, which depends on the number of watched tubes."""
        self._reserve_cost = len(self.client.watched) // WATCHED_BATCH * WATCHED_COST

    def _add_reserve_cost(self) -> None:
        """Add the cost of a reserve, without that of its job."""
        self.cost += self._reserve_cost
        if self.client.tube_set is None:
            self.cost += EXAMINE_COST * len(self.client.watched)

    def _pause_tube(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_pause_tube += 1
        _, name, delay, is_valid_name = command
        if not is_valid_name:
            raise codec.BadFormat
        if not delay:
            self.cost += UNPAUSE_COST
        return replies.PAUSED if self._broker.pause_tube(name, delay, now) else replies.NOT_FOUND

    def _stats(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_stats += 1
        return self._stats_reply(stats.server_stats(self._broker, now), None, now)

    def _stats_job(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_stats_job += 1
        _, id = command
        job = self._broker.jobs.get(id)
        return replies.NOT_FOUND if job is None else self._stats_reply(stats.job_stats(job, now), job, now)

    def _stats_tube(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_stats_tube += 1
        _, name = command
        tube = self._broker.tubes.get(name)
        return replies.NOT_FOUND if tube is None else self._stats_reply(stats.tube_stats(tube, now), tube, now)

    def _stats_reply(self, snapshot: stats.Snapshot, subject: Tube | Job | None, now: int) -> bytes:
        """Return the reply with *snapshot*, which is about *subject*, or about the server if that is None."""
        return self._count_reply(replies.stats(snapshot))

    def _list_tubes(self, command: Command, now: int) -> bytes:
        broker = self._broker
        broker.counters.cmd_list_tubes += 1
        if len(broker.tubes) <= SHORT_LIST:
            return self._count_reply(replies.name_list(broker.tubes))
        return self.list_names(broker.name_list())

    def _list_tube_used(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_list_tube_used += 1
        return replies.using(self.client.used.name)

    def _list_tubes_watched(self, command: Command, now: int) -> bytes:
        self._broker.counters.cmd_list_tubes_watched += 1
        watched = self.client.watched
        if len(watched) <= SHORT_LIST:
            return self._count_reply(replies.name_list(watched))
        self.cost += NAME_COST * len(watched)
        return self.list_names(list_of(watched, self._broker.listed_names))

    def list_names(self, names: NameList) -> bytes:
        """Return the reply that lists *names*. If it is long, return its first line, and set `stream` to the rest."""
        if names.size <= OUTPUT_SLICE:
            return self._count_reply(replies.name_list(names.names()))
        self.cost += OUTPUT_SLICE + len(names.chunks)  # ends the slice
        if not names.acquire():
            self._broker.limit_counters.note("listings", self.client.address)
            return replies.OUT_OF_MEMORY
        self.stream = NameStream(names)
        return replies.ok_line(names.size)

    def _add_tube_cost(self, tube: bytes) -> None:
        """Add the cost of the tube that is about to be created, or was dropped, if there is none of this name."""
        if tube not in self._broker.tubes:
            self.cost += NEW_TUBE_COST

    def _count_reply(self, reply: bytes) -> bytes:
        self.cost += len(reply)
        return reply

    def _quit(self, command: Command, now: int) -> None:
        self.is_closing = True


HANDLERS: Final[dict[bytes, Handler]] = {
    codec.PEEK: Session._peek,
    codec.PEEK_READY: Session._peek_ready,
    codec.PEEK_DELAYED: Session._peek_delayed,
    codec.PEEK_BURIED: Session._peek_buried,
    codec.RESERVE: Session._reserve,
    codec.RESERVE_WITH_TIMEOUT: Session._reserve_with_timeout,
    codec.RESERVE_JOB: Session._reserve_job,
    codec.DELETE: Session._delete,
    codec.RELEASE: Session._release,
    codec.BURY: Session._bury,
    codec.KICK: Session._begin_kick,
    codec.KICK_JOB: Session._kick_job,
    codec.TOUCH: Session._touch,
    codec.STATS: Session._stats,
    codec.STATS_JOB: Session._stats_job,
    codec.STATS_TUBE: Session._stats_tube,
    codec.USE: Session._use,
    codec.WATCH: Session._watch,
    codec.IGNORE: Session._ignore,
    codec.LIST_TUBES: Session._list_tubes,
    codec.LIST_TUBE_USED: Session._list_tube_used,
    codec.LIST_TUBES_WATCHED: Session._list_tubes_watched,
    codec.QUIT: Session._quit,
    codec.PAUSE_TUBE: Session._pause_tube,
}
