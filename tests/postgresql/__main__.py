"""Compare our server with its journal in PostgreSQL to beanstalkd -f 0: `python -m tests.postgresql [ARGUMENTS]`.

It runs `python -m bench` with 50 connections, in alternating rounds on the same disk, and passes on the ARGUMENTS.
"""

from __future__ import annotations

import subprocess
import sys

from tests.support.cluster import Cluster
from tests.support.daemon import REPOSITORY, environment

PEER = "beanstalkd -l 127.0.0.1 -p {port} -b {dir} -f 0"


def main() -> int:
    """Run the benchmark on a database of its own; return its exit status."""
    with Cluster("shared_buffers = '128MB'") as cluster:
        journal = f"--journal {cluster.url} --journal-name {{dir}}"
        ours = f"{sys.executable} -m greenstalk_server -l 127.0.0.1 -p {{port}} {{web}} {journal}"
        arguments = ["--ours", ours, "--reference", PEER, "--no-floor", "--no-dashboard", "--modes", "put,cycle"]
        command = [sys.executable, "-m", "bench", *arguments, *sys.argv[1:]]
        return subprocess.run(command, cwd=REPOSITORY, env=environment(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
