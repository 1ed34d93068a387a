"""The operations of producers: puts, with and without tags.

`Broker` inherits from `PutControl`.
"""

from __future__ import annotations

from greenstalk_server.core.client import Client, ignore_call
from greenstalk_server.core.client_control import ClientControl
from greenstalk_server.core.jobs.job import DELAYED, Job
from greenstalk_server.core.outcomes import Refusal
from greenstalk_server.core.tags.tags import Duplicate, TaggedJob, Tags


class PutControl(ClientControl):
    """See the module's docstring; the base classes describe the attributes."""

    def allocate_id(self) -> int:
        """Return the next job id. An id is never returned twice, whether or not a job is created with it."""
        id = self.next_id
        self.next_id = id + 1
        return id

    def put(self, client: Client, id: int, pri: int, delay: int, ttr: int, body: bytes, now: int) -> int:
        """Add a job with the allocated *id* to the tube that *client* uses.

        *delay* and *ttr* are in nanoseconds. Return *id*, or the id of an earlier job if a policy makes the new one its
        duplicate, or a Refusal, which is negative. A refused put changes nothing.
        """
        return self._add_job(Job(id, client.used, body, pri, delay, ttr, now), client, now)

    def put_in_tube(
        self, client: Client, name: bytes, id: int, pri: int, delay: int, ttr: int, body: bytes, now: int
    ) -> int:
        """Add a job to the tube *name*, created if it does not exist; otherwise as `put`."""
        refusal = self._refuse_tube(name, client)
        if refusal:
            return refusal
        tube = self.tube(name)
        result = self._add_job(Job(id, tube, body, pri, delay, ttr, now), client, now)
        self._drop_if_unneeded(tube)  # it is empty if the put was refused, or was a duplicate of a finished job
        return result

    def put_tagged(
        self,
        client: Client,
        name: bytes,
        id: int,
        pri: int,
        delay: int,
        ttr: int,
        body: bytes,
        tags: Tags,
        now: int,
    ) -> int | Duplicate:
        """Add a job with *tags* to the tube *name*, or to the one that *client* uses if *name* is empty.

        Return a Duplicate if the idempotency key is taken; otherwise as `put`. The broker takes ownership of *tags*.
        """
        tube = client.used
        if name:
            refusal = self._refuse_tube(name, client)
            if refusal:
                return refusal
            tube = self.tube(name)
        result: int | Duplicate
        key = tags.idempotency_key
        duplicate = self._find_duplicate(tube, key, pri, now) if key else None
        if duplicate is not None:
            result = duplicate
        else:
            packed = tags.packed()
            if packed:
                job = TaggedJob(id, tube, body, pri, delay, ttr, now, packed)
                if not delay:
                    self._hold_for_group(job)
                result = self._add_job(job, client, now)
            else:
                result = self._add_job(Job(id, tube, body, pri, delay, ttr, now), client, now)
        if name:
            self._drop_if_unneeded(tube)
        if self._unsettled:
            self._settle(now)
        return result

    def put_into(
        self, name: bytes, pri: int, delay: int, ttr: int, body: bytes, now: int, tags: Tags | None = None
    ) -> int:
        """Add a job to the tube *name* for an operator; return what `put` returns.

        If the idempotency key of *tags* is taken, return the id of the job that has the key.
        """
        client, id = Client(self.default_tube, ignore_call), self.allocate_id()
        if tags is None:
            return self.put_in_tube(client, name, id, pri, delay, ttr, body, now)
        result = self.put_tagged(client, name, id, pri, delay, ttr, body, tags, now)
        return result.id if isinstance(result, Duplicate) else result

    def _add_job(self, job: Job, client: Client, now: int) -> int:
        """Check, record and insert the new *job* of *client*; return what `put` returns."""
        tube = job.tube
        if self.bodies is not None and not self.bodies.admit(job.size):
            return Refusal.MEMORY
        if self.quotas is not None:
            refusal = self.quotas.refuse_job(tube, job.size, len(self.jobs))
            if refusal:
                return self._refuse(refusal, client, tube.name)
        if job.delay:
            job.state = DELAYED
            job.deadline = now + job.delay
        if tube.rules is not None:
            result = self._admit(job, tube.rules, now)
            if result:
                return result
        elif not self.journal.put(job):
            return Refusal.JOURNAL
        self._insert(job, now)
        if self._unsettled:
            self._settle(now)
        return job.id
