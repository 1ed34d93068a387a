"""What the overview shows, as text: the server's figures and one page of tubes, from the core's snapshots.

The tables here say what stands where and under which label; the template, the live state and the tests all go by
them. All tubes are looked at a slice at a time, so that ten thousand of them stall nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from math import ceil, inf, isnan
from typing import Any, Final

from greenstalk_server.cluster.role import Role
from greenstalk_server.core.body_cache import Bodies
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import SECOND
from greenstalk_server.core.journal import JournalStats
from greenstalk_server.core.tube import Tube
from greenstalk_server.protocol.stats import ServerStats, server_stats
from greenstalk_server.web import text
from greenstalk_server.web.cooperative import Pace
from greenstalk_server.web.metrics.history import History, Rates
from greenstalk_server.web.pages import sparkline

TUBES_AT_MOST: Final = 100
"""Tubes on a page: about 2 ms of rendering. The rest is found by the filter, or by another order."""

LONGEST_FILTER: Final = 200
"""As long as the longest name of a tube."""

TUBES_A_STEP: Final = 256
"""Tubes that are looked at in one go, about 0.2 ms."""

BY_NAME: Final = "name"

SPARK_WIDTH: Final = 96
SPARK_HEIGHT: Final = 20


class Seen:
    """One tube as it is now.

    top             upper end of the scale of its drawing: the highest rate of puts of any tube on the page.
    """

    __slots__ = ("_puts", "_rates", "history", "now", "top", "tube")

    def __init__(self, tube: Tube, history: History, now: int) -> None:
        self.tube: Tube = tube
        self.history: History = history
        self.now: int = now
        self.top: float = 0.0
        self._rates: Rates | None = None
        self._puts: list[float] | None = None

    @property
    def puts(self) -> list[float]:
        """Jobs put per second over the last ten minutes, a point for every ten seconds; NaN where unknown."""
        if self._puts is None:
            self._puts = self.history.spark(self.tube.name, "put")
        return self._puts

    @property
    def rates(self) -> Rates:
        """What happens in it."""
        if self._rates is None:
            self._rates = self.history.rates(self.tube.name)
        return self._rates

    @property
    def is_idle(self) -> bool:
        """Whether jobs are ready, and nobody watches it."""
        return bool(self.tube.ready.count) and not self.tube.watching

    @property
    def oldest_age(self) -> int | None:
        """Seconds since its oldest ready job became so; None if there is none."""
        job = self.tube.oldest_ready()
        return None if job is None else max(0, self.now - job.ready_since) // SECOND

    @property
    def drain_time(self) -> float | None:
        """Seconds until no job is ready, if all goes on as it does; infinite if they grow more; None if neither."""
        ready, growth = self.tube.ready.count, self.rates.put - self.rates.delete
        if not ready or not growth:
            return None
        return inf if growth > 0 else ready / -growth

    @property
    def pause_left(self) -> int | None:
        """Seconds; None if it is not paused."""
        return max(0, self.tube.paused_until - self.now - 1) // SECOND if self.tube.paused_until else None


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table of tubes, after the name.

    key             its name in styles and addresses.
    text            what stands in it.
    rank            by what it is sorted, None last; or None if it cannot be.
    kind            `text`, or `badge`, or `path` of a drawing.
    """

    label: str
    key: str
    help: str
    text: Callable[[Seen], str]
    rank: Callable[[Seen], float | None] | None
    kind: str = "text"


def _number(label: str, key: str, help: str, count: Callable[[Tube], int]) -> Column:
    return Column(label, key, help, lambda seen: text.number(count(seen.tube)), lambda seen: count(seen.tube))


def _rate(label: str, key: str, what: str) -> Column:
    def value(seen: Seen) -> float:
        return getattr(seen.rates, key)  # type: ignore[no-any-return]

    return Column(label, f"{key}-rate", f"{what} in a second, over the last ten", lambda s: text.rate(value(s)), value)


def _seconds(seconds: float | None) -> str:
    return text.NONE if seconds is None else text.duration(ceil(seconds))


