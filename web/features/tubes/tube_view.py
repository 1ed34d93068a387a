"""The tubes in the list of tubes: their figures, the columns that show and sort them, and their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from heapq import merge
from itertools import islice
from math import ceil, copysign, inf, isnan
from typing import Any, Final, NamedTuple

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.features.conditions.measures import SEVERITIES, ActiveCondition, rank_in_tube
from greenstalk_server.web.features.conditions.monitor import ConditionMonitor
from greenstalk_server.web.features.history.figures import points_of
from greenstalk_server.web.features.history.history import History, Rates
from greenstalk_server.web.framework import sparkline, text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.shards import ALONE, Shards
from greenstalk_server.web.framework.sorting import Order
from greenstalk_server.web.reads.policies import DeadLetterTubes, hold_label
from greenstalk_server.web.store.saved_data import SavedData

MAX_FILTER_LENGTH: Final = 200
"""Maximum characters of a filter: the length of the longest tube name."""

TUBE_BATCH: Final = 256
"""Tubes scanned per batch, between two yields to the event loop: about 0.2 ms."""

FIRST: Final = "tubes.first"
ROWS: Final = "tubes.rows"
"""Questions to the other shards."""

BY_NAME: Final = "name"

ATTENTION_KEY: Final = "attention"

MAX_RANK: Final = 1e300
"""Values to sort by are clamped to this, since JSON cannot hold infinity."""

SPARK_WIDTH: Final = 96

SPARK_HEIGHT: Final = 20


class TubeView:
    """One tube at the time *now*.

    pause_reason    the reason for its pause; empty if none was given.
    """

    __slots__ = ("_dead_letter_tubes", "_puts", "_rates", "_worst", "history", "now", "pause_reason", "tube")

    def __init__(
        self,
        tube: Tube,
        history: History,
        now: int,
        dead_letter_tubes: DeadLetterTubes,
        worst: ActiveCondition | None,
        pause_reason: str = "",
    ) -> None:
        self.tube: Tube = tube
        self.history: History = history
        self._dead_letter_tubes: DeadLetterTubes = dead_letter_tubes
        self._worst: ActiveCondition | None = worst
        self.now: int = now
        self.pause_reason: str = pause_reason
        self._rates: Rates | None = None
        self._puts: list[float] | None = None

    @property
    def puts(self) -> list[float]:
        """Jobs put per second over the last ten minutes, one point per ten seconds; NaN where unknown."""
        if self._puts is None:
            self._puts = self.history.spark(self.tube.name, "put")
        return self._puts

    @property
    def rates(self) -> Rates:
        """Its rates over the last ten seconds."""
        if self._rates is None:
            self._rates = self.history.rates(self.tube.name)
        return self._rates

    @property
    def is_idle(self) -> bool:
        """Whether it has ready jobs and no client watches it."""
        return bool(self.tube.ready.count) and not self.tube.watching

    @property
    def is_dead_letter(self) -> bool:
        """Whether it is a dead-letter tube, whose jobs need no workers."""
        return self._dead_letter_tubes.has(self.tube)

    @property
    def attention(self) -> str:
        """Severity and label of the tube's worst condition; without one, `info` and a harmless state, or empty.

        The severity is the first word.
        """
        if self._worst is not None:
            return f"{self._worst.measure.severity} {self._worst.measure.kind.label}"
        if hold := hold_label(self.tube, self.now):
            return "info at max. reserved" if hold == "max_reserved" else "info at rate limit"
        if self.tube.job_count and self.is_dead_letter:
            return "info dead letters"
        return ""

    @property
    def severity(self) -> float:
        """The rank of its worst condition."""
        return _severity(self._worst)

    @property
    def oldest_age(self) -> int | None:
        """Seconds since its oldest ready job became ready; None without ready jobs."""
        job = self.tube.oldest_ready()
        return None if job is None else max(0, self.now - job.ready_since) // SECOND

    @property
    def drain_time(self) -> float | None:
        """Seconds until no job is ready, at the current rates.

        Infinite if the backlog grows; None without ready jobs, or if the backlog is stable.
        """
        ready, growth = self.tube.ready.count, self.rates.put - self.rates.delete
        if not ready or not growth:
            return None
        return inf if growth > 0 else ready / -growth

    @property
    def pause_left(self) -> int | None:
        """Seconds until its pause ends; None if it is not paused."""
        return max(0, self.tube.paused_until - self.now - 1) // SECOND if self.tube.paused_until else None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of tubes, after the name.

    key             its CSS class, and its name in URLs.
    text            returns the text of a cell.
    rank            returns the sort key; a key of None sorts last. Without *rank* the column is not sortable.
    count           returns the same sort key for a Tube, in a quarter of the time; None if the key needs a TubeView.
    kind            `text`, `path` for a sparkline, or `badge` for a text whose first word is the state of a chip.
    """

    label: str
    key: str
    help: str
    text: Callable[[TubeView], str]
    rank: Callable[[TubeView], float | None] | None
    kind: str = "text"
    count: Callable[[Tube], int] | None = None


