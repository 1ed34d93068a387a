"""Measure several processes behind one port: python -m bench.processes. See README.md.

Each connection puts, reserves and deletes a job, one command in flight, independently of the others. The loads differ
in the shard of the job's tube: that of the process which holds the connection (`own`), another one (`other`), any
(`mixed`), or each in turn, while the connection reserves from tubes of all shards (`across`). CPU is that of all
processes of the server.

With --quota, each process may use that part of one CPU (cgroups of version 1, as root), so that a machine with few CPUs
shows how throughput grows with processes.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from select import EPOLLIN, epoll
from shlex import split
from statistics import median
from typing import Final
from zlib import crc32

from .client import Client
from .errors import BenchError
from .servers import OURS_COMMAND, free_port

CONNECTIONS: Final = 16
"""Connections to each process."""

MAX_CONNECTIONS: Final = 20000
"""Connections that may be opened to get CONNECTIONS to each process."""

MAX_AHEAD: Final = 4
"""Cycles that a connection may be ahead of the slowest one."""

WARM_UP_SECONDS: Final = 0.5

BODY: Final = b"b" * 128
CGROUP: Final = Path("/sys/fs/cgroup/cpu/greenstalk-bench")
PERIOD_US: Final = 10_000
LOADS: Final = ("own", "other", "mixed", "across")


@dataclass
class Connection:
    """A connection, and the shard of the process that holds it."""

    client: Client
    shard: int
    tubes: list[bytes]


@dataclass(frozen=True)
class Setup:
    """The servers and the load of a measurement.

    servers         separate servers.
    processes       of each server; more than 1 only with one server.
    load            one of LOADS.
    connections     to each process.
    ahead           cycles that a connection may be ahead of the slowest one; 0: they begin each cycle together.
    """

    servers: int = 1
    processes: int = 1
    load: str = "own"
    connections: int = CONNECTIONS
    ahead: int = MAX_AHEAD


@dataclass(frozen=True)
class Result:
    """Median of the rounds: CPU of the server in microseconds a command, and commands a second."""

    cpu_us: float
    rate: float


class _Cycles:
    """Connections that put, reserve and delete, with one command in flight each, until the load is closed.

    A connection sends its next command when the reply has arrived. It completes at most *ahead* cycles more than the
    slowest connection, so that all connections, and so all shards, have the same part in the commands.
    """

    def __init__(self, connections: list[Connection], ahead: int) -> None:
        self._ahead = ahead
        self._poller: epoll = epoll()
        self._clients: dict[int, Client] = {}
        self._steps: dict[int, Generator[None, bytes]] = {}
        self._slowest = 0
        self._arrived = Counter[int]()
        self._paused: list[int] = []
        for connection in connections:
            file = connection.client.sock.fileno()
            self._clients[file] = connection.client
            self._steps[file] = self._commands(connection)
            next(self._steps[file])
            self._poller.register(file, EPOLLIN)

    def close(self) -> None:
        """Stop."""
        self._poller.close()

    def run(self, seconds: float) -> int:
        """Go on for *seconds*; return the number of replies."""
        until, replies = time.monotonic() + seconds, 0
        while (left := until - time.monotonic()) > 0:
            for file, _ in self._poller.poll(left):
                self._steps[file].send(self._clients[file].read())
                replies += 1
            while self._arrived[self._slowest] == len(self._clients):
                del self._arrived[self._slowest]
                self._slowest += 1
                paused, self._paused = self._paused, []
                for file in paused:
                    self._steps[file].send(b"")
        return replies

    def _commands(self, connection: Connection) -> Generator[None, bytes]:
        """Put, reserve and delete; each step gets a reply, or nothing after a pause."""
        client, tubes, cycles = connection.client, connection.tubes, 0
        while True:
            put = b"put-in-tube %b " % tubes[cycles % len(tubes)] if len(tubes) > 1 else b"put "
            client.send(b"%b0 0 60 %d\r\n%b\r\n" % (put, len(BODY), BODY))
            _expect((yield), b"INSERTED ")
            client.send(b"reserve\r\n")
            reply = yield
            while reply.count(b"\n") < 2:
                reply += yield
            client.send(b"delete %b\r\n" % _expect(reply, b"RESERVED ").split(b" ")[1])
            _expect((yield), b"DELETED")
            self._arrived[cycles] += 1
            cycles += 1
            if cycles > self._slowest + self._ahead:
                self._paused.append(client.sock.fileno())
                yield


def main() -> int:
    """Measure all loads; return the exit status."""
    parser = _parser()
    options = parser.parse_args()
    if min(options.processes) < 2:
        parser.error("--processes: 2 or more; one process is always measured")
    return print_rows(_rows(options))


def print_rows(rows: Iterator[str]) -> int:
    """Print each of *rows* when it is known; return the exit status."""
    try:
        for line in rows:
            print(line, flush=True)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


def _rows(options: argparse.Namespace) -> Iterator[str]:
    """Measure each setup once per round, so that the machine's speed, which changes, is the same for all."""
    setups = list(_setups(options))
    rounds = [
        [measure(command, setup, 1, options.seconds, options.quota) for _, command, setup in setups]
        for _ in range(options.rounds)
    ]
    results = [_median(samples) for samples in zip(*rounds, strict=True)]
    yield "| server | load | CPU us/command | to one process | commands/s | to one process | to separate servers |"
    yield "|---|---|---|---|---|---|---|"
    one, separate = results[1], None
    for (name, _, setup), result in zip(setups, results, strict=True):
        if setup.servers > 1:
            separate = result
        yield _row(name, setup.load, result, one, separate)


