"""The modes: each names a load, the server's options, what is measured, and the targets.

Modes are data: to add a comparison, only add a mode to one of the suites.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

BODY: Final = 128
MAX_BODY: Final = 65_535  # beanstalkd's default for -z

Metric = Literal[
    "cpu_us",
    "rate",
    "p50_us",
    "p99_us",
    "p999_us",
    "p999_empty_us",
    "p999_growth",
    "load_busy",
    "others_busy",
    "bytes_per_connection",
    "bytes_per_job",
    "returned_percent",
    "restart_seconds",
    "puts_per_second",
    "peak_mb",
    "disk_mb",
]
Measurement = Literal[
    "speed",  # CPU, throughput and latency
    "growth",  # speed over a backlog, and the ratio of its p99.9 to the p99.9 of the empty server
    "connection memory",
    "job memory",
    "returned memory",  # after the backlog is drained
    "restart",  # with the jobs that the load has put
    "held",  # speed, while a limit holds the jobs of HELD_TUBE
    "backlog",  # the rates at which the backlog is put and drained, and its memory and disk space
]

METRIC_LABELS: Final[dict[Metric, str]] = {
    "cpu_us": "µs of server CPU per command",
    "rate": "commands per second",
    "p50_us": "µs of latency, p50",
    "p99_us": "µs of latency, p99",
    "p999_us": "µs of latency, p99.9",
    "p999_empty_us": "µs of latency, p99.9, empty",
    "p999_growth": "p99.9 relative to the empty server",
    "load_busy": "% of a CPU used by the load",
    "others_busy": "% of a CPU used by others",
    "bytes_per_connection": "bytes per connection",
    "bytes_per_job": "bytes per job",
    "returned_percent": "% of memory returned",
    "restart_seconds": "seconds until the first reply",
    "puts_per_second": "jobs put per second",
    "peak_mb": "MB of memory at most",
    "disk_mb": "MB on disk with all jobs",
}

# These metrics show how reliable a sample is, and are not compared.
CONDITIONS: Final[tuple[Metric, ...]] = ("load_busy", "others_busy")


@dataclass(frozen=True)
class Target:
    """A bound on a metric of Greenstalk Server: a ratio to the peer's, or absolute."""

    metric: Metric
    relation: Literal["at most", "at least"]
    bound: float
    absolute: bool = False

    def is_met_by(self, value: float) -> bool:
        if self.relation == "at most":
            return value <= self.bound
        return value >= self.bound


@dataclass(frozen=True)
class Mode:
    """One load on one configuration of the servers. Sizes are in bytes."""

    name: str
    load: str  # the load generator's --mode
    about: str
    measurement: Measurement = "speed"
    connections: int = 50
    body: int = BODY
    jobs: int | None = None  # number of jobs after which the measurement ends
    backlog: int | None = None  # number of jobs put before the measurement
    delay_seconds: int = 0  # delay of the backlog's jobs
    tubes: int = 0  # number of tubes that hold the backlog
    watch: int = 0  # number of tubes that each connection watches; 0: only default
    use: int | None = None  # the tube that all connections use; None: each uses its share of the tubes that it watches
    has_distinct_bodies: bool = False
    server_args: tuple[str, ...] = ()  # {dir} is a fresh directory
    policies: str = ""  # TOML; the mode is then compared with the same server without policies
    targets: tuple[Target, ...] = ()

    @property
    def has_base(self) -> bool:
        """Whether another server can run the mode, so that there are ratios."""
        return self.measurement != "backlog"

    @property
    def conditions(self) -> str:
        connections = "1 connection" if self.connections == 1 else f"{self.connections:,} connections"
        parts = [connections, f"{self.body:,}-byte bodies"]
        if self.server_args:
            parts.append("server with " + " ".join(self.server_args))
        return ", ".join(parts)

    def load_arguments(self, seconds: float) -> list[str]:
        """Return the load generator's options for a measurement of at most *seconds*."""
        options: dict[str, object | None] = {
            "--mode": self.load,
            "--connections": self.connections,
            "--body": self.body,
            "--jobs": self.jobs,
            "--backlog": self.backlog,
            "--delay": self.delay_seconds or None,
            "--tubes": self.tubes or None,
            "--watch": self.watch or None,
            "--use": None if self.use is None else str(self.use),  # 0 is a tube
            "--seconds": seconds if self.measurement in ("speed", "growth", "held") else None,
        }
        words = [word for name, value in options.items() if value for word in (name, str(value))]
        return [*words, "--vary"] if self.has_distinct_bodies else words

    def without_backlog(self) -> "Mode":
        """Return the same load without its backlog."""
        return replace(self, load="cycle", backlog=None, delay_seconds=0, measurement="speed")


