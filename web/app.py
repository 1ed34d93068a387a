"""The dashboard: a Flask app over a broker of the same process.

`create_dashboard` builds the app, which gevent.pywsgi serves on the event loop that also serves the queue. So no
command is served while a view runs, until the view switches greenlets. A view must finish in a few milliseconds, or
yield to the event loop in between (web.framework.cooperative). An action changes the broker in batches and waits for
the journal.

Only web.server depends on the command-line options and the listening socket. No module depends on the wire format of
the beanstalk protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from flask import Flask, request
from werkzeug.routing import BuildError

from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.core.broker import Broker
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.scheduling import yield_to_loop
from greenstalk_server.runtime.threads import run_in_thread
from greenstalk_server.web.auth.forwarding import LIVE, Forwarding
from greenstalk_server.web.auth.guard import Guard, Guarded
from greenstalk_server.web.auth.oidc import OpenIdClient
from greenstalk_server.web.auth.sessions import Sessions
from greenstalk_server.web.changes.bulk import Bulk
from greenstalk_server.web.changes.operations import Operations
from greenstalk_server.web.changes.saved_changes import FILE_NAME, MAX_SIZE, MAX_SIZE_IN_MEMORY, SavedChanges
from greenstalk_server.web.changes.task_parts import TaskParts
from greenstalk_server.web.changes.tasks import Tasks
from greenstalk_server.web.changes.tube_changes import TubeChanges
from greenstalk_server.web.changes.undo import Undo
from greenstalk_server.web.features.alerts import api as alerts_api
from greenstalk_server.web.features.alerts.alerts import Alerts
from greenstalk_server.web.features.alerts.changes import AlertChanges, sees_alerts
from greenstalk_server.web.features.alerts.pages import AlertPages
from greenstalk_server.web.features.audit import api as audit_api
from greenstalk_server.web.features.audit.pages import AuditPages
from greenstalk_server.web.features.conditions import api as conditions_api
from greenstalk_server.web.features.conditions.acknowledgements import Acknowledgements
from greenstalk_server.web.features.conditions.badges import register_badges
from greenstalk_server.web.features.conditions.changes import AcknowledgementChanges
from greenstalk_server.web.features.conditions.measures import Link
from greenstalk_server.web.features.conditions.monitor import ConditionMonitor
from greenstalk_server.web.features.conditions.pages import AttentionPages
from greenstalk_server.web.features.conditions.rows import AttentionModel
from greenstalk_server.web.features.connections import api as connections_api
from greenstalk_server.web.features.connections.connections import Connections
from greenstalk_server.web.features.connections.pages import ConnectionPages
from greenstalk_server.web.features.errors import api as errors_api
from greenstalk_server.web.features.errors.errors import TubeErrors
from greenstalk_server.web.features.errors.pages import ErrorPages
from greenstalk_server.web.features.history.archive import Archive
from greenstalk_server.web.features.history.figures import WholeFigures
from greenstalk_server.web.features.history.history import History
from greenstalk_server.web.features.history.pages.history import HistoryPages
from greenstalk_server.web.features.history.worker_rates import WorkerRates
from greenstalk_server.web.features.jobs.api import jobs as jobs_api
from greenstalk_server.web.features.jobs.api.found_jobs import FoundJobs
from greenstalk_server.web.features.jobs.export import Exports
from greenstalk_server.web.features.jobs.pages.actions import Actions
from greenstalk_server.web.features.jobs.pages.bulk import BulkPages
from greenstalk_server.web.features.leases import api as leases_api
from greenstalk_server.web.features.leases.leases import Leases, job_of_token
from greenstalk_server.web.features.marks import api as marks_api
from greenstalk_server.web.features.marks.changes import VisibleMarks
from greenstalk_server.web.features.marks.marks import START, Marks
from greenstalk_server.web.features.metrics.exporter import Metrics
from greenstalk_server.web.features.metrics.request_times import measure_requests
from greenstalk_server.web.features.policies import api as policies_api
from greenstalk_server.web.features.policies.changes import PolicyChanges
from greenstalk_server.web.features.policies.pages.policies import PolicyPages
from greenstalk_server.web.features.samples import api as samples_api
from greenstalk_server.web.features.samples.pages import SamplePages
from greenstalk_server.web.features.samples.samples import Samples
from greenstalk_server.web.features.saved_searches import api as saved_searches_api
from greenstalk_server.web.features.saved_searches.pages import SavedSearchPages
from greenstalk_server.web.features.saved_searches.saved_searches import SavedSearches
from greenstalk_server.web.features.search.pages import SearchPages
from greenstalk_server.web.features.search.search import Searches
from greenstalk_server.web.features.search.suggestions import Suggestions
from greenstalk_server.web.features.servers.api import cluster as cluster_api
from greenstalk_server.web.features.servers.api import server as server_api
from greenstalk_server.web.features.servers.api import servers as servers_api
from greenstalk_server.web.features.servers.cluster import Cluster
from greenstalk_server.web.features.servers.pages import ServerPages
from greenstalk_server.web.features.servers.processes import Processes
from greenstalk_server.web.features.servers.servers import Servers, sees_servers
from greenstalk_server.web.features.sessions import api as sessions_api
from greenstalk_server.web.features.sessions.pages.oidc import OpenIdPages
from greenstalk_server.web.features.sessions.pages.signin import SignIn
from greenstalk_server.web.features.sessions.sessions import SessionChanges
from greenstalk_server.web.features.tasks import api as tasks_api
from greenstalk_server.web.features.tasks.listed import ListedTasks
from greenstalk_server.web.features.tasks.pages import TaskPages
from greenstalk_server.web.features.tubes.api import tube_changes as tube_changes_api
from greenstalk_server.web.features.tubes.api import tubes as tubes_api
from greenstalk_server.web.features.tubes.pages import views
from greenstalk_server.web.features.tubes.pages.onboarding import examples
from greenstalk_server.web.features.tubes.pages.tube_changes import TubeChangePages
from greenstalk_server.web.features.tubes.pages.tube_filter import TubeFilter
from greenstalk_server.web.features.tubes.tube_view import TubeViews
from greenstalk_server.web.features.undo import api as undo_api
from greenstalk_server.web.features.undo.pages import ChangePages
from greenstalk_server.web.framework import errors, preferences
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.api.router import Api, max_request_size
from greenstalk_server.web.framework.fields import MAX_PUT
from greenstalk_server.web.framework.links import caching_url_for
from greenstalk_server.web.framework.notices import notice
from greenstalk_server.web.framework.refusals import NOTHING_SENT
from greenstalk_server.web.framework.shards import Links, Shards
from greenstalk_server.web.framework.template_cache import load_templates
from greenstalk_server.web.live.hub import LiveHub
from greenstalk_server.web.migration import migrate
from greenstalk_server.web.options import WebOptions
from greenstalk_server.web.reads.fronts import Fronts
from greenstalk_server.web.reads.jobs.match_table import MatchTable
from greenstalk_server.web.reads.jobs.query import tube_in
from greenstalk_server.web.reads.tubes import COUNT, FIND, count_tubes_here, rank_tubes
from greenstalk_server.web.standby import answer_as_standby, create_standby_app
from greenstalk_server.web.store.audit import Audit
from greenstalk_server.web.store.disk_room import no_refusal, room_refusal
from greenstalk_server.web.store.rows import Rows
from greenstalk_server.web.store.saved_data import SavedData
from greenstalk_server.web.store.sqlite import SqliteRows
from greenstalk_server.web.store.store import Store

if TYPE_CHECKING:
    from greenstalk_server.cluster.membership import Membership

__all__ = ["Dashboard", "WebOptions", "answer_as_standby", "create_dashboard", "create_standby_app"]

MAX_REQUEST_BODY = 64 * 1024
"""Maximum bytes of a request to a page, not counting the job body of a put or an edit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """The dashboard of one broker: its Flask app, and the services that run beside the requests.

    Call `start`, serve `app`, call `stop`, stop the HTTP server, and call `flush`, in this order.
    """

    app: Flask
    acknowledgements: Acknowledgements
    alerts: Alerts
    attention: ConditionMonitor
    audit: Audit
    history: History
    leases: Leases
    live: LiveHub
    marks: Marks
    policies: PolicyChanges
    saved_changes: SavedChanges
    sessions: Sessions
    saved: SavedData
    shards: Shards
    store: Store
    tasks: Tasks
    worker_rates: WorkerRates

    def start(self) -> None:
        """Load the templates, and begin to sample the history and to evaluate the conditions. Switches.

        Loading takes 0.03 s of CPU, or 0.6 s if the templates have to be compiled. Doing so during the first visits
        would stall workers.
        """
        run_in_thread(load_templates, self.app.jinja_env)
        self.history.start()
        self.attention.start()
        self.alerts.start()
        self.worker_rates.start()

    def stop(self) -> None:
        """Stop the live streams and the alerts, and end the waits and leases of HTTP reserves. Does not switch."""
        self.live.stop()
        self.alerts.stop()
        self.leases.stop()

    def discard(self) -> None:
        """End the services of a dashboard that is not served, and that another one replaces. Switches."""
        self.stop()
        self.history.stop()
        self.attention.stop()
        self.worker_rates.stop()

    def restore(self) -> None:
        """Read the data of the previous run, or of the former leader; then serve other processes. Switches."""
        self.store.restore()
        self.saved_changes.load()
        self.shards.is_open = True

    def flush(self) -> None:
        """Write the changes that are not saved yet. Switches."""
        self.store.flush()


