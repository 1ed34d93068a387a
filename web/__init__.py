"""The dashboard: a Flask app that looks into a broker of the same process.

`create_app` makes it; it is served by gevent.pywsgi in the hub that serves the queue. So a view never switches
greenlets, sees the broker between two commands, and must be done in a few milliseconds.

Reads the core's frozen snapshots. Knows no wire, no option and no socket.
"""

from __future__ import annotations

from collections.abc import Collection

from flask import Flask
from jinja2 import StrictUndefined

from greenstalk_server.broker import Broker
from greenstalk_server.clock import Clock
from web import errors, guard, views
from web.assets import static_folder, template_folder
from web.first_job import examples

__all__ = ["create_app"]

MAX_REQUEST_BODY = 64 * 1024


def create_app(
    broker: Broker,
    clock: Clock,
    *,
    password: str | None = None,
    hosts: Collection[str] = (),
    beanstalk: str = "127.0.0.1:11300",
) -> Flask:
    """Return the dashboard of *broker*.

    password        asked for by HTTP basic auth, with any user name; None or empty leaves the dashboard open.
    hosts           names by which it may be visited, besides those that `guard.Guard` allows anyway: the host it
                    is bound to.
    beanstalk       where the queue listens, as an operator writes it (`127.0.0.1:11300`, `[::1]:11300`,
                    `unix:PATH`): shown in the examples of an empty queue.
    """
    app = Flask("web", template_folder=template_folder(), static_folder=static_folder())
    app.config["MAX_CONTENT_LENGTH"] = MAX_REQUEST_BODY
    app.json.sort_keys = False  # type: ignore[attr-defined]  # an attribute of Flask's own provider
    app.jinja_env.undefined = StrictUndefined
    app.jinja_env.globals["zip"] = zip
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    guard.Guard({broker.facts.hostname, *hosts}, password).install(app)
    views.Views(broker, clock, examples(beanstalk)).install(app)
    errors.install(app)
    return app
