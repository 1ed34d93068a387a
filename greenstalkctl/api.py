"""A Queue over the JSON API of a Greenstalk Server, with job lists and bulk changes that the protocol does not have.

Statistics have the protocol's names, and names in the same style where the protocol has none. In a list, tubes do not
have all statistics of the protocol.
"""

from __future__ import annotations

import ssl
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec

from greenstalk_client import PutId
from greenstalkctl import text
from greenstalkctl.address import Url
from greenstalkctl.errors import CommandError, InvalidUsage, NoResult
from greenstalkctl.http_client import HttpClient
from greenstalkctl.queue import (
    CONDITION,
    CONNECTION,
    JOB_STATS,
    JOURNAL,
    MAX_TUBES,
    SERVER_STATS,
    TUBE_NAME,
    TUBE_STATS,
    JobView,
    Stats,
    validate_stats,
)

T = TypeVar("T")

PAGE_SIZE: Final = 1000
"""Maximum number of items in a page of a list, and of ids in a bulk change."""

MISSING: Final = frozenset({404})
NOT_CHANGED: Final = frozenset({404, 409})
"""Statuses of a change that was not made: the job or tube does not exist, or the job is in the wrong state."""

LEASE_ENDED: Final = frozenset({404, 410})
"""Statuses of a response if the lease of the token has ended, or was made before the server's last start."""

INVALID: Final = frozenset({400})
"""Statuses of a request with an invalid policy or mark."""

HIDDEN: Final = frozenset({403, 404})
"""Statuses of a request for a body that the server hides, or whose job no longer exists."""

_JOB: Final = (
    "id", "tube", "state", "pri", "age", "delay", "ttr", "time_left",
    "reserves", "timeouts", "releases", "buries", "kicks", "created_at", "held_by",
)  # fmt: skip
_TUBE: Final = {
    "name": "name",
    "current-jobs-urgent": "urgent",
    "current-jobs-ready": "ready",
    "current-jobs-reserved": "reserved",
    "current-jobs-delayed": "delayed",
    "current-jobs-buried": "buried",
    "total-jobs": "total_jobs",
    "current-using": "using",
    "current-watching": "watching",
    "current-waiting": "waiting",
    "cmd-delete": "total_deletes",
    "pause": "pause",
    "pause-time-left": "pause_time_left",
    "pause-reason": "pause_reason",
    "bytes": "bytes",
    "oldest-ready-age": "oldest_ready_age",
    "drain-time": "drain_time",
    "has-no-consumers": "has_no_consumers",
}
_ONE_TUBE: Final = {
    "cmd-pause-tube": "total_pauses",
    "held-by": "held_by",
    "max-reserved": "max_reserved",
    "max-reserves-per-second": "rate",
    "dead-letter": "dead_letter",
    "dead-letters-from": "dead_letters_from",
    "policy": "policy",
}
"""Statistics that an older server, or a list of tubes, does not have."""

_NEWER_OF_JOB: Final = ("time_reserved", "file", "attempts", "expires_at", "dead_letter")
"""Fields that an older server does not have."""

_TAGS: Final = {
    "idempotency-key": "idempotency_key",
    "idempotency-ttl": "idempotency_ttl",
    "group": "group",
    "after-group": "after",
    "concurrency-key": "concurrency_key",
    "concurrency-limit": "concurrency_limit",
}

_RATES: Final = {
    "puts": "put",
    "reserves": "reserve",
    "deletes": "delete",
    "buries": "bury",
    "timeouts": "timeout",
    "releases": "release",
    "kicks": "kick",
}


@dataclass(frozen=True, slots=True)
class Change:
    """A bulk change of the jobs of *tube* in *state*; *target* is the destination tube of `move`."""

    action: str
    tube: str
    state: str
    target: str | None = None


class TubesOfTask(msgspec.Struct):
    """The number of tubes that a change of many tubes affects, and the number of their jobs."""

    tubes: int
    jobs: int


