"""The clients' observations, and a check whether one queue that loses nothing can explain them.

Each step is a command with the times between which the server carried it out: not before the command was sent, and not
after the reply was received. A step without a reply may have been carried out at any later time, or never.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Final

PUT: Final = "put"
PUT_SAME: Final = "put, perhaps of a job that exists already"
RESERVE: Final = "reserve"
DELETE: Final = "delete"
RELEASE: Final = "release"
TOUCH: Final = "touch"
KICK: Final = "kick"
HANG_UP: Final = "hang up"


@dataclass(slots=True)
class Step:
    """One command about one job.

    token       the start of the job's body; empty if unknown, for example of a reserve without a reply.
    begun       monotonic seconds; `ended` is infinite without a reply.
    is_done     whether it was acknowledged.
    is_refused  whether the reply was NOT_FOUND.
    """

    client: str
    kind: str
    token: bytes
    begun: float
    ended: float = inf
    is_done: bool = False
    is_refused: bool = False


@dataclass(slots=True)
class Disturbance:
    """A time in which the lead may have moved from one server to another, or the server of *shard* was restarted."""

    name: str
    begun: float
    ended: float = inf
    shard: int | None = None

    def concerns(self, shard: int, begun: float, ended: float) -> bool:
        """Whether jobs of *shard* may have lost their reservations between *begun* and *ended*."""
        return self.shard in (None, shard) and self.begun <= ended and self.ended >= begun


class History:
    """All steps of all clients. Thread-safe.

    keys        the concurrency key and its limit, by token.
    groups      the group that the job of a token waits for, and the tokens of the members put before it.
    keeps_reservations  a disturbance ends no reservation of a client whose connection stays open.
    most_held   maximum of jobs that clients have held at once, by concurrency key.
    duplicates  puts that have added nothing.
    tubes       the tube of each job, by token.
    counts      the number of reservations that the server has counted of a job, and when: token, count, monotonic time.
    unanswered  reserves of clients that lost or closed their connection before the reply: when each was sent, and from
                which tubes. The server may have counted one for each.
    """

    def __init__(self, shards: int = 1) -> None:
        """*shards*: number of shards among which the ids are divided."""
        self._shards: int = shards
        self.keeps_reservations: bool = False
        self.disturbances: list[Disturbance] = []
        self.wrong: list[str] = []
        self.keys: dict[bytes, tuple[bytes, int]] = {}
        self.groups: dict[bytes, tuple[bytes, list[bytes]]] = {}
        self.most_held: Counter[bytes] = Counter()
        self.duplicates: int = 0
        self.counts: list[tuple[bytes, int, float]] = []
        self.tubes: dict[bytes, bytes] = {}
        self.unanswered: list[tuple[float, Collection[bytes]]] = []
        self._held: Counter[tuple[bytes, bytes]] = Counter()  # by server and concurrency key
        self._asked: set[bytes] = set()  # tokens whose delete was sent
        self._steps: list[Step] = []
        self._lock: threading.Lock = threading.Lock()
        self._tokens: dict[int, bytes] = {}
        self._ids: dict[bytes, int] = {}

    def add(self, step: Step) -> Step:
        """Record the start of *step*."""
        with self._lock:
            self._steps.append(step)
            if step.kind == DELETE:
                self._asked.add(step.token)
        return step

    def name(self, id: int, token: bytes) -> None:
        """Record that a reply gave the job *token* this *id*: an id belongs to one job forever."""
        with self._lock:
            if self._tokens.setdefault(id, token) != token or self._ids.setdefault(token, id) != id:
                self.wrong.append(f"id {id} is of {self._tokens[id]!r}, and {token!r} has {self._ids.get(token)}")

    def shard_of(self, token: bytes) -> int:
        """Return the shard of the job *token*; 0 if its id is unknown."""
        return self._ids.get(token, 0) % self._shards

    def is_disturbed(self, shard: int, begun: float, ended: float) -> bool:
        """Whether there was a disturbance of *shard* between *begun* and *ended*."""
        return any(each.concerns(shard, begun, ended) for each in self.disturbances)

    def _may_lose(self, token: bytes, begun: float, ended: float) -> bool:
        """Whether the job *token* may have lost its reservation between *begun* and *ended*."""
        return not self.keeps_reservations and self.is_disturbed(self.shard_of(token), begun, ended)

    def is_delivered(self, token: bytes) -> bool:
        """Whether a client has reserved the job *token*."""
        with self._lock:
            return any(step.token == token and step.kind == RESERVE for step in reversed(self._steps))

    def note_duplicate(self, token: bytes, state: bytes) -> None:
        """Record that a put has found the job *token* in *state*."""
        self.duplicates += 1
        if state == b"DELETED" and token not in self._asked:
            self.wrong.append(f"{token!r} is deleted, and no client has deleted it")

    def deliver(self, step: Step, id: int) -> None:
        """Record that the reserve *step* has got the job *id*."""
        step.ended, step.is_done = time.monotonic(), True
        self.add(step)
        self.name(id, step.token)

    def hold(self, server: bytes, token: bytes) -> None:
        """Record that a client of *server* holds the job *token*."""
        if token not in self.keys:
            return
        key, limit = self.keys[token]
        with self._lock:
            self._held[server, key] += 1
            held = self._held[server, key]
            self.most_held[key] = max(self.most_held[key], held)
        if held > limit:
            self.wrong.append(f"{held} jobs with the key {key!r} are reserved")

    def let_go(self, server: bytes, token: bytes) -> None:
        """Record that a client ends its reservation of the job *token*."""
        if token in self.keys:
            with self._lock:
                self._held[server, self.keys[token][0]] -= 1

    @property
    def ids(self) -> set[int]:
        """All ids that replies have named."""
        return set(self._tokens)

    @property
    def live(self) -> int:
        """The number of jobs that were put, and not deleted."""
        return len(self._ids) - len(self._asked)

    @property
    def waited(self) -> int:
        """The number of deliveries of jobs that waited for a group."""
        return sum([step.kind == RESERVE and step.token in self.groups for step in self._steps])

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

    def check(self) -> None:
        """Raise AssertionError with every contradiction, after all jobs were reserved and deleted."""
        by_token: dict[bytes, list[Step]] = defaultdict(list)
        for step in self._steps:
            by_token[step.token].append(step)
        hang_ups: dict[str, list[float]] = defaultdict(list)
        for step in by_token.pop(b"", []):
            hang_ups[step.client].append(step.begun)
        for token, steps in by_token.items():
            self._check_job(token, steps, hang_ups)
        for token, count, at in self.counts:
            delivered = sum([delivery.begun <= at for delivery in _deliveries(by_token[token])])
            unseen = sum([begun <= at and self.tubes.get(token) in tubes for begun, tubes in self.unanswered])
            if count > delivered + unseen:
                self.wrong.append(f"{count} reservations of {token!r} are counted, and {delivered} were seen")
        for token, (_, members) in self.groups.items():
            for delivery in _deliveries(by_token[token]):
                for member in members:
                    if not any(one.kind == DELETE and one.begun <= delivery.ended for one in by_token[member]):
                        self.wrong.append(f"{token!r} was delivered before {member!r} of its group was deleted")
        assert not self.wrong, "\n".join([f"{len(self.wrong)} wrong:", *self.wrong[:20]])

    def _check_job(self, token: bytes, steps: list[Step], hang_ups: dict[str, list[float]]) -> None:
        puts = [step for step in steps if step.kind in (PUT, PUT_SAME)]
        deletes = [step for step in steps if step.kind == DELETE and not step.is_refused]
        deliveries = _deliveries(steps)
        deleted_at = min([step.ended for step in deletes if step.is_done], default=inf)
        if not puts or (len(puts) > 1 and puts[0].kind == PUT):
            self.wrong.append(f"{token!r} was put {len(puts)} times")
        elif any(put.is_done for put in puts) and not deletes:
            self.wrong.append(f"{token!r} is lost: its put was acknowledged, and nobody deleted it")
        if sum([step.is_done for step in deletes]) > 1:
            self.wrong.append(f"{token!r} was deleted more than once: {deletes}")
        for delivery in deliveries:
            if delivery.begun > deleted_at:
                self.wrong.append(f"{token!r} was delivered after it was deleted: {delivery}, {deletes}")
        for earlier, later in pairwise(deliveries):
            if not self._is_given_back(earlier, later, steps, hang_ups[earlier.client]):
                self.wrong.append(f"{token!r} was delivered twice, and not given back: {earlier}, {later}")
        for step in steps:
            if step.kind in (RELEASE, TOUCH, DELETE) and (step.is_done or step.is_refused):
                self._check_holder(step, deliveries, steps, hang_ups)

    def _check_holder(
        self, step: Step, deliveries: list[Step], steps: list[Step], hang_ups: dict[str, list[float]]
    ) -> None:
        """Check that the reply to *step* fits to who holds the job."""
        own = [each for each in deliveries if each.client == step.client and each.ended <= step.begun]
        if not own:
            if step.kind != DELETE:  # anyone may delete a job that is ready
                self.wrong.append(f"a client without a reservation: {step}")
            return
        if step.is_refused:
            given_back = [
                each
                for each in steps
                if each is not step and each.begun <= step.ended and each.ended >= own[-1].begun and not each.is_refused
                if each.kind == DELETE or (each.kind == RELEASE and each.client == step.client)
            ]
            if not given_back and not self._may_lose(step.token, own[-1].begun, step.ended):
                self.wrong.append(f"a client has lost its reservation: {step} in {steps}, {self.disturbances}")
            return
        others = [each for each in deliveries if own[-1].ended < each.begun and each.ended < step.begun]
        if others and (
            step.kind != DELETE or not self._is_given_back(others[-1], step, steps, hang_ups[others[-1].client])
        ):
            self.wrong.append(f"acknowledged to a client while another one held the job: {step}, {others[-1]}")

    def _is_given_back(self, earlier: Step, later: Step, steps: list[Step], hang_ups: list[float]) -> bool:
        """Whether a job that *earlier* has delivered may have come back before *later* delivered it."""
        if any(earlier.begun <= step.begun <= later.ended for step in steps if step.kind == RELEASE):
            return True
        if any(earlier.begun <= at <= later.ended for at in hang_ups):
            return True
        return self._may_lose(earlier.token, earlier.begun, later.ended)


def _deliveries(steps: list[Step]) -> list[Step]:
    """Return the reserves in *steps* that got the job, in the order of their replies."""
    return sorted([step for step in steps if step.kind == RESERVE and step.is_done], key=lambda step: step.ended)
