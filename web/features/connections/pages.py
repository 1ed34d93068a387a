"""The pages of connections: the list, and one connection with the jobs it holds and the tubes it watches."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final
from urllib.parse import urlencode

from flask import Flask, render_template, request, url_for
from werkzeug.exceptions import BadRequest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.features.connections.connections import connection_with_jobs, first_clients
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.api.values import instant
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.fields import Fields
from greenstalk_server.web.live.hub import LiveHub, State, render_blocks
from greenstalk_server.web.reads.connections import (
    MAX_FILTER_LENGTH,
    MAX_SCANNED_JOBS,
    MAX_TUBES_IN_ROW,
    MAX_TUBES_LISTED,
    SORTS,
    find_client,
    matching_clients,
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

PARTS: Final = ("figures", "jobs", "tubes", "facts")
"""Blocks of connection.html, each within an element with its name in `data-part`."""


class ConnectionPages:
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
        shown = self._list(request.args, self._clock())
        query, sort = shown["query"], shown["sort"]
        return render_template(
            "connections.html",
            sorts=[
                (key, label, url_for("connections", q=query or None, sort=key)) for key, (label, _) in SORTS.items()
            ],
            live_args=urlencode({"q": query, "sort": sort}),
            longest_filter=MAX_FILTER_LENGTH,
            **shown,
        )

    def connections_state(self, args: Fields, now: int) -> State:
        """Return the live state of `/connections`. May switch."""
        shown = self._list(args, now)
        return {
            "parts": render_blocks("connections.html", ("table", "nothing"), shown),
            "fields": {"summary": shown["summary"]},
            "shown": {"connections": bool(shown["connections"]), "no-connections": not shown["connections"]},
        }

    def connection(self) -> str:
        """Serve `/connection?number=`."""
        return render_template("connection.html", **self._details(request.args, self._clock()))

    def connection_state(self, args: Fields, now: int) -> State:
        """Return the live state of `/connection`. May switch."""
        return {"parts": render_blocks("connection.html", PARTS, self._details(args, now))}

    def _list(self, given: Fields, now: int) -> dict[str, Any]:
        """Return the connections that the fields `q` and `sort` select, for the template. May switch."""
        query, sort = given.get("q", "").strip()[:MAX_FILTER_LENGTH], given.get("sort", "") or "number"
        if sort not in SORTS:
            raise BadRequest(f"“sort” must be one of {', '.join(SORTS)}, not “{sort[:40]}”.")
        pace, connections = Pace(), []
        first, found = first_clients(self._broker, query, sort, MAX_ROWS)
        total = len(matching_clients(self._broker, "", pace)) if query else found
        for _, _, client in pace.each(first):
            if not client.is_closed:
                connections.append(
                    connection_with_jobs(
                        client, now, tubes=MAX_TUBES_IN_ROW, jobs=MAX_JOBS_IN_ROW, scanned=MAX_SCANNED_IN_ROW
                    )
                )
        return {
            "connections": connections,
            "summary": _summary(len(first), found, total, query, sort),
            "query": query,
            "sort": sort,
            "now": instant(now),
        }

    def _details(self, given: Fields, now: int) -> dict[str, Any]:
        """Return one connection, for the template."""
        client = find_client(self._broker, given)
        return {
            "connection": connection_with_jobs(client, now),
            "holds": _holds(client, now),
            "scanned_jobs": MAX_SCANNED_JOBS,
            "now": instant(now),
        }


def _holds(client: Client, now: int) -> list[tuple[str, str]]:
    """Return the first watched tubes whose ready jobs a policy holds back while *client* waits, with the reasons."""
    if not client.is_waiting:
        return []
    sees = principal().sees
    watched = [tube for tube in islice(client.watched.values(), MAX_TUBES_LISTED) if sees(tube.name)]
    found = [(tube.name.decode(), hold_text(tube, now)) for tube in watched]
    return [("Held back", f"{name}: {hold}") for name, hold in found if hold][:MAX_HOLDS]


def _summary(shown: int, matched: int, total: int, query: str, sort: str) -> str:
    if shown < matched:
        what = f"{text.counted(matched, 'connection')}{' that match' if query else ''}"
        return f"first {shown} of {what}, {SORTS[sort][0].lower()}"
    if query:
        return f"{text.number(matched)} of {text.counted(total, 'connection')}"
    return text.counted(total, "connection")
