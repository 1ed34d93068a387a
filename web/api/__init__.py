"""`/api/v1`: all that the dashboard can show or do, as JSON. docs/api.md is for its users.

How to add a group of endpoints:

1. Write a class in a module of its own. Its name is the tag under which users find it, its docstring tells them what
   it is about. It takes what it needs (the broker, the clock, `commit`, the operations) in `__init__`.
2. Each endpoint is a method with `@endpoint("POST", "/things/{id}/do", errors={409: "…"})`. Its signature is its
   definition: parameters in the path are annotated with a type of `values`; `query` is a Struct of class `Asked`, whose
   fields are the parameters; `body` is another, or a list or a union, and optional if it has a default; what it returns
   is a Struct of class `Told`, None for 204, or a Response for what is no JSON. Its docstring is for users.
3. Add it below, in `init_app`. The OpenAPI document, the page of it, reading, refusing, and the guard's questions
   (who may, from where, how large) follow from that.

A method may switch, so what it knew before is looked up anew after. It refuses by raising an HTTPException: `refuse` of
`problems` names a field; NotFound, Conflict, ServiceUnavailable and operations.NotTaken say what they mean. What changes
something notes it in the audit log, as operations.operations does, and ends with `settle(self._commit)` of `settled`.

    endpoint, frame     what an endpoint is; what serves them
    reading, problems   what comes in, and what is wrong with it
    values, cursors     types that many share; where a list goes on
    listing             lists of jobs
    schema, openapi     what the types are in words, and as a document; docs is the page of it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flask import Flask

from greenstalk_server.core.broker import Broker
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.api.connections import Connections
from greenstalk_server.web.api.framework.router import Api
from greenstalk_server.web.api.jobs import Jobs
from greenstalk_server.web.api.leases import Leases
from greenstalk_server.web.api.samples import Samples
from greenstalk_server.web.api.server import Server
from greenstalk_server.web.api.tasks import Tasks
from greenstalk_server.web.api.tubes import Tubes
from greenstalk_server.web.live.hub import LiveHub
from greenstalk_server.web.metrics.history import History
from greenstalk_server.web.operations.audit import Audit
from greenstalk_server.web.operations.bulk import Bulk
from greenstalk_server.web.operations.leases import Leases as HttpLeases
from greenstalk_server.web.operations.operations import Operations
from greenstalk_server.web.operations.store import Store
from greenstalk_server.web.operations.tasks import Tasks as Running
from greenstalk_server.web.options import WebOptions
from greenstalk_server.web.pages.export import Exports
from greenstalk_server.web.pages.samples import Samples as Kept
from greenstalk_server.web.pages.search import Searches


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of the dashboard that the API is another way to; *commit* as for greenstalk_server.web.pages.actions."""

    options: WebOptions
    broker: Broker
    clock: Clock
    commit: Callable[[], bool]
    audit: Audit
    bulk: Bulk
    operations: Operations
    exports: Exports
    history: History
    leases: HttpLeases
    live: LiveHub
    samples: Kept
    searches: Searches
    store: Store
    tasks: Running


def init_app(app: Flask, parts: Parts) -> None:
    """Add the API to *app*."""
    broker, clock, commit, operations = parts.broker, parts.clock, parts.commit, parts.operations
    tubes = Tubes(broker, clock, commit, operations, parts.history, parts.store)
    api = Api(broker, _security(parts.options))
    api.add(Jobs(broker, clock, commit, operations, parts.exports))
    api.add(Leases(parts.leases, clock, commit))
    api.add(tubes)
    api.add(Tasks(broker, clock, parts.tasks, parts.searches, parts.bulk))
    api.add(Connections(broker, clock, commit, operations))
    api.add(Samples(parts.store, parts.samples))
    api.add(Server(broker, clock, tubes, parts.history, parts.audit, parts.live))
    api.init_app(app)


def _security(options: WebOptions) -> list[str]:
    """What the guard asks of who uses the API, by the names of openapi.SECURITY: one of these; of nobody if none."""
    has_token, has_password = options.api_token or options.api_viewer_token, options.password or options.viewer_password
    return [name for name, is_asked in (("bearer", has_token), ("basic", has_password)) if is_asked]
