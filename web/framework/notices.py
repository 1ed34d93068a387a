"""Messages on the page to which a change redirects.

The URL carries the message as a code and a number, since there are no sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from greenstalk_server.core.jobs.job import MAX_ID
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.fields import Fields

_JOB_NOTICES: Final[dict[str, str]] = {
    "put": "Job {} was put.",
    "duplicate": "Nothing was put: job {} has the same idempotency key, or the same body (policy unique).",
    "kicked-job": "Job {} was retried: it is ready.",
    "buried-job": "Job {} was buried.",
    "released-job": "Job {} was released from its worker and is ready.",
    "moved-job": "Job {} was moved.",
    "redriven-job": "Job {} was moved back to the tube that it came from, and is ready.",
    "edited-job": "Job {} was changed.",
    "unchanged-job": "Job {} was not changed: the form had no new values.",
    "copied-job": "Job {} was put as a duplicate.",
    "deleted-job": "Job {} was deleted.",
}
_NOTICES: Final[dict[str, Callable[[int], str]]] = {
    "closed": lambda n: f"Connection {n} was closed. The jobs it held are ready again.",
    "paused": lambda n: f"Paused for {text.duration(n)}.",
    "saved-policy": lambda _: "The policy was saved. The server is applying it to existing jobs.",
    "removed-policy": lambda _: "The policy was deleted.",
    "moving-shard": lambda n: f"Shard {n} was asked to move. The list of shards shows its owner.",
    "ended-session": lambda _: "The session has ended.",
    "saved-sample": lambda _: "The template was saved.",
    "saved-search": lambda _: "The search was saved.",
    "deleted-search": lambda _: "The saved search was deleted.",
    "deleted-sample": lambda _: "The template was deleted.",
    "acknowledged": lambda n: f"Acknowledgement {n} was set.",
    "ended-acknowledgement": lambda _: "The acknowledgement was ended.",
    "tested": lambda n: f"The receiver accepted the test in {text.number(n)} ms.",
    "test-failed": lambda _: "The receiver did not accept the test. The log below has the reason.",
    "resumed": lambda _: "Resumed.",
    "kicked": lambda n: f"{text.counted(n, 'job')} retried." if n else "No job was retried: none was in this state.",
    "cleared": lambda n: f"{text.counted(n, 'job')} deleted." if n else "No job was deleted: none was in this state.",
    "kicked-part": lambda n: f"{text.counted(n, 'job')} retried before the time limit. Retry again for the rest.",
    "cleared-part": lambda n: f"{text.counted(n, 'job')} deleted before the time limit. Clear again for the rest.",
    "cleared-stopped": lambda n: (
        f"{text.counted(n, 'job')} deleted. The clear stopped, because no more deleted jobs can be stored for an undo."
        " Clear again for the rest."
    ),
    "kicked-stopped": lambda n: (
        f"{text.counted(n, 'job')} retried. The retry stopped, because no more changed jobs can be stored for an undo."
        " Retry again for the rest."
    ),
}

NO_UNDO: Final = "none"
"""Value of the parameter `undo` if the change cannot be undone; otherwise its value is the number of the change."""

NOT_DURABLE: Final = "The change is not on disk yet: the journal cannot be written, and a crash would undo the change."


@dataclass(frozen=True, slots=True)
class Notice:
    """A message.

    job_id      the job to link to, or empty.
    warning     empty if the change is durable.
    change      number of the change that the page offers to undo, or empty.
    """

    text: str
    job_id: str
    warning: str
    change: str = ""


def notice(fields: Fields) -> Notice | None:
    """Return the message that the URL of a page asks for, or None."""
    code, given = fields.get("notice", ""), fields.get("n", "0")
    if not (given.isascii() and given.isdigit() and len(given) <= 20 and int(given) <= MAX_ID):
        return None
    undo = fields.get("undo", "")
    change = undo if undo.isascii() and undo.isdigit() and len(undo) <= 20 else ""
    end = " This cannot be undone." if undo == NO_UNDO else ""
    warning = NOT_DURABLE if fields.get("late") == "1" else ""
    if code in _JOB_NOTICES:
        said = _JOB_NOTICES[code].format(given) + end
        return Notice(said, "" if code == "deleted-job" else given, warning, change)
    if code in _NOTICES:
        return Notice(_NOTICES[code](int(given)) + end, "", warning, change)
    return None
