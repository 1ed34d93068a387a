"""Failures of changes that a response reports with more than a message."""

from __future__ import annotations

from typing import Final

from werkzeug.exceptions import Conflict, ServiceUnavailable


class JobHeld(Conflict):
    """A client holds the job, and the request did not force the operation."""


class PutRefused(ServiceUnavailable):
    """The server cannot accept a job. The message is *why*, then *done*, which says what was put or changed.

    status          HTTP status for the API: FULL if the disk, the memory or a tube is full, or a limit is reached;
                    TOO_BIG if the body exceeds the limit of the tube's policy; 503 if the journal cannot be written.
    ids             ids of the jobs put before the failure, if the request was to put several; otherwise None.
    """

    FULL: Final = 507
    TOO_BIG: Final = 413

    def __init__(self, why: str, done: str, *, status: int, ids: list[int] | None = None) -> None:
        super().__init__(f"{why} {done}")
        self.why: str = why
        self.status: int = status
        self.ids: list[int] | None = ids
