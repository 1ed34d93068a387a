"""Leader election: one server leads, the standbys follow its journal, and one of them takes over when its lease ends.

The lease is a row in the database, and the database's clock decides when the lease ends. The leader renews the lease
in a native thread, so that long work in the event loop does not delay a renewal. The leader stops serving when the
lease has ended by its own clock, which also advances while the process or the machine is suspended. The lease by
itself does not prevent two servers from acknowledging changes. The epoch does: see journal.postgresql.

With links, the leader keeps its jobs and connections at the end of its lease, and serves nothing until it has renewed
the lease, which no other server has taken. After a failure to read the database, a standby waits for one lease before
it takes a lease that has ended: its holder could not renew it. So an outage of the database changes no leader.

A deposed leader holds stale jobs in memory. It never demotes itself: the process executes its program again, under the
same process id, and rejoins as a standby.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

import gevent
from gevent.event import Event

from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.config.options import Options
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import restoring
from greenstalk_server.journal.postgresql.connection import (
    DATABASE_RETRY_INTERVAL,
    DatabaseConnection,
    DatabaseUnavailable,
    NotLeader,
    Row,
    conninfo_of,
)
from greenstalk_server.journal.postgresql.follower import MAX_FETCH_BYTES, MAX_FETCH_ROWS, Follower, PositionLost
from greenstalk_server.journal.postgresql.lease import LeaderLease, LeaseState
from greenstalk_server.journal.postgresql.rows import Rows
from greenstalk_server.journal.postgresql.writer import DatabaseJournalWriter
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.startup import refuse_unfit, resume_slices
from greenstalk_server.runtime.clock import Clock, steady_clock
from greenstalk_server.runtime.exit_codes import EXIT_JOURNAL, EXIT_OK, StartError
from greenstalk_server.runtime.process import FIRST_INHERITED_FD
from greenstalk_server.runtime.scheduling import yield_to_loop
from greenstalk_server.runtime.supervisor import Service, before_abort
from greenstalk_server.runtime.system import boot_time
from greenstalk_server.runtime.threads import run_in_thread

log = logging.getLogger(__name__)

POLL_INTERVAL: Final = 0.2
"""Maximum seconds between two reads of the journal by a standby. It also reads at the end of the lease."""

HANDOVER_POLL_INTERVAL: Final = 0.05
"""Seconds between two reads of the journal by a standby while the leader hands over."""

STANDBYS_INTERVAL: Final = 1.0
"""Seconds between two reads of the list of standbys by the leader."""

WATCH_INTERVAL: Final = 0.1
"""Seconds between two checks for lost leadership, and for overdue replies from the database."""

CLOCK_DRIFT: Final = 0.05
"""Maximum fraction by which the leader's clock may be slower than the database's."""

UNANSWERED_AFTER: Final = 1.0
"""Seconds without a reply from the database after which a standby reports it."""

TAKEOVER_DELAY: Final = 0.1
"""Seconds that a standby waits after a lease that was not renewed should have ended, by the standby's own clock. It may
then take over even if the lease has not ended by the database's clock, which may have been set back."""

PREVIOUS_HOLDER: Final = "_GREENSTALK_PREVIOUS_HOLDER"
"""Environment variable that passes the lease holder's id to the program when a process executes its program again."""

WARNING_FRACTION: Final = 0.25
"""A leader that cannot renew its lease reports the reason when less than this fraction of the lease is left."""

HUNG_AFTER: Final = 60.0
"""Seconds without an iteration of the event loop after which the lease is no longer renewed."""

STOPPED: Final = "this process was stopped for longer than its lease"
"""Reason for a lease that has ended without a failed renewal."""

MIN_IDLE_TUBES: Final = 10_000
"""Tubes without jobs that a standby keeps before it drops any."""

EXIT_TIMEOUT: Final = 1.0
"""Seconds that an exiting standby waits for a reply from the database."""