def _drain(seen: Seen) -> str:
    return "growing" if seen.drain_time == inf else _seconds(seen.drain_time)


def _spark(values: list[float], top: float) -> str:
    """Return *values* as a path below *top*; empty if nothing happened."""
    return sparkline.path(values, SPARK_WIDTH, SPARK_HEIGHT, top) if _most(values) else ""


def _most(values: list[float]) -> float:
    return max((value for value in values if not isnan(value)), default=0.0)


COLUMNS: Final = (
    Column(
        "Attention",
        "attention",
        "Jobs are ready, and no client watches the tube",
        lambda seen: "no consumers" if seen.is_idle else "",
        lambda seen: seen.is_idle,
        "badge",
    ),
    _number("Ready", "ready", "Jobs that a worker may reserve now", lambda tube: tube.ready.count),
    _number("Urgent", "urgent", "Ready jobs with a priority below 1024", lambda tube: tube.urgent_count),
    _number("Reserved", "reserved", "Jobs that workers hold", lambda tube: tube.reserved_count),
    _number("Delayed", "delayed", "Jobs that turn ready later", lambda tube: tube.delayed.count),
    _number("Buried", "buried", "Jobs set aside until somebody kicks them", lambda tube: len(tube.buried)),
    _number("Waiting", "waiting", "Workers that wait for a job of this tube", lambda tube: tube.waiting_count),
    _rate("Put/s", "put", "Jobs put"),
    _rate("Reserved/s", "reserve", "Jobs reserved"),
    _rate("Deleted/s", "delete", "Jobs deleted"),
    _rate("Buried/s", "bury", "Jobs buried"),
    _rate("Timeouts/s", "timeout", "Jobs that a worker had for too long"),
    Column(
        "Puts",
        "trend",
        "Jobs put in the last ten minutes, on one scale for all tubes of the page",
        lambda seen: _spark(seen.puts, seen.top),
        None,
        "path",
    ),
    Column(
        "Oldest",
        "oldest",
        "How long the job that has been ready for longest has been so",
        lambda seen: _seconds(seen.oldest_age),
        lambda seen: seen.oldest_age,
    ),
    Column(
        "Drains in",
        "drain",
        "Until no job is ready, if jobs go on to be put and deleted as in the last ten seconds",
        _drain,
        lambda seen: seen.drain_time,
    ),
    Column(
        "Pause",
        "pause",
        "How much longer no job can be reserved from this tube",
        lambda seen: _seconds(seen.pause_left),
        lambda seen: seen.pause_left,
    ),
)

NAME: Final = Column("Tube", BY_NAME, "By name", lambda seen: seen.tube.name.decode(), None)
"""The first column."""

SORTS: Final = {column.key: column for column in COLUMNS if column.rank is not None}
"""By what tubes can be sorted, besides BY_NAME."""

TOTALS: Final = (
    ("Put", "put"),
    ("Reserved", "reserve"),
    ("Deleted", "delete"),
    ("Released", "release"),
    ("Buried", "bury"),
    ("Kicked", "kick"),
    ("Timed out", "timeout"),
)
"""What happens in the whole server: label and series."""

LIMIT_LABELS: Final = {
    "access": "Refused by a rule",
    "connections": "Too many connections",
    "connections_per_address": "Too many of one address",
    "handshake": "TLS not agreed on",
    "files": "No file descriptor",
    "epoll": "Not pollable",
    "jobs": "Too many jobs",
    "bytes": "Too many bytes",
    "tube_jobs": "Too many jobs of a tube",
    "tube_bytes": "Too many bytes of a tube",
    "tubes": "Too many tubes",
    "watched": "Too many watched by one",
    "rate": "Held up as too fast",
    "output": "Held up by the disk",
    "listings": "Too many long lists",
    "idle_timeout": "Closed as idle",
    "command_timeout": "Closed amid a command",
    "dead_peer_timeout": "Closed as gone",
    "request_timeout": "HTTP too slow",
}
"""What has been refused or held up since the start, by the names of limits.LIMITED."""

