"""The state of the processes of a queue in a database, and the move of a shard to one of them at an operator's request.

Both the command `cluster` and the dashboard use these functions. Nothing here needs the optional driver of PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from greenstalk_server.journal.postgresql.members import Members, Process, ShardState, Snapshot

SHOWN_ID: Final = 8
"""Digits of the id of a process that are shown, and that name it."""

Role = Literal["leads", "follows", "starting", "silent"]
"""What a process does: lead a shard, follow one, neither yet, or give no sign of life."""


class MoveRefused(Exception):
    """The shard cannot be moved.

    is_unknown  there is no such shard or process; otherwise their present state does not allow the move.
    """

    def __init__(self, message: str, *, is_unknown: bool = False) -> None:
        super().__init__(message)
        self.is_unknown: bool = is_unknown


@dataclass(frozen=True, slots=True)
class ShardMove:
    """A move that was requested.

    before  the shard before the move.
    target  the process that is to lead the shard; None for any of its followers.
    """

    shard: int
    before: ShardState
    target: Process | None

    def is_done(self, now: ShardState) -> bool:
        """Return whether the shard, in its state *now*, has its new owner."""
        is_moved = now.holder == self.target.id if self.target is not None else now.holder != self.before.holder
        return is_moved and not now.is_free


def role_of(snapshot: Snapshot, process: Process) -> tuple[Role, int | None]:
    """Return what *process* does, and the shard that it leads or follows."""
    if not process.is_alive:
        return "silent", None
    if (led := _led_by(snapshot, process)) is not None:
        return "leads", led
    return ("starting", None) if process.shard is None else ("follows", process.shard)


def request_move(members: Members, shard: int, process: str) -> ShardMove:
    """Request that *process* leads *shard*, or a follower of the shard if *process* is empty.

    *process* is the name of a server, or the beginning of the id of a process. Blocks. Raise MoveRefused, or OSError.
    """
    snapshot = members.read()
    if not 0 <= shard < len(snapshot.shards):
        message = f"there is no shard {shard}; the queue has the shards 0 to {len(snapshot.shards) - 1}"
        raise MoveRefused(message, is_unknown=True)
    before = snapshot.shards[shard]
    target = _find(snapshot, process) if process else None
    if target is not None:
        led = _led_by(snapshot, target)
        if led == shard:
            raise MoveRefused(f"{target.name} leads shard {shard} already")
        if led is not None:
            raise MoveRefused(f"{target.name} leads shard {led}, and leads one at most")
        members.request_move(shard, target.id)
    elif before.is_free:
        raise MoveRefused(f"no process leads shard {shard}")
    elif not snapshot.followers(shard):
        raise MoveRefused(f"no process follows shard {shard}; name one that leads none")
    else:
        members.request_handover(shard)
    return ShardMove(shard, before, target)


def _find(snapshot: Snapshot, name: str) -> Process:
    """Return the living process that *name* means; raise MoveRefused."""
    living = [each for each in snapshot.processes if each.is_alive]
    found = [each for each in living if each.name == name] or [each for each in living if each.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise MoveRefused(f"{name} may be {_names(found)}; use more of the id", is_unknown=True)
    raise MoveRefused(f"there is no process {name}; there are {_names(living) or 'none'}", is_unknown=True)


def _names(processes: Sequence[Process]) -> str:
    return ", ".join([f"{each.id[:SHOWN_ID]} ({each.name})" for each in processes])


def _led_by(snapshot: Snapshot, process: Process) -> int | None:
    """Return the shard that *process* leads; None if it leads none."""
    led = [number for number, each in enumerate(snapshot.shards) if each.holder == process.id and not each.is_free]
    return led[0] if led else None
