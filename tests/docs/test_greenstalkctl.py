"""Each block of examples in docs/greenstalkctl.md, run by bash against a server with jobs in every state."""

from __future__ import annotations

import shlex
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.daemon import REPOSITORY, Daemon

from .examples import Example, examples, run

BLOCKS = examples((REPOSITORY / "docs" / "greenstalkctl.md").read_text())

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
        *" --follow "*) timeout --signal INT --preserve-status 2 greenstalkctl "$@" || test $? = 130 ;;  # Ctrl-C
        " top ") (sleep 2; printf q) | script -qefc "greenstalkctl top" /dev/null ;;  # the key q, on a terminal
        *" put "* | *" drain-to "* | *" tail "* | *" delete "* | *" clear "*) command greenstalkctl --yes "$@" ;;
        *" flush "* | *" truncate "*) command greenstalkctl --yes "$@" ;;
        *) command greenstalkctl "$@" ;;
    esac
}}
producer() {{ echo 'a body'; }}
echo picture > picture.jpg
printf 'ann\\nbob\\n' > addresses
"""

REPLACEMENTS = {
    "-eq 0": "-gt 0",  # otherwise the page's test for buried jobs would end the block
    "age:>2h reserves:>3 body:~route": "age:<2h reserves:>0 body:~ann",  # matches the jobs of this test
}
"""Replacements in examples that look for jobs which a new server does not have."""


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line {block.line}")
def test_each_block_of_examples_succeeds(block: Example, tmp_path: Path) -> None:
    (tmp_path / "seed.py").write_text(SEED)
    preamble = Example(0, PREAMBLE.format(python=shlex.quote(sys.executable)), None, "", "")
    flags = ("-l", "127.0.0.1", "-p", "0")
    with ExitStack() as stack:
        server = stack.enter_context(Daemon(*flags, "--web-port", "0"))
        replacements = REPLACEMENTS | {"http://127.0.0.1:8080": server.dashboard.rstrip("/")}
        if "queue2:11300" in block.commands:
            other = stack.enter_context(Daemon(*flags, "--no-web"))
            replacements["queue2:11300"] = f"127.0.0.1:{other.port}"
        variables = {"GREENSTALKCTL_SERVER": f"127.0.0.1:{server.port}", "PORT_OF_QUEUE": str(server.port)}
        _, printed = run([preamble, block], tmp_path, replacements, **variables)
    print(printed)
    assert printed or ">" in block.commands