def _cpu_at_most(bound: float) -> tuple[Target, ...]:
    return (Target("cpu_us", "at most", bound),)


def _speed_at_most(cpu: float) -> tuple[Target, ...]:
    """Return bounds on CPU per command and on latency."""
    return (
        *_cpu_at_most(cpu),
        Target("p50_us", "at most", 0.9),
        Target("p99_us", "at most", 1.0),
        Target("p999_us", "at most", 1.1),
    )


def _rate_at_least(bound: float) -> tuple[Target, ...]:
    return (Target("rate", "at least", bound),)


CYCLE: Final = Mode(
    "cycle",
    "cycle",
    "put, reserve, delete; one command in flight",
    targets=_speed_at_most(0.8),
)
PUT: Final = Mode(
    "put",
    "put",
    "put only; one command in flight",
    targets=_speed_at_most(0.8),
)
DRAIN: Final = Mode(
    "drain",
    "drain",
    "reserve, delete; one command in flight",
    backlog=100_000,
    targets=_speed_at_most(0.8),
)
FAN: Final = Mode(
    "fan",
    "fan",
    "half producers, half consumers blocked in reserve; one command in flight",
    targets=_speed_at_most(0.8),
)
PRELOAD: Final = Mode(
    "preload",
    "preload",
    "200,000 ready jobs in a fresh server",
    measurement="job memory",
    connections=4,
    jobs=200_000,
    targets=(Target("bytes_per_job", "at most", 1.0),),
)

PIPELINED_PUT: Final = Mode(
    "pipelined-put",
    "pipelined-put",
    "puts in batches of 100; latency is a batch's",
    connections=4,
    jobs=500_000,
    targets=_rate_at_least(6),
)
PIPELINED_DRAIN: Final = Mode(
    "pipelined-drain",
    "pipelined-drain",
    "reserves in batches of 50, then their deletes; latency is a batch's",
    connections=4,
    backlog=200_000,
    targets=_rate_at_least(6),
)


def _with_journal(mode: Mode, suffix: str, flags: tuple[str, ...], targets: tuple[Target, ...]) -> Mode:
    return replace(
        mode,
        name=f"{mode.name}-{suffix}",
        server_args=("-b", "{dir}", *flags),
        targets=targets,
    )


LAZILY_SYNCED: Final = ("-f", "50")
"""The server's options for the journal that `make run` uses."""

CORE: Final = (
    CYCLE,
    PUT,
    DRAIN,
    FAN,
    PIPELINED_PUT,
    PIPELINED_DRAIN,
    *[_with_journal(mode, "journal", LAZILY_SYNCED, _speed_at_most(0.95)) for mode in (CYCLE, PUT, DRAIN, FAN)],
    *[_with_journal(mode, "journal", LAZILY_SYNCED, _rate_at_least(5)) for mode in (PIPELINED_PUT, PIPELINED_DRAIN)],
    Mode(
        "idle",
        "idle",
        "connections blocked in reserve",
        measurement="connection memory",
        connections=10_000,
        targets=(Target("bytes_per_connection", "at most", 8_000, absolute=True),),
    ),
    PRELOAD,
)


