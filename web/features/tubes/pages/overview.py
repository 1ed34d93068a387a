"""The contents of the overview page as text: the server's figures, and one page of tubes.

The tables here define the columns and figures. The template, the live state and the tests all use them. The tubes are
scanned in batches, so that ten thousand tubes do not stall the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.journal import JournalStats
from greenstalk_server.protocol.stats import ServerStats
from greenstalk_server.web.features.history.figures import BodyFigures, Figures, WholeFigures
from greenstalk_server.web.features.tubes.tube_view import (
    MAX_FILTER_LENGTH,
    FirstTubes,
    TubeViews,
    highest,
    order_text,
    spark_path,
)
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.sorting import Order

MAX_TUBES: Final = 100
"""Tubes per page: about 2 ms of rendering."""

TOTALS: Final = (
    ("Put", "put"),
    ("Reserved", "reserve"),
    ("Deleted", "delete"),
    ("Released", "release"),
    ("Buried", "bury"),
    ("Kicked", "kick"),
    ("Timed out", "timeout"),
)
"""Rates of the whole server: label and series."""

LIMIT_LABELS: Final = {
    "access": "Refused by access rules",
    "connections": "Connection limit",
    "connections_per_address": "Connection limit per address",
    "handshake": "Failed TLS handshakes",
    "files": "File descriptor limit",
    "epoll": "epoll watch limit",
    "jobs": "Job limit",
    "bytes": "Byte limit",
    "tube_jobs": "Job limit per tube",
    "tube_bytes": "Byte limit per tube",
    "tubes": "Tube limit",
    "watched": "Watched tubes per client",
    "shards": "Tubes on other shards",
    "rate": "Rate limited",
    "output": "Unsynced output limit",
    "listings": "Concurrent list limit",
    "idle_timeout": "Idle timeout",
    "command_timeout": "Command timeout",
    "dead_peer_timeout": "Dead peer timeout",
    "request_timeout": "HTTP request timeout",
}
"""Labels of the counters of limit hits since the start, by the names of limits.LIMITED."""

GROUPS: Final[tuple[tuple[str, tuple[tuple[str, str], ...]], ...]] = (
    (
        "Jobs",
        (
            ("Ready", "current_jobs_ready"),
            ("Ready and urgent", "current_jobs_urgent"),
            ("Reserved", "current_jobs_reserved"),
            ("Delayed", "current_jobs_delayed"),
            ("Buried", "current_jobs_buried"),
            ("In dead-letter tubes", "dead_letters"),
            ("Put since start", "total_jobs"),
            ("Timed out since start", "job_timeouts"),
            ("Largest body", "max_job_size"),
            ("Bodies in memory", "bodies_in_memory"),
            ("Bodies only on disk", "bodies_on_disk"),
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
            ("Live data", "journal_live"),
            ("Files", "journal_files"),
            ("Oldest file", "binlog_oldest_index"),
            ("Current file", "binlog_current_index"),
            ("Maximum file size", "binlog_max_size"),
            ("Records written", "binlog_records_written"),
            ("Records migrated", "binlog_records_migrated"),
        ),
    ),
    ("Limits", tuple((label, f"limited_{name}") for name, label in LIMIT_LABELS.items())),
    (
        "Process",
        (
            ("Version", "version"),
            ("Build", "build"),
            ("Uptime", "uptime"),
            ("Draining", "draining"),
            ("Memory", "memory"),
            ("Private memory", "memory_private"),
            ("Memory limit for jobs", "memory_limit"),
            ("Memory used by jobs", "memory_taken"),
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
"""The server's figures by group: label and field. COMMANDS has the command counters."""

COMMANDS: Final = tuple(
    (field.name.removeprefix("cmd_").replace("_", "-"), field.name)
    for field in fields(ServerStats)
    if field.name.startswith("cmd_")
)
"""Counters of commands: the command's name in the protocol, and the field."""

_FORMATS: Final[Mapping[str, Callable[[Any], str]]] = {
    "max_job_size": text.size,
    "binlog_max_size": text.size,
    "uptime": text.duration,
    "rusage_utime": text.cpu_time,
    "rusage_stime": text.cpu_time,
    "draining": text.boolean,
    **dict.fromkeys(("pid", "version", "id", "hostname", "os", "platform"), str),
}
"""Formats of the figures that are not plain numbers."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The contents of the overview page.

    server          every field of ServerStats, and the other fields of GROUPS and TOTALS, as text.
    tubes           a row per tube: the name, then the COLUMNS in order.
    begin           index of the first row in the list of all tubes that match, from 0.
    following       index of the first row of the next page; 0 if there is none.
    summary         the number of tubes shown, the total, and the order.
    query           the filter, without surrounding spaces.
    is_filtered_out no tube matches the filter.
    is_unused       there is no job, and none was ever put.
    is_draining     the server refuses puts because it drains.
    """

    server: Mapping[str, str]
    tubes: list[list[str]]
    begin: int
    following: int
    summary: str
    query: str
    order: Order
    is_filtered_out: bool
    is_unused: bool
    is_draining: bool

    def live_state(self) -> dict[str, Any]:
        """Return the contents in the form that live.hub sends."""
        return {
            "fields": {
                **self.server,
                "summary": self.summary,
                "filtered-query": text.spelled(self.query),
            },
            "rows": {"tubes": self.tubes},
            "shown": {
                "table": not self.is_filtered_out,
                "filtered-out": self.is_filtered_out,
                "unused": self.is_unused,
                "draining": self.is_draining,
            },
        }