def _setups(options: argparse.Namespace) -> Iterator[tuple[str, str, Setup]]:
    """Yield the name of the server, its command, and the setup of each row."""
    each = options.connections
    yield "beanstalkd", "beanstalkd -l 127.0.0.1 -p {port}", Setup(connections=each)
    yield "1 process", OURS_COMMAND, Setup(connections=each)
    for count in options.processes:
        yield f"{count} separate servers", OURS_COMMAND, Setup(servers=count, connections=each)
        for load in LOADS:
            setup = Setup(processes=count, load=load, connections=each)
            yield f"{count} processes", f"{OURS_COMMAND} --processes {count}", setup


def _row(name: str, load: str, result: Result, one: Result, separate: Result | None) -> str:
    linear = f"{result.rate / separate.rate:.2f}" if separate is not None else ""
    cells = [f"{result.cpu_us:.2f}", f"{result.cpu_us / one.cpu_us:.2f}", f"{result.rate:,.0f}"]
    return f"| {' | '.join([name, load, *cells, f'{result.rate / one.rate:.2f}', linear])} |"


def measure(command: str, setup: Setup, rounds: int, seconds: float, quota: float) -> Result:
    """Return the median of *rounds* samples; with *quota*, each process may use that part of one CPU (0: no limit)."""
    with ExitStack() as stack:
        pids, clients = [], []
        for _ in range(setup.servers):
            port, found = stack.enter_context(_running(command, quota))
            pids += found
            clients += _connect(port, setup, found, stack)
        _set_tubes(clients, setup)
        cycles = stack.enter_context(closing(_Cycles(clients, setup.ahead)))
        cycles.run(WARM_UP_SECONDS)
        samples = [_sample(cycles, pids, seconds) for _ in range(rounds)]
    return _median(samples)


def _median(samples: Sequence[Result]) -> Result:
    return Result(median([sample.cpu_us for sample in samples]), median([sample.rate for sample in samples]))


def _sample(cycles: _Cycles, pids: list[int], seconds: float) -> Result:
    cpu, began = _cpu_seconds(pids), time.monotonic()
    commands = cycles.run(seconds)
    elapsed, used = time.monotonic() - began, _cpu_seconds(pids) - cpu
    return Result(used / commands * 1e6, commands / elapsed)