def _at_other_scales() -> Iterable[Mode]:
    for mode in (CYCLE, PUT, DRAIN, FAN):
        for connections in (2 if mode is FAN else 1, 10, 500, 5_000):
            yield replace(
                mode,
                name=f"{mode.name}-{connections}",
                connections=connections,
                targets=_speed_at_most(1.15 if connections <= 2 else 1.0 if connections == 10 else 0.8),
            )


def _with_larger_bodies() -> Iterable[Mode]:
    for label, body, bound in (("1k", 1_024, 0.85), ("16k", 16_384, 0.9), ("64k", MAX_BODY, 1.0)):
        yield replace(CYCLE, name=f"cycle-{label}", body=body, targets=_cpu_at_most(bound))


def _over_a_backlog() -> Iterable[Mode]:
    for label, delay in (("ready", 0), ("delayed", 3_600)):
        yield replace(
            CYCLE,
            name=f"cycle-over-{label}",
            about=f"{CYCLE.about}; over 1,000,000 {label} jobs, and before that on the same server when empty",
            measurement="growth",
            backlog=1_000_000,
            delay_seconds=delay,
            targets=(Target("p999_growth", "at most", 1.5, absolute=True),),
        )


def _with_many_tubes() -> Iterable[Mode]:
    watching = "each connection watches 1,000 tubes and uses one of them"
    base = replace(CYCLE, targets=_cpu_at_most(1.1))
    yield replace(base, name="cycle-watching", about=f"{CYCLE.about}; {watching}", watch=1_000)
    yield replace(
        base, name="cycle-watching-full", about=f"{CYCLE.about}; {watching}; each has jobs", watch=1_000, tubes=1_000,
        backlog=10_000,
    )  # fmt: skip
    yield replace(base, name="fan-watching", load="fan", about=f"{FAN.about}; {watching}", watch=1_000)
    yield replace(
        base, name="cycle-among-tubes", about=f"{CYCLE.about}; on one of 10,000 tubes that have jobs", watch=1,
        tubes=10_000, backlog=10_000,
    )  # fmt: skip
    yield replace(
        base, name="tour", load="tour", about="use, watch, ignore, put, reserve, delete; then the next of 10,000 tubes",
        tubes=10_000, backlog=10_000,
    )  # fmt: skip


SCALE: Final = (
    *_at_other_scales(),
    *_with_larger_bodies(),
    *_over_a_backlog(),
    *_with_many_tubes(),
    replace(PRELOAD, name="preload-1k", body=1_024),
    Mode(
        "give-back",
        "pipelined-drain",
        "1,000,000 ready jobs, reserved and deleted",
        measurement="returned memory",
        connections=4,
        body=1_024,
        backlog=1_000_000,
        targets=(Target("returned_percent", "at least", 90, absolute=True),),
    ),
)


_SYNCED: Final = ("-f", "0")

DURABLE: Final = (
    *[
        _with_journal(replace(mode, connections=connections), suffix, _SYNCED, _rate_at_least(bound))
        for connections, suffix, bound in ((1, "synced-1", 1), (50, "synced", 7), (500, "synced-500", 10))
        for mode in (PUT, CYCLE)
    ],
    _with_journal(replace(DRAIN, backlog=20_000), "synced", _SYNCED, _rate_at_least(7)),
    _with_journal(CYCLE, "unsynced", ("-F",), _cpu_at_most(0.95)),
    replace(
        _with_journal(CYCLE, "compacting", (*LAZILY_SYNCED, "-s", "1048576"), ()),
        about=f"{CYCLE.about}; over 20,000 delayed jobs, which compaction copies repeatedly",
        backlog=20_000,
        delay_seconds=3_600,
    ),
    Mode(
        "restart",
        "preload",
        "1,000,000 ready jobs, a graceful stop, and a start on the same directory",
        measurement="restart",
        connections=4,
        jobs=1_000_000,
        server_args=("-b", "{dir}"),
        targets=(Target("restart_seconds", "at most", 1.0),),
    ),
)

