"""Access to job bodies, some of which may be only on disk (see core.body_cache). Reading a body does not cache it.

Reading a body back takes a few milliseconds, during which other greenlets run. A caller must look up its jobs again
afterwards. Many bodies are read in batches, which bounds memory. Functions that may switch greenlets say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final

from werkzeug.exceptions import Conflict, InternalServerError

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.body_cache import resident_bodies
from greenstalk_server.core.jobs.job import Job

ON_DISK: Final = "(on disk)"
"""Shown in lists in place of a body that is only on disk."""

BATCH_SIZE: Final = 256
"""Maximum bodies read back from the disk per batch."""

BATCH_BYTES: Final = 2**20
"""Maximum bytes of bodies read back from the disk per batch. The last body of a batch may exceed it."""

MAX_LOOKAHEAD: Final = 4096
"""Maximum jobs scanned to fill a batch."""

MAX_TRIES: Final = 3
"""Maximum attempts to read a body back, if its job changes during every attempt."""

JobWithBody = tuple[int, Job | None, bytes | None]
"""An id, its current job, and its body.

The job is None if it was deleted. The body is None if it cannot be read, or if it is on disk and was not wanted.
"""


class BodyLost(InternalServerError):
    """The body of a job cannot be read back from the disk."""

    def __init__(self, job: Job) -> None:
        super().__init__(
            f"The body of job {job.id} is only on disk, and cannot be read back from the journal. Nothing was changed."
            " See the server's log for the reason. If this persists on a working disk, delete the job and put it again."
        )


def never_wants_body(job: Job) -> bool:
    """Return False, for a caller that wants no bodies."""
    return False


def load_bodies(broker: Broker, jobs: Iterable[Job]) -> dict[int, bytes]:
    """Return the bodies of *jobs* by id, and omit those that cannot be read. May switch if one is only on disk."""
    jobs = list(jobs)
    if broker.bodies is None or all(job.body is not None for job in jobs):
        return resident_bodies(jobs)
    return broker.bodies.look(jobs)


def load_job_with_body(broker: Broker, find: Callable[[], Job]) -> tuple[Job, bytes]:
    """Return the current job that *find* returns, and its body. May switch.

    Raise BodyLost if the body cannot be read, and Conflict if the job changes at every attempt. Exceptions of *find*
    propagate.
    """
    for _ in range(MAX_TRIES):
        job = find()
        body = load_bodies(broker, (job,)).get(job.id)
        if broker.jobs.get(job.id) is job:  # else the read may have failed because the job was deleted
            if body is None:
                raise BodyLost(job)
            return job, body
    raise Conflict(
        f"Job {job.id} changed repeatedly while its body was read from the disk. Nothing was changed. Try again."
    )


def iter_with_bodies(
    broker: Broker, ids: Iterable[int], is_wanted: Callable[[Job], bool], yield_if_due: Callable[[], None]
) -> Iterator[JobWithBody]:
    """Yield each of *ids* with its current job and body. Switches.

    A body that is only on disk is read if *is_wanted* selects its job. *yield_if_due* is called between two ids. The
    consumer may switch too, because each job is looked up just before it is yielded.
    """
    jobs, remaining = broker.jobs, iter(ids)
    for id in remaining:
        job = jobs.get(id)
        if job is None or job.body is not None or not is_wanted(job):
            yield id, job, job.body if job is not None else None
            yield_if_due()
        else:
            batch, wanted = _next_batch(broker, chain((id,), remaining), is_wanted, yield_if_due)
            bodies = load_bodies(broker, wanted.values())
            for id in batch:  # noqa: PLW2901  restarts at the first id of the batch
                job = jobs.get(id)
                if job is None or job.body is not None or not is_wanted(job):
                    yield id, job, job.body if job is not None else None
                elif wanted.get(id) is job:
                    yield id, job, bodies.get(id)
                else:  # during the read, the job was replaced or its body was evicted
                    yield id, *_retry(broker, id)
                yield_if_due()


def _next_batch(
    broker: Broker, ids: Iterator[int], is_wanted: Callable[[Job], bool], yield_if_due: Callable[[], None]
) -> tuple[list[int], dict[int, Job]]:
    """Return the next batch of *ids*, and the jobs among them whose bodies must be read back, by id. May switch."""
    batch, wanted, size = list[int](), dict[int, Job](), 0
    for id in ids:
        batch.append(id)
        job = broker.jobs.get(id)
        if job is not None and job.body is None and is_wanted(job):
            wanted[id] = job
            size += job.size
            if len(wanted) == BATCH_SIZE or size >= BATCH_BYTES:
                break
        if len(batch) == MAX_LOOKAHEAD:
            break
        yield_if_due()
    return batch, wanted


def _retry(broker: Broker, id: int) -> tuple[Job | None, bytes | None]:
    """Return the current job *id* and its body, read back again. Switches."""
    job = broker.jobs.get(id)
    for _ in range(MAX_TRIES):
        if job is None:
            return None, None
        body = load_bodies(broker, (job,)).get(id)
        job_before, job = job, broker.jobs.get(id)
        if job is job_before:
            return job, body
    return job, None
