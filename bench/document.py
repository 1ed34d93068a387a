"""Write the measured figures into a Markdown document, between marker lines.

The document has a part for the comparison with the peer, and one for the cost of policies. A run replaces each part for
which it has modes. Each part has up to three tables, each with one direction: ratios where lower is better, ratios
where higher is better, and figures whose target is absolute.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from statistics import median
from typing import Final

from .errors import BenchError
from .modes import CONDITIONS, METRIC_LABELS, Metric, Mode, Target
from .report import OURS, PLAIN, ModeResult, base_of

BEGIN: Final = "<!-- Measured figures, written by `python -m bench --report`: do not edit. -->"
BEGIN_POLICIES: Final = (
    "<!-- Cost of policies, written by `python -m bench --modes policies --report`: do not edit. -->"
)
END: Final = "<!-- End of the measured figures. -->"

_RATIO_LABELS: Final[dict[Metric, str]] = {
    "cpu_us": "server CPU per command",
    "p50_us": "latency, p50",
    "p99_us": "latency, p99",
    "p999_us": "latency, p99.9",
    "bytes_per_connection": "memory per connection",
    "bytes_per_job": "memory per job",
    "restart_seconds": "time to restart",
    "rate": "throughput",
}
"""The metrics whose ratios are reported; `rate` is the one of which more is better."""

_OUR_NAME: Final = "Greenstalk"


@dataclass(frozen=True)
class _Row:
    """One measured metric of one mode."""

    result: ModeResult
    metric: Metric

    @property
    def target(self) -> Target | None:
        return next((target for target in self.result.mode.targets if target.metric == self.metric), None)


def check(path: Path) -> None:
    """Raise BenchError unless the document at *path* has all markers."""
    for begin in (BEGIN, BEGIN_POLICIES):
        _split(path, begin)


def write(path: Path, conditions: str, results: list[ModeResult]) -> None:
    """Replace the lines between the markers with *conditions* and the tables of *results*."""
    for begin, has_policies in ((BEGIN, False), (BEGIN_POLICIES, True)):
        chosen = [result for result in results if bool(result.mode.policies) == has_policies]
        if chosen:
            head, tail = _split(path, begin)
            path.write_text(f"{head}{begin}\n\n{conditions}\n\n{tables(chosen)}\n\n{END}{tail}")


def tables(results: list[ModeResult]) -> str:
    """Return the Markdown tables of *results*, which share one base; a table without rows is left out."""
    base = base_of(results[0].mode)
    heading = "relative to the same server without policies" if base == PLAIN else f"relative to {base}"
    cost, throughput, absolute = [], [], []
    for result in results:
        for metric in result.metrics():
            row = _Row(result, metric)
            if metric in CONDITIONS:
                continue
            if row.target is not None and row.target.absolute:
                absolute.append(row)
            elif _measures_throughput(result.mode):
                throughput += [row] if metric == "rate" else []
            elif metric in _RATIO_LABELS and metric != "rate":
                cost.append(row)
    builds = list(dict.fromkeys(build for result in results for build in result.builds))
    parts = []
    if cost:
        parts += [f"### Cost {heading} (lower is better)", "", *_ratios(cost, builds), ""]
    if throughput:
        parts += [f"### Throughput {heading} (higher is better)", "", *_ratios(throughput, builds), ""]
    if absolute:
        parts += ["### Figures with an absolute target", "", *_values(absolute, builds, base), ""]
    return "\n".join(parts).rstrip("\n")


def _split(path: Path, marker: str) -> tuple[str, str]:
    """Return the text before *marker*, and the text after the measured figures that follow it."""
    try:
        text = path.read_text()
    except OSError as error:
        raise BenchError(f"--report: cannot read {path}: {error.strerror}") from error
    head, begin, rest = text.partition(marker)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise BenchError(f"--report: {path} lacks the line {(marker, END)[bool(begin)]!r}")
    return head, tail


def _measures_throughput(mode: Mode) -> bool:
    return any(target.metric == "rate" for target in mode.targets)


def _ratios(rows: list[_Row], builds: list[str]) -> Iterable[str]:
    """A table of ratios to the base: of the medians, with the lowest and highest of a single round."""
    yield from _header(["load", "connections", "figure"], [*map(_column, builds), "target"])
    for row in rows:
        ratios = [_ratio(row, build) for build in builds]
        target = f"{row.target.bound:g}" if row.target is not None else ""
        yield _line([*_load(row), _RATIO_LABELS[row.metric], *ratios, target])


def _values(rows: list[_Row], builds: list[str], base: str) -> Iterable[str]:
    """A table of measured values, with those of *base* if it has any; the target is an upper or a lower bound."""
    columns = [*builds, *([base] if any(base in row.result.samples for row in rows) else [])]
    yield from _header(["load", "connections", "figure"], [*map(_column, columns), "target"])
    for row in rows:
        values = [_value(row, column) for column in columns]
        assert row.target is not None
        yield _line([*_load(row), METRIC_LABELS[row.metric], *values, f"{row.target.relation} {row.target.bound:,g}"])


def _load(row: _Row) -> list[str]:
    mode = row.result.mode
    return [f"`{mode.name}`", f"{mode.connections:,}"]


def _column(build: str) -> str:
    return _OUR_NAME if build == OURS else build


def _ratio(row: _Row, build: str) -> str:
    if not {build, row.result.base} <= row.result.samples.keys():
        return ""
    ratio = row.result.ratio(row.metric, build)
    if isnan(ratio.middle):
        return ""
    if ratio.low == ratio.high:
        return f"{ratio.middle:.2f}"
    return f"{ratio.middle:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"


def _value(row: _Row, column: str) -> str:
    if column not in row.result.samples:
        return ""
    value = median(row.result.values(column, row.metric))
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2g}" if abs(value) < 1 else f"{value:.1f}"


def _header(texts: list[str], numbers: list[str]) -> Iterable[str]:
    yield _line([*texts, *numbers])
    yield "|" + "---|" * len(texts) + "--:|" * len(numbers)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
