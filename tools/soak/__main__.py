"""`make soak`: a server under mixed load of real clients for a long time, and an audit of every job.

    python -m tools.soak [--seconds N] [--seed N] [--directory DIR]

The results in DIR are `report.json`, `report.html` with a chart of every measurement over time, and the server's log.
The exit code is 1 if there was any error. After a quarter of the time the server is stopped with SIGTERM and started
again. The second half is the steady phase, in which memory and file descriptors must not grow.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import pickle
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import psutil

from tests.support.daemon import REPOSITORY, environment
from tests.support.nodes import Node
from tests.support.peer import eventually
from tools.soak import clients, plot
from tools.soak.ledger import Ledger, audit
from tools.soak.server import CHECKED

PROCESSES: Final = (
    ("producer", "producer", "worker", "worker", "leaver", "bulk"),
    ("producer", "worker", "worker", "worker", "kicker", "pauser", "viewer", "stream", "stream"),
)
"""The roles of each process. In addition one worker at a time is killed, and one client measures."""

KILL_EVERY: Final = 3.0
"""Seconds until a victim is killed."""

SEGMENT_SIZE: Final = 262_144
"""Bytes; small, so that segments are created, compacted and removed all the time."""

MEMORY_MAY_GROW: Final = 8 * 2**20
"""Maximum difference in bytes between the medians of the last third and of the first third of the steady phase. Data
that is kept by design still grows: an hour of history for each tube, and addresses of former workers. The memory of the
present jobs is subtracted."""

JOB_MEMORY: Final = 250
"""Bytes of a job without a history, in addition to its body (docs/memory.md). A full history adds some 690 bytes."""

SETTLED_AFTER: Final = 600.0
"""Seconds. In a shorter run, data that is kept by design is still growing, so the bound is three times as much."""

FILES_MAY_GROW: Final = 5
"""File descriptors in addition to the connections: the number of journal segments varies."""

TIMEOUT: Final = 60.0
"""Seconds to wait for a condition at the start or the end."""

MIB: Final = 2**20


class Server(Node):
    """The server, started twice on one journal. Both processes write to one log."""

    def __init__(self, directory: Path) -> None:
        self.journal = directory / "journal"
        self.journal.mkdir()
        policies = directory / "policies.toml"
        policies.write_text(clients.POLICIES)
        flags = ("-f", "50", "-b", str(self.journal), "-s", str(SEGMENT_SIZE), "--config", str(policies))
        super().__init__("server", "", directory, *flags)
        self.serve()

    def command(self, *words: str) -> list[str]:
        """Return the command line of the server that checks its invariants when it stops."""
        _, *rest = super().command(*words)
        return [sys.executable, *[word.replace("greenstalk_server", "tools.soak.server") for word in rest]]

    def serve(self) -> None:
        """Start the process; return once it serves."""
        before = len(self.log) if self.log_file.exists() else 0
        self.start()
        try:
            eventually(lambda: "\njobs: " in self.log[before:], "the server serves")
        except AssertionError:
            self.kill()
            raise

    def restart(self) -> None:
        """Stop the server with SIGTERM, and start it again on the same journal."""
        self.stop_and_check()
        self.serve()

    def stop_and_check(self) -> None:
        """Stop the server with SIGTERM; raise AssertionError if its exit code or its invariants are wrong."""
        before = len(self.log)
        code, new = self.stop(), self.log[before:]
        assert code == 0 and CHECKED in new, f"exit code {code}: {new[-3000:]}"


class Sampler(threading.Thread):
    """Samples the server's figures every second, and the time that a client of its own waits for a reply."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.samples: list[dict[str, float]] = []
        self.is_over = False
        self._server = server
        self._began = time.time()
        self._last: dict[str, float] = {}

    def run(self) -> None:
        while not self.is_over:
            try:
                with socket.create_connection(("127.0.0.1", self._server.port), TIMEOUT) as sock:
                    self._watch(sock)
            except (OSError, HTTPException, psutil.NoSuchProcess, ValueError, IndexError):
                time.sleep(0.2)  # the server restarts

    def now(self) -> float:
        """Seconds since the start."""
        return time.time() - self._began

    def _watch(self, sock: socket.socket) -> None:
        reader = sock.makefile("rb")
        process = psutil.Process(self._server.process.pid)
        process.cpu_percent()
        self._last = {}
        sock.sendall(b"use probe\r\nwatch probe\r\nignore default\r\n")
        assert (
            reader.readline() + reader.readline() + reader.readline() == b"USING probe\r\nWATCHING 2\r\nWATCHING 1\r\n"
        )
        while not self.is_over:
            until, took = time.monotonic() + 1.0, []
            while time.monotonic() < until:
                took.append(_probe(sock, reader))
                time.sleep(0.02)
            sock.sendall(b"stats\r\n")
            size = int(reader.readline().split()[1])
            lines = reader.read(size + 2).decode().splitlines()
            self._add(process, dict(line.split(": ") for line in lines if ": " in line), sorted(took))

    def _add(self, process: psutil.Process, stats: dict[str, str], took: list[float]) -> None:
        totals = {
            "at": self.now(),
            "puts": float(stats["cmd-put"]),
            "reserves": float(stats["cmd-reserve-with-timeout"]),
            "deletes": float(stats["cmd-delete"]),
        }
        sample = {
            "at": totals["at"],
            **{name: float(stats[f"current-jobs-{name}"]) for name in clients.STATES},
            "p50_ms": statistics.median(took) * 1000,
            "p99_ms": took[int(len(took) * 0.99)] * 1000,
            "rss_mib": process.memory_info().rss / MIB,
            "jobs_mib": (JOB_MEMORY * _present_jobs(stats) + _body_bytes(self._server.web_port)) / MIB,
            "fds": process.num_fds(),
            "connections": float(stats["current-connections"]),
            "journal_mib": _size(self._server.journal) / MIB,
            "cpu_percent": process.cpu_percent(),
        }
        if self._last:
            seconds = totals["at"] - self._last["at"]
            for name in ("puts", "reserves", "deletes"):
                sample[name] = (totals[name] - self._last[name]) / seconds
        self._last = totals
        self.samples.append(sample)


