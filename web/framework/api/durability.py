"""Wait for the journal, so that no crash can undo a change or a state of a job that a response reports.

A response with counts or lists does not wait. It shows the queue as it is in memory.
"""

from __future__ import annotations

from collections.abc import Callable

from werkzeug.exceptions import ServiceUnavailable

from greenstalk_server.web.framework.notices import NOT_DURABLE


class NotDurableYet(ServiceUnavailable):
    """A change was made but is not on disk yet. *ids* are the ids of the jobs if the change was a put."""

    def __init__(self, ids: list[int] | None = None) -> None:
        super().__init__(f"The change was made, so do not repeat the request. {NOT_DURABLE}")
        self.ids: list[int] | None = ids


def wait_before_report(commit: Callable[[], bool]) -> None:
    """Wait for the journal before a response that reports on a job; raise ServiceUnavailable on a timeout. Switches.

    Another client may have made a change to the job that a crash would undo.
    """
    if not commit():
        raise ServiceUnavailable(
            "The journal cannot be written, so a crash might undo the last change to the job. Try again later."
        )


def wait_until_durable(commit: Callable[[], bool], ids: list[int] | None = None) -> None:
    """Wait for the journal; raise NotDurableYet on a timeout. Switches."""
    if not commit():
        raise NotDurableYet(ids)