def create_dashboard(
    broker: Broker,
    clock: Clock,
    options: WebOptions | None = None,
    *,
    commit: Callable[[], bool] | None = None,
    role: Callable[[], ClusterStatus] | None = None,
    rows: Rows | None = None,
    links: Links | None = None,
    membership: Membership | None = None,
) -> Dashboard:
    """Return the dashboard of *broker*, not started. Switches.

    The app holds the dashboard as `extensions["dashboard"]`.

    options         None for the defaults of WebOptions.
    commit          returns True when every change made so far is as durable as an acknowledged command,
                    or False if that takes too long. May switch. None without a journal.
    rows            keeps the dashboard's own data, which the caller restores once this server leads; None for a SQLite
                    file in the directory of *options*, or for memory if *options* name no directory.
    links           connect this process to those of the other shards; None if there are none.
    role            returns the role of a server that shares its journal with other servers; None without such servers.
    membership      knows the servers of a queue with shards in a database; None for any other queue.
    """
    options = options or WebOptions()
    commit = commit if commit is not None else _nothing_to_commit
    shards = Shards(broker.ids, links, broker)
    app = _create_app(options, broker, has_processes=links is not None)
    requests = measure_requests(app)  # before the guard, so that refused requests are timed too
    store = Store(rows, is_kept=True) if rows is not None else _local_store(options.directory, broker)
    audit = Audit(clock, store, shards)
    guard = Guard(options, broker.facts.hostname, clock, audit, store, has_login=True, shards=shards)
    forwarding = Forwarding(app, guard, shards, max_request_size(broker.max_job_size), tube_in, job_of_token)
    forwarding.init_front()
    guard.init_app(app)
    forwarding.init_app()
    sessions = SessionChanges(guard, audit)
    sign_in = SignIn(guard, sessions, audit, clock)
    saved = SavedData(store)
    live = LiveHub(app, clock)
    live.state_elsewhere = forwarding.live_state
    shards.answer(LIVE, live.state_here)
    marks = Marks(store, clock)
    visible_marks = VisibleMarks(marks, shards)
    history = History(
        broker,
        clock,
        Archive(store),
        is_leader=lambda: role is None or role().is_active,
        on_restored=lambda: _mark_start(marks, broker, shards, role),
    )
    broker.subscribe(marks)
    worker_rates = WorkerRates(broker, clock)
    acknowledgements = Acknowledgements(store)
    acknowledging = AcknowledgementChanges(acknowledgements, clock, audit)
    attention = ConditionMonitor(
        broker,
        clock,
        on_failure=acknowledging.end_after_failure,
        thresholds=options.thresholds,
        limits=options.limits,
        role=role,
        directory=options.directory,
        shards=shards,
    )
    attention_model = AttentionModel(attention, acknowledgements, clock)
    alerts = Alerts(
        attention,
        acknowledgements,
        clock,
        options.receivers if shards.is_home else tuple,
        source=role().journal if role is not None else broker.facts.hostname,
        path_of=partial(_path_of, app),
        role=role,
        store=store,
    )
    tube_views = TubeViews(broker, clock, history, attention, saved, shards)
    fronts = Fronts(clock, shards)
    figures = WholeFigures(broker, clock, history, shards, fronts)
    shards.answer(FIND, partial(rank_tubes, broker, shards=shards))
    shards.answer(COUNT, partial(count_tubes_here, broker, shards=shards))
    processes = Processes(broker, clock, shards, membership)
    servers = Servers(clock, attention, options.peers, role, figures, processes)
    cluster = Cluster(membership, audit)
    saved_changes = SavedChanges(
        rows if rows is not None else SqliteRows(options.directory, FILE_NAME),
        clock,
        MAX_SIZE if rows is not None or options.directory is not None else MAX_SIZE_IN_MEMORY,
        _room_refusal(options.directory if rows is None else None, broker),
        shards,
    )
    tasks = Tasks(clock, audit, shards)
    parts = TaskParts(tasks, shards)
    listed_tasks = ListedTasks(tasks, clock, shards)
    changing = (broker, clock, commit, audit, tasks, saved, saved_changes)
    operations, bulk = Operations(*changing), Bulk(*changing, parts=parts)
    tube_changes, undo = TubeChanges(*changing, parts=parts), Undo(*changing, parts=parts, shards=shards)
    app.jinja_env.globals |= {
        "clear_promise": operations.clear_promise,
        "deletion_promise": saved_changes.deletion_promise,
        "deletion_refusal": saved_changes.deletion_refusal,
        "change_promise": saved_changes.change_promise,
    }
    connections = Connections(clock, shards, audit)
    leases = Leases(broker, clock, commit)
    exports = Exports(broker, clock, forwarding.elsewhere)
    policies = PolicyChanges(broker, clock, commit, audit, tasks, marks, shards, parts)
    samples = Samples(saved, audit)
    saved_searches = SavedSearches(saved, audit)
    searches = Searches(broker, clock, tasks, parts)
    match_table, found_jobs = MatchTable(broker, clock, shards), FoundJobs(broker, clock, shards)
    alert_changes = AlertChanges(alerts, audit)
    tube_filter = TubeFilter(broker, tasks, searches)
    tube_errors = TubeErrors(broker, clock, tasks, parts)
    SavedSearchPages(saved_searches).init_app(app)
    TubeChangePages(broker, clock, tasks, tube_changes, shards).init_app(app)
    actions = Actions(broker, clock, commit, operations, connections)
    for part in (
        BulkPages(tasks, bulk, match_table),
        exports,
        ChangePages(saved_changes, undo),
        SamplePages(samples),
        ErrorPages(broker, clock, tasks, tube_errors),
        HistoryPages(broker, history, figures, marks, visible_marks, audit),
        actions,
    ):
        part.init_app(app)
    for page in (
        TaskPages(tasks, listed_tasks, clock),
        SearchPages(clock, tasks, searches, match_table, Suggestions(broker, shards)),
        ConnectionPages(clock, connections),
    ):
        page.init_app(app, live)
    views.Views(
        broker,
        clock,
        tube_views,
        examples(options.beanstalk),
        saved,
        role,
        attention_model,
        worker_rates,
        tube_filter,
        tube_errors,
        figures,
    ).init_app(app, live)
    PolicyPages(broker, commit, policies, tasks).init_app(app)
    AuditPages(audit, tasks).init_app(app)
    sign_in.init_app(app)
    if options.oidc is not None:
        OpenIdPages(OpenIdClient(options.oidc), sign_in, audit, options.roles).init_app(app)
    AlertPages(alerts, alert_changes, attention_model, clock).init_app(app, live)
    AttentionPages(attention_model, acknowledging, tube_errors.worst_by_tube, clock).init_app(app, live)
    forwarding.badges = register_badges(app, live, attention_model, broker, shards)
    ServerPages(servers, cluster).init_app(app, live)
    Metrics(broker, clock, requests, attention, shards, fronts, role, options.directory, alerts).init_app(app)
    tubes = tubes_api.TubesEndpoints(broker, clock, commit, operations, tube_views, saved, shards)
    endpoints = Api(broker, commit, _security(options))
    for group in (
        jobs_api.JobsEndpoints(broker, clock, commit, operations, exports, found_jobs, shards),
        leases_api.LeasesEndpoints(leases, clock, commit, shards),
        tubes,
        errors_api.ErrorsEndpoints(broker, tube_errors),
        policies_api.PoliciesEndpoints(policies, commit),
        tube_changes_api.TubeChangesEndpoints(tube_changes),
        tasks_api.TasksEndpoints(tasks, searches, bulk, tube_changes, listed_tasks, found_jobs),
        undo_api.ChangesEndpoints(saved_changes, undo),
        connections_api.ConnectionsEndpoints(commit, connections),
        samples_api.SamplesEndpoints(saved, samples),
        sessions_api.SessionsEndpoints(sessions),
        saved_searches_api.SavedSearchesEndpoints(saved_searches),
        conditions_api.AttentionEndpoints(attention_model, acknowledging),
        marks_api.MarksEndpoints(marks, visible_marks, clock, audit),
        alerts_api.AlertsEndpoints(alert_changes),
        server_api.ServerEndpoints(broker, clock, tubes, live, figures, shares_journal=role is not None),
        audit_api.AuditEndpoints(audit),
        servers_api.ServersEndpoints(servers),
        cluster_api.ClusterEndpoints(cluster),
    ):
        endpoints.add(group)
        yield_to_loop()
    endpoints.init_app(app)
    preferences.init_app(app)
    errors.init_app(app)
    dashboard = Dashboard(
        app=app,
        acknowledgements=acknowledgements,
        alerts=alerts,
        attention=attention,
        audit=audit,
        history=history,
        leases=leases,
        live=live,
        marks=marks,
        policies=policies,
        saved_changes=saved_changes,
        sessions=guard.sessions,
        saved=saved,
        shards=shards,
        store=store,
        tasks=tasks,
        worker_rates=worker_rates,
    )
    app.extensions["dashboard"] = dashboard
    if rows is None:
        dashboard.restore()
    return dashboard


