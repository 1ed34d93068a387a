"""Leader election: one server leads, the standbys follow its journal, and one of them takes over when its lease ends.

The lease is a row of the database, and its end is a time of the database's clock. The leader renews it in a native
thread, so that long work in the event loop does not cost it the lead. It gives up when the lease has ended by its own
clock, which advances while the process or the machine is suspended. The lease alone does not prevent two servers from
acknowledging changes: the epoch does, see journal.postgresql.

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
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

import gevent
from gevent.event import Event

from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.config.options import Options
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import SECOND
from greenstalk_server.journal.postgresql.connection import (
    RETRY_INTERVAL,
    DatabaseConnection,
    DatabaseUnavailable,
    NotLeader,
    Row,
    conninfo_of,
)
from greenstalk_server.journal.postgresql.follower import MAX_FETCH_BYTES, MAX_FETCH_ROWS, Follower, LostTrack
from greenstalk_server.journal.postgresql.lease import LeaderLease, Standing
from greenstalk_server.journal.postgresql.rows import Rows
from greenstalk_server.journal.postgresql.writer import SharedBinlog
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.startup import go_on, refuse_unfit
from greenstalk_server.runtime.clock import Clock, steady_clock
from greenstalk_server.runtime.exit_codes import EXIT_BINLOG, EXIT_OK, StartError
from greenstalk_server.runtime.process import FIRST_INHERITED_FD
from greenstalk_server.runtime.scheduling import YIELD_DELAY
from greenstalk_server.runtime.threads import run_in_thread

log = logging.getLogger(__name__)

POLL_INTERVAL: Final = 0.1
"""Seconds between two reads of the journal by a standby."""

WATCH_INTERVAL: Final = 0.1
"""Seconds between two checks for a lost lead, and for overdue replies of the database."""

CLOCK_DRIFT: Final = 0.05
"""Share of the lease by which the leader's clock may be slower than the database's."""

UNANSWERED_AFTER: Final = 1.0
"""Seconds without a reply of the database after which a standby reports it."""

TAKEOVER_DELAY: Final = 0.1
"""Seconds after the end of an unchanged lease, by the standby's own clock, after which the standby may take over even
if the lease has not ended by the database's clock, which may have been set back."""

PREVIOUS_HOLDER: Final = "_GREENSTALK_FORMER_LIFE"
"""The environment variable with which a process that executes itself passes on the identity of its lead's holder."""

WARNING_SHARE: Final = 0.25
"""Share of the lease that is left when an active server reports that it could not renew it."""

HUNG_AFTER: Final = 60.0
"""Seconds without an iteration of the event loop after which the lease is no longer renewed."""

MIN_IDLE_TUBES: Final = 10_000
"""Tubes without jobs that a standby keeps before it drops any."""

EXIT_TIMEOUT: Final = 1.0
"""Seconds that an exiting standby waits for a reply of the database."""

HANDOVER_TIMEOUT: Final = 30
"""Seconds that `handover` waits for the standby to lead."""


class Queue(Protocol):
    """The broker and journal that a standby fills and a leader serves."""

    broker: Broker
    binlog: SharedBinlog
    rows: Rows

    def prepare(self, status: Callable[[], ClusterStatus]) -> None:
        """Do in advance, once, what would delay a takeover."""


Q = TypeVar("Q", bound=Queue)


