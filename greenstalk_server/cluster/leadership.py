"""Who serves: one server leads, the others follow its journal warm, and one of them takes over when its lease ends.

The lease is in the database, by the database's clock. The leader renews it, in a native thread, so that long work in
the loop does not cost it the lead; and gives up when, by its own clock, the lease is over. That clock goes on while the
process or the machine is stopped. What makes it impossible that two servers acknowledge is not the lease, though, but
the epoch: see journal.postgresql.

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
from greenstalk_server.journal.postgresql.database import (
    FETCH_BYTES,
    FETCH_ROWS,
    Follower,
    LostTrack,
    Rows,
    Seat,
    SharedBinlog,
    Standing,
)
from greenstalk_server.journal.postgresql.link import RETRY_EVERY, Away, Link, NotLeader, Row, conninfo_of
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.startup import go_on, refuse_unfit
from greenstalk_server.protocol.session import TURN
from greenstalk_server.runtime.clock import Clock, steady_clock
from greenstalk_server.runtime.exit_codes import EXIT_BINLOG, EXIT_OK, StartError
from greenstalk_server.runtime.process import FIRST_INHERITED_FD
from greenstalk_server.runtime.threads import run_in_thread

log = logging.getLogger(__name__)

POLL_EVERY: Final = 0.1
"""Seconds between two looks of a standby."""

WATCH_EVERY: Final = 0.1
"""Seconds between two looks whether the lead is lost, or an answer of the database overdue."""

MARGIN: Final = 0.05
"""Share of the lease by which the leader's clock may go slower than the database's."""

UNANSWERED_AFTER: Final = 1.0
"""Seconds without an answer of the database after which a standby says so."""

CLOCK_MARGIN: Final = 0.1
"""Seconds after which a standby counts an unchanged lease as over by its own clock, though the database's clock, which
may have been set back, says that it is not."""

FORMER_LIFE: Final = "_GREENSTALK_FORMER_LIFE"
"""The environment variable that tells a process, after exec, as which holder its connections are known."""

WARNING_SHARE: Final = 0.25
"""Share of the lease that is left when an active server reports that it could not renew it."""

HUNG_AFTER: Final = 60.0
"""Seconds after which a process whose loop does not come round gives its lead away."""

IDLE_TUBES: Final = 10_000
"""Tubes without jobs that a standby keeps, at least, before it forgets them."""

LEAVING_PATIENCE: Final = 1.0
"""Seconds that a standby which is to end waits for an answer."""

HANDOVER_PATIENCE: Final = 30
"""Seconds."""


class Queue(Protocol):
    """What a leader serves."""

    broker: Broker
    binlog: SharedBinlog
    rows: Rows

    def prepare(self, role: Callable[[], ClusterStatus]) -> None:
        """Do what takes long and can be done before; once."""


Q = TypeVar("Q", bound=Queue)


class Lead:
    """The lead, once it is taken: renewed by a thread of its own until `stop`. Another thread looks who follows.

    lost            why it is lost; empty while it is not known to be.
    trouble         why it could not be renewed the last time; empty if it could.
    wants_handover  somebody has asked for it to be handed over.
    """

    def __init__(self, seat: Seat, epoch: int, taken_at: float) -> None:
        """*taken_at* is when it was asked for, by `lasting_time`."""
        self.epoch: int = epoch
        self.lost: str = ""
        self.trouble: str = ""
        self.wants_handover: bool = False
        self.standbys: tuple[tuple[str, float], ...] = ()
        self.seat: Seat = seat
        self._until: float = taken_at + seat.lease * (1 - MARGIN)
        self._looked_at: float = time.monotonic()
        self._is_over: threading.Event = threading.Event()
        for name, run in (("lease", self._keep), ("standbys", self._look_round)):
            threading.Thread(target=run, name=name, daemon=True).start()

    @property
    def warning(self) -> str:
        """Why the lease is about to end; empty while there is time to renew it.

        A balancer that hears of it closes all connections, so one renewal that fails is no reason.
        """
        return self.trouble if lasting_time() > self._until - self.seat.lease * WARNING_SHARE else ""

    def why_lost(self) -> str:
        """Why it is lost, empty if it is not; to be asked often."""
        self._looked_at = time.monotonic()
        if not self.lost and lasting_time() > self._until:
            self.lost = self.trouble or "this process was stopped for longer than its lease"
        return self.lost

    def stop(self) -> None:
        """Renew it no more."""
        self._is_over.set()

    def _keep(self) -> None:
        pause = 0.0
        while not self._is_over.wait(RETRY_EVERY if self.trouble else pause):
            pause = self.seat.pulse
            if time.monotonic() > self._looked_at + HUNG_AFTER:
                continue
            asked_at = lasting_time()
            try:
                self.wants_handover = self.seat.renew()
                self._until = asked_at + self.seat.lease * (1 - MARGIN)
                self.trouble = ""
            except NotLeader as error:
                self.lost = str(error)
                return
            except OSError as error:
                self.trouble = str(error)

    def _look_round(self) -> None:
        while not self._is_over.wait(self.seat.pulse):
            with suppress(OSError):
                self.standbys = tuple([(standby.name, standby.behind) for standby in self.seat.standbys()])


class Candidate(Generic[Q]):
    """This server, on its way from a standby to the leader.

    queue       what it has read, or serves.
    clock       the database's, so that machines whose clocks differ agree on when a delay ends.
    lead        once it leads.
    """

    def __init__(self, seat: Seat, make: Callable[[Rows, Clock], Q], is_strict: bool) -> None:
        """*make* gives a queue, new and empty."""
        self.queue: Q
        self.clock: Clock
        self.lead: Lead | None = None
        self.seat: Seat = seat
        self._make: Callable[[Rows, Clock], Q] = make
        self._is_strict: bool = is_strict
        self._follower: Follower | None = None
        self._standing: Standing | None = None
        self._trouble: str = ""
        self._read_at: float | None = None
        self._noted_at: float = 0.0
        self._note: gevent.Greenlet | None = None
        self._is_stopping: Callable[[], bool] = bool
        self._seen: tuple[int, int] | None = None
        self._over_at: float = 0.0
        self._is_following: bool = False
        self._has_litter: bool = False

    @property
    def links(self) -> list[Link]:
        """Every connection to the database."""
        found = [self.seat.link, self.seat.side]
        if self._follower is not None:
            found += [self._follower.link, self.queue.rows.link]
        return found

    def status(self) -> ClusterStatus:
        """How it stands."""
        seat, standing, lead = self.seat, self._standing, self.lead
        if lead is not None:
            return ClusterStatus(
                True, seat.journal_name, seat.name, seat.name, lead.epoch, 0.0, lead.warning, lead.standbys
            )
        return ClusterStatus(
            False,
            seat.journal_name,
            seat.name,
            standing.leader if standing is not None and not standing.is_free else "",
            standing.epoch if standing is not None else 0,
            self._behind(),
            self._trouble or self._unanswered(),
        )

    def _unanswered(self) -> str:
        """Return how long the database has not answered, empty if that is not worth a word."""
        waits = max([link.waits for link in self.links if link is not self.seat.side])
        return f"PostgreSQL has not answered for {waits:.0f} s" if waits > UNANSWERED_AFTER else ""

    def run(self, stopping: Event) -> Lead | None:
        """Follow until this server leads, with all jobs in its broker; None if *stopping* is set before. Switches.

        Raise StartError if what is in the database is not for this version; OSError if it refuses to be read in the
        middle of a takeover, after which the process has to execute its program again.
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
                log.info("standby: segments were removed before they were read; all is read from the start")
                self._begin()
            else:
                if lead is not None:
                    return lead
            stopping.wait(POLL_EVERY)
        if self._follower is not None:
            with suppress(OSError):
                run_in_thread(self.seat.leave)
        return None

    def _step(self) -> Lead | None:
        """Read what there is, and lead if nobody does. Switches."""
        if self._follower is None:
            self.clock = steady_clock(run_in_thread(self.seat.open))
            if risk := run_in_thread(self.seat.risk):
                log.warning("PostgreSQL: %s", risk)
            self._begin()
        self._read()
        assert self._follower is not None
        refuse_unfit(self._follower.recovery, is_strict=False)  # before it leads what it cannot serve
        self._standing = run_in_thread(self.seat.look)
        self._note_well()
        if not self.may_lead(self._standing):
            if not self._is_following:
                log.info("standby: %s is active", self._standing.leader)
                gc.enable()  # what was read at first is read: see memory.pause_gc
            self._is_following = True
            if time.monotonic() > self._noted_at + self.seat.pulse and not self._note:
                self._noted_at = time.monotonic()
                self._note = gevent.spawn(self._report, lambda: self.seat.follow(self._behind() or 0.0))
            self.queue.prepare(self.status)
            return None
        return self._take_over(self._standing)

    def may_lead(self, standing: Standing) -> bool:
        """Return whether this server may take the lead: it is free, or the lease has not been renewed for its length.

        The second is by this machine's clock, since the database's may have been set back, or be another machine's.
        """
        seen = standing.epoch, standing.lease_until
        if seen != self._seen:
            self._seen, self._over_at = seen, time.monotonic() + standing.remaining + CLOCK_MARGIN
        return standing.is_free or standing.is_mine or time.monotonic() > self._over_at

    def _report(self, report: Callable[[], None]) -> None:
        """Have the other servers know whether this one follows. Nothing depends on that. Switches."""
        with suppress(OSError):
            run_in_thread(report)

    def _begin(self) -> None:
        """Forget all, to read it from the start."""
        if self._follower is not None:
            self._follower.link.close()
            self.queue.broker.jobs.clear()  # they would hold each other: see untracked
            self._has_litter = True
        self.queue = self._make(Rows(self.seat), self.clock)
        self._follower = Follower(self.seat, Recovery(self.queue.broker.tube, self.queue.broker.jobs))
        self._read_at = None

    def _read(self) -> None:
        """Read until there is no more. Switches."""
        follower = self._follower
        assert follower is not None
        while True:
            asked_at = time.monotonic()
            rows = run_in_thread(follower.fetch)
            follower.replay(rows)
            self._forget_idle_tubes(follower.recovery)
            if len(rows) < FETCH_ROWS and _bytes_of(rows) < FETCH_BYTES:
                self._read_at = asked_at
                break
            gevent.sleep(TURN)
        if self._has_litter:  # what was read before, and is in cycles, would be frozen with all else
            self._has_litter = False
            gc.collect()

    def _forget_idle_tubes(self, recovery: Recovery) -> None:
        """Forget tubes whose jobs are gone, if they are many: a leader drops them, and nobody tells of it."""
        tubes = self.queue.broker.tubes
        if len(tubes) > IDLE_TUBES + 2 * len(recovery.jobs):
            used = {job.tube.name for job in recovery.jobs.values()}
            recovery.forget_tubes([name for name in tubes if name not in used])
            for name in [name for name in tubes if name not in used and name != b"default"]:
                del tubes[name]

    def _take_over(self, standing: Standing) -> Lead | None:
        """Lead, and take in all that the leader before has added; None if something has changed since *standing*.

        Switches.
        """
        taken_at = lasting_time()
        epoch = run_in_thread(self.seat.take, standing)
        if epoch is None:
            return None
        self.lead = Lead(self.seat, epoch, taken_at)
        gevent.spawn(self._report, self.seat.leave)
        while True:
            try:
                self._read()
                assert self._follower is not None
                run_in_thread(self._follower.finish, epoch)
                break
            except LostTrack:
                self._begin()
            except Away:
                if self._is_stopping():
                    raise
                gevent.sleep(RETRY_EVERY)  # if that lasts, the lead is lost
        queue, recovery = self.queue, self._follower.recovery
        for damage in recovery.damage:
            log.warning("journal: %s", damage)
        refuse_unfit(recovery, self._is_strict)
        queue.rows.begin(epoch)
        go_on(recovery, queue.broker, queue.binlog, self.clock())
        queue.broker.restore(recovery.next_id)
        self._follower.link.close()
        return self.lead

    def _behind(self) -> float | None:
        return None if self._read_at is None else time.monotonic() - self._read_at

    def _note_trouble(self, trouble: str) -> None:
        if not self._trouble:
            log.error("standby: %s; it is tried again until the database answers", trouble)
        self._trouble = trouble

    def _note_well(self) -> None:
        if self._trouble:
            log.info("standby: the database answers again")
        self._trouble = ""


