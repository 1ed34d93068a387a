"""Put and drain a large backlog: python -m bench.backlog. See README.md.

One Greenstalk Server with a journal. Jobs are put and drained in order, pipelined on one connection. Each body is
generated from the job's number, and generated again for comparison: a job that is lost, damaged, out of order or
duplicated ends the run with a message.
"""

import argparse
import random
import re
import shlex
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .cpus import choose_cpus, started_on
from .errors import BenchError
from .modes import Mode
from .report import OURS
from .servers import OURS_COMMAND, Contender, Server, data_directory, running_server
from .viewer import dashboard_viewer

JOBS: Final = 5_000_000
BODY: Final = 1_024
MIN_BODY: Final = 16
"""Minimum bytes of a body, which hold the job's number."""

_BATCH: Final = 500
_MAX_UNREAD_BATCHES: Final = 3  # batches sent before their replies are read, so that the server always has work
_NOISE: Final = random.Random(1).randbytes(1 << 20)  # noqa: S311  not a secret
_STRIDE: Final = 7_919  # a prime number, so that bodies start at every offset of the noise
_REPLY_SECONDS: Final = 120.0
_RECEIVE_BYTES: Final = 1 << 20
_RESERVED: Final = re.compile(rb"RESERVED (\d+) (\d+)")
_SAMPLE_INTERVAL: Final = 100  # batches


@dataclass(frozen=True)
class Throughput:
    """The speed at which all jobs were put or drained."""

    jobs: int
    seconds: float
    server_cpu_seconds: float
    client_cpu_seconds: float

    def __str__(self) -> str:
        return (
            f"{self.jobs / self.seconds:,.0f} jobs per second in {self.seconds:,.0f} s;"
            f" {1e6 * self.server_cpu_seconds / self.jobs:.1f} µs of server CPU per job;"
            f" the client used {self.client_cpu_seconds / self.seconds:.0%} of its CPU"
        )


class Bodies:
    """Generates bodies of *size* bytes: the job's number, then noise that starts at a different offset for each."""

    def __init__(self, size: int) -> None:
        self._noise_size = size - MIN_BODY
        self._starts = len(_NOISE) - self._noise_size

    def of(self, number: int) -> bytes:
        start = number * _STRIDE % self._starts
        return b"%016d" % number + _NOISE[start : start + self._noise_size]


class Client:
    """One connection that puts, then drains *jobs* jobs of *body* bytes, and calls *sample* periodically."""

    def __init__(self, port: int, jobs: int, body: int, sample: Callable[[], None]) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=_REPLY_SECONDS)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._body, self._bodies = body, Bodies(body)
        self._batches = [range(first, min(first + _BATCH, jobs)) for first in range(0, jobs, _BATCH)]
        self._sample = sample
        self._received, self._at = b"", 0

    def close(self) -> None:
        self._sock.close()

    def put(self) -> None:
        """Put all jobs; return once every put is acknowledged."""
        head, of = b"put 0 0 600 %d\r\n" % self._body, self._bodies.of
        unread: deque[range] = deque()
        for index, batch in enumerate(self._batches):
            self._send(b"".join([b"%b%b\r\n" % (head, of(number)) for number in batch]))
            unread.append(batch)
            if len(unread) == _MAX_UNREAD_BATCHES:
                self._expect_lines(b"INSERTED ", unread.popleft())
            if index % _SAMPLE_INTERVAL == 0:
                self._sample()
        for batch in unread:
            self._expect_lines(b"INSERTED ", batch)
        self._sample()

    def drain(self) -> None:
        """Reserve and delete all jobs; raise BenchError unless they arrive in order and unchanged."""
        to_come = iter(self._batches[_MAX_UNREAD_BATCHES:])
        unread: deque[tuple[bytes, range]] = deque()
        for batch in self._batches[:_MAX_UNREAD_BATCHES]:
            self._reserve(batch, unread)
        while unread:
            expected, batch = unread.popleft()
            if expected == b"RESERVED":
                ids = [self._next_job(number) for number in batch]
                self._send(b"".join([b"delete %b\r\n" % job for job in ids]))
                unread.append((b"DELETED", batch))
                self._reserve(next(to_come, range(0)), unread)
            else:
                self._expect_lines(expected, batch)
            if batch.start // _BATCH % _SAMPLE_INTERVAL == 0:
                self._sample()
        self._send(b"reserve-with-timeout 0\r\n")
        self._expect_lines(b"TIMED_OUT", range(1))

    def _reserve(self, batch: range, unread: deque[tuple[bytes, range]]) -> None:
        if batch:
            self._send(b"reserve-with-timeout 0\r\n" * len(batch))
            unread.append((b"RESERVED", batch))

    def _next_job(self, number: int) -> bytes:
        """Return the id of the next job; raise BenchError unless it is job *number*, unchanged."""
        line = self._line()
        match = _RESERVED.fullmatch(line)
        if match is None:
            raise BenchError(f"job {number:,}: the server replied {line[:80]!r}")
        size = int(match[2])
        while len(self._received) - self._at < size + 2:
            self._receive()
        body = self._received[self._at : self._at + size]
        self._at += size + 2
        if body != self._bodies.of(number):
            raise BenchError(f"expected job {number:,}, got {body[:MIN_BODY]!r}: out of order, or damaged")
        return match[1]

    def _expect_lines(self, start: bytes, batch: range) -> None:
        for number in batch:
            line = self._line()
            if not line.startswith(start):
                raise BenchError(f"job {number:,}: expected {start.decode()}, but the server replied {line[:80]!r}")

    def _line(self) -> bytes:
        while (end := self._received.find(b"\r\n", self._at)) < 0:
            self._receive()
        line = self._received[self._at : end]
        self._at = end + 2
        return line

    def _send(self, data: bytes) -> None:
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise BenchError(f"cannot send to the server: {error}") from error

    def _receive(self) -> None:
        try:
            data = self._sock.recv(_RECEIVE_BYTES)
        except OSError as error:
            raise BenchError(f"no reply: {error}") from error
        if not data:
            raise BenchError("the server closed the connection")
        self._received, self._at = self._received[self._at :] + data, 0


