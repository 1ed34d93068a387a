"""Show where a command's CPU time goes: python -m bench.profile MODE. See README.md.

The mode's load runs three times, each time on a fresh server: once as in the benchmark, which gives the CPU per
command; once with bench.sampler in the server, which gives the shares of the stages; and once under perf, which gives
the kernel's part of them. For the compiled build perf gives the shares too, because compiled functions have symbols.
The shares are applied to the CPU per command of the first run, in which no profiler runs.
"""

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from .cpus import choose_cpus
from .errors import BenchError
from .flame import Node, svg
from .generator import Generator
from .measure import Bench, Trial, speed
from .modes import Mode, select
from .programs import build
from .report import OURS
from .sampler import START, STOP
from .servers import OURS_COMMAND, REPOSITORY, Contender, Server, data_directory
from .stacks import PythonStacks, Samples
from .stages import STAGES, Stage

_PLAIN_RUNS: Final = 3
_MODULE: Final = "-m greenstalk_server"
_UNWOUND: Final[dict[bool, tuple[str, ...]]] = {
    False: ("--freq", "1999", "--call-graph", "fp"),
    True: ("--freq", "999", "--call-graph", "dwarf,4096"),  # compiled code has no frame pointers
}
_WRITE_SECONDS: Final = 30.0
_PURE_COMMAND: Final = f"env GREENSTALK_PURE=1 {OURS_COMMAND}"
_COLOURS: Final[dict[Stage, str]] = {
    "wait": "#b3c7e6",
    "recv": "#8fd0c8",
    "parse": "#f6d27a",
    "core": "#f2a07b",
    "journal": "#c9a6dd",
    "send": "#9bd08f",
    "connection": "#e3e0a5",
    "dashboard": "#f3b6cc",
    "other": "#d0d0d0",
}


class Profile:
    """The profile of one mode, with *seconds* of load for each of its three runs."""

    def __init__(self, mode: Mode, command: str, seconds: float, *, is_compiled: bool, has_dashboard: bool) -> None:
        """Run the load; *command* starts the server, in the format of Contender."""
        self.mode = mode
        self._command = command
        self._is_compiled = is_compiled
        perf = shutil.which("perf")
        if perf is None:
            raise BenchError("perf is not installed: apt-get install linux-perf")
        self._bench = Bench(build("load"), choose_cpus(), seconds, _PLAIN_RUNS, 1, has_dashboard)
        self.cpu_us = median(self._cpu_us() for _ in range(_PLAIN_RUNS))
        self.samples = self._perf_samples(perf)
        self.stacks = None if is_compiled else self._python_stacks()

    def table(self) -> str:
        """Return the table of the stages, with the CPU time of each per command."""
        has_dashboard = "the dashboard is open in one tab" if self._bench.has_dashboard else "no dashboard"
        counts = f"{self.samples.total:,} samples of perf"
        if self.stacks:
            counts = f"{self.stacks.total:,} stacks; kernel times by {counts}"
        lines = [
            f"{self.mode.name}: {self.mode.about}",
            f"  {self.mode.conditions}; {has_dashboard}",
            f"  µs of server CPU: the median of {_PLAIN_RUNS} runs without a profiler, divided by {counts}",
            "",
            f"  {'stage':12}{'µs/command':>13}{'share':>8}{'in the kernel':>15}",
        ]
        has_journal = "-b" in self.mode.server_args
        shares = self.stacks.shares(has_journal=has_journal) if self.stacks else self.samples.shares()
        for stage, about in STAGES.items():
            in_kernel = self._us(self.samples.kernel[stage])
            lines.append(
                f"  {stage:12}{shares[stage] * self.cpu_us:13.2f}{shares[stage]:8.1%}{in_kernel:15.2f}  {about}"
            )
        in_kernel = self._us(self.samples.kernel.total())
        lines.append(f"  {'all':12}{self.cpu_us:13.2f}{sum(shares.values()):8.1%}{in_kernel:15.2f}")
        parts = [f"{name} {self._us(count):.2f}" for name, count in self.samples.libraries.most_common(6)]
        lines += ["", f"  outside the kernel, µs by library: {', '.join(parts)}"]
        return "\n".join(lines)

    def flame_graph(self) -> str:
        """Return the calls as SVG: those of the main thread, or all calls of the compiled build."""
        root, whole = Node("all", "#eeeeee"), self.cpu_us
        for calls, count in self.stacks.calls() if self.stacks else self.samples.counts.items():
            root.add([(name, _COLOURS[stage]) for name, stage in calls], count)
        title = f"{self.mode.name}: {self.cpu_us:.2f} µs of CPU per command"
        if self.stacks:
            whole *= self.stacks.main_share
            title += f", {whole:.2f} of it in the main thread"
        return svg(root, title, "µs", whole, {str(stage): _COLOURS[stage] for stage in STAGES})

    def _us(self, count: int) -> float:
        """Return the CPU time per command, in µs, that *count* perf samples represent."""
        return count / self.samples.total * self.cpu_us

    def _cpu_us(self) -> float:
        seconds = self._bench.seconds / _PLAIN_RUNS
        with self._load(self._command, seconds) as (server, generator):
            return speed(self._bench.cpus, server, generator)["cpu_us"]

    def _python_stacks(self) -> PythonStacks:
        stacks, measured = PythonStacks(), 0.0
        while measured < self._bench.seconds:
            with tempfile.TemporaryDirectory() as directory:
                path = Path(directory) / "stacks.json"
                sampled = f"-m bench.sampler {shlex.quote(str(path))} greenstalk_server"
                with self._load(self._command.replace(_MODULE, sampled)) as (server, generator):
                    os.kill(server.pid, START)
                    measured += generator.measure().seconds
                    os.kill(server.pid, STOP)
                    _await_file(path)
                    generator.finish()
                stacks.add(path.read_text())
        if not stacks.total:
            raise BenchError("the sampler recorded no stacks: the load may have been too short")
        return stacks

    def _perf_samples(self, perf: str) -> Samples:
        samples, measured = Samples(), 0.0
        while measured < self._bench.seconds:
            with tempfile.TemporaryDirectory() as directory:
                data = Path(directory) / "perf.data"
                record = [perf, "record", "--quiet", "--event", "cpu-clock", *_UNWOUND[self._is_compiled]]
                record += ["--output", str(data)]
                with self._load(self._command) as (server, generator), _recording(record, server.pid, data):
                    measured += generator.measure().seconds
                script = [perf, "script", "--no-inline", "--input", str(data), "--fields", "tid,ip,sym,dso"]
                done = subprocess.run(script, capture_output=True, text=True, errors="replace", check=False)
            for sample in done.stdout.split("\n\n"):
                samples.add(sample)
            if not samples.total:
                raise BenchError(f"perf recorded no samples: {done.stderr.strip()}")
        return samples

    @contextmanager
    def _load(self, command: str, seconds: float | None = None) -> Iterator[tuple[Server, Generator]]:
        """Start a server by *command*, and a load generator that is ready to measure."""
        with data_directory() as directory:
            trial = Trial(self._bench, self.mode, Contender(OURS, command), directory)
            with trial.server() as server, trial.generator(server, seconds=seconds) as generator:
                yield server, generator


