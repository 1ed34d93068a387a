"""What a page says of the change that led to it: a code and a number in the address, since there are no cookies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from greenstalk_server.core.job import MAX_ID
from greenstalk_server.web import text
from greenstalk_server.web.fields import Fields

_JOB_NOTICES: Final[dict[str, str]] = {
    "put": "Job {} was put.",
    "kicked-job": "Job {} was kicked: it is ready.",
    "buried-job": "Job {} was buried.",
    "released-job": "Job {} was taken from its client: it is ready.",
    "moved-job": "Job {} was moved.",
    "edited-job": "Job {} was changed.",
    "unchanged-job": "Job {} is as it was: nothing was changed.",
    "copied-job": "Job {} was put as a duplicate.",
    "deleted-job": "Job {} was deleted.",
}
_NOTICES: Final[dict[str, Callable[[int], str]]] = {
    "closed": lambda n: f"Connection {n} was closed. The jobs that it held are ready again.",
    "paused": lambda n: f"Paused for {text.duration(n)}.",
    "saved-sample": lambda _: "The template was saved.",
    "deleted-sample": lambda _: "The template was deleted.",
    "resumed": lambda _: "Resumed.",
    "kicked": lambda n: f"{text.counted(n, 'job')} kicked." if n else "There was no such job to kick.",
    "cleared": lambda n: f"{text.counted(n, 'job')} deleted." if n else "There was no such job to delete.",
    "kicked-part": lambda n: f"{text.counted(n, 'job')} kicked, then time was up. Kick again for the rest.",
    "cleared-part": lambda n: f"{text.counted(n, 'job')} deleted, then time was up. Clear again for the rest.",
}

LATE: Final = "It is not on disk yet, since the journal cannot be written; a crash now would undo it."


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence; *job_id* is that of a job which may be looked at, or empty."""

    text: str
    job_id: str
    warning: str


def notice(fields: Fields) -> Notice | None:
    """Return what the address of a page says, or None."""
    code, given = fields.get("notice", ""), fields.get("n", "0")
    if not (given.isascii() and given.isdigit() and len(given) <= 20 and int(given) <= MAX_ID):
        return None
    warning = LATE if fields.get("late") == "1" else ""
    if code in _JOB_NOTICES:
        return Notice(_JOB_NOTICES[code].format(given), "" if code == "deleted-job" else given, warning)
    if code in _NOTICES:
        return Notice(_NOTICES[code](int(given)), "", warning)
    return None
