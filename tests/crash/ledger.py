"""What the clients know: for each job the states it may come back in, whichever moment the server ends at.

A journal keeps a prefix of what has happened. So of each job the ledger has the changes in the order in which
the server makes them: the last acknowledged one, and after it those that a crash may undo. A reply, or the job's
next reservation, tells in which order changes of several clients came. An acknowledged change makes all before
it final.

Every method is to be called under the ledger's lock.
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
    """A state that a job may be in; compared by identity, since each is a step of its own.

    place       READY, which is also how a reserved job comes back, DELAYED, BURIED, or GONE: not there.
    due_from    of a delayed job: the earliest time, in seconds since the Unix epoch, that may be its deadline.
    due_to      the latest; None while the reply has not come.
    burial      rises with each bury; 0 if not buried.
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
    """One job: what never changes of it, and the states it may come back in, in their order.

    token   what its body begins with; no other job's does.
    id      0 until a reply has told.
    owner   the number of the client that alone may touch it while nobody holds it; None if it is ready for all.
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
        """What it is in if the server does all that it was asked to."""
        return self.states[-1]

    def may_become(self, state: State) -> State:
        """Note that a command was sent, or a job was seen reserved, which makes it *state*; return that."""
        self.states.append(state)
        return state

    def has_become(self, state: State, now: float) -> None:
        """Note that the change to *state* was acknowledged at *now*: what was before cannot come back."""
        if state not in self.states:
            return  # another client's acknowledged change came later
        at = self.states.index(state)
        if state.place == DELAYED:
            self.states[at] = replace(state, due_to=now + state.delay)
        del self.states[:at]

    def has_not_become(self, state: State) -> None:
        """Note that the command to make it *state* was refused."""
        if state in self.states:
            self.states.remove(state)


class Ledger:
    """All jobs, those long gone included.

    jobs        by token, but for those that are gone for sure.
    tokens      of every id that any reply ever named: an id is one job's for all time.
    gone        the ids whose delete was acknowledged.
    wrong       what should not be, a line each.
    refused     puts that were answered OUT_OF_MEMORY, which only a small disk permits.
    longest_wait    seconds between sending a batch of commands and the last of its replies, at most.
    """

    def __init__(self, *, is_disk_small: bool = False) -> None:
        self.is_disk_small: bool = is_disk_small
        self.refused: int = 0
        self.longest_wait: float = 0.0
        self.lock: threading.Lock = threading.Lock()
        self.jobs: dict[bytes, Known] = {}
        self.tokens: dict[int, bytes] = {}
        self.gone: set[int] = set()
        self.wrong: list[str] = []
        self.burials: itertools.count[int] = itertools.count(1)
        self.acknowledged: int = 0
        self.reserves_in_flight: int = 0

    def name(self, job: Known, id: int) -> None:
        """Note that a reply gave *job* this *id*."""
        if self.tokens.setdefault(id, job.token) != job.token or job.id not in (0, id):
            self.wrong.append(f"id {id} was given to {self.tokens[id]!r} and to {job.token!r}, whose id is {job.id}")
        job.id = id

    def forget(self, job: Known) -> None:
        """Note that the delete of *job* was acknowledged."""
        self.gone.add(job.id)
        self.jobs.pop(job.token, None)

    def of_body(self, body: bytes) -> Known | None:
        """The job with this *body*, if there is, or can be, one."""
        return self.jobs.get(token_of(body))


def token_of(body: bytes) -> bytes:
    """What *body* begins with, to tell its job."""
    return body.partition(b":")[0]