def main() -> int:
    """Profile one mode; return the exit status: 0, or 1 if it failed."""
    options = _parser().parse_args()
    try:
        profile = Profile(
            _mode(options.mode),
            options.ours or (OURS_COMMAND if options.compiled else _PURE_COMMAND),
            options.seconds,
            is_compiled=options.compiled,
            has_dashboard=not options.no_dashboard,
        )
    except BenchError as error:
        print(f"profile: {error}", file=sys.stderr)
        return 1
    print(profile.table())
    path = REPOSITORY / "build" / f"profile-{profile.mode.name}{'-compiled' if options.compiled else ''}.svg"
    path.parent.mkdir(exist_ok=True)
    path.write_text(profile.flame_graph())
    print(f"\n  flame graph: {path.relative_to(REPOSITORY)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mode", help="a mode of the benchmark")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of the load for each profiler (15)")
    parser.add_argument("--compiled", action="store_true", help="profile the build that `make compiled` creates")
    parser.add_argument("--ours", metavar="CMD", help=f"command of the server; must contain {_MODULE}")
    parser.add_argument("--no-dashboard", action="store_true", help="run without the dashboard")
    return parser


def _mode(name: str) -> Mode:
    try:
        modes = select([name])
    except KeyError as error:
        raise BenchError(f"there is no mode {error}") from error
    if len(modes) != 1 or modes[0].measurement not in ("speed", "growth"):
        raise BenchError(f"{name}: this mode does not measure CPU per command")
    return modes[0]


@contextmanager
def _recording(argv: list[str], pid: int, data: Path) -> Iterator[None]:
    process = subprocess.Popen([*argv, "--pid", str(pid)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        time.sleep(0.5)  # until perf records
        yield
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    if not data.exists():
        raise BenchError(f"perf record: {errors.strip()}")


def _await_file(path: Path) -> None:
    deadline = time.monotonic() + _WRITE_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise BenchError(f"the sampler wrote no file within {_WRITE_SECONDS:g} s")
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
