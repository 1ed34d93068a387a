"""The leases of the API: jobs reserved over HTTP, by workers that have nothing but HTTP. docs/http-jobs.md is for them.

A token stands in the body, never in the path: that is logged, here and by whatever stands between, and a token is a
secret. What workers do is in the counts of tubes and jobs, and not in the audit log, as little as what those do that
speak the protocol: it would drive out what people did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final

from flask import request
from msgspec import Meta
from werkzeug.exceptions import Forbidden, Gone, NotFound, ServiceUnavailable

from greenstalk_server.core.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.api.durability import settle
from greenstalk_server.web.api.framework.endpoint import endpoint
from greenstalk_server.web.api.jobs import Job, row_of, shows_body
from greenstalk_server.web.api.values import Asked, Delay, Pri, Told, TubeName
from greenstalk_server.web.auth.access import visitor
from greenstalk_server.web.cooperative import Pace
from greenstalk_server.web.live.peer import peer_of
from greenstalk_server.web.operations.leases import Ask, Lease, LeaseEnded, NoLease, Refused
from greenstalk_server.web.operations.leases import Leases as Lessor

WAIT_AT_MOST: Final = 50
"""Seconds; most proxies end a request that has no answer after 60, and some platforms before."""

COUNT_AT_MOST: Final = 100
TUBES_AT_MOST: Final = 100

RETRY_AFTER: Final = 5
"""Seconds after which who was refused may ask again."""

Token = Annotated[
    str,
    Meta(
        max_length=200,
        description="The token of the lease, as it came with the job. It is a secret.",
        examples=["AAAAAAAAACoAAAAAAAAAAQm2O7ucRiy3QHBuTLbD6XBC"],
    ),
]

NewPri = Annotated[Pri | None, Meta(description="Its new priority; null leaves it as it is.")]


class Reserve(Asked):
    """What to reserve, and for how long to wait for it."""

    tubes: Annotated[
        tuple[TubeName, ...],
        Meta(
            min_length=1,
            max_length=TUBES_AT_MOST,
            description="From which: those that the worker watches.",
            examples=[["mail"]],
        ),
    ] = ("default",)
    count: Annotated[int, Meta(ge=1, le=COUNT_AT_MOST, description="How many jobs at most.")] = 1
    wait: Annotated[
        int,
        Meta(ge=0, le=WAIT_AT_MOST, description="Seconds to wait for the first job if none is ready.", examples=[25]),
    ] = 0
    worker: Annotated[
        str,
        Meta(
            max_length=100,
            pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*$(?!\n)",
            description="a name of at most 100 characters on one line. It shows under Connections.",
            examples=["mailer-1"],
        ),
    ] = ""


class LeasedJob(Job):
    """A job that was reserved, and the token of its lease."""

    token: Token


class Reserved(Told):
    """What was reserved."""

    jobs: Annotated[list[LeasedJob], Meta(description="None if time was up.")]


class Leased(Asked):
    """Which lease."""

    token: Token


class Release(Leased):
    """How the job goes back."""

    pri: NewPri = None
    delay: Delay = 0


class Bury(Leased):
    """How the job is set aside."""

    pri: NewPri = None


ANY: Final = Reserve()

NO_LEASE: Final = {
    404: "This server has given no such token since it started. With a restart all leases end.",
    410: "The lease has ended: its ttr ran out, the job was finished, or somebody took it. It may be another's by now.",
}

REFUSED: Final = {
    403: "You are a viewer, all is read-only, or bodies are hidden: without them there is nothing to work on.",
    503: "Too many wait or have jobs out, the server stops, the journal is late, or the body of the only job is lost,"
    " which was buried. Nothing was reserved.",
}


class Leases:
    """Leases: reserve jobs, and finish them, by HTTP alone.

    A job that is reserved is yours until its ttr ends, by the token that comes with it. Delete it when it is done, or
    release it, bury it, or touch it to have its whole ttr again. If you do none of it, or vanish, it turns ready when
    its ttr ends, and goes to whoever asks next: so each job is done at least once, and may be twice.
    """

    def __init__(self, lessor: Lessor, clock: Clock, commit: Callable[[], bool]) -> None:
        self._lessor: Lessor = lessor
        self._clock: Clock = clock
        self._commit: Callable[[], bool] = commit

    @endpoint("POST", "/reserve", errors=REFUSED)
    def reserve_jobs(self, body: Reserve = ANY) -> Reserved:
        """Reserve jobs, as soon as there is one.

        Of all ready jobs of these tubes, those with the smallest priority. It waits in line with all other workers. It
        answers with what is ready, up to `count` and about 1 MiB of bodies, as soon as there is one job; or with none
        when `wait` seconds are over. Close the connection to give up before.
        """
        who = visitor()
        if not who.sees_bodies:
            raise Forbidden("Bodies are hidden here (--hide-bodies), and so no job can be worked on over HTTP.")
        tubes = tuple(dict.fromkeys(name.encode() for name in body.tubes))
        ask = Ask(tubes, body.count, body.wait * SECOND, body.worker, who.address)
        try:
            leases = self._lessor.reserve(ask, peer_of(request.environ))
        except Refused as refusal:
            raise ServiceUnavailable(str(refusal), retry_after=RETRY_AFTER) from refusal
        pace, jobs = Pace(), []
        for lease in leases:
            jobs.append(_leased(lease, self._clock()))
            pace.yield_if_due()
        return Reserved(jobs=jobs)

    @endpoint("POST", "/leases/show", errors=NO_LEASE)
    def show_lease(self, body: Leased) -> Job:
        """See whether a lease goes on.

        Answers with the job, but for its body; `time_left` is what is left of its ttr.
        """
        with _ends_told():
            return row_of(self._lessor.job(body.token), self._clock())

    @endpoint("POST", "/leases/touch", errors=NO_LEASE)
    def touch_lease(self, body: Leased) -> Job:
        """Begin the ttr of the job anew, from now.

        Answers with the job, but for its body.
        """
        with _ends_told():
            return row_of(self._lessor.touch(body.token), self._clock())

    @endpoint("POST", "/leases/delete", status=204, errors=NO_LEASE)
    def delete_leased(self, body: Leased) -> None:
        """Delete the job: it is done."""
        with _ends_told():
            self._lessor.delete(body.token)
        settle(self._commit)

    @endpoint("POST", "/leases/release", status=204, errors=NO_LEASE)
    def release_leased(self, body: Release) -> None:
        """Give the job back: it is ready again, at once or after a delay.

        Its priority stays as it is unless `pri` says another.
        """
        with _ends_told():
            self._lessor.release(body.token, body.pri, body.delay * SECOND)
        settle(self._commit)

    @endpoint("POST", "/leases/bury", status=204, errors=NO_LEASE)
    def bury_leased(self, body: Bury) -> None:
        """Set the job aside, until somebody kicks it.

        Its priority stays as it is unless `pri` says another.
        """
        with _ends_told():
            self._lessor.bury(body.token, body.pri)
        settle(self._commit)


@contextmanager
def _ends_told() -> Iterator[None]:
    """Refuse the request if there is no lease, or none any more."""
    try:
        yield
    except LeaseEnded as error:
        raise Gone(str(error)) from error
    except NoLease as error:
        raise NotFound(str(error)) from error


def _leased(lease: Lease, now: int) -> LeasedJob:
    row = row_of(lease.job, now, lease.body if shows_body(lease.job) else None)
    return LeasedJob(**{name: getattr(row, name) for name in Job.__struct_fields__}, token=lease.token)