HANDOVER_TIMEOUT: Final = 30
"""Seconds that `handover` waits for the standby to lead."""


class Queue(Protocol):
    """The broker and journal that a standby fills and a leader serves."""

    broker: Broker
    journal: DatabaseJournalWriter
    rows: Rows

    def prepare(self, status: Callable[[], ClusterStatus]) -> None:
        """Do the work that would delay a takeover. Later calls do nothing. Switches."""

    def discard(self) -> None:
        """End what `prepare` has started: another queue replaces this one. Switches."""


class Seats(Protocol):
    """The shards of the queue, of which a standby follows one."""

    def assign(self) -> bool:
        """Make the lease be about the shard to follow; return whether it is another one than before."""

    @property
    def is_wanted(self) -> bool:
        """Whether an operator wants this process to lead the shard of the lease."""

    @property
    def is_reserved(self) -> bool:
        """Whether an operator wants another process to lead the shard of the lease."""

    @property
    def relayed_links(self) -> int:
        """Number of links between processes of the queue that a third one relays."""


Q = TypeVar("Q", bound=Queue)


class Leadership:
    """Leadership of a journal. One thread renews the lease until `stop`; another reads the list of standbys.

    lost           reason for the loss of leadership; empty if no loss is known.
    patience       seconds after the end of the lease for which it is still to be renewed.
    renewal_error  reason why the last renewal failed; empty if it succeeded.
    is_handover_requested   whether an operator has requested a handover.
    """

    def __init__(self, lease: LeaderLease, epoch: int, taken_at: float, outage_wait: float) -> None:
        """*taken_at* is the time of the request for leadership, by `boot_time`; *outage_wait* as of Candidate."""
        self.epoch: int = epoch
        self.lost: str = ""
        self.renewal_error: str = ""
        self.is_handover_requested: bool = False
        self.standbys: tuple[tuple[str, float], ...] = ()
        self.lease: LeaderLease = lease
        self.patience: float = max(0.0, outage_wait - lease.duration)
        self._expires_at: float = taken_at + lease.duration * (1 - CLOCK_DRIFT)
        self._checked_at: float = time.monotonic()
        self._stopped: threading.Event = threading.Event()
        Service("lease", self._renew_until_stopped).start_thread()
        Service("standbys", self._read_standbys_until_stopped).start_thread()

    @property
    def warning(self) -> str:
        """Reason why the lease is about to end; empty while there is time to renew it.

        A single failed renewal gives no warning, since a load balancer that sees one closes all connections.
        """
        return self.renewal_error if boot_time() > self._expires_at - self.lease.duration * WARNING_FRACTION else ""

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends, by the clock of this process. Nothing may be served when it has ended."""
        return self._expires_at - boot_time()

    def why_lost(self) -> str:
        """Return why leadership was lost; empty if it was not. Without a call for HUNG_AFTER seconds, renewals stop."""
        self._checked_at = time.monotonic()
        if not self.lost and boot_time() > self._expires_at + self.patience:
            self.lost = self.renewal_error or STOPPED
        return self.lost

    def stop(self) -> None:
        """Stop renewing the lease."""
        self._stopped.set()

    def _renew_until_stopped(self) -> None:
        pause = 0.0
        while not self._stopped.wait(DATABASE_RETRY_INTERVAL if self.renewal_error else pause):
            pause = self.lease.heartbeat_interval
            if time.monotonic() > self._checked_at + HUNG_AFTER:
                continue
            requested_at = boot_time()
            try:
                self.is_handover_requested = self.lease.renew()
                self._expires_at = requested_at + self.lease.duration * (1 - CLOCK_DRIFT)
                self.renewal_error = ""
            except NotLeader as error:
                self.lost = str(error)
                return
            except OSError as error:
                self.renewal_error = str(error)

    def _read_standbys_until_stopped(self) -> None:
        while not self._stopped.wait(STANDBYS_INTERVAL):
            with suppress(OSError):
                self.standbys = tuple([(standby.name, standby.behind) for standby in self.lease.standbys()])


class Candidate(Generic[Q]):
    """A server that follows the journal as a standby until it can take leadership.

    queue       the jobs: read from the journal by a standby, served by a leader.
    clock       follows the database's clock, so that machines with different clocks agree on when a delay ends.
    leadership  None while this server is a standby.
    is_front    whether this server serves clients also while it is a standby.
    unreached   returns the shards that this server cannot reach.
    """

    def __init__(
        self,
        lease: LeaderLease,
        make: Callable[[Rows, Clock], Q],
        is_strict: bool,
        seats: Seats | None = None,
        outage_wait: float = 0.0,
    ) -> None:
        """*make* returns an empty queue. *seats* are the shards to choose from; None: the journal of *lease* alone.

        *outage_wait*: seconds without a renewal after which a leader gives up; it never gives up before its lease ends.
        """
        lease.renews_late = outage_wait > 0
        self._outage_wait: float = outage_wait
        self._answers_since: float | None = None
        self.queue: Q
        self.clock: Clock
        self.is_front: bool = False
        self.unreached: Callable[[], Sequence[int]] = tuple
        self._has_clock: bool = False
        self._seats: Seats | None = seats
        self.leadership: Leadership | None = None
        self.lease: LeaderLease = lease
        self._make: Callable[[Rows, Clock], Q] = make
        self._is_strict: bool = is_strict
        self._is_open: bool = False
        self._follower: Follower | None = None
        self._lease_state: LeaseState | None = None
        self._database_error: str = ""
        self._read_at: float | None = None
        self._reported_at: float = 0.0
        self._reporter: gevent.Greenlet | None = None
        self._is_stopping: Callable[[], bool] = bool
        self._last_term: tuple[int, int] | None = None
        self._lease_ends_at: float = 0.0
        self._is_following: bool = False
        self._has_garbage: bool = False

    def set_clock(self, clock: Clock) -> None:
        """Use *clock*, which was set by the time of the database."""
        self.clock, self._has_clock = clock, True

    @property
    def connections(self) -> list[DatabaseConnection]:
        """Every connection to the database."""
        connections = [self.lease.connection, self.lease.background, *self.lease.others]
        if self._follower is not None:
            connections += [self._follower.connection, self.queue.rows.connection]
        return connections

    def status(self) -> ClusterStatus:
        """Return the status of this server."""
        lease, state, leadership = self.lease, self._lease_state, self.leadership
        if leadership is not None:
            return ClusterStatus(
                True,
                lease.journal_name,
                lease.name,
                lease.name,
                leadership.epoch,
                0.0,
                leadership.warning,
                leadership.standbys,
                self.is_front,
                tuple(self.unreached()),
                self._relayed_links(),
            )
        return ClusterStatus(
            False,
            lease.journal_name,
            lease.name,
            state.leader if state is not None and not state.is_free else "",
            state.epoch if state is not None else 0,
            self._behind(),
            self._database_error or self._unanswered(),
            is_front=self.is_front,
            unreached=tuple(self.unreached()),
            relayed_links=self._relayed_links(),
        )

    def _relayed_links(self) -> int:
        return self._seats.relayed_links if self._seats is not None and self.is_front else 0

    def _unanswered(self) -> str:
        """Return a message if the database has not answered for UNANSWERED_AFTER seconds; otherwise empty."""
        waits = max([each.waits for each in self.connections if each is not self.lease.background])
        return f"PostgreSQL has not answered for {waits:.0f} s" if waits > UNANSWERED_AFTER else ""

    def run(self, stopping: Event) -> Leadership | None:
        """Follow until this server leads with all jobs in its broker; return None if *stopping* is set. Switches.

        Raise StartError if the journal was written by another version. Raise OSError if the database cannot be read
        during a takeover; the process must then execute its program again.
        """
        self._is_stopping = stopping.is_set
        while not stopping.is_set():
            pause = DATABASE_RETRY_INTERVAL
            try:
                leadership = self._step()
            except OSError as error:
                if self.leadership is not None:
                    raise
                self._answers_since = None
                self._note_database_error(str(error))
            except PositionLost:
                log.info("standby: segments were removed before they were read; reading the journal from the start")
                self._begin()
            else:
                if leadership is not None:
                    return leadership
                pause = self._pause()
            stopping.wait(pause)
        if self._follower is not None:
            with suppress(OSError):
                run_in_thread(self.lease.remove_standby)
        return None

    def _step(self) -> Leadership | None:
        """Read new batches, and take leadership if no server has it. Switches."""
        if self._seats is not None and self._seats.assign():
            self._is_open = False
        if not self._is_open:
            self._open()
        self._lease_state = self._read()
        assert self._follower is not None
        refuse_unfit(self._follower.recovery, is_strict=False)  # a standby must not lead a journal that it cannot serve
        if self._answers_since is None:
            self._answers_since = time.monotonic()
        self._note_recovery()
        if not self.may_lead(self._lease_state) or (self._seats is not None and self._seats.is_reserved):
            if not self._is_following:
                log.info("standby: %s is active", self._lease_state.leader)
                gc.enable()  # the first read is complete: see gc_tuning.pause_gc
            self._is_following = True
            if time.monotonic() > self._reported_at + self.lease.heartbeat_interval and not self._reporter:
                self._reported_at = time.monotonic()
                self._reporter = gevent.spawn(self._report, lambda: self.lease.report_standby(self._behind() or 0.0))
            if self._seats is None:  # others answer for the dashboard while a front takes over
                self.queue.prepare(self.status)
            elif self._seats.is_wanted and not self._lease_state.is_handing_over:
                run_in_thread(self.lease.request_handover)
            return None
        return self._take_over(self._lease_state)

    def _pause(self) -> float:
        """Return the seconds until the next read."""
        state = self._lease_state
        if state is None or not self._is_following:
            return DATABASE_RETRY_INTERVAL
        if state.is_handing_over:
            return HANDOVER_POLL_INTERVAL
        return state.remaining if 0 < state.remaining < POLL_INTERVAL else POLL_INTERVAL

    def _open(self) -> None:
        """Begin to follow the journal of the lease. Switches."""
        now = run_in_thread(self.lease.open)
        if not self._has_clock:
            self.set_clock(steady_clock(now))
        if self._follower is None and (risk := run_in_thread(self.lease.risk)):
            log.warning("PostgreSQL: %s", risk)
        self._last_term = self._lease_state = None
        self._is_following = False
        self._begin()
        self._is_open = True

    def may_lead(self, state: LeaseState) -> bool:
        """Return whether this server may take leadership: no server has it, or the leader has let its lease run out.

        If leaders renew late, one that has not released its lease gets one lease since the database answers, unless it
        must have given up before.
        The lease is timed by this machine's clock. The database's clock may have been set back, or the database may
        have failed over to a machine with another clock.
        """
        term = state.epoch, state.lease_until
        if term != self._last_term:
            self._last_term, self._lease_ends_at = term, time.monotonic() + state.remaining + TAKEOVER_DELAY
        if self.lease.renews_late and state.holder is not None and not state.is_mine:
            since = self._answers_since
            is_early = since is None or time.monotonic() < since + self.lease.duration
            if is_early and state.remaining > -self._outage_wait:
                return False
        return state.is_free or state.is_mine or time.monotonic() > self._lease_ends_at

    def _report(self, report: Callable[[], None]) -> None:
        """Call *report*, which records in the database whether this server is a standby; ignore failures. Switches."""
        with suppress(OSError):
            run_in_thread(report)

    def _begin(self) -> None:
        """Drop everything that was read, so that the journal is read from the start. Switches."""
        if self._follower is not None:
            self._follower.connection.close()
            self.queue.discard()
            self.queue.broker.jobs.clear()  # jobs that refer to each other are not collected: see core.gc_untrack
            self.queue.broker.tubes.clear()  # frozen objects are not collected: see runtime.gc_tuning
            self._has_garbage = True
        self.queue = self._make(Rows(self.lease), self.clock)
        self._follower = Follower(
            self.lease, Recovery(self.queue.broker.tube, self.queue.broker.jobs, ids=self.queue.broker.ids)
        )
        self._read_at = None

    def _read(self) -> LeaseState:
        """Read batches until there are no more; return the state of the lease after the last one. Switches."""
        follower = self._follower
        assert follower is not None
        while True:
            began = time.monotonic()
            rows, state = run_in_thread(lambda: (follower.fetch(), self.lease.read_state()))
            for _ in follower.replay_slices(rows):
                yield_to_loop()
            self._drop_idle_tubes(follower.recovery)
            if len(rows) < MAX_FETCH_ROWS and _bytes_of(rows) < MAX_FETCH_BYTES:
                self._read_at = began
                break
            yield_to_loop()
        if self._has_garbage:  # cyclic garbage of an earlier read would be frozen with the rest
            self._has_garbage = False
            gc.collect()
        return state

    def _drop_idle_tubes(self, recovery: Recovery) -> None:
        """Drop tubes without jobs if there are many: the leader drops them too, but does not record it."""
        tubes = self.queue.broker.tubes
        if len(tubes) > MIN_IDLE_TUBES + 2 * len(recovery.jobs):
            used = {job.tube.name for job in recovery.jobs.values()}
            recovery.forget_tubes([name for name in tubes if name not in used])
            for name in [name for name in tubes if name not in used and name != b"default"]:
                del tubes[name]

    def _take_over(self, state: LeaseState) -> Leadership | None:
        """Take leadership, and read what the previous leader added; return None if *state* is outdated. Switches."""
        taken_at = boot_time()
        epoch = run_in_thread(self.lease.acquire, state)
        if epoch is None:
            return None
        self.leadership = Leadership(self.lease, epoch, taken_at, self._outage_wait)
        gevent.spawn(self._report, self.lease.remove_standby)
        while True:
            try:
                self._read()
                assert self._follower is not None
                run_in_thread(self._follower.finish, epoch)
                break
            except PositionLost:
                self._begin()
            except DatabaseUnavailable:
                if self._is_stopping():
                    raise
                gevent.sleep(DATABASE_RETRY_INTERVAL)  # until the lease ends
        queue, recovery = self.queue, self._follower.recovery
        for damage in recovery.damage:
            log.warning("journal: %s", damage)
        refuse_unfit(recovery, self._is_strict)
        queue.rows.begin(epoch)
        now = self.clock()
        for _ in resume_slices(recovery, queue.broker, queue.journal, now, ends_remote=self._seats is None):
            yield_to_loop()
        for _ in restoring.restore_slices(queue.broker, recovery.next_id, now, recovery.reservations):
            yield_to_loop()
        self._follower.connection.close()
        return self.leadership

    def _behind(self) -> float | None:
        return None if self._read_at is None else time.monotonic() - self._read_at

    def _note_database_error(self, error: str) -> None:
        if not self._database_error:
            log.error("standby: %s; retrying until the database answers", error)
        self._database_error = error

    def _note_recovery(self) -> None:
        if self._database_error:
            log.info("standby: the database answers again")
        self._database_error = ""


class ProcessLifetime:
    """One execution of the program, first as a standby and then as the leader, until it exits or is executed again.

    stopping    set when the server must stop, for whatever reason.
    is_exiting  whether the process exits when it has stopped; if not, it executes its program again.
    on_drain    drains the server; set when this server leads.
    on_lease    has the server serve clients for as many seconds as the lease lasts; set if it can be renewed late.
    """

    def __init__(self, candidate: Candidate[Any], has_parent: bool = False) -> None:
        """*has_parent*: whether a parent starts this process again when it ends."""
        self._has_parent: bool = has_parent
        self.stopping: Event = Event()
        self.is_exiting: bool = False
        self.on_drain: Callable[[], None] = _log_ignored_drain
        self.on_lease: Callable[[float], None] | None = None
        self._is_over: bool = False
        self._candidate: Candidate[Any] = candidate
        self._inherited: list[int] = [os.dup(fd) for fd in _inherited_fds()]  # a server that stops closes the originals

    def start(self) -> None:
        """Begin to watch the connections to the database, and the leadership. Does not switch."""
        Service("leadership", self._watch).start()
        before_abort(self._candidate.lease.release)

    def stand_by(self) -> bool:
        """Stand by until this server leads, and return True; return False if it must stop first. Switches."""
        try:
            leadership = self._candidate.run(self.stopping)
        except OSError as error:
            self._abort(str(error))
        if leadership is None:
            return False
        jobs = len(self._candidate.queue.broker.jobs)
        log.info("active: epoch %d, %d jobs", leadership.epoch, jobs)
        return True

    def drain(self) -> None:
        """Refuse puts from now on, if this server leads. Does not switch."""
        self.on_drain()

    def request_exit(self) -> None:
        """Make the server stop gracefully, and then the process exit. Does not switch."""
        self.is_exiting = True
        self.stopping.set()

    def release_leadership(self) -> None:
        """Give up leadership, after all changes are committed and all clients are disconnected. Switches."""
        leadership, lease = self._candidate.leadership, self._candidate.lease
        assert leadership is not None
        leadership.stop()
        self._candidate.leadership = None
        try:
            run_in_thread(lease.release)
        except OSError as error:
            log.warning("cannot release leadership: %s; a standby takes over when the lease ends", error)

    def execute_again(self) -> NoReturn:
        """Execute the program from the start, under the same process id: all connections and all state are dropped.

        With a parent, end; the parent starts the process again.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        if self._has_parent:
            os._exit(EXIT_OK)
        for fd, kept in zip(_inherited_fds(), self._inherited, strict=True):
            os.dup2(kept, fd)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # pending until the new program handles them
        # Pass os.environ: hide_secrets has overwritten the secrets in the process's own environment.
        try:
            environ = dict(os.environ) | {PREVIOUS_HOLDER: str(self._candidate.lease.holder_id)}
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)  # noqa: S606  the same command
        except OSError as error:
            log.critical("cannot execute %s again: %s; the server exits", sys.executable, error.strerror)
            os._exit(EXIT_JOURNAL)

    def _watch(self) -> NoReturn:
        """Cut connections with overdue replies, detect lost leadership, and start a requested handover."""
        while True:
            gevent.sleep(WATCH_INTERVAL)
            leadership = self._candidate.leadership
            is_leaving = self.is_exiting and leadership is None
            for connection in self._candidate.connections:
                connection.break_if_overdue(EXIT_TIMEOUT if is_leaving else inf)
            if leadership is None:
                continue
            if self.stopping.is_set():
                leadership.patience = 0.0
            if reason := leadership.why_lost() or self._candidate.queue.rows.lost:
                self._abort(reason)
            self._serve(leadership)
            if leadership.is_handover_requested and not self.stopping.is_set():
                log.info("handing over: finishing commands and requests, then a standby takes over")
                self.stopping.set()

    def _serve(self, leadership: Leadership) -> None:
        """Serve clients until the lease ends, and log that it has ended or is renewed."""
        remaining = leadership.remaining
        if self.on_lease is not None:
            self.on_lease(remaining)
        if (remaining < 0) == self._is_over:
            return
        self._is_over = remaining < 0
        if self._is_over:
            reason = leadership.renewal_error or STOPPED
            log.error("the lease is over: %s; commands wait until it is renewed", reason)
        else:
            log.info("the lease is renewed, and no other server has led; commands are served")

    def note_rival(self, process: str) -> None:
        """Give up if the lease has ended and *process* leads the shard of this server. Does not switch."""
        leadership = self._candidate.leadership
        if leadership is not None and leadership.remaining < 0:
            self._abort(f"process {process} leads now")

    def note_forgotten(self) -> NoReturn:
        """Drop everything, since the other servers have counted this one as dead. Does not switch."""
        log.error("the other servers have counted this one as dead, and have released its clients' jobs; dropping them")
        self._end()

    def _abort(self, reason: str) -> NoReturn:
        """Drop everything at once, since another server may lead."""
        log.error("lost leadership: %s; dropping all clients", reason)
        self._end()

    def _end(self) -> NoReturn:
        """Exit, or execute the program again."""
        if self.is_exiting:
            log.error("journal: stopped with changes that are not committed; none of them was acknowledged")
            os._exit(EXIT_OK)
        self.execute_again()