class Lead:
    """The lead of a journal. One thread renews its lease until `stop`; another one reads the list of standbys.

    lost            why the lead is lost; empty while it is not known to be lost.
    trouble         why the last renewal failed; empty if it succeeded.
    wants_handover  whether an operator has requested a handover.
    """

    def __init__(self, lease: LeaderLease, epoch: int, taken_at: float) -> None:
        """*taken_at* is the time of the request for the lead, by `boot_time`."""
        self.epoch: int = epoch
        self.lost: str = ""
        self.trouble: str = ""
        self.wants_handover: bool = False
        self.standbys: tuple[tuple[str, float], ...] = ()
        self.lease: LeaderLease = lease
        self._expires_at: float = taken_at + lease.duration * (1 - CLOCK_DRIFT)
        self._checked_at: float = time.monotonic()
        self._stopped: threading.Event = threading.Event()
        for name, run in (("lease", self._renew_until_stopped), ("standbys", self._read_standbys_until_stopped)):
            threading.Thread(target=run, name=name, daemon=True).start()

    @property
    def warning(self) -> str:
        """Why the lease is about to end; empty while there is time to renew it.

        One failed renewal is no reason: a load balancer that sees a warning closes all connections.
        """
        return self.trouble if boot_time() > self._expires_at - self.lease.duration * WARNING_SHARE else ""

    def why_lost(self) -> str:
        """Return why the lead is lost, empty if it is not. Must be called at least every HUNG_AFTER seconds."""
        self._checked_at = time.monotonic()
        if not self.lost and boot_time() > self._expires_at:
            self.lost = self.trouble or "this process was stopped for longer than its lease"
        return self.lost

    def stop(self) -> None:
        """Stop renewing the lease."""
        self._stopped.set()

    def _renew_until_stopped(self) -> None:
        pause = 0.0
        while not self._stopped.wait(RETRY_INTERVAL if self.trouble else pause):
            pause = self.lease.heartbeat_interval
            if time.monotonic() > self._checked_at + HUNG_AFTER:
                continue
            requested_at = boot_time()
            try:
                self.wants_handover = self.lease.renew()
                self._expires_at = requested_at + self.lease.duration * (1 - CLOCK_DRIFT)
                self.trouble = ""
            except NotLeader as error:
                self.lost = str(error)
                return
            except OSError as error:
                self.trouble = str(error)

    def _read_standbys_until_stopped(self) -> None:
        while not self._stopped.wait(self.lease.heartbeat_interval):
            with suppress(OSError):
                self.standbys = tuple([(standby.name, standby.behind) for standby in self.lease.standbys()])


