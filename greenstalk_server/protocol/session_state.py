"""The state of a session that its commands share, and the methods that several commands use.

`Session` cuts the input into commands and adds the state of its input. The functions of `job_commands`,
`reserve_commands`, `tube_commands` and `session_commands` are the commands; they know a session only as this class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.core.operations import connecting
from greenstalk_server.core.tubes.name_list import NameList
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.protocol import replies
from greenstalk_server.protocol.costs import (
    EXAMINE_COST,
    NEW_TUBE_COST,
    OUTPUT_SLICE,
    SHORT_LIST,
    WATCHED_BATCH,
    WATCHED_COST,
    WEIGHTED_COST,
)
from greenstalk_server.protocol.extended_stats import extension
from greenstalk_server.protocol.replies import CRLF
from greenstalk_server.protocol.stats import Snapshot
from greenstalk_server.protocol.streams import BodyStream, NameStream, Stream

Command: TypeAlias = tuple[Any, ...]
"""A parsed command: its Verb, then its arguments, with numbers as int (times in nanoseconds) and names as bytes."""


class SlicedCommand:
    """An unfinished command that takes several slices, because the number of its jobs or tubes has no limit."""

    __slots__ = ()

    def do_slice(self, session: SessionState, broker: Broker, now: int) -> bytes | None:
        """Do the next slice, and add its cost to the session's; return the reply when the work is done, else None."""
        raise NotImplementedError


