"""The daemon: assemble, serve and gracefully stop the server and the dashboard.

This is the only module that knows both. Startup checks and acquires, in this order: certificates, file limit, sockets,
privileges, and the journal directory or the database. Each step may raise StartError, with its own exit code. The
sockets listen when the jobs and the dashboard are loaded, so that the first client is served at once.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import gevent
from gevent.event import Event
from gevent.lock import BoundedSemaphore

from greenstalk_server import BUILD, __version__
from greenstalk_server.cluster.control import ControlSocket
from greenstalk_server.cluster.extra_server import ExtraServers
from greenstalk_server.cluster.placement import ACCEPTING as CHILD_ACCEPTING
from greenstalk_server.cluster.placement import READY as CHILD_READY
from greenstalk_server.cluster.placement import STOPPING as CHILD_STOPPING
from greenstalk_server.cluster.placement import Placement, ShardPlacement
from greenstalk_server.cluster.roster import Roster
from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.config.config_file import Reloadable, read_reloadable
from greenstalk_server.config.definitions import DEFINITIONS
from greenstalk_server.config.options import PROGRAM, Options, secret_variables
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.body_cache import Bodies
from greenstalk_server.core.jobs.id_sequence import ONE_SHARD, IdSequence
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.jobs.job_history import FIRST_OF_FRONT, LAST_CLIENT
from greenstalk_server.core.journal import Journal, NullJournal
from greenstalk_server.core.limits import LimitCounters
from greenstalk_server.core.operations import draining, policy_changes
from greenstalk_server.core.policies.policy import Policy
from greenstalk_server.core.policies.policy_shards import find_split
from greenstalk_server.core.tube_shards import TubeShards
from greenstalk_server.journal.files import Directory
from greenstalk_server.journal.layout import refuse_shards
from greenstalk_server.journal.lock import DirectoryLock
from greenstalk_server.journal.shard_file import require_identity
from greenstalk_server.journal.space import MIN_FILE_SIZE
from greenstalk_server.journal.startup import OVERRIDDEN, recover
from greenstalk_server.journal.writer import JournalWriter
from greenstalk_server.net.acceptor import DescriptorBudget, WebServer
from greenstalk_server.net.body_loader import Loader
from greenstalk_server.net.committer import Committer
from greenstalk_server.net.link_handshake import Identity
from greenstalk_server.net.links import Links
from greenstalk_server.net.listeners import (
    Listener,
    adopt_listeners,
    describe,
    open_link_listener,
    open_listeners,
    open_web_listener,
)
from greenstalk_server.net.server import Server
from greenstalk_server.net.tls import OF_LINKS, Certificates
from greenstalk_server.preflight import (
    importing_psycopg,
    refuse_unusable_rules,
    warn_if_world_writable,
    with_password,
    with_provider,
)
from greenstalk_server.protocol import codec
from greenstalk_server.protocol.arguments import mode
from greenstalk_server.runtime import logs
from greenstalk_server.runtime.clock import Clock, steady_clock
from greenstalk_server.runtime.exit_codes import EXIT_USAGE, StartError
from greenstalk_server.runtime.gc_tuning import pause_gc, tune_gc
from greenstalk_server.runtime.memory import resident_bytes
from greenstalk_server.runtime.process import (
    READY,
    STOPPING,
    drop_privileges,
    notify_manager,
    raise_file_limit,
    require_readable_code,
    server_facts,
)
from greenstalk_server.runtime.scheduling import yield_to_loop
from greenstalk_server.runtime.system import IS_MACOS, hide_secrets
from greenstalk_server.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from greenstalk_server.cluster.membership import Membership
    from greenstalk_server.journal.postgresql.dashboard import DashboardRows
    from greenstalk_server.journal.postgresql.lease import LeaderLease
    from greenstalk_server.journal.postgresql.rows import Rows
    from greenstalk_server.journal.postgresql.writer import DatabaseJournalWriter
    from greenstalk_server.web.app import Dashboard
    from greenstalk_server.web.server import DashboardFactory

WEB_STOP_TIMEOUT: Final = 1.0
"""Seconds that HTTP requests have to finish at shutdown. An idle keep-alive connection always uses up this time."""

log = logging.getLogger(__name__)


def run(options: Options, environ: Mapping[str, str], placement: Placement | None = None) -> None:
    """Serve with *options* until a signal stops the server; raise StartError if it cannot start.

    *placement* is that of this process among several, whose parent has opened the sockets; None: there are no others.
    """
    parent = ControlSocket(placement.control_fd) if placement is not None else None
    if BUILD.advice:
        log.warning("%s", BUILD.advice)
    if IS_MACOS:
        log.warning("the server is untested on macOS; for production, run it on Linux or in a container")
    for warning in options.warnings if placement is None else ():  # the parent logs them
        log.warning("%s", warning)
    hidden = [row.variable for row in DEFINITIONS if row.is_secret or row.field == "journal"]
    hide_secrets([*hidden, *secret_variables(options.alerts, options.servers)])
    options = with_provider(with_password(options))
    codec.set_strict(options.strict_protocol)
    mode.extends_stats = options.extended_stats
    certificates = Certificates(options) if options.tls_cert is not None else None
    link_certificates = Certificates(options, OF_LINKS) if options.link_cert is not None else None
    max_files = raise_file_limit()
    with ExitStack() as at_exit:
        listeners = [at_exit.enter_context(each) for each in _open_listeners(options, environ, placement)]
        refuse_unusable_rules(options, [listener.name for listener in listeners])
        if options.access and options.web_enabled and not options.needs_login:
            log.warning(
                "the access rules do not apply to the dashboard, which has no password: set GREENSTALK_WEB_PASSWORD,"
                " or --no-web"
            )
        factory = None
        if options.web_enabled:
            listens = placement is None or placement.serves_dashboard
            web_listener = at_exit.enter_context(open_web_listener(options)) if listens else None
            factory = _dashboard_factory(web_listener, options, listeners)
        if options.user is not None:
            drop_privileges(options.user)
            if factory is not None:
                require_readable_code(options.user)
        if options.data_dir is not None:
            at_exit.callback(DirectoryLock(options.data_dir).close)
            warn_if_world_writable(options.data_dir)
            if placement is None:
                refuse_shards(options.data_dir)
        serve = _serve
        if options.journal is not None:
            serve = _serve_in_cluster if options.link is None else _serve_as_front
        shard = placement.shard if placement is not None else None
        roster = Roster(shard.links) if shard is not None else None
        resources = _Resources(
            listeners, factory, certificates, link_certificates, max_files, parent, placement, roster
        )
        serve(options, environ, resources)


def _open_listeners(options: Options, environ: Mapping[str, str], placement: Placement | None) -> Iterator[Listener]:
    if placement is None:
        return open_listeners(options, environ)
    return adopt_listeners(environ, placement.listeners)


@dataclass(frozen=True, slots=True)
class _Resources:
    """The sockets, certificates and file limit, which are acquired before the journal is read.

    parent, placement   the socket to the parent of this process, and its placement, if it is one of several.
    roster              the processes of all shards, if this process owns one as long as it lives.
    """

    listeners: Sequence[Listener]
    dashboard_factory: DashboardFactory | None
    certificates: Certificates | None
    link_certificates: Certificates | None
    max_files: int
    parent: ControlSocket | None
    placement: Placement | None
    roster: Roster | None

    @property
    def shard(self) -> ShardPlacement | None:
        """The shard that this process owns as long as it lives; None if it owns the whole queue, or is in a cluster."""
        return self.placement.shard if self.placement is not None else None


def _dashboard_factory(
    listener: socket.socket | None, options: Options, listeners: Sequence[Listener]
) -> DashboardFactory:
    from greenstalk_server.web.server import DashboardFactory  # noqa: PLC0415  Flask takes half of startup

    example = next((each for each in listeners if not each.is_tls), listeners[0])
    return DashboardFactory(listener, options, describe(example.sock))


def _serve(options: Options, environ: Mapping[str, str], resources: _Resources) -> None:
    """Serve until SIGTERM or SIGINT; then stop gracefully."""
    pause_gc()
    clock = steady_clock()
    policy_file = _PolicyFile(options)
    if resources.dashboard_factory is not None:
        resources.dashboard_factory.settings = lambda: policy_file.settings
    broker, committer = _recovered_broker(options, clock, policy_file, resources.shard)
    files = DescriptorBudget(resources.max_files, broker.limit_counters)
    links = _links(options, resources, broker, clock, committer)
    server = _server(options, resources, broker, clock, committer, files, links)
    web_server: WebServer | None = None
    dashboard: Dashboard | None = None
    if (factory := resources.dashboard_factory) is not None:
        dashboard = factory.start_dashboard(broker, clock, committer, links=links)
        web_server = factory.create_server(dashboard.app, files) if factory.listens else None
    stopping = Event()
    _handle_signals(server.drain, stopping.set, options, resources, policy_file)
    tune_gc()
    server.start()
    if web_server is not None:
        web_server.start()
    _announce(options, resources)
    parent = resources.parent
    if parent is None:
        notify_manager(READY, environ)
    else:
        assert resources.roster is not None
        parent.listen(resources.roster.update, stopping.set)
        parent.report(CHILD_READY)
    stopping.wait()
    _report_stopping(resources, environ)
    _stop(server, web_server, dashboard)


def _report_stopping(resources: _Resources, environ: Mapping[str, str]) -> None:
    """Tell the parent of this process, or the service manager, that this process stops."""
    if resources.parent is None:
        notify_manager(STOPPING, environ)
    else:
        resources.parent.report(CHILD_STOPPING)


def _serve_in_cluster(options: Options, environ: Mapping[str, str], resources: _Resources) -> None:
    """Stand by until this server leads the shared journal; then serve as `_serve` does."""
    pause_gc()
    with importing_psycopg():
        from greenstalk_server.cluster import leadership  # noqa: PLC0415  optional dependency
    lease = leadership.make_lease(options, describe(resources.listeners[0].sock))
    policy_file = _PolicyFile(options)
    make_queue = partial(_SharedQueue, options, resources.dashboard_factory, policy_file, lease)
    candidate = leadership.Candidate(lease, make_queue, options.strict_recovery)
    lifetime = leadership.ProcessLifetime(candidate)
    web_server = _standby_web_server(options, resources, policy_file, candidate.status)
    _handle_signals(lifetime.drain, lifetime.request_exit, options, resources, policy_file)
    _announce(options, resources)
    notify_manager(READY, environ)
    lifetime.start()
    if not lifetime.stand_by():
        notify_manager(STOPPING, environ)
        if web_server is not None:
            web_server.stop(timeout=WEB_STOP_TIMEOUT)
        return
    queue = candidate.queue
    files = DescriptorBudget(resources.max_files, queue.broker.limit_counters)
    server = _server(options, resources, queue.broker, candidate.clock, queue.committer, files)
    lifetime.on_drain = server.drain
    tune_gc()
    server.start()
    if web_server is not None:
        queue.prepare(candidate.status)
        assert queue.dashboard is not None
        queue.dashboard.restore()
        files.open, web_server.files = files.open + web_server.files.open, files
        web_server.application = queue.dashboard.app
    lifetime.stopping.wait()
    if lifetime.is_exiting:
        notify_manager(STOPPING, environ)
    _stop(server, web_server, queue.dashboard, lifetime.release_leadership)
    if not lifetime.is_exiting:
        lifetime.execute_again()


def _serve_as_front(options: Options, environ: Mapping[str, str], resources: _Resources) -> None:
    """Serve the clients of a queue in a database from the start, and lead a shard of it once one is free."""
    pause_gc()
    with importing_psycopg():
        from greenstalk_server.cluster import leadership  # noqa: PLC0415  optional dependency
        from greenstalk_server.cluster.membership import Membership  # noqa: PLC0415  optional dependency
        from greenstalk_server.journal.postgresql.members import Members  # noqa: PLC0415  optional dependency
    listener, address = open_link_listener(options)
    parent, placement = resources.parent, resources.placement
    number = placement.number if placement is not None else None
    lease = leadership.make_lease(options, describe(resources.listeners[0].sock), number)
    members = Members(
        lease, options.journal_name, options.shards, options.pins, os.uname().nodename, address, __version__
    )
    membership = Membership(members, lease.holder_id.hex)
    policy_file = _PolicyFile(options)
    links: Links | None = None

    def make_queue(rows: Rows, clock: Clock) -> _SharedQueue:
        return _SharedQueue(options, resources.dashboard_factory, policy_file, lease, rows, clock, links, membership)

    candidate = leadership.Candidate(
        lease, make_queue, options.strict_recovery, membership, options.outage_wait_ns / SECOND
    )
    lifetime = leadership.ProcessLifetime(candidate, has_parent=parent is not None)
    web_server = _standby_web_server(options, resources, policy_file, candidate.status, lambda: links)
    _handle_signals(lifetime.drain, lifetime.request_exit, options, resources, policy_file)
    _announce(options, resources)
    if parent is None:
        notify_manager(READY, environ)
    else:
        parent.listen(lambda _: None, lifetime.request_exit)  # the database says who leads the shards
        parent.report(CHILD_ACCEPTING)
    lifetime.start()
    if not membership.open(lifetime.stopping.is_set):
        _report_stopping(resources, environ)
        if web_server is not None:
            web_server.stop(timeout=WEB_STOP_TIMEOUT)
        return
    if parent is not None:
        parent.report(CHILD_READY)
    candidate.set_clock(steady_clock(membership.time))
    server, links, files = _front_server(options, resources, membership, listener, candidate.clock)
    lifetime.on_drain, lifetime.on_lease = server.drain, server.serve_for
    links.on_rival, membership.on_forgotten = lifetime.note_rival, lifetime.note_forgotten
    _watch_shards(options, resources, membership, lifetime.request_exit)
    tune_gc()
    server.start()
    membership.start()
    candidate.is_front, candidate.unreached, membership.relays = True, links.unreached, links.relays
    if web_server is not None:
        files.open, web_server.files = files.open + web_server.files.open, files
    dashboard: Dashboard | None = None
    release: Callable[[], None] | None = None
    if lifetime.stand_by():
        queue = candidate.queue
        server.lead(queue.broker, queue.committer)
        release, membership.leads = lifetime.release_leadership, True
        yield_to_loop()  # the other processes learn who leads before the dashboard is made
        if resources.dashboard_factory is not None:
            queue.prepare(candidate.status)
            dashboard = queue.dashboard
            assert dashboard is not None
            dashboard.restore()
            if web_server is not None:
                web_server.application = dashboard.app
        lifetime.stopping.wait()
    if lifetime.is_exiting:
        _report_stopping(resources, environ)
    _stop(server, web_server, dashboard, release)
    membership.stop()
    if not lifetime.is_exiting:
        lifetime.execute_again()


def _watch_shards(
    options: Options, resources: _Resources, membership: Membership, request_exit: Callable[[], None]
) -> None:
    """Report vacant shards to the parent, if any; end this server if it is an extra one that is not needed."""
    parent, placement = resources.parent, resources.placement
    if parent is not None and placement is not None:
        end = request_exit if placement.is_extra else None
        membership.on_read = ExtraServers(membership, options.lease_ns / SECOND, parent.report, end).look


def _front_server(
    options: Options, resources: _Resources, membership: Membership, listener: socket.socket, clock: Clock
) -> tuple[Server, Links, DescriptorBudget]:
    """Return the server of a process that leads no shard yet, its links, and its file descriptors."""
    queue = membership.queue
    ids = IdSequence(queue.base, queue.shards)
    broker = _broker(options, clock, NullJournal(options.journal_file_size), can_evict=False, ids=ids)
    broker.last_client = random.randrange(FIRST_OF_FRONT, LAST_CLIENT)  # noqa: S311  it need not be a secret
    identity = Identity(queue.id, bytes.fromhex(queue.secret), membership.me, ids)
    links = Links(
        identity,
        membership,
        [listener],
        broker,
        clock,
        None,
        options.access,
        certificates=resources.link_certificates,
        outage_wait=options.outage_wait_ns,
    )
    if resources.dashboard_factory is not None:
        resources.dashboard_factory.answer_as_standby(links, broker, os.uname().nodename, clock)
    files = DescriptorBudget(resources.max_files, broker.limit_counters)
    return _server(options, resources, broker, clock, None, files, links), links, files


def _standby_web_server(
    options: Options,
    resources: _Resources,
    policy_file: _PolicyFile,
    status: Callable[[], ClusterStatus],
    links: Callable[[], Links | None] = lambda: None,
) -> WebServer | None:
    """Return the started web server of a standby with *status*; None if this process serves no dashboard.

    *links* returns the links to the owners of the shards; None before there are any.
    """
    factory = resources.dashboard_factory
    if factory is None:
        return None
    factory.settings = lambda: policy_file.settings
    if not factory.listens:
        return None
    app = factory.create_standby_app(
        status,
        os.uname().nodename,
        steady_clock(),
        links,
        options.max_job_size,
        is_one_of_several=resources.parent is not None,
    )
    web_server = factory.create_server(app, DescriptorBudget(resources.max_files, LimitCounters()))
    web_server.start()
    return web_server


def _server(
    options: Options,
    resources: _Resources,
    broker: Broker,
    clock: Clock,
    committer: Committer | None,
    files: DescriptorBudget,
    links: Links | None = None,
) -> Server:
    return Server(
        broker,
        resources.listeners,
        clock,
        committer,
        files=files,
        limits=options.limits,
        rules=options.access,
        certificates=resources.certificates,
        links=links,
    )


def _links(
    options: Options, resources: _Resources, broker: Broker, clock: Clock, committer: Committer | None
) -> Links | None:
    """Return the links to the other processes of the queue; None if there are none."""
    placement, roster = resources.placement, resources.roster
    if placement is None or placement.shard is None or roster is None:
        return None
    shard = placement.shard
    identity = Identity(shard.queue, bytes.fromhex(shard.secret), placement.process, broker.ids)
    listener = socket.socket(fileno=shard.link_fd)
    return Links(
        identity,
        roster,
        [listener],
        broker,
        clock,
        committer,
        options.access,
        shard.shard,
        outage_wait=options.outage_wait_ns,
    )


class _PolicyFile:
    """The settings of the configuration file that SIGHUP reads again, such as the policies.

    path        the file; empty if there is none.
    settings    the current settings.
    """

    def __init__(self, options: Options) -> None:
        self.path: str = options.config_file or ""
        self._source: str = options.origins.get("config_file", "")
        self.settings: Reloadable = Reloadable(options.policies, options.attention, options.alerts, options.servers)
        self._target: tuple[Broker, Clock] | None = None
        self._turns: BoundedSemaphore = BoundedSemaphore()

    def apply_to(self, broker: Broker, clock: Clock) -> None:
        """Apply the policies to *broker*, which has no jobs yet; `reload` updates the same broker."""
        self._target = (broker, clock)
        policy_changes.set_file_policies(broker, self.settings.policies, clock())

    def reload(self) -> None:
        """Read the file again, and apply it; if it is invalid, log that and change nothing. Switches."""
        with self._turns:
            try:
                settings = run_in_thread(read_reloadable, self.path, self._source)
                self._refuse_split(settings.policies)
                self.settings = settings
            except StartError as error:
                log.error("keeping the present policies and other settings: %s", error)  # noqa: TRY400  the message is complete
                return
            if self._target is not None:
                broker, clock = self._target
                for name in policy_changes.set_file_policies(broker, self.settings.policies, clock()):
                    log.warning(OVERRIDDEN, name)
                for loop in broker.policies.warnings():
                    log.warning("%s", loop)
            message = "applied the reloadable settings of %s (SIGHUP), policies: %d; other changes need a restart"
            log.info(message, self.path, len(self.settings.policies))

    def _refuse_split(self, policies: Iterable[Policy]) -> None:
        """Raise StartError if one of *policies* copies or moves jobs between shards."""
        for policy in policies if self._target is not None else ():
            assert self._target is not None
            if (split := find_split(policy, self._target[0].tube_shards)) is not None:
                raise StartError(f"{self.path}: {split}", EXIT_USAGE)


def _recovered_broker(
    options: Options, clock: Clock, policy_file: _PolicyFile, shard: ShardPlacement | None
) -> tuple[Broker, Committer | None]:
    """Return the broker with the jobs of the journal, and the journal's committer, if there is a journal."""
    if options.data_dir is None:
        ids = shard.identity.ids if shard is not None else ONE_SHARD
        broker = _broker(options, clock, NullJournal(options.journal_file_size), can_evict=False, ids=ids)
        policy_file.apply_to(broker, clock)
        return broker, None
    files = Directory(options.data_dir)
    size = max(options.journal_file_size, MIN_FILE_SIZE)
    journal = JournalWriter(files, size, options.sync_interval_ns, os.urandom)
    ids = require_identity(options.data_dir, shard.identity if shard is not None else None)
    broker = _broker(options, clock, journal, can_evict=True, ids=ids)
    policy_file.apply_to(broker, clock)
    recover(files, broker, journal, clock(), is_strict=options.strict_recovery, ends_remote=shard is None)
    return broker, Committer(journal, Loader(broker, journal, broker.bodies) if broker.bodies is not None else None)


