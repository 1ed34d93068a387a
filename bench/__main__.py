"""Measure Greenstalk Server against beanstalkd, in turns: python -m bench. See README.md."""

import argparse
import platform
import resource
import signal
import sys
from typing import Final, NoReturn

from .cpus import choose_cpus, cpu_model
from .errors import BenchError
from .measure import DISTURBED_PERCENT, Bench
from .modes import SUITES, Mode, select
from .programs import build
from .report import OURS, PEER, PLAIN, ModeResult, summary, table
from .servers import OURS_COMMAND, Contender

_PEER_COMMAND: Final = "beanstalkd -l 127.0.0.1 -p {port}"
_QUICK_ROUNDS, _QUICK_SECONDS = 1, 0.5


def main() -> int:
    """Run the benchmark; return its exit status: 0, 1 if a mode failed, 2 if the benchmark could not start."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
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
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure Greenstalk Server against beanstalkd, in turns, on loopback.",
        epilog="\n".join(f"{name}: {' '.join(mode.name for mode in suite)}" for name, suite in SUITES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--modes", default="core,durable", help="comma-separated modes and suites (core,durable)")
    add("--rounds", type=_positive_int, default=3, help="measurements of each server and mode (3)")
    add("--seconds", type=_positive, default=2.0, help="maximum length of a measurement (2)")
    add("--attempts", type=_positive_int, default=4, help="attempts at a sample that other processes disturb (4)")
    add("--quick", action="store_true", help="one round of half a second")
    add("--ours", metavar="CMD", default=OURS_COMMAND, help="command of Greenstalk Server; {web}: dashboard options")
    add("--reference", metavar="CMD", default=_PEER_COMMAND, help="command of the server that all are compared with")
    add(
        "--also", metavar="NAME=CMD", action="append", default=[], type=_named_command, help="another server to measure"
    )
    add("--no-dashboard", action="store_true", help="run without the dashboard, which is otherwise open in one tab")
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
        raise argparse.ArgumentTypeError(f"{text}: must be NAME=CMD, and contain {{port}}")
    return Contender(name, command)


def _modes(names: str) -> list[Mode]:
    try:
        return select(names.split(","))
    except KeyError as error:
        raise BenchError(f"--modes: there is no mode or suite {error}") from error


def _contenders(options: argparse.Namespace) -> list[Contender]:
    contenders = [Contender(OURS, options.ours), *options.also, Contender(PEER, options.reference)]
    contenders.append(Contender(PLAIN, options.ours, is_plain=True))
    names = [contender.name for contender in contenders]
    if len(set(names)) < len(names):
        raise BenchError(f"two servers have one name: {', '.join(names)}")
    return contenders


def _measure(bench: Bench, mode: Mode, contenders: list[Contender]) -> ModeResult | None:
    """Measure *mode* and print its table; return None if the measurement failed."""
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
    rounds = f"{bench.rounds} {'round' if bench.rounds == 1 else 'rounds'} of {bench.seconds:g} s"
    lines = [f"{c.name}: {c.command}" for c in contenders if not c.is_plain]
    lines += [
        f"{cpu_model()}, Python {platform.python_version()}, {platform.system()} {platform.release()}",
        str(bench.cpus),
        "the dashboard is open in one tab" if bench.has_dashboard else "no dashboard",
        f"a measurement is repeated if other processes use more than {DISTURBED_PERCENT:g} % of a CPU",
        f"median (lowest..highest) of {rounds}: the spread is the machine's noise",
    ]
    return "\n".join(lines) + "\n"


def _raise_file_limit() -> None:
    """Raise the limit on open files to the hard limit, for beanstalkd, which does not raise its own."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _interrupt(signal_number: int, frame: object) -> NoReturn:
    """Exit as on Ctrl-C, so that every server is stopped."""
    raise KeyboardInterrupt


sys.exit(main())