def _number(label: str, key: str, help: str, count: Callable[[Tube], int]) -> Column:
    return Column(
        label, key, help, lambda view: text.number(count(view.tube)), lambda view: count(view.tube), count=count
    )


def _rate(label: str, key: str, noun: str) -> Column:
    def value(view: TubeView) -> float:
        return getattr(view.rates, key)  # type: ignore[no-any-return]

    return Column(
        label,
        f"{key}-rate",
        f"{noun} per second, over the last ten seconds",
        lambda view: text.rate(value(view)),
        value,
    )


def _seconds(seconds: float | None) -> str:
    return text.NONE if seconds is None else text.duration(ceil(seconds))


def _pause(view: TubeView) -> str:
    left = _seconds(view.pause_left)
    return f"{left}, {text.spelled(view.pause_reason)}" if view.pause_reason else left


def _drain(view: TubeView) -> str:
    return "growing" if view.drain_time == inf else _seconds(view.drain_time)


def spark_path(values: list[float], top: float) -> str:
    """Return *values* as an SVG path on a scale up to *top*; empty if all are zero or unknown."""
    return sparkline.path(values, SPARK_WIDTH, SPARK_HEIGHT, top) if highest(values) else ""


def highest(values: list[float]) -> float:
    """Return the highest known value of *values*; 0 if there is none."""
    return max((value for value in values if not isnan(value)), default=0.0)


COLUMNS: Final = (
    Column(
        "Attention",
        ATTENTION_KEY,
        "The worst condition of the tube; else whether a policy holds its jobs, or it has dead letters",
        lambda view: view.attention,
        lambda view: view.severity,
        "badge",
    ),
    _number("Ready", "ready", "Jobs that a worker can reserve now", lambda tube: tube.ready.count),
    Column(
        "Oldest",
        "oldest",
        "How long the oldest ready job has been ready",
        lambda view: _seconds(view.oldest_age),
        lambda view: view.oldest_age,
    ),
    _number("Urgent", "urgent", "Ready jobs with a priority below 1024", lambda tube: tube.urgent_count),
    _number("Reserved", "reserved", "Jobs held by workers", lambda tube: tube.reserved_count),
    _number("Delayed", "delayed", "Jobs that become ready after a delay", lambda tube: tube.delayed.count),
    _number("Buried", "buried", "Jobs set aside until they are retried", lambda tube: len(tube.buried)),
    Column(
        "Pause",
        "pause",
        "Time until jobs of this tube can be reserved again, and the reason for the pause",
        _pause,
        lambda view: view.pause_left,
    ),
    _rate("Put/s", "put", "Jobs put"),
    _rate("Reserved/s", "reserve", "Jobs reserved"),
    _rate("Deleted/s", "delete", "Jobs deleted"),
    _rate("Buried/s", "bury", "Jobs buried"),
    _rate("Timeouts/s", "timeout", "Reservations that timed out"),
    Column(
        "10 min",
        "trend",
        "Jobs put in the last ten minutes, on the same scale for all tubes of this page",
        lambda view: "",
        None,
        "path",
    ),
    Column(
        "Drains in",
        "drain",
        "Time until no job is ready, at the put and delete rates of the last ten seconds",
        _drain,
        lambda view: view.drain_time,
    ),
    _number("Waiting", "waiting", "Workers waiting for a job of this tube", lambda tube: tube.waiting_count),
)
"""The columns in the order of the table: jobs by state, rates, workers. static/pages.css says which a window hides."""

TREND: Final = 1 + [column.key for column in COLUMNS].index("trend")
"""Place of the sparkline in a row."""