class SessionState:
    """The state that commands read and change.

    client          the broker's client for the connection.
    is_waiting      parked; `wake` announces that `resume` is due.
    has_more        work is left: call `resume` after `pause` seconds, when other connections have had their turn.
    is_closing      close the connection once the returned bytes are sent.
    is_eof          the peer has closed its side.
    stream          the rest of the last reply, or None; send it before `resume`.
    cost            cost of the current or last slice; see costs.py.
    reserve_cost    cost of a reserve without its job, which depends on the number of watched tubes.
    sliced          the unfinished command, or None.
    awaited         the job whose body is being read, or None. `is_peek` says which reply waits for it.
    batch_size      number of jobs that the current reserve-batch asked for, 0 if there is none.
    batch           jobs of that batch, and their bodies, while the body of its last job is being read; else None.
    skips           commands of the remote client are not served until its front has read the reply MOVED or SKIPPED.
    known_move      number of a move of the job that the next command is about, of which the front knows; 0 if none.
    job_wait        id of the job that the client waits for, 0 if there is none.
    await_number    number of the await with which a remote client waits for an offer, 0 if it does not.
    meta            the fields that follow the size of each job.
    extends_stats   whether replies to stats commands have the extended keys.
    may_reserve     whether access rules allow reserves from the watched tubes.
    may_administer  whether an access rule allows drain and undrain. Without rules nobody may use them.
    """

    __slots__ = (
        "_body",
        "_is_body_here",
        "await_number",
        "awaited",
        "batch",
        "batch_size",
        "broker",
        "client",
        "cost",
        "extends_stats",
        "has_more",
        "is_closing",
        "is_eof",
        "is_peek",
        "is_waiting",
        "job_wait",
        "known_move",
        "may_administer",
        "may_reserve",
        "meta",
        "reserve_cost",
        "skips",
        "sliced",
        "stream",
    )

    def __init__(self, broker: Broker, wake: Callable[[], None], extends_stats: bool) -> None:
        """Connect a client. *wake* is called when a parked session can continue: call `resume` then."""
        self.broker: Broker = broker
        self.client: Client = connecting.connect(broker, wake)
        self.is_waiting: bool = False
        self.has_more: bool = False
        self.is_closing: bool = False
        self.is_eof: bool = False
        self.stream: Stream | None = None
        self.cost: int = 0
        self.reserve_cost: int = 0
        self.sliced: SlicedCommand | None = None
        self.awaited: Job | None = None
        self.is_peek: bool = False
        self._is_body_here: bool = False
        self._body: bytes | None = None
        self.batch_size: int = 0
        self.batch: list[tuple[Job, bytes]] | None = None
        self.job_wait: int = 0
        self.skips: bool = False
        self.known_move: int = 0
        self.await_number: int = 0
        self.meta: tuple[bytes, ...] = ()
        self.extends_stats: bool = extends_stats
        self.may_reserve: bool = True
        self.may_administer: bool = False

    @property
    def is_woken(self) -> bool:
        """Whether the event that the session is parked for has happened, so `resume` is due."""
        return self.is_wait_over()

    @property
    def is_blocked(self) -> bool:
        """Whether the session is parked for something that the end of its input does not end."""
        return self.awaited is not None

    def is_wait_over(self) -> bool:
        """Whether the body that the session waits for is here, or its wait for a job has ended."""
        if self.awaited is not None:
            return self._is_body_here
        return self.is_waiting and not self.client.is_waiting

    # Jobs and their bodies

    def peek_reply(self, job: Job | None, now: int) -> bytes | None:
        """Return the reply to a peek; None if it has to wait for the body."""
        return replies.NOT_FOUND if job is None else self.job_reply(job, True, now)

    def job_reply(self, job: Job, is_peek: bool, now: int) -> bytes | None:
        """Return the reply with *job*, RESERVED or, if *is_peek*, FOUND; None if it has to wait for the body."""
        body = job.body
        if body is None:
            self.await_body(job, is_peek)
            return None
        return self.body_reply(job, body, is_peek, now)

    def body_reply(self, job: Job, body: bytes, is_peek: bool, now: int) -> bytes:
        """Return the reply with *job* and its *body*. If it is long, return its first line, and set `stream`."""
        self.cost += len(body)
        if len(body) > OUTPUT_SLICE:
            self.stream = BodyStream(body)
            return self._job_line(job, body, is_peek, now)
        if self.meta:
            return b"".join((self._job_line(job, body, is_peek, now), body, CRLF))
        return replies.found(job.id, body) if is_peek else replies.reserved(job.id, body)

    def _job_line(self, job: Job, body: bytes, is_peek: bool, now: int) -> bytes:
        values = [META_FIELDS[field](job, now) for field in self.meta]
        return replies.job_line(b"FOUND" if is_peek else b"RESERVED", job.id, body, values)

    def await_body(self, job: Job, is_peek: bool) -> None:
        """Park until the body of *job* is read back."""
        bodies = self.broker.bodies
        assert bodies is not None
        self.is_waiting = True
        self.awaited, self.is_peek = job, is_peek
        self._is_body_here = False
        bodies.fetch(job, self._receive_body)

    def _receive_body(self, body: bytes | None) -> None:
        """Keep the body that the session waits for, None if it is lost, and have `resume` called."""
        if self.awaited is not None:
            self._body = body
            self._is_body_here = True
            self.client.wake()

    def take_body(self) -> bytes | None:
        """End the wait for a body; return the body, or None if it is lost."""
        body, self._body, self.awaited = self._body, None, None
        return body

    def may_delete(self, id: int) -> bool:
        """Whether the client may delete the job *id*; True if there is no such job."""
        return True

    # Commands of several slices

    def do_slice(self, command: SlicedCommand, now: int) -> bytes | None:
        """Do a slice of *command*; return the reply when it is done, else None, with `has_more` or `is_waiting` set."""
        reply = command.do_slice(self, self.broker, now)
        self.has_more = reply is None and not self.is_waiting
        self.sliced = command if self.has_more else None
        return reply

    # Tubes

    def add_tube_cost(self, tube: bytes) -> None:
        """If *tube* does not exist, add the cost of creating it now, or of having dropped it."""
        if tube not in self.broker.tubes:
            self.cost += NEW_TUBE_COST

    def note_watched(self) -> None:
        """Update the cost of a reserve, which depends on the number of watched tubes."""
        watched = len(self.client.watched)
        is_weighted = self.client.is_weighted
        self.reserve_cost = watched * WEIGHTED_COST if is_weighted else watched // WATCHED_BATCH * WATCHED_COST

    def add_reserve_cost(self) -> None:
        """Add the cost of a reserve, without the cost of its job."""
        self.cost += self.reserve_cost
        if self.client.tube_set is None:
            self.cost += EXAMINE_COST * len(self.client.watched)

    def tubes_reply(self, now: int) -> bytes | None:
        """Return the reply that lists the tubes."""
        if len(self.broker.tubes) <= SHORT_LIST:
            return self.count_reply(replies.name_list(self.broker.tubes))
        return self.list_names(self.broker.name_list())

    def list_names(self, names: NameList) -> bytes:
        """Return the reply that lists *names*. If it is long, return its first line, and set `stream` to the rest."""
        if names.size <= OUTPUT_SLICE:
            return self.count_reply(replies.name_list(names.names()))
        self.cost += OUTPUT_SLICE + len(names.chunks)  # ends the slice
        if not names.acquire():
            self.broker.limit_counters.note("listings", self.client.address)
            return replies.OUT_OF_MEMORY
        self.stream = NameStream(names)
        return replies.ok_line(names.size)

    # Statistics

    def stats_reply(self, snapshot: Snapshot, subject: Tube | Job | None, now: int) -> bytes:
        """Return the reply with *snapshot*, which is about *subject*, or about the server if that is None."""
        if not self.extends_stats:
            return self.count_reply(replies.stats(snapshot))
        return self.count_reply(replies.stats(snapshot, extension(self.broker, subject, now)))

    def count_reply(self, reply: bytes) -> bytes:
        """Return *reply*, and add its cost."""
        self.cost += len(reply)
        return reply


def _in_seconds(time: int) -> bytes:
    """Return *time*, nanoseconds, as seconds with at most three digits after the point."""
    text = b"%d.%03d" % (time // SECOND, time % SECOND // (SECOND // 1000))
    return text.rstrip(b"0").rstrip(b".")


META_FIELDS: Final[dict[bytes, Callable[[Job, int], bytes]]] = {
    b"tube": lambda job, now: job.tube.name,
    b"pri": lambda job, now: b"%d" % job.pri,
    b"age": lambda job, now: _in_seconds(max(0, now - job.created_at)),
    b"ttr": lambda job, now: _in_seconds(job.ttr),
    b"reserves": lambda job, now: b"%d" % job.reserves,
    b"timeouts": lambda job, now: b"%d" % job.timeouts,
    b"releases": lambda job, now: b"%d" % job.releases,
    b"attempts": lambda job, now: b"%d" % job.attempts,
}
"""The fields that meta may name, and the value of each."""
