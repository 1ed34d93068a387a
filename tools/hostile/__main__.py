"""Measure the longest event-loop iteration under hostile requests: python -m tools.hostile. See docs/testing.md."""

import argparse
import mmap
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.cpus import choose_cpus, started_on
from bench.errors import BenchError
from bench.modes import Mode
from bench.report import OURS
from bench.servers import POLICY_FILE, Contender, Server, data_directory, free_port, running_server
from greenstalk_server import BUILD

from .loop_clock import CELL
from .probe import probing
from .queue import SCENARIOS as QUEUE
from .scenario import Scenario, Target
from .web import SCENARIOS as WEB

SCENARIOS: Final = {**QUEUE, **WEB}

MAX_ITERATION: Final = 10.0
"""Milliseconds of CPU time that an iteration of the event loop may take."""

FILES: Final = 20_000
"""Open files that a scenario may need."""

IDLE_SECONDS: Final = 0.5
IDLE_SHARE: Final = 0.1
"""The server is idle when it uses less than this share of a CPU for IDLE_SECONDS."""

SETTLE_SECONDS: Final = 60.0
"""Maximum time until the server is idle."""


def main() -> int:
    """Play the scenarios; return 0, or 1 if an iteration exceeded MAX_ITERATION or a scenario failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.hostile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="play only scenarios whose names contain one of these words")
    words = parser.parse_args().words
    if not BUILD.is_compiled:
        print("hostile: this measures the pure build; `make compiled` builds the compiled one", file=sys.stderr)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))
    print(f"{'CPU time in ms, lower is better':52}{'iteration':>10}{'delay':>10}")
    is_exceeded = False
    for name, scenario in SCENARIOS.items():
        if words and not any(word in name for word in words):
            continue
        try:
            iteration, delay = _measure(scenario)
        except (BenchError, OSError) as error:
            print(f"hostile: {name}: {error}", file=sys.stderr)
            is_exceeded = True
            continue
        is_exceeded |= iteration > MAX_ITERATION
        print(f"{name:52}{iteration:10.1f}{delay:10.1f}{'  exceeded' * (iteration > MAX_ITERATION)}", flush=True)
    return int(is_exceeded)


def _measure(scenario: Scenario) -> tuple[float, float]:
    """Play *scenario*; return the longest iteration and the longest delay of another client, CPU ms of the server."""
    cpus = choose_cpus()
    with ExitStack() as at_exit:
        directory = at_exit.enter_context(data_directory())
        clock = at_exit.enter_context(tempfile.NamedTemporaryFile())
        clock.truncate(CELL)
        longest = memoryview(mmap.mmap(clock.fileno(), CELL)).cast("q")
        command = [sys.executable, "-m", "tools.hostile.loop_clock", clock.name, "-p", "{port}"]
        options = ("-l", "plain:127.0.0.1" if scenario.has_tls else "127.0.0.1", *scenario.options)
        if scenario.config:
            Path(directory, POLICY_FILE).write_text(scenario.config)
            options += ("--config", f"{{dir}}/{POLICY_FILE}")
        tls_port = free_port() if scenario.has_tls else None
        if tls_port is not None:
            _make_certificate(directory)
            options += ("--tls-cert", "{dir}/server.pem", "-l", f"127.0.0.1:{tls_port}")
        contender = Contender(OURS, shlex.join(command) + " {web}")
        mode = Mode("hostile", "", "", server_args=options)
        server = at_exit.enter_context(
            running_server(contender, mode, directory, cpus.server, has_dashboard=scenario.has_web)
        )
        at_exit.enter_context(started_on(cpus.load))
        play = scenario.play(Target(server, at_exit, tls_port))
        next(play)
        _await_idle(server)
        with probing(server) as delays:
            longest[0] = 0
            for _ in play:
                raise BenchError("the scenario yields twice")
            _await_idle(server)
            iteration = longest[0]
        return iteration / 1e6, max(delays) / 1e6


def _make_certificate(directory: str) -> None:
    """Write a key and a certificate for it to server.pem in *directory*."""
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost -days 2"
    subprocess.run(
        [*words.split(), "-keyout", "server.pem", "-out", "cert.pem"], cwd=directory, check=True, capture_output=True
    )
    with Path(directory, "server.pem").open("ab") as file:
        file.write(Path(directory, "cert.pem").read_bytes())


def _await_idle(server: Server) -> None:
    """Wait until the server is idle."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        before, began = server.cpu_ns(), time.monotonic_ns()
        time.sleep(IDLE_SECONDS)
        if server.cpu_ns() - before < IDLE_SHARE * (time.monotonic_ns() - began):
            return
        if time.monotonic() > deadline:
            raise BenchError(f"the server is not idle after {SETTLE_SECONDS:g} s")


if __name__ == "__main__":
    sys.exit(main())
