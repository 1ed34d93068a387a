"""The samples as tables, ratios and verdicts, for people; and as JSON."""

from dataclasses import dataclass
from statistics import median
from typing import Final

from .measure import Sample
from .modes import CONDITIONS, METRIC_LABELS, Metric, Mode, Target

_LABEL_WIDTH: Final = 30
_COLUMN_WIDTH: Final = 28
OURS: Final = "ours"
PEER: Final = "beanstalkd"


@dataclass(frozen=True)
class Figure:
    """A value with the range its rounds spread over."""

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

    @property
    def is_reached(self) -> bool:
        return self.target.is_reached_by(self.value)

    def __str__(self) -> str:
        target = self.target
        times = "" if target.absolute else f" times {PEER}'s"
        word = "reached" if self.is_reached else "MISSED"
        value = _number(self.value) if target.absolute else f"{self.value:.3f}"
        return f"{word}: {METRIC_LABELS[target.metric]}: {value}{times}, to be {target.relation} {target.bound:,g}"


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

    def ratio(self, metric: Metric) -> Figure:
        """Ours to the peer's: of the medians, and its range over the rounds."""
        ours, peer = self.values(OURS, metric), self.values(PEER, metric)
        by_round = [mine / theirs for mine, theirs in zip(ours, peer, strict=True)]
        return Figure(median(ours) / median(peer), min(by_round), max(by_round))

    def verdicts(self) -> list[Verdict]:
        return [self._verdict(target) for target in self.mode.targets]

    def _verdict(self, target: Target) -> Verdict:
        ours = median(self.values(OURS, target.metric))
        return Verdict(self.mode, target, ours if target.absolute else self.ratio(target.metric).middle)

    def as_json(self) -> dict[str, object]:
        return {
            "mode": self.mode.name,
            "connections": self.mode.connections,
            "body": self.mode.body,
            "server_args": self.mode.server_args,
            "samples": self.samples,
            "ratios": {metric: self.ratio(metric).middle for metric in self.metrics() if metric not in CONDITIONS},
            "targets": [
                {
                    "metric": verdict.target.metric,
                    "relation": verdict.target.relation,
                    "bound": verdict.target.bound,
                    "absolute": verdict.target.absolute,
                    "value": verdict.value,
                    "reached": verdict.is_reached,
                }
                for verdict in self.verdicts()
            ],
        }


def table(result: ModeResult) -> str:
    """The table of one mode, its verdicts below it."""
    mode = result.mode
    columns = list(result.samples)
    lines = [
        f"{mode.name}: {mode.about}",
        f"  {mode.conditions}",
        _row("", [*columns, f"{OURS}/{PEER}"]),
    ]
    for metric in result.metrics():
        figures = [Figure.of(result.values(column, metric)) for column in columns]
        if metric not in CONDITIONS:
            figures.append(result.ratio(metric))
        lines.append(_row(METRIC_LABELS[metric], [str(figure) for figure in figures]))
    lines += [f"  {verdict}" for verdict in result.verdicts()]
    return "\n".join(lines)


def summary(results: list[ModeResult], failed: list[Mode]) -> str:
    """How many targets are reached, and which modes miss theirs or *failed*."""
    verdicts = [verdict for result in results for verdict in result.verdicts()]
    missed = [verdict for verdict in verdicts if not verdict.is_reached]
    lines = [f"{len(verdicts) - len(missed)} of {len(verdicts)} targets reached"]
    lines += [f"  {verdict.mode.name}: {verdict}" for verdict in missed]
    lines += [f"  {mode.name}: FAILED, see above" for mode in failed]
    return "\n".join(lines)


def _row(label: str, cells: list[str]) -> str:
    padded = "".join(cell.rjust(_COLUMN_WIDTH) for cell in cells)
    return f"  {label.ljust(_LABEL_WIDTH)}{padded}"


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}"
