"""Changes of existing jobs and tubes: fields, priorities, moves, redrives, pauses, and the release of keys. Pure."""

from __future__ import annotations

from greenstalk_server.core.broker import SLICE, Broker
from greenstalk_server.core.job_attributes import DeadLetter
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, Job
from greenstalk_server.core.outcomes import EditOutcome
from greenstalk_server.core.policies.tube_policy_state import key_of
from greenstalk_server.core.tags.idempotency import scope_of
from greenstalk_server.core.transitions.departing import begin_move
from greenstalk_server.core.transitions.enforcing import move, refuse_move
from greenstalk_server.core.transitions.placing import replace, set_priority
from greenstalk_server.core.transitions.reservation import update_throttle
from greenstalk_server.core.transitions.waiting import offer
from greenstalk_server.core.travel import is_moving


def edit_job(
    broker: Broker,
    id: int,
    now: int,
    *,
    tube: bytes | None = None,
    pri: int | None = None,
    delay: int | None = None,
    ttr: int | None = None,
    body: bytes | None = None,
    is_renewed: bool = False,
    is_forced: bool = False,
) -> int:
    """Change the given fields of job *id*, all or none; it keeps its id, age and counts. Return an EditOutcome.

    *tube* moves the job, which keeps its state; its count of attempts restarts. After *delay*
    nanoseconds a ready or delayed job becomes ready; *delay* has no effect on a reserved or buried job. *is_renewed*
    makes the job expire as if it had been put now. A reserved job is changed only if *is_forced*: its holder keeps
    the job, its deadline, and the body that it has received. The caller has to give *body* if the job's body is on
    disk (see Bodies.look). With any outcome but DONE nothing has changed.

    A move to a tube of another shard changes nothing else. It is under way when this returns DONE; if the other shard
    refuses the job, the job returns.
    """
    old = broker.jobs.get(id)
    if old is None:
        return EditOutcome.NOT_FOUND
    if old.state == RESERVED and (not is_forced or is_moving(old.cold.travel)):
        return EditOutcome.RESERVED
    if tube is not None and broker.is_elsewhere(tube):
        return _move_elsewhere(broker, old, tube, now)
    if body is None:
        body = old.body
    if body is None:
        return EditOutcome.BODY_ON_DISK
    target = old.tube if tube is None else broker.tube(tube)
    new = old.copy_with(target, body)
    new.pri = old.pri if pri is None else pri
    new.ttr = old.ttr if ttr is None else ttr
    _set_delay(new, delay, now)
    if is_renewed:
        new.expires_from = now
    new.unique_key = key_of(body) if target.policy_state is not None and target.policy_state.keys is not None else b""
    is_move = target is not old.tube
    if is_move:
        new.attempts_base = new.reserves - (new.state == RESERVED)
    if is_move and new.state == BURIED:
        broker.burials += 1
        new.burial_number = broker.burials
    kind = job_history.MOVED if is_move else job_history.EDITED
    new.events = job_history.add(new.events, kind, now, job_history.NOBODY)
    if not broker.journal.replace(old, new):
        broker.drop_if_unneeded(target)
        return EditOutcome.NO_ROOM
    replace(broker, old, new, now)
    broker.drop_if_unneeded(old.tube)
    return EditOutcome.DONE


def _move_elsewhere(broker: Broker, job: Job, tube: bytes, now: int) -> int:
    """Move *job*, unless a client holds it, to the *tube* of another shard, in its state; return an EditOutcome."""
    if job.state == RESERVED:
        return EditOutcome.RESERVED
    job.tube.remove(job)
    begin_move(broker, job, tube, job_history.MOVED, 0, now)
    return EditOutcome.DONE


def _set_delay(job: Job, delay: int | None, now: int) -> None:
    """If the detached *job* is ready or delayed, make it ready *delay* nanoseconds after *now*.

    If *delay* is None, a delayed job keeps its deadline.
    """
    if delay is not None and job.state in (READY, DELAYED):
        job.delay = delay
        job.state = DELAYED if delay else READY
        job.deadline = now + delay
    elif job.state == READY:
        job.ready_since = now  # `ReadyQueue.add` takes jobs in the order of `ready_since`


def reprioritize(broker: Broker, id: int, pri: int, now: int) -> int:
    """Give the ready, delayed or buried job *id* the priority *pri*; return DONE, NOT_FOUND or RESERVED."""
    job = broker.jobs.get(id)
    if job is None:
        return EditOutcome.NOT_FOUND
    if job.state == RESERVED:
        return EditOutcome.RESERVED
    set_priority(broker, job, pri, now)
    return EditOutcome.DONE


def redrive(broker: Broker, id: int, now: int) -> int:
    """Move the dead-lettered job *id* back to the tube that it came from, as a new job; return an EditOutcome.

    The job is ready there and no longer a dead letter; its attempts and its age restart.
    """
    job = broker.jobs.get(id)
    if job is None or not job.dead_letter:
        return EditOutcome.NOT_FOUND
    if job.state == RESERVED:
        return EditOutcome.RESERVED
    source = DeadLetter.unpack(job.dead_letter).source
    if source != job.tube.name and refuse_move(broker, source, 1, job.size):
        return EditOutcome.NO_ROOM
    job.tube.remove(job)
    if broker.is_elsewhere(source):
        begin_move(broker, job, source, job_history.REDRIVEN, 0, now)
        return EditOutcome.DONE
    job.dead_letter = b""
    job.expires_from = now
    move(broker, job, broker.tube(source), job_history.REDRIVEN, now)
    return EditOutcome.DONE


def pause_tube(broker: Broker, name: bytes, delay: int, now: int) -> bool:
    """Pause reserves from the tube *name* for *delay* nanoseconds; 0 ends a pause.

    Return False if there is no such tube.
    """
    tube = broker.tubes.get(name)
    if tube is None:
        return False
    tube.cmd_pause_tube += 1
    is_changed = delay > 0 or tube.paused_until > now
    tube.pause = delay
    tube.paused_until = now + delay if delay else 0
    broker.journal.pause(tube)
    update_throttle(tube, now)
    if delay:
        broker.arm(tube, tube.paused_until)
    else:
        offer(broker, tube, SLICE, now)
    if is_changed:
        for listener in broker.listeners:
            listener.on_tube_paused(tube)
    broker.drop_if_unneeded(tube)
    return True


def forget_keys(broker: Broker, tube: bytes, limit: int) -> int:
    """Free up to *limit* idempotency keys of the tube *tube* that have outlived their jobs; return how many.

    *limit* is at most SLICE, because each key needs a record in the journal.
    """
    scope = scope_of(tube)
    keys = broker.retained_keys.forget(scope, limit)
    for key in keys:
        broker.journal.key(scope, key, 0, 0)
    return len(keys)
