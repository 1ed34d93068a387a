"""Operations on the queue, shared by the pages and the API. Each writes its entry to the audit log.

An operation raises Forbidden unless the principal may operate each tube that it changes.

The changes of jobs that an operation makes can be undone (saved_changes.py). An operation on one job returns the
Recording of the change, which the caller must close once its response no longer depends on the job.

An operation calls the same broker methods as the protocol. The caller must wait for the journal (`commit`) before it
reports success. Long operations work in slices and yield to the event loop in between, so a caller must look up tubes
and jobs again afterwards. Only methods whose docstrings say so may switch greenlets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import Final, NoReturn

from werkzeug.exceptions import Conflict, ServiceUnavailable

from greenstalk_server.core.broker import SLICE, Broker
from greenstalk_server.core.job_attributes import DeadLetter
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, SECOND, STATE_NAMES, Job
from greenstalk_server.core.limits import LIMIT_NAMES
from greenstalk_server.core.operations import editing, finishing, kicking, putting
from greenstalk_server.core.outcomes import EditOutcome, Refusal
from greenstalk_server.core.tags.idempotency import scope_of
from greenstalk_server.core.tags.tags import Tags
from greenstalk_server.core.travel import is_moving
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.runtime.scheduling import yield_to_loop
from greenstalk_server.web.changes.queue_changes import QueueChanges
from greenstalk_server.web.changes.saved_changes import Recording
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import require_keys, require_operator
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.failures import JobHeld, PutRefused
from greenstalk_server.web.reads.jobs.bodies import BodyLost, iter_with_bodies, load_job_with_body
from greenstalk_server.web.reads.jobs.job_list import count_jobs
from greenstalk_server.web.reads.jobs.moving import target_of

MAX_REQUEST_TIME: Final = 20.0
"""Seconds that one request may spend on a long operation. Another request must do the rest."""

COMMIT_BATCH: Final = 8192
"""Jobs that a kick or a clear changes between two commits: less than a megabyte of journal records."""

SAVED_SLICE: Final = 64
"""Jobs that a kick or a clear saves and changes between two yields to the event loop: two milliseconds of work."""

MAX_MEASURED: Final = 1000
"""Maximum jobs whose sizes are added up to tell whether a clear can be undone. With more, the size of the whole tube is
used."""

MAX_REASON_LENGTH: Final = 200
"""Maximum characters of the reason for a pause."""


@dataclass(frozen=True, slots=True)
class Put:
    """A job to put; *delay* and *ttr* in seconds, to the millisecond."""

    tube: bytes
    pri: int
    delay: float
    ttr: float
    body: bytes
    tags: Tags | None = None


@dataclass(frozen=True, slots=True)
class Added:
    """The outcome of a put.

    id              id of the new job, or, if *is_duplicate*, of the earlier job with the same idempotency key or body,
                    which may be finished.
    is_duplicate    the put added nothing, because its idempotency key is taken, or because the policy of the tube
                    requires unique bodies (`unique`).
    """

    id: int
    is_duplicate: bool


@dataclass(frozen=True, slots=True)
class Changed:
    """The outcome of a change of several jobs.

    jobs            number of the changed or deleted jobs.
    change_number   number of the saved change; None if it cannot be undone.
    is_stopped      the change stopped early, because changed jobs could not be stored.
    problem         why the change cannot be undone or why it stopped, and which jobs cannot be put back; empty if all
                    jobs were stored.
    """

    jobs: int
    change_number: int | None
    is_stopped: bool
    problem: str

    @staticmethod
    def of(jobs: int, recording: Recording) -> Changed:
        """Return the outcome of a change, after its jobs are durably saved. Switches."""
        number = recording.close()
        return Changed(jobs, number, bool(recording.stopped), recording.outcome)


def to_nanoseconds(seconds: float) -> int:
    """Return *seconds* in nanoseconds, to the millisecond."""
    return round(seconds * 1000) * (SECOND // 1000)


class Operations(QueueChanges):
    """Operations on the queue of *broker*."""

    # Tubes

    def pause(self, tube: Tube, seconds: float, reason: str) -> None:
        """Pause *tube* for *seconds*: no client can reserve its jobs. May switch."""
        require_operator(tube.name)
        now = self._clock()
        editing.pause_tube(self._broker, tube.name, to_nanoseconds(seconds), now)
        self._saved.set_reason(tube.name.decode(), reason, tube.paused_until, now)
        shown = int(seconds) if seconds == int(seconds) else f"{seconds:.3f}"
        self._audit.note("tube/pause", tube=tube.name.decode(), seconds=shown, reason=reason)
        self._saved.save()

    def resume(self, tube: Tube) -> None:
        """End the pause of *tube*. May switch."""
        require_operator(tube.name)
        now = self._clock()
        editing.pause_tube(self._broker, tube.name, 0, now)
        self._saved.set_reason(tube.name.decode(), "", 0, now)
        self._audit.note("tube/resume", tube=tube.name.decode())
        self._saved.save()

    def kick(self, tube: Tube, state: int, bound: int) -> Changed:
        """Kick up to *bound* jobs of *tube* in *state*, BURIED or DELAYED. May switch.

        Stops early after MAX_REQUEST_TIME, or if the kicked jobs can no longer be saved for an undo.
        """
        require_operator(tube.name)
        name, bound = tube.name.decode(), min(bound, count_jobs(tube, state))
        recording = self._saved_changes.record_change(f"Retry {STATE_NAMES[state]} jobs of “{name}”", bound)

        def kick(found: Tube, left: int) -> int:
            return kick_slice(self._broker, found, state, left, recording, self._clock())

        kicked = self._in_slices(tube, bound, recording, kick)
        self._audit.note("tube/kick", tube=name, state=STATE_NAMES[state], jobs=kicked)
        return Changed.of(kicked, recording)

    def clear(self, tube: Tube, state: int) -> Changed:
        """Delete the jobs that *tube* has in *state* now. May switch.

        Stops early after MAX_REQUEST_TIME, or if the deleted jobs can no longer be saved for an undo.
        """
        require_operator(tube.name)
        name, below = tube.name.decode(), self._broker.next_id
        present = count_jobs(tube, state)
        title = f"Clear {STATE_NAMES[state]} jobs of “{name}”"
        recording = self._saved_changes.record_deletion(title, present, _size_of(tube, state, present))
        cleared = self._clear(tube, state, present, below, recording)
        self._audit.note("tube/clear", tube=name, state=STATE_NAMES[state], jobs=cleared)
        return Changed.of(cleared, recording)

    def flush(self, tube: Tube) -> Changed:
        """Delete all jobs that *tube* has now, including those that clients hold. May switch.

        First free the idempotency keys of the tube that have outlived their jobs.

        A pass may miss a job whose state changes during the pass, so passes repeat until one finds no job, or until
        MAX_REQUEST_TIME is over.
        """
        require_operator(tube.name)
        below, flushed, until = self._broker.next_id, 0, time.monotonic() + MAX_REQUEST_TIME
        keys, pace = self._broker.retained_keys.count(scope_of(tube.name)), Pace()
        while keys > 0 and (freed := editing.forget_keys(self._broker, tube.name, SLICE)):
            keys -= freed
            pace.yield_if_due()
        title = f"Flush “{tube.name.decode()}”"
        recording = self._saved_changes.record_deletion(title, tube.job_count, tube.body_bytes)
        found = -1
        while found and time.monotonic() < until:
            clients, ids = (*self._broker.clients, *self._broker.closing_clients), self._broker.ids
            held = (id for client in clients for id in [*client.reserved] if ids.is_older(id, below))
            found = self._delete(tube, held, RESERVED, recording, pace.yield_if_due)
            for state in (READY, DELAYED, BURIED):
                found += self._clear(tube, state, count_jobs(tube, state), below, recording)
            flushed += found
        self._audit.note("tube/flush", tube=tube.name.decode(), jobs=flushed)
        return Changed.of(flushed, recording)

    def clear_promise(self, name: str, state: str) -> str:
        """Return the sentence that says whether a clear of the jobs in *state* of the tube *name* could be undone."""
        tube = self._broker.tubes.get(name.encode())
        if tube is None:
            return ""
        number = STATE_NAMES.index(state)
        jobs = count_jobs(tube, number)
        return self._saved_changes.deletion_promise(jobs, _size_of(tube, number, jobs))

    # Jobs

    def put(self, new: Put) -> Added:
        """Put a job; raise PutRefused if the server cannot accept it."""
        require_operator(new.tube)
        require_keys(new.tags)
        self._refuse_puts()
        added = self._put(new)
        if not added.is_duplicate:
            self._audit.note("tube/put", tube=new.tube.decode(), id=added.id, bytes=len(new.body))
        return added

    def put_all(self, new: Collection[Put]) -> list[Added]:
        """Put several jobs and return the outcomes. Raise PutRefused, with the ids put so far, at the first failure.

        May switch.
        """
        for name in {one.tube for one in new}:
            require_operator(name)
        for one in new:
            require_keys(one.tags)
        self._refuse_puts()
        pace, outcomes = Pace(), list[Added]()
        tubes: dict[bytes, list[int]] = {}
        try:
            for one in new:
                added = self._put(one)
                outcomes.append(added)
                if not added.is_duplicate:
                    tubes.setdefault(one.tube, []).append(added.id)
                pace.yield_if_due()
        except PutRefused as error:
            ids = [added.id for added in outcomes if not added.is_duplicate]
            done = f"{len(ids)} of the jobs {'was' if len(ids) == 1 else 'were'} put."
            raise PutRefused(error.why, done, status=error.status, ids=ids) from None
        finally:
            for name, put in tubes.items():
                self._audit.note("tube/put", tube=name.decode(), id=put[0], jobs=len(put))
        return outcomes

    def kick_job(self, job: Job) -> Recording:
        """Make *job* ready; raise Conflict unless it is buried or delayed."""
        require_operator(job.tube.name)
        if job.state not in (BURIED, DELAYED):
            raise Conflict(f"Job {job.id} is {STATE_NAMES[job.state]}. Only a buried or delayed job can be retried.")
        with self._recorded(job, f"Retry {_named(job)}") as recording:
            kicking.kick_job(self._broker, job.id, self._clock())
        self._audit.note("job/kick", id=job.id, tube=job.tube.name.decode())
        return recording

    def bury_job(self, job: Job, is_forced: bool) -> Recording:
        """Bury *job*; raise Conflict if it is already buried, or held and not *is_forced*."""
        require_operator(job.tube.name)
        if job.state == BURIED:
            raise Conflict(f"Job {job.id} is buried already.")
        if job.state == RESERVED and (not is_forced or is_moving(job.travel)):
            self._refuse_held(job, "buried")
        with self._recorded(job, f"Bury {_named(job)}") as recording:
            finishing.bury_job(self._broker, job.id, self._clock(), is_forced)
        self._audit.note("job/bury", id=job.id, tube=job.tube.name.decode())
        return recording

    def release_job(self, job: Job, is_forced: bool) -> None:
        """Take *job* from the client that holds it and make it ready.

        Raise Conflict if the job is not reserved, or if not *is_forced*.
        """
        require_operator(job.tube.name)
        if job.state != RESERVED:
            raise Conflict(f"Job {job.id} is {STATE_NAMES[job.state]}. Only a reserved job can be released.")
        if not is_forced or is_moving(job.travel):
            self._refuse_held(job, "released")
        finishing.release_job(self._broker, job.id, self._clock())
        self._audit.note("job/release", id=job.id, tube=job.tube.name.decode())

    def delete_job(self, find: Callable[[], Job], is_forced: Callable[[Job], bool]) -> Recording:
        """Delete the job that *find* returns. May switch.

        Raise JobHeld if a client holds the job and not *is_forced*. *find* and *is_forced* may raise exceptions.
        """
        job = find()
        require_operator(job.tube.name)
        recording = self._saved_changes.record_deletion(f"Delete {_named(job)}", 1, job.size)
        body = None
        if recording.is_active:
            with suppress(BodyLost):
                job, body = load_job_with_body(self._broker, find)
            require_operator(job.tube.name)  # the job may have moved to another tube
        name = job.tube.name.decode()
        before = recording.encode(job, body)
        if not finishing.delete_job(self._broker, job.id, self._clock(), is_forced(job)):
            self._refuse_held(job, "deleted")
        recording.add(before)
        self._audit.note("job/delete", id=job.id, tube=name)
        return recording

    def move_job(self, job: Job, body: bytes, name: bytes, is_forced: bool) -> Recording:
        """Move *job*, whose body is *body*, to the tube *name*; its state stays."""
        old = job.tube.name
        require_operator(old)
        require_operator(name)
        if name == old:
            raise Conflict(f"Job {job.id} is in the tube “{name.decode()}” already.")
        with self._recorded(job, f"Move {_named(job)} to “{name.decode()}”") as recording:
            done = editing.edit_job(self._broker, job.id, self._clock(), tube=name, body=body, is_forced=is_forced)
            self._refuse_failed_edit(job, done, "moved")
        self._audit.note("job/move", id=job.id, tube=old.decode(), to=name.decode())
        return recording

    def edit_job(self, job: Job, body: bytes, changes: Changes, is_forced: bool) -> Recording:
        """Apply *changes*, which must not be empty, to *job*, whose body is *body*.

        Raise JobHeld if a client holds the job and not *is_forced*.
        """
        require_operator(job.tube.name)
        with self._recorded(job, f"Change {_named(job)}", body if changes.body is not None else None) as recording:
            done = editing.edit_job(
                self._broker,
                job.id,
                self._clock(),
                pri=changes.pri,
                delay=changes.delay,
                ttr=changes.ttr,
                body=changes.body if changes.body is not None else body,
                is_renewed=changes.is_renewed,
                is_forced=is_forced,
            )
            self._refuse_failed_edit(job, done, "changed")
        self._audit.note("job/edit", id=job.id, tube=job.tube.name.decode(), changed=changes.names())
        return recording

    def copy_job(self, job: Job, body: bytes, delay: float) -> int:
        """Put a copy of *job*, whose body is *body*, into the same tube with a delay of *delay* seconds; return its id.

        Raise Conflict if the policy of the tube allows no second job with this body.
        """
        tube = job.tube
        require_operator(tube.name)
        self._refuse_puts()
        added = self._put(Put(tube.name, job.pri, delay, job.ttr / SECOND, body))
        if added.is_duplicate:
            raise Conflict(
                f"Job {job.id} was not copied: job {added.id} has the same body, and a policy allows the tube"
                f" “{tube.name.decode()}” only one such job (unique)."
            )
        self._audit.note("job/copy", id=added.id, of=job.id, tube=tube.name.decode(), bytes=job.size)
        return added.id

    def redrive_job(self, job: Job) -> Recording:
        """Move the dead-lettered *job* back to the tube that it came from, ready there as a new job.

        Raise Conflict if the job is not a dead letter, JobHeld if a client holds it, and PutRefused if that tube cannot
        take it.
        """
        require_operator(job.tube.name)
        if not job.dead_letter:
            raise Conflict(f"Job {job.id} is not a dead letter, so there is no tube to move it back to.")
        tube, source = job.tube.name.decode(), DeadLetter.unpack(job.dead_letter).source.decode()
        require_operator(source.encode())
        with self._recorded(job, f"Retry {_named(job)}: move it back to “{source}”") as recording:
            outcome = editing.redrive(self._broker, job.id, self._clock())
            if outcome == EditOutcome.RESERVED:
                self._refuse_held(job, "moved")
            if outcome == EditOutcome.NO_ROOM:
                why = f"The tube “{source}” cannot take the job: the tube is full, or a limit of the server is reached."
                raise PutRefused(why, "Nothing was moved.", status=PutRefused.FULL)
            assert outcome == EditOutcome.DONE
        self._audit.note("job/redrive", id=job.id, tube=tube, to=source)
        return recording

    # Refusals

    def _refuse_puts(self) -> None:
        """Raise ServiceUnavailable if the server is draining."""
        if self._broker.is_draining:
            raise ServiceUnavailable("The server is draining and accepts no new jobs. Nothing was put.")

    def _refuse_held(self, job: Job, done: str) -> NoReturn:
        if target := target_of(job):
            raise JobHeld(f"Job {job.id} was not {done}: it is moving to the tube “{target}” on another shard.")
        left = text.duration(max(0, job.deadline - self._clock()) // SECOND)
        raise JobHeld(
            f"Job {job.id} was not {done}: a client holds it, for at most {left} more. Try again once the client has"
            " finished with it or its time to run has ended."
        )

    def _refuse_failed_edit(self, job: Job, outcome: int, done: str) -> None:
        if outcome == EditOutcome.RESERVED:
            self._refuse_held(job, done)
        if outcome == EditOutcome.NO_ROOM:
            self._refuse_no_room("changed")
        assert outcome == EditOutcome.DONE

    def _refuse_no_room(self, done: str) -> NoReturn:
        error = self._broker.journal.write_error
        why = f"The journal cannot store the job: {error or 'the disk has no room for it'}."
        status = PutRefused.FULL if error is None else HTTPStatus.SERVICE_UNAVAILABLE
        raise PutRefused(why, f"Nothing was {done}.", status=status)

    # Implementation

    @contextmanager
    def _recorded(self, job: Job, title: str, body: bytes | None = None) -> Iterator[Recording]:
        """Save *job* before and after the block, which changes it without a switch, or raises an exception.

        *body* is the present body if the block replaces it.
        """
        recording = self._saved_changes.record_change(title, 1, -1 if body is None else len(body))
        before = recording.encode(job, body)
        yield recording
        recording.add(before, self._broker.jobs.get(job.id))

    def _put(self, new: Put) -> Added:
        broker, new_id = self._broker, self._broker.next_id
        delay, ttr = to_nanoseconds(new.delay), to_nanoseconds(new.ttr)
        id = putting.put_into(broker, new.tube, new.pri, delay, ttr, new.body, self._clock(), new.tags)
        if id < 0:
            self._refuse_put(new, id)
        return Added(id, is_duplicate=id != new_id)

    def _refuse_put(self, new: Put, refusal: int) -> NoReturn:
        if refusal == Refusal.JOURNAL:
            self._refuse_no_room("put")
        status = PutRefused.FULL
        if refusal == Refusal.MEMORY:
            why = "Jobs use all the memory that the server allows for them (--memory-limit)."
        elif refusal in (Refusal.TUBE_FULL, Refusal.TOO_BIG):
            policy = self._broker.policies.effective(new.tube)
            tube = f"the tube “{new.tube.decode()}”"
            if policy is not None and policy.copy_to:
                tube += ", or a tube to which its policy copies each job,"
            if refusal == Refusal.TUBE_FULL:
                why = f"A policy limits {tube} by max_jobs or max_bytes, and there is no room for another job."
            else:
                why = f"A policy limits {tube} by max_job_size, and the body has {text.number(len(new.body))} bytes."
                status = PutRefused.TOO_BIG
        else:
            why = f"A limit of the server is reached: {LIMIT_NAMES[refusal]}."
        raise PutRefused(why, "Nothing was put.", status=status)

    def _clear(self, tube: Tube, state: int, bound: int, below: int, recording: Recording) -> int:
        """Delete up to *bound* jobs of *tube* in *state* with ids below *below*; return how many. May switch."""

        def clear(found: Tube, left: int) -> int:
            if not recording.is_active:
                return finishing.clear(self._broker, found, state, left, below, self._clock())
            scanned = islice(found.walk(state), finishing.MAX_CLEAR_SCAN)
            ids = list(
                islice((job.id for job in scanned if self._broker.ids.is_older(job.id, below)), min(left, SAVED_SLICE))
            )
            return self._delete(found, ids, state, recording, lambda: None)

        return self._in_slices(tube, bound, recording, clear)

    def _delete(
        self, tube: Tube, ids: Iterable[int], state: int, recording: Recording, yield_if_due: Callable[[], None]
    ) -> int:
        """Delete the jobs *ids* that are in *tube* and in *state*, saving them; return how many. May switch."""
        deleted = 0

        def wants_body(job: Job) -> bool:
            return recording.wants_bodies and job.tube is tube and job.state == state

        if recording.stopped:
            return 0
        for _, job, body in iter_with_bodies(self._broker, ids, wants_body, yield_if_due):
            if job is None or job.tube is not tube or job.state != state:
                continue
            before = recording.encode(job, body)
            if finishing.delete_job(self._broker, job.id, self._clock(), state == RESERVED):
                deleted += 1
                recording.add(before)
                if recording.is_full and recording.flush():
                    break
        return deleted

    def _in_slices(self, tube: Tube, bound: int, recording: Recording, change: Callable[[Tube, int], int]) -> int:
        """Change up to *bound* jobs of *tube*, and return how many were changed. May switch.

        Commits between slices, so that few records are pending. Stops early if the journal does not keep up, or the
        changed jobs cannot be saved.

        *change* takes the maximum number of jobs to change, and returns how many it has changed; 0 if none are left.
        """
        changed, uncommitted, until = 0, 0, time.monotonic() + MAX_REQUEST_TIME
        while changed < bound and not recording.stopped and self._broker.tubes.get(tube.name) is tube:
            slice = change(tube, bound - changed)
            if not slice:
                break
            changed += slice
            uncommitted += slice
            yield_to_loop()
            if recording.is_full:
                recording.flush()
            if uncommitted >= COMMIT_BATCH:
                if not self._commit():
                    break
                uncommitted = 0
            if time.monotonic() > until:
                break
        return changed


def kick_slice(broker: Broker, tube: Tube, state: int, bound: int, recording: Recording, now: int) -> int:
    """Kick up to *bound* jobs of *tube* in *state*, BURIED or DELAYED, saving them; return how many.

    A call kicks at most SAVED_SLICE jobs, or SLICE if they are not saved. Does not switch.
    """
    if not recording.is_active:
        return kicking.kick(broker, tube, state, bound, now)
    first = tube.first_buried if state == BURIED else tube.delayed.first
    kicked = 0
    while kicked < min(bound, SAVED_SLICE) and (job := first()) is not None:
        before = recording.encode(job)
        kicking.kick_job(broker, job.id, now)
        recording.add(before, job)
        kicked += 1
    return kicked


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes to a job. Times are in nanoseconds. None means unchanged.

    is_renewed      the job expires as if it had been put now.
    """

    pri: int | None
    delay: int | None
    ttr: int | None
    body: bytes | None
    is_renewed: bool = False

    def names(self) -> str:
        """Return the names of the changed values, separated by commas; empty if nothing changes."""
        changed = [name for name in ("pri", "delay", "ttr", "body") if getattr(self, name) is not None]
        return ", ".join([*changed, "expiry"] if self.is_renewed else changed)


def _named(job: Job) -> str:
    """Return the job and its tube for the title of a change."""
    return f"job {job.id} of “{job.tube.name.decode()}”"


def _size_of(tube: Tube, state: int, jobs: int) -> int:
    """Return the bytes of the bodies of the *jobs* jobs of *tube* in *state*; if they are many, an upper bound."""
    return tube.body_bytes if jobs > MAX_MEASURED else sum([job.size for job in tube.walk(state)])