def _inherited_fds() -> range:
    """Return the file descriptors of the sockets that systemd has passed (see net.listeners)."""
    is_ours = os.environ.get("LISTEN_PID") == str(os.getpid())
    return range(FIRST_INHERITED_FD, FIRST_INHERITED_FD + int(os.environ.get("LISTEN_FDS", "0") if is_ours else 0))


def _log_ignored_drain() -> None:
    log.info("SIGUSR1 is ignored: a standby has nothing to drain")


def make_lease(options: Options, where: str, number: int | None = None) -> LeaderLease:
    """Return the lease of the journal in *options* for a server that listens at *where*; raise StartError.

    *number*: number of the server among those that listen there, from 0; None if it is the only one.
    """
    assert options.journal is not None
    conninfo = conninfo_of(options.journal, options.label_of("journal"))
    name = "".join([char if char.isprintable() else "?" for char in _server_name(where)])
    name += f"-{number + 1}" if number is not None else ""
    return LeaderLease(
        conninfo, options.journal_name, name, options.lease_ns / SECOND, os.environ.pop(PREVIOUS_HOLDER, "")
    )


def _server_name(where: str) -> str:
    """Return the name of a server that listens at *where*: with the host name for a wildcard or a Unix socket."""
    host, _, port = where.rpartition(":")
    hostname = socket.gethostname()
    if host in ("0.0.0.0", "[::]"):  # noqa: S104
        return f"{hostname}:{port}"
    return f"{hostname}:{where}" if host == "unix" else where