GROUPS: Final[tuple[tuple[str, tuple[tuple[str, str], ...]], ...]] = (
    (
        "Jobs",
        (
            ("Ready", "current_jobs_ready"),
            ("of these urgent", "current_jobs_urgent"),
            ("Reserved", "current_jobs_reserved"),
            ("Delayed", "current_jobs_delayed"),
            ("Buried", "current_jobs_buried"),
            ("Put since start", "total_jobs"),
            ("Timed out since start", "job_timeouts"),
            ("Largest body", "max_job_size"),
            ("Bodies in memory", "bodies_in_memory"),
            ("on disk alone", "bodies_on_disk"),
            ("Tubes", "current_tubes"),
        ),
    ),
    (
        "Connections",
        (
            ("Open", "current_connections"),
            ("Producers", "current_producers"),
            ("Workers", "current_workers"),
            ("Waiting for a job", "current_waiting"),
            ("Since start", "total_connections"),
        ),
    ),
    (
        "Journal",
        (
            ("State", "journal_state"),
            ("Role", "journal_role"),
            ("Standbys", "journal_standbys"),
            ("Last sync", "journal_synced"),
            ("On disk", "journal_size"),
            ("Live share", "journal_live"),
            ("Files", "journal_files"),
            ("Oldest file", "binlog_oldest_index"),
            ("Current file", "binlog_current_index"),
            ("Size of a file", "binlog_max_size"),
            ("Records written", "binlog_records_written"),
            ("Records migrated", "binlog_records_migrated"),
        ),
    ),
    ("Limits", tuple((label, f"limited_{name}") for name, label in LIMIT_LABELS.items())),
    (
        "Process",
        (
            ("Version", "version"),
            ("Uptime", "uptime"),
            ("Draining", "draining"),
            ("Memory", "memory"),
            ("of it private", "memory_private"),
            ("Limit to jobs", "memory_limit"),
            ("taken by jobs", "memory_taken"),
            ("User CPU time", "rusage_utime"),
            ("System CPU time", "rusage_stime"),
            ("Process id", "pid"),
            ("Instance", "id"),
            ("Host", "hostname"),
            ("Machine", "platform"),
            ("System", "os"),
        ),
    ),
)
"""The server's figures, label and field by group; those of commands follow in COMMANDS."""

COMMANDS: Final = tuple(
    (field.name.removeprefix("cmd_").replace("_", "-"), field.name)
    for field in fields(ServerStats)
    if field.name.startswith("cmd_")
)
"""How often each command came: its word in the protocol, and the field."""

_SHOWN: Final[Mapping[str, Callable[[Any], str]]] = {
    "max_job_size": text.size,
    "binlog_max_size": text.size,
    "uptime": text.duration,
    "rusage_utime": text.cpu_time,
    "rusage_stime": text.cpu_time,
    "draining": text.boolean,
    **dict.fromkeys(("pid", "version", "id", "hostname", "os", "platform"), str),
}
"""How a figure is written, unless as a plain number."""


@dataclass(frozen=True, slots=True)
class Order:
    """By which column tubes are sorted, and whether the largest is the first."""

    key: str = BY_NAME
    is_descending: bool = False

    @property
    def direction(self) -> str:
        """`ascending` or `descending`."""
        return "descending" if self.is_descending else "ascending"

    @property
    def said(self) -> str:
        """`by name`, `by ready, largest first`."""
        if self.key == BY_NAME:
            return "by name, last first" if self.is_descending else "by name"
        which = "largest" if self.is_descending else "smallest"
        return f"by “{SORTS[self.key].label}”, {which} first"


