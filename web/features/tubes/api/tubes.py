"""API endpoints of tubes: lists, figures, history, and operations on whole tubes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Annotated, Final, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType, convert

from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, SECOND
from greenstalk_server.core.tubes.tube import Tube as CoreTube
from greenstalk_server.protocol.extended_stats import TubeExtension, tube_extension
from greenstalk_server.protocol.stats import tube_stats
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.operations import MAX_REASON_LENGTH, Changed, Operations
from greenstalk_server.web.changes.saved_changes import ChangeNumber
from greenstalk_server.web.features.history.history import Columns, Rates
from greenstalk_server.web.features.history.rings import SPANS, Span
from greenstalk_server.web.features.history.series_json import COMPARED, history_json
from greenstalk_server.web.features.policies.changes import MAX_SOURCES, sources_of
from greenstalk_server.web.features.tubes.tube_view import MAX_FILTER_LENGTH, SortKey, TubeViews
from greenstalk_server.web.framework.access import HIDDEN_TUBE, principal
from greenstalk_server.web.framework.api.cursors import DEFAULT_LIMIT, Cursor, Limit, NextCursor, dump, load
from greenstalk_server.web.framework.api.durability import wait_until_durable
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.api.values import (
    NO_TUBE,
    Count,
    RequestModel,
    ResponseModel,
    TubeName,
    TubeRequest,
    model_of,
)
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.fields import MAX_NUMBER
from greenstalk_server.web.framework.shards import Shards
from greenstalk_server.web.framework.sorting import Order
from greenstalk_server.web.reads.jobs.job_list import count_jobs
from greenstalk_server.web.reads.lookup import tube_of
from greenstalk_server.web.reads.policies import visible_setting
from greenstalk_server.web.reads.tubes import MAX_FOUND, find_tubes
from greenstalk_server.web.store.saved_data import SavedData

Sort = Literal[
    "name", "attention", "ready", "urgent", "reserved", "delayed", "buried", "waiting", "put-rate", "reserve-rate",
    "delete-rate", "bury-rate", "timeout-rate", "oldest", "drain", "pause",
]  # fmt: skip
"""BY_NAME and the keys of SORTS; a test compares them."""

Hold = Literal["pause", "max_reserved", "rate"]

MODELS: Final = "tubes.models"
"""Question to the other shards."""

STATES: Final = {"ready": READY, "delayed": DELAYED, "buried": BURIED}


class RatesPerSecond(ResponseModel):
    """Events per second, averaged over the last ten seconds."""

    put: float
    reserve: float
    delete: float
    bury: float
    timeout: float
    release: float
    kick: float
    dead_letter: float
    expire: float


class PolicyCounts(ResponseModel):
    """Counts of policy actions on the jobs of a tube, since the tube was created."""

    expired: Annotated[Count, Meta(description="Jobs dropped because they were too old.")]
    dropped: Annotated[Count, Meta(description="Jobs dropped because the tube was full.")]
    dead_lettered: Annotated[Count, Meta(description="Jobs moved to the tube's dead-letter tube.")]
    received: Annotated[Count, Meta(description="Jobs that came from other tubes as dead letters.")]
    buried: Annotated[Count, Meta(description="Jobs buried because no dead-letter tube could take them.")]
    retried: Annotated[Count, Meta(description="Failed attempts that were followed by a retry delay.")]
    duplicates: Annotated[Count, Meta(description="Puts that added nothing because of `unique`.")]
    copied: Annotated[Count, Meta(description="Copies that `copy_to` added to other tubes.")]
    refused: Annotated[Count, Meta(description="Puts refused by a cap or a maximum size.")]
    rate_holds: Annotated[Count, Meta(description="Times that `rate` was exhausted.")]
    reserved_holds: Annotated[Count, Meta(description="Times that `max_reserved` was exhausted.")]


class EffectiveSetting(ResponseModel):
    """A setting that is in force for a tube."""

    value: Annotated[int | float | str | list[str], Meta(description="The value, as the policy gives it.")]
    policy: Annotated[str, Meta(description="The name of the policy.")]


class Tube(ResponseModel):
    """A tube and its figures."""

    name: TubeName
    ready: Annotated[Count, Meta(description="Jobs that a worker can reserve now.")]
    urgent: Annotated[Count, Meta(description="Ready jobs with a priority below 1024.")]
    reserved: Annotated[Count, Meta(description="Jobs that workers hold.")]
    delayed: Annotated[Count, Meta(description="Jobs that become ready after a delay.")]
    buried: Annotated[Count, Meta(description="Jobs that stay buried until they are kicked.")]
    waiting: Annotated[Count, Meta(description="Workers that wait for a job of this tube.")]
    watching: Annotated[Count, Meta(description="Clients that watch the tube.")]
    using: Annotated[Count, Meta(description="Clients that use the tube, that is, put into it.")]
    bytes: Annotated[Count, Meta(description="Bytes of the bodies of all its jobs.")]
    total_jobs: Annotated[Count, Meta(description="Jobs put since the tube was created.")]
    total_deletes: Annotated[Count, Meta(description="Jobs deleted since the tube was created.")]
    has_no_consumers: Annotated[bool, Meta(description="Whether jobs are ready and no client watches the tube.")]
    oldest_ready_age: Annotated[
        Count | None, Meta(description="Seconds that the oldest ready job has been ready; null if none is ready.")
    ]
    drain_time: Annotated[
        float | None,
        Meta(description="Seconds until no job is ready, at the current rates; null if unknown or never."),
    ]
    is_paused: bool
    pause: Annotated[Count, Meta(description="Length of the current pause in seconds; 0 if there is none.")]
    pause_time_left: Annotated[Count, Meta(description="Seconds until the pause ends.")]
    pause_reason: Annotated[str, Meta(description="The reason for the pause; empty if none was given.")]
    held_by: Annotated[
        Hold | None,
        Meta(
            description="The reason why reserves get no job of the tube even if jobs are ready; null if there is none."
            " Concurrency keys are not included: they hold back single jobs."
        ),
    ]
    max_reserved: Annotated[
        Count | None, Meta(description="Maximum number of reserved jobs (compare `reserved`); null without a limit.")
    ]
    rate: Annotated[float | None, Meta(description="Maximum number of reservations per second; null without a limit.")]
    policy_counts: Annotated[PolicyCounts | None, Meta(description="Null if no policy has acted on its jobs.")]
    rates: RatesPerSecond


class TubeWithPolicy(Tube):
    """A tube, all its figures, and the policies that apply to it."""

    total_pauses: Annotated[Count, Meta(description="Times that the tube was paused or its pause was ended.")]
    extended: TubeExtension
    policy: Annotated[
        dict[str, EffectiveSetting],
        Meta(description="The settings in force, merged from all policies that match; empty if none does."),
    ]
    dead_letter: Annotated[
        str | None,
        Meta(
            description="The tube for jobs that fail; null if they are buried, for example because of a loop;"
            f" “{HIDDEN_TUBE}” if you may not see it."
        ),
    ]
    dead_letters_from: Annotated[
        list[TubeName], Meta(description=f"Up to {MAX_SOURCES} existing tubes that send their dead letters here.")
    ]


class TubeList(ResponseModel):
    """A page of tubes."""

    tubes: list[Tube]
    next_cursor: NextCursor


class ListTubesRequest(RequestModel):
    """Selects tubes, and a page of the list."""

    q: Annotated[
        str,
        Meta(max_length=MAX_FILTER_LENGTH, description="Only tubes whose names contain this text; case is ignored."),
    ] = ""
    sort: Annotated[Sort, Meta(description="The figure to sort by. Tubes without a value come last.")] = "name"
    desc: Annotated[bool, Meta(description="Largest first.")] = False
    cursor: Cursor | UnsetType = UNSET
    limit: Limit = DEFAULT_LIMIT


class FindTubesRequest(RequestModel):
    """The tubes to find."""

    q: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=MAX_FILTER_LENGTH,
            description="Characters of the name; case is ignored.",
            examples=["bilma"],
        ),
    ]
    limit: Annotated[int, Meta(ge=1, le=MAX_FOUND, description="The maximum number of tubes to return.")] = 20


class FoundTubes(ResponseModel):
    """The names of the tubes found, best matches first."""

    tubes: list[TubeName]
    matched: Annotated[Count, Meta(description="All tubes that match.")]


class PauseTubeRequest(RequestModel):
    """Length of a pause, and the reason for it."""

    seconds: Annotated[
        float,
        Meta(
            ge=0.001,
            le=MAX_NUMBER,
            description="Length of the pause from now, in seconds, at most three digits after the point.",
            examples=[600],
        ),
    ]
    reason: Annotated[str, Meta(max_length=MAX_REASON_LENGTH, description="The reason, shown with the tube.")] = ""


class KickTubeRequest(RequestModel):
    """Selects jobs of a tube to kick."""

    state: Literal["buried", "delayed"] = "buried"
    count: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_NUMBER)] | None,
        Meta(description="The maximum number of jobs to kick; null for all."),
    ] = None


DEFAULT_KICK: Final = KickTubeRequest()


class ClearTubeRequest(RequestModel):
    """Selects jobs of a tube to delete."""

    state: Literal["ready", "delayed", "buried"]


SavedChangeNumber = Annotated[ChangeNumber | None, Meta(description="The change; null if it cannot be undone.")]
ChangeProblem = Annotated[
    str,
    Meta(
        description="Why the change cannot be undone, or stopped early, and which jobs cannot be put back; empty if all"
        " jobs were stored for an undo."
    ),
]


class Outcome(ResponseModel):
    """The number of jobs of a tube that were kicked or deleted."""

    tube: TubeName
    state: Literal["ready", "delayed", "buried"]
    jobs: Annotated[Count, Meta(description="Jobs that were kicked or deleted.")]
    left: Annotated[
        Count, Meta(description="Jobs in that state now: new ones, or those not reached before the time limit.")
    ]
    change_number: SavedChangeNumber
    problem: ChangeProblem


class Flushed(ResponseModel):
    """The number of jobs that a flush deleted."""

    tube: TubeName
    jobs: Count
    change_number: SavedChangeNumber
    problem: ChangeProblem


class HistoryRequest(RequestModel):
    """The span of time."""

    span: Annotated[
        Literal["10min", "hour", "day", "week", "90days"],
        Meta(
            description="The last ten minutes, with a point per second; the last hour or day, with a point per minute;"
            " the last week or 90 days, with a point per hour."
        ),
    ] = "hour"
    compare: Annotated[
        Literal["day", "week"] | UnsetType,
        Meta(description="Also return the same span, a day or a week earlier, in `before`."),
    ] = UNSET


class TubeHistoryRequest(HistoryRequest, kw_only=True):
    """The tube, and the span of time."""

    tube: TubeName


class Series(ResponseModel):
    """History as points in time."""

    step: Annotated[Count, Meta(description="Seconds between two points.")]
    end: Annotated[Count, Meta(description="End of the last point, in seconds since the Unix epoch.")]
    series: Annotated[
        dict[str, list[float | int | None]],
        Meta(
            description="Values by series, oldest first; null is unknown. Rates per second: `put`, `reserve`, `delete`,"
            " `bury`, `timeout`, `release`, `kick`, `dead_letter`, `expire`. Counts: `ready`, `reserved`, `delayed`,"
            " `buried`, `waiting`. Seconds, accurate to 1.6 %: `wait_p50`, `wait_p95`, `wait_p99`, `run_p50`,"
            " `run_p95`, `run_p99`; not of a server with several processes. A series without events is omitted."
        ),
    ]
    before: Annotated[
        dict[str, list[float | int | None]] | None,
        Meta(
            description="The series of the earlier time, in the same form; null without `compare`. If its"
            " points are kept per minute or per hour only, several points have the same values."
        ),
    ] = None


def series_model(columns: Callable[[Span, int], Columns], query: HistoryRequest) -> Series:
    """Return the history that *query* selects; *columns* returns the series of a span, some time ago. Switches."""
    span = SPANS[query.span]
    found = Series(**history_json(columns(span, 0)))
    if query.compare is not UNSET:
        found.before = history_json(columns(span, COMPARED[query.compare][1]))["series"]
    return found


def _outcome(
    query: TubeRequest, state: Literal["ready", "delayed", "buried"], changed: Changed, tube: CoreTube
) -> Outcome:
    return Outcome(
        tube=query.tube,
        state=state,
        jobs=changed.jobs,
        left=count_jobs(tube, STATES[state]),
        change_number=changed.change_number,
        problem=changed.problem,
    )


class _TubePlace(Struct, array_like=True):
    """The order of the list, and the sort key of the last tube of the previous page."""

    order: str
    has_no_value: bool
    rank: float
    name: str


class TubesEndpoints:
    """Tubes: figures, history, pauses, and operations on all jobs of a tube.

    A tube's name is a query parameter and not part of the path, since it may contain slashes.
    """

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        commit: Callable[[], bool],
        operations: Operations,
        views: TubeViews,
        saved: SavedData,
        shards: Shards,
    ) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._commit: Callable[[], bool] = commit
        self._operations: Operations = operations
        self._views: TubeViews = views
        self._saved: SavedData = saved
        self._shards: Shards = shards
        shards.answer(MODELS, lambda names: self._own_models(names, self._clock()))

    @endpoint("GET", "/tubes")
    def list_tubes(self, query: ListTubesRequest) -> TubeList:
        """List the tubes.

        Unless the list is sorted by name, a tube may move from one page to another between two requests.
        """
        now = self._clock()
        first = self._views.first(query.q, Order(query.sort, query.desc), now, query.limit + 1, _after(query)).keys
        tubes = self._models([name for _, _, name in first[: query.limit]], now)
        following = dump(_TubePlace(_order(query), *first[query.limit - 1])) if len(first) > query.limit else None
        return TubeList(tubes=tubes, next_cursor=following)

    @endpoint("GET", "/tubes/find")
    def find_tubes(self, query: FindTubesRequest) -> FoundTubes:
        """Find tubes by a part of the name, or by characters of the name in their order.

        `bilma` finds `billing.mail`. The best matches come first.
        """
        tubes, matched = find_tubes(self._broker, query.q, query.limit, self._shards)
        return FoundTubes(tubes=tubes, matched=matched)

    @endpoint("GET", "/tube", errors=NO_TUBE)
    def get_tube(self, query: TubeRequest) -> TubeWithPolicy:
        """Get one tube, with the settings that policies give to it."""
        tube_of(self._broker, query.tube)
        sources = sources_of(self._broker, query.tube.encode())
        tube = tube_of(self._broker, query.tube)
        model = self.tube_model(tube, self._clock())
        policy_state, who = tube.policy_state, principal()
        settings = policy_state.policy.describe() if policy_state is not None else {}
        for key, setting in settings.items():
            setting["value"] = visible_setting(key, setting["value"])
        return model_of(
            TubeWithPolicy,
            model,
            total_pauses=tube.cmd_pause_tube,
            extended=tube_extension(tube, self._clock()),
            policy={key: convert(setting, EffectiveSetting) for key, setting in settings.items()},
            dead_letter=who.name_of(policy_state.dead_letter) or None if policy_state is not None else None,
            dead_letters_from=sources,
        )

    @endpoint("GET", "/tubes/history", errors=NO_TUBE)
    def get_tube_history(self, query: TubeHistoryRequest) -> Series:
        """Get the history of one tube.

        The history of a deleted tube is kept, too.
        """
        name = query.tube.encode()
        if not principal().sees(name):
            tube_of(self._broker, query.tube)
        found = series_model(partial(self._views.history.columns, name), query)
        if not found.series and not self._views.history.has(name):
            tube_of(self._broker, query.tube)
        return found

    @endpoint("POST", "/tube/pause", role=OPERATOR, errors=NO_TUBE)
    def pause_tube(self, query: TubeRequest, body: PauseTubeRequest) -> Tube:
        """Pause a tube: none of its jobs can be reserved for a while.

        This replaces a pause that is already running.
        """
        tube = tube_of(self._broker, query.tube)
        self._operations.pause(tube, body.seconds, " ".join(body.reason.split()))
        return self._model_when_durable(tube)

    @endpoint("POST", "/tube/resume", role=OPERATOR, errors=NO_TUBE)
    def resume_tube(self, query: TubeRequest) -> Tube:
        """End the pause of a tube."""
        tube = tube_of(self._broker, query.tube)
        self._operations.resume(tube)
        return self._model_when_durable(tube)

    @endpoint("POST", "/tube/kick", role=OPERATOR, errors=NO_TUBE)
    def kick_tube(self, query: TubeRequest, body: KickTubeRequest = DEFAULT_KICK) -> Outcome:
        """Kick buried or delayed jobs of a tube, so that they become ready.

        `change_number` identifies the change for an undo.
        """
        tube, state = tube_of(self._broker, query.tube), STATES[body.state]
        kicked = self._operations.kick(tube, state, count_jobs(tube, state) if body.count is None else body.count)
        wait_until_durable(self._commit)
        return _outcome(query, body.state, kicked, tube)

    @endpoint("POST", "/tube/clear", role=OPERATOR, errors=NO_TUBE)
    def clear_tube(self, query: TubeRequest, body: ClearTubeRequest) -> Outcome:
        """Delete all jobs of a tube that are in one state now.

        `change_number` identifies the deletion for an undo. Jobs put during the request stay. The deletion stops early
        if the deleted jobs can no longer be stored; `left` then counts the rest.
        """
        tube, state = tube_of(self._broker, query.tube), STATES[body.state]
        cleared = self._operations.clear(tube, state)
        wait_until_durable(self._commit)
        return _outcome(query, body.state, cleared, tube)

    @endpoint("POST", "/tube/flush", role=OPERATOR, errors=NO_TUBE)
    def flush_tube(self, query: TubeRequest) -> Flushed:
        """Delete all jobs that a tube has now, in every state, including those that clients hold.

        `change_number` identifies the deletion for an undo. Jobs that are put during the request are kept. The request
        ends after 20 seconds, and early if the deleted jobs can no longer be stored. To delete the rest, repeat the
        request until it returns 0 jobs.
        """
        flushed = self._operations.flush(tube_of(self._broker, query.tube))
        wait_until_durable(self._commit)
        return Flushed(tube=query.tube, jobs=flushed.jobs, change_number=flushed.change_number, problem=flushed.problem)

    def _model_when_durable(self, tube: CoreTube) -> Tube:
        response = self.tube_model(tube, self._clock())
        wait_until_durable(self._commit)
        return response

    def _models(self, names: list[str], now: int) -> list[Tube]:
        """Return the tubes *names* of all shards, without those that are gone. May switch."""
        found = {tube.name: tube for tube in self._own_models(names, now)}
        for answer in self._views.ask_owners(MODELS, names).values():
            found |= {tube.name: tube for tube in convert(answer, list[Tube])}
        return [found[name] for name in names if name in found]

    def _own_models(self, names: list[str], now: int) -> list[Tube]:
        """Return those of the tubes *names* that this shard owns. May switch."""
        pace, tubes = Pace(), list[Tube]()
        for name in names:
            tube = self._broker.tubes.get(name.encode())
            if tube is not None and self._shards.owns(tube.name) and principal().sees(tube.name):
                tubes.append(self.tube_model(tube, now))
            pace.yield_if_due()
        return tubes

    def tube_model(self, tube: CoreTube, now: int) -> Tube:
        """Return *tube* as the API shows it."""
        stats, seen = tube_stats(tube, now), self._views.of(tube, now)
        return Tube(
            name=stats.name,
            ready=stats.current_jobs_ready,
            urgent=stats.current_jobs_urgent,
            reserved=stats.current_jobs_reserved,
            delayed=stats.current_jobs_delayed,
            buried=stats.current_jobs_buried,
            waiting=stats.current_waiting,
            watching=stats.current_watching,
            using=stats.current_using,
            bytes=tube.body_bytes,
            total_jobs=stats.total_jobs,
            total_deletes=stats.cmd_delete,
            has_no_consumers=seen.is_idle,
            oldest_ready_age=seen.oldest_age,
            drain_time=None if seen.drain_time == inf else seen.drain_time,
            is_paused=bool(tube.paused_until),
            pause=stats.pause,
            pause_time_left=stats.pause_time_left,
            pause_reason=self._saved.reason(stats.name, tube.paused_until),
            held_by=_HOLDS.get(tube.throttle_reason(now)),
            max_reserved=(tube.policy_state.policy.max_reserved or None) if tube.policy_state is not None else None,
            rate=_rate(tube),
            policy_counts=_policy_counts(tube),
            rates=rates_model(seen.rates),
        )


_HOLDS: Final[Mapping[str, Hold]] = {hold: hold for hold in get_args(Hold)}


def _rate(tube: CoreTube) -> float | None:
    """Return the reservations of *tube* that may start per second, or None if there is no limit."""
    interval = tube.policy_state.policy.rate_interval if tube.policy_state is not None else 0
    return round(SECOND / interval, 6) if interval else None


def _policy_counts(tube: CoreTube) -> PolicyCounts | None:
    return None if tube.policy_counts is None else model_of(PolicyCounts, tube.policy_counts)


def rates_model(rates: Rates) -> RatesPerSecond:
    """Return *rates* as the API shows them."""
    return RatesPerSecond(**rates._asdict())


def _after(query: ListTubesRequest) -> SortKey | None:
    """Return the last key of the previous page, or None for the first page."""
    if query.cursor is UNSET:
        return None
    place = load(query.cursor, _TubePlace)
    if place.order != _order(query):
        refuse("cursor", "belongs to a list in another order")
    return place.has_no_value, place.rank, place.name


def _order(query: ListTubesRequest) -> str:
    return f"{'-' if query.desc else ''}{query.sort}"
