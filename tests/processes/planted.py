"""Check the history checker: plant a bug in a copy of the server, and see that rounds find it.

`python -m tests.processes.planted` does that for each of BUGS; it exits with 1 if one is not found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.daemon import REPOSITORY

COPIED: Final = ("greenstalk_server", "greenstalkctl", "greenstalk_client", "web", "static", "templates", "tests")
ROUNDS: Final = 10


@dataclass(frozen=True, slots=True)
class Bug:
    """A bug that rounds of *options* must find.

    changes     of the source: a file, a text that occurs once in it, and the text that replaces it.
    """

    name: str
    options: tuple[str, ...]
    changes: tuple[tuple[str, str, str], ...]


def kind(name: str, *options: str) -> tuple[str, ...]:
    """Return the options for rounds of one kind."""
    return (*options, "--kind", name)


POSTGRESQL: Final = "--postgresql"

BUGS: Final = (
    Bug(
        "a front drops a claim",
        kind("pause"),
        (
            (
                "greenstalk_server/protocol/front_works.py",
                "            session.decline_all(claimed)\n            return reply\n        session.pass_heads",
                (
                    "            session.decline_all(claimed)\n"
                    "            return reply if now % 16 else self.begin(session, now)\n"
                    "        session.pass_heads"
                ),
            ),
        ),
    ),
    Bug(
        "a shard is served twice",
        kind("pause an owner", POSTGRESQL),
        (
            (
                "greenstalk_server/journal/postgresql/rows.py",
                "WHERE id = %s AND epoch = %s AND holder = %s FOR SHARE),",
                "WHERE id = %s AND %s::bigint IS NOT NULL AND %s::uuid IS NOT NULL FOR SHARE),",
            ),
            (
                "greenstalk_server/journal/postgresql/rows.py",
                '_UNLESS_THERE if self._was_sent else b""',
                "_UNLESS_THERE",
            ),
            (
                "greenstalk_server/journal/postgresql/rows.py",
                "                self._raise_epoch()\n",
                "",
            ),
            (
                "greenstalk_server/cluster/leadership.py",
                "        return self.lost\n",
                '        return ""\n',
            ),
        ),
    ),
    Bug(
        "an owner replies before the commit",
        kind("kill during slow network", POSTGRESQL),
        (
            (
                "greenstalk_server/net/link.py",
                "if self._committer is not None and (session.reports or self._journal.promised != promised):",
                "if False:",
            ),
        ),
    ),
    Bug(
        "a direct connection replaces a relayed link",
        kind("relayed cut between two servers", POSTGRESQL),
        (
            (
                "greenstalk_server/net/links.py",
                "        link.change_over(peer.nonce, sock, peer.unread, is_first=continued is not None)\n",
                '        self._serve(sock, peer, "", self.own)\n',
            ),
        ),
    ),
    Bug(
        "an offer that lapses is counted",
        kind("pause"),
        (
            (
                "greenstalk_server/core/transitions/waiting.py",
                "    tube = end_offer(client)\n    if tube is not None:\n",
                (
                    "    job = client.offered\n    tube = end_offer(client)\n    if tube is not None:\n"
                    "        job.reserves += 1\n"
                ),
            ),
        ),
    ),
    Bug(
        "reservations of a front that has ended are restored",
        kind("kill an owner", POSTGRESQL),
        (
            (
                "greenstalk_server/cluster/membership.py",
                "        if process in self._ended:\n            return True\n        return",
                "        return False and",
            ),
        ),
    ),
    Bug(
        "a reservation that its front touches expires",
        kind("kill"),
        (
            (
                "greenstalk_server/core/operations/restoring.py",
                "    job.deadline = now + job.ttr\n    restore_reserved(broker, job, client)\n",
                (
                    "    job.deadline = job.reserved_at + job.ttr\n    restore_reserved(broker, job, client)\n"
                    "    broker.arm(client, job.deadline)\n"
                ),
            ),
            (
                "greenstalk_server/core/operations/ticking.py",
                "    if client.is_suspended:\n",
                "    if client.is_closed:\n",
            ),
        ),
    ),
)


def is_found(bug: Bug) -> bool:
    """Run rounds with *bug*; print and return whether they find it."""
    with tempfile.TemporaryDirectory(prefix="greenstalk-planted-") as name:
        copy = Path(name)
        for folder in COPIED:
            ignored = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(REPOSITORY / folder, copy / folder, symlinks=True, ignore=ignored)
        for file, before, after in bug.changes:
            text = (copy / file).read_text()
            assert text.count(before) == 1, f"{bug.name}: {file} has {text.count(before)} times {before!r}"
            (copy / file).write_text(text.replace(before, after))
        done = subprocess.run(
            [sys.executable, "-m", "tests.processes", "--rounds", str(ROUNDS), *bug.options],
            cwd=copy,
            env=os.environ | {"GREENSTALK_PURE": "1"},
            text=True,
            capture_output=True,
            check=False,
        )
    found = done.stdout.partition("FAILED")[2]
    print(f"{bug.name}:\n  FAILED{found[:600]}" if found else f"{bug.name}: NOT FOUND\n{done.stdout}{done.stderr}")
    return bool(found)


def main() -> int:
    """Plant all bugs, or those whose names contain one of the arguments."""
    words = sys.argv[1:]
    chosen = [bug for bug in BUGS if not words or any(word in bug.name for word in words)]
    return 1 if [bug for bug in chosen if not is_found(bug)] else 0


if __name__ == "__main__":
    sys.exit(main())