@dataclass(frozen=True, slots=True)
class Overview:
    """One look at a server, ready to be shown.

    server          every field of ServerStats as text, and what GROUPS and TOTALS have besides.
    tubes           a row each: the name, then the COLUMNS in order.
    summary         how many tubes are shown, of how many.
    query           the filter, as given.
    is_filtered_out there are tubes, but the filter passes none.
    is_unused       no job was ever put, and none is there.
    is_draining     puts are refused.
    trouble         why the journal cannot be written, and so puts are refused; empty if it can.
    """

    server: Mapping[str, str]
    tubes: list[list[str]]
    summary: str
    query: str
    order: Order
    is_filtered_out: bool
    is_unused: bool
    is_draining: bool
    trouble: str

    def live_state(self) -> dict[str, Any]:
        """The same, as greenstalk_server.web.live.hub has it."""
        return {
            "fields": {
                **self.server,
                "summary": self.summary,
                "filtered-query": text.spelled(self.query),
                "trouble-reason": self.trouble,
            },
            "rows": {"tubes": self.tubes},
            "shown": {
                "table": not self.is_filtered_out,
                "filtered-out": self.is_filtered_out,
                "unused": self.is_unused,
                "draining": self.is_draining,
                "trouble": bool(self.trouble),
            },
        }


_Ranked = tuple[bool, float, bytes, Tube]
"""A tube with what puts it in its place: what has no value stands last, and among equals it goes by name."""


class Lookout:
    """Looks at the tubes of *broker* and at the whole server."""

    def __init__(self, broker: Broker, history: History, role: Callable[[], Role] | None = None) -> None:
        self._broker: Broker = broker
        self._history: History = history
        self._role: Callable[[], Role] | None = role

    def look(self, query: str, order: Order, now: int) -> Overview:
        """Look at the first tubes in *order*, of those whose name contains *query* in any case. May switch."""
        broker, pace = self._broker, Pace()
        query = query.strip()[:LONGEST_FILTER]
        matched, first = self._first(query, order, now, pace)
        rows, shown, top = [], [Seen(tube, self._history, now) for tube in first], 0.0
        for seen in shown:
            top = max(top, _most(seen.puts))
            pace.rest()
        for seen in shown:
            if broker.tubes.get(seen.tube.name) is seen.tube:  # others had their turn since
                seen.top = top
                rows.append(tube_texts(seen))
                pace.rest()
        stats = server_stats(broker, now)
        return Overview(
            server=server_texts(stats) | self._more_texts(),
            tubes=rows,
            summary=_summary(len(rows), matched, len(broker.tubes), query, order),
            query=query,
            order=order,
            is_filtered_out=not rows,
            is_unused=not stats.total_jobs and not broker.jobs,
            is_draining=broker.is_draining,
            trouble=broker.journal.trouble or "",
        )

    def _first(self, query: str, order: Order, now: int, pace: Pace) -> tuple[int, list[Tube]]:
        """How many tubes match *query*, and the first of them in *order*. May switch."""
        is_reversed = order.is_descending and order.key == BY_NAME
        matched, best = 0, list[_Ranked]()
        for tubes in self._matching(query):
            matched += len(tubes)
            ranked = self._ranked(tubes, order, now)
            if len(best) == TUBES_AT_MOST:
                worst = best[-1]
                ranked = [one for one in ranked if (one > worst if is_reversed else one < worst)]
            best = sorted([*best, *ranked], reverse=is_reversed)[:TUBES_AT_MOST]
            pace.rest()
        return matched, [ranked[-1] for ranked in best]

    def _ranked(self, tubes: list[Tube], order: Order, now: int) -> list[_Ranked]:
        """*tubes*, to be sorted."""
        rank = SORTS[order.key].rank if order.key != BY_NAME else None
        if rank is None:
            return [(False, 0, tube.name, tube) for tube in tubes]
        sign = -1 if order.is_descending else 1
        values = [rank(Seen(tube, self._history, now)) for tube in tubes]
        return [
            (value is None, 0 if value is None else sign * value, tube.name, tube)
            for tube, value in zip(tubes, values, strict=True)
        ]

    def _matching(self, query: str) -> Iterator[list[Tube]]:
        """The tubes whose names contain *query*, a slice at a time."""
        wanted = query.lower().encode(errors="replace")
        all_tubes = list(self._broker.tubes.values())
        for begin in range(0, len(all_tubes), TUBES_A_STEP):
            tubes = all_tubes[begin : begin + TUBES_A_STEP]
            yield [tube for tube in tubes if wanted in tube.name.lower()] if wanted else tubes

    def _more_texts(self) -> dict[str, str]:
        """What is known of the server besides "stats"."""
        broker, rates = self._broker, self._history.total_rates()
        found = journal_texts(broker.journal.stats(), broker.journal.trouble)
        found |= role_texts(self._role() if self._role is not None else None)
        found |= memory_texts(broker.facts.memory())
        found |= bodies_texts(broker.bodies)
        found |= {f"limited_{name}": text.number(count) for name, count in broker.limit_counters.counts().items()}
        for _, series in TOTALS:
            found[f"rate-{series}"] = text.rate(getattr(rates, series))
            values = self._history.spark(None, series)
            found[f"spark-{series}"] = _spark(values, _most(values))
        return found


