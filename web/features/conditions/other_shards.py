"""The conditions of the other shards, as the home process knows them.

Each process evaluates its own tubes and itself. The home process asks for the results every few seconds, and shows them
and sends alerts about them as if it had evaluated them. The conditions of a shard that does not answer are kept for
`SILENCE_TIME`; then one condition says that the shard does not answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct, convert

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.supervisor import Service
from greenstalk_server.web.features.conditions.measures import ActiveCondition
from greenstalk_server.web.framework.cooperative import repeated
from greenstalk_server.web.framework.shards import Shards

INTERVAL: Final = 2.0
"""Seconds between two questions."""

SILENCE_TIME: Final = 10 * SECOND
"""Nanoseconds after which a shard that does not answer is a condition: a restart takes a second or two."""

MAX_FAILURES: Final = 1000
"""Tubes with failed jobs of which a shard reports the last failure."""

QUESTION: Final = "conditions"


class ShardConditions(Struct):
    """The conditions of one shard.

    conditions  the worst ones, the worst first.
    counts      the numbers of all: name of the kind, severity, number.
    failures    tubes with failed jobs, with the time of the last failure in nanoseconds.
    """

    conditions: list[ActiveCondition]
    counts: list[tuple[str, str, int]]
    failures: dict[str, int]


class OtherShards:
    """The conditions of the other shards.

    version     increases with each change.
    of_tubes    conditions of tubes.
    of_servers  conditions of processes; their sentences and details name the shard.
    more        numbers of conditions that the lists lack, by kind and severity.
    silent      shards that do not answer.
    """

    def __init__(self, clock: Clock, shards: Shards, on_failure: Callable[[bytes, int], None]) -> None:
        """*on_failure* is called for each tube with failed jobs, with the time of the last failure in nanoseconds."""
        self.version: int = 0
        self.of_tubes: list[ActiveCondition] = []
        self.of_servers: list[ActiveCondition] = []
        self.more: Counter[tuple[str, str]] = Counter()
        self.silent: tuple[int, ...] = ()
        self._clock: Clock = clock
        self._shards: Shards = shards
        self._on_failure: Callable[[bytes, int], None] = on_failure
        self._known: dict[int, tuple[ShardConditions, int]] = {}  # with the time of the answer
        self._started_at: int = clock()
        self._asker: Service = Service("shard-conditions", repeated(self.tick))

    def start(self) -> None:
        """Start to ask, if this is the home process of several. Does not switch."""
        if self._shards.others and self._shards.is_home:
            self._asker.start()

    def stop(self) -> None:
        """Stop asking. Switches."""
        self._asker.stop()

    def answer(self, read: Callable[[], ShardConditions]) -> None:
        """Answer the home process with the result of *read*."""
        self._shards.answer(QUESTION, read)

    def tick(self) -> float:
        """Ask the other shards; return INTERVAL. Switches."""
        answers: dict[int, Any] = self._shards.ask_others(QUESTION)
        now = self._clock()
        self._known |= {shard: (convert(answer, ShardConditions), now) for shard, answer in answers.items()}
        for shard in answers:
            for tube, failed_at in self._known[shard][0].failures.items():
                self._on_failure(tube.encode(), failed_at)
        self.silent = tuple([shard for shard in self._shards.others if now - self._heard(shard) >= SILENCE_TIME])
        known = {shard: found for shard, (found, _) in self._known.items() if shard not in self.silent}
        listed = [(shard, one) for shard, found in known.items() for one in found.conditions]
        self.of_tubes = [one for _, one in listed if one.measure.tube]
        self.of_servers = [_named(one, shard) for shard, one in listed if not one.measure.tube]
        more = Counter[tuple[str, str]]()
        for found in known.values():
            more.update({(kind, severity): count for kind, severity, count in found.counts})
        more.subtract(Counter([(one.measure.kind.name, one.measure.severity) for _, one in listed]))
        self.more = +more
        self.version += 1
        return INTERVAL

    def _heard(self, shard: int) -> int:
        return self._known[shard][1] if shard in self._known else self._started_at


def _named(condition: ActiveCondition, shard: int) -> ActiveCondition:
    """Return *condition*, of the process of *shard*, with the shard in its sentence and its detail."""
    measure = condition.measure
    detail = f"{measure.detail} of shard {shard}".strip()
    return condition._replace(measure=measure._replace(detail=detail, sentence=f"Shard {shard}: {measure.sentence}"))
