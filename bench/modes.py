"""The modes: what is measured, under which load, and what is aimed at.

All of it is data. A new comparison is a new row of a table below; nothing else
needs to know it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

BODY: Final = 128
LARGEST_BODY: Final = 65_535  # beanstalkd's default for -z

Metric = Literal[
    "cpu_us",
    "rate",
    "p50_us",
    "p99_us",
    "p999_us",
    "load_busy",
    "others_busy",
    "bytes_per_connection",
    "bytes_per_job",
    "restart_seconds",
]
Unit = Literal["connection", "job"]

METRIC_LABELS: Final[dict[Metric, str]] = {
    "cpu_us": "µs of server CPU per command",
    "rate": "commands per second",
    "p50_us": "µs of latency, p50",
    "p99_us": "µs of latency, p99",
    "p999_us": "µs of latency, p99.9",
    "load_busy": "% of a CPU used by the load",
    "others_busy": "% of a CPU used by others",
    "bytes_per_connection": "bytes per connection",
    "bytes_per_job": "bytes per job",
    "restart_seconds": "seconds until the first reply",
}

# These tell how far a sample can be trusted; to compare them would mean nothing.
CONDITIONS: Final[tuple[Metric, ...]] = ("load_busy", "others_busy")


@dataclass(frozen=True)
class Target:
    """A bound on *metric* of ours: as a ratio to the peer's, or absolute."""

    metric: Metric
    relation: Literal["at most", "at least"]
    bound: float
    absolute: bool = False

    def is_reached_by(self, value: float) -> bool:
        if self.relation == "at most":
            return value <= self.bound
        return value >= self.bound


@dataclass(frozen=True)
class Mode:
    """One load on one kind of server. Sizes are in bytes."""

    name: str
    load: str  # the load generator's --mode
    about: str
    connections: int = 50
    body: int = BODY
    jobs: int | None = None  # the measurement ends after so many jobs
    backlog: int | None = None  # jobs put before the measurement
    delay_seconds: int = 0  # of the backlog's jobs
    memory_per: Unit | None = None  # measure memory rather than speed
    restarts: bool = False  # measure a restart on what the load has put
    has_floor: bool = False  # canned replies can serve it
    server_args: tuple[str, ...] = ()  # {dir} is a fresh directory
    targets: tuple[Target, ...] = ()

    @property
    def conditions(self) -> str:
        parts = [f"{self.connections:,} connections", f"{self.body:,}-byte bodies"]
        if self.server_args:
            parts.append("server with " + " ".join(self.server_args))
        return ", ".join(parts)

    def load_arguments(self, seconds: float) -> list[str]:
        """The load generator's options, when measuring for at most *seconds*."""
        options: dict[str, object | None] = {
            "--mode": self.load,
            "--connections": self.connections,
            "--body": self.body,
            "--jobs": self.jobs,
            "--backlog": self.backlog,
            "--delay": self.delay_seconds or None,
            "--seconds": None if self.memory_per or self.restarts else seconds,
        }
        given = ((name, str(value)) for name, value in options.items() if value)
        return [word for pair in given for word in pair]


def _cpu_at_most(bound: float) -> tuple[Target, ...]:
    return (Target("cpu_us", "at most", bound),)


def _rate_at_least(bound: float) -> tuple[Target, ...]:
    return (Target("rate", "at least", bound),)


CYCLE: Final = Mode(
    "cycle",
    "cycle",
    "put, reserve, delete; one command in flight",
    has_floor=True,
    targets=_cpu_at_most(1.35),
)
PUT: Final = Mode(
    "put",
    "put",
    "put only; one command in flight",
    has_floor=True,
    targets=_cpu_at_most(1.35),
)
DRAIN: Final = Mode(
    "drain",
    "drain",
    "reserve, delete; one command in flight",
    backlog=100_000,
    has_floor=True,
    targets=_cpu_at_most(1.35),
)
FAN: Final = Mode(
    "fan",
    "fan",
    "half producers, half consumers blocked in reserve; one command in flight",
    targets=_cpu_at_most(1.35),
)