def _broker(
    options: Options, clock: Clock, journal: Journal, *, can_evict: bool, ids: IdSequence = ONE_SHARD
) -> Broker:
    """Return an empty broker; *can_evict*: whether bodies can be read back from *journal*."""
    bodies = Bodies(_memory_for_jobs(options.memory_limit), can_evict) if options.memory_limit else None
    facts = server_facts(clock(), codec.extensions())
    tube_shards = TubeShards(ids.shards, options.pins)
    broker = Broker(facts, journal, options.max_job_size, options.limits, bodies, ids, tube_shards)
    broker.random = random.random
    broker.keeps_pauses = not options.strict_protocol
    return broker


@cache
def _memory_for_jobs(limit: int) -> int:
    """Return the bytes that jobs may take: *limit* less the memory of the process before it has jobs.

    The memory is measured once: a standby that reads the journal again already has jobs.
    """
    return max(0, limit - resident_bytes())


class _SharedQueue:
    """The queue of a server in a cluster: read by a standby, served by the leader. Implements leadership.Queue."""

    def __init__(
        self,
        options: Options,
        factory: DashboardFactory | None,
        policy_file: _PolicyFile,
        lease: LeaderLease,
        rows: Rows,
        clock: Clock,
        links: Links | None = None,
        membership: Membership | None = None,
    ) -> None:
        """Create an empty broker with its journal in *rows*."""
        from greenstalk_server.journal.postgresql.writer import DatabaseJournalWriter  # noqa: PLC0415  optional dependency

        self.rows: Rows = rows
        self.journal: DatabaseJournalWriter = DatabaseJournalWriter(rows, options.journal_file_size, 0, os.urandom)
        self.broker: Broker = _broker(options, clock, self.journal, can_evict=False, ids=lease.ids)
        policy_file.apply_to(self.broker, clock)
        self.committer: Committer = Committer(self.journal)
        self.dashboard: Dashboard | None = None
        self._dashboard_rows: DashboardRows | None = None
        self._lease: LeaderLease = lease
        self._factory: DashboardFactory | None = factory
        self._clock: Clock = clock
        self._links: Links | None = links
        self._membership: Membership | None = membership

    def prepare(self, status: Callable[[], ClusterStatus]) -> None:
        """Create the dashboard if there is none. This takes up to a second, which would delay a takeover. Switches."""
        if self.dashboard is None and self._factory is not None:
            from greenstalk_server.journal.postgresql.dashboard import DashboardRows  # noqa: PLC0415  optional dependency

            self._dashboard_rows = rows = DashboardRows(self._lease)
            self.dashboard = self._factory.start_dashboard(
                self.broker, self._clock, self.committer, status, rows, self._links, self._membership
            )

    def discard(self) -> None:
        if self.dashboard is not None and self._dashboard_rows is not None:
            self.dashboard.discard()
            self._dashboard_rows.close()
            self.dashboard = None


