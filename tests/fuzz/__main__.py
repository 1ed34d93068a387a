"""`make fuzz`: run every target for a while, starting from the corpus of earlier runs.

    python -m tests.fuzz [--seconds N] [--seed N] [--directory DIR] [--keep] [TARGET...]
    python -m tests.fuzz --repeat FILE TARGET

The first target has one processor all the time, the others share another one. Inputs that a run finds are left in DIR,
by target; `--keep` adds them to the corpus, and minimizes it. `--repeat` runs one input.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Final

from tests.fuzz import corpus
from tests.support.daemon import REPOSITORY

TARGETS: Final = ("wire", "journal", "binlog", "archive")

LONGEST: Final = 1000
"""Maximum bytes of an input."""

HANGS_AFTER: Final = 60
"""Seconds per input. The slowest known input takes a fifth of a second on an idle machine."""

MEMORY_MIB: Final = 256
"""Maximum memory of the process. It needs a quarter of that, and should not grow from input to input."""


def main() -> int:
    """Fuzz as the arguments describe; return 1 if a run has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31 - 1) + 1)
    parser.add_argument("--directory", type=Path, default=REPOSITORY / "build" / "fuzz")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--repeat", type=Path)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    options = parser.parse_args()
    options.targets = options.targets or list(TARGETS)
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"{min(unknown)} is none of {', '.join(TARGETS)}")
    if options.repeat is not None:
        for target in options.targets:
            import_module(f"tests.fuzz.{target}").one(options.repeat.read_bytes())
        return 0
    first, *others = options.targets
    print(f"seed {options.seed}", flush=True)
    found: list[str] = []
    lanes = [[first], others] if others else [[first]]
    threads = [
        threading.Thread(target=_run_lane, args=(lane, options.seconds / len(lane), options, found)) for lane in lanes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if options.keep:
        for target in options.targets:
            print(f"{target}: {corpus.keep(target, options.directory / target)} inputs kept")
    return 1 if found else 0


def _run_lane(targets: list[str], seconds: float, options: argparse.Namespace, found: list[str]) -> None:
    found += [target for target in targets if not _run(target, seconds, options)]


def _run(target: str, seconds: float, options: argparse.Namespace) -> bool:
    """Fuzz *target*; return whether no input failed."""
    inputs, findings = options.directory / target, options.directory / f"{target}-found"
    corpus.unpack(target, inputs)
    findings.mkdir(parents=True, exist_ok=True)
    flags = (
        f"-max_total_time={max(1, round(seconds))}",
        f"-seed={options.seed}",
        f"-max_len={LONGEST}",
        f"-timeout={HANGS_AFTER}",
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-artifact_prefix={findings}/",
        "-len_control=0",
        "-print_final_stats=1",
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.target", target, *flags, str(inputs)],
        cwd=REPOSITORY,
        env=os.environ | {"GREENSTALK_PURE": "1"},  # compiled code has no coverage to guide the fuzzer
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    said = done.stdout
    executed = re.search(r"number_of_executed_units: (\d+)", said)
    reached = re.findall(r" cov: (\d+)", said)
    size = re.search(r"peak_rss_mb: +(\d+)", said)
    print(
        f"{target}: {executed[1] if executed else '?'} inputs, {reached[-1] if reached else '?'} places reached,"
        f" {size[1] if size else '?'} MB at most",
        flush=True,
    )
    if done.returncode:
        print(said[-6000:])
        print(f"again: python -m tests.fuzz --repeat FILE {target}; the file is in {findings}", flush=True)
    return not done.returncode


if __name__ == "__main__":
    sys.exit(main())
