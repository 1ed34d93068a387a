"""The connections: a list of those that match, one of them with all it holds and watches, and who a number was.

There may be ten thousand of them, and one may watch or hold as many: so a list goes by a cheap key, rests in between,
and looks closer only at what it shows. What it makes is text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from operator import attrgetter
from typing import Final, TypeVar
from urllib.parse import urlencode

from flask import Flask, get_template_attribute, render_template, request, url_for
from markupsafe import Markup
from werkzeug.exceptions import BadRequest, NotFound

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.job import MAX_ID, SECOND, Job, deadline_of
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web import fields, text
from greenstalk_server.web.cooperative import Pace
from greenstalk_server.web.fields import Fields
from greenstalk_server.web.live.hub import LiveHub, State, parts

ROWS_AT_MOST: Final = 100
"""Connections on a page; the rest is found by the filter."""

LONGEST_FILTER: Final = 200
"""As long as the longest name of a tube."""

TUBES_NAMED: Final = 10
"""Tubes that a client watches which are named beside a job."""

TUBES_IN_ROW: Final = 3
JOBS_IN_ROW: Final = 3
"""What a row names of a connection's tubes and jobs."""

WORTH_SAYING: Final = 10 * SECOND
"""For how much longer a worker waits at most is said from this on: most ask anew every few seconds."""

LOOKED_AT_IN_ROW: Final = 32
"""Jobs of a connection among which a row looks for the soonest."""

JOBS_LISTED: Final = 100
TUBES_LISTED: Final = 500
"""What the page of one connection names."""

LOOKED_AT: Final = 5000
"""Jobs of one connection among which its page looks for the soonest, about 1 ms."""

CHUNK: Final = 64
"""Connections or names looked at between two rests."""

NEVER: Final = 2**64
"""Ranks behind every time."""

PARTS: Final = ("figures", "jobs", "tubes", "facts")
"""Blocks of connection.html, each within an element with its name in `data-part`."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Party:
    """Who did something: a connection by its number; *address* is empty if it is not known any more."""

    number: str
    address: str
    name: str
    is_connected: bool


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job that a connection holds, and its time."""

    id: str
    tube: str
    time_left: str
    held_for: str
    pri: str
    size: str


@dataclass(frozen=True, slots=True)
class Row:
    """One connection in the list.

    name            what is known of who it is, and that it comes over HTTP if it does.
    is_http         it is one request to reserve (see operations.leases), and ends with the last job that this got.
    watches, jobs   the first few; *more_tubes* and *more_jobs* say how many others there are, and are empty if none.
    waiting         for how long it has waited in a reserve, and *until* for how much longer it will; empty if it does
                    not wait.
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
    jobs: list[HeldJob]
    more_jobs: str
    waiting: str
    until: str


@dataclass(frozen=True, slots=True)
class Connections:
    """A page of connections; *rows* is HTML."""

    rows: Markup
    summary: str
    query: str
    sort: str
    is_empty: bool


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection.

    row             what the list has of it.
    jobs            those it holds, soonest to time out first; *jobs_summary* says which of how many.
    tubes           those it watches; *tubes_summary* likewise.
    job_count       how many jobs it holds.
    """

    row: Row
    figures: list[tuple[str, str, str]]
    entries: list[tuple[str, str]]
    jobs: list[HeldJob]
    jobs_summary: str
    tubes: list[str]
    tubes_summary: str
    job_count: int


def _longest_held(client: Client) -> int:
    """When *client* reserved what it has held for longest. Its jobs stand in the order of reservation."""
    return next(iter(client.reserved.values())).reserved_at if client.reserved else NEVER


def _longest_waiting(client: Client) -> int:
    return client.waiting_since if client.is_waiting else NEVER


SORTS: Final[dict[str, tuple[str, Callable[[Client], int]]]] = {
    "number": ("By number", attrgetter("number")),
    "held": ("Longest holding a job", _longest_held),
    "waiting": ("Longest waiting", _longest_waiting),
}
"""The orders of the list: its label, and what the smallest of comes first."""


def list_connections(broker: Broker, given: Fields, now: int) -> Connections:
    """Return the connections that the fields `q` and `sort` ask for. May switch."""
    query, sort = given.get("q", "").strip()[:LONGEST_FILTER], given.get("sort", "") or "number"
    if sort not in SORTS:
        raise BadRequest(f"“sort” must be one of {', '.join(SORTS)}, not “{sort[:40]}”.")
    pace = Pace()
    total = len(broker.clients)
    found = matching(broker, query, pace)
    rank = SORTS[sort][1]
    ranked = [(rank(client), client.number, client) for client in paced(found, pace)]
    first = [client for _, _, client in nsmallest(ROWS_AT_MOST, ranked)]
    return Connections(
        rows=_rows_html(first, now, pace),
        summary=_summary(len(first), len(found), total, query, sort),
        query=query,
        sort=sort,
        is_empty=not first,
    )


