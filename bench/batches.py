"""Compare batches with single commands: python -m bench.batches. See README.md.

One connection drains jobs with one command in flight, in alternation with `reserve` and `delete` and with
`reserve-batch 100` and `delete-batch`. The client is written in Python, so the figures of single commands include more
of its time than those of batches.
"""

import argparse
import socket
import sys
import time
from statistics import median
from typing import BinaryIO, Final

from .cpus import choose_cpus, started_on
from .errors import BenchError
from .modes import BODY, Mode
from .report import OURS
from .servers import OURS_COMMAND, Contender, Server, data_directory, running_server

JOBS: Final = 20_000
"""Jobs per round of either method."""

ROUNDS: Final = 5
BATCH: Final = 100
MIN_RATIO: Final = 5.0


def main() -> int:
    """Run the comparison; return 0, or 1 if batches are less than MIN_RATIO times as fast or the server failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.batches", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ours", metavar="CMD", default=OURS_COMMAND, help="command of the server")
    options = parser.parse_args()
    try:
        modes = [Mode("batches", "", "", server_args=flags) for flags in ((), ("-b", "{dir}", "-f", "50"))]
        ratios = [_compare(Contender(OURS, options.ours), mode) for mode in modes]
    except (BenchError, OSError) as error:
        print(f"batches: {error}", file=sys.stderr)
        return 1
    return 0 if min(ratios) >= MIN_RATIO else 1


def _compare(contender: Contender, mode: Mode) -> float:
    """Measure both methods in alternation, and print the medians; return the ratio of batches to single commands."""
    cpus = choose_cpus()
    rates: dict[str, list[float]] = {"single": [], "batches": []}
    with (
        data_directory() as directory,
        running_server(contender, mode, directory, cpus.server, has_dashboard=False) as server,
        started_on(cpus.load),
    ):
        for _ in range(ROUNDS):
            rates["single"].append(_rate(server, 1))
            rates["batches"].append(_rate(server, BATCH))
    single, batches = median(rates["single"]), median(rates["batches"])
    print(
        f"{' '.join(mode.server_args) or 'no journal'}: {single:,.0f} jobs per second with single commands,"
        f" {batches:,.0f} in batches of {BATCH}: {batches / single:.1f} times as many (goal: {MIN_RATIO:g})",
        flush=True,
    )
    return batches / single


def _rate(server: Server, batch: int) -> float:
    """Put JOBS jobs and drain them in batches of *batch*, 1 for single commands; return jobs per second."""
    with socket.create_connection(("127.0.0.1", server.port)) as sock, sock.makefile("rb") as replies:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(JOBS // BATCH):
            sock.sendall(b"put 0 0 600 %d\r\n%b\r\n" % (BODY, b"x" * BODY) * BATCH)
            for _ in range(BATCH):
                _expect(replies.readline().startswith(b"INSERTED "))
        start = time.perf_counter()
        done = 0
        while done < JOBS:
            done += _drain_batch(sock, replies, batch) if batch > 1 else _drain_one(sock, replies)
        return JOBS / (time.perf_counter() - start)


def _drain_one(sock: socket.socket, replies: BinaryIO) -> int:
    sock.sendall(b"reserve\r\n")
    id = _read_job(replies)
    sock.sendall(b"delete %b\r\n" % id)
    _expect(replies.readline() == b"DELETED\r\n")
    return 1


def _drain_batch(sock: socket.socket, replies: BinaryIO, batch: int) -> int:
    sock.sendall(b"reserve-batch %d\r\n" % batch)
    word, count = replies.readline().split()
    _expect(word == b"RESERVED_BATCH" and int(count) > 0)
    ids = [_read_job(replies) for _ in range(int(count))]
    sock.sendall(b"delete-batch %b\r\n" % b" ".join(ids))
    _expect(replies.readline() == b"DELETED_BATCH %d 0\r\n" % len(ids))
    return len(ids)


def _read_job(replies: BinaryIO) -> bytes:
    word, id, size = replies.readline().split()
    _expect(word == b"RESERVED" and len(replies.read(int(size) + 2)) == BODY + 2)
    return id


def _expect(is_right: bool) -> None:
    if not is_right:
        raise BenchError("an unexpected reply")


if __name__ == "__main__":
    sys.exit(main())
