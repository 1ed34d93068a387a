"""What a change is answered with: only when it is as safe as the server promises to any client."""

from __future__ import annotations

from collections.abc import Callable

from werkzeug.exceptions import ServiceUnavailable

from greenstalk_server.web.pages.notices import NOT_DURABLE


class Late(ServiceUnavailable):
    """It was done, and is not on disk yet; *ids* are of the jobs that were put, if it was that."""

    def __init__(self, ids: list[int] | None = None) -> None:
        super().__init__(f"It was done, so do not ask for it again. {NOT_DURABLE}")
        self.ids: list[int] | None = ids


def settle(commit: Callable[[], bool], ids: list[int] | None = None) -> None:
    """Wait for the journal; raise Late if it takes too long. Switches."""
    if not commit():
        raise Late(ids)