def _handle_signals(
    drain: Callable[[], None],
    stop: Callable[[], None],
    options: Options,
    resources: _Resources,
    policy_file: _PolicyFile,
) -> None:
    """Stop the server at SIGTERM and SIGINT, drain it at SIGUSR1, and toggle the log level at SIGUSR2.

    With a terminal, SIGHUP means that the terminal was closed, and stops the server. Without one it reloads the
    certificate, and the policies, thresholds, alerts and servers of the configuration file. Without a certificate and a
    configuration file, the server logs that it ignores SIGHUP, since an operator may expect that SIGHUP reopens the
    log or reloads the options. A SIGHUP that
    the parent process ignores, as nohup(1) does, stays ignored.
    """
    gevent.signal_handler(signal.SIGTERM, stop)
    gevent.signal_handler(signal.SIGINT, stop)
    gevent.signal_handler(signal.SIGUSR1, drain)
    gevent.signal_handler(signal.SIGUSR2, logs.Verbosity(options.log_level).toggle)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        has_terminal = sys.stdin is not None and sys.stdin.isatty()
        found = [each for each in (resources.certificates, resources.link_certificates) if each is not None]
        gevent.signal_handler(signal.SIGHUP, stop if has_terminal else partial(_reload, found, policy_file))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # ProcessLifetime.execute_again has blocked all signals


