"""The rehearsals of docs/from-beanstalkd.md and docs/backup.md, run with real servers, print what the pages show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.examples import Example, examples, run
from tests.support.daemon import REPOSITORY
from tests.support.ports import free_ports

REHEARSALS = {"from-beanstalkd.md": "Rehearsal", "backup.md": "A rehearsal"}
PORTS = ("11310", "11311", "8090")
"""The ports in the pages. Each is replaced by a free port, because it may be in use."""

WAIT = Example(0, "sleep() { until_it_listens; }\n", None, "", "")
"""Replaces `sleep` of a page: wait until the last started server listens."""


def rehearsal(page: str) -> str:
    """Return the section of docs/*page* that is run."""
    text = (REPOSITORY / "docs" / page).read_text()
    return text.partition(f"\n## {REHEARSALS[page]}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("page", REHEARSALS)
def test_rehearsal_prints_what_the_page_shows(page: str, tmp_path: Path) -> None:
    steps = examples(rehearsal(page))
    script = [step._replace(commands=with_log(step.commands)) for step in steps]
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    _, *printed = run([WAIT, *script], tmp_path, ports)
    assert steps
    assert [without_ports(text) for text in printed] == [without_ports(step.shown) for step in steps]


def with_log(commands: str) -> str:
    """Return *commands* with the output of each server in a file, because pages do not show it."""
    return re.sub(r"(greenstalk-server -.*) &", r"\1 > server.log 2>&1 &", commands)


def without_ports(text: str) -> str:
    """Return *text* with each port of the loopback address replaced by PORT."""
    return re.sub(r"(?<=127\.0\.0\.1:)\d+", "PORT", text)