def find_client(broker: Broker, given: Fields) -> Client:
    """The client that the field `number` names; raise NotFound if it is not connected."""
    number = fields.number(given, "number", 1, MAX_ID)
    found = _by_number(broker, {number})
    if not found:
        address = broker.recent_workers.get(number)
        said = f"it came from {address}, and has ended" if address else "it has ended, or never was"
        raise NotFound(f"There is no connection {number} now: {said}.")
    return found[number]


def connection_details(client: Client, now: int) -> Connection:
    """Look at the connection of *client*."""
    row = _row(client, now)
    jobs = soonest(client, JOBS_LISTED, LOOKED_AT)
    tubes = [name.decode() for name in islice(client.watched, TUBES_LISTED)]
    return Connection(
        row=row,
        figures=[
            ("Connected for", row.connected_for, ""),
            ("Holds", text.number(len(client.reserved)), "job" if len(client.reserved) == 1 else "jobs"),
            ("Waiting", row.waiting or text.NONE, row.until),
            ("Watches", text.number(len(client.watched)), "tube" if len(client.watched) == 1 else "tubes"),
        ],
        entries=[
            ("Address", client.address or "not known"),
            *_who(client),
            ("Role", row.role),
            ("Connected at", text.instant(client.connected_at)),
        ],
        jobs=[_held_job(job, now) for job in jobs],
        jobs_summary=_jobs_summary(len(jobs), len(client.reserved)),
        tubes=tubes,
        tubes_summary=_first_of(len(tubes), len(client.watched), "tube"),
        job_count=len(client.reserved),
    )


def parties(broker: Broker, numbers: set[int]) -> dict[int, Party]:
    """Who the connections *numbers* are or were. Takes 0.4 ms if 10,000 are connected."""
    found = _by_number(broker, numbers)
    return {number: _party(broker, number, found.get(number)) for number in numbers}


def tube_names(client: Client) -> str:
    """The tubes that *client* watches, as one text; the first few by name."""
    names = [name.decode() for name in islice(client.watched, TUBES_NAMED)]
    more = len(client.watched) - len(names)
    return ", ".join(names) + (f" and {text.counted(more, 'other tube')}" if more else "")


# One connection


def _by_number(broker: Broker, numbers: set[int]) -> dict[int, Client]:
    """Those of the clients that have one of *numbers*."""
    return {client.number: client for client in broker.clients if client.number in numbers}


def _party(broker: Broker, number: int, client: Client | None) -> Party:
    if client is None:
        return Party(str(number), broker.recent_workers.get(number, ""), "", is_connected=False)
    return Party(str(number), client.address, _name(client), is_connected=True)


def _row(client: Client, now: int) -> Row:
    jobs = soonest(client, JOBS_IN_ROW, LOOKED_AT_IN_ROW)
    watches = [name.decode() for name in islice(client.watched, TUBES_IN_ROW)]
    return Row(
        number=str(client.number),
        address=client.address,
        name=_name(client),
        is_http=client.is_http,
        role=_role(client),
        connected_for=_seconds(now - client.connected_at),
        uses=client.used.name.decode(),
        watches=watches,
        more_tubes=_more(len(client.watched) - len(watches)),
        jobs=[_held_job(job, now) for job in jobs],
        more_jobs=_more(len(client.reserved) - len(jobs)),
        waiting=_seconds(now - client.waiting_since) if client.is_waiting else "",
        until=_until(client, now),
    )


def _name(client: Client) -> str:
    """What is known of who *client* is, on one line."""
    return ", ".join(filter(None, (client.name, "HTTP" if client.is_http else "")))


def _who(client: Client) -> list[tuple[str, str]]:
    """The entries that say who *client* is."""
    if client.is_http:
        return [("Worker", client.name or text.NONE), ("Kind", "a request to reserve, over HTTP")]
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
    return f"{_seconds(left)} more at most" if left >= WORTH_SAYING else ""


def soonest(client: Client, count: int, looked_at: int) -> list[Job]:
    """The first *count* of *client*'s jobs by deadline, of the first *looked_at* that it reserved."""
    return nsmallest(count, islice(client.reserved.values(), looked_at), key=deadline_of)


