"""The measured figures in docs/performance.md: tables by direction, written between two markers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import document
from bench.errors import BenchError
from bench.modes import CYCLE, Target
from bench.report import FLOOR, OURS, PEER, PLAIN, ModeResult
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
        FLOOR: {"cpu_us": [5.0, 5.0, 5.0], "rate": [9.0] * 3, "others_busy": [0.0] * 3},
    },
)
RATE = result(
    "pipelined-put",
    Target("rate", "at least", 5),
    **{OURS: {"cpu_us": [1.0], "rate": [300_000.0]}, PEER: {"cpu_us": [5.0], "rate": [100_000.0]}},
)
POLICY = ModeResult(replace(CYCLE, name="policy-rate", policies="[policies.x]", targets=CPU.mode.targets))
for _ours, _plain in ((10.5, 10.0), (11.0, 10.0), (13.0, 10.0)):
    POLICY.add(OURS, {"cpu_us": _ours, "rate": 5.0})
    POLICY.add(PLAIN, {"cpu_us": _plain, "rate": 5.0})
EXPIRY = ModeResult(
    replace(
        CYCLE, name="policy-expire", measurement="expiry", policies="[policies.x]",
        targets=(Target("held_ms", "at most", 10, absolute=True),),
    )
)  # fmt: skip
EXPIRY.add(OURS, {"held_ms": 7.0, "expiry_seconds": 3.0})
HELD = result(
    "due", Target("held_ms", "at most", 10, absolute=True), **{OURS: {"held_ms": [7.61]}, PEER: {"held_ms": [1234.5]}}
)


def test_each_table_has_one_direction() -> None:
    assert document.tables([CPU, RATE, HELD]).splitlines() == [
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
        "| `due` | 50 | ms of the longest wait for a reply | 7.6 |  | 1,234 | at most 10 |",
    ]


def test_modes_with_policies_are_compared_with_the_server_without_them() -> None:
    assert document.tables([POLICY, EXPIRY]).splitlines() == [
        "### Cost relative to the same server without policies (lower is better)",
        "",
        "| load | connections | figure | Greenstalk | target |",
        "|---|---|---|--:|--:|",
        "| `policy-rate` | 50 | server CPU per command | 1.10 (1.05–1.30) | 1.1 |",
        "",
        "### Figures with an absolute target",
        "",
        "| load | connections | figure | Greenstalk | target |",
        "|---|---|---|--:|--:|",
        "| `policy-expire` | 50 | ms of the longest wait for a reply | 7.0 | at most 10 |",
    ]


def test_run_replaces_only_the_part_of_its_modes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = document.BEGIN_POLICIES, document.END
    page.write_text(f"{document.BEGIN}\nfirst\n{end}\n\n{begin}\nsecond\n{end}\n")
    document.check(page)
    document.write(page, "One machine.", [POLICY])
    assert "first" in page.read_text() and "second" not in page.read_text()
    document.write(page, "One machine.", [RATE])
    assert "first" not in page.read_text() and "`policy-rate`" in page.read_text()


def test_only_the_lines_between_the_markers_are_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Before\n\n{document.BEGIN}\nold\n{document.END}\n\nAfter.\n")
    for _ in range(2):
        document.write(page, "One machine.", [RATE])
        head, tail = page.read_text().split("\n\nOne machine.\n\n### Throughput")
        assert head == f"# Before\n\n{document.BEGIN}"
        assert tail.endswith(f"| 5 |\n\n{document.END}\n\nAfter.\n")
        assert "old" not in tail


@pytest.mark.parametrize("text", ["", document.BEGIN, document.END, f"{document.BEGIN}\n{document.END}"])
def test_document_without_markers_is_refused_before_the_measurement(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(BenchError, match="lacks the line"):
        document.check(page)
    assert page.read_text() == text


def test_performance_page_has_the_markers() -> None:
    document.check(REPOSITORY / "docs" / "performance.md")
