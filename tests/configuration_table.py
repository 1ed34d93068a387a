"""The table of docs/configuration.md, from DEFINITIONS: python -m tests.configuration_table writes it into the page."""

from __future__ import annotations

from greenstalk_server.config.options import DEFINITIONS, Definition, Kind
from tests.support.daemon import REPOSITORY

PAGE = REPOSITORY / "docs" / "configuration.md"
BEGIN = "<!-- made of DEFINITIONS by python -m tests.configuration_table -->\n"
END = "<!-- end -->\n"


def table() -> str:
    """Every option, one a line."""
    head = ("flag", "variable", "key", "default", "")
    rows = [head, ("---",) * len(head), *map(_cells, DEFINITIONS)]
    return "".join([f"| {' | '.join(row)} |\n".replace("  ", " ") for row in rows])


def page() -> str:
    """The page as it is to be, with the table of now."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2]


def _cells(row: Definition) -> tuple[str, ...]:
    flags = ", ".join(_code(f"{flag} {row.metavar}".rstrip()) for flag in row.flags)
    implied = f" (as {_code(row.implies)})" if row.kind is Kind.SWITCH and row.key else ""
    return flags + implied, _code(row.variable), _code(row.key), _code(row.default or ""), row.help


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    PAGE.write_text(page())