def _held_job(job: Job, now: int) -> HeldJob:
    return HeldJob(
        id=str(job.id),
        tube=job.tube.name.decode(),
        time_left=_seconds(job.deadline - now),
        held_for=_seconds(now - job.reserved_at),
        pri=str(job.pri),
        size=text.number(job.size),
    )


def _seconds(nanoseconds: int) -> str:
    return text.duration(max(0, nanoseconds) // SECOND)


def _more(number: int) -> str:
    return f"and {text.number(number)} more" if number else ""


def _first_of(shown: int, total: int, noun: str) -> str:
    return text.counted(total, noun) if shown == total else f"the first {shown} of {text.counted(total, noun)}"


def _jobs_summary(shown: int, total: int) -> str:
    among = f", of the first {text.number(LOOKED_AT)} that it reserved" if total > LOOKED_AT else ""
    return f"{_first_of(shown, total, 'job')}, the next to time out first{among}" if total else ""


# The list


def matching(broker: Broker, query: str, pace: Pace) -> list[Client]:
    """The clients whose number is *query*, or that have it in their address, name or the name of a tube. May switch."""
    clients = list(broker.clients)
    if not query:
        return clients
    wanted = query.lower()
    name = wanted.encode(errors="replace")
    tubes = {tube for tube in paced(list(broker.tubes), pace) if name in tube.lower()}
    return [client for client in paced(clients, pace) if _matches(client, wanted, tubes)]


def _matches(client: Client, wanted: str, tubes: set[bytes]) -> bool:
    return (
        wanted in client.address.lower()
        or wanted in _name(client).lower()
        or client.used.name in tubes
        or not client.watched.keys().isdisjoint(tubes)
        or wanted == str(client.number)
    )


def paced(items: list[T], pace: Pace) -> Iterator[T]:
    """Give out *items*, with rests. Switches."""
    for at in range(0, len(items), CHUNK):
        yield from items[at : at + CHUNK]
        pace.rest()


def _rows_html(clients: list[Client], now: int, pace: Pace) -> Markup:
    """The rows of those of *clients* that are still there. May switch."""
    macro = get_template_attribute("connection_parts.html", "row")
    links = {page: url_for(page) for page in ("connection", "job", "tube")}
    rows = []
    for client in clients:
        if not client.is_closed:
            rows.append(macro(_row(client, now), links))
        pace.rest()
    return Markup("").join(rows)


def _summary(shown: int, matched: int, total: int, query: str, sort: str) -> str:
    if shown < matched:
        what = f"{text.counted(matched, 'connection')}{' that match' if query else ''}"
        return f"first {shown} of {what}, {SORTS[sort][0].lower()}"
    return f"{text.number(matched)} of {text.counted(total, 'connection')}" if query else text.counted(
        total, "connection"
    )  # fmt: skip


class ConnectionViews:
    """The pages of one broker's connections."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock

    def install(self, app: Flask, live: LiveHub) -> None:
        """Add the pages to *app*, and have *live* keep them live."""
        app.add_url_rule("/connections", "connections", self.connections)
        app.add_url_rule("/connection", "connection", self.connection)
        live.register("connections", self.connections_state)
        live.register("connection", self.connection_state)

    def connections(self) -> str:
        """`/connections?q=&sort=`: the connections. May switch."""
        found = list_connections(self._broker, request.args, self._clock())
        return render_template(
            "connections.html",
            found=found,
            sorts=[
                (sort, label, url_for("connections", q=found.query or None, sort=sort))
                for sort, (label, _) in SORTS.items()
            ],
            live_args=urlencode({"q": found.query, "sort": found.sort}),
            longest_filter=LONGEST_FILTER,
        )

    def connections_state(self, args: Fields, now: int) -> State:
        """The live state of `/connections`. May switch."""
        found = list_connections(self._broker, args, now)
        return {
            "parts": parts("connections.html", ("table", "nothing"), {"found": found}),
            "fields": {"summary": found.summary},
            "shown": {"connections": not found.is_empty, "no-connections": found.is_empty},
        }

    def connection(self) -> str:
        """`/connection?number=`: one of them."""
        client = find_client(self._broker, request.args)
        return render_template("connection.html", shown=connection_details(client, self._clock()))

    def connection_state(self, args: Fields, now: int) -> State:
        """The live state of `/connection`."""
        shown = connection_details(find_client(self._broker, args), now)
        return {"parts": parts("connection.html", PARTS, {"shown": shown})}
