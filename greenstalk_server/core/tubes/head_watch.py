"""Subscriptions of other processes to the heads of tubes. Pure.

The head of a tube is the job that the next reserve takes. A process whose clients watch tubes of this shard subscribes
to them, so that it knows without a request which shard has the best job. A job whose concurrency key has no free slot
since another tube got the last one is a head until the next reserve or `head_of` meets it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from greenstalk_server.core.tubes.tube import Tube

Head: TypeAlias = tuple[int, int]
"""Priority of a head, and the time since when it is ready, nanoseconds by the clock of its shard."""

NO_HEAD: Final = (-1, 0)
"""The head of a tube from which no job can be reserved now."""


class HeadWatch:
    """The subscribers of each tube, and the tubes whose heads may have changed since `take`.

    A subscriber is any object; it subscribes once for each of its clients that watches the tube.

    on_change   called when the first head may have changed since `take`; must not switch.
    """

    def __init__(self) -> None:
        self._subscribers: dict[Tube, dict[object, int]] = {}
        self._changed: dict[Tube, None] = {}
        self._ended: list[tuple[Tube, object]] = []
        self.on_change: Callable[[], None] = _ignore

    def subscribe(self, tube: Tube, subscriber: object) -> None:
        """Add a subscription to the head of *tube*."""
        counts = self._subscribers.setdefault(tube, {})
        counts[subscriber] = counts.get(subscriber, 0) + 1
        tube.head_watch = self
        self.note(tube)

    def unsubscribe(self, tube: Tube, subscriber: object) -> None:
        """Remove a subscription, which exists."""
        counts = self._subscribers[tube]
        counts[subscriber] -= 1
        if not counts[subscriber]:
            del counts[subscriber]
            self.note(tube)
            self._ended.append((tube, subscriber))
            if not counts:
                del self._subscribers[tube]
                tube.head_watch = None

    def note(self, tube: Tube) -> None:
        """Note that the head of *tube* may have changed."""
        if not self._changed:
            self.on_change()
        self._changed[tube] = None

    def take(self) -> list[tuple[Tube, list[object]]]:
        """Return the noted tubes with their subscribers, and forget the notes."""
        changed, self._changed = self._changed, {}
        return [(tube, list(self._subscribers.get(tube, ()))) for tube in changed]

    def take_ended(self) -> list[tuple[Tube, object]]:
        """Return the subscriptions that have ended since the last call, each tube with its subscriber."""
        ended, self._ended = self._ended, []
        return ended


def _ignore() -> None:
    """Stand in for `HeadWatch.on_change` in a queue of one shard."""


def head_of(tube: Tube, now: int) -> Head:
    """Return the head of *tube* at *now*."""
    job = tube.ready.first() if tube.ready.count and tube.throttled_until <= now else None
    return NO_HEAD if job is None else (job.pri, job.ready_since)
