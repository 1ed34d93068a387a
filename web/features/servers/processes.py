"""The processes of the queue: the shard of each, if it owns one, its load, and its links to the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, convert, field

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.framework.api.values import Count, ResponseModel
from greenstalk_server.web.framework.shards import Shards, Target

if TYPE_CHECKING:
    from greenstalk_server.cluster.membership import Membership

QUESTION: Final = "process"

MIN_INTERVAL: Final = SECOND
"""Minimum nanoseconds over which the share of a core is measured."""


class Process(ResponseModel):
    """A process of this server, and the shard that it owns."""

    shard: Annotated[Count | None, Meta(description="Null for a standby of a cluster, which owns none.")]
    state: Annotated[
        Literal["serving", "draining", "failing", "standby", "unreachable"],
        Meta(description="`failing`: its journal cannot be written. `unreachable`: it does not answer; all else is 0."),
    ]
    server: Annotated[str, Meta(description="The name of the server, in a cluster.")] = ""
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
    """The processes of the queue."""

    def __init__(self, broker: Broker, clock: Clock, shards: Shards, membership: Membership | None = None) -> None:
        """*membership* knows the names of the servers of a cluster."""
        self._membership: Membership | None = membership
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._shards: Shards = shards
        self._before: dict[Target, tuple[int, float, int, float | None]] = {}  # pid, CPU time, when, share of a core
        shards.answer(QUESTION, self._own)

    @property
    def count(self) -> int:
        """Number of processes of the server: one for each shard."""
        return 1 + len(self._shards.others)

    def all(self) -> list[Process]:
        """Return the owners by shard, then the standbys by name; none if there is only this process. Switches."""
        if not self._shards.are_linked:
            return []
        found: dict[Target, Process] = {
            shard: Process(shard=shard, state="unreachable") for shard in range(self._shards.count)
        }
        found[self._shards.own] = self._own()
        found |= {target: convert(answer, Process) for target, answer in self._shards.ask_fronts(QUESTION).items()}
        names: dict[Target, str] = {}
        if self._membership is not None:
            of_shards = self._membership.snapshot.shards
            names = {each.id: each.name for each in self._membership.snapshot.processes}
            names |= {shard: names.get(one.holder, "") for shard, one in enumerate(of_shards)}
        for target, one in found.items():
            if one.state != "unreachable":
                one.cpu_share = self._share(target, one)
            one.server = names.get(target, target if isinstance(target, str) else "")
        self._before = {target: before for target, before in self._before.items() if target in found}
        owners = [found[shard] for shard in range(self._shards.count)]
        standbys = [one for target, one in found.items() if isinstance(target, str)]
        return owners + sorted(standbys, key=lambda one: one.server)

    def _own(self) -> Process:
        broker, facts = self._broker, self._broker.facts
        memory, is_standby = facts.memory(), broker is self._shards.front
        state: Literal["standby", "serving"] = "standby" if is_standby else "serving"
        return Process(
            shard=None if is_standby else self._shards.own,
            state="failing" if broker.journal.write_error else "draining" if broker.is_draining else state,
            pid=facts.pid,
            uptime=(self._clock() - facts.started_at) // SECOND,
            jobs=len(broker.jobs),
            tubes=0 if is_standby else sum([self._shards.owns(name) for name in broker.tubes]),
            connections=sum([len(each.clients) - each.remote_count for each in self._shards.brokers]),
            cpu_seconds=sum(facts.rusage()),
            memory=memory[0] if memory is not None else None,
            unlinked=self._shards.unlinked(),
            relayed=self._shards.relayed(),
        )

    def _share(self, target: Target, process: Process) -> float | None:
        """Return the share of a core that *process*, which is *target*, has used between two requests."""
        now = self._clock()
        pid, cpu, at, share = self._before.get(target, (0, 0.0, 0, None))
        if pid == process.pid:
            if now - at < MIN_INTERVAL:
                return share
            share = max(0.0, (process.cpu_seconds - cpu) * SECOND / (now - at))
        else:
            share = None
        self._before[target] = process.pid, process.cpu_seconds, now, share
        return share
