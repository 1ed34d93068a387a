"""The tubes of the API: lists, figures, history, and what is done to a whole tube."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import nlargest, nsmallest
from math import inf
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import BURIED, DELAYED, READY
from greenstalk_server.core.stats import tube_stats
from greenstalk_server.core.tube import Tube as CoreTube
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.api.cursors import DEFAULT_LIMIT, Cursor, Limit, NextCursor, dump, load
from greenstalk_server.web.api.durability import settle
from greenstalk_server.web.api.framework.endpoint import endpoint
from greenstalk_server.web.api.framework.problems import refuse
from greenstalk_server.web.api.values import Asked, Count, OfTube, Told, TubeName, tube_of
from greenstalk_server.web.cooperative import Pace
from greenstalk_server.web.fields import MAX_NUMBER
from greenstalk_server.web.jobs.job_list import count_jobs
from greenstalk_server.web.metrics.history import History, Rates
from greenstalk_server.web.metrics.rings import SPANS
from greenstalk_server.web.operations.operations import LONGEST_REASON, Operations
from greenstalk_server.web.operations.store import Store
from greenstalk_server.web.pages.charts import history_json
from greenstalk_server.web.pages.overview import BY_NAME, MAX_FILTER_LENGTH, SORTS, TUBE_BATCH, TubeView

Sort = Literal[
    "name", "attention", "ready", "urgent", "reserved", "delayed", "buried", "waiting", "put-rate", "reserve-rate",
    "delete-rate", "bury-rate", "timeout-rate", "oldest", "drain", "pause",
]  # fmt: skip
"""BY_NAME and the keys of SORTS, which a test compares."""

STATES: Final = {"ready": READY, "delayed": DELAYED, "buried": BURIED}

MAX_RANK: Final = 1e300

_Key = tuple[bool, float, str]
"""A tube's name, and before it what puts it in its place: that it has no value, and its value."""


class RatesPerSecond(Told):
    """What happens in a second, as the mean of the last ten."""

    put: float
    reserve: float
    delete: float
    bury: float
    timeout: float
    release: float
    kick: float


class Tube(Told):
    """A tube and its figures."""

    name: TubeName
    ready: Annotated[Count, Meta(description="Jobs that a worker may reserve now.")]
    urgent: Annotated[Count, Meta(description="Those of them with a priority below 1024.")]
    reserved: Annotated[Count, Meta(description="Jobs that workers hold.")]
    delayed: Annotated[Count, Meta(description="Jobs that turn ready later.")]
    buried: Annotated[Count, Meta(description="Jobs set aside until somebody kicks them.")]
    waiting: Annotated[Count, Meta(description="Workers that wait for a job of this tube.")]
    watching: Annotated[Count, Meta(description="Clients that would reserve from it.")]
    using: Annotated[Count, Meta(description="Clients that would put into it.")]
    bytes: Annotated[Count, Meta(description="Of the bodies of all its jobs.")]
    total_jobs: Annotated[Count, Meta(description="Jobs put since the tube came to be.")]
    total_deletes: Annotated[Count, Meta(description="Jobs deleted since.")]
    has_no_consumers: Annotated[bool, Meta(description="Jobs are ready, and no client watches the tube.")]
    oldest_ready_age: Annotated[
        Count | None, Meta(description="Seconds that the job which is ready for longest has been so.")
    ]
    drain_time: Annotated[
        float | None,
        Meta(description="Seconds until no job is ready, if all goes on so. Null if that is not known, or never."),
    ]
    is_paused: bool
    pause: Annotated[Count, Meta(description="Length of the pause that goes on, in seconds; 0 if none does.")]
    pause_time_left: Annotated[Count, Meta(description="Seconds until it ends.")]
    pause_reason: Annotated[str, Meta(description="Why it is paused, if that was said.")]
    rates: RatesPerSecond


class TubeList(Told):
    """Some of the tubes."""

    tubes: list[Tube]
    next_cursor: NextCursor


class ListTubes(Asked):
    """Which tubes."""

    q: Annotated[
        str, Meta(max_length=MAX_FILTER_LENGTH, description="Only tubes with this in their names, in any case.")
    ] = ""
    sort: Annotated[Sort, Meta(description="By what they are sorted; what has no value comes last.")] = "name"
    desc: Annotated[bool, Meta(description="The largest first.")] = False
    cursor: Cursor | UnsetType = UNSET
    limit: Limit = DEFAULT_LIMIT


