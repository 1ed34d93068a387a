"""The measured figures in docs/performance.md: tables by direction, written between two markers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import document
from bench.modes import CYCLE, Target
from bench.report import OURS, PEER, ModeResult
from tests.support.daemon import REPOSITORY


def result(name: str, *targets: Target, **samples: Any) -> ModeResult:
    result = ModeResult(replace(CYCLE, name=name, targets=targets))
    for column, values in samples.items():
        for round_values in zip(*values.values(), strict=True):
            result.add(column, dict(zip(values, round_values, strict=True)))
    return result


CPU = result(
    "cycle",
    Target("cpu_us", "at most", 1.1),
    **{
        OURS: {"cpu_us": [9.0, 12.0, 10.0], "rate": [5.0] * 3, "others_busy": [0.0] * 3},
        "compiled": {"cpu_us": [8.0, 8.0, 8.0], "rate": [6.0] * 3, "others_busy": [0.0] * 3},
        PEER: {"cpu_us": [10.0, 8.0, 12.5], "rate": [4.0] * 3, "others_busy": [0.0] * 3},
    },
)
RATE = result(
    "pipelined-put",
    Target("rate", "at least", 5),
    **{OURS: {"cpu_us": [1.0], "rate": [300_000.0]}, PEER: {"cpu_us": [5.0], "rate": [100_000.0]}},
)
IDLE = result(
    "idle",
    Target("bytes_per_connection", "at most", 8_000, absolute=True),
    **{OURS: {"bytes_per_connection": [7.61]}, PEER: {"bytes_per_connection": [1234.5]}},
)


def test_each_table_has_one_direction() -> None:
    assert document.tables([CPU, RATE, IDLE]).splitlines() == [
        "### Cost relative to beanstalkd (lower is better)",
        "",
        "| load | connections | figure | Greenstalk | compiled | target |",
        "|---|---|---|--:|--:|--:|",
        "| `cycle` | 50 | server CPU per command | 1.00 (0.80–1.50) | 0.80 (0.64–1.00) | 1.1 |",
        "",
        "### Throughput relative to beanstalkd (higher is better)",
        "",
        "| load | connections | figure | Greenstalk | compiled | target |",
        "|---|---|---|--:|--:|--:|",
        "| `pipelined-put` | 50 | throughput | 3.00 |  | 5 |",
        "",
        "### Figures with an absolute target",
        "",
        "| load | connections | figure | Greenstalk | compiled | beanstalkd | target |",
        "|---|---|---|--:|--:|--:|--:|",
        "| `idle` | 50 | bytes per connection | 7.6 |  | 1,234 | at most 8,000 |",
    ]


def test_only_the_lines_between_the_markers_are_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Before\n\n{document.BEGIN}\nold\n{document.END}\n\nAfter.\n")
    for _ in range(2):
        document.write(page, "One machine.", [RATE])
        head, tail = page.read_text().split("\n\nOne machine.\n\n### Throughput")
        assert head == f"# Before\n\n{document.BEGIN}"
        assert tail.endswith(f"| 5 |\n\n{document.END}\n\nAfter.\n")
        assert "old" not in tail


def test_performance_page_has_the_markers() -> None:
    document.check(REPOSITORY / "docs" / "performance.md")
