"""The rehearsals of docs/from-beanstalkd.md and docs/backup.md, run with real servers, print what the pages show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import blocks, follow, without_ports

REHEARSALS = {"from-beanstalkd.md": "Rehearsal", "backup.md": "A rehearsal"}


@pytest.mark.parametrize("page", REHEARSALS)
def test_rehearsal_prints_what_the_page_shows(page: str, tmp_path: Path) -> None:
    steps = blocks(page, REHEARSALS[page])
    printed, err = follow(steps, tmp_path)
    assert err == ""
    assert [without_ports(text) for text in printed] == [without_ports(step.output) for step in steps]
