"""The dashboard: a Flask app that looks into a broker of the same process.

`create_app` makes it; it is served by gevent.pywsgi in the hub that serves the queue. So a view never switches
greenlets, sees the broker between two commands, and must be done in a few milliseconds; an action, which changes
something, may switch: it goes a slice at a time, and waits for the journal.

Reads the core's frozen snapshots. Knows no wire, no option and no socket.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from flask import Flask, request
from jinja2 import StrictUndefined

from greenstalk_server.broker import Broker
from greenstalk_server.clock import Clock
from web import errors, guard, views
from web.actions import Actions
from web.assets import static_folder, template_folder
from web.first_job import examples
from web.notices import notice

__all__ = ["create_app"]

MAX_REQUEST_BODY = 64 * 1024
"""Bytes of a request, besides the body of a job that is put."""

MAX_PUT = 1024 * 1024
"""Bytes of a body that can be put from a page, if the queue takes as large a job; it is read in the loop."""


def create_app(
    broker: Broker,
    clock: Clock,
    *,
    password: str | None = None,
    hosts: Collection[str] = (),
    beanstalk: str = "127.0.0.1:11300",
    commit: Callable[[], bool] | None = None,
) -> Flask:
    """Return the dashboard of *broker*.

    password        asked for by HTTP basic auth, with any user name; None or empty leaves the dashboard open.
    hosts           names by which it may be visited, besides those that `guard.Guard` allows anyway: the host it
                    is bound to.
    beanstalk       where the queue listens, as an operator writes it (`127.0.0.1:11300`, `[::1]:11300`,
                    `unix:PATH`): shown in the examples of an empty queue.
    commit          returns when every change made so far is as safe as one that a client was told of, or False if
                    that takes too long. May switch. None if there is nothing to wait for.
    """
    app = Flask("web", template_folder=template_folder(), static_folder=static_folder())
    app.config["MAX_CONTENT_LENGTH"] = MAX_REQUEST_BODY + min(broker.max_job_size, MAX_PUT)
    app.config["MAX_FORM_MEMORY_SIZE"] = app.config["MAX_CONTENT_LENGTH"]
    app.json.sort_keys = False  # type: ignore[attr-defined]  # an attribute of Flask's own provider
    app.jinja_env.undefined = StrictUndefined
    app.jinja_env.globals["zip"] = zip
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    guard.Guard({broker.facts.hostname, *hosts}, password).install(app)
    views.Views(broker, clock, examples(beanstalk)).install(app)
    Actions(broker, clock, commit if commit is not None else _nothing_to_wait_for).install(app)
    app.context_processor(_notice)
    errors.install(app)
    return app


def _notice() -> dict[str, Any]:
    """Give every template `notice`: what the address says of the change that led there."""
    return {"notice": notice(request.args)}


def _nothing_to_wait_for() -> bool:
    return True
