"""What others notice: how long a client that does as it should waits, without and with each hostile one beside it.

    python -m tests.hostile [--seconds N] [--command COMMAND] [NAME...]

For each hostile client a server of its own is measured, without it and then with it, and the same client each time: it
puts a job, reserves it and deletes it, with two milliseconds between two commands. The server has a processor of its
own, where there are two. The clients share another, on which the measuring one comes first: else it would wait for the
hostile one itself, as it does not where each has a machine.
"""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import subprocess
import sys
import time
from typing import Final

import psutil

from tests.hostile.clients import NAMES, READY, SILENT, allow_files
from tests.support.daemon import COMMAND, REPOSITORY, Daemon

THINKS: Final = 0.002
"""Seconds between two commands."""

LAST_IN_LINE: Final = 19
"""Niceness of the hostile client."""

MIB: Final = 2**20


def main() -> int:
    """Print a line of the table for each hostile client."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--command", default=shlex.join(COMMAND))
    parser.add_argument("names", nargs="*", default=list(NAMES))
    options = parser.parse_args()
    allow_files(SILENT + 500)
    print(f"{'':20}{'alone: p50':>12}{'p99':>8}{'with: p50':>12}{'p99':>8}{'p99 ratio':>11}{'memory grown':>16}")
    for name in options.names:
        with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web", command=shlex.split(options.command)) as server:
            _measure(name, server, options.seconds)
    return 0


def _measure(name: str, server: Daemon, seconds: float) -> None:
    process = psutil.Process(server.process.pid)
    *others, own = sorted(os.sched_getaffinity(0))
    for thread in process.threads():
        os.sched_setaffinity(thread.id, {own})
    os.sched_setaffinity(0, others or {own})
    waits(server.port, 1.0)
    alone = waits(server.port, seconds)
    before = process.memory_info().rss
    with subprocess.Popen(
        [sys.executable, "-m", "tests.hostile.clients", name, str(server.port)], cwd=REPOSITORY, stdout=subprocess.PIPE
    ) as hostile:
        try:
            assert hostile.stdout is not None
            os.setpriority(os.PRIO_PROCESS, hostile.pid, LAST_IN_LINE)
            assert hostile.stdout.readline().decode().strip() == READY
            beside = waits(server.port, seconds)
            grown = process.memory_info().rss - before
        finally:
            hostile.kill()
            os.sched_setaffinity(0, {*others, own})
    one, other = percentile(alone, 99), percentile(beside, 99)
    print(
        f"{name:20}{_ms(percentile(alone, 50)):>12}{_ms(one):>8}{_ms(percentile(beside, 50)):>12}{_ms(other):>8}"
        f"{other / one:>10.1f}x{grown / MIB:>12.1f} MiB",
        flush=True,
    )


def waits(port: int, seconds: float) -> list[float]:
    """How long each command took, in seconds, sorted."""
    took: list[float] = []
    with socket.create_connection(("127.0.0.1", port), 60) as sock, sock.makefile("rb") as reader:

        def ask(request: bytes) -> bytes:
            began = time.perf_counter()
            sock.sendall(request)
            line = reader.readline()
            took.append(time.perf_counter() - began)
            time.sleep(THINKS)
            return line

        for request in (b"use good\r\n", b"watch good\r\n", b"ignore default\r\n"):
            ask(request)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            ask(b"put 0 0 60 3\r\nabc\r\n")
            _, id, _ = ask(b"reserve\r\n").split()
            assert reader.readline() == b"abc\r\n"
            assert ask(b"delete %b\r\n" % id) == b"DELETED\r\n"
    return sorted(took)


def percentile(values: list[float], percent: float) -> float:
    """Of *values*, which are sorted."""
    return values[min(len(values) - 1, int(len(values) * percent / 100))]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f}"


if __name__ == "__main__":
    sys.exit(main())
