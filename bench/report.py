"""Format the samples as tables, ratios and verdicts."""

from dataclasses import dataclass, field
from math import nan
from statistics import median
from typing import Final

from .measure import Sample
from .modes import CONDITIONS, METRIC_LABELS, Metric, Mode, Target

_LABEL_WIDTH: Final = 30
_COLUMN_WIDTH: Final = 28
OURS: Final = "ours"
PEER: Final = "beanstalkd"
PLAIN: Final = "plain server"


@dataclass(frozen=True)
class Figure:
    """The median of the rounds, with the lowest and highest value."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Figure":
        return cls(median(values), min(values), max(values))

    def __str__(self) -> str:
        if self.low == self.high:
            return _number(self.middle)
        return f"{_number(self.middle)} ({_number(self.low)}..{_number(self.high)})"


@dataclass(frozen=True)
class Verdict:
    """Whether a mode reached one of its targets."""

    mode: Mode
    target: Target
    value: float
    others: dict[str, float] = field(default_factory=dict)  # values of other builds of Greenstalk Server

    @property
    def is_met(self) -> bool:
        return self.target.is_met_by(self.value)

    def __str__(self) -> str:
        target = self.target
        times = "" if target.absolute else f" times {base_of(self.mode)}'s"
        word = "reached" if self.is_met else "MISSED"
        value = self._text(self.value)
        others = "".join(f" ({name}: {self._text(value)})" for name, value in self.others.items())
        bound = f"{target.relation} {target.bound:,g}"
        return f"{word}: {METRIC_LABELS[target.metric]}: {value}{times}{others}, target: {bound}"

    def _text(self, value: float) -> str:
        return _number(value) if self.target.absolute else f"{value:.2f}"


class ModeResult:
    """All samples of one mode, by contender and in the order of the rounds."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.samples: dict[str, list[Sample]] = {}

    def add(self, contender: str, sample: Sample) -> None:
        self.samples.setdefault(contender, []).append(sample)

    def values(self, contender: str, metric: Metric) -> list[float]:
        return [sample[metric] for sample in self.samples[contender]]

    def metrics(self) -> list[Metric]:
        return list(self.samples[OURS][0])

    @property
    def builds(self) -> list[str]:
        """The columns compared with the peer: Greenstalk Server, and its other builds."""
        return [name for name in self.samples if name not in (PEER, PLAIN)]

    @property
    def base(self) -> str:
        """The column that ratios refer to, or an empty string if it was not measured."""
        name = base_of(self.mode)
        return name if name in self.samples else ""

    def ratio(self, metric: Metric, build: str = OURS) -> Figure:
        """Return the ratio of the build's median to the base's, with the lowest and highest ratio of a round."""
        ours, peer = self.values(build, metric), self.values(self.base, metric)
        by_round = [_quotient(own, theirs) for own, theirs in zip(ours, peer, strict=True)]
        return Figure(_quotient(median(ours), median(peer)), min(by_round), max(by_round))

    def is_compared(self, metric: Metric) -> bool:
        return bool(self.base) and metric not in CONDITIONS

    def verdicts(self) -> list[Verdict]:
        return [self._verdict(target) for target in self.mode.targets]

    def _verdict(self, target: Target) -> Verdict:
        values = {build: self._value(target, build) for build in self.builds}
        return Verdict(self.mode, target, values.pop(OURS), values)

    def _value(self, target: Target, build: str) -> float:
        if target.absolute:
            return median(self.values(build, target.metric))
        return self.ratio(target.metric, build).middle


def base_of(mode: Mode) -> str:
    """Return the column that the ratios of *mode* refer to."""
    return PLAIN if mode.policies else PEER


def table(result: ModeResult) -> str:
    """Return the table of one mode, followed by its verdicts."""
    mode = result.mode
    columns = list(result.samples)
    lines = [
        f"{mode.name}: {mode.about}",
        f"  {mode.conditions}",
        _row("", [*columns, *(f"{build}/{result.base}" for build in result.builds if result.base)]),
    ]
    for metric in result.metrics():
        figures = [Figure.of(result.values(column, metric)) for column in columns]
        if result.is_compared(metric):
            figures += [result.ratio(metric, build) for build in result.builds]
        lines.append(_row(METRIC_LABELS[metric], [str(figure) for figure in figures]))
    lines += [f"  {verdict}" for verdict in result.verdicts()]
    return "\n".join(lines)


def summary(results: list[ModeResult], failed: list[Mode]) -> str:
    """Return the number of targets reached, the missed targets, and the modes that *failed*."""
    verdicts = [verdict for result in results for verdict in result.verdicts()]
    missed = [verdict for verdict in verdicts if not verdict.is_met]
    lines = [f"{len(verdicts) - len(missed)} of {len(verdicts)} targets reached{_by_others(verdicts)}"]
    lines += [f"  {verdict.mode.name}: {verdict}" for verdict in missed]
    lines += [f"  {mode.name}: FAILED, see above" for mode in failed]
    return "\n".join(lines)


def _by_others(verdicts: list[Verdict]) -> str:
    """Return the number of targets reached by other builds, if there are any."""
    reached: dict[str, int] = {}
    for verdict in verdicts:
        for build, value in verdict.others.items():
            reached[build] = reached.get(build, 0) + verdict.target.is_met_by(value)
    return "".join(f"; {build}: {count}" for build, count in reached.items())


def _quotient(own: float, theirs: float) -> float:
    return own / theirs if theirs else nan


def _row(label: str, cells: list[str]) -> str:
    padded = "".join(cell.rjust(_COLUMN_WIDTH) for cell in cells)
    return f"  {label.ljust(_LABEL_WIDTH)}{padded}"


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}"
