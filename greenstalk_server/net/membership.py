"""The membership of a queue, as its links see it: which processes there are, and which of them leads each shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol


class Membership(Protocol):
    """The processes of the queue. A process has a random id for each start, so a restarted process is another one.

    on_change   to be called in the event loop after a change of `owner_of` or `addresses`. Links sets it; it does not
                switch.
    """

    on_change: Callable[[], None]

    def refresh(self) -> None:
        """Find out soon who leads the shards: that has changed. Does not switch."""

    def owner_of(self, shard: int) -> str | None:
        """Return the id of the process that leads *shard*; None if there is none. Does not switch."""

    def is_led(self, shard: int) -> bool:
        """Return whether a process leads *shard* now, as far as this one knows. Does not switch."""

    def addresses(self) -> Mapping[str, str]:
        """Return the address of each process that lives, by its id. The own process may be missing.

        An address is unix:PATH, HOST:PORT or [ADDRESS]:PORT. Does not switch.
        """

    def has_ended(self, process: str) -> bool:
        """Return whether *process* has certainly ended. False if nothing is known about it. Does not switch."""