NAME: Final = Column("Tube", BY_NAME, "By name", lambda view: view.tube.name.decode(), None)
"""The first column."""

SORTS: Final = {column.key: column for column in COLUMNS if column.rank is not None}
"""The columns by which tubes can be sorted, besides BY_NAME."""


def tube_texts(view: TubeView) -> list[str]:
    """Return the row of a tube: the name, then the COLUMNS. Its sparkline is empty: its scale depends on the page."""
    return [column.text(view) for column in (NAME, *COLUMNS)]


DEFAULT_ORDER: Final = Order(ATTENTION_KEY, is_descending=True)
"""Tubes with the worst conditions first."""


def is_reversed(order: Order) -> bool:
    """Return whether the largest keys of `TubeViews.key` come first in *order*."""
    return order.is_descending and order.key == BY_NAME


def order_text(order: Order) -> str:
    """Return *order* in words: `by name`, `by “Ready”, largest first`."""
    if order.key == BY_NAME:
        return "by name, descending" if order.is_descending else "by name"
    if order.key == ATTENTION_KEY:
        return "those that need attention first" if order.is_descending else "those that need attention last"
    which = "largest" if order.is_descending else "smallest"
    return f"by “{SORTS[order.key].label}”, {which} first"


SortKey = tuple[bool, float, str]
"""Whether a tube has no value to sort by, the value, and the name. Tubes with equal values are sorted by name."""


class FirstTubes(NamedTuple):
    """The first tubes in an order.

    keys        their sort keys, in order.
    total       the number of visible tubes.
    matched     the number of those that match the filter.
    """

    keys: list[SortKey]
    total: int
    matched: int


