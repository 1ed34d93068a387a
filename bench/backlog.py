"""Put and drain a large backlog: python -m bench.backlog. See README.md.

One Greenstalk Server with a journal. Jobs are put and drained in order, pipelined on one connection. Each body is
generated from the job's number, and generated again for comparison: a job that is lost, damaged, out of order or
duplicated ends the run with a message.
"""

import argparse
import random
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
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
_NOISE: Final = random.Random(1).randbytes(1 << 20)  # noqa: S311  not a secret
_STRIDE: Final = 7_919  # a prime number, so that bodies start at every offset of the noise
_SAMPLE_INTERVAL: Final = 50_000  # jobs


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


def put(sock: socket.socket, jobs: int, size: int, sample: Callable[[], None]) -> None:
    """Put all jobs; return once every put is acknowledged."""
    head = b"put 0 0 600 %d\r\n" % size
    requests = [(b"%b%b\r\n" % (head, body_of(number, size)) for number in batch) for batch in _batches(jobs)]
    with sock.makefile("rb") as replies, _sending(sock, requests):
        for id in range(1, jobs + 1):
            _expect(replies.readline(), b"INSERTED %d\r\n" % id)
            if id % _SAMPLE_INTERVAL == 0:
                sample()


def drain(sock: socket.socket, jobs: int, size: int, sample: Callable[[], None]) -> None:
    """Reserve and delete all jobs; raise BenchError unless they arrive in order and unchanged."""
    deletes = [(b"reserve-with-timeout 0\r\ndelete %d\r\n" % (n + 1) for n in batch) for batch in _batches(jobs)]
    with sock.makefile("rb") as replies, _sending(sock, [*deletes, [b"reserve-with-timeout 0\r\n"]]):
        for id in range(1, jobs + 1):
            _expect(replies.readline(), b"RESERVED %d %d\r\n" % (id, size))
            _expect(replies.read(size + 2), body_of(id - 1, size) + b"\r\n")
            _expect(replies.readline(), b"DELETED\r\n")
            if id % _SAMPLE_INTERVAL == 0:
                sample()
        _expect(replies.readline(), b"TIMED_OUT\r\n")


def body_of(number: int, size: int) -> bytes:
    """Return the job's number, then noise that starts at a different offset for each job."""
    start = number * _STRIDE % (len(_NOISE) - size)
    return b"%016d" % number + _NOISE[start : start + size - MIN_BODY]


def _batches(jobs: int) -> list[range]:
    return [range(first, min(first + _BATCH, jobs)) for first in range(0, jobs, _BATCH)]


@contextmanager
def _sending(sock: socket.socket, requests: Iterable[Iterable[bytes]]) -> Iterator[None]:
    """Send *requests* in a thread during the block, a batch at a time, while the block reads the replies."""

    def run() -> None:
        with suppress(OSError):  # the block reports a lost connection
            for batch in requests:
                sock.sendall(b"".join(batch))

    sender = threading.Thread(target=run)
    sender.start()
    try:
        yield
    except OSError as error:
        raise BenchError(f"no reply: {error}") from error
    finally:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_WR)  # ends the thread after an error
        sender.join()


def _expect(reply: bytes, expected: bytes) -> None:
    if reply != expected:
        raise BenchError(f"expected {expected[:80]!r}, got {reply[:80]!r}: out of order, damaged, or a lost connection")


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
    empty = footprint.memory()
    print(f"  put      {_timed(server, jobs, body, put, footprint)}")
    print(
        f"  full     {_megabytes(footprint.memory())} resident, {_megabytes(footprint.on_disk())} on disk", flush=True
    )
    print(f"  drain    {_timed(server, jobs, body, drain, footprint)}")
    print("           every job arrived once, in order, with its body unchanged")
    print(f"  peak     {_megabytes(footprint.peak_memory())} resident, {_megabytes(footprint.peak_on_disk)} on disk")
    print(f"  after    {_megabytes(footprint.memory())} resident, {_megabytes(footprint.on_disk())} on disk; before:"
          f" {_megabytes(empty)} resident")  # fmt: skip


def _timed(
    server: Server,
    jobs: int,
    body: int,
    do: Callable[[socket.socket, int, int, Callable[[], None]], None],
    footprint: Footprint,
) -> Throughput:
    began, cpu_ns, client_seconds = time.monotonic(), server.cpu_ns(), time.process_time()
    with server.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        do(sock, jobs, body, footprint.sample)
    footprint.sample()
    seconds = time.monotonic() - began
    return Throughput(jobs, seconds, (server.cpu_ns() - cpu_ns) / 1e9, time.process_time() - client_seconds)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


if __name__ == "__main__":
    sys.exit(main())