CORE: Final = (
    CYCLE,
    PUT,
    DRAIN,
    FAN,
    Mode(
        "pipelined-put",
        "pipelined-put",
        "puts in batches of 100; latency is a batch's",
        connections=4,
        jobs=500_000,
        targets=_rate_at_least(3),
    ),
    Mode(
        "pipelined-drain",
        "pipelined-drain",
        "reserves in batches of 50, then their deletes; latency is a batch's",
        connections=4,
        backlog=200_000,
        targets=_rate_at_least(3),
    ),
    Mode(
        "idle",
        "idle",
        "connections blocked in reserve",
        connections=10_000,
        memory_per="connection",
        targets=(Target("bytes_per_connection", "at most", 12_000, absolute=True),),
    ),
    Mode(
        "preload",
        "preload",
        "200,000 ready jobs in a fresh server",
        connections=4,
        jobs=200_000,
        memory_per="job",
    ),
)


def _at_other_scales() -> Iterable[Mode]:
    for mode in (CYCLE, PUT, DRAIN, FAN):
        for connections in (1, 10, 500, 5_000):
            if mode is FAN and connections == 1:
                continue
            yield replace(
                mode,
                name=f"{mode.name}-{connections}",
                connections=connections,
                targets=_cpu_at_most(1.25 if connections == 1 else 1.1),
            )


def _with_larger_bodies() -> Iterable[Mode]:
    for label, body in (("1k", 1_024), ("16k", 16_384), ("64k", LARGEST_BODY)):
        yield replace(CYCLE, name=f"cycle-{label}", body=body, targets=_cpu_at_most(1.1))


def _over_a_backlog() -> Iterable[Mode]:
    for label, delay in (("ready", 0), ("delayed", 3_600)):
        yield replace(
            CYCLE,
            name=f"cycle-over-{label}",
            about=f"{CYCLE.about}; over 1,000,000 {label} jobs",
            backlog=1_000_000,
            delay_seconds=delay,
            has_floor=False,
            targets=(),
        )


SCALE: Final = (*_at_other_scales(), *_with_larger_bodies(), *_over_a_backlog())


def _durable(mode: Mode, suffix: str, flags: tuple[str, ...], targets: tuple[Target, ...]) -> Mode:
    return replace(
        mode,
        name=f"{mode.name}-{suffix}",
        server_args=("-b", "{dir}", *flags),
        has_floor=False,
        targets=targets,
    )


_SYNCED: Final = ("-f", "0")

DURABLE: Final = (
    _durable(PUT, "synced", _SYNCED, _rate_at_least(5)),
    _durable(CYCLE, "synced", _SYNCED, _rate_at_least(5)),
    _durable(replace(DRAIN, backlog=20_000), "synced", _SYNCED, _rate_at_least(5)),
    _durable(replace(PUT, connections=1), "synced-1", _SYNCED, _rate_at_least(0.9)),
    _durable(CYCLE, "lazily-synced", ("-f", "50"), _cpu_at_most(1.35)),
    _durable(CYCLE, "unsynced", ("-F",), _cpu_at_most(1.35)),
    replace(
        _durable(CYCLE, "compacting", ("-f", "50", "-s", "1048576"), ()),
        about=f"{CYCLE.about}; over 20,000 delayed jobs, which compaction copies again and again",
        backlog=20_000,
        delay_seconds=3_600,
    ),
    Mode(
        "restart",
        "preload",
        "1,000,000 ready jobs, a stop in order, and a start on the same directory",
        connections=4,
        jobs=1_000_000,
        restarts=True,
        server_args=("-b", "{dir}"),
        targets=(Target("restart_seconds", "at most", 1.5),),
    ),
)

SUITES: Final[dict[str, tuple[Mode, ...]]] = {
    "core": CORE,
    "scale": SCALE,
    "durable": DURABLE,
}


def select(names: Iterable[str]) -> list[Mode]:
    """The modes that *names* name, suites included; KeyError on an unknown one."""
    by_name = {mode.name: (mode,) for suite in SUITES.values() for mode in suite}
    known = SUITES | by_name
    return [mode for name in names for mode in known[name]]
