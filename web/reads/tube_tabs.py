"""The tabs of a tube's pages, which belong to several features."""

from __future__ import annotations

from dataclasses import dataclass

from flask import url_for

from greenstalk_server.core.broker import Broker
from greenstalk_server.web.reads.policies import DeadLetterTubes


@dataclass(frozen=True, slots=True)
class PageTab:
    """A tab of the pages of a tube; *count* is shown beside its label unless it is 0."""

    label: str
    href: str
    is_current: bool
    count: int


def page_tabs(broker: Broker, dead_letter_tubes: DeadLetterTubes, name: str, current: str) -> list[PageTab]:
    """Return the tabs of the pages of the tube *name*; *current* is the label of the current one.

    The tab Errors has the number of failed jobs: buried jobs, and in a dead-letter tube all except reserved jobs.
    """
    here, tube = url_for("tube", tube=name), broker.tubes.get(name.encode())
    failed = len(tube.buried) if tube is not None else 0
    if tube is not None and dead_letter_tubes.has(tube):
        failed = tube.job_count - tube.reserved_count
    tabs = (
        ("Jobs", here, 0),
        ("Errors", url_for("tube_errors", tube=name), failed),
        ("History", url_for("tube_history", tube=name), 0),
        ("Policy", f"{here}#policy", 0),
    )
    return [PageTab(label, href, label == current, count) for label, href, count in tabs]
