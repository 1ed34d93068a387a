"""Blocks of examples in docs/greenstalkctl.md, run by bash against a server with jobs in every state.

The blocks are the first one, and those with pipes and redirections; tests/ctl/test_docs.py parses every example, and
tests/ctl runs every command.
"""

from __future__ import annotations

import re
from pathlib import Path

import greenstalk
import pytest

from tests.support.daemon import REPOSITORY, Daemon

from .examples import Example, examples, run

FIRST, *OTHERS = examples((REPOSITORY / "docs" / "greenstalkctl.md").read_text())
BLOCKS = [FIRST, *[block for block in OTHERS if re.search(r" \| | < |\$\(", block.commands)]]

PREAMBLE = """\
ask() {
    printf "$1\\r\\n" >&7
    read -r -u 7 REPLY
}
seed() {  # only built-in commands: an interpreter for each call would take most of the CPU
    local tube id
    for tube in mail post; do
        exec 7<>"/dev/tcp/127.0.0.1/$PORT_OF_QUEUE"
        ask "use $tube"
        ask "watch $tube"
        ask 'put 0 0 60 6\\r\\nburied'
        id=${REPLY//[!0-9]/}
        ask "reserve-job $id"
        read -r -u 7 REPLY  # the body
        ask "bury $id 0"
        ask 'put 0 3600 60 7\\r\\ndelayed'
        ask 'put 0 0 60 5\\r\\nready'
        exec 7>&-
    done
}
greenstalkctl() {
    seed
    case " $* " in
        " top ")  # the key q, on a terminal, once the table is shown: a program that starts discards earlier keys
            (until grep -qs tube screen; do sleep 0.1; done; printf q) | script -qefc "greenstalkctl top" screen ;;
        *" put "* | *" tail "* | *" delete "* | *" clear "*) command greenstalkctl --yes "$@" ;;
        *) command greenstalkctl "$@" ;;
    esac
}
producer() { echo 'a body'; }
echo picture > picture.jpg
printf 'ann\\nbob\\n' > addresses
"""
"""Before each command, `seed` puts jobs of each state into two tubes."""

REPLACEMENTS = {"-eq 0": "-gt 0"}
"""The page's test for buried jobs would end the block."""


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line {block.line}")
def test_each_block_of_examples_succeeds(block: Example, tmp_path: Path) -> None:
    preamble = Example(0, PREAMBLE, None, "", "")
    flags = ("-l", "127.0.0.1", "-p", "0")
    with Daemon(*flags, "--no-web") as server:
        with greenstalk.Client(("127.0.0.1", server.port), use="mail") as queue:
            for _ in range(18):
                queue.put('{"to": "ann"}')
            for id in (17, 18):
                queue.bury(queue.reserve_job(id))
        variables = {"GREENSTALKCTL_SERVER": f"127.0.0.1:{server.port}", "PORT_OF_QUEUE": str(server.port)}
        _, printed = run([preamble, block], tmp_path, REPLACEMENTS, **variables)
    assert printed or ">" in block.commands
