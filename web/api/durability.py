"""Wait for the journal, so that the API reports a change only when it is as durable as an acknowledged command."""

from __future__ import annotations

from collections.abc import Callable

from werkzeug.exceptions import ServiceUnavailable

from greenstalk_server.web.pages.notices import NOT_DURABLE


class Late(ServiceUnavailable):
    """A change was made but is not on disk yet; after a put, *ids* are those of the jobs."""

    def __init__(self, ids: list[int] | None = None) -> None:
        super().__init__(f"The change was made, so do not repeat the request. {NOT_DURABLE}")
        self.ids: list[int] | None = ids


def settle(commit: Callable[[], bool], ids: list[int] | None = None) -> None:
    """Wait for the journal; raise Late on a timeout. Switches."""
    if not commit():
        raise Late(ids)
