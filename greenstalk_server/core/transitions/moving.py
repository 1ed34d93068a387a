"""Jobs that come from other shards, and what shards tell each other about the places of jobs. Pure.

See greenstalk_server.core.moves for the state, and `departing` for the jobs that leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job_attributes import DeadLetter
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, READY, Job
from greenstalk_server.core.outcomes import Refusal
from greenstalk_server.core.policies.tube_policy_state import key_of
from greenstalk_server.core.transitions.departing import finish_move, moves_of, stay
from greenstalk_server.core.transitions.enforcing import make_room, refuse_move
from greenstalk_server.core.transitions.placing import insert
from greenstalk_server.core.travel import NO_LOCATION, NOWHERE, Location, Travel, is_moving
from greenstalk_server.core.tubes.tube import Tube


def dead_letter_of(job: Job, travel: Travel) -> bytes:
    """Return the packed DeadLetter that *job* gets in its target tube, by *travel*."""
    if travel.kind == job_history.REDRIVEN:
        return b""
    if travel.kind != job_history.DEAD_LETTERED:
        return job.dead_letter
    first_at = DeadLetter.unpack(job.dead_letter).first_at if job.dead_letter else travel.at
    return DeadLetter(travel.reason, job.tube.name, job.attempts, first_at, travel.at).pack()


def departing_copy(job: Job, body: bytes) -> Job:
    """Return *job*, which is in the outbox and has *body*, as the other shard gets it; its tube is still the source."""
    travel = Travel.unpack(job.travel)
    copy = job.copy_with(job.tube, body)
    copy.holder, copy.travel, copy.dead_letter = None, b"", dead_letter_of(job, travel)
    copy.former_state = copy.former_deadline = 0
    if travel.kind == job_history.MOVED:
        if job.former_state:
            copy.state, copy.deadline = job.former_state, job.former_deadline
    else:
        copy.state, copy.deadline = READY, travel.at
    if travel.kind == job_history.REDRIVEN:
        copy.expires_from = travel.at
    return copy


Place: TypeAlias = tuple[int, int]
"""A shard, and the number of the move that may have taken a job there."""

HERE: Final[Place] = (-1, 0)
UNKNOWN: Final[Place] = (NOWHERE, 0)


def find(broker: Broker, id: int, hops: int = 0) -> Place:
    """Return where a command about the job *id* is served, for an asker that knows of its move number *hops*.

    The result is HERE, or another shard to ask, or UNKNOWN: the move has not ended here. If a shard to ask does not
    know of the move, this shard must be asked again, and then it does not name the same shard for the same move.
    """
    moves = moves_of(broker)
    if not (hops or moves.sent or moves.departed or moves.locations):  # neither side knows of a move
        return HERE
    job = broker.jobs.get(id)
    if job is not None:
        if not hops and id not in moves.sent:
            return HERE
        travel = Travel.unpack(job.travel)
        if id in moves.sent and travel.hops >= hops:
            return broker.tube_shards.shard_of(travel.target), travel.hops + 1
        return HERE if travel.hops + 1 >= hops else UNKNOWN
    departed = moves.departed.get(id, HERE)
    if departed[1] > hops:
        return departed
    location = moves.locations.get(id, NO_LOCATION)
    if location.hops < hops:
        return UNKNOWN
    if location.shard == NOWHERE or not (hops or id >= broker.ids.base):
        return HERE  # a job with an id from before the queue had several shards is looked for on all shards
    return location.shard, location.hops


def find_again(broker: Broker, id: int) -> Place:
    """Return the shard to ask about the job *id*, which has left this shard, if only a moment ago; else UNKNOWN."""
    place, ids = find(broker, id), broker.ids
    if place != HERE:
        return place
    if id in broker.jobs:
        return ids.shard, 0  # it has returned
    return (ids.home(id), 0) if id >= ids.base else UNKNOWN


def accept(broker: Broker, job: Job, hops: int, source: int, kind: int, now: int) -> int:
    """Add *job*, whose move number *hops* from the shard *source* this is; return 0, or a Refusal.

    Return 0 also if the shard has accepted this move before. *job* is new: detached, in its tube, which may be one that
    only stands for it, with its state, deadline and attributes.
    """
    moves, name = moves_of(broker), job.tube.name
    existing = broker.jobs.get(job.id)
    if existing is not None and hops > (travel := Travel.unpack(existing.travel)).hops:
        if not is_moving(existing.travel):
            return Refusal.ID_TAKEN
        finish_move(broker, job.id, travel.hops + 1, source, now)  # it has returned, so the other shard had accepted it
    elif existing is not None or moves.locations.get(job.id, NO_LOCATION).hops >= hops:
        return 0
    refusal = _refuse(broker, name, job.size)
    if refusal:
        return refusal
    _settle_in(broker, job, broker.tube(name), now)
    job.travel = Travel(hops, source).pack()
    if not broker.journal.arrive(job):
        broker.drop_if_unneeded(job.tube)
        return Refusal.JOURNAL
    moves.locations.pop(job.id, None)
    moves.forget_untold(job.id)
    _insert(broker, job, now)
    if kind == job_history.DEAD_LETTERED:
        job.tube.counts().received += 1
    broker.drop_if_unneeded(job.tube)
    return 0


def _refuse(broker: Broker, name: bytes, size: int) -> int:
    """Return why no job of *size* bytes may come to the tube *name*, or 0."""
    if broker.is_elsewhere(name):
        return Refusal.OTHER_SHARD
    if broker.bodies is not None and not broker.bodies.admit(size):
        return Refusal.MEMORY
    return refuse_move(broker, name, 1, size)


def _settle_in(broker: Broker, job: Job, tube: Tube, now: int) -> None:
    """Set the fields of *job* that depend on *tube*, its tube from now on."""
    job.tube = tube
    job.unique_key = b""
    if tube.policy_state is not None and tube.policy_state.keys is not None:
        job.unique_key = key_of(job.body or b"")
    job.attempts_base = job.reserves
    if job.state == BURIED:
        broker.burials += 1
        job.burial_number = broker.burials
    elif job.state == READY:
        job.ready_since = now


def _insert(broker: Broker, job: Job, now: int) -> None:
    """Add the recorded *job* to its tube."""
    tube = job.tube
    tube.using += 1  # no eviction may drop the tube
    make_room(broker, tube, job.size, now)
    tube.using -= 1
    insert(broker, job, now)
    tube.total_jobs -= 1  # it was counted when it was put
    broker.counters.total_jobs -= 1


def hear(broker: Broker, sender: int, news: Sequence[tuple[int, int, int]], now: int) -> None:
    """Note *news* of the shard *sender*: for each job its id, its place or NOWHERE, and the number of its moves.

    The sender had the job, so it had accepted what may still be in the outbox here.
    """
    moves = moves_of(broker)
    for id, shard, hops in news:
        accepted = hops if shard == NOWHERE else hops - 1
        job = moves.outbox.get(id)
        if job is not None and Travel.unpack(job.travel).hops < accepted:
            finish_move(broker, id, Travel.unpack(job.travel).hops + 1, sender, now)
        if moves.departed.get(id, HERE)[1] <= hops:
            moves.departed.pop(id, None)
        known = moves.locations.get(id)
        if known is None or not moves.is_home_of(id):
            continue  # without a location, the job is here, or another shard has told already that it is deleted
        if shard == NOWHERE:
            if known.hops <= hops:
                _forget_location(broker, id)
        elif known.hops < hops:
            location = Location(shard, hops, known.source)
            moves.locations[id] = location
            broker.journal.locate(id, location)


def confirm(broker: Broker, peer: int, told: Sequence[tuple[int, Location]]) -> None:
    """Note that *peer* knows the locations *told*; forget those that nobody needs any longer."""
    moves = moves_of(broker)
    waiting = moves.untold.get(peer, {})
    for id, location in told:
        if moves.locations.get(id) != location or id not in waiting:
            continue
        del waiting[id]
        if not moves.is_untold(id) and (location.shard == NOWHERE or not moves.is_home_of(id)):
            _forget_location(broker, id)
    if not waiting:
        moves.untold.pop(peer, None)


def resume_moves(broker: Broker, now: int) -> None:
    """After a start, tell all locations again; end moves whose target is here now, since the pins have changed."""
    moves = moves_of(broker)
    for id, location in moves.locations.items():
        moves.note_untold(id, location)
    for job in list(moves.outbox.values()):
        if not broker.is_elsewhere(Travel.unpack(job.travel).target):
            stay(broker, job, now)


def _forget_location(broker: Broker, id: int) -> None:
    moves = moves_of(broker)
    moves.locations.pop(id, None)
    moves.forget_untold(id)
    broker.journal.locate(id, NO_LOCATION)