class Footprint:
    """The memory of a server, and the disk space of its *directory*."""

    def __init__(self, server: Server, directory: str) -> None:
        self._status = Path("/proc") / str(server.pid) / "status"
        self._directory = Path(directory)
        self.peak_on_disk = 0

    def sample(self) -> None:
        self.peak_on_disk = max(self.peak_on_disk, self.on_disk())

    def on_disk(self) -> int:
        """Return the bytes allocated to files."""
        total = 0
        for path in self._directory.rglob("*"):
            try:
                total += path.stat().st_blocks * 512
            except FileNotFoundError:  # removed since it was listed
                continue
        return total

    def peak_memory(self) -> int:
        """Return the peak resident memory in bytes."""
        return self._of("VmHWM")

    def memory(self) -> int:
        """Return the resident memory in bytes."""
        return self._of("VmRSS")

    def _of(self, key: str) -> int:
        lines = (line.split(":") for line in self._status.read_text().splitlines())
        return next(int(value.split()[0]) * 1024 for name, value in lines if name == key)


def main() -> int:
    """Run the benchmark; return its exit status: 0, or 1 if a job was wrong or the server failed."""
    options = _parser().parse_args()
    arguments = ["-b", "{dir}", *shlex.split(options.sync)]
    if options.memory_limit:
        arguments += ["--memory-limit", options.memory_limit]
    mode = Mode("backlog", "", "", body=options.body, server_args=tuple(arguments))
    cpus, ours = choose_cpus(), Contender(OURS, options.ours)
    print(f"backlog: {options.jobs:,} jobs of {options.body:,} bytes, server with {' '.join(arguments)}", flush=True)
    try:
        with (
            data_directory() as directory,
            running_server(ours, mode, directory, cpus.server, has_dashboard=not options.no_dashboard) as server,
            dashboard_viewer(server.web_port),
            started_on(cpus.load),
        ):
            _measure(server, Footprint(server, directory), options.jobs, options.body)
    except BenchError as error:
        print(f"backlog: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.backlog", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--jobs", type=int, default=JOBS, help=f"number of jobs ({JOBS:,})")
    add("--body", type=_body_size, default=BODY, help=f"bytes of each body ({BODY})")
    add("--memory-limit", metavar="BYTES", help="--memory-limit of the server")
    add("--sync", default="-f 50", help="journal options of the server (-f 50)")
    add("--ours", metavar="CMD", default=OURS_COMMAND, help="command of the server")
    add("--no-dashboard", action="store_true", help="run without the dashboard, which is otherwise open in one tab")
    return parser


def _body_size(text: str) -> int:
    size = int(text)
    if not MIN_BODY <= size <= 65_535:
        raise argparse.ArgumentTypeError(f"{text}: not between {MIN_BODY} and 65535")
    return size


def _measure(server: Server, footprint: Footprint, jobs: int, body: int) -> None:
    client = Client(server.port, jobs, body, footprint.sample)
    empty = footprint.memory()
    try:
        print(f"  put      {_timed(server, jobs, client.put)}")
        print(
            f"  full     {_megabytes(footprint.memory())} resident, {_megabytes(footprint.on_disk())} on disk",
            flush=True,
        )
        print(f"  drain    {_timed(server, jobs, client.drain)}")
    finally:
        client.close()
    print("           every job arrived once, in order, with its body unchanged")
    print(f"  peak     {_megabytes(footprint.peak_memory())} resident, {_megabytes(footprint.peak_on_disk)} on disk")
    print(f"  after    {_megabytes(footprint.memory())} resident, {_megabytes(footprint.on_disk())} on disk; before:"
          f" {_megabytes(empty)} resident")  # fmt: skip


def _timed(server: Server, jobs: int, do: Callable[[], None]) -> Throughput:
    began, cpu_ns, client_seconds = time.monotonic(), server.cpu_ns(), time.process_time()
    do()
    seconds = time.monotonic() - began
    return Throughput(jobs, seconds, (server.cpu_ns() - cpu_ns) / 1e9, time.process_time() - client_seconds)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


if __name__ == "__main__":
    sys.exit(main())
