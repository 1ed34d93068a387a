"""Write the measured figures into a Markdown document, between two marker lines.

Three tables, each with one direction: ratios to the peer where lower is better, ratios where higher is better, and
figures whose target is absolute.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from statistics import median
from typing import Final

from .errors import BenchError
from .modes import CONDITIONS, METRIC_LABELS, Metric, Mode, Target
from .report import OURS, PEER, ModeResult

BEGIN: Final = "<!-- Measured figures, written by `python -m bench --report`: do not edit. -->"
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
    """Raise BenchError unless the document at *path* has both markers."""
    _split(path)


def write(path: Path, conditions: str, results: list[ModeResult]) -> None:
    """Replace the lines between the markers with *conditions* and the tables of *results*."""
    head, tail = _split(path)
    path.write_text(f"{head}{BEGIN}\n\n{conditions}\n\n{tables(results)}\n\n{END}{tail}")


def tables(results: list[ModeResult]) -> str:
    """The tables of *results* as Markdown; a table without a row is left out."""
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
        parts += ["### Cost relative to beanstalkd (lower is better)", "", *_ratios(cost, builds), ""]
    if throughput:
        parts += ["### Throughput relative to beanstalkd (higher is better)", "", *_ratios(throughput, builds), ""]
    if absolute:
        parts += ["### Figures with an absolute target", "", *_values(absolute, builds), ""]
    return "\n".join(parts).rstrip("\n")


def _split(path: Path) -> tuple[str, str]:
    """Return the text before and after the measured figures."""
    try:
        text = path.read_text()
    except OSError as error:
        raise BenchError(f"--report: cannot read {path}: {error.strerror}") from error
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise BenchError(f"--report: {path} lacks the line {(BEGIN, END)[bool(begin)]!r}")
    return head, tail


def _measures_throughput(mode: Mode) -> bool:
    return any(target.metric == "rate" for target in mode.targets)


def _ratios(rows: list[_Row], builds: list[str]) -> Iterable[str]:
    """A table of ratios to the peer: of the medians, with the lowest and highest of a single round."""
    yield from _header(["load", "connections", "figure"], [*map(_column, builds), "target"])
    for row in rows:
        ratios = [_ratio(row, build) for build in builds]
        target = f"{row.target.bound:g}" if row.target is not None else ""
        yield _line([*_load(row), _RATIO_LABELS[row.metric], *ratios, target])


def _values(rows: list[_Row], builds: list[str]) -> Iterable[str]:
    """A table of measured values, with the peer's; the target is an upper or a lower bound."""
    yield from _header(["load", "connections", "figure"], [*map(_column, builds), PEER, "target"])
    for row in rows:
        values = [_value(row, column) for column in (*builds, PEER)]
        assert row.target is not None
        yield _line([*_load(row), METRIC_LABELS[row.metric], *values, f"{row.target.relation} {row.target.bound:,g}"])


def _load(row: _Row) -> list[str]:
    mode = row.result.mode
    return [f"`{mode.name}`", f"{mode.connections:,}"]


def _column(build: str) -> str:
    return _OUR_NAME if build == OURS else build


def _ratio(row: _Row, build: str) -> str:
    if not {build, PEER} <= row.result.samples.keys():
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