def main() -> int:
    """Run the soak test that the arguments describe."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    parser.add_argument("--directory", type=Path, default=REPOSITORY / "build" / "soak")
    options = parser.parse_args()
    report = soak(options.seconds, options.seed, options.directory)
    print(json.dumps({key: value for key, value in report.items() if key != "samples"}, indent=2))
    return 1 if report["wrong"] else 0


def soak(seconds: float, seed: int, directory: Path) -> dict[str, object]:
    """Put load on a server for *seconds*; write a report to *directory*, and return it."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    print(f"seed {seed}, {seconds:.0f} s, in {directory}", flush=True)
    server = Server(directory)
    try:
        return _soak(seconds, seed, directory, server)
    finally:
        server.kill()


def _soak(seconds: float, seed: int, directory: Path, server: Server) -> dict[str, object]:
    ledger = Ledger()
    sampler = Sampler(server)
    until = time.time() + seconds
    players = _players(clients.Target(server.port, server.web_port, until), seed, directory)
    sampler.start()
    wrong = ledger.wrong
    marks: list[tuple[float, str]] = []
    kills = _kill_workers(server, until, lambda: _restart_at(until - seconds * 0.75, server, sampler, marks))
    for player in players:
        player.join(TIMEOUT)
        if player.exitcode != 0:
            player.kill()
            wrong.append(f"a process of clients has not ended: {player.exitcode}")
    for number in range(len(players)):
        result = directory / f"ledger-{number}"
        if result.exists():
            ledger.merge(pickle.loads(result.read_bytes()))  # noqa: S301  we have just written it
            result.unlink()
    sampler.is_over = True
    sampler.join(TIMEOUT)
    figures = _figures(sampler.samples, seconds, wrong)
    figures["fds at the end"] = _files_at_the_end(server, wrong)
    sums = audit(ledger, _present(server))
    try:
        server.stop_and_check()
    except AssertionError as error:
        wrong.append(str(error))
    _look_at_what_is_left(server, wrong)
    report: dict[str, object] = {
        "seconds": seconds,
        "seed": seed,
        "jobs": sums,
        "workers killed": kills,
        "actions": dict(sorted(ledger.actions.items())),
        "figures": figures,
        "wrong": wrong[:100],
        "samples": sampler.samples,
    }
    (directory / "report.json").write_text(json.dumps(report, indent=1))
    facts = [f"{name}: {report[name]}" for name in ("seconds", "jobs", "workers killed", "actions", "figures", "wrong")]
    (directory / "report.html").write_text(plot.page("A soak of Greenstalk Server", facts, sampler.samples, marks))
    return report


def _players(target: clients.Target, seed: int, directory: Path) -> list[BaseProcess]:
    context = multiprocessing.get_context("spawn")
    players: list[BaseProcess] = []
    for number, roles in enumerate(PROCESSES):
        result = directory / f"ledger-{number}"
        player = context.Process(target=clients.run, args=(number, list(roles), target, seed, result))
        player.start()
        players.append(player)
    return players


def _restart_at(when: float, server: Server, sampler: Sampler, marks: list[tuple[float, str]]) -> None:
    if not marks and time.time() > when:
        marks.append((sampler.now(), "stopped with SIGTERM, and started again"))
        server.restart()


def _kill_workers(server: Server, until: float, on_poll: Callable[[], None]) -> int:
    """Kill one worker after the other at random moments until *until*; return their number."""
    kills = 0
    while time.time() < until:
        with subprocess.Popen(
            [sys.executable, "-m", "tools.soak.victim", str(server.port)], cwd=REPOSITORY, stderr=subprocess.DEVNULL
        ) as victim:
            time.sleep(min(KILL_EVERY, max(0.0, until - time.time())))
            victim.kill()
        kills += 1
        on_poll()
    return kills


