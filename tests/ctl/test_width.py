"""Tables fit the terminal: columns are dropped by rank, names are cut, and no cell is wrapped or empty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalkctl.table import ELLIPSIS, GAP, MIN_WIDTHS, Column, fit
from tests.ctl.world import Client, Terminal, WithApi, connect, ctl, where
from tests.support.servers import Server

LONG = "production.eu-west-1." + "x" * 158 + ".thumbnails.retry-low"
"""A name of 200 bytes that differs from others at both ends."""

LARGE = 2**32 - 1
RULE = "─"


@pytest.fixture
def wide(server: Server, mail: Client) -> Iterator[Server]:
    """A server with a long tube name, a long body, and large numbers."""
    assert len(LONG) == 200
    with connect(server, LONG) as client:
        client.put(b"y" * 300, priority=LARGE, delay=LARGE)
        client.put(b"")
        client.bury(client.reserve(0))
        client.pause_tube(LONG, LARGE)
        mail.put(b"z" * 300, priority=LARGE)
        yield server


def lines_on_terminal(server: Server, columns: int, *args: str) -> list[str]:
    """Return the lines that a command writes to a terminal of *columns* characters; none may be wider."""
    with Terminal(*where(server), *args, "--no-color", columns=columns) as terminal:
        code, view = terminal.end()
    assert code == 0, view
    result = view.rpartition("\x1b")[2].removeprefix("[2K")  # the output after a removed progress bar
    lines = [line.rstrip() for line in result.replace("\r", "").split("\n")]
    assert all(len(line) <= columns for line in lines), lines
    return [line for line in lines if line]


OURS = pytest.mark.parametrize("server", ["ours"], indirect=True)


@OURS
@pytest.mark.parametrize(("columns", "titles"), [(60, ["tube", "ready", "buried", "delayed"]), (120, ["pause left"])])
def test_tubes_has_a_line_for_each_tube_at_any_width(wide: Server, columns: int, titles: list[str]) -> None:
    head, rule, *rows = lines_on_terminal(wide, columns, "tubes")
    assert all(title in head for title in titles)
    assert set(rule) == {RULE}
    assert [row.split()[0] for row in rows if ELLIPSIS not in row] == ["default", "mail"]
    (cut,) = (row.split()[0] for row in rows if ELLIPSIS in row)
    begin, end = cut.split(ELLIPSIS)
    assert LONG.startswith(begin) and LONG.endswith(end)
    assert len(cut) >= MIN_WIDTHS["name"]
    assert abs(len(begin) - len(end)) <= 1


def test_jobs_has_a_line_for_each_job(with_api: WithApi) -> None:
    with connect(with_api, LONG) as client:
        client.put(b"y" * 300, priority=LARGE)
        client.put(b"z" * 300, priority=LARGE)
    head, _, *rows = lines_on_terminal(with_api, 60, "jobs")
    assert head.split() == ["id", "tube", "state", "age", "body"]
    assert len(rows) == 2
    for row, body in zip(rows, "yz", strict=True):
        name, last = row.split()[1], row.split()[-1]
        assert len(name) >= MIN_WIDTHS["name"] and name.endswith("w") and ELLIPSIS in name
        assert len(last) >= MIN_WIDTHS["text"] and last == body * (len(last) - 1) + ELLIPSIS


@OURS
def test_pipe_gets_all_columns_uncut(wide: Server) -> None:
    tubes, top = ctl(wide, "tubes").text, ctl(wide, "top", "--once", "--interval", "0.1").text
    for text in (tubes, top):
        assert ELLIPSIS not in text
        assert sum(LONG in line for line in text.splitlines()) == 1
    assert "pause left" in tubes and "urgent" in tubes and "total" in tubes


@OURS
def test_no_header_leaves_one_line_per_tube(wide: Server) -> None:
    rows = ctl(wide, "tubes", "--no-header").text.splitlines()
    assert {row.split()[0] for row in rows} == {LONG, "default", "mail"}
    assert len({len(row.split()) for row in rows}) == 1
    assert rows == ctl(wide, "--no-header", "tubes").text.splitlines()
    assert lines_on_terminal(wide, 60, "tubes", "--no-header")[0].startswith("default ")


TABLES = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from(["figure", "name", "text"]), st.integers(1, 200)), min_size=1
)


@given(TABLES, st.integers(20, 200), st.booleans())
def test_selected_columns_fit(table: list[tuple[int, str, int]], room: int, keeps_last: bool) -> None:
    columns = [Column("name", 0, "name")]
    columns += [Column(f"column {i}", rank + 1, kind) for i, (rank, kind, _) in enumerate(table)]  # type: ignore[arg-type]
    natural = [200, *(min(width, 20) if kind == "figure" else width for _, kind, width in table)]
    keep = columns[-1].title if keeps_last else ""
    widths = fit(columns, natural, room, keep)
    assert sum(widths.values()) + GAP * (len(widths) - 1) <= max(room, 20 + GAP + 1)
    assert 0 in widths and (not keeps_last or len(columns) - 1 in widths)
    for index, width in widths.items():
        least = MIN_WIDTHS.get(columns[index].kind, 200)
        assert width >= (1 if index == 0 and keeps_last else min(natural[index], least))
        assert width <= natural[index]
    dropped = [column.rank for index, column in enumerate(columns) if index not in widths]
    kept = [column.rank for index, column in enumerate(columns) if index in widths and column.title != keep]
    assert not dropped or min(dropped) >= max(kept)
