"""Outcomes of the broker's methods, and the reasons for which it refuses a request. Pure.

The values are class attributes, which mypyc inlines. An interpreted build pays 40 ns for each access, so the states of
jobs, which are compared in each command, are module constants instead (see greenstalk_server.core.jobs.job).
"""

from __future__ import annotations

from typing import Final


class WaitOutcome:
    """The state of a wait, or how it ended without a job.

    DEADLINE_SOON ends only a wait for a ready job; DELETED, BURIED and NOT_FOUND end only a wait for a specific job.
    OFFERED ends only the wait of a remote client (see greenstalk_server.core.transitions.waiting). MOVED ends only a
    wait for a specific job; the client has to wait again on the shard to which the job has moved.
    """

    WAITING: Final = 0
    TIMED_OUT: Final = 1
    DEADLINE_SOON: Final = 2
    DELETED: Final = 3
    BURIED: Final = 4
    NOT_FOUND: Final = 5
    OFFERED: Final = 6
    MOVED: Final = 7


class EditOutcome:
    """The outcome of an edit of a job.

    DONE            the job is changed.
    NOT_FOUND       there is no such job.
    RESERVED        a client holds the job, and the edit is not forced.
    NO_ROOM         the journal has no room for the new record, or its writes fail.
    BODY_ON_DISK    the body is not in memory, so the caller has to provide it.
    """

    DONE: Final = 0
    NOT_FOUND: Final = 1
    RESERVED: Final = 2
    NO_ROOM: Final = 3
    BODY_ON_DISK: Final = 4


class Refusal:
    """Reasons why the broker refuses a request. All are negative, so a result can be a count, an id, or a refusal.

    MEMORY means that no memory is left, JOURNAL that the journal has no space left or that its writes fail. TUBE_FULL
    and TOO_BIG are limits of the tube's policy. OTHER_SHARD means that a job or its copy would have to be in a tube of
    another shard. The others are limits of the server (see
    greenstalk_server.core.limits), but these refuse only an undo:

    ID_TAKEN    a job with the id of the deleted job exists.
    KEY_TAKEN   another job has the idempotency key or the unique body.
    DELETED     the changed job is deleted.
    RESERVED    a client holds the changed job.
    CHANGED     the changed job is not as the change left it.
    """

    MEMORY: Final = -1
    JOURNAL: Final = -2
    JOBS: Final = -3
    BYTES: Final = -4
    TUBE_JOBS: Final = -5
    TUBE_BYTES: Final = -6
    TUBES: Final = -7
    WATCHED: Final = -8
    TUBE_FULL: Final = -9
    TOO_BIG: Final = -10
    ID_TAKEN: Final = -11
    KEY_TAKEN: Final = -12
    DELETED: Final = -13
    RESERVED: Final = -14
    CHANGED: Final = -15
    OTHER_SHARD: Final = -16