def _local_store(directory: str | None, broker: Broker) -> Store:
    """Return the store in the file of *directory*, beside the journal of *broker*, or in memory."""
    rows = SqliteRows(directory)
    if directory is None:
        return Store(rows, is_kept=False)
    prepare = partial(migrate, directory, rows)
    return Store(rows, is_kept=True, prepare=prepare, room_refusal=_room_refusal(directory, broker))


def _room_refusal(directory: str | None, broker: Broker) -> Callable[[int], str]:
    """Return the function that decides whether the disk of the journal of *broker* has room for rows."""
    return partial(room_refusal, directory, broker) if directory is not None else no_refusal


def _create_app(options: WebOptions, broker: Broker, has_processes: bool) -> Flask:
    """Return a Flask app with the settings and template filters of the dashboard, without routes."""
    app = Guarded(options)
    # A job body may arrive with CRLF line ends, or in base64, and then has at most twice its size.
    app.config["MAX_CONTENT_LENGTH"] = MAX_REQUEST_BODY + 2 * min(broker.max_job_size, MAX_PUT)
    app.config["MAX_FORM_MEMORY_SIZE"] = app.config["MAX_CONTENT_LENGTH"]
    app.json.sort_keys = False  # type: ignore[attr-defined]  # an attribute of Flask's own provider
    app.jinja_env.globals |= {"url_for": caching_url_for(app), "zip": zip}
    app.context_processor(partial(_template_values, options, has_processes))
    return app


