"""The processes of this server: which shard each owns, its load, and its links to the others."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, convert, field

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.framework.api.values import Count, ResponseModel
from greenstalk_server.web.framework.shards import Shards

QUESTION: Final = "process"

MIN_INTERVAL: Final = SECOND
"""Minimum nanoseconds over which the share of a core is measured."""


class Process(ResponseModel):
    """A process of this server, and the shard that it owns."""

    shard: Count
    state: Annotated[
        Literal["serving", "draining", "failing", "unreachable"],
        Meta(description="`failing`: its journal cannot be written. `unreachable`: it does not answer; all else is 0."),
    ]
    pid: Count = 0
    uptime: Annotated[Count, Meta(description="Seconds since its start.")] = 0
    jobs: Count = 0
    tubes: Annotated[Count, Meta(description="Tubes of the shard.")] = 0
    connections: Annotated[Count, Meta(description="Connections that it has accepted.")] = 0
    cpu_seconds: Annotated[float, Meta(description="CPU time since its start.")] = 0.0
    cpu_share: Annotated[
        float | None, Meta(description="Share of a core that it used since the last request; null if unknown.")
    ] = None
    memory: Annotated[Count | None, Meta(description="Bytes of memory; null if the system does not report it.")] = None
    unlinked: Annotated[list[Count], Meta(description="Shards to whose processes it has no link.")] = field(
        default_factory=list
    )
    relayed: Annotated[list[Count], Meta(description="Shards whose processes it reaches over another server.")] = field(
        default_factory=list
    )


class Processes:
    """The processes of this server, by shard."""

    def __init__(self, broker: Broker, clock: Clock, shards: Shards) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._shards: Shards = shards
        self._before: dict[int, tuple[int, float, int, float | None]] = {}  # pid, CPU time, when, share of a core
        shards.answer(QUESTION, self._own)

    @property
    def count(self) -> int:
        """Number of processes of the server: one for each shard."""
        return 1 + len(self._shards.others)

    @property
    def are_several(self) -> bool:
        return bool(self._shards.others)

    def all(self) -> list[Process]:
        """Return the processes; none if there is only this one. Switches."""
        if not self.are_several:
            return []
        answers: dict[int, Any] = self._shards.ask_others(QUESTION)
        found = {shard: convert(answer, Process) for shard, answer in answers.items()} | {self._shards.own: self._own()}
        for one in found.values():
            one.cpu_share = self._share(one)
        return [found.get(shard) or Process(shard=shard, state="unreachable") for shard in range(self._shards.count)]

    def _own(self) -> Process:
        broker, facts = self._broker, self._broker.facts
        memory = facts.memory()
        return Process(
            shard=self._shards.own,
            state="failing" if broker.journal.write_error else "draining" if broker.is_draining else "serving",
            pid=facts.pid,
            uptime=(self._clock() - facts.started_at) // SECOND,
            jobs=len(broker.jobs),
            tubes=sum([self._shards.owns(name) for name in broker.tubes]),
            connections=sum([len(each.clients) - each.remote_count for each in self._shards.brokers]),
            cpu_seconds=sum(facts.rusage()),
            memory=memory[0] if memory is not None else None,
            unlinked=self._shards.unlinked(),
            relayed=self._shards.relayed(),
        )

    def _share(self, process: Process) -> float | None:
        """Return the share of a core that *process* has used between two requests."""
        now = self._clock()
        pid, cpu, at, share = self._before.get(process.shard, (0, 0.0, 0, None))
        if pid == process.pid:
            if now - at < MIN_INTERVAL:
                return share
            share = max(0.0, (process.cpu_seconds - cpu) * SECOND / (now - at))
        else:
            share = None
        self._before[process.shard] = process.pid, process.cpu_seconds, now, share
        return share