class Effect(msgspec.Struct):
    """The effects that a policy would have on existing jobs: the counts of its dry run."""

    policy: str
    tubes: int
    changed_tubes: int
    jobs: int
    expired: int
    dead_lettered: int
    buried: int
    evicted: int
    over_cap: int
    held: int
    sample: list[str]
    warnings: list[str]


class Task(msgspec.Struct):
    """The progress of a bulk change or a dry run on the server; `message`: why it failed or skipped jobs.

    effect          the counts of a policy's dry run; None for other tasks.
    tubes           the tubes that a change of many tubes affects; None for other tasks.
    """

    id: str
    state: str
    changed: int
    message: str
    matched: int
    skipped: int = 0
    effect: Effect | None = None
    tubes: TubesOfTask | None = None


class ErrorGroup(msgspec.Struct):
    """The failed jobs with one error; *error* and *reason*, the reason why they are dead letters, may be None."""

    error: str | None
    reason: str | None
    jobs: int
    first_at: str
    last_at: str
    sample: int
    sample_error: str
    q: str

    @property
    def title(self) -> str:
        """The error, or a text that says why there is none."""
        return self.error or ("no error" if self.reason is None else f"no error, dead letter: {self.reason}")


class Errors(msgspec.Struct):
    """The failed jobs of a tube by their error; *groups* is empty while the task is running."""

    task: str
    state: str
    groups: list[ErrorGroup]
    others: int


class Follower(msgspec.Struct):
    """A server that follows a shard; *behind*: its lag in seconds, None if it has not read the journal yet."""

    server: str
    behind: float | None


class Shard(msgspec.Struct):
    """A shard of a cluster; *owner* is None while no server leads it."""

    shard: int
    owner: str | None
    owner_id: str | None
    epoch: int
    followers: list[Follower]


class ClusterServer(msgspec.Struct):
    """A server of a cluster, and the shard that it leads or follows."""

    server: str
    id: str
    machine: str
    version: str
    state: str
    shard: int | None
    behind: float | None


class RelayedLink(msgspec.Struct):
    """Two servers of a cluster that reach each other over a third one."""

    server: str
    peer: str
    relay: str


class Cluster(msgspec.Struct):
    """The shards and servers of a queue in a database, as they were *age* seconds ago."""

    queue: str
    age: float
    shards: list[Shard]
    servers: list[ClusterServer]
    relayed: list[RelayedLink] = []


class ShardMove(msgspec.Struct):
    """A move of a shard that was requested; *server_id* is None for any server that follows the shard."""

    shard: int
    owner: str | None
    owner_id: str | None
    server_id: str | None

    def is_done(self, now: Shard) -> bool:
        """Return whether the shard, as it is *now*, has its new owner."""
        if self.server_id is not None:
            return now.owner_id == self.server_id
        return now.owner_id not in (None, self.owner_id)


class Policy(msgspec.Struct):
    """A policy of the server; `source` is `file` or `runtime`, and `problem` says why it has no effect."""

    name: str
    source: str
    problem: str
    document: dict[str, Any]


class Policies(msgspec.Struct):
    """All policies, and warnings about them."""

    policies: list[Policy]
    warnings: list[str]


class SavedPolicy(msgspec.Struct):
    """A policy that was set, and warnings about it."""

    policy: Policy
    warnings: list[str]


