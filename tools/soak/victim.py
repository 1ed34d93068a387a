"""A worker that will be killed: it reserves, holds, buries, releases and touches jobs, but deletes none."""

from __future__ import annotations

import random
import sys
import time
from typing import Final

import greenstalk

from tools.soak.clients import TUBES

JOBS_PER_SECOND: Final = 200
"""Low enough that the kicker restores buried jobs faster than a victim buries them: the number of jobs is steady."""


def main() -> None:
    """Reserve jobs until the end."""
    rng = random.Random()  # noqa: S311
    with greenstalk.Client(("127.0.0.1", int(sys.argv[1])), encoding=None, watch=TUBES) as client:
        while True:
            try:
                job = client.reserve(timeout=1)
                rng.choice((client.bury, client.release, client.touch, lambda job: None))(job)
                time.sleep(rng.expovariate(JOBS_PER_SECOND))
            except (greenstalk.TimedOutError, greenstalk.DeadlineSoonError, greenstalk.NotFoundError):
                pass


if __name__ == "__main__":
    main()