def _template_values(options: WebOptions, has_processes: bool) -> dict[str, Any]:
    """Return the values that every template may use.

    notice          the outcome of the change that led to this page, from its URL; None if there was no change.
    sent            the form that was refused, whose page shows the entered values again.
    principal         the principal and their permissions.
    sees_alerts     whether the principal may see the receivers of alerts.
    navigation      endpoint and label of each page that the principal may see.
    """
    pages = [("overview", "Tubes"), ("attention", "Alerts")]
    if principal().sees_bodies:
        pages.append(("errors", "Errors"))
    pages += [("connections", "Connections"), ("search", "Search")]
    if principal().sees_all:
        pages.append(("policies", "Policies"))
    if (options.peers() or has_processes) and sees_servers():
        pages.append(("servers", "Servers"))
    return {
        "notice": notice(request.args),
        "sent": NOTHING_SENT,
        "principal": principal(),
        "sees_alerts": sees_alerts(),
        "navigation": [*pages, ("audit", "Audit")] if principal().sees_audit else pages,
    }


def _mark_start(marks: Marks, broker: Broker, shards: Shards, role: Callable[[], ClusterStatus] | None) -> None:
    """Add a mark for the start or the takeover of this server, or of one of its processes."""
    part = f"shard {shards.own}: " if shards.others else ""
    started = f"{part}{broker.facts.hostname} started, version {broker.facts.version}"
    if role is not None:
        status = role()
        started = f"{part}{status.name} took over, epoch {status.epoch}, version {broker.facts.version}"
    marks.add(started, kind=START)


def _path_of(app: Flask, link: Link) -> str:
    """Return the path of the page to which *link* leads, below the address of the dashboard; `/` if there is none.

    The link may come from a file of another version.
    """
    args = {name: value for name, value in link.args.items() if name != "_anchor"}
    anchor = link.args.get("_anchor", "")
    try:
        return app.url_map.bind("").build(link.endpoint, args) + (f"#{anchor}" if anchor else "")
    except BuildError:
        return "/"


def _nothing_to_commit() -> bool:
    return True


def _security(options: WebOptions) -> list[str]:
    """Return the keys of openapi.SECURITY that the server accepts; empty if the API is open."""
    has_token = options.api_token or options.api_operator_token or options.api_viewer_token
    has_password = options.password or options.operator_password or options.viewer_password or options.users
    return [name for name, is_accepted in (("bearer", has_token), ("basic", has_password)) if is_accepted]
