"""The `capacity` command: what a load needs, calculated from measured costs. docs/capacity.md describes the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import click

from greenstalkctl.output import key_value_lines
from greenstalkctl.settings import Command, Settings

COMMANDS: Final = 3
"""Commands for a job: put, reserve, delete. Each is also a record of the journal."""

OWN_US: Final = 10.0
"""CPU in microseconds of a command on a shard of the process that holds the connection."""
FORWARDED: Final = {
    16: {2: 3.0, 3: 3.8, 4: 4.5, 10: 6.1, 30: 7.2, 100: 7.7},
    200: {2: 1.5, 3: 1.7, 4: 1.9, 10: 2.6, 30: 3.8, 100: 5.6},
}
"""CPU of a command for the shard of another process, at both together, as a multiple of OWN_US; by connections of each
process and number of processes. The more processes, and the fewer connections, the fewer commands share a message."""

PROCESS_BYTES: Final = 35_000_000
DASHBOARD_BYTES: Final = 25_000_000
CONNECTION_BYTES: Final = 5_500
JOB_BYTES: Final = 205
"""Bytes of a ready job besides its body."""

RECORD_WAL: Final = 60
COMMIT_WAL: Final = 255
"""Bytes of PostgreSQL's write-ahead log, besides the bodies."""
COMMIT_US: Final = 500.0
"""CPU of PostgreSQL in microseconds for each commit."""
MAX_COMMITS: Final = 300
"""Commits a second of one shard, each of which waits for the disk. Records that come meanwhile share the next one."""

CONNECTIONS: Final = 4
"""Normal connections of a server of a cluster to PostgreSQL."""
MAX_CONNECTIONS: Final = 10

BUSY: Final = 0.6
"""Part of a core that a process may take, so that peaks do not make clients wait."""
MAX_SHARDS: Final = 1024


@dataclass(frozen=True, slots=True)
class Load:
    """What clients do, and the processes or servers.

    jobs            put, reserved and deleted a second.
    busiest         part of the jobs in the busiest tube, 0 to 1.
    own             part of the commands for the shard of the client's own process; None: clients connect anywhere.
    """

    jobs: float
    size: int
    connections: int
    backlog: int
    shards: int
    standbys: int
    busiest: float
    own: float | None = None

    @property
    def commands(self) -> float:
        """Commands a second of all clients."""
        return COMMANDS * self.jobs


def forwarded_us(processes: int, connections: float) -> float:
    """Return the CPU of a command for another shard, interpolated; *connections* are those of each process."""
    few, many = (_interpolated(FORWARDED[count], processes) for count in (16, 200))
    return OWN_US * _interpolated({16: few, 200: many}, connections)


def _interpolated(known: dict[int, float], at: float) -> float:
    """Return the value *at* a place between those of *known*; outside of them, that of the nearest one."""
    below = max((place for place in known if place <= at), default=min(known))
    above = min((place for place in known if place >= at), default=max(known))
    if below >= above:
        return known[above]
    return known[below] + (known[above] - known[below]) * (at - below) / (above - below)


def cpu(load: Load, shards: int) -> tuple[float, float]:
    """Return the part of a core that an average process with one of *shards* takes, and that of the busiest."""
    own = load.own if load.own is not None and shards > 1 else 1 / shards
    half = (1 - own) * forwarded_us(shards, load.connections / shards) / 2  # at the front, and at the owner
    for_clients = load.commands / shards * half
    average, busiest = (
        load.commands * share * (own * OWN_US + half) for share in (1 / shards, max(1 / shards, load.busiest))
    )
    return (for_clients + average) / 1e6, (for_clients + busiest) / 1e6


def fewest_shards(load: Load) -> int | None:
    """Return the number of shards with which no process takes more than BUSY; None if there is none."""
    return next((shards for shards in range(1, MAX_SHARDS + 1) if cpu(load, shards)[1] <= BUSY), None)


def estimate(load: Load, *, has_database: bool) -> dict[str, float | int | None]:
    """Return what *load* needs. Rates are a second, CPU is in per cent of a core, memory and log in MB."""
    average, busiest = cpu(load, load.shards)
    jobs, connections = load.backlog / load.shards, load.connections / (load.shards + load.standbys)
    memory = PROCESS_BYTES + DASHBOARD_BYTES + jobs * (load.size + JOB_BYTES) + connections * CONNECTION_BYTES
    needs: dict[str, float | int | None] = {
        "commands-per-second": round(load.commands),
        "cpu-of-a-process": round(100 * average),
        "cpu-of-the-busiest-process": round(100 * busiest),
        "shards-for-60-percent": fewest_shards(load),
        "memory-of-a-process": round(memory / 1e6),
    }
    if has_database:
        commits = min(load.commands, MAX_COMMITS * load.shards)
        log = load.jobs * (load.size + COMMANDS * RECORD_WAL) + commits * COMMIT_WAL
        servers = load.shards + load.standbys
        needs |= {
            "database-connections": CONNECTIONS * servers,
            "database-max-connections": MAX_CONNECTIONS * servers,
            "database-commits-per-second": round(commits),
            "database-cpu": round(commits * COMMIT_US / 1e4),
            "database-log-per-second": round(log / 1e6, 2),
        }
    return needs


@click.command(cls=Command, short_help="Calculate what a load needs.")
@click.option("--jobs", type=click.FloatRange(0, 1e7), default=1000, help="Jobs that are put and deleted a second.")
@click.option("--size", type=click.IntRange(0, 1 << 30), default=256, help="Bytes of a body.")
@click.option("--connections", type=click.IntRange(0, 1 << 24), default=100, help="Connections of all clients.")
@click.option("--backlog", type=click.IntRange(0, 1 << 40), default=0, help="Jobs that wait in the queue at most.")
@click.option(
    "--shards", type=click.IntRange(1, MAX_SHARDS), default=1, help="Processes, or servers that lead a shard."
)
@click.option("--standbys", type=click.IntRange(0, MAX_SHARDS), default=0, help="Servers of a cluster that lead none.")
@click.option("--busiest", type=click.FloatRange(0, 100), default=0, help="Per cent of the jobs in the busiest tube.")
@click.option(
    "--own",
    type=click.FloatRange(0, 100),
    help="Per cent of the commands for the shard of the client's own process; by default clients connect anywhere.",
)
@click.option("--postgresql", is_flag=True, help="The journal is in PostgreSQL, synced at each commit.")
@click.pass_obj
def capacity(
    settings: Settings,
    jobs: float,
    size: int,
    connections: int,
    backlog: int,
    shards: int,
    standbys: int,
    busiest: float,
    own: float | None,
    postgresql: bool,
) -> None:
    """Calculate what a load needs, from measured costs: CPU, memory, and what PostgreSQL has to do.

    It connects to no server. CPU is in per cent of a core, memory and log are in MB.
    """
    load = Load(jobs, size, connections, backlog, shards, standbys, busiest / 100, None if own is None else own / 100)
    needs = estimate(load, has_database=postgresql)
    settings.out.show(needs, key_value_lines(needs))
