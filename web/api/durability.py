"""Wait for the journal, so that the API reports a change only when it is as durable as an acknowledged command."""

from __future__ import annotations

from collections.abc import Callable

from werkzeug.exceptions import ServiceUnavailable

from greenstalk_server.web.pages.notices import NOT_DURABLE


class NotDurableYet(ServiceUnavailable):
    """A change was made but is not on disk yet. *ids* are the ids of the jobs if the change was a put."""

    def __init__(self, ids: list[int] | None = None) -> None:
        super().__init__(f"The change was made, so do not repeat the request. {NOT_DURABLE}")
        self.ids: list[int] | None = ids


def wait_until_durable(commit: Callable[[], bool], ids: list[int] | None = None) -> None:
    """Wait for the journal; raise NotDurableYet on a timeout. Switches."""
    if not commit():
        raise NotDurableYet(ids)
