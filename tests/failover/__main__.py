"""Run many rounds: `python -m tests.failover --rounds 100`; exit with 1 at the first failure."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.failover.rounds import Promotions, Rounds, summary
from tests.support.cluster import Cluster


def main() -> int:
    """Run as many rounds as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.failover", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="seed of the load (default: random)")
    parser.add_argument("--keep-logs", action="store_true", help="keep the logs of the servers")
    parser.add_argument("--kind", help="such as SIGKILL, power or promotion (default: all but promotion)")
    options = parser.parse_args()
    logs = Path(tempfile.mkdtemp(prefix="greenstalk-failover-"))
    print(f"seed {options.seed}, {options.rounds} rounds, logs in {logs}", flush=True)
    began = time.monotonic()
    with ExitStack() as at_exit:
        rounds: Rounds | Promotions
        if options.kind == Promotions.kind:
            rounds = Promotions(logs, options.seed)
        else:
            rounds = Rounds(at_exit.enter_context(Cluster()), logs, options.seed, options.kind)
        at_exit.callback(rounds.close)
        try:
            rounds.begin()
            for _ in range(options.rounds):
                print(rounds.run(), flush=True)
            rounds.finish()
        except AssertionError as error:
            print(f"FAILED, seed {options.seed}; logs in {logs}:\n{error}")
            return 1
    print(summary(rounds.reports))
    took, audited = time.monotonic() - began, rounds.history.acknowledged
    print(f"passed: {options.rounds} rounds in {took:.0f} s, {audited} acknowledgements audited, seed {options.seed}")
    if not options.keep_logs:
        shutil.rmtree(logs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
