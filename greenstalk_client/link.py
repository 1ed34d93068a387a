"""A connection of a worker, and the jobs reserved on it."""

from __future__ import annotations

import contextlib
import logging
import math
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final, cast

import greenstalk

from greenstalk_client.client import Client, Job, JobMeta

REQUEST_TIMEOUT: Final = 10.0
"""Seconds to wait for a reply, in addition to the timeout of a reserve."""

META_FIELDS: Final = ("tube", "pri", "ttr", "attempts")
"""Metadata of jobs if the server has the extensions."""

_FIRST_TOUCH: Final = 0.3
"""Seconds before the first touch of a job whose TTR is unknown; the protocol's shortest TTR is one second."""

_TOUCHES_IN_TTR: Final = 3

PEER_CLOSED: Final[int] = getattr(select, "POLLRDHUP", select.POLLHUP)
"""Event of select.poll for "the other side has closed". macOS has no POLLRDHUP, and reports POLLHUP instead."""

LINK_ERRORS: Final = (OSError, greenstalk.Error, AssertionError, ValueError)
"""Errors of a lost connection or an invalid reply. greenstalk asserts some properties of replies."""

log = logging.getLogger("greenstalk_client")


class Link:
    """A connection, and the unfinished jobs reserved on it.

    One thread may reserve while the link has no jobs. While it has jobs, any thread may finish or touch them.

    Invariant: a job is finished on the link that reserved it, or not at all. When a connection is lost, its jobs are
    lost too: the server gives them to other workers.
    """

    def __init__(self, sock: socket.socket, tubes: Mapping[str, int | None], *, always_meta: bool = False) -> None:
        """Prepare the connected *sock* for reserves from *tubes*, a mapping of names to weights or None.

        With *always_meta*, jobs have META_FIELDS on every server; without the extensions that takes a request per job.
        On failure, close *sock* and raise one of LINK_ERRORS.
        """
        sock.settimeout(REQUEST_TIMEOUT)
        self._sock = sock
        self._always_meta = always_meta
        self._client: Client[bytes] = Client(sock, encoding=None)
        try:
            for tube, weight in tubes.items():
                self._client.watch(tube, weight)
            if greenstalk.DEFAULT_TUBE not in tubes:
                self._client.ignore(greenstalk.DEFAULT_TUBE)
            if any(weight is not None for weight in tubes.values()):
                self._client.reserve_mode("weighted")
            with contextlib.suppress(greenstalk.UnknownCommandError):
                self._client.meta(*META_FIELDS)
        except BaseException:
            self._client.close()
            raise
        self._lock = threading.Lock()
        self._jobs: dict[int, Job[bytes]] = {}
        self._done: deque[int] = deque()
        self._ttrs: dict[int, float] = {}
        self.is_lost = False
        self.touch_at = math.inf
        """Monotonic time in seconds at which `touch` is due."""

    @property
    def is_idle(self) -> bool:
        """Whether the link has no jobs and may reserve."""
        return not self._jobs

    def detect_loss(self) -> bool:
        """Return whether the connection is lost. Does not wait for the server."""
        with self._lock:
            if not self.is_lost:
                poll = select.poll()
                poll.register(self._sock, PEER_CLOSED)
                if poll.poll(0):
                    self._lose("the server has closed it")
            return self.is_lost

    def reserve(self, count: int, timeout: int) -> list[Job[bytes]]:
        """Reserve up to *count* jobs; wait *timeout* seconds for the first one. Raise one of LINK_ERRORS."""
        self._sock.settimeout(timeout + REQUEST_TIMEOUT)
        jobs = self._reserve(count, timeout)
        self._sock.settimeout(REQUEST_TIMEOUT)
        self._ttrs = {job.id: job.meta["ttr"] for job in jobs if len(job.meta)}
        self._jobs = {job.id: job for job in jobs}
        if jobs:
            self.touch_at = monotonic() + self._touch_interval()
        return jobs

    def _reserve(self, count: int, timeout: int) -> list[Job[bytes]]:
        if self._client.has_extensions():
            return self._client.reserve_batch(count, timeout)
        jobs: list[Job[bytes]] = []
        try:
            while len(jobs) < count:
                jobs.append(self._client.reserve(0 if jobs else timeout))
                if self._always_meta:
                    jobs[-1].meta = self._meta_of(jobs[-1].id)
        except (greenstalk.TimedOutError, greenstalk.DeadlineSoonError):
            pass
        return jobs

    def _meta_of(self, id: int) -> JobMeta:
        """Return META_FIELDS of a job from its statistics. A job counts its reserves, but not its attempts."""
        text = self._client._read_chunk(self._client._int_cmd(b"stats-job %d" % id, b"OK")).decode()
        stats = dict(line.split(": ", 1) for line in text.splitlines()[1:])
        tube = stats["tube"].strip('"')
        return cast(
            "JobMeta",
            {"tube": tube, "pri": int(stats["pri"]), "ttr": int(stats["ttr"]), "attempts": int(stats["reserves"])},
        )

    def delete(self, job: Job[bytes]) -> None:
        """Delete *job*, and in the same request the jobs that other threads have finished since the last request."""
        self._done.append(job.id)
        with self._lock:
            ids: list[int] = []
            while self._done:
                ids.append(self._done.popleft())
            if ids and self._holds(ids, "done"):
                self._ask(lambda: self._delete(ids), ids, "done")

    def release(self, job: Job[bytes], priority: int | None, delay: float) -> None:
        """Release *job*; *delay* is in seconds, and a *priority* of None keeps the priority of the job."""
        with self._lock:
            if self._holds([job.id], "released"):
                if not self._client.has_extensions():
                    delay = math.ceil(delay)
                self._ask(lambda: self._client.release(job, self._priority(job, priority), delay), [job.id], "released")

    def bury(self, job: Job[bytes], priority: int | None) -> None:
        """Bury *job*; a *priority* of None keeps the priority of the job."""
        with self._lock:
            if self._holds([job.id], "buried"):
                self._ask(lambda: self._client.bury(job, self._priority(job, priority)), [job.id], "buried")

    def touch(self) -> None:
        """Restart the TTR of all jobs of this link."""
        with self._lock:
            if not self._jobs:
                self.touch_at = math.inf
                return
            try:
                self._touch()
            except LINK_ERRORS as error:
                self._lose(error)
            else:
                self.touch_at = monotonic() + self._touch_interval()

    def interrupt(self) -> None:
        """Abort a request of another thread that waits for its reply. The connection is lost."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. The server makes the jobs of this link ready."""
        self.interrupt()
        with self._lock:
            self._client.close()
            self.is_lost = True
            self.touch_at = math.inf

    # With the lock

    def _holds(self, ids: list[int], what: str) -> bool:
        """Remove the lost jobs from *ids* and log each; return whether any id is left."""
        lost = [id for id in ids if self.is_lost or id not in self._jobs]
        for id in lost:
            log.warning("job %d is not %s: its reservation was lost; it may run again", id, what)
            self._forget(id)
            ids.remove(id)
        return bool(ids)

    def _ask(self, request: Callable[[], object], ids: list[int], what: str) -> None:
        """Send the *request* that finishes the jobs with these *ids*; log an error instead of raising it."""
        try:
            request()
        except greenstalk.NotFoundError:
            log.warning("job %d is not %s: its TTR has expired, or it was deleted; it may run again", ids[0], what)
        except greenstalk.BuriedError:
            log.warning("job %d is buried instead of released: the server is out of memory", ids[0])
        except LINK_ERRORS as error:
            self._lose(error)
            for id in ids:
                log.warning("job %d is possibly not %s: the connection was lost; it may run again", id, what)
        for id in ids:
            self._forget(id)

    def _forget(self, id: int) -> None:
        self._jobs.pop(id, None)
        self._ttrs.pop(id, None)
        if not self._jobs:
            self.touch_at = math.inf

    def _delete(self, ids: list[int]) -> None:
        if len(ids) == 1 or not self._client.has_extensions():
            missing = [id for id in ids if not self._is_deleted(id)]
        else:
            result = self._client.delete_batch(ids)
            missing = ids if result.not_found else []
        if missing:
            log.warning("some of the jobs %s are not deleted: their TTR has expired; they may run again", missing)

    def _is_deleted(self, id: int) -> bool:
        try:
            self._client.delete(id)
        except greenstalk.NotFoundError:
            return False
        return True

    def _touch(self) -> None:
        if self._client.has_extensions():
            touched = self._client.touch_all()
            if touched < len(self._jobs):
                log.warning(
                    "%d of the jobs %s were lost: their TTR has expired", len(self._jobs) - touched, [*self._jobs]
                )
            return
        for job in [*self._jobs.values()]:
            try:
                if job.id not in self._ttrs:
                    self._ttrs[job.id] = self._client.stats_job(job)["ttr"]
                self._client.touch(job)
            except greenstalk.NotFoundError:
                log.warning("job %d was lost: its TTR has expired", job.id)
                self._forget(job.id)

    def _touch_interval(self) -> float:
        """Return the seconds until the next touch."""
        if len(self._ttrs) < len(self._jobs):
            return _FIRST_TOUCH
        return min(self._ttrs.values(), default=math.inf) / _TOUCHES_IN_TTR

    def _priority(self, job: Job[bytes], priority: int | None) -> int:
        if priority is not None:
            return priority
        return job.meta["pri"] if len(job.meta) else self._client.stats_job(job)["pri"]

    def _lose(self, reason: object) -> None:
        if not self.is_lost:
            log.warning("lost a connection (%s)%s", reason, f" with the jobs {[*self._jobs]}" if self._jobs else "")
        self.is_lost = True
        self.touch_at = math.inf
        self.interrupt()