class Turn:
    """One life of the process: it stands by, leads, and ends or begins anew.

    stopping    set when it is to stop, for whatever reason.
    is_last     somebody has asked the process to end.
    server_drain    what draining is, once there is a server.
    """

    def __init__(self, candidate: Candidate[Any]) -> None:
        self.stopping: Event = Event()
        self.is_last: bool = False
        self.server_drain: Callable[[], None] = _nothing_to_drain
        self._candidate: Candidate[Any] = candidate
        self._inherited: list[int] = [os.dup(fd) for fd in _inherited_fds()]  # a server that stops closes its own

    def begin(self) -> bool:
        """Stand by until this server leads, and return True; or False if it is to end before. Switches."""
        gevent.spawn(self._watch)
        try:
            lead = self._candidate.run(self.stopping)
        except OSError as error:
            self._lose(str(error))
        if lead is None:
            return False
        jobs = len(self._candidate.queue.broker.jobs)
        log.info("active: epoch %d, %d jobs", lead.epoch, jobs)
        return True

    def drain(self) -> None:
        """Refuse puts from now on, if this server leads. Does not switch."""
        self.server_drain()

    def end(self) -> None:
        """Have the process end in order. Does not switch."""
        self.is_last = True
        self.stopping.set()

    def release(self) -> None:
        """Lead no more, once all is committed and all clients are gone. Switches."""
        lead, seat = self._candidate.lead, self._candidate.seat
        assert lead is not None
        lead.stop()
        self._candidate.lead = None
        try:
            run_in_thread(seat.release)
        except OSError as error:
            log.warning("the lead could not be given up, and ends by itself: %s", error)

    def _watch(self) -> NoReturn:
        """See to what must not wait: overdue answers, the end of the lead, and a wish to have it handed over."""
        while True:
            gevent.sleep(WATCH_EVERY)
            lead = self._candidate.lead
            is_leaving = self.is_last and lead is None
            for link in self._candidate.links:
                link.cut_if_late(LEAVING_PATIENCE if is_leaving else inf)
            if lead is None:
                continue
            if reason := lead.why_lost() or self._candidate.queue.rows.lost:
                self._lose(reason)
            if lead.wants_handover and not self.stopping.is_set():
                log.info("handing over: what is in hand is finished, then a standby leads")
                self.stopping.set()

    def _lose(self, reason: str) -> NoReturn:
        """Drop everything at once: another server may lead."""
        log.error("active no more: %s; clients are dropped", reason)
        if self.is_last:
            log.error("journal: stopped with changes that are not committed; none of them was acknowledged")
            os._exit(EXIT_OK)
        self.begin_anew()

    def begin_anew(self) -> NoReturn:
        """Have the process run its program from the start: all connections close, and nothing is remembered."""
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, kept in zip(_inherited_fds(), self._inherited, strict=True):
            os.dup2(kept, fd)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they wait until it can handle them
        # With Python's own copy of the environment, since that of the system has no secrets in it any more.
        try:
            environ = dict(os.environ) | {FORMER_LIFE: str(self._candidate.seat.me)}
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)  # noqa: S606  the very command
        except OSError as error:
            log.critical("the server cannot begin anew, and ends: %s: %s", sys.executable, error.strerror)
            os._exit(EXIT_BINLOG)


