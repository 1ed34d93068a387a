"""Tables of the reference have a row for each command of the protocol and each exit code, and no other row."""

from __future__ import annotations

import re

from greenstalk_server.protocol.verbs import VERBS
from greenstalk_server.runtime import exit_codes
from tests.support.daemon import REPOSITORY


def first_cells(page: str, heading: str) -> list[str]:
    """Return the first cell of each row of the table of *page* whose first column is *heading*, in plain text."""
    _, found, rest = (REPOSITORY / "docs" / page).read_text().partition(f"\n| {heading} |")
    assert found, f"{page} has no such table"
    rows = rest.partition("\n\n")[0].splitlines()[2:]
    cells = [re.match(r"\| ((?:[^|\\]|\\.)*) \|", row)[1] for row in rows]
    return [re.sub(r"\]\([^)]*\)|[`[]|\\(?=\|)", "", cell) for cell in cells]


def test_each_command_is_listed_with_its_arguments() -> None:
    written = [f"{verb.name.decode()} {verb.arguments}".rstrip() for verb in VERBS]
    assert first_cells("commands.md", "command") == [line.replace("[", "") for line in written]


def test_each_exit_code_is_listed() -> None:
    codes = {value for name, value in vars(exit_codes).items() if name.startswith("EXIT_")}
    assert {int(cell) for cell in first_cells("configuration.md", "code")} == codes