class Candidate(Generic[Q]):
    """A server that follows the journal as a standby until it can take the lead.

    queue       the jobs that it has read, or serves.
    clock       follows the database's clock, so that machines with different clocks agree on when a delay ends.
    lead        None while this server is a standby.
    """

    def __init__(self, lease: LeaderLease, make: Callable[[Rows, Clock], Q], is_strict: bool) -> None:
        """*make* returns an empty queue."""
        self.queue: Q
        self.clock: Clock
        self.lead: Lead | None = None
        self.lease: LeaderLease = lease
        self._make: Callable[[Rows, Clock], Q] = make
        self._is_strict: bool = is_strict
        self._follower: Follower | None = None
        self._standing: Standing | None = None
        self._trouble: str = ""
        self._read_at: float | None = None
        self._reported_at: float = 0.0
        self._reporter: gevent.Greenlet | None = None
        self._is_stopping: Callable[[], bool] = bool
        self._last_term: tuple[int, int] | None = None
        self._lease_ends_at: float = 0.0
        self._is_following: bool = False
        self._has_garbage: bool = False

    @property
    def links(self) -> list[DatabaseConnection]:
        """Every connection to the database."""
        links = [self.lease.connection, self.lease.background]
        if self._follower is not None:
            links += [self._follower.connection, self.queue.rows.connection]
        return links

    def status(self) -> ClusterStatus:
        """Return the status of this server."""
        lease, standing, lead = self.lease, self._standing, self.lead
        if lead is not None:
            return ClusterStatus(
                True, lease.journal_name, lease.name, lease.name, lead.epoch, 0.0, lead.warning, lead.standbys
            )
        return ClusterStatus(
            False,
            lease.journal_name,
            lease.name,
            standing.leader if standing is not None and not standing.is_free else "",
            standing.epoch if standing is not None else 0,
            self._behind(),
            self._trouble or self._unanswered(),
        )

    def _unanswered(self) -> str:
        """Return for how long the database has not answered; empty if not longer than UNANSWERED_AFTER."""
        waits = max([link.waits for link in self.links if link is not self.lease.background])
        return f"PostgreSQL has not answered for {waits:.0f} s" if waits > UNANSWERED_AFTER else ""

    def run(self, stopping: Event) -> Lead | None:
        """Follow until this server leads with all jobs in its broker; return None if *stopping* is set. Switches.

        Raise StartError if the journal was written by a later version, and OSError if the database cannot be read in
        the middle of a takeover, after which the process must execute its program again.
        """
        self._is_stopping = stopping.is_set
        while not stopping.is_set():
            try:
                lead = self._step()
            except OSError as error:
                if self.lead is not None:
                    raise
                self._note_trouble(str(error))
            except LostTrack:
                log.info("standby: segments were removed before they were read; reading the journal from the start")
                self._begin()
            else:
                if lead is not None:
                    return lead
            stopping.wait(POLL_INTERVAL)
        if self._follower is not None:
            with suppress(OSError):
                run_in_thread(self.lease.leave)
        return None

    def _step(self) -> Lead | None:
        """Read new batches, and take the lead if no server has it. Switches."""
        if self._follower is None:
            self.clock = steady_clock(run_in_thread(self.lease.open))
            if risk := run_in_thread(self.lease.risk):
                log.warning("PostgreSQL: %s", risk)
            self._begin()
        self._read()
        assert self._follower is not None
        refuse_unfit(self._follower.recovery, is_strict=False)  # before it leads a journal that it cannot serve
        self._standing = run_in_thread(self.lease.look)
        self._note_recovery()
        if not self.may_lead(self._standing):
            if not self._is_following:
                log.info("standby: %s is active", self._standing.leader)
                gc.enable()  # the first read is complete: see gc_tuning.pause_gc
            self._is_following = True
            if time.monotonic() > self._reported_at + self.lease.heartbeat_interval and not self._reporter:
                self._reported_at = time.monotonic()
                self._reporter = gevent.spawn(self._report, lambda: self.lease.follow(self._behind() or 0.0))
            self.queue.prepare(self.status)
            return None
        return self._take_over(self._standing)

    def may_lead(self, standing: Standing) -> bool:
        """Return whether the lead is free, or its lease was not renewed for its whole length.

        The length is measured by this machine's clock: the database's may have been set back, or be another machine's.
        """
        term = standing.epoch, standing.lease_until
        if term != self._last_term:
            self._last_term, self._lease_ends_at = term, time.monotonic() + standing.remaining + TAKEOVER_DELAY
        return standing.is_free or standing.is_mine or time.monotonic() > self._lease_ends_at

    def _report(self, report: Callable[[], None]) -> None:
        """Call *report*, which tells other servers whether this one follows. A failure has no consequence. Switches."""
        with suppress(OSError):
            run_in_thread(report)

    def _begin(self) -> None:
        """Drop everything that was read, to read the journal from the start."""
        if self._follower is not None:
            self._follower.connection.close()
            self.queue.broker.jobs.clear()  # jobs that refer to each other are not collected: see core.gc_untrack
            self._has_garbage = True
        self.queue = self._make(Rows(self.lease), self.clock)
        self._follower = Follower(self.lease, Recovery(self.queue.broker.tube, self.queue.broker.jobs))
        self._read_at = None

    def _read(self) -> None:
        """Read batches until there are no more. Switches."""
        follower = self._follower
        assert follower is not None
        while True:
            began = time.monotonic()
            rows = run_in_thread(follower.fetch)
            follower.replay(rows)
            self._drop_idle_tubes(follower.recovery)
            if len(rows) < MAX_FETCH_ROWS and _bytes_of(rows) < MAX_FETCH_BYTES:
                self._read_at = began
                break
            gevent.sleep(YIELD_DELAY)
        if self._has_garbage:  # cyclic garbage of an earlier read would be frozen with the rest
            self._has_garbage = False
            gc.collect()

    def _drop_idle_tubes(self, recovery: Recovery) -> None:
        """Drop tubes without jobs if there are many: the leader drops them too, but does not record it."""
        tubes = self.queue.broker.tubes
        if len(tubes) > MIN_IDLE_TUBES + 2 * len(recovery.jobs):
            used = {job.tube.name for job in recovery.jobs.values()}
            recovery.forget_tubes([name for name in tubes if name not in used])
            for name in [name for name in tubes if name not in used and name != b"default"]:
                del tubes[name]

    def _take_over(self, standing: Standing) -> Lead | None:
        """Take the lead, and read what the previous leader has added; None if *standing* is outdated. Switches."""
        taken_at = boot_time()
        epoch = run_in_thread(self.lease.take, standing)
        if epoch is None:
            return None
        self.lead = Lead(self.lease, epoch, taken_at)
        gevent.spawn(self._report, self.lease.leave)
        while True:
            try:
                self._read()
                assert self._follower is not None
                run_in_thread(self._follower.finish, epoch)
                break
            except LostTrack:
                self._begin()
            except DatabaseUnavailable:
                if self._is_stopping():
                    raise
                gevent.sleep(RETRY_INTERVAL)  # until the lease ends
        queue, recovery = self.queue, self._follower.recovery
        for damage in recovery.damage:
            log.warning("journal: %s", damage)
        refuse_unfit(recovery, self._is_strict)
        queue.rows.begin(epoch)
        go_on(recovery, queue.broker, queue.binlog, self.clock())
        queue.broker.restore(recovery.next_id)
        self._follower.connection.close()
        return self.lead

    def _behind(self) -> float | None:
        return None if self._read_at is None else time.monotonic() - self._read_at

    def _note_trouble(self, trouble: str) -> None:
        if not self._trouble:
            log.error("standby: %s; retrying until the database answers", trouble)
        self._trouble = trouble

    def _note_recovery(self) -> None:
        if self._trouble:
            log.info("standby: the database answers again")
        self._trouble = ""


