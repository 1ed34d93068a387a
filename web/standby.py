"""The app of a standby: a page and metrics about its role and lag, and 503 for everything else.

A standby that serves clients, as one of a cluster, passes on the requests to the home process, if it has a link to it,
and answers the questions of other processes about its connections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from flask import Flask, Response, make_response, render_template, request
from werkzeug.exceptions import ServiceUnavailable

from greenstalk_server.cluster.status import HOME, ClusterStatus
from greenstalk_server.config.tables.roles import ADMIN
from greenstalk_server.core.broker import Broker
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.auth.forwarding import OF_PROCESS, Sender, entering
from greenstalk_server.web.auth.guard import Guard, Guarded
from greenstalk_server.web.auth.proxies import IS_OUTSIDE
from greenstalk_server.web.features.connections.connections import Connections
from greenstalk_server.web.features.metrics.exporter import exposition, role_metrics
from greenstalk_server.web.features.servers.processes import Processes
from greenstalk_server.web.framework.api.router import max_request_size
from greenstalk_server.web.framework.rights import open_to
from greenstalk_server.web.framework.shards import NO_SHARD, Links, Shards, call
from greenstalk_server.web.options import WebOptions
from greenstalk_server.web.reads.fronts import Fronts
from greenstalk_server.web.store.audit import Audit
from greenstalk_server.web.store.sqlite import SqliteRows
from greenstalk_server.web.store.store import Store

RETRY_AFTER = 2
"""Seconds of the Retry-After header: by then the server may be active."""


OF_STANDBY: Final = OF_PROCESS | {"metrics"}
"""Endpoints that a standby serves itself."""


def create_standby_app(
    role: Callable[[], ClusterStatus],
    hostname: str,
    clock: Clock,
    options: WebOptions,
    links: Callable[[], Links | None] = lambda: None,
    max_job_size: int = 0,
    *,
    is_one_of_several: bool = False,
) -> Flask:
    """Return the app that a standby with *role* serves on the dashboard's port.

    *links* returns the links to the owners of the shards, whose jobs have at most *max_job_size* bytes; None without.
    *is_one_of_several*: whether this process serves the port for other servers of its machine too. Then the metrics are
    those of the whole queue.
    """
    app = Guarded(options)
    own = OF_PROCESS if is_one_of_several else OF_STANDBY
    app.before_request(partial(_pass_home, links, max_request_size(max_job_size), own))
    _guard(options, hostname, clock).init_app(app)

    def overview() -> str:
        return render_template("standby.html", role=role(), entries=entries(role()))

    def healthz() -> Response:
        return _plain("ok", 200)

    def readyz() -> Response:
        if role().is_front and role().unready:
            return _plain(role().unready, 503)
        return _plain(status_line(role()), 200 if role().is_front else 503)

    def metrics() -> Response:
        return exposition(role_metrics(role()))

    @open_to(ADMIN)
    def elsewhere(path: str) -> Response:
        return _plain(status_line(role()), 503)

    app.add_url_rule("/", "overview", overview)
    app.add_url_rule("/healthz", "healthz", healthz)
    app.add_url_rule("/readyz", "readyz", readyz)
    app.add_url_rule("/metrics", "metrics", metrics)
    app.add_url_rule("/<path:path>", "elsewhere", elsewhere, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    return app


def answer_as_standby(links: Links, broker: Broker, hostname: str, clock: Clock, options: WebOptions) -> None:
    """Answer the questions of other processes about the clients of *broker*, until this process leads a shard."""
    shards = Shards(replace(broker.ids, shard=NO_SHARD), links, broker)
    shards.enter = partial(entering, Guarded(options), _guard(options, hostname, clock))
    shards.is_open = True
    Connections(clock, shards, Audit(clock, Store(SqliteRows(None), is_kept=False)))
    Fronts(clock, shards)
    Processes(broker, clock, shards)


def _guard(options: WebOptions, hostname: str, clock: Clock) -> Guard:
    store = Store(SqliteRows(None), is_kept=False)
    return Guard(options, hostname, clock, Audit(clock, store), store, has_login=False)


def _pass_home(links_now: Callable[[], Links | None], max_request: int, own: frozenset[str]) -> Response | None:
    """Return the response of the home process; None if there is no link to it, or if the endpoint is one of *own*.

    Switches.
    """
    links = links_now()
    if links is None or not links.is_linked(HOME) or request.endpoint in own or IS_OUTSIDE in request.environ:
        return None
    try:
        return Sender(partial(call, links), max_request).send_home()
    except ServiceUnavailable as error:
        return _plain(error.description or "", 503)


def status_line(role: ClusterStatus) -> str:
    """Return one line for a load balancer or an operator: the active server, and the lag."""
    lag = behind(role) + ("" if role.behind is None else " behind")
    line = f"standby of the journal {role.journal}: {role.leader or 'nobody'} is active, {lag}"
    return f"{line}; {role.database_error}" if role.database_error else line


def entries(role: ClusterStatus) -> list[tuple[str, str]]:
    """Return the state of a standby: label and text."""
    return [
        ("Role", "standby"),
        ("This server", role.name),
        ("Active server", role.leader or "none"),
        ("Behind", behind(role)),
        ("Journal", role.journal),
        ("Epoch", str(role.epoch)),
    ]


def behind(role: ClusterStatus) -> str:
    """Return the lag of a standby as text, or why it is unknown."""
    if role.behind is None:
        return "waiting for the database" if role.database_error else "still reading the journal"
    return f"{role.behind:.1f} s"


def _plain(line: str, status: int) -> Response:
    response = make_response(f"{line}\n", status)
    response.mimetype = "text/plain"
    if status == 503:
        response.headers["Retry-After"] = str(RETRY_AFTER)
    return response