class TubeViews:
    """The tubes of all shards as the principal sees them, for the overview and for the API."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        history: History,
        attention: ConditionMonitor | None = None,
        saved: SavedData | None = None,
        shards: Shards = ALONE,
    ) -> None:
        """*saved* has the reasons for pauses."""
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._shards: Shards = shards
        shards.answer(FIRST, self._first_for_another)
        shards.answer(ROWS, lambda names: self._own_rows(names, self._clock()))
        self.history: History = history
        self.dead_letter_tubes: DeadLetterTubes = DeadLetterTubes(broker)
        self._attention: ConditionMonitor | None = attention
        self._saved: SavedData | None = saved

    def of(self, tube: Tube, now: int) -> TubeView:
        """Return *tube* at the time *now*."""
        worst = self._attention.worst_of(tube.name) if self._attention is not None else None
        reason = self._saved.reason(tube.name.decode(), tube.paused_until) if self._saved and tube.paused_until else ""
        return TubeView(tube, self.history, now, self.dead_letter_tubes, worst, reason)

    def first(self, query: str, order: Order, now: int, count: int, after: SortKey | None = None) -> FirstTubes:
        """Return the first *count* tubes after *after* whose name contains *query*, ignoring case. May switch."""
        own = self._own_first(query, order, now, count, after)
        if not self._shards.others:
            return own
        asked = {"query": query, "order": asdict(order), "count": count, "after": after}
        found = [own, *[FirstTubes(*answer) for answer in self._shards.ask_others(FIRST, **asked).values()]]
        lists = [[(bool(key[0]), float(key[1]), str(key[2])) for key in one.keys] for one in found]
        keys = list(islice(merge(*lists, reverse=is_reversed(order)), count))
        return FirstTubes(keys, sum([one.total for one in found]), sum([one.matched for one in found]))

    def _own_first(self, query: str, order: Order, now: int, count: int, after: SortKey | None) -> FirstTubes:
        """Return the first tubes of this shard. May switch."""
        reverse, pace = is_reversed(order), Pace()
        batches, total, matched = list[list[SortKey]](), 0, 0
        for seen, tubes in self._scan(query):
            total, matched = total + seen, matched + len(tubes)
            keys = self.keys(tubes, order, now)
            if after is not None:
                keys = [key for key in keys if (key < after if reverse else key > after)]
            batches.append(sorted(keys, reverse=reverse))
            pace.yield_if_due()
        return FirstTubes(list(pace.each(islice(merge(*batches, reverse=reverse), count))), total, matched)

    def _first_for_another(self, query: str, order: dict[str, Any], count: int, after: list[Any] | None) -> FirstTubes:
        last = (bool(after[0]), float(after[1]), str(after[2])) if after is not None else None
        return self._own_first(query, Order(**order), self._clock(), count, last)

    def rows(self, names: list[str], now: int) -> list[list[str]]:
        """Return the rows of the tubes *names*, without those that are gone. May switch."""
        found = {row[0]: (row, puts) for row, puts in self._own_rows(names, now)}
        for answer in self.ask_owners(ROWS, names).values():
            found |= {row[0]: (row, points_of(puts)) for row, puts in answer}
        top = max([highest(puts) for _, puts in found.values()], default=0.0)
        rows = [found[name] for name in names if name in found]
        return [[*row[:TREND], spark_path(puts, top), *row[TREND + 1 :]] for row, puts in rows]

    def _own_rows(self, names: list[str], now: int) -> list[tuple[list[str], list[float]]]:
        """Return the rows of those of the tubes *names* that this shard owns, and their points. May switch."""
        pace, rows = Pace(), list[tuple[list[str], list[float]]]()
        for name in names:
            tube = self._broker.tubes.get(name.encode())
            if tube is not None and self._shards.owns(tube.name) and principal().sees(tube.name):
                view = self.of(tube, now)
                rows.append((tube_texts(view), view.puts))
            pace.yield_if_due()
        return rows

    def ask_owners(self, question: str, names: list[str]) -> dict[int, Any]:
        """Return the answers of the other shards that own some of the tubes *names* to *question*. May switch."""
        wanted: dict[int, list[str]] = {}
        for name in names if self._shards.others else ():
            if (shard := self._shards.of_tube(name.encode())) != self._shards.own:
                wanted.setdefault(shard, []).append(name)
        return self._shards.ask_each(question, {shard: {"names": theirs} for shard, theirs in wanted.items()})

    def _scan(self, query: str) -> Iterator[tuple[int, list[Tube]]]:
        """Yield, in batches, the number of visible tubes, and those whose name contains *query*, ignoring case."""
        wanted, who = query.lower().encode(errors="replace"), principal()
        tubes, sees_all, sees = list(self._broker.tubes.values()), who.sees_all, who.sees
        if self._shards.others:
            tubes = [tube for tube in tubes if self._shards.owns(tube.name)]
        for begin in range(0, len(tubes), TUBE_BATCH):
            batch = tubes[begin : begin + TUBE_BATCH]
            seen = batch if sees_all else [tube for tube in batch if sees(tube.name)]
            yield len(seen), [tube for tube in seen if wanted in tube.name.lower()] if wanted else seen

    def keys(self, tubes: list[Tube], order: Order, now: int) -> list[SortKey]:
        """Return the sort keys of *tubes*. Takes about 0.2 µs per tube for most orders, and 0.8 µs for others."""
        sign, keys = -1 if order.is_descending else 1, list[SortKey]()
        for tube, value in zip(tubes, self._values(tubes, order.key, now), strict=True):
            if value is None:
                keys.append((True, 0, tube.name.decode()))
            else:
                clamped = value if -MAX_RANK < value < MAX_RANK else copysign(MAX_RANK, value)
                keys.append((False, float(sign * clamped), tube.name.decode()))
        return keys

    def _values(self, tubes: list[Tube], key: str, now: int) -> Iterable[float | None]:
        """Return the values of *tubes* in the column *key*."""
        column = SORTS.get(key)
        if column is None or column.rank is None:
            return [0] * len(tubes)
        if column.count is not None:
            return map(column.count, tubes)
        if key == ATTENTION_KEY:
            worst_of = self._attention.worst_of if self._attention is not None else _no_condition
            return [_severity(worst_of(tube.name)) for tube in tubes]
        rank = column.rank
        return [rank(self.of(tube, now)) for tube in tubes]


def _severity(worst: ActiveCondition | None) -> float:
    """Return the rank of a tube's condition *worst*, the most urgent highest; 0 if it is None.

    Within a severity the number of jobs concerned decides, as in “Needs attention”.
    """
    if worst is None:
        return 0
    severity, _ = rank_in_tube(worst)
    jobs = worst.measure.jobs
    return len(SEVERITIES) - severity + jobs / (jobs + 1)


def _no_condition(tube: bytes) -> None:
    """Return None, as the worst condition of each tube of a server without a monitor."""