class ProcessLifetime:
    """The time from the start of the program to its end or its next execution: as a standby, then as the leader.

    stopping    set when the server must stop, for whatever reason.
    is_exiting  whether the process must exit; if not, it executes its program again.
    on_drain    drains the server; set once there is one.
    """

    def __init__(self, candidate: Candidate[Any]) -> None:
        self.stopping: Event = Event()
        self.is_exiting: bool = False
        self.on_drain: Callable[[], None] = _note_useless_drain
        self._candidate: Candidate[Any] = candidate
        self._inherited: list[int] = [os.dup(fd) for fd in _inherited_fds()]  # a server that stops closes the originals

    def stand_by(self) -> bool:
        """Stand by until this server leads, and return True; return False if it must stop before. Switches."""
        gevent.spawn(self._watch)
        try:
            lead = self._candidate.run(self.stopping)
        except OSError as error:
            self._abort(str(error))
        if lead is None:
            return False
        jobs = len(self._candidate.queue.broker.jobs)
        log.info("active: epoch %d, %d jobs", lead.epoch, jobs)
        return True

    def drain(self) -> None:
        """Refuse puts from now on, if this server leads. Does not switch."""
        self.on_drain()

    def request_exit(self) -> None:
        """Make the server stop in order, and the process exit. Does not switch."""
        self.is_exiting = True
        self.stopping.set()

    def release_lead(self) -> None:
        """Give up the lead, after all changes are committed and all clients are disconnected. Switches."""
        lead, lease = self._candidate.lead, self._candidate.lease
        assert lead is not None
        lead.stop()
        self._candidate.lead = None
        try:
            run_in_thread(lease.release)
        except OSError as error:
            log.warning("cannot release the lead: %s; a standby takes over when the lease ends", error)

    def execute_again(self) -> NoReturn:
        """Execute the program from the start, under the same process id: all connections and all state are dropped."""
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, kept in zip(_inherited_fds(), self._inherited, strict=True):
            os.dup2(kept, fd)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # pending until the new program handles them
        # os.environ, since hide_secrets has overwritten the secrets in the process's own environment.
        try:
            environ = dict(os.environ) | {PREVIOUS_HOLDER: str(self._candidate.lease.me)}
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)  # noqa: S606  the very command
        except OSError as error:
            log.critical("cannot execute %s again: %s; the server exits", sys.executable, error.strerror)
            os._exit(EXIT_BINLOG)

    def _watch(self) -> NoReturn:
        """Cut connections with overdue replies, notice the loss of the lead, and start a requested handover."""
        while True:
            gevent.sleep(WATCH_INTERVAL)
            lead = self._candidate.lead
            is_leaving = self.is_exiting and lead is None
            for link in self._candidate.links:
                link.cut_if_late(EXIT_TIMEOUT if is_leaving else inf)
            if lead is None:
                continue
            if reason := lead.why_lost() or self._candidate.queue.rows.lost:
                self._abort(reason)
            if lead.wants_handover and not self.stopping.is_set():
                log.info("handing over: finishing commands and requests, then a standby takes the lead")
                self.stopping.set()

    def _abort(self, reason: str) -> NoReturn:
        """Drop everything at once, since another server may lead: exit, or execute the program again."""
        log.error("lost leadership: %s; dropping all clients", reason)
        if self.is_exiting:
            log.error("journal: stopped with changes that are not committed; none of them was acknowledged")
            os._exit(EXIT_OK)
        self.execute_again()


