"""Measure the cost of tags: python -m bench.tags. See README.md.

- CPU time of a reserve and a delete, behind 10 and behind 100,000 ready jobs whose concurrency key has no free slot.
- Memory of a job with an idempotency key, beside a job without tags.
"""

import argparse
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import BinaryIO, Final

from .cpus import choose_cpus, started_on
from .errors import BenchError
from .modes import BODY, Mode
from .report import OURS
from .servers import OURS_COMMAND, Contender, Server, data_directory, running_server

BLOCKED: Final = (10, 100_000)
"""Jobs behind the busy key in the two measurements of CPU time."""

RESERVES: Final = 20_000
KEYS: Final = 1_000_000
BATCH: Final = 100
MAX_RATIO: Final = 1.3
MAX_BYTES: Final = 120
"""Bytes that a job with an idempotency key may take more than one without."""


def main() -> int:
    """Run both measurements; return 0, or 1 if one exceeds its limit or the server failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.tags", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ours", metavar="CMD", default=OURS_COMMAND, help="command of the server")
    parser.add_argument("--keys", type=int, default=KEYS, help="jobs in each measurement of memory")
    options = parser.parse_args()
    contender, keys = Contender(OURS, options.ours), options.keys
    try:
        few, many = [_with_server(contender, partial(_reserve_cpu, blocked)) for blocked in BLOCKED]
        plain = _with_server(contender, partial(_bytes_per_job, keys, b""))
        tagged = _with_server(contender, partial(_bytes_per_job, keys, b" idp:order-%d"))
    except (BenchError, OSError) as error:
        print(f"tags: {error}", file=sys.stderr)
        return 1
    print(
        f"reserve and delete behind {BLOCKED[0]} and {BLOCKED[1]:,} blocked jobs: {few:.1f} and {many:.1f} µs of CPU:"
        f" {many / few:.2f} times as much (limit: {MAX_RATIO:g})"
    )
    print(
        f"{keys:,} jobs without tags: {plain:.0f} bytes each; with idp: {tagged:.0f}: {tagged - plain:.0f} more"
        f" (limit: {MAX_BYTES})"
    )
    return 0 if many <= MAX_RATIO * few and tagged - plain <= MAX_BYTES else 1


def _with_server(contender: Contender, measure: Callable[[Server], float]) -> float:
    cpus = choose_cpus()
    with (
        data_directory() as directory,
        running_server(contender, Mode("tags", "", ""), directory, cpus.server, has_dashboard=False) as server,
        started_on(cpus.load),
    ):
        return measure(server)


def _reserve_cpu(blocked: int, server: Server) -> float:
    """Return the microseconds of CPU per reserve and delete of a job behind *blocked* jobs with a busy key."""
    with socket.create_connection(("127.0.0.1", server.port)) as sock, sock.makefile("rb") as replies:
        _put(sock, replies, blocked + 1, b" con:busy", pri=0)
        _reserve(sock, replies)
        _put(sock, replies, RESERVES, b"", pri=1)
        start = server.cpu_ns()
        for _ in range(RESERVES):
            sock.sendall(b"delete %b\r\n" % _reserve(sock, replies))
            _expect(replies.readline() == b"DELETED\r\n")
        return (server.cpu_ns() - start) / RESERVES / 1000


def _bytes_per_job(jobs: int, tags: bytes, server: Server) -> float:
    with socket.create_connection(("127.0.0.1", server.port)) as sock, sock.makefile("rb") as replies:
        before = server.settled_private_bytes()
        _put(sock, replies, jobs, tags, pri=0)
        return (server.settled_private_bytes() - before) / jobs


def _put(sock: socket.socket, replies: BinaryIO, jobs: int, tags: bytes, pri: int) -> None:
    """Put *jobs* jobs in batches; a %d in *tags* is replaced by the number of the job."""
    body = b"x" * BODY
    for first in range(0, jobs, BATCH):
        numbers = range(first, min(first + BATCH, jobs))
        words = [tags % number if b"%d" in tags else tags for number in numbers]
        sock.sendall(b"".join([b"put %d 0 600 %d%b\r\n%b\r\n" % (pri, BODY, word, body) for word in words]))
        for _ in numbers:
            _expect(len(replies.readline().split()) == 2)


def _reserve(sock: socket.socket, replies: BinaryIO) -> bytes:
    """Reserve a job; return its id."""
    sock.sendall(b"reserve-with-timeout 0\r\n")
    words = replies.readline().split()
    _expect(words[0] == b"RESERVED" and len(replies.read(BODY + 2)) == BODY + 2)
    return words[1]


def _expect(is_right: bool) -> None:
    if not is_right:
        raise BenchError("an unexpected reply")


if __name__ == "__main__":
    sys.exit(main())
