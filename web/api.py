"""`/api/v1`: everything that the dashboard shows and does, as JSON. docs/api.md is the guide for users.

How to add a group of endpoints:

1. Write a class in the `api` of its feature. Its name is the tag in the OpenAPI document, and its docstring describes
   the tag. `__init__` takes what the endpoints need (the broker, the clock, `commit`, the operations).
2. Write each endpoint as a method with `@endpoint("POST", "/things/{id}/do", role=OPERATOR)`. The signature defines the
   endpoint: path parameters are annotated with types from `values`; `query` is a subclass of `RequestModel` whose
   fields are the parameters; `body` is a `RequestModel`, or a list or union of them, and optional if it has a default.
   The return type is a `ResponseModel`, None for status 204, or a Response for content other than JSON. The docstring
   is for users.
3. Add the class in `init_app` below. The OpenAPI document and its page, parsing, error responses, and the checks of the
   guard follow from that.

A method may switch greenlets, so it must look up tubes and jobs again after each call that may switch. To refuse a
request, call `problems.refuse` if a field is invalid; otherwise raise NotFound, Conflict, ServiceUnavailable or
PutRefused. A method that changes something writes an audit entry, as changes.operations does, and ends with
`durability.wait_until_durable(self._commit)`. One that reports on a single job ends with
`durability.wait_before_report(self._commit)`.

In web.framework.api, `values` and `cursors` have types that several groups share, and cursors for lists; `durability`
waits for the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flask import Flask

from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.core.broker import Broker
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.bulk import Bulk
from greenstalk_server.web.changes.operations import Operations
from greenstalk_server.web.changes.tasks import Tasks as TaskManager
from greenstalk_server.web.changes.tube_changes import TubeChanges as TubeChangeOperations
from greenstalk_server.web.features.alerts.api import Alerts
from greenstalk_server.web.features.alerts.changes import AlertChanges
from greenstalk_server.web.features.audit.api import Audit
from greenstalk_server.web.features.conditions.api import Attention
from greenstalk_server.web.features.conditions.monitor import ConditionMonitor
from greenstalk_server.web.features.connections.api import Connections
from greenstalk_server.web.features.errors.api import Errors
from greenstalk_server.web.features.errors.errors import TubeErrors
from greenstalk_server.web.features.history.history import History
from greenstalk_server.web.features.jobs.api.jobs import Jobs
from greenstalk_server.web.features.jobs.export import Exports
from greenstalk_server.web.features.leases.api import Leases
from greenstalk_server.web.features.leases.leases import Leases as LeaseManager
from greenstalk_server.web.features.marks.api import Marks
from greenstalk_server.web.features.marks.marks import Marks as MarkRecorder
from greenstalk_server.web.features.policies.api import Policies
from greenstalk_server.web.features.policies.changes import Policies as PolicyOperations
from greenstalk_server.web.features.samples.api import Samples
from greenstalk_server.web.features.samples.samples import Samples as SamplePages
from greenstalk_server.web.features.saved_searches.api import SavedSearches
from greenstalk_server.web.features.saved_searches.saved_searches import SavedSearches as SavedSearchPages
from greenstalk_server.web.features.search.search import Searches
from greenstalk_server.web.features.servers.api.server import Server
from greenstalk_server.web.features.servers.api.servers import Servers
from greenstalk_server.web.features.servers.servers import Servers as ServerList
from greenstalk_server.web.features.sessions.api import Sessions
from greenstalk_server.web.features.sessions.sessions import SessionChanges
from greenstalk_server.web.features.tasks.api import Tasks
from greenstalk_server.web.features.tubes.api.tube_changes import TubeChanges
from greenstalk_server.web.features.tubes.api.tubes import Tubes
from greenstalk_server.web.framework.api.router import Api
from greenstalk_server.web.live.hub import LiveHub
from greenstalk_server.web.options import WebOptions
from greenstalk_server.web.store.audit import Audit as AuditLog
from greenstalk_server.web.store.saved_data import SavedData


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of the dashboard that the API uses.

    *commit* waits until all changes so far are as durable as an acknowledged command; it returns False on a timeout.
    """

    alerts: AlertChanges
    attention: ConditionMonitor
    options: WebOptions
    broker: Broker
    clock: Clock
    commit: Callable[[], bool]
    audit: AuditLog
    bulk: Bulk
    operations: Operations
    exports: Exports
    history: History
    leases: LeaseManager
    live: LiveHub
    marks: MarkRecorder
    policies: PolicyOperations
    role: Callable[[], ClusterStatus] | None
    samples: SamplePages
    sessions: SessionChanges
    saved_searches: SavedSearchPages
    searches: Searches
    servers: ServerList
    saved: SavedData
    tasks: TaskManager
    tube_errors: TubeErrors
    tube_changes: TubeChangeOperations


def init_app(app: Flask, parts: Parts) -> None:
    """Add the API to *app*."""
    broker, clock, commit, operations = parts.broker, parts.clock, parts.commit, parts.operations
    tubes = Tubes(broker, clock, commit, operations, parts.history, parts.saved, parts.attention)
    api = Api(broker, commit, _security(parts.options))
    api.add(Jobs(broker, clock, commit, operations, parts.exports))
    api.add(Leases(parts.leases, clock, commit))
    api.add(tubes)
    api.add(Errors(broker, parts.tube_errors))
    api.add(Policies(parts.policies, commit))
    api.add(TubeChanges(parts.tube_changes))
    api.add(Tasks(broker, clock, parts.tasks, parts.searches, parts.bulk, parts.tube_changes))
    api.add(Connections(broker, clock, commit, operations))
    api.add(Samples(parts.saved, parts.samples))
    api.add(Sessions(parts.sessions))
    api.add(SavedSearches(parts.saved_searches))
    api.add(Attention(parts.attention))
    api.add(Marks(parts.marks, clock, parts.audit))
    api.add(Alerts(parts.alerts))
    api.add(Server(broker, clock, tubes, parts.history, parts.live, shares_journal=parts.role is not None))
    api.add(Audit(parts.audit))
    api.add(Servers(parts.servers))
    api.init_app(app)


def _security(options: WebOptions) -> list[str]:
    """Return the keys of openapi.SECURITY that the server accepts; empty if the API is open."""
    has_token = options.api_token or options.api_operator_token or options.api_viewer_token
    has_password = options.password or options.operator_password or options.viewer_password or options.users
    return [name for name, is_accepted in (("bearer", has_token), ("basic", has_password)) if is_accepted]