# The `handover` command


def hand_over(options: Options) -> int:
    """Make the active server of the journal in *options* hand over to a standby; return the exit code.

    Raise StartError if there is no active server or no standby, or if the handover takes too long.
    """
    lease = make_lease(options, "handover")
    try:
        if not lease.find() or (before := lease.read_state()).is_free:
            message = f"handover: no server is active on the journal {options.journal_name}"
            raise StartError(f"{message}; `cluster move` moves a shard of a queue with several", EXIT_JOURNAL)
        if not any(standby.behind < options.lease_ns / SECOND for standby in lease.standbys()):
            raise StartError("handover: no standby is up to date, so none can take over", EXIT_JOURNAL)
        lease.request_handover()
        until = time.monotonic() + HANDOVER_TIMEOUT
        while (now := lease.read_state()).is_handing_over or now.is_free:
            if time.monotonic() > until:
                message = f"handover: {before.leader} has not handed over within {HANDOVER_TIMEOUT} s"
                raise StartError(message, EXIT_JOURNAL)
            time.sleep(DATABASE_RETRY_INTERVAL)
    except OSError as error:
        raise StartError(f"handover: {error}", EXIT_JOURNAL) from error
    finally:
        lease.close()
    print(f"{before.leader} has handed over to {now.leader}")
    return EXIT_OK


def _bytes_of(rows: list[Row]) -> int:
    return sum([len(row[3]) for row in rows])