class Api:
    """A client of the API at *url*.

    *token* is empty if the API needs none. Each request, with its response, may take *timeout* seconds. *context* is
    the TLS context of an https:// URL.
    """

    def __init__(self, url: Url, token: str, timeout: float, context: ssl.SSLContext | None = None) -> None:
        """Connect, and check that the API answers; raise Unreachable or Refused."""
        self.address = url
        self._http_client = HttpClient(url, token, timeout, context)
        try:
            self._check_api()
        except CommandError:
            self._http_client.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http_client.close()

    # Queries

    def stats(self) -> Stats:
        return self._parse(_server, self._get("/server"))

    def tubes(self) -> list[str]:
        return [stats["name"] for stats in self.all_tube_stats() if TUBE_NAME.fullmatch(stats["name"])]

    def all_tube_stats(self) -> list[Stats]:
        tubes = list(islice(self._pages("/tubes", "tubes", {"limit": PAGE_SIZE}), MAX_TUBES + 1))
        if len(tubes) > MAX_TUBES:
            raise self._http_client.not_the_api(f"it lists more than {MAX_TUBES} tubes")
        return [self._parse(_tube, tube) for tube in tubes]

    def tube(self, name: str) -> Stats | None:
        answer = self._http_client.request("GET", "/tube", {"tube": name}, ordinary=MISSING)
        return self._parse(_tube, answer.data) if answer.is_success else None

    def view_job(self, job_id: int) -> JobView | None:
        answer = self._http_client.request("GET", f"/jobs/{job_id}", ordinary=MISSING)
        return self._with_body(self._parse(_job_view, answer.data)) if answer.is_success else None

    def view_next(self, tube: str, state: str) -> JobView | None:
        first = next(self.jobs(tube, state, limit=1), None)
        return self._with_body(first) if first is not None else None

    def jobs(
        self,
        tube: str | None,
        state: str | None = None,
        query: str = "",
        *,
        limit: int = PAGE_SIZE,
        has_bodies: bool = True,
    ) -> Iterator[JobView]:
        """Yield all jobs of *tube*, in *state*, that match *query*.

        Bodies are included if *has_bodies*, except those above 1 MiB. *limit* is the number of jobs in a page, at most
        PAGE_SIZE. With a tube and a state, and without a query, the first PAGE_SIZE jobs come in the order of that
        state; all others are ordered by id.
        """
        params = {"tube": tube, "state": state, "q": query, "limit": limit, "bodies": str(has_bodies).lower()}
        params = {name: value for name, value in params.items() if value}
        return (self._parse(_job_view, job) for job in self._pages("/jobs", "jobs", params))

    def errors(self, tube: str, state: str | None, field: str, *, is_fresh: bool) -> Errors:
        """Return the groups of failed jobs of *tube*, or the task that groups them. *field* names the error's field.

        If *is_fresh*, do not return the groups of an earlier task, which the server reuses for a while.
        """
        query = {"tube": tube, "state": state, "field": field, "refresh": "true" if is_fresh else ""}
        given = {name: value for name, value in query.items() if value}
        return self._decode(Errors, self._http_client.request("GET", "/tube/errors", given).data)

    def connections(self, query: str, sort: str) -> Iterator[dict[str, Any]]:
        """Yield the connections that match *query*, in the order *sort*."""
        params = {name: value for name, value in {"q": query, "sort": sort, "limit": PAGE_SIZE}.items() if value}
        return (
            self._parse(lambda each: validate_stats(dict(each), CONNECTION), one)
            for one in self._pages("/connections", "connections", params)
        )

    def attention(self) -> tuple[float | None, list[dict[str, Any]]]:
        """Return the time of the last evaluation, and the conditions that nobody has acknowledged, the worst first."""
        return self._parse(_attention, self._get("/attention"))

    def cluster(self) -> tuple[Cluster, Any]:
        """Return the shards and servers of the cluster; also as the API described them."""
        data = self._get("/cluster")
        return self._decode(Cluster, data), data

    # Changes

    def request_shard_move(self, shard: int, server: str) -> ShardMove:
        """Request that *server* leads *shard*, or any follower if it is empty. Raise NoResult if one does not exist."""
        body = {"shard": shard, "server": server}
        answer = self._http_client.request("POST", "/cluster/move", body=body, ordinary=MISSING)
        if not answer.is_success:
            raise NoResult(self._parse(lambda data: str(data["detail"]).rstrip("."), answer.data))
        return self._decode(ShardMove, answer.data)

    def put(self, tube: str, body: bytes, pri: int, delay: float, ttr: float, **tags: Any) -> PutId:
        new = text.fields(body) | {"tube": tube, "pri": pri, "delay": delay, "ttr": ttr}
        if tags:
            new["tags"] = tags
        return self._parse(_put_id, self._http_client.request("POST", "/jobs", body=new).data)

    def kick_job(self, job_id: int) -> bool:
        return self._succeeds("POST", f"/jobs/{job_id}/kick")

    def bury_job(self, job_id: int) -> bool:
        return self._succeeds("POST", f"/jobs/{job_id}/bury")

    def delete(self, job_id: int) -> bool:
        return self._succeeds("DELETE", f"/jobs/{job_id}")

    def release_job(self, job_id: int) -> bool:
        """Take a job from the client that holds it."""
        answer = self._http_client.request(
            "POST", f"/jobs/{job_id}/release", body={"force": True}, ordinary=NOT_CHANGED
        )
        return answer.is_success

    def reprioritize(self, job_id: int, pri: int) -> bool:
        answer = self._http_client.request("PATCH", f"/jobs/{job_id}", body={"pri": pri}, ordinary=NOT_CHANGED)
        return answer.is_success

    def reserve(self, tubes: Sequence[str], wait: float, worker: str) -> tuple[JobView, str] | None:
        """Reserve a job; return it and the token of its lease, or None if none is ready within *wait* seconds."""
        body = {"tubes": tubes, "wait": wait, "worker": worker}
        data = self._http_client.request("POST", "/reserve", body=body, wait=wait).data
        job = self._parse(lambda data: next(iter(data["jobs"]), None), data)
        if job is None:
            return None
        return self._parse(lambda job: (self._with_body(_job_view(job)), str(job["token"])), job)

    def lease(self, verb: str, token: str, values: Mapping[str, object]) -> dict[str, Any] | None:
        """Apply *verb* to the lease of *token*; return the job (empty without one), or None if the lease has ended."""
        body = {"token": token, **values}
        answer = self._http_client.request("POST", f"/leases/{verb}", body=body, ordinary=LEASE_ENDED)
        if not answer.is_success:
            return None
        return self._parse(_job_view, answer.data).stats if answer.data else {}

    def pause(self, tube: str, seconds: float, reason: str = "") -> bool:
        verb, body = ("pause", {"seconds": seconds, "reason": reason}) if seconds else ("resume", None)
        return self._http_client.request("POST", f"/tube/{verb}", {"tube": tube}, body, ordinary=MISSING).is_success

    # Bulk changes, which the server makes in the background

    def start(self, change: Change, ids: Sequence[int] | None = None, *, is_dry: bool = False) -> Task:
        """Start *change*, limited to *ids* if given (at most PAGE_SIZE); if *is_dry*, only count the matching jobs."""
        body = {"action": change.action, "tube": change.tube, "state": change.state, "dry_run": is_dry}
        body |= {"to": change.target} if change.target is not None else {}
        body |= {"ids": ids} if ids is not None else {}
        return self._decode(Task, self._http_client.request("POST", "/bulk", body=body).data)

    def start_tube_change(self, verb: str, pattern: str, body: Mapping[str, object]) -> Task:
        """Start to count the tubes that match *pattern* and that *verb* (`pause`, `resume`, `kick`) would change."""
        query = {"pattern": pattern}
        return self._decode(Task, self._http_client.request("POST", f"/tubes/{verb}", query, body or None).data)

    def run(self, task_id: str) -> Task:
        """Start the change that a dry run has counted. It changes jobs that still match, but none put since then."""
        return self._decode(Task, self._http_client.request("POST", f"/tasks/{task_id}/run").data)

    def task(self, task_id: str) -> Task:
        return self._decode(Task, self._get(f"/tasks/{task_id}"))

    def cancel(self, task_id: str) -> Task:
        """Ask the server to cancel a task; it ends soon."""
        return self._decode(Task, self._http_client.request("DELETE", f"/tasks/{task_id}").data)

    # Policies

    def policies(self) -> Policies:
        return self._decode(Policies, self._get("/policies"))

    def policy(self, name: str) -> Policy | None:
        answer = self._http_client.request("GET", f"/policies/{name}", ordinary=MISSING)
        return self._decode(Policy, answer.data) if answer.is_success else None

    def set_policy(self, name: str, document: Mapping[str, Any]) -> SavedPolicy:
        """Set or replace the policy *name*; return it with warnings. Raise InvalidUsage if it is invalid."""
        return self._decode(SavedPolicy, self._send_document("policy", "PUT", f"/policies/{name}", document))

    def delete_policy(self, name: str) -> bool:
        return self._http_client.request("DELETE", f"/policies/{name}", ordinary=MISSING).is_success

    def start_policy_dry_run(self, name: str, document: Mapping[str, Any]) -> Task:
        """Start to count what the policy *name* would do. Raise InvalidUsage if it is invalid."""
        return self._decode(Task, self._send_document("policy", "POST", f"/policies/{name}/dry-run", document))

    def start_redrive(self, tube: str, ids: Sequence[int] | None, query: str, rate: float | None) -> Task:
        """Start to move the dead letters of *tube* back: those that match *query*, limited to *ids* if given.

        *rate* is the maximum number of jobs per second, or None.
        """
        body: dict[str, object] = {"tube": tube, "q": query}
        body |= {"ids": ids} if ids is not None else {}
        body |= {"rate": rate} if rate is not None else {}
        return self._decode(Task, self._http_client.request("POST", "/redrive", body=body).data)

    def add_mark(self, text: str, tube: str | None) -> dict[str, Any]:
        """Add a mark to the charts of *tube*, or of all tubes; return it. Raise InvalidUsage if it is invalid."""
        body: dict[str, object] = {"text": text}
        body |= {"tube": tube} if tube is not None else {}
        mark = self._send_document("mark", "POST", "/marks", body)
        return self._parse(lambda mark: validate_stats(dict(mark), {"at": str, "text": str, "kind": str}), mark)

    def _send_document(self, what: str, method: str, path: str, document: Mapping[str, Any]) -> Any:
        answer = self._http_client.request(method, path, body=document, ordinary=INVALID)
        if not answer.is_success:
            detail = answer.data.get("detail", "no reason given") if isinstance(answer.data, dict) else answer.data
            raise InvalidUsage(f"the {what} is invalid: {str(detail).rstrip('.')}")
        return answer.data

    # Requests

    def _check_api(self) -> None:
        """Check that the API answers, with a request that every version accepts.

        After this check, a 404 means that a job or tube does not exist.
        """
        answer = self._http_client.request("GET", "/server", ordinary=MISSING)
        stats = answer.data.get("stats") if isinstance(answer.data, dict) else None
        if not answer.is_success or not isinstance(stats, dict) or "version" not in stats:
            raise self._http_client.not_the_api("or it is of another version")

    def _get(self, path: str) -> Any:
        return self._http_client.request("GET", path).data

    def _succeeds(self, method: str, path: str) -> bool:
        return self._http_client.request(method, path, ordinary=NOT_CHANGED).is_success

    def _pages(self, path: str, key: str, query: Mapping[str, object]) -> Iterator[Any]:
        """Yield the items of all pages of a list. An empty page need not be the last."""
        cursor: object = None
        while True:
            params = {**query, "cursor": cursor} if cursor is not None else query
            page = self._http_client.request("GET", path, params).data
            items, following = self._parse(lambda page: (list(page[key]), page["next_cursor"]), page)
            yield from items
            if following is None:
                return
            if following == cursor:
                raise self._http_client.not_the_api("its list does not end")
            cursor = following

    def _parse(self, parse: Callable[[Any], T], data: Any) -> T:
        """Return parse(*data*); raise Unreachable if *data* does not have the format of the API."""
        try:
            return parse(data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._http_client.not_the_api("its response does not have the API's format") from error

    def _decode(self, kind: type[T], data: Any) -> T:
        """Return *data* as a *kind* of Struct; raise Unreachable if it has another format."""
        return self._parse(lambda data: msgspec.convert(data, kind), data)

    def _with_body(self, view: JobView) -> JobView:
        """Return *view*, with its body requested if the server left it out because of its size.

        The body stays None if it is hidden, or if the job was deleted.
        """
        if view.body is not None:
            return view
        answer = self._http_client.request("GET", f"/jobs/{view.id}/body", ordinary=HIDDEN)
        return JobView(view.stats, answer.data) if answer.is_success else view


def _server(data: Mapping[str, Any]) -> Stats:
    """Return the server's statistics."""
    journal, memory = data["journal"], data["memory"] or {}
    stats = {
        **{_name(key): value for key, value in data["stats"].items()},
        **_extended(data),
        **_rates(data["rates"]),
        **{f"journal-{_name(key)}": value for key, value in journal.items()},
        **{f"memory-{_name(key)}": value for key, value in memory.items()},
    }
    return validate_stats(stats, SERVER_STATS | JOURNAL)


def _attention(data: Mapping[str, Any]) -> tuple[float | None, list[dict[str, Any]]]:
    """Return the time of the evaluation, in seconds since 1970, and the conditions."""
    found = [validate_stats(dict(one), CONDITION) for one in data["conditions"]]
    at = data["evaluated_at"]
    evaluated_at = None if at is None else datetime.fromisoformat(at).timestamp()
    return evaluated_at, [one for one in found if one["acknowledged_by"] is None]


def _tube(data: Mapping[str, Any]) -> Stats:
    stats = {key: data[name] for key, name in _TUBE.items()} | _rates(data["rates"])
    stats |= {key: data[name] for key, name in _ONE_TUBE.items() if name in data} | _extended(data)
    for setting in dict(data.get("policy") or {}).values():
        validate_stats(setting, {"value": object, "policy": str})
    return validate_stats(stats, TUBE_STATS)


def _job_view(data: Mapping[str, Any]) -> JobView:
    stats = {_name(key): data[key] for key in _JOB} | {"bytes": data["size"]}
    stats |= {_name(key): _named(data[key]) for key in _NEWER_OF_JOB if key in data}
    stats |= _job_tags(data.get("tags") or {})
    validate_stats(stats, JOB_STATS)
    body = data["body"]
    if body is None:
        return JobView(stats, None)
    return JobView(stats, body.encode() if data["encoding"] == "utf-8" else b64decode(body))


def _extended(data: Mapping[str, Any]) -> Stats:
    """Return the extended keys of the server or of a tube, without those that do not apply; an older server has none.

    `version` is the server's own in the API, so `greenstalk-version` is left out, as over the protocol.
    """
    extended = {_name(key): value for key, value in data.get("extended", {}).items() if value is not None}
    extended.pop("greenstalk-version", None)
    return extended


def _job_tags(tags: Mapping[str, Any]) -> Stats:
    """Return the tags of a job, under the names of `stats-job`. Without a key, its time to live is left out."""
    shown = {key: tags[name] for key, name in _TAGS.items() if tags.get(name) is not None}
    if "idempotency-key" not in shown:
        shown.pop("idempotency-ttl", None)
    return shown


def _put_id(data: Mapping[str, Any]) -> PutId:
    id = PutId(data["id"])
    if data.get("is_duplicate"):
        id.state = data["state"] or "deleted"
    return id


def _rates(data: Mapping[str, float]) -> Stats:
    return {f"{noun}-per-second": float(data[verb]) for noun, verb in _RATES.items()}


def _name(key: str) -> str:
    return key.replace("_", "-")


def _named(value: Any) -> Any:
    """Return *value* with the protocol's names if it is an object."""
    return {_name(key): entry for key, entry in value.items()} if isinstance(value, dict) else value
