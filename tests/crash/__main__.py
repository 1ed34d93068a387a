"""Run many rounds: `python -m tests.crash --rounds 300`; exit with 1 at the first failure."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.rounds import Rounds
from tests.crash.tagged import TaggedRounds


def main() -> int:
    """Run as many rounds as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="of the load (default: a new one)")
    parser.add_argument("--directory", type=Path, help="where the journal is to be (default: a temporary one)")
    parser.add_argument("--tagged", action="store_true", help="put jobs with tags, and check what the tags promise")
    options = parser.parse_args()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="greenstalk-crash-"))
    print(f"seed {options.seed}, {options.rounds} rounds, journal in {directory}", flush=True)
    if options.tagged:
        return _run_tagged(directory, options)
    rounds, began = Rounds(directory, options.seed, ["-f", "0"]), time.monotonic()
    acknowledged = 0
    for number in range(1, options.rounds + 1):
        try:
            report = rounds.run(is_whole=number == options.rounds)
        except AssertionError as error:
            print(f"FAILED in round {number}, seed {options.seed}; the journal is kept in {directory}:\n{error}")
            return 1
        acknowledged += report.acknowledged
        print(report, flush=True)
    took = time.monotonic() - began
    print(f"passed: {options.rounds} rounds in {took:.0f} s, {acknowledged} replies audited, seed {options.seed}")
    if options.directory is None:
        shutil.rmtree(directory)
    return 0


def _run_tagged(directory: Path, options: argparse.Namespace) -> int:
    rounds = TaggedRounds(directory, options.seed)
    try:
        for number in range(1, options.rounds + 1):
            print(f"round {number}: {rounds.run()}", flush=True)
        rounds.finish()
    except AssertionError as error:
        print(f"FAILED, seed {options.seed}; the journal is kept in {directory}:\n{error}")
        return 1
    print(f"passed: {options.rounds} rounds, {rounds.load}, seed {options.seed}")
    if options.directory is None:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