def _inherited_fds() -> range:
    """Return the file descriptors of the sockets that systemd has passed (see net.listeners)."""
    is_ours = os.environ.get("LISTEN_PID") == str(os.getpid())
    return range(FIRST_INHERITED_FD, FIRST_INHERITED_FD + int(os.environ.get("LISTEN_FDS", "0") if is_ours else 0))


def _note_useless_drain() -> None:
    log.info("SIGUSR1 is ignored: a standby has nothing to drain")


def make_lease(options: Options, where: str) -> LeaderLease:
    """Return the lease of the journal in *options* for a server that listens at *where*; raise StartError."""
    assert options.journal is not None
    conninfo = conninfo_of(options.journal, options.label_of("journal"))
    name = "".join([char if char.isprintable() else "?" for char in _server_name(where)])
    return LeaderLease(
        conninfo, options.journal_name, name, options.lease_ns / SECOND, os.environ.pop(PREVIOUS_HOLDER, "")
    )


def _server_name(where: str) -> str:
    """Return the name that other servers show for a server that listens at *where*: with a host that they can reach."""
    host, _, port = where.rpartition(":")
    hostname = socket.gethostname()
    if host in ("0.0.0.0", "[::]"):  # noqa: S104
        return f"{hostname}:{port}"
    return f"{hostname}:{where}" if host == "unix" else where


# The command


def hand_over(options: Options) -> int:
    """Make the active server of the journal in *options* hand over to a standby; return the exit code.

    Raise StartError if there is no active server or no standby, or if the handover takes too long.
    """
    lease = make_lease(options, "handover")
    try:
        if not lease.find() or (before := lease.look()).is_free:
            raise StartError(f"handover: no server is active on the journal {options.journal_name}", EXIT_BINLOG)
        if not any(standby.behind < options.lease_ns / SECOND for standby in lease.standbys()):
            raise StartError("handover: no standby is up to date, so none can take over", EXIT_BINLOG)
        lease.ask_for_handover()
        until = time.monotonic() + HANDOVER_TIMEOUT
        while (now := lease.look()).is_handing_over or now.is_free:
            if time.monotonic() > until:
                raise StartError(f"handover: {before.leader} has not handed over in {HANDOVER_TIMEOUT} s", EXIT_BINLOG)
            time.sleep(RETRY_INTERVAL)
    except OSError as error:
        raise StartError(f"handover: {error}", EXIT_BINLOG) from error
    finally:
        lease.close()
    print(f"{before.leader} has handed over to {now.leader}")
    return EXIT_OK


def boot_time() -> float:
    """Return seconds by a clock that also advances while the process is stopped or the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _bytes_of(rows: list[Row]) -> int:
    return sum([len(row[3]) for row in rows])