def _figures(samples: list[dict[str, float]], seconds: float, wrong: list[str]) -> dict[str, object]:
    """Return the figures of the steady phase, and record an error for each that has grown."""
    steady = [sample for sample in samples if sample["at"] > seconds / 2 and "puts" in sample]
    third = len(steady) // 3
    if not third:
        wrong.append("there is no steady phase")
        return {}

    def grown(key: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(map(key, steady[-third:])) - statistics.median(map(key, steady[:third]))

    memory = grown(lambda sample: sample["rss_mib"] - sample["jobs_mib"])
    files = grown(lambda sample: sample["fds"] - sample["connections"])
    if memory * MIB > MEMORY_MAY_GROW * (1 if seconds >= SETTLED_AFTER else 3):
        wrong.append(f"memory besides the jobs has grown by {memory:.1f} MiB in the steady phase")
    if files > FILES_MAY_GROW:
        wrong.append(f"file descriptors have grown by {files:.0f} in the steady phase")
    rates: dict[str, object] = {
        f"{name} a second": round(statistics.mean([s[name] for s in steady]), 1) for name in ("puts", "deletes")
    }
    return rates | {
        "memory grown besides jobs, MiB": round(memory, 2),
        "memory at most, MiB": round(max(s["rss_mib"] for s in samples), 1),
        "file descriptors grown": files,
        "p50, ms": round(statistics.median([s["p50_ms"] for s in steady]), 2),
        "p99 of a second, median, ms": round(statistics.median([s["p99_ms"] for s in steady]), 2),
        "p99 of a second, at most, ms": round(max(s["p99_ms"] for s in steady), 1),
        "journal at most, MiB": round(max(s["journal_mib"] for s in samples), 2),
        "CPU, percent": round(statistics.mean([s["cpu_percent"] for s in steady]), 1),
    }


def _files_at_the_end(server: Server, wrong: list[str]) -> int:
    """Check that, without clients, no more descriptors are open than the server and its journal need."""
    process, needed = psutil.Process(server.process.pid), 30
    try:
        eventually(lambda: process.num_fds() <= needed and not process.net_connections("tcp")[2:], "all are closed")
    except AssertionError:
        wrong.append(
            f"{process.num_fds()} file descriptors are open when all clients have left: {process.net_connections()}"
        )
    return int(process.num_fds())


def _present(server: Server) -> dict[int, bytes]:
    """Return every existing job, by peeking at every id that may have been given."""
    present: dict[int, bytes] = {}
    with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as sock, sock.makefile("rb") as reader:
        sock.sendall(b"put 0 0 60 0\r\n\r\n")
        last = int(reader.readline().split()[1])
        sock.sendall(b"delete %d\r\n" % last)
        assert reader.readline() == b"DELETED\r\n"
        for begin in range(1, last, 200):
            ids = range(begin, min(begin + 200, last))
            sock.sendall(b"".join([b"peek %d\r\n" % id for id in ids]))
            for id in ids:
                words = reader.readline().split()
                if words[0] == b"FOUND":
                    assert int(words[1]) == id
                    present[id] = reader.read(int(words[2]) + 2)[:-2]
    return {id: body for id, body in present.items() if body != b"probe"}


def _look_at_what_is_left(server: Server, wrong: list[str]) -> None:
    said = server.log
    if "Traceback" in said or " error" in said.lower():
        wrong.append(f"the log has errors: {server.log_file}")
    checked = subprocess.run(
        [sys.executable, "-m", "greenstalk_server", "journal", "check", str(server.journal)],
        cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if checked.returncode:
        wrong.append(f"the journal is not sound: {checked.stdout[:2000]}{checked.stderr[:2000]}")


def _probe(sock: socket.socket, reader: object) -> float:
    """Return the seconds that putting, reserving and deleting a job take."""
    read = reader.readline  # type: ignore[attr-defined]
    began = time.perf_counter()
    sock.sendall(b"put 0 0 60 5\r\nprobe\r\n")
    read()
    sock.sendall(b"reserve\r\n")
    _, id, _ = read().split()
    read()
    sock.sendall(b"delete %b\r\n" % id)
    read()
    return time.perf_counter() - began


def _present_jobs(stats: dict[str, str]) -> int:
    return sum(int(stats[f"current-jobs-{state}"]) for state in clients.STATES)


def _body_bytes(web_port: int) -> float:
    """Return the bytes of the bodies of all jobs, according to the server's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{web_port}/metrics", timeout=TIMEOUT) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("greenstalk_tube_bytes{"))


def _size(directory: Path) -> int:
    total = 0
    for path in directory.iterdir():
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # compaction is running
            continue
    return total


if __name__ == "__main__":
    sys.exit(main())