class Pause(Asked):
    """How long a tube is to be paused, and why."""

    seconds: Annotated[int, Meta(ge=1, le=MAX_NUMBER, description="From now on.")]
    reason: Annotated[str, Meta(max_length=LONGEST_REASON, description="For whoever looks at the tube.")] = ""


class Kick(Asked):
    """Which jobs of a tube to kick."""

    state: Literal["buried", "delayed"] = "buried"
    count: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_NUMBER)] | None, Meta(description="How many at most; null is all of them.")
    ] = None


ALL_BURIED: Final = Kick()


class Clear(Asked):
    """Which jobs of a tube to delete."""

    state: Literal["ready", "delayed", "buried"]


class Outcome(Told):
    """How many jobs of a tube were kicked or deleted."""

    tube: TubeName
    state: Literal["ready", "delayed", "buried"]
    jobs: Annotated[Count, Meta(description="How many it was done to.")]
    left: Annotated[Count, Meta(description="How many are in that state now: others, or the rest if time was up.")]


class Spanned(Asked):
    """Which span of time."""

    span: Annotated[
        Literal["hour", "day"], Meta(description="An hour in points of 10 s, or a day in points of 300 s.")
    ] = "hour"


class SpannedTube(Spanned, kw_only=True):
    """Which tube, and which span of time."""

    tube: TubeName


class Series(Told):
    """What has happened, point by point."""

    step: Annotated[Count, Meta(description="Seconds between two points.")]
    end: Annotated[Count, Meta(description="When the last point ended, in seconds since the Unix epoch.")]
    series: Annotated[
        dict[str, list[float | int | None]],
        Meta(
            description="Values by series, oldest first; null is unknown. Rates are per second (`put`, `reserve`,"
            " `delete`, `bury`, `timeout`, `release`, `kick`), then there are counts (`ready`, `reserved`, `delayed`,"
            " `buried`, `waiting`) and seconds (`wait_p50`, `wait_p95`, `run_p50`, `run_p95`). A series in which"
            " nothing happened is left out."
        ),
    ]


class _Place(Struct, array_like=True):
    """After which tube a list goes on, and in what order."""

    order: str
    is_last: bool
    rank: float
    name: str


NO_TUBE: Final = {404: "There is no such tube now. One exists while it holds jobs, or a client uses or watches it."}