def _connect(port: int, setup: Setup, pids: list[int], stack: ExitStack) -> list[Connection]:
    """Return connections to each process of a server. The processes have started in the order of their shards."""
    count, each = setup.processes, setup.connections
    found: dict[int, list[Connection]] = {shard: [] for shard in range(count)}
    children = sorted(pids)[1:] if count > 1 else []
    for _ in range(MAX_CONNECTIONS):
        client = Client(port)
        stack.callback(client.close)
        shard = 0
        if count > 1:
            pid = int(client.stats().split(b"\npid: ")[1].split(b"\n")[0])
            shard = children.index(pid)
        if len(found[shard]) < each:
            found[shard].append(Connection(client, shard, []))
        if all(len(those) == each for those in found.values()):
            return [connection for those in found.values() for connection in those]
    raise BenchError(f"no {each} connections to each process after {MAX_CONNECTIONS}")


def _set_tubes(connections: list[Connection], setup: Setup) -> None:
    """Choose the tubes of each connection, and watch and use them; a connection shares its tubes with no other."""
    count = setup.processes
    for number, connection in enumerate(connections):
        own = connection.shard
        shards = [own]
        if setup.load == "other":
            shards = [(own + 1 + number % (count - 1)) % count]
        elif setup.load == "mixed":
            shards = [number // count % count]
        elif setup.load == "across":
            shards = list(range(count))
        connection.tubes = [_tube(shard, count, number) for shard in shards]
        for tube in connection.tubes:
            connection.client.ask(b"watch %b\r\n" % tube)
        connection.client.ask(b"ignore default\r\n")
        connection.client.ask(b"use %b\r\n" % connection.tubes[0])


def _tube(shard: int, count: int, number: int) -> bytes:
    """Return a name of a tube that lives on *shard*."""
    names = (b"tube-%d-%d" % (number, attempt) for attempt in range(100_000))
    return next(name for name in names if crc32(name) % count == shard)


def _expect(reply: bytes, word: bytes) -> bytes:
    if not reply.startswith(word):
        raise BenchError(f"the server has replied {reply[:80]!r} instead of {word.decode()}")
    return reply


@contextmanager
def _running(command: str, quota: float) -> Iterator[tuple[int, list[int]]]:
    """Start the server; yield its port, and the ids of all of its processes."""
    port = free_port()
    process = subprocess.Popen(
        split(command.format(port=port, web="--no-web")), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _await(port, process)
        time.sleep(1)
        tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        pids = [process.pid, *map(int, tasks)]
        with _quotas(pids[1:] or pids, quota):
            yield port, pids
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(500):
        if process.poll() is not None:
            raise BenchError(f"the server has exited with {process.returncode}")
        with suppress(OSError):
            Client(port).close()
            return
        time.sleep(0.02)
    raise BenchError("the server does not listen")


@contextmanager
def _quotas(pids: list[int], quota: float) -> Iterator[None]:
    """Limit each process to the part *quota* of one CPU; 0: no limit."""
    groups = [CGROUP.with_name(f"{CGROUP.name}-{pid}") for pid in pids] if quota else []
    try:
        for group, pid in zip(groups, pids, strict=False):
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(int(PERIOD_US * quota)))
            (group / "cgroup.procs").write_text(str(pid))
        yield
    except OSError as error:
        raise BenchError(f"--quota needs root and cgroups of version 1: {error}") from error
    finally:
        for group, pid in zip(groups, pids, strict=False):
            with suppress(OSError):
                (CGROUP.parent / "cgroup.procs").write_text(str(pid))
                group.rmdir()


def _cpu_seconds(pids: list[int]) -> float:
    """Return the CPU time of *pids*, in seconds."""
    threads = [each for pid in pids for each in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.processes", description="Measure several processes behind one port."
    )
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4], help="numbers of processes (2 4)")
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help=f"to each process ({CONNECTIONS})")
    parser.add_argument("--rounds", type=int, default=3, help="samples of each row (3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a sample (2)")
    parser.add_argument("--quota", type=float, default=0.0, help="part of one CPU for each process (0: no limit)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
