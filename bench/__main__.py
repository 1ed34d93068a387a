"""Measure ours against beanstalkd, in turns: python -m bench. See README.md."""

import argparse
import json
import platform
import resource
import shlex
import signal
import sys
from pathlib import Path
from typing import Final, NoReturn

from .cpus import choose_cpus
from .errors import BenchError
from .measure import DISTURBED_PERCENT, Bench
from .modes import METRIC_LABELS, SUITES, Mode, select
from .programs import build
from .report import FLOOR, OURS, PEER, ModeResult, summary, table
from .servers import OURS_COMMAND, Contender

_PEER_COMMAND: Final = "beanstalkd -l 127.0.0.1 -p {port}"
_QUICK_ROUNDS, _QUICK_SECONDS = 1, 0.5


def main() -> int:
    """Run the benchmark; return its exit status: 0, 1 if a mode failed, 2 if none could start."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, _leave)
    _raise_file_limit()
    try:
        modes = _modes(options.modes)
        contenders = _contenders(options)
        bench = Bench(
            build("load"),
            choose_cpus(),
            _QUICK_SECONDS if options.quick else options.seconds,
            _QUICK_ROUNDS if options.quick else options.rounds,
            options.attempts,
            has_dashboard=not options.no_dashboard,
        )
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(_headline(bench, contenders), flush=True)
    try:
        results = {mode: _measure(bench, mode, contenders) for mode in modes}
    except KeyboardInterrupt:
        return 130
    complete = [result for result in results.values() if result]
    failed = [mode for mode, result in results.items() if not result]
    print(summary(complete, failed))
    if options.json:
        _write_json(options.json, bench, contenders, complete)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure ours against beanstalkd, in turns, on loopback.",
        epilog="\n".join(f"{name}: {' '.join(mode.name for mode in suite)}" for name, suite in SUITES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--modes", default="core,durable", help="modes and suites, by comma (core,durable)")
    add("--rounds", type=_positive_int, default=3, help="turns for each server (3)")
    add("--seconds", type=_positive, default=2.0, help="per measurement, at most (2)")
    add("--attempts", type=_positive_int, default=4, help="at a sample that others disturb (4)")
    add("--quick", action="store_true", help="one round of half a second")
    add("--ours", metavar="CMD", default=OURS_COMMAND, help="how ours is started; {web}: its dashboard")
    add("--peer", metavar="CMD", default=_PEER_COMMAND, help="how its peer is started")
    add("--also", metavar="NAME=CMD", action="append", default=[], type=_named_command)
    add("--no-dashboard", action="store_true", help="serve none; else ours has one, open in one tab all the while")
    add("--no-floor", action="store_true", help="leave out the canned replies")
    add("--json", metavar="FILE", type=Path, help="write all samples to FILE")
    return parser


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < 3600:
        raise argparse.ArgumentTypeError(f"{text}: not between 0 and 3600")
    return number


def _positive_int(text: str) -> int:
    number = int(text)
    if not 0 < number < 1000:
        raise argparse.ArgumentTypeError(f"{text}: not between 1 and 999")
    return number


def _named_command(text: str) -> Contender:
    name, separator, command = text.partition("=")
    if not (name and separator and "{port}" in command):
        raise argparse.ArgumentTypeError(f"{text}: NAME=CMD with {{port}} is needed")
    return Contender(name, command)


def _modes(names: str) -> list[Mode]:
    try:
        return select(names.split(","))
    except KeyError as error:
        raise BenchError(f"--modes: no mode or suite is called {error}") from error


def _contenders(options: argparse.Namespace) -> list[Contender]:
    contenders = [Contender(OURS, options.ours), *options.also, Contender(PEER, options.peer)]
    if not options.no_floor:
        floor = shlex.quote(str(build("floor")))
        contenders.append(Contender(FLOOR, f"{floor} {{port}} {{body}}", True))
    return contenders


def _measure(bench: Bench, mode: Mode, contenders: list[Contender]) -> ModeResult | None:
    """The result of *mode*, printed as it comes; None if it could not be had."""
    result = ModeResult(mode)
    try:
        for number, contender, sample in bench.run(mode, contenders):
            _show_progress(f"{mode.name}: round {number + 1}, {contender.name}")
            result.add(contender.name, sample)
    except BenchError as error:
        _show_progress("")
        print(f"bench: {mode.name} failed: {error}\n", file=sys.stderr, flush=True)
        return None
    _show_progress("")
    print(table(result), end="\n\n", flush=True)
    return result


def _show_progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _headline(bench: Bench, contenders: list[Contender]) -> str:
    lines = [f"{c.name}: {c.command}" for c in contenders if not c.is_floor]
    lines += [
        f"Python {platform.python_version()}, {platform.system()} {platform.release()}",
        str(bench.cpus),
        "the dashboard of ours is open in one tab" if bench.has_dashboard else "without the dashboard",
        f"a measurement with more than {DISTURBED_PERCENT:g} % of a CPU used by others is repeated",
        f"median (lowest..highest) of {bench.rounds} rounds of {bench.seconds:g} s: the spread is the machine's noise",
    ]
    return "\n".join(lines) + "\n"


def _write_json(path: Path, bench: Bench, contenders: list[Contender], results: list[ModeResult]) -> None:
    document = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": str(bench.cpus),
        "has_dashboard": bench.has_dashboard,
        "rounds": bench.rounds,
        "seconds": bench.seconds,
        "commands": {contender.name: contender.command for contender in contenders},
        "metrics": METRIC_LABELS,
        "modes": [result.as_json() for result in results],
    }
    path.write_text(json.dumps(document, indent=2) + "\n")


def _raise_file_limit() -> None:
    """Let the servers inherit the hard limit: the peer does not raise its own."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _leave(signal_number: int, frame: object) -> NoReturn:
    """End as by Ctrl-C, so that every server is stopped on the way out."""
    raise KeyboardInterrupt


sys.exit(main())
