"""A job and its four states.

Owns the fields of one job. Knows its tube and its holder only as references; the broker moves it. Pure.

Times are integer nanoseconds since the Unix epoch, by the broker's clock. Durations are integer nanoseconds too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from greenstalk_server.core.gc_untrack import untrack

if TYPE_CHECKING:
    from mypy_extensions import i16, i32, u8

    from greenstalk_server.core.client import Client
    from greenstalk_server.core.tubes.tube import Tube

READY: Final = 1
RESERVED: Final = 2
BURIED: Final = 3
DELAYED: Final = 4

STATE_NAMES: Final = ("invalid", "ready", "reserved", "buried", "delayed")

SECOND: Final = 1_000_000_000
MAX_ID: Final = 2**64 - 1
URGENT_BELOW: Final = 1024
"""A ready job with a priority below this counts as urgent (protocol.txt, "stats")."""

ID_BITS: Final = 64

_I16_END: Final = 2**15
_I32_END: Final = 2**31


class ColdState:
    """Rarely used state of a job, allocated when a field is first set.

    delay       delay of the last put or release: a number of whole seconds, in nanoseconds.
    timeouts, releases, buries, kicks   counts of these events.
    events      packed events (see job_history), excluding the current reservation.
    record_extra    size of the job's newest full record in the journal, less the size of a record that has no events
        and no attributes, and has the name of the job's present tube; bytes. Negative if that record has a shorter
        name, because a move has changed the tube since.
    former_state, former_deadline   state and deadline that a job had when reserve-job took it while it was buried or
        delayed. A restart restores them. former_state is 0 for all other jobs.
    size, segment, ttr, reserves    fields of a Job whose values do not fit into the Job itself (see there).

    Attributes (see job_attributes):

    attempts_base   value of `reserves` when the count of attempts last restarted, such as at a kick.
    expires_from    start of the job's age, as expiry measures it; 0 means created_at.
    unique_key      key of a job that is unique in its tube, 1 to 64 bytes; empty for all other jobs.
    dead_letter     packed DeadLetter of a job in a dead-letter tube; empty for all other jobs.
    is_truncated    the tube was truncated while the job was reserved; the job is deleted when the reservation ends.
    travel          packed Travel (see greenstalk_server.core.travel); empty for a job that was never on another shard
                    and is not moving to one.
    """

    __slots__ = (
        "attempts_base",
        "buries",
        "dead_letter",
        "delay",
        "events",
        "expires_from",
        "former_deadline",
        "former_state",
        "is_truncated",
        "kicks",
        "record_extra",
        "releases",
        "reserves",
        "segment",
        "size",
        "timeouts",
        "travel",
        "ttr",
        "unique_key",
    )

    def __init__(self) -> None:
        self.delay: int = 0
        self.timeouts: int = 0
        self.releases: int = 0
        self.buries: int = 0
        self.kicks: int = 0
        self.events: bytes = b""
        self.record_extra: int = 0
        self.former_state: int = 0
        self.former_deadline: int = 0
        self.size: int = 0
        self.segment: int = 0
        self.ttr: int = 0
        self.reserves: int = 0
        self.attempts_base: int = 0
        self.expires_from: int = 0
        self.unique_key: bytes = b""
        self.dead_letter: bytes = b""
        self.is_truncated: bool = False
        self.travel: bytes = b""
        untrack(self)


DEFAULT_COLD_STATE: Final = ColdState()
"""Shared by all jobs whose cold fields all have their defaults. Never written to."""


class Job:
    """One job.

    Most jobs are only put, reserved and deleted, and a million may be waiting. So a job is small: fields that most jobs
    do not need are in `cold`, and properties read and write them under their own names. In the compiled build, `state`,
    `_size`, `_segment`, `_ttr` and `_reserves` are machine integers that share 16 bytes. The last four are -1 if the
    value does not fit; then it is in `cold`. Properties return the values as unlimited integers: mypyc computes an
    expression with a machine integer in the width of that integer, which could overflow.

    id          1 to 2**64-1, never reused, increasing in the order in which the command lines of puts arrive.
    pri         0, the most urgent, to 2**32-1.
    ttr         time to run: a number of whole seconds, at least one, in nanoseconds.
    body        without the CRLF that ends it on the wire; None while it is only on disk (see body_cache).
    size        size of the body in bytes.
    deadline    time at which a delayed job becomes ready, or the reservation of a reserved job times out. The same slot
                holds `ready_since` of a ready job and `burial_number` of a buried one.
    holder      the client that reserved it, else None.
    reserved_at time of its last reservation; 0 if it has not been reserved since the server started.
    segment     number of the journal's file that holds its full record; 0 without a journal.
    """

    __slots__ = (
        "_reserves",
        "_segment",
        "_size",
        "_ttr",
        "body",
        "cold",
        "created_at",
        "deadline",
        "holder",
        "id",
        "pri",
        "reserved_at",
        "state",
        "tube",
    )

    def __init__(self, id: int, tube: Tube, body: bytes, pri: int, delay: int, ttr: int, created_at: int) -> None:
        size, seconds = len(body), ttr // SECOND
        self.id: int = id
        self.tube: Tube = tube
        self.body: bytes | None = body
        self.pri: int = pri
        self.created_at: int = created_at
        self.deadline: int = created_at
        self.holder: Client | None = None
        self.reserved_at: int = 0
        self.cold: ColdState = DEFAULT_COLD_STATE
        self._size: i32 = size if size < _I32_END else -1
        self._segment: i32 = 0
        self._ttr: i32 = seconds if seconds < _I32_END and seconds * SECOND == ttr else -1
        self._reserves: i16 = 0
        self.state: u8 = READY
        if self._size < 0 or self._ttr < 0:
            self.size, self.ttr = size, ttr
        if delay:
            self.delay = delay
        untrack(self)

    def copy_with(self, tube: Tube, body: bytes) -> Job:
        """Return a copy in *tube* with *body*, to replace this job. The copy is in no queue and not in the journal."""
        copy = Job(self.id, tube, body, self.pri, self.delay, self.ttr, self.created_at)
        self.copy_fields_to(copy)
        return copy

    def copy_fields_to(self, copy: Job) -> None:
        """Copy the fields that `__init__` does not set to *copy*."""
        copy.state, copy.deadline, copy.holder = self.state, self.deadline, self.holder
        copy.reserves, copy.reserved_at, copy.events = self.reserves, self.reserved_at, self.events
        copy.timeouts, copy.releases, copy.buries, copy.kicks = self.timeouts, self.releases, self.buries, self.kicks
        copy.former_state, copy.former_deadline = self.former_state, self.former_deadline
        copy.attempts_base, copy.expires_from = self.attempts_base, self.expires_from
        copy.unique_key, copy.dead_letter = self.unique_key, self.dead_letter
        copy.is_truncated = self.is_truncated and copy.tube is self.tube
        copy.travel = self.travel

    def __repr__(self) -> str:
        return f"<Job {self.id} {STATE_NAMES[self.state]} pri={self.pri} tube={self.tube.name!r}>"

    # Other meanings of the slot `deadline`

    @property
    def ready_since(self) -> int:
        """Time at which the job became ready. The hot path reads `deadline`: interpreted, this property costs 40 ns."""
        return self.deadline

    @ready_since.setter
    def ready_since(self, value: int) -> None:
        self.deadline = value

    @property
    def burial_number(self) -> int:
        """Position of the buried job among all burials, by which buried jobs are ordered."""
        return self.deadline

    @burial_number.setter
    def burial_number(self, value: int) -> None:
        self.deadline = value

    # Packed fields

    @property
    def size(self) -> int:
        return self._size if self._size >= 0 else self.cold.size

    @size.setter
    def size(self, value: int) -> None:
        if value < _I32_END:
            self._size = value
        else:
            self._size = -1
            self._own_cold().size = value

    @property
    def segment(self) -> int:
        return self._segment if self._segment >= 0 else self.cold.segment

    @segment.setter
    def segment(self, value: int) -> None:
        if value < _I32_END:
            self._segment = value
        else:
            self._segment = -1
            self._own_cold().segment = value

    @property
    def ttr(self) -> int:
        """Time to run in nanoseconds; `_ttr` has whole seconds."""
        return int(self._ttr) * SECOND if self._ttr >= 0 else self.cold.ttr

    @ttr.setter
    def ttr(self, value: int) -> None:
        seconds = value // SECOND
        if seconds < _I32_END and seconds * SECOND == value:
            self._ttr = seconds
        else:
            self._ttr = -1
            self._own_cold().ttr = value

    @property
    def reserves(self) -> int:
        return self._reserves if self._reserves >= 0 else self.cold.reserves

    @reserves.setter
    def reserves(self, value: int) -> None:
        if value < _I16_END:
            self._reserves = value
        else:
            self._reserves = -1
            self._own_cold().reserves = value

    # Fields in `cold`

    def _own_cold(self) -> ColdState:
        if self.cold is DEFAULT_COLD_STATE:
            self.cold = ColdState()
        return self.cold

    @property
    def delay(self) -> int:
        return self.cold.delay

    @delay.setter
    def delay(self, value: int) -> None:
        if value != self.cold.delay:
            self._own_cold().delay = value

    @property
    def timeouts(self) -> int:
        return self.cold.timeouts

    @timeouts.setter
    def timeouts(self, value: int) -> None:
        if value != self.cold.timeouts:
            self._own_cold().timeouts = value

    @property
    def releases(self) -> int:
        return self.cold.releases

    @releases.setter
    def releases(self, value: int) -> None:
        if value != self.cold.releases:
            self._own_cold().releases = value

    @property
    def buries(self) -> int:
        return self.cold.buries

    @buries.setter
    def buries(self, value: int) -> None:
        if value != self.cold.buries:
            self._own_cold().buries = value

    @property
    def kicks(self) -> int:
        return self.cold.kicks

    @kicks.setter
    def kicks(self, value: int) -> None:
        if value != self.cold.kicks:
            self._own_cold().kicks = value

    @property
    def events(self) -> bytes:
        return self.cold.events

    @events.setter
    def events(self, value: bytes) -> None:
        if value != self.cold.events:
            self._own_cold().events = value

    @property
    def record_extra(self) -> int:
        return self.cold.record_extra

    @record_extra.setter
    def record_extra(self, value: int) -> None:
        if value != self.cold.record_extra:
            self._own_cold().record_extra = value

    @property
    def former_state(self) -> int:
        return self.cold.former_state

    @former_state.setter
    def former_state(self, value: int) -> None:
        if value != self.cold.former_state:
            self._own_cold().former_state = value

    @property
    def former_deadline(self) -> int:
        return self.cold.former_deadline

    @former_deadline.setter
    def former_deadline(self, value: int) -> None:
        if value != self.cold.former_deadline:
            self._own_cold().former_deadline = value

    @property
    def attempts_base(self) -> int:
        return self.cold.attempts_base

    @attempts_base.setter
    def attempts_base(self, value: int) -> None:
        if value != self.cold.attempts_base:
            self._own_cold().attempts_base = value

    @property
    def attempts(self) -> int:
        """Reservations since the count of attempts last restarted."""
        return max(0, self.reserves - self.cold.attempts_base)

    @property
    def expires_from(self) -> int:
        return self.cold.expires_from

    @expires_from.setter
    def expires_from(self, value: int) -> None:
        if value != self.cold.expires_from:
            self._own_cold().expires_from = value

    @property
    def unique_key(self) -> bytes:
        return self.cold.unique_key

    @unique_key.setter
    def unique_key(self, value: bytes) -> None:
        if value != self.cold.unique_key:
            self._own_cold().unique_key = value

    @property
    def dead_letter(self) -> bytes:
        return self.cold.dead_letter

    @dead_letter.setter
    def dead_letter(self, value: bytes) -> None:
        if value != self.cold.dead_letter:
            self._own_cold().dead_letter = value

    @property
    def travel(self) -> bytes:
        return self.cold.travel

    @travel.setter
    def travel(self, value: bytes) -> None:
        if value != self.cold.travel:
            self._own_cold().travel = value

    @property
    def is_truncated(self) -> bool:
        return self.cold.is_truncated

    @is_truncated.setter
    def is_truncated(self, value: bool) -> None:
        if value != self.cold.is_truncated:
            self._own_cold().is_truncated = value


def deadline_of(job: Job) -> int:
    """Return `job.deadline`, as a sort key."""
    return job.deadline