class Tubes:
    """Tubes: figures, history, pauses, and what is done to all jobs of one.

    A tube's name stands in the query, never in the path, since it may hold slashes.
    """

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        commit: Callable[[], bool],
        operations: Operations,
        history: History,
        store: Store,
    ) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._commit: Callable[[], bool] = commit
        self._operations: Operations = operations
        self._history: History = history
        self._store: Store = store

    @endpoint("GET", "/tubes")
    def list_tubes(self, query: ListTubes) -> TubeList:
        """List the tubes.

        Sorted by something else than the name, a tube may pass from one page to another between two requests.
        """
        now, pace = self._clock(), Pace()
        first = self._first(query, now, pace)
        told = []
        for _, _, name in first[: query.limit]:
            tube = self._broker.tubes.get(name.encode())
            if tube is not None:  # others had their turn since
                told.append(self.told(tube, now))
            pace.yield_if_due()
        following = dump(_Place(_order(query), *first[query.limit - 1])) if len(first) > query.limit else None
        return TubeList(tubes=told, next_cursor=following)

    @endpoint("GET", "/tube", errors=NO_TUBE)
    def get_tube(self, query: OfTube) -> Tube:
        """Look at one tube."""
        return self.told(tube_of(self._broker, query.tube), self._clock())

    @endpoint("GET", "/tubes/history", errors=NO_TUBE)
    def get_tube_history(self, query: SpannedTube) -> Series:
        """See what has happened in one tube lately.

        That of a tube which is gone is kept for a while.
        """
        name = query.tube.encode()
        if not self._history.has(name):
            tube_of(self._broker, query.tube)
        return Series(**history_json(self._history.columns(name, SPANS[query.span])))

    @endpoint("POST", "/tube/pause", errors=NO_TUBE)
    def pause_tube(self, query: OfTube, body: Pause) -> Tube:
        """Pause a tube: no job of it can be reserved for a while.

        On a tube that is paused already, the new pause takes the place of the old one.
        """
        tube = tube_of(self._broker, query.tube)
        self._operations.pause(tube, body.seconds, " ".join(body.reason.split()))
        return self._settled(tube)

    @endpoint("POST", "/tube/resume", errors=NO_TUBE)
    def resume_tube(self, query: OfTube) -> Tube:
        """End the pause of a tube."""
        tube = tube_of(self._broker, query.tube)
        self._operations.resume(tube)
        return self._settled(tube)

    @endpoint("POST", "/tube/kick", errors=NO_TUBE)
    def kick_tube(self, query: OfTube, body: Kick = ALL_BURIED) -> Outcome:
        """Kick buried or delayed jobs of a tube: they turn ready."""
        tube, state = tube_of(self._broker, query.tube), STATES[body.state]
        kicked = self._operations.kick(tube, state, count_jobs(tube, state) if body.count is None else body.count)
        settle(self._commit)
        return Outcome(tube=query.tube, state=body.state, jobs=kicked, left=count_jobs(tube, state))

    @endpoint("POST", "/tube/clear", errors=NO_TUBE)
    def clear_tube(self, query: OfTube, body: Clear) -> Outcome:
        """Delete all jobs of a tube that are in one state now.

        There is no way back from it. Jobs that are put meanwhile stay.
        """
        tube, state = tube_of(self._broker, query.tube), STATES[body.state]
        cleared = self._operations.clear(tube, state)
        settle(self._commit)
        return Outcome(tube=query.tube, state=body.state, jobs=cleared, left=count_jobs(tube, state))

    def _settled(self, tube: CoreTube) -> Tube:
        told = self.told(tube, self._clock())
        settle(self._commit)
        return told

    def _first(self, query: ListTubes, now: int, pace: Pace) -> list[_Key]:
        """What the page that *query* asks for is sorted by, and one more if there is one. May switch."""
        after = _after(query)
        is_reversed = query.desc and query.sort == BY_NAME
        pick = nlargest if is_reversed else nsmallest
        best: list[_Key] = []
        for tubes in self._matching(query.q):
            keys = [self._key(tube, query, now) for tube in tubes]
            if after is not None:
                keys = [key for key in keys if (key < after if is_reversed else key > after)]
            best = pick(query.limit + 1, [*best, *keys])
            pace.yield_if_due()
        return best

    def _matching(self, part: str) -> Iterator[list[CoreTube]]:
        """The tubes that have *part* in their names, a slice at a time."""
        wanted, tubes = part.lower().encode(), list(self._broker.tubes.values())
        for begin in range(0, len(tubes), TUBE_BATCH):
            yield [tube for tube in tubes[begin : begin + TUBE_BATCH] if wanted in tube.name.lower()]

    def _key(self, tube: CoreTube, query: ListTubes, now: int) -> _Key:
        rank = SORTS[query.sort].rank if query.sort != BY_NAME else None
        value = rank(TubeView(tube, self._history, now)) if rank is not None else 0
        if value is None:
            return True, 0, tube.name.decode()
        return False, _finite(-value if query.desc else value), tube.name.decode()

    def told(self, tube: CoreTube, now: int) -> Tube:
        """What there is to tell of *tube*."""
        stats, seen = tube_stats(tube, now), TubeView(tube, self._history, now)
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
            pause_reason=self._store.reason(stats.name, tube.paused_until),
            rates=rates_told(seen.rates),
        )


def rates_told(rates: Rates) -> RatesPerSecond:
    """*rates* as the API has them."""
    return RatesPerSecond(**rates._asdict())


def _after(query: ListTubes) -> _Key | None:
    """The last key of the page before."""
    if query.cursor is UNSET:
        return None
    place = load(query.cursor, _Place)
    if place.order != _order(query):
        refuse("cursor", "is of a list in another order")
    return place.is_last, place.rank, place.name


def _order(query: ListTubes) -> str:
    return f"{'-' if query.desc else ''}{query.sort}"


def _finite(value: float) -> float:
    """*value*, or the largest that JSON can have."""
    return float(min(max(value, -MAX_RANK), MAX_RANK))
