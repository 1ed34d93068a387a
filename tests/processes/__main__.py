"""Run many rounds: `python -m tests.processes --rounds 100`; exit with 1 at the first failure."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.processes.cluster_rounds import ClusterRounds, Servers
from tests.processes.databases import Patroni, Single
from tests.processes.outage_rounds import OPTIONS, OutageRounds
from tests.processes.rounds import Rounds, Server, summary
from tests.support.cluster import Cluster
from tests.support.load import Gone


def main() -> int:
    """Run as many rounds as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.processes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="seed of the load (default: random)")
    parser.add_argument("--kind", help="such as kill, pause or stop (default: all)")
    parser.add_argument("--flags", help="of the servers, such as '-f 0' (default: random)")
    parser.add_argument("--postgresql", action="store_true", help="servers on a database instead of one with processes")
    parser.add_argument("--patroni", action="store_true", help="on a database with a standby that Patroni promotes")
    parser.add_argument("--outages", action="store_true", help="as --postgresql, with outages that last too long")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="greenstalk-processes-"))
    print(f"seed {options.seed}, {options.rounds} rounds, journals and log in {directory}", flush=True)
    flags = options.flags.split() if options.flags else None
    with ExitStack() as at_exit:
        if options.outages:
            servers = Servers(Single(at_exit.enter_context(Cluster())), directory, options.seed, OPTIONS)
            rounds: Rounds = OutageRounds(servers, options.seed, flags)
        elif options.postgresql or options.patroni:
            database = at_exit.enter_context(Patroni()) if options.patroni else Single(at_exit.enter_context(Cluster()))
            rounds = ClusterRounds(Servers(database, directory, options.seed), options.seed, flags)
        else:
            data = directory / "data"
            data.mkdir()
            rounds = Rounds(Server(data, directory / "log"), options.seed, flags)
        return _run(rounds, options, directory)


def _run(rounds: Rounds, options: argparse.Namespace, directory: Path) -> int:
    """Run *rounds* as *options* say; return the exit code."""
    began = time.monotonic()
    try:
        rounds.begin()
        for _ in range(options.rounds):
            print(rounds.run(options.kind), flush=True)
        rounds.finish()
    except (AssertionError, OSError, Gone) as error:
        number = len(rounds.reports) + 1
        print(f"FAILED in round {number} ({rounds.kind}), seed {options.seed}; {directory} is kept:")
        print(str(error) or repr(error))
        return 1
    finally:
        rounds.close()
    print(summary(rounds.reports))
    took, audited = time.monotonic() - began, sum([report.acknowledged for report in rounds.reports])
    print(f"passed: {options.rounds} rounds in {took:.0f} s, {audited} acknowledgements audited, seed {options.seed}")
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
