"""The clients' knowledge: for each job, the states in which it may come back, whenever the server is killed.

A journal keeps a prefix of all changes. So the ledger has the changes of each job in the order in which the server
makes them: the last acknowledged one, followed by those that a crash may undo. A reply, or the job's next reservation,
shows the order of changes by several clients. An acknowledged change makes all changes before it final.

Every method must be called under the ledger's lock.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field, replace
from typing import Final

READY: Final = "ready"
DELAYED: Final = "delayed"
BURIED: Final = "buried"
GONE: Final = "gone"


@dataclass(frozen=True, eq=False, slots=True)
class State:
    """A possible state of a job. Compared by identity: each change makes a new one.

    place       READY, in which a reserved job comes back too, DELAYED, BURIED, or GONE: it does not exist.
    due_from    of a delayed job: the earliest possible deadline, in seconds since the Unix epoch.
    due_to      the latest possible deadline; None while there is no reply.
    burial      increases with each bury; 0 if not buried.
    """

    place: str
    pri: int = 0
    delay: int = 0
    due_from: float = 0.0
    due_to: float | None = None
    reserves: int = 0
    releases: int = 0
    buries: int = 0
    kicks: int = 0
    burial: int = 0


@dataclass(slots=True)
class Known:
    """One job: its constant facts, and the states in which it may come back, in order.

    token   the start of its body, unique to the job.
    id      0 until a reply has named it.
    owner   the number of the only client that may touch it while it is not reserved; None if any client may.
    """

    token: bytes
    tube: bytes
    ttr: int
    body: bytes
    owner: int | None
    id: int = 0
    states: list[State] = field(default_factory=lambda: [State(GONE)])

    @property
    def latest(self) -> State:
        """The state of the job if the server carries out everything that was requested."""
        return self.states[-1]

    def may_become(self, state: State) -> State:
        """Record a command that changes the job to *state*, or a reservation that was seen; return *state*."""
        self.states.append(state)
        return state

    def has_become(self, state: State, now: float) -> None:
        """Record that the change to *state* was acknowledged at *now*: earlier states cannot come back."""
        if state not in self.states:
            return  # another client's acknowledged change came later
        at = self.states.index(state)
        if state.place == DELAYED:
            self.states[at] = replace(state, due_to=now + state.delay)
        del self.states[:at]

    def has_not_become(self, state: State) -> None:
        """Record that the command to change to *state* was refused."""
        if state in self.states:
            self.states.remove(state)


class Ledger:
    """All jobs, including deleted ones.

    jobs        by token, except for those that certainly do not exist any more.
    tokens      by every id that a reply has named: an id belongs to one job forever.
    gone        the ids whose delete was acknowledged.
    overtaken   the ids in *gone* of this round whose earlier reservation by another client had expired: that client may
                read the reply about its reservation after the delete.
    wrong       errors, one line each.
    is_draining whether puts may be answered DRAINING.
    refused     puts that were answered OUT_OF_MEMORY, which is allowed on a small disk only.
    longest_wait    maximum seconds between sending a batch of commands and its last reply.
    """

    def __init__(self, *, is_disk_small: bool = False) -> None:
        self.is_disk_small: bool = is_disk_small
        self.is_draining: bool = False
        self.refused: int = 0
        self.longest_wait: float = 0.0
        self.lock: threading.Lock = threading.Lock()
        self.jobs: dict[bytes, Known] = {}
        self.tokens: dict[int, bytes] = {}
        self.gone: set[int] = set()
        self.overtaken: set[int] = set()
        self.wrong: list[str] = []
        self.burials: itertools.count[int] = itertools.count(1)
        self.acknowledged: int = 0
        self.reserves_in_flight: int = 0

    def name(self, job: Known, id: int) -> None:
        """Record that a reply has named the *id* of *job*."""
        if self.tokens.setdefault(id, job.token) != job.token or job.id not in (0, id):
            self.wrong.append(f"id {id} was given to {self.tokens[id]!r} and to {job.token!r}, whose id is {job.id}")
        job.id = id

    def forget(self, job: Known) -> None:
        """Record that the delete of *job* was acknowledged."""
        self.gone.add(job.id)
        self.jobs.pop(job.token, None)

    def of_body(self, body: bytes) -> Known | None:
        """Return the job with this *body*, if it exists or may exist."""
        return self.jobs.get(token_of(body))


def token_of(body: bytes) -> bytes:
    """Return the start of *body* that identifies its job."""
    return body.partition(b":")[0]
