"""Bodies for whoever looks at them, though they may be on disk alone (see core.body_cache), where they stay.

A body that has to be read back takes a few milliseconds, in which others have their turn: what one knew of jobs before
is to be looked up anew after. Many are read in lots, so that neither their number nor their size matters. Only what
says so may switch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final

from werkzeug.exceptions import Conflict, InternalServerError

from greenstalk_server.core.body_cache import held_bodies
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import Job

ON_DISK: Final = "(on disk)"
"""What stands in a list where a body would begin that is not in memory."""

BATCH_SIZE: Final = 256
BATCH_BYTES: Final = 2**20
"""Bodies, and bytes of them, that are read back in one go; the last one may pass that."""

MAX_LOOKAHEAD: Final = 4096
"""Jobs among which those of a lot are looked for."""

MAX_TRIES: Final = 3
"""How often a job may be changed while its body is read back."""

JobWithBody = tuple[int, Job | None, bytes | None]
"""An id; the job as it is now, or None if it is gone; and its body if it was wanted, None if that is lost."""


class BodyLost(InternalServerError):
    """The body of a job cannot be read back."""

    def __init__(self, job: Job) -> None:
        super().__init__(
            f"The body of job {job.id} is on disk alone, and cannot be read back from the journal. The server's log"
            " says why. The job stays as it is; if the disk works and this goes on, delete it, and put it anew."
        )


def no_body(job: Job) -> bool:
    """Stand in for a choice of bodies where none is wanted."""
    return False


def load_bodies(broker: Broker, jobs: Iterable[Job]) -> dict[int, bytes]:
    """The bodies of *jobs* by id, without those that are lost. May switch, if one is on disk alone."""
    jobs = list(jobs)
    if broker.bodies is None or all(job.body is not None for job in jobs):
        return held_bodies(jobs)
    return broker.bodies.look(jobs)


def load_body(broker: Broker, job: Job) -> bytes:
    """The body of *job* as it was given; raise Lost. May switch."""
    body = load_bodies(broker, (job,)).get(job.id)
    if body is None:
        raise BodyLost(job)
    return body


def load_job_with_body(broker: Broker, find: Callable[[], Job]) -> tuple[Job, bytes]:
    """The job that *find* returns, as it is now, and its body. May switch.

    Raise what *find* does, Lost, or Conflict if the job is changed all the time.
    """
    for _ in range(MAX_TRIES):
        job = find()
        body = load_body(broker, job)
        if broker.jobs.get(job.id) is job:
            return job, body
    raise Conflict(f"Job {job.id} was changed again and again while its body was read from the disk. Try again.")


def iter_with_bodies(
    broker: Broker, ids: Iterable[int], is_wanted: Callable[[Job], bool], rest: Callable[[], None]
) -> Iterator[JobWithBody]:
    """Each of *ids*, with its job, and the body too of those that are wanted. Switches, and calls *rest* between.

    Whoever goes through it may switch as well: each job is looked up when its turn has come.
    """
    jobs, remaining = broker.jobs, iter(ids)
    for id in remaining:
        job = jobs.get(id)
        if job is None or job.body is not None or not is_wanted(job):
            yield id, job, job.body if job is not None else None
            rest()
        else:
            lot, wanted = _lot(broker, chain((id,), remaining), is_wanted, rest)
            bodies = load_bodies(broker, wanted.values())
            for id in lot:  # noqa: PLW2901  goes on where the lot began
                job = jobs.get(id)
                if job is None or job.body is not None or not is_wanted(job):
                    yield id, job, job.body if job is not None else None
                elif wanted.get(id) is job:
                    yield id, job, bodies.get(id)
                else:  # it was changed since, and its body is on disk already
                    yield id, *_again(broker, id)
                rest()


def _lot(
    broker: Broker, ids: Iterator[int], is_wanted: Callable[[Job], bool], rest: Callable[[], None]
) -> tuple[list[int], dict[int, Job]]:
    """The next of *ids*, and those of their jobs whose bodies are to be read back. May switch."""
    lot, wanted, size = list[int](), dict[int, Job](), 0
    for id in ids:
        lot.append(id)
        job = broker.jobs.get(id)
        if job is not None and job.body is None and is_wanted(job):
            wanted[id] = job
            size += job.size
            if len(wanted) == BATCH_SIZE or size >= BATCH_BYTES:
                break
        if len(lot) == MAX_LOOKAHEAD:
            break
        rest()
    return lot, wanted


def _again(broker: Broker, id: int) -> tuple[Job | None, bytes | None]:
    """The job *id* as it is after its body was read back, and that. Switches."""
    job = broker.jobs.get(id)
    for _ in range(MAX_TRIES):
        if job is None:
            return None, None
        body = load_bodies(broker, (job,)).get(id)
        read_of, job = job, broker.jobs.get(id)
        if job is read_of:
            return job, body
    return job, None