def _inherited_fds() -> range:
    """The sockets that systemd has handed over (see listeners)."""
    is_ours = os.environ.get("LISTEN_PID") == str(os.getpid())
    return range(FIRST_INHERITED_FD, FIRST_INHERITED_FD + int(os.environ.get("LISTEN_FDS", "0") if is_ours else 0))


def _nothing_to_drain() -> None:
    log.info("a standby has nothing to drain")


def seat(options: Options, where: str) -> Seat:
    """The lead of the journal that *options* name, for a server that listens at *where*; raise StartError."""
    assert options.journal is not None
    conninfo = conninfo_of(options.journal, options.named("journal"))
    name = "".join([char if char.isprintable() else "?" for char in _name_of_this(where)])
    return Seat(conninfo, options.journal_name, name, options.lease_ns / SECOND, os.environ.pop(FORMER_LIFE, ""))


def _name_of_this(where: str) -> str:
    """What others are told of a server that listens at *where*: an address that means any is of no use to them."""
    host, _, port = where.rpartition(":")
    here = socket.gethostname()
    if host in ("0.0.0.0", "[::]"):  # noqa: S104
        return f"{here}:{port}"
    return f"{here}:{where}" if host == "unix" else where


# The command


def hand_over(options: Options) -> int:
    """Have the active server of the journal in *options* give its lead to a standby; return the exit code.

    Raise StartError if there is nobody to give or to take it, or if it takes too long.
    """
    asking = seat(options, "handover")
    try:
        if not asking.find() or (before := asking.look()).is_free:
            raise StartError(f"handover: no server is active on the journal {options.journal_name}", EXIT_BINLOG)
        if not any(standby.behind < options.lease_ns / SECOND for standby in asking.standbys()):
            raise StartError("handover: no standby is there, and up to date, to take over", EXIT_BINLOG)
        asking.ask_for_handover()
        until = time.monotonic() + HANDOVER_PATIENCE
        while (now := asking.look()).is_handing_over or now.is_free:
            if time.monotonic() > until:
                raise StartError(f"handover: {before.leader} has not handed over in {HANDOVER_PATIENCE} s", EXIT_BINLOG)
            time.sleep(RETRY_EVERY)
    except OSError as error:
        raise StartError(f"handover: {error}", EXIT_BINLOG) from error
    finally:
        asking.close()
    print(f"{before.leader} has handed over to {now.leader}")
    return EXIT_OK


def lasting_time() -> float:
    """Seconds by a clock that also goes on while the process is stopped, or the machine asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _bytes_of(rows: list[Row]) -> int:
    return sum([len(row[3]) for row in rows])
