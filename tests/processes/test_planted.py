"""The planted bugs fit the sources."""

from __future__ import annotations

import pytest

from tests.processes.planted import BUGS, Bug
from tests.support.daemon import REPOSITORY


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_text_that_a_bug_replaces_occurs_once(bug: Bug) -> None:
    for file, before, _ in bug.changes:
        assert (REPOSITORY / file).read_text().count(before) == 1, file
