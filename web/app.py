"""The dashboard: a Flask app that looks into a broker of the same process.

`create_app` makes it; it is served by gevent.pywsgi in the hub that serves the queue. So a view sees the
broker between two commands, and must be done in a few milliseconds, or rest in between (pace); an action, which changes
something, goes a slice at a time, and waits for the journal.

Reads the core's frozen snapshots. Knows no wire, no option and no socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Flask, request
from jinja2 import StrictUndefined

from greenstalk_server.cluster.role import Role
from greenstalk_server.core.broker import Broker
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web import api, text
from greenstalk_server.web.assets import static_folder, template_folder
from greenstalk_server.web.auth import guard
from greenstalk_server.web.auth.access import visitor
from greenstalk_server.web.auth.proxies import Prefix, TrustedProxies
from greenstalk_server.web.fields import MAX_PUT
from greenstalk_server.web.live.hub import LiveHub
from greenstalk_server.web.metrics.exporter import Metrics
from greenstalk_server.web.metrics.history import History
from greenstalk_server.web.metrics.request_times import RequestTimes
from greenstalk_server.web.operations.audit import Audit
from greenstalk_server.web.operations.bulk import Bulk
from greenstalk_server.web.operations.operations import Deeds
from greenstalk_server.web.operations.store import Store
from greenstalk_server.web.operations.tasks import Tasks
from greenstalk_server.web.options import WebOptions
from greenstalk_server.web.pages import errors, theme, views
from greenstalk_server.web.pages.actions import Actions
from greenstalk_server.web.pages.audit import AuditPages
from greenstalk_server.web.pages.charts import Charts
from greenstalk_server.web.pages.connections import ConnectionViews
from greenstalk_server.web.pages.export import Exports
from greenstalk_server.web.pages.notices import notice
from greenstalk_server.web.pages.onboarding import examples
from greenstalk_server.web.pages.page_template import PageTemplate
from greenstalk_server.web.pages.samples import Samples
from greenstalk_server.web.pages.search import Searches
from greenstalk_server.web.pages.standby import create_standby_app

__all__ = ["WebOptions", "create_app", "create_standby_app", "warm_up"]

MAX_REQUEST_BODY = 64 * 1024
"""Bytes of a request, besides the body of a job that is put or edited."""


def create_app(
    broker: Broker,
    clock: Clock,
    options: WebOptions | None = None,
    *,
    commit: Callable[[], bool] | None = None,
    role: Callable[[], Role] | None = None,
) -> Flask:
    """Return the dashboard of *broker*; None for the options is all as a WebOptions has it.

    Its `extensions["live"]`, the LiveHub, is to be stopped before its server, and `extensions["audit"]`, the Audit,
    flushed after it.

    commit          returns when every change made so far is as safe as one that a client was told of, or False if
                    that takes too long. May switch. None if there is nothing to wait for.
    role            of a server that shares its journal with others; None of one that does not.
    """
    options = options or WebOptions()
    app = guard.Guarded("web", template_folder=template_folder(), static_folder=static_folder())
    # A body may come with each of its line ends as CRLF, or in base64.
    app.config["MAX_CONTENT_LENGTH"] = MAX_REQUEST_BODY + 2 * min(broker.max_job_size, MAX_PUT)
    app.config["MAX_FORM_MEMORY_SIZE"] = app.config["MAX_CONTENT_LENGTH"]
    app.json.sort_keys = False  # type: ignore[attr-defined]  # an attribute of Flask's own provider
    app.jinja_env.template_class = PageTemplate
    app.jinja_env.undefined = StrictUndefined
    app.jinja_env.globals["zip"] = zip
    app.jinja_env.finalize = text.finalize
    app.jinja_env.filters["breakable"] = text.breakable
    app.jinja_env.filters["verbatim"] = text.verbatim
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    audit = app.extensions["audit"] = Audit(clock, options.directory)
    store = Store(options.directory)
    requests = RequestTimes()
    requests.init_app(app)
    guard.Guard(options, broker.facts.hostname, clock, audit).init_app(app)
    live = app.extensions["live"] = LiveHub(app, clock)
    history = app.extensions["history"] = History(broker, clock)
    history.start()
    Charts(broker, history).init_app(app)
    views.Views(broker, clock, history, examples(options.beanstalk), store, role).init_app(app, live)
    ConnectionViews(broker, clock).init_app(app, live)
    commit = commit if commit is not None else _nothing_to_wait_for
    deeds = Deeds(broker, clock, audit, store)
    Actions(broker, clock, commit, deeds).init_app(app)
    tasks = app.extensions["tasks"] = Tasks(clock, audit)
    tasks.init_app(app, live)
    searches = Searches(broker, clock, tasks)
    searches.init_app(app, live)
    bulk = Bulk(broker, clock, commit, audit, tasks)
    bulk.init_app(app)
    exports = Exports(broker, clock)
    exports.init_app(app)
    samples = Samples(store, audit)
    samples.init_app(app)
    parts = api.Parts(
        options=options,
        broker=broker,
        clock=clock,
        commit=commit,
        audit=audit,
        bulk=bulk,
        deeds=deeds,
        exports=exports,
        history=history,
        live=live,
        samples=samples,
        searches=searches,
        store=store,
        tasks=tasks,
    )
    api.init_app(app, parts)
    app.context_processor(_notice)
    app.context_processor(_visitor)
    app.context_processor(_navigation)
    AuditPages(audit, tasks).init_app(app)
    Metrics(broker, clock, requests, role, options.directory).init_app(app)
    theme.init_app(app)
    errors.init_app(app)
    if options.url_prefix:
        app.wsgi_app = Prefix(app.wsgi_app, options.url_prefix)  # type: ignore[method-assign]
    if options.trusted_proxies:
        app.wsgi_app = TrustedProxies(app.wsgi_app, options.trusted_proxies)  # type: ignore[method-assign]
    return app


def warm_up(app: Flask) -> None:
    """Compile every template, which takes 0.1 s altogether and would stall workers at the first visits."""
    for name in app.jinja_env.list_templates(extensions=["html"]):
        app.jinja_env.get_template(name)


def _notice() -> dict[str, Any]:
    """Give every template `notice`: what the address says of the change that led there."""
    return {"notice": notice(request.args)}


def _visitor() -> dict[str, Any]:
    """Give every template `visitor`: who asks, and what they may."""
    return {"visitor": visitor()}


def _navigation() -> dict[str, Any]:
    """Give every template `navigation`: the endpoint and label of the pages that the visitor may see."""
    pages = [("overview", "Tubes"), ("connections", "Connections"), ("search", "Search")]
    return {"navigation": [*pages, ("audit", "Audit")] if visitor().sees_audit else pages}


def _nothing_to_wait_for() -> bool:
    return True