def tube_texts(seen: Seen) -> list[str]:
    """Return a row of the table of tubes."""
    return [column.text(seen) for column in (NAME, *COLUMNS)]


def server_texts(stats: ServerStats) -> dict[str, str]:
    """Return every figure of *stats* as text, by field."""
    return {field.name: _SHOWN.get(field.name, text.number)(getattr(stats, field.name)) for field in fields(stats)}


def memory_texts(memory: tuple[int, int] | None) -> dict[str, str]:
    """Return the process's memory, and what of it is shared with no other, as text."""
    total, private = (text.NONE, text.NONE) if memory is None else map(text.rough_size, memory)
    return {"memory": total, "memory_private": private}


def bodies_texts(bodies: Bodies | None) -> dict[str, str]:
    """Return where the bodies of jobs are, and what jobs take of the memory they may, as text."""
    if bodies is None:
        return dict.fromkeys(("bodies_in_memory", "bodies_on_disk", "memory_limit", "memory_taken"), text.NONE)
    return {
        "bodies_in_memory": f"{text.rough_size(bodies.in_memory)} of {text.counted(bodies.held, 'job')}",
        "bodies_on_disk": f"{text.rough_size(bodies.on_disk)} of {text.counted(bodies.jobs - bodies.held, 'job')}",
        "memory_limit": text.rough_size(bodies.limit),
        "memory_taken": text.rough_size(bodies.taken) + ("" if bodies.has_room(0) else ": puts are refused"),
    }


def journal_texts(stats: JournalStats, trouble: str | None) -> dict[str, str]:
    """Return how the journal is, as text."""
    if not stats.is_on_disk:
        names = ("journal_synced", "journal_size", "journal_live", "journal_files")
        return {"journal_state": "none: jobs are in memory only"} | dict.fromkeys(names, text.NONE)
    live = stats.bytes_live / stats.bytes_recorded if stats.bytes_recorded else 0
    ago = stats.synced_ago
    return {
        "journal_state": "fails" if trouble else "disk full" if stats.is_full else "sound",
        "journal_synced": text.NONE if ago is None else f"{text.duration(int(ago))} ago",
        "journal_size": text.rough_size(stats.bytes_on_disk),
        "journal_live": f"{live:.0%} of {text.rough_size(stats.bytes_recorded)}",
        "journal_files": text.number(stats.files),
    }


def role_texts(role: Role | None) -> dict[str, str]:
    """Return who follows this server's journal, as text; None if it shares it with nobody."""
    if role is None:
        return dict.fromkeys(("journal_role", "journal_standbys"), text.NONE)
    standbys = [f"{name}, {behind:.1f} s behind" for name, behind in role.standbys]
    return {
        "journal_role": f"active, epoch {role.epoch}",
        "journal_standbys": "; ".join(standbys) or "none",
    }


def _summary(shown: int, matched: int, total: int, query: str, order: Order) -> str:
    if shown < matched:
        what = f"{text.counted(matched, 'tube')} that match" if query else text.counted(matched, "tube")
        return f"first {shown} of {what}, {order.said}"
    return f"{text.number(matched)} of {text.counted(total, 'tube')}" if query else text.counted(total, "tube")
