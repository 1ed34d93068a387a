"""The pages of connections: the list, and one connection with the jobs it holds and the tubes it watches."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from typing import Final
from urllib.parse import urlencode

from flask import Flask, get_template_attribute, render_template, request, url_for
from markupsafe import Markup
from werkzeug.exceptions import BadRequest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.fields import Fields
from greenstalk_server.web.live.hub import LiveHub, State, render_blocks
from greenstalk_server.web.reads.connections import (
    MAX_FILTER_LENGTH,
    MAX_JOBS_LISTED,
    MAX_SCANNED_JOBS,
    MAX_TUBES_IN_ROW,
    MAX_TUBES_LISTED,
    SORTS,
    client_name,
    find_client,
    iter_batched,
    matching_clients,
    soonest_jobs,
    visible_jobs,
    visible_tubes,
)
from greenstalk_server.web.reads.policies import hold_text

MAX_ROWS: Final = 100
"""Connections per page. The filter finds the others."""

MAX_JOBS_IN_ROW: Final = 3
"""Held jobs shown per row."""

MAX_SCANNED_IN_ROW: Final = 32
"""Held jobs scanned per row, to find the ones that time out first."""

MAX_HOLDS: Final = 5
"""Maximum number of held tubes that the page of a connection shows."""

MIN_SHOWN_WAIT: Final = 10 * SECOND
"""The shortest remaining wait that a row shows. Shorter ones are routine: most workers wait a few seconds at a time."""

PARTS: Final = ("figures", "jobs", "tubes", "facts")
"""Blocks of connection.html, each within an element with its name in `data-part`."""


@dataclass(frozen=True, slots=True)
class HeldJobRow:
    """A job that a connection holds, as text."""

    id: str
    tube: str
    time_left: str
    held_for: str
    pri: str
    size: str


@dataclass(frozen=True, slots=True)
class ConnectionRow:
    """One connection in the list.

    name            the client's name, and "HTTP" if it reserves over HTTP; may be empty.
    is_http         the connection is one HTTP reserve request (features.leases). It lasts while the request waits,
                    and then until the last job that it reserved is deleted, released, buried, timed out or taken by an
                    admin.
    watches, jobs   the first few; *more_tubes* and *more_jobs* count the others, and are empty if there are none.
    waiting         how long it has waited in a reserve; empty if it is not waiting.
    until           the longest time that it will still wait; may be empty.
    """

    number: str
    address: str
    name: str
    is_http: bool
    role: str
    connected_for: str
    uses: str
    watches: list[str]
    more_tubes: str
    jobs: list[HeldJobRow]
    more_jobs: str
    waiting: str
    until: str


@dataclass(frozen=True, slots=True)
class ConnectionList:
    """A page of connections; *rows* is HTML."""

    rows: Markup
    summary: str
    query: str
    sort: str
    is_empty: bool


@dataclass(frozen=True, slots=True)
class ConnectionDetails:
    """One connection.

    row             its row in the list.
    jobs            jobs that it holds, soonest timeout first; *jobs_summary* gives the number listed and the total.
    tubes           tubes that it watches; *tubes_summary* likewise.
    job_count       number of jobs that it holds.
    """

    row: ConnectionRow
    figures: list[tuple[str, str, str]]
    entries: list[tuple[str, str]]
    jobs: list[HeldJobRow]
    jobs_summary: str
    tubes: list[str]
    tubes_summary: str
    job_count: int


class ConnectionViews:
    """The pages of one broker's connections."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock

    def init_app(self, app: Flask, live: LiveHub) -> None:
        """Add the pages to *app*, and register them with *live* for live updates."""
        app.add_url_rule("/connections", "connections", self.connections)
        app.add_url_rule("/connection", "connection", self.connection)
        live.register("connections", self.connections_state)
        live.register("connection", self.connection_state)

    def connections(self) -> str:
        """Serve `/connections?q=&sort=`. May switch."""
        found = list_connections(self._broker, request.args, self._clock())
        return render_template(
            "connections.html",
            found=found,
            sorts=[
                (sort, label, url_for("connections", q=found.query or None, sort=sort))
                for sort, (label, _) in SORTS.items()
            ],
            live_args=urlencode({"q": found.query, "sort": found.sort}),
            longest_filter=MAX_FILTER_LENGTH,
        )

    def connections_state(self, args: Fields, now: int) -> State:
        """Return the live state of `/connections`. May switch."""
        found = list_connections(self._broker, args, now)
        return {
            "parts": render_blocks("connections.html", ("table", "nothing"), {"found": found}),
            "fields": {"summary": found.summary},
            "shown": {"connections": not found.is_empty, "no-connections": found.is_empty},
        }

    def connection(self) -> str:
        """Serve `/connection?number=`."""
        client = find_client(self._broker, request.args)
        return render_template("connection.html", shown=connection_details(client, self._clock()))

    def connection_state(self, args: Fields, now: int) -> State:
        """Return the live state of `/connection`."""
        shown = connection_details(find_client(self._broker, args), now)
        return {"parts": render_blocks("connection.html", PARTS, {"shown": shown})}


def list_connections(broker: Broker, given: Fields, now: int) -> ConnectionList:
    """Return the page of connections that the fields `q` and `sort` select. May switch."""
    query, sort = given.get("q", "").strip()[:MAX_FILTER_LENGTH], given.get("sort", "") or "number"
    if sort not in SORTS:
        raise BadRequest(f"“sort” must be one of {', '.join(SORTS)}, not “{sort[:40]}”.")
    pace = Pace()
    found = matching_clients(broker, query, pace)
    total = len(broker.clients) if principal().sees_all else len(matching_clients(broker, "", pace))
    sort_key = SORTS[sort][1]
    ranked = [(sort_key(client), client.number, client) for client in iter_batched(found, pace)]
    first = [client for _, _, client in nsmallest(MAX_ROWS, ranked)]
    return ConnectionList(
        rows=_rows_html(first, now, pace),
        summary=_summary(len(first), len(found), total, query, sort),
        query=query,
        sort=sort,
        is_empty=not first,
    )


