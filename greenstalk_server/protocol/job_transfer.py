"""The encoding of jobs that move to another shard, for a call over a link: JSON, and the bodies. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from greenstalk_server.core import job_attributes
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.id_sequence import ID_END
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, Job
from greenstalk_server.core.tags.tags import TaggedJob
from greenstalk_server.core.transitions.moving import departing_copy
from greenstalk_server.core.travel import MAX_HOPS, Travel
from greenstalk_server.core.tube_names import is_tube_name
from greenstalk_server.core.tubes.tube import Tube

_NUMBERS: Final = ("id", "hops", "pri", "delay", "ttr", "created_at", "deadline", "state", "kind", "size")
_COUNTS: Final = ("reserves", "timeouts", "releases", "buries", "kicks")
_LIMIT: Final = 2**63
_U32: Final = 2**32

_KINDS: Final = (job_history.DEAD_LETTERED, job_history.REDRIVEN, job_history.MOVED)


class Arrival(NamedTuple):
    """A job that has come from another shard, in a tube that only has the name.

    hops    number of this move of the job.
    kind    event of the move.
    """

    job: Job
    hops: int
    kind: int


def encode_job(job: Job, body: bytes) -> dict[str, object]:
    """Return the facts about *job*, which is in the outbox, as JSON. Its *body* is sent separately."""
    travel, copy = Travel.unpack(job.travel), departing_copy(job, body)
    facts: dict[str, object] = {
        "id": job.id,
        "hops": travel.hops + 1,
        "pri": copy.pri,
        "delay": copy.delay,
        "ttr": copy.ttr,
        "created_at": copy.created_at,
        "deadline": copy.deadline,
        "state": copy.state,
        "kind": travel.kind,
        "size": copy.size,
        "tube": travel.target.decode(),
        "events": copy.events.hex(),
        "attributes": job_attributes.encode(copy).hex(),
    }
    return facts | {name: getattr(copy, name) for name in _COUNTS}


def decode_job(facts: Mapping[str, Any], bodies: bytes, at: int) -> Arrival:
    """Return the job that *facts* describe, whose body begins at the offset *at* of *bodies*.

    Raise ValueError if the facts are malformed.
    """
    try:
        return _decode(facts, bodies, at)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("incomplete") from error


def end_of(facts: Any, bodies: bytes, at: int) -> int:
    """Return the offset in *bodies* behind the job that *facts* describe; -1 if it cannot be known."""
    size = facts.get("size") if isinstance(facts, dict) else None
    return at + size if type(size) is int and 0 <= size <= len(bodies) - at else -1


def _decode(facts: Mapping[str, Any], bodies: bytes, at: int) -> Arrival:
    numbers = {name: _number(facts[name], _LIMIT) for name in _NUMBERS}
    counts = {name: _number(facts[name], _U32) for name in _COUNTS}
    name, size, state = facts["tube"].encode(), numbers["size"], numbers["state"]
    if not is_tube_name(name) or at + size > len(bodies) or state not in (READY, DELAYED, BURIED):
        raise ValueError("invalid tube, size or state")
    if (
        not 0 < numbers["id"] < ID_END
        or not 0 < numbers["hops"] <= MAX_HOPS
        or numbers["pri"] >= _U32
        or not numbers["ttr"]
    ):
        raise ValueError("invalid number")
    if numbers["kind"] not in _KINDS:
        raise ValueError("invalid kind")
    attributes, events = bytes.fromhex(facts["attributes"]), bytes.fromhex(facts["events"])
    if len(events) not in job_history.SIZES:
        raise ValueError("invalid events")
    body, tags = bodies[at : at + size], job_attributes.tags_in(attributes)
    fields = (numbers["id"], Tube(name, {}), body, numbers["pri"], numbers["delay"], numbers["ttr"])
    if tags is None:
        job = Job(*fields, numbers["created_at"])
    else:
        job = TaggedJob(*fields, numbers["created_at"], tags.packed())
    job_attributes.decode_into(job, attributes)
    job.state, job.deadline, job.events = state, numbers["deadline"], events
    job.reserves, job.timeouts, job.releases = counts["reserves"], counts["timeouts"], counts["releases"]
    job.buries, job.kicks = counts["buries"], counts["kicks"]
    return Arrival(job, numbers["hops"], numbers["kind"])


def _number(value: object, limit: int) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError("not a number in its range")
    return value