HELD_TUBE: Final = "tube-000001"


def _policy(settings: str, tubes: str = "default", name: str = "bench") -> str:
    """Return a policy as TOML; *settings* are separated by semicolons."""
    lines = settings.replace("; ", "\n")
    return f'[policies.{name}]\ntubes = ["{tubes}"]\n{lines}\n'


def _policy_modes() -> Iterable[Mode]:
    for name, settings, bound in (
        ("attempts", 'max_attempts = 5; dead_letter = "failed"', 1.1),
        ("retries", "retry_delay = 10; retry_delay_max = 300; retry_jitter = 0.1", 1.1),
        ("expiry", "expire_after = 3600", 1.1),
        ("caps", 'max_jobs = 1000000; max_bytes = "1GiB"', 1.1),
        ("drop-oldest", 'max_jobs = 1000000; overflow = "drop-oldest"', 1.1),
        ("max-reserved", "max_reserved = 1000", 1.1),
        ("rate", "rate = 1000000; rate_burst = 1000000", 1.1),
        ("unique", 'unique = "body"', 1.25),
        ("clamps", 'ttr_min = 1; ttr_max = 3600; max_job_size = "64k"', 1.1),
    ):
        about = f"{CYCLE.about}; {settings}"
        yield replace(
            CYCLE, name=f"policy-{name}", about=about, has_distinct_bodies=True,
            policies=_policy(settings), targets=_cpu_at_most(bound),
        )  # fmt: skip
    yield replace(
        CYCLE, name="policy-elsewhere", about=f"{CYCLE.about}; a policy that does not match the tube",
        policies=_policy("max_attempts = 5", tubes="other"), targets=_cpu_at_most(1.05),
    )  # fmt: skip
    yield replace(
        CYCLE, name="policy-copies", about=f"{CYCLE.about}; each put adds a second job", targets=(),
        policies=_policy('copy_to = ["audit"]')
        + _policy('max_jobs = 1000; overflow = "drop-oldest"', tubes="audit", name="audit"),
    )  # fmt: skip
    yield Mode(
        "policy-many", "tour", "tour of 10,000 tubes that have jobs; 1,000 policies, each for ten of the tubes",
        tubes=10_000, backlog=10_000, targets=_cpu_at_most(1.1),
        policies="".join(_policy("max_attempts = 5", f"tube-{number:05}*", f"p{number}") for number in range(1_000)),
    )  # fmt: skip
    yield replace(
        CYCLE, name="policy-held", measurement="held", tubes=2, backlog=200_000, watch=2, use=0,
        about=f"{CYCLE.about}; each connection also watches a tube with 100,000 jobs that max_reserved holds",
        policies=_policy("max_reserved = 1", tubes=HELD_TUBE), targets=_cpu_at_most(1.1),
    )  # fmt: skip


POLICIES: Final = tuple(_policy_modes())

BACKLOG: Final = Mode(
    "backlog",
    "pipelined-drain",
    "5,000,000 jobs, larger than the memory for bodies, are put and then drained",
    measurement="backlog",
    connections=4,
    body=1_024,
    backlog=5_000_000,
    server_args=("-b", "{dir}", *LAZILY_SYNCED, "--memory-limit", "1500000000"),
)

SUITES: Final[dict[str, tuple[Mode, ...]]] = {
    "core": CORE,
    "scale": SCALE,
    "durable": DURABLE,
    "policies": POLICIES,
    "backlog": (BACKLOG,),
}


def select(names: Iterable[str]) -> list[Mode]:
    """Return the modes named by *names*, which may include suites; raise KeyError for an unknown name."""
    by_name = {mode.name: (mode,) for suite in SUITES.values() for mode in suite}
    known = SUITES | by_name
    return [mode for name in names for mode in known[name]]