def _reload(certificates: Sequence[Certificates], policy_file: _PolicyFile) -> None:
    """Reload the certificates, and the settings of the configuration file that can be reloaded. Switches."""
    for each in certificates:
        each.reload()
    if policy_file.path:
        policy_file.reload()
    elif not certificates:
        log.info("SIGHUP is ignored: there is no log file to reopen, and new options need a restart")


def _stop(
    server: Server,
    web_server: WebServer | None,
    dashboard: Dashboard | None,
    release: Callable[[], None] | None = None,
) -> None:
    """Refuse new connections, finish commands and requests; call *release* once all changes are durable."""
    log.info("stopping: refusing new connections, finishing commands and requests")
    draining.stop(server.broker)
    if web_server is not None:
        web_server.close()
    if dashboard is not None:
        dashboard.stop()
    server.stop()
    if release is not None:
        release()
    if web_server is not None:
        web_server.stop(timeout=WEB_STOP_TIMEOUT)
    if dashboard is not None:
        dashboard.flush()
    log.info("stopped")


def _announce(options: Options, resources: _Resources) -> None:
    """Print the version, the build, the addresses and the durability of jobs; log them if the format is JSON."""
    dashboard = resources.dashboard_factory.address if resources.dashboard_factory is not None else "off (--no-web)"
    beanstalk = ", ".join([listener.described() for listener in resources.listeners])
    facts = {"beanstalk": beanstalk, "dashboard": dashboard, "jobs": options.durability}
    if options.log_format == "json" or resources.parent is not None:
        log.info("serving", extra={"version": __version__, "build": BUILD.name, "pid": os.getpid(), **facts})
        return
    print(f"{PROGRAM} {__version__} ({BUILD.name}), process {os.getpid()}")
    print(f"beanstalk protocol: {facts['beanstalk']}")
    print(f"dashboard: {facts['dashboard']}")
    print(f"jobs: {facts['jobs']}", flush=True)
