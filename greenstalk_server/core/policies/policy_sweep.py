"""The progress of a sweep, which applies new policies to existing tubes and jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from greenstalk_server.core.tubes.tube import Tube


class PolicySweep:
    """A sweep: applies new policies to existing tubes and jobs, one slice per tick.

    timer_at    time for which the broker's timers are armed, 0 for none (see Timers).
    names       tubes to which the new policies have not been applied.
    ids         jobs that the sweep has not yet visited; None until all tubes have the new policies.
    tubes       tubes whose jobs the sweep has to visit.
    """

    def __init__(self) -> None:
        self.timer_at: int = 0
        self.names: list[bytes] = []
        self.ids: Iterator[int] | None = None
        self.tubes: dict[Tube, None] = {}
