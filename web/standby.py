"""The app of a standby: a page and metrics about its role and lag, and 503 for everything else."""

from __future__ import annotations

from collections.abc import Callable

from flask import Flask, Response, make_response, render_template

from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.config.tables.roles import ADMIN
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.auth.guard import Guard, Guarded
from greenstalk_server.web.auth.proxies import Prefix, TrustedProxies
from greenstalk_server.web.features.metrics.exporter import exposition, role_metrics
from greenstalk_server.web.framework.assets import static_folder, template_folder
from greenstalk_server.web.framework.page_template import PageTemplate
from greenstalk_server.web.framework.rights import open_to
from greenstalk_server.web.options import WebOptions
from greenstalk_server.web.store.audit import Audit
from greenstalk_server.web.store.sqlite import SqliteRows
from greenstalk_server.web.store.store import Store

RETRY_AFTER = 2
"""Seconds of the Retry-After header: by then the server may be active."""


def create_standby_app(role: Callable[[], ClusterStatus], hostname: str, clock: Clock, options: WebOptions) -> Flask:
    """Return the app that a standby with *role* serves on the dashboard's port."""
    app = Guarded("web", template_folder=template_folder(), static_folder=static_folder())
    app.jinja_env.template_class = PageTemplate
    store = Store(SqliteRows(None), is_kept=False)
    Guard(options, hostname, clock, Audit(clock, store), store, has_login=False).init_app(app)

    def overview() -> str:
        return render_template("standby.html", role=role(), entries=entries(role()))

    def healthz() -> Response:
        return _plain("ok", 200)

    def readyz() -> Response:
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
    if options.url_prefix:
        app.wsgi_app = Prefix(app.wsgi_app, options.url_prefix)  # type: ignore[method-assign]
    if options.trusted_proxies:
        app.wsgi_app = TrustedProxies(app.wsgi_app, options.trusted_proxies)  # type: ignore[method-assign]
    return app


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
