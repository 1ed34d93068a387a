"""Moves of jobs between the processes of a queue: sends the jobs of the outbox, and tells where jobs are.

The core records each step (greenstalk_server.core.moves); this module waits until the record is safe, calls the other
shard, and passes the answer to the core. A call may be repeated without harm, so after a failure it simply is. For each
shard at most one greenlet sends. Docstrings say which methods may switch greenlets.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import Any, Final

import gevent
from gevent.event import Event

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.moves import Moves
from greenstalk_server.core.outcomes import Refusal
from greenstalk_server.core.transitions import departing, moving
from greenstalk_server.core.travel import Travel
from greenstalk_server.net.committer import Committer
from greenstalk_server.net.link_calls import CALL_TIMEOUT, CallError, Message, MessageSizeError
from greenstalk_server.net.links import Links
from greenstalk_server.protocol.job_transfer import decode_job, encode_job, end_of
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.scheduling import yield_to_loop
from greenstalk_server.runtime.supervisor import Service

MAX_JOBS: Final = 32
"""Jobs of one call: about a millisecond."""

MAX_BODIES: Final = 2**19
"""Bytes of bodies of one call, unless a single job has more."""

MAX_NEWS: Final = 256
"""Locations of one call."""

RETRY_INTERVAL: Final = 0.5
"""Seconds before a failed call is repeated."""

MAX_RETRY_INTERVAL: Final = 30.0
"""Seconds after an internal error, at most. The interval doubles from RETRY_INTERVAL with each of them."""

MAX_REASON: Final = 200
"""Characters of a reason of another process that are logged."""

_REASONS: Final = {
    Refusal.MEMORY: "no memory is left",
    Refusal.JOURNAL: "the journal has no space, or cannot be written",
    Refusal.TUBE_FULL: "the tube is full",
    Refusal.TOO_BIG: "the job is too big for the tube",
    Refusal.ID_TAKEN: "it has a job with this id",
    Refusal.OTHER_SHARD: "the tube is not on this shard",
}
"""The reason for each refusal. All refusals that are not listed are limits of the server."""

ACCEPT: Final = "accept-jobs"
HEAR: Final = "hear-of-jobs"

log = logging.getLogger(__name__)


class MoveService:
    """Sends the jobs that leave the shard of *broker*, and takes those that come."""

    def __init__(self, links: Links, moves: Moves, broker: Broker, clock: Clock, committer: Committer | None) -> None:
        """*moves* are those of *broker*."""
        self._links: Links = links
        self._moves: Moves = moves
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._committer: Committer | None = committer
        self._changed: Event = Event()
        self._busy: set[int] = set()
        self._service: Service = Service("moves", self._run)
        self._is_stopping: bool = False

    def start(self) -> None:
        """Answer calls, and send what waits. Does not switch."""
        self._links.handlers[ACCEPT] = self._accept
        self._links.handlers[HEAR] = self._hear
        self._moves.on_change = self._changed.set
        self._changed.set()
        self._service.start()

    def stop(self) -> None:
        """Send no more. What is in the outbox stays there. Switches."""
        self._is_stopping = True
        self._service.stop()

    def _run(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            for shard in [*self._moves.leaving, *self._moves.untold]:
                if shard not in self._busy and self._has_work(shard):
                    self._busy.add(shard)
                    gevent.spawn(self._serve, shard)

    def _has_work(self, shard: int) -> bool:
        return bool(self._moves.leaving.get(shard) or self._moves.untold.get(shard))

    def _serve(self, shard: int) -> None:
        """Send to *shard* until nothing is left. Switches."""
        pause = RETRY_INTERVAL
        try:
            while not self._is_stopping and self._has_work(shard):
                try:
                    self._send_jobs(shard)
                    self._send_news(shard)
                    pause = RETRY_INTERVAL
                    yield_to_loop()
                except CallError as error:
                    log.debug("cannot move jobs to shard %d: %s", shard, error)
                    gevent.sleep(RETRY_INTERVAL)
                except Exception:
                    if pause == RETRY_INTERVAL:
                        log.exception("internal error: no jobs move to shard %d; trying again", shard)
                    gevent.sleep(pause)
                    pause = min(2 * pause, MAX_RETRY_INTERVAL)
        finally:
            self._busy.discard(shard)
            self._changed.set()

    def _send_jobs(self, shard: int) -> None:
        """Offer the first jobs of the outbox to *shard*; raise CallError. Switches."""
        jobs: list[Job] = []
        size = 0
        for job in islice(self._moves.leaving.get(shard, {}).values(), MAX_JOBS):
            size += job.size
            if jobs and size > MAX_BODIES:
                break
            jobs.append(job)
        if not jobs:
            return
        bodies = self._bodies_of(jobs)
        answers: dict[int, object] = {job.id: "the body cannot be read" for job in jobs if job.id not in bodies}
        known = [job for job in jobs if job.id in bodies]
        if known:
            self._await_journal()
            answers |= zip([job.id for job in known], self._offer(shard, known, bodies), strict=False)
        now = self._clock()
        refused: dict[str, list[Job]] = {}
        for job in jobs:
            if job.id not in answers:
                continue  # the other shard has not considered it
            answer = answers[job.id]
            if answer != 0:
                refused.setdefault(_reason_of(answer), []).append(job)
            self._finish(job, shard, answer == 0, now)
        for reason, some in refused.items():
            facts = {"jobs": len(some), "job": some[0].id, "tube": some[0].tube.name.decode()}
            log.warning("shard %d cannot take jobs, which stay where they are: %s", shard, reason, extra=facts)
        if self._committer is not None:
            self._committer.note_records()

    def _offer(self, shard: int, jobs: list[Job], bodies: dict[int, bytes]) -> list[object]:
        """Return the answers of *shard* to the first of *jobs*, at least one; raise CallError. Switches."""
        value = [encode_job(job, bodies[job.id]) for job in jobs]
        if self._links.is_linked(shard):
            self._moves.sent.update([job.id for job in jobs if self._moves.outbox.get(job.id) is job])
        try:
            answers = self._links.call(shard, ACCEPT, Message(value, b"".join([bodies[job.id] for job in jobs]))).value
        except MessageSizeError as error:
            return [str(error)]  # of a job that was put with a larger -z: such a job is alone in its call
        if not isinstance(answers, list) or not 0 < len(answers) <= len(jobs):
            raise CallError(f"malformed answer of shard {shard}")
        return answers

    def _finish(self, job: Job, shard: int, is_accepted: bool, now: int) -> None:
        if self._moves.outbox.get(job.id) is not job:
            return
        hops = Travel.unpack(job.travel).hops + 1
        if is_accepted:
            departing.finish_move(self._broker, job.id, hops, shard, now)
        else:
            departing.refuse(self._broker, job.id, hops, now)

    def _bodies_of(self, jobs: list[Job]) -> dict[int, bytes]:
        """Return the bodies of *jobs* by id; lost ones are missing. Switches."""
        if self._broker.bodies is not None:
            return self._broker.bodies.look(jobs)
        return {job.id: job.body for job in jobs if job.body is not None}

    def _send_news(self, shard: int) -> None:
        """Tell *shard* where jobs are that it knows; raise CallError. Switches."""
        news = self._moves.news_for(shard, MAX_NEWS)
        if news:
            self._await_journal()
            value = [[id, location.shard, location.hops] for id, location in news]
            self._links.call(shard, HEAR, Message(value))
            moving.confirm(self._broker, shard, news)
            if self._committer is not None:
                self._committer.note_records()

    def _await_journal(self) -> None:
        """Wait until all records are safe; raise CallError after CALL_TIMEOUT. Switches."""
        if self._committer is not None and not self._committer.wait(CALL_TIMEOUT):
            raise CallError("the journal cannot be written")

    # Calls of other processes

    def _accept(self, source: int, arguments: Message) -> Message:
        """Take jobs of the shard *source*; answer with 0, a Refusal, or the reason why a job is malformed, for each.

        A malformed job may hide where the body of the next one begins: then there are no answers to those behind it.
        Switches after all were taken.
        """
        if not 0 <= source < self._broker.ids.shards or not isinstance(arguments.value, list):
            raise CallError("no list of jobs of a shard")
        answers: list[int | str] = []
        now, at = self._clock(), 0
        try:
            for facts in arguments.value[:MAX_JOBS]:
                answers.append(self._take(facts, arguments.body, at, source, now))
                at = end_of(facts, arguments.body, at)
                if at < 0:
                    break
        finally:
            self._await_journal()
        return Message(answers)

    def _take(self, facts: Any, bodies: bytes, at: int, source: int, now: int) -> int | str:
        """Take the job that *facts* describe; return the answer."""
        try:
            job, hops, kind = decode_job(facts, bodies, at)
        except ValueError as error:
            return f"malformed job: {error}"
        return moving.accept(self._broker, job, hops, source, kind, now)

    def _hear(self, sender: int, arguments: Message) -> Message:
        """Note where jobs are that the shard *sender* had. Switches after all is noted."""
        news = arguments.value
        if not 0 <= sender < self._broker.ids.shards or not isinstance(news, list) or len(news) > MAX_NEWS:
            raise CallError("no list of places of a shard")
        if not all(isinstance(each, list) and [type(part) for part in each] == [int, int, int] for each in news):
            raise CallError("malformed place")
        places = [(id, shard, hops) for id, shard, hops in news if id > 0 and 0 < hops < 2**32 and 0 <= shard < 2**16]
        moving.hear(self._broker, sender, places, self._clock())
        self._await_journal()
        return Message()


def _reason_of(answer: object) -> str:
    """Return why a shard has refused a job with *answer*, for the log."""
    if isinstance(answer, int):
        return _REASONS.get(answer, "a limit of the server is reached")
    return str(answer)[:MAX_REASON]