def connection_details(client: Client, now: int) -> ConnectionDetails:
    """Return the details of the connection of *client*."""
    row = _row(client, now)
    jobs = soonest_jobs(client, MAX_JOBS_LISTED, MAX_SCANNED_JOBS)
    watched, held = visible_tubes(client), len(visible_jobs(client))
    tubes = [name.decode() for name in islice(watched, MAX_TUBES_LISTED)]
    return ConnectionDetails(
        row=row,
        figures=[
            ("Connected for", row.connected_for, ""),
            ("Holds", text.number(held), "job" if held == 1 else "jobs"),
            ("Waiting", row.waiting or text.NONE, row.until),
            ("Watches", text.number(len(watched)), "tube" if len(watched) == 1 else "tubes"),
        ],
        entries=[
            ("Address", client.address or "not known"),
            *_identity(client),
            ("Role", row.role),
            *[("Held back", f"{name}: {hold}") for name, hold in _holds(client, now)],
            ("Connected", text.time_tag(client.connected_at)),
        ],
        jobs=[_held_job(job, now) for job in jobs],
        jobs_summary=_jobs_summary(len(jobs), held),
        tubes=tubes,
        tubes_summary=_first_of(len(tubes), len(watched), "tube"),
        job_count=held,
    )


def _row(client: Client, now: int) -> ConnectionRow:
    jobs = soonest_jobs(client, MAX_JOBS_IN_ROW, MAX_SCANNED_IN_ROW)
    watched = visible_tubes(client)
    watches = [name.decode() for name in islice(watched, MAX_TUBES_IN_ROW)]
    return ConnectionRow(
        number=str(client.number),
        address=client.address,
        name=client_name(client),
        is_http=client.is_http,
        role=_role(client),
        connected_for=_seconds(now - client.connected_at),
        uses=client.used.name.decode() if principal().sees(client.used.name) else "",
        watches=watches,
        more_tubes=_more(len(watched) - len(watches)),
        jobs=[_held_job(job, now) for job in jobs],
        more_jobs=_more(len(visible_jobs(client)) - len(jobs)),
        waiting=_seconds(now - client.waiting_since) if client.is_waiting else "",
        until=_until(client, now),
    )


def _identity(client: Client) -> list[tuple[str, str]]:
    """Return the entries about the identity of *client*."""
    if client.is_http:
        return [("Worker", client.name or text.NONE), ("Kind", "HTTP reserve request")]
    return [("Program", client.name)] if client.name else []


def _role(client: Client) -> str:
    roles = [role for role, is_so in (("producer", client.is_producer), ("worker", client.is_worker)) if is_so]
    return " and ".join(roles) or text.NONE


def _until(client: Client, now: int) -> str:
    if not client.is_waiting:
        return ""
    if client.wait_until is None:
        return "no timeout"
    left = client.wait_until - now
    return f"at most {_seconds(left)} more" if left >= MIN_SHOWN_WAIT else ""


def _holds(client: Client, now: int) -> list[tuple[str, str]]:
    """Return the first watched tubes whose ready jobs a policy holds back while *client* waits, with the reasons."""
    if not client.is_waiting:
        return []
    sees = principal().sees
    watched = [tube for tube in islice(client.watched.values(), MAX_TUBES_LISTED) if sees(tube.name)]
    found = [(tube.name.decode(), hold_text(tube, now)) for tube in watched]
    return [(name, hold) for name, hold in found if hold][:MAX_HOLDS]


def _held_job(job: Job, now: int) -> HeldJobRow:
    return HeldJobRow(
        id=str(job.id),
        tube=job.tube.name.decode(),
        time_left=_seconds(job.deadline - now),
        held_for=_seconds(now - job.reserved_at),
        pri=str(job.pri),
        size=text.number(job.size),
    )


def _rows_html(clients: list[Client], now: int, pace: Pace) -> Markup:
    """Return a row for each of *clients* that is still connected. May switch."""
    macro = get_template_attribute("connection_parts.html", "row")
    links = {page: url_for(page) for page in ("connection", "job", "tube")}
    rows = []
    for client in clients:
        if not client.is_closed:
            rows.append(macro(_row(client, now), links))
        pace.yield_if_due()
    return Markup("").join(rows)


def _seconds(nanoseconds: int) -> str:
    return text.duration(max(0, nanoseconds) // SECOND)


def _more(number: int) -> str:
    return f"and {text.number(number)} more" if number else ""


def _first_of(shown: int, total: int, noun: str) -> str:
    return text.counted(total, noun) if shown == total else f"the first {shown} of {text.counted(total, noun)}"


def _jobs_summary(shown: int, total: int) -> str:
    among = f", among the first {text.number(MAX_SCANNED_JOBS)} that it reserved" if total > MAX_SCANNED_JOBS else ""
    return f"{_first_of(shown, total, 'job')}, soonest timeout first{among}" if total else ""


def _summary(shown: int, matched: int, total: int, query: str, sort: str) -> str:
    if shown < matched:
        what = f"{text.counted(matched, 'connection')}{' that match' if query else ''}"
        return f"first {shown} of {what}, {SORTS[sort][0].lower()}"
    if query:
        return f"{text.number(matched)} of {text.counted(total, 'connection')}"
    return text.counted(total, "connection")
