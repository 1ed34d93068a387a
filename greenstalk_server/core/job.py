"""A job and its four states.

Owns what is true of one job alone. Knows its tube and its holder only as references; the broker moves it.

Times are integer nanoseconds, by the broker's clock: durations since the Unix epoch or plain lengths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from greenstalk_server.core.gc_untrack import untrack

if TYPE_CHECKING:
    from greenstalk_server.core.client import Client
    from greenstalk_server.core.tube import Tube

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
NO_KEY: Final = -1
IN_RUN: Final = 0
"""Keys of no entry in a heap."""


class Past:
    """What of a job differs from one that was put without a delay, and reserved at most since then.

    delay       what the last put or release asked for, whole seconds in nanoseconds.
    timeouts, releases, buries, kicks   how often that has happened to it.
    events      what has happened to it (see life), but for a reservation that goes on.
    events_recorded     how many bytes its full record in the journal is longer for its events.
    former_state, former_deadline   of a reserved job that reserve-job took while it was buried or delayed: its state
        and deadline until then. A restart returns the job to them. former_state is 0 for all other jobs.
    """

    __slots__ = (
        "buries",
        "delay",
        "events",
        "events_recorded",
        "former_deadline",
        "former_state",
        "kicks",
        "releases",
        "timeouts",
    )

    def __init__(self) -> None:
        self.delay: int = 0
        self.timeouts: int = 0
        self.releases: int = 0
        self.buries: int = 0
        self.kicks: int = 0
        self.events: bytes = b""
        self.events_recorded: int = 0
        self.former_state: int = 0
        self.former_deadline: int = 0
        untrack(self)


NO_PAST: Final = Past()
"""Every such job's; nobody writes to it."""


class Job:
    """One job.

    Most jobs are put, reserved and deleted, and a million may wait. So it is kept small: what only others need is in
    its `past`, made when it is first written to, and read and written here by the same names.

    id          1 to 2**64-1, rising in the order of put headers, never used twice.
    pri         0, the most urgent, to 2**32-1.
    ttr         time to run, whole seconds in nanoseconds, at least one second.
    body        without the CRLF that ends it on the wire; None while it is on disk alone (see bodies).
    size        of the body, bytes.
    key         its entry in a heap of its tube while delayed, or ready and not in a run; IN_RUN there; else NO_KEY.
    deadline    since when it is ready if ready; the time it turns ready if delayed; the ttr's end if reserved; its
                place among those ever buried if buried.
    holder      the client that reserved it, else None.
    reserved_at when it was last reserved; 0 if never, or not since the server's start.
    segment     number of the journal's file that holds its full record; 0 without a journal.
    """

    __slots__ = (
        "body",
        "created_at",
        "deadline",
        "holder",
        "id",
        "key",
        "past",
        "pri",
        "reserved_at",
        "reserves",
        "segment",
        "size",
        "state",
        "ttr",
        "tube",
    )

    def __init__(self, id: int, tube: Tube, body: bytes, pri: int, delay: int, ttr: int, created_at: int) -> None:
        self.id: int = id
        self.tube: Tube = tube
        self.body: bytes | None = body
        self.size: int = len(body)
        self.pri: int = pri
        self.ttr: int = ttr
        self.created_at: int = created_at
        self.state: int = READY
        self.key: int = NO_KEY
        self.deadline: int = created_at
        self.holder: Client | None = None
        self.reserved_at: int = 0
        self.reserves: int = 0
        self.segment: int = 0
        self.past: Past = NO_PAST
        if delay:
            self.delay = delay
        untrack(self)

    def twin(self, tube: Tube, body: bytes) -> Job:
        """A copy in *tube* and with *body*, to be put in this one's place; it is in no heap, and in no journal."""
        twin = Job(self.id, tube, body, self.pri, self.delay, self.ttr, self.created_at)
        twin.state, twin.deadline, twin.holder = self.state, self.deadline, self.holder
        twin.reserves, twin.reserved_at, twin.events = self.reserves, self.reserved_at, self.events
        twin.timeouts, twin.releases, twin.buries, twin.kicks = self.timeouts, self.releases, self.buries, self.kicks
        twin.former_state, twin.former_deadline = self.former_state, self.former_deadline
        return twin

    def __repr__(self) -> str:
        return f"<Job {self.id} {STATE_NAMES[self.state]} pri={self.pri} tube={self.tube.name!r}>"

    # What is in its past

    def _own_past(self) -> Past:
        if self.past is NO_PAST:
            self.past = Past()
        return self.past

    @property
    def delay(self) -> int:
        return self.past.delay

    @delay.setter
    def delay(self, value: int) -> None:
        if value != self.past.delay:
            self._own_past().delay = value

    @property
    def timeouts(self) -> int:
        return self.past.timeouts

    @timeouts.setter
    def timeouts(self, value: int) -> None:
        if value != self.past.timeouts:
            self._own_past().timeouts = value

    @property
    def releases(self) -> int:
        return self.past.releases

    @releases.setter
    def releases(self, value: int) -> None:
        if value != self.past.releases:
            self._own_past().releases = value

    @property
    def buries(self) -> int:
        return self.past.buries

    @buries.setter
    def buries(self, value: int) -> None:
        if value != self.past.buries:
            self._own_past().buries = value

    @property
    def kicks(self) -> int:
        return self.past.kicks

    @kicks.setter
    def kicks(self, value: int) -> None:
        if value != self.past.kicks:
            self._own_past().kicks = value

    @property
    def events(self) -> bytes:
        return self.past.events

    @events.setter
    def events(self, value: bytes) -> None:
        if value != self.past.events:
            self._own_past().events = value

    @property
    def events_recorded(self) -> int:
        return self.past.events_recorded

    @events_recorded.setter
    def events_recorded(self, value: int) -> None:
        if value != self.past.events_recorded:
            self._own_past().events_recorded = value

    @property
    def former_state(self) -> int:
        return self.past.former_state

    @former_state.setter
    def former_state(self, value: int) -> None:
        if value != self.past.former_state:
            self._own_past().former_state = value

    @property
    def former_deadline(self) -> int:
        return self.past.former_deadline

    @former_deadline.setter
    def former_deadline(self, value: int) -> None:
        if value != self.past.former_deadline:
            self._own_past().former_deadline = value


def deadline_of(job: Job) -> int:
    """Its deadline, which is what it is by the job's state."""
    return job.deadline
