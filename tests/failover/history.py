"""The clients' observations, and a check whether one queue that loses nothing can explain them.

Each step is a command with the times between which the server carried it out: not before the command was sent, and not
after the reply was received. A step without a reply may have been carried out at any later time, or never.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Final

PUT: Final = "put"
RESERVE: Final = "reserve"
DELETE: Final = "delete"
RELEASE: Final = "release"
HANG_UP: Final = "hang up"


@dataclass(slots=True)
class Step:
    """One command about one job.

    token       the start of the job's body; empty if unknown, for example of a reserve without a reply.
    begun       monotonic seconds; `ended` is infinite without a reply.
    is_done     whether it was acknowledged.
    """

    client: str
    kind: str
    token: bytes
    begun: float
    ended: float = inf
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A time in which the lead may have moved from one server to another."""

    name: str
    begun: float
    ended: float


class History:
    """All steps of all clients. Thread-safe."""

    def __init__(self) -> None:
        self.disturbances: list[Disturbance] = []
        self.wrong: list[str] = []
        self._steps: list[Step] = []
        self._lock: threading.Lock = threading.Lock()
        self._tokens: dict[int, bytes] = {}
        self._ids: dict[bytes, int] = {}

    def add(self, step: Step) -> Step:
        """Record the start of *step*."""
        with self._lock:
            self._steps.append(step)
        return step

    def name(self, id: int, token: bytes) -> None:
        """Record that a reply gave the job *token* this *id*: an id belongs to one job forever."""
        with self._lock:
            if self._tokens.setdefault(id, token) != token or self._ids.setdefault(token, id) != id:
                self.wrong.append(f"id {id} is of {self._tokens[id]!r}, and {token!r} has {self._ids.get(token)}")

    @property
    def acknowledged(self) -> int:
        """The number of steps."""
        return sum([step.is_done for step in self._steps])

    def has_put_since(self, since: float) -> bool:
        """Whether a put that was sent after *since* was acknowledged."""
        with self._lock:
            return any(step.begun > since and step.is_done for step in reversed(self._steps) if step.kind == PUT)

    def service_after(self, since: float) -> float:
        """Return the seconds from *since* until the first acknowledged put; infinite if there is none yet."""
        with self._lock:
            ends = [step.ended for step in self._steps if step.kind == PUT and step.is_done and step.ended >= since]
        return min(ends, default=inf) - since

    def longest_gap(self, since: float, until: float) -> float:
        """Return the longest time between acknowledged puts, from the last before *since* to the first after *until*.

        In seconds.
        """
        with self._lock:
            ends = sorted([step.ended for step in self._steps if step.kind == PUT and step.is_done])
        before = max([end for end in ends if end <= since], default=since)
        after = min([end for end in ends if end >= until], default=until)
        times = [before, *[end for end in ends if since < end < until], after]
        return max([later - earlier for earlier, later in pairwise(times)], default=0.0)

    def check(self, left: Iterable[bytes]) -> None:
        """Raise AssertionError with every contradiction; *left* are all jobs that exist at the end."""
        by_token: dict[bytes, list[Step]] = defaultdict(list)
        for step in self._steps:
            by_token[step.token].append(step)
        there = set(left)
        hang_ups: dict[str, list[float]] = defaultdict(list)
        for step in by_token.pop(b"", []):
            if step.kind == HANG_UP:
                hang_ups[step.client].append(step.begun)
        for token, steps in by_token.items():
            self._check_job(token, steps, token in there, hang_ups)
        for token in there - by_token.keys():
            self.wrong.append(f"{token!r} is there, and was never put")
        assert not self.wrong, "\n".join([f"{len(self.wrong)} wrong:", *self.wrong[:20]])

    def _check_job(self, token: bytes, steps: list[Step], is_there: bool, hang_ups: dict[str, list[float]]) -> None:
        puts = [step for step in steps if step.kind == PUT]
        deletes = [step for step in steps if step.kind == DELETE]
        deliveries = sorted([step for step in steps if step.kind == RESERVE and step.is_done], key=lambda s: s.ended)
        deleted_at = min([step.ended for step in deletes if step.is_done], default=inf)
        if len(puts) != 1:
            self.wrong.append(f"{token!r} was put {len(puts)} times")
        elif puts[0].is_done and not deletes and not is_there:
            self.wrong.append(f"{token!r} is lost: its put was acknowledged, and nobody deleted it")
        if sum([step.is_done for step in deletes]) > 1:
            self.wrong.append(f"{token!r} was deleted more than once: {deletes}")
        if deleted_at < inf and is_there:
            self.wrong.append(f"{token!r} is back: its delete was acknowledged")
        for delivery in deliveries:
            if delivery.begun > deleted_at:
                self.wrong.append(f"{token!r} was delivered after it was deleted: {delivery}, {deletes}")
        for earlier, later in pairwise(deliveries):
            if not self._is_given_back(earlier, later, steps, hang_ups[earlier.client]):
                self.wrong.append(f"{token!r} was delivered twice, and not given back: {earlier}, {later}")

    def _is_given_back(self, earlier: Step, later: Step, steps: list[Step], hang_ups: list[float]) -> bool:
        """Whether a job that *earlier* has delivered may have come back before *later* delivered it."""
        if any(earlier.begun <= step.begun <= later.ended for step in steps if step.kind == RELEASE):
            return True
        if any(earlier.begun <= at <= later.ended for at in hang_ups):
            return True
        return any(each.begun <= later.ended and each.ended >= earlier.begun for each in self.disturbances)
