"""The processes of one parent, as it reports them: the membership of a queue on one machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence


class Roster:
    """The process of each shard. Implements `membership.Membership`."""

    def __init__(self, paths: Sequence[str]) -> None:
        """*paths* are those of the link sockets of all shards, which outlive the processes."""
        self.on_change: Callable[[], None] = _ignore
        self._paths: Sequence[str] = paths
        self._processes: list[str] = [""] * len(paths)

    def update(self, report: bytes) -> None:
        """Use the *report* of the parent: see `encode`. Does not switch."""
        self._processes = json.loads(report)
        self.on_change()

    def refresh(self) -> None:
        """Do nothing: the parent reports each change at once."""

    def owner_of(self, shard: int) -> str | None:
        """Return the id of the process that leads *shard*; None while there is none. Does not switch."""
        return self._processes[shard] or None

    def is_led(self, shard: int) -> bool:
        """Return whether *shard* has a process. Does not switch."""
        return bool(self._processes[shard])

    def addresses(self) -> dict[str, str]:
        """Return the address of each process, by its id. Does not switch."""
        return {process: f"unix:{path}" for process, path in zip(self._processes, self._paths, strict=True) if process}

    def has_ended(self, process: str) -> bool:
        """Return whether *process* has ended: the parent reports a process before it starts it. Does not switch."""
        return any(self._processes) and process not in self._processes


def encode(processes: Sequence[str]) -> bytes:
    """Return the report of the parent: the id of the process of each shard, empty if there is none."""
    return json.dumps(processes).encode()


def _ignore() -> None:
    """Stand in for `Roster.on_change` until there are links."""
