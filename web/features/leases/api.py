"""API endpoints of leases: jobs reserved over HTTP, for workers without the beanstalk protocol. See docs/http-jobs.md.

A token is sent in the body and never in the path, since it is a secret, and paths are logged here and by proxies.
Like workers of the beanstalk protocol, HTTP workers appear in the counts of tubes and jobs but not in the audit log:
the entries of workers would evict the entries of operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import cycle
from typing import Annotated, Any, Final

from flask import request
from msgspec import Meta, convert
from msgspec.structs import replace
from werkzeug.exceptions import Forbidden, Gone, NotFound, ServiceUnavailable

from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.jobs.job import Job as CoreJob
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.operations import to_nanoseconds
from greenstalk_server.web.features.jobs.jobs import Job, job_model, shows_body
from greenstalk_server.web.features.leases.leases import (
    Lease,
    LeaseEnded,
    NoLease,
    ReserveRefused,
    ReserveRequest,
    job_of_token,
)
from greenstalk_server.web.features.leases.leases import Leases as LeaseManager
from greenstalk_server.web.framework.access import principal, require_operator
from greenstalk_server.web.framework.api.durability import wait_before_report, wait_until_durable
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.values import (
    Count,
    FineDelay,
    Pri,
    RequestModel,
    ResponseModel,
    TubeName,
    model_of,
)
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.shards import Shards
from greenstalk_server.web.live.peer import Peer, peer_of

MAX_WAIT: Final = 50
"""Maximum seconds of a wait. Most proxies end a request without a response after 60 seconds, some platforms earlier."""

MAX_COUNT: Final = 100
MAX_TUBES: Final = 100
MAX_DELETES: Final = 1000

RETRY_AFTER: Final = 5
"""Seconds in the Retry-After header of a refused reserve."""

Token = Annotated[
    str,
    Meta(
        max_length=200,
        description="The token of the lease, received with the job. It is a secret.",
        examples=["AAAAAAAAACoAAAAAAAAAAQm2O7ucRiy3QHBuTLbD6XBC"],
    ),
]

NewPri = Annotated[Pri | None, Meta(description="The new priority; null keeps the old one.")]


RESERVE: Final = "leases.reserve"
CONFIRM: Final = "leases.confirm"
UNDO: Final = "leases.undo"
DELETE: Final = "leases.delete"
"""Questions to the other shards."""

MAX_ELSEWHERE: Final = 5.0
"""Seconds of a wait at another shard; then the request waits there again, unless its client has left."""

WAIT_SLICE: Final = 0.5
"""Seconds that a request for tubes of several shards waits at each of them in turn."""


class ReserveJobsRequest(RequestModel):
    """Options of a reserve."""

    tubes: Annotated[
        tuple[TubeName, ...],
        Meta(
            min_length=1,
            max_length=MAX_TUBES,
            description="The tubes to reserve from, like the tubes that a worker watches.",
            examples=[["mail"]],
        ),
    ] = ("default",)
    count: Annotated[int, Meta(ge=1, le=MAX_COUNT, description="The maximum number of jobs to reserve.")] = 1
    wait: Annotated[
        float,
        Meta(
            ge=0,
            le=MAX_WAIT,
            description="Seconds to wait for the first job if none is ready, at most three digits after the point.",
            examples=[25],
        ),
    ] = 0
    worker: Annotated[
        str,
        Meta(
            max_length=100,
            pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*$(?!\n)",
            description="a name of at most 100 characters on one line. It appears under Connections.",
            examples=["mailer-1"],
        ),
    ] = ""


class LeasedJob(Job):
    """A reserved job, and the token of its lease."""

    token: Token


class Reserved(ResponseModel):
    """The reserved jobs."""

    jobs: Annotated[list[LeasedJob], Meta(description="Empty if the wait ended without a job.")]


class LeaseRequest(RequestModel):
    """The lease."""

    token: Token


class ReleaseLeaseRequest(LeaseRequest):
    """The lease, and options of the release."""

    pri: NewPri = None
    delay: FineDelay = 0


class BuryLeaseRequest(LeaseRequest):
    """The lease, and options of the bury."""

    pri: NewPri = None


class LeaseBatchRequest(RequestModel):
    """Leases whose jobs to delete."""

    tokens: Annotated[
        tuple[Token, ...],
        Meta(min_length=1, max_length=MAX_DELETES, description="The tokens of the leases."),
    ]


class DeletedBatch(ResponseModel):
    """The outcome of a batch of deletions."""

    deleted: Annotated[Count, Meta(description="Number of jobs that were deleted.")]
    lost: Annotated[
        list[Token],
        Meta(
            description="Tokens whose lease has ended or is unknown, in the order of the request. Their jobs were not"
            " deleted by this request, and may run again."
        ),
    ]


DEFAULT_RESERVE: Final = ReserveJobsRequest()

NO_LEASE: Final = {
    404: "The server has not issued this token since it started. A restart ends all leases.",
    410: "The lease has ended: its ttr ran out, the job was finished, or an admin took it. Another worker may"
    " hold the job now.",
}

REFUSED: Final = {
    403: "You are a viewer, the server is read-only, or bodies are hidden, so that a worker could not read its jobs.",
    503: "Nothing was reserved: too many reserves wait or hold jobs, the server is stopping, or the journal is late. Or"
    " the bodies of the ready jobs are lost, and these jobs were buried.",
}


class LeasesEndpoints:
    """Leases: reserve and finish jobs over HTTP.

    A reserved job is yours until its ttr ends; the token that comes with it is the proof. Delete the job when it is
    done, release or bury it, or touch it to restart its ttr. Otherwise the job becomes ready when its ttr ends, and the
    next worker gets it. So each job is processed at least once, and may be processed twice.
    """

    def __init__(self, leases: LeaseManager, clock: Clock, commit: Callable[[], bool], shards: Shards) -> None:
        self._leases: LeaseManager = leases
        self._clock: Clock = clock
        self._commit: Callable[[], bool] = commit
        self._shards: Shards = shards
        shards.answer(RESERVE, self._reserve_for_another)
        shards.answer(CONFIRM, leases.confirm)
        shards.answer(UNDO, leases.undo)
        shards.answer(DELETE, self._delete_here)

    @endpoint("POST", "/reserve", role=OPERATOR, errors=REFUSED)
    def reserve_jobs(self, body: ReserveJobsRequest = DEFAULT_RESERVE) -> Reserved:
        """Reserve jobs, as soon as one is ready.

        Returns the ready jobs with the smallest priorities in the given tubes, up to `count` jobs and about 1 MiB of
        bodies. If none is ready, the request waits in line with all other workers, and returns no jobs when `wait`
        seconds are over. Close the connection to end the wait early.
        """
        who = principal()
        if not who.sees_bodies:
            raise Forbidden("Bodies are hidden on this server (--hide-bodies), so jobs cannot be reserved over HTTP.")
        for name in body.tubes:
            require_operator(name.encode())
        peer = peer_of(request.environ)
        if not self._shards.others:
            return Reserved(jobs=self._reserve_here(body, peer))
        places: dict[int, list[str]] = {}
        for name in dict.fromkeys(body.tubes):
            places.setdefault(self._shards.of_tube(name.encode()), []).append(name)
        return Reserved(jobs=self._reserve_on_shards(body, places, peer))

    def _reserve_on_shards(
        self, body: ReserveJobsRequest, places: Mapping[int, list[str]], peer: Peer
    ) -> list[LeasedJob]:
        """Reserve jobs of one of the shards *places*, which have the tubes there. Switches.

        If there are several, look at each first, and then wait at each for a moment in turn.
        """
        if len(places) > 1:
            for shard, tubes in places.items():
                if jobs := self._reserve_at(shard, replace(body, tubes=tuple(tubes), wait=0), peer):
                    return jobs
        longest, until = MAX_ELSEWHERE if len(places) == 1 else WAIT_SLICE, self._clock() + to_nanoseconds(body.wait)
        for shard, tubes in cycle(places.items()):
            left = max(0.0, (until - self._clock()) / SECOND)
            part = replace(body, tubes=tuple(tubes), wait=round(min(left, longest), 3))
            jobs = self._reserve_at(shard, part, peer)
            if jobs or left <= longest or peer.is_gone:
                return jobs
        raise AssertionError

    def _reserve_at(self, shard: int, body: ReserveJobsRequest, peer: Peer) -> list[LeasedJob]:
        """Reserve jobs of *shard*; return none if *peer* is gone. Switches."""
        if shard == self._shards.own:
            return self._reserve_here(body, peer)
        number, answer = self._shards.ask(shard, RESERVE, body=body)
        jobs = convert(answer, list[LeasedJob])
        if jobs and peer.is_gone:
            self._shards.ask(shard, UNDO, number=number)
            return []
        return jobs if jobs and self._shards.ask(shard, CONFIRM, number=number) else []

    def _reserve_for_another(self, body: Any) -> tuple[int, list[LeasedJob]]:
        """Reserve jobs of this shard for a request to the home process, which sees when its client leaves.

        Return the number of the reserve too: it is undone unless the home process confirms that it has the jobs.
        """
        leases = self._reserve(convert(body, ReserveJobsRequest), Peer(None), must_confirm=True)
        return (leases[0].number if leases else 0), self._leased_jobs(leases)

    def _reserve_here(self, body: ReserveJobsRequest, peer: Peer) -> list[LeasedJob]:
        """Reserve jobs of this shard. Switches."""
        return self._leased_jobs(self._reserve(body, peer, must_confirm=False))

    def _reserve(self, body: ReserveJobsRequest, peer: Peer, *, must_confirm: bool) -> list[Lease]:
        tubes = tuple(dict.fromkeys(name.encode() for name in body.tubes))
        wait, address = to_nanoseconds(body.wait), principal().address
        try:
            return self._leases.reserve(
                ReserveRequest(tubes, body.count, wait, body.worker, address, must_confirm), peer
            )
        except ReserveRefused as refusal:
            raise ServiceUnavailable(str(refusal), retry_after=RETRY_AFTER) from refusal

    def _leased_jobs(self, leases: list[Lease]) -> list[LeasedJob]:
        """Return *leases* as the API shows them. May switch."""
        pace, jobs = Pace(), []
        for lease in leases:
            jobs.append(_leased(lease, self._clock()))
            pace.yield_if_due()
        return jobs

    @endpoint("POST", "/leases/show", role=OPERATOR, errors=NO_LEASE)
    def show_lease(self, body: LeaseRequest) -> Job:
        """Check whether a lease is still valid.

        Returns the job without its body; `time_left` is the remaining time of its ttr.
        """
        with _lease_errors():
            response = job_model(self._job(body.token), self._clock())
        wait_before_report(self._commit)
        return response

    @endpoint("POST", "/leases/touch", role=OPERATOR, errors=NO_LEASE)
    def touch_lease(self, body: LeaseRequest) -> Job:
        """Restart the ttr of the job.

        Returns the job without its body.
        """
        with _lease_errors():
            self._job(body.token)
            response = job_model(self._leases.touch(body.token), self._clock())
        wait_before_report(self._commit)
        return response

    @endpoint("POST", "/leases/delete", role=OPERATOR, status=204, errors=NO_LEASE)
    def delete_leased(self, body: LeaseRequest) -> None:
        """Delete the job once its work is done."""
        with _lease_errors():
            self._job(body.token)
            self._leases.delete(body.token)
        wait_until_durable(self._commit)

    @endpoint("POST", "/leases/delete-batch", role=OPERATOR)
    def delete_batch_leased(self, body: LeaseBatchRequest) -> DeletedBatch:
        """Delete several jobs once their work is done.

        A lease that has ended is not an error: the response lists its token in `lost`.
        """
        shards = self._shards
        if not shards.others:
            lost = self._delete_here(list(body.tokens))
        else:
            lost = self._delete_on_shards(body.tokens, shards.of_job)
            lost = self._delete_on_shards(lost, shards.find_job)  # jobs that have moved
            places = {token: place for place, token in enumerate(body.tokens)}
            lost.sort(key=places.__getitem__)
        return DeletedBatch(deleted=len(body.tokens) - len(lost), lost=lost)

    def _delete_on_shards(self, tokens: Iterable[str], shard_of: Callable[[int], int]) -> list[str]:
        """Delete the jobs of *tokens* on the shards that *shard_of* names; return the lost tokens. Switches."""
        by_shard, lost = dict[int, list[str]](), list[str]()
        for token in tokens:
            id = job_of_token(token)
            by_shard.setdefault(self._shards.own if id is None else shard_of(id), []).append(token)
        for shard, some in by_shard.items():
            is_own = shard == self._shards.own
            lost += self._delete_here(some) if is_own else self._shards.ask(shard, DELETE, tokens=some)
        return lost

    def _delete_here(self, tokens: list[str]) -> list[str]:
        """Delete the jobs of leases of this shard; return the tokens whose lease has ended or is unknown. Switches."""
        pace, lost = Pace(), list[str]()
        for token in tokens:
            try:
                self._job(token)
                self._leases.delete(token)
            except NoLease:
                lost.append(token)
            pace.yield_if_due()
        wait_until_durable(self._commit)
        return lost

    @endpoint("POST", "/leases/release", role=OPERATOR, status=204, errors=NO_LEASE)
    def release_leased(self, body: ReleaseLeaseRequest) -> None:
        """Release the job, so that it becomes ready, at once or after a delay.

        Its priority stays unless `pri` is given.
        """
        with _lease_errors():
            self._job(body.token)
            self._leases.release(body.token, body.pri, to_nanoseconds(body.delay))
        wait_until_durable(self._commit)

    @endpoint("POST", "/leases/bury", role=OPERATOR, status=204, errors=NO_LEASE)
    def bury_leased(self, body: BuryLeaseRequest) -> None:
        """Bury the job. It stays buried until it is kicked.

        Its priority stays unless `pri` is given.
        """
        with _lease_errors():
            self._job(body.token)
            self._leases.bury(body.token, body.pri)
        wait_until_durable(self._commit)

    def _job(self, token: str) -> CoreJob:
        """Return the job reserved by *token*; raise NoLease like `job`, or if the principal may not operate its tube.

        An admin may have moved the job to another tube.
        """
        job = self._leases.job(token)
        if not principal().operates(job.tube.name):
            raise LeaseEnded(f"The lease of job {job.id} is not valid for you: you may not change jobs of its tube.")
        return job


@contextmanager
def _lease_errors() -> Iterator[None]:
    """Turn NoLease into status 404, and LeaseEnded into 410."""
    try:
        yield
    except LeaseEnded as error:
        raise Gone(str(error)) from error
    except NoLease as error:
        raise NotFound(str(error)) from error


def _leased(lease: Lease, now: int) -> LeasedJob:
    row = job_model(lease.job, now, lease.body if shows_body(lease.job) else None)
    return model_of(LeasedJob, row, token=lease.token)
