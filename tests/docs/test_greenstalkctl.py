"""Blocks of examples in docs/greenstalkctl.md, run by bash against a server with jobs in every state.

The blocks are the first one, and those with pipes and redirections; tests/ctl/test_docs.py parses every example, and
tests/ctl runs every command.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.support.daemon import REPOSITORY, Daemon

from .examples import Example, examples, run

FIRST, *OTHERS = examples((REPOSITORY / "docs" / "greenstalkctl.md").read_text())
BLOCKS = [FIRST, *[block for block in OTHERS if re.search(r" \| | < |\$\(", block.commands)]]

SEED = """\
import sys

import greenstalk

for tube in ("mail", "post"):
    with greenstalk.Client(("127.0.0.1", int(sys.argv[1])), encoding=None, use=tube, watch=tube) as queue:
        if tube == "mail" and queue.stats()["total-jobs"] == 0:
            for _ in range(18):
                queue.put(b'{"to": "ann"}')
            for number in (17, 18):
                queue.bury(queue.reserve_job(number))
        queue.bury(queue.reserve_job(queue.put(b"buried")))
        queue.put(b"delayed", delay=3600)
        queue.put(b"ready")
"""
"""Put jobs of each state into two tubes; before that, put jobs 1 to 18, and bury 17 and 18."""

PREAMBLE = """\
greenstalkctl() {{
    {python} ../seed.py "$PORT_OF_QUEUE" < /dev/null
    case " $* " in
        " top ") (sleep 2; printf q) | script -qefc "greenstalkctl top" /dev/null ;;  # the key q, on a terminal
        *" put "* | *" tail "* | *" delete "* | *" clear "*) command greenstalkctl --yes "$@" ;;
        *) command greenstalkctl "$@" ;;
    esac
}}
producer() {{ echo 'a body'; }}
echo picture > picture.jpg
printf 'ann\\nbob\\n' > addresses
"""

REPLACEMENTS = {"-eq 0": "-gt 0"}
"""The page's test for buried jobs would end the block."""


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line {block.line}")
def test_each_block_of_examples_succeeds(block: Example, tmp_path: Path) -> None:
    (tmp_path / "seed.py").write_text(SEED)
    preamble = Example(0, PREAMBLE.format(python=shlex.quote(sys.executable)), None, "", "")
    flags = ("-l", "127.0.0.1", "-p", "0")
    with Daemon(*flags, "--no-web") as server:
        variables = {"GREENSTALKCTL_SERVER": f"127.0.0.1:{server.port}", "PORT_OF_QUEUE": str(server.port)}
        _, printed = run([preamble, block], tmp_path, REPLACEMENTS, **variables)
    assert printed or ">" in block.commands
