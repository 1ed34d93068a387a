"""The pages of connections: the list, and one connection with the jobs it holds and the tubes it watches."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from flask import Flask, render_template, request, url_for

from greenstalk_server.core.jobs.job import MAX_ID
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.features.connections.connections import Connections
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.framework.api.values import instant
from greenstalk_server.web.framework.fields import Fields
from greenstalk_server.web.framework.sorting import Head, Heads, Order, order_args, read_order
from greenstalk_server.web.live.hub import LiveHub, State, render_blocks
from greenstalk_server.web.reads.connections import (
    BY_NUMBER,
    MAX_FILTER_LENGTH,
    MAX_SCANNED_JOBS,
    SORTS,
    order_words,
)

MAX_ROWS: Final = 100
"""Maximum connections on the page. Users find the others with the filter."""

MAX_JOBS_IN_ROW: Final = 3
"""Held jobs shown per row."""

COLUMNS: Final = (
    ("connection", "Connection", "Its number and address", "number"),
    ("role", "Role", "A producer has put a job; a worker has reserved one", ""),
    ("since", "For", "How long it has been connected", "connected"),
    ("uses", "Uses", "The tube that it puts jobs into", ""),
    ("watches", "Watches", "The tubes that it reserves jobs from", ""),
    ("holds", "Holds", "The jobs that it holds, and the time to run left for each", "held"),
    ("waits", "Waiting", "How long it has waited in a reserve", "waiting"),
)
"""The columns of the list: CSS class, label, explanation, and key of SORTS."""

PARTS: Final = ("figures", "jobs", "tubes", "facts")
"""Blocks of connection.html, each within an element with its name in `data-part`."""


class ConnectionPages:
    """The pages of connections."""

    def __init__(self, clock: Clock, connections: Connections) -> None:
        self._connections: Connections = connections
        self._clock: Clock = clock

    def init_app(self, app: Flask, live: LiveHub) -> None:
        """Add the pages to *app*, and register them with *live* for live updates."""
        app.add_url_rule("/connections", "connections", self.connections)
        app.add_url_rule("/connection", "connection", self.connection)
        live.register("connections", self.connections_state)
        live.register("connection", self.connection_state)

    def connections(self) -> str:
        """Serve `/connections?q=&sort=&desc=`. May switch."""
        shown = self._list(request.args, self._clock())
        return render_template(
            "connections.html",
            live_args=urlencode({"q": shown["query"]} | shown["order_args"]),
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
        """Serve `/connection?number=`. May switch."""
        return render_template("connection.html", **self._details(request.args, self._clock()))

    def connection_state(self, args: Fields, now: int) -> State:
        """Return the live state of `/connection`. May switch."""
        return {"parts": render_blocks("connection.html", PARTS, self._details(args, now))}

    def _list(self, given: Fields, now: int) -> dict[str, Any]:
        """Return the connections that the fields `q`, `sort` and `desc` select, for the template. May switch."""
        query, order = given.get("q", "").strip()[:MAX_FILTER_LENGTH], read_order(given, SORTS, BY_NUMBER)
        found = self._connections.first(query, order, MAX_ROWS, jobs=MAX_JOBS_IN_ROW)
        total = self._connections.first("", order, 0).matched if query else found.matched
        return {
            "connections": [connection for _, connection in found.ranked],
            "summary": _summary(len(found.ranked), found.matched, total, query, order),
            "query": query,
            "heads": _heads(query, order),
            "order_args": order_args(order, BY_NUMBER),
            "now": instant(now),
        }

    def _details(self, given: Fields, now: int) -> dict[str, Any]:
        """Return one connection, for the template. Switches if there are several processes."""
        found = self._connections.find(fields.number(given, "number", 1, MAX_ID))
        return {
            "connection": found.connection,
            "holds": found.holds,
            "scanned_jobs": MAX_SCANNED_JOBS,
            "now": instant(now),
        }


def _heads(query: str, order: Order) -> list[Head]:
    page, kept = url_for("connections"), {"q": query} if query else {}
    heads = Heads(order, BY_NUMBER, lambda sorting: f"{page}?{urlencode(kept | sorting)}")
    return [heads.head(*column) for column in COLUMNS]


def _summary(shown: int, matched: int, total: int, query: str, order: Order) -> str:
    if shown < matched:
        what = f"{text.counted(matched, 'connection')}{' that match' if query else ''}"
        return f"first {shown} of {what}, {order_words(order)}"
    if query:
        return f"{text.number(matched)} of {text.counted(total, 'connection')}"
    return text.counted(total, "connection")