class OverviewBuilder:
    """Builds the overview of *broker*."""

    def __init__(
        self,
        broker: Broker,
        views: TubeViews,
        figures: WholeFigures,
        role: Callable[[], ClusterStatus] | None = None,
    ) -> None:
        self._broker: Broker = broker
        self._views: TubeViews = views
        self._figures: WholeFigures = figures
        self._role: Callable[[], ClusterStatus] | None = role

    def build(self, query: str, order: Order, now: int, begin: int = 0) -> Overview:
        """Return the overview with a page of the tubes in *order* whose name contains *query*, ignoring case.

        The page begins at place *begin*, or is the last one if there are fewer tubes. May switch.
        """
        query = query.strip()[:MAX_FILTER_LENGTH]
        found = self._views.first(query, order, now, begin + MAX_TUBES)
        begin = min(begin, max(0, found.matched - 1)) // MAX_TUBES * MAX_TUBES
        names = [key[-1] for key in found.keys[begin : begin + MAX_TUBES]]
        rows = self._views.rows(names, now)
        figures = self._figures.read(now)
        following = begin + len(names)
        return Overview(
            server=server_texts(figures.stats) | self._more_texts(figures),
            tubes=rows,
            begin=begin,
            following=following if following < found.matched else 0,
            summary=_summary(found, begin, len(names), len(rows), query, order),
            query=query,
            order=order,
            is_filtered_out=not rows,
            is_unused=not figures.stats.total_jobs and not _job_count(figures.stats) and principal().sees_all,
            is_draining=figures.stats.draining,
        )

    def _more_texts(self, figures: Figures) -> dict[str, str]:
        """Return the fields of the server that the reply to "stats" lacks."""
        texts = {"build": self._broker.facts.build, "dead_letters": text.number(figures.dead_letters)}
        texts |= journal_texts(figures.journal, figures.trouble)
        texts |= role_texts(self._role() if self._role is not None else None)
        texts |= memory_texts(figures.memory)
        texts |= bodies_texts(figures.bodies)
        texts |= {f"limited_{name}": text.number(count) for name, count in figures.limited.items()}
        for _, series in TOTALS:
            texts[f"rate-{series}"] = text.rate(getattr(figures.rates, series))
            values = figures.sparks[series]
            texts[f"spark-{series}"] = spark_path(values, highest(values))
        return texts


def _job_count(stats: ServerStats) -> int:
    """Return the number of jobs in all states."""
    return (
        stats.current_jobs_ready + stats.current_jobs_reserved + stats.current_jobs_delayed + stats.current_jobs_buried
    )


def server_texts(stats: ServerStats) -> dict[str, str]:
    """Return every field of *stats* as text."""
    return {field.name: _FORMATS.get(field.name, text.number)(getattr(stats, field.name)) for field in fields(stats)}


def memory_texts(memory: tuple[int, int] | None) -> dict[str, str]:
    """Return the process's resident memory, and its private part, as text."""
    total, private = (text.NONE, text.NONE) if memory is None else map(text.rough_size, memory)
    return {"memory": total, "memory_private": private}


def bodies_texts(bodies: BodyFigures | None) -> dict[str, str]:
    """Return how many bodies are in memory and on disk, and the memory that jobs use, as text."""
    if bodies is None:
        return dict.fromkeys(("bodies_in_memory", "bodies_on_disk", "memory_limit", "memory_taken"), text.NONE)
    return {
        "bodies_in_memory": f"{text.rough_size(bodies.in_memory)} of {text.counted(bodies.resident, 'job')}",
        "bodies_on_disk": f"{text.rough_size(bodies.on_disk)} of {text.counted(bodies.jobs - bodies.resident, 'job')}",
        "memory_limit": text.rough_size(bodies.limit),
        "memory_taken": text.rough_size(bodies.taken) + ("; puts are refused" if bodies.is_full else ""),
    }


def journal_texts(stats: JournalStats, error: str | None) -> dict[str, str]:
    """Return the state of the journal, as text."""
    if not stats.is_on_disk:
        names = ("journal_synced", "journal_size", "journal_live", "journal_files")
        return {"journal_state": "none: jobs are in memory only"} | dict.fromkeys(names, text.NONE)
    live = stats.bytes_live / stats.bytes_recorded if stats.bytes_recorded else 0
    ago = stats.synced_ago
    return {
        "journal_state": "failing" if error else "disk full" if stats.is_full else "ok",
        "journal_synced": text.NONE if ago is None else f"{text.duration(int(ago))} ago",
        "journal_size": text.rough_size(stats.bytes_on_disk),
        "journal_live": f"{live:.0%} of {text.rough_size(stats.bytes_recorded)}",
        "journal_files": text.number(stats.files),
    }


def role_texts(role: ClusterStatus | None) -> dict[str, str]:
    """Return the standbys of this server, as text; *role* is None if it does not share its journal."""
    if role is None:
        return dict.fromkeys(("journal_role", "journal_standbys"), text.NONE)
    standbys = [f"{name}, {behind:.1f} s behind" for name, behind in role.standbys]
    return {
        "journal_role": f"active, epoch {role.epoch}",
        "journal_standbys": "; ".join(standbys) or "none",
    }


def _summary(found: FirstTubes, begin: int, count: int, shown: int, query: str, order: Order) -> str:
    """Return how many tubes are shown: *shown* of the *count* tubes of the page that begins at *begin*."""
    if count < found.matched:
        what = f"{text.counted(found.matched, 'tube')} that match" if query else text.counted(found.matched, "tube")
        first, last = text.number(begin + 1), text.number(begin + shown)
        return f"{first}–{last} of {what}, {order_text(order)}"
    if query:
        return f"{text.number(found.matched)} of {text.counted(found.total, 'tube')}"
    return text.counted(found.total, "tube")
