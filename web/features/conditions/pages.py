"""The panel “Needs attention” of the overview: the active conditions as text and links."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from flask import url_for

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.features.conditions.measures import CRITICAL, KINDS, SEVERITIES, ActiveCondition
from greenstalk_server.web.features.conditions.monitor import ConditionMonitor, KindCount
from greenstalk_server.web.features.conditions.visible import Condition, shown_condition, visible_conditions
from greenstalk_server.web.framework import text

MAX_PER_KIND: Final = 5
"""Tubes with conditions of one kind and severity that the panel shows one by one; it counts the others."""

SAME_DAY: Final = 12 * 3600 * SECOND
"""Nanoseconds for which a time is shown without its date."""


@dataclass(frozen=True, slots=True)
class AttentionPanel:
    """The contents of the panel.

    items           each condition, the form in which its start is shown, and its age.
    summary         the number of conditions; empty if there are none.
    more            text and link for the conditions that `items` leaves out, by kind.
    is_evaluated    whether all tubes have been evaluated since the start.
    """

    items: list[tuple[Condition, str, str]]
    summary: str
    more: list[tuple[str, str]]
    is_evaluated: bool


def attention_panel(attention: ConditionMonitor, now: int) -> AttentionPanel:
    """Return the panel with the conditions of *attention* that the principal may see, at the time *now*. May switch."""
    conditions, counts = visible_conditions(attention)
    shown, seen = list[ActiveCondition](), Counter[KindCount]()
    for condition in conditions:
        key = condition.measure.kind.name, condition.measure.severity
        if seen[key] < MAX_PER_KIND or not condition.measure.tube:
            seen[key] += 1
            shown.append(condition)
    left_out, severities = Counter[str](), Counter[str]()
    for (kind, severity), count in counts.items():
        left_out[kind] += count - seen[kind, severity]
        severities[severity] += count
    return AttentionPanel(
        items=[_item(condition, now) for condition in shown],
        summary=_summary(severities),
        more=[_rest(kind.rest, left_out[kind.name]) for kind in KINDS if kind.rest and left_out[kind.name]],
        is_evaluated=bool(attention.evaluated_at),
    )


def _summary(counts: Counter[str]) -> str:
    texts = [text.counted(counts[severity], severity) for severity in SEVERITIES if counts[severity]]
    return ", ".join(texts).replace("criticals", CRITICAL)


def _item(condition: ActiveCondition, now: int) -> tuple[Condition, str, str]:
    age = max(0, now - condition.since)
    lasting = text.duration(age // SECOND // 60 * 60) if age >= 60 * SECOND else "just now"
    return shown_condition(condition), "full" if age > SAME_DAY else "clock", lasting


def _rest(rest: str, count: int) -> tuple[str, str]:
    words = rest if count > 1 else rest.replace("have ", "has ", 1).replace("are ", "is ", 1)
    return f"{text.counted(count, 'more tube')} {words}.", url_for("overview", sort="attention", desc="1")
