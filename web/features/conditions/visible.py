"""The active conditions that the principal may see, and their sentences and links."""

from __future__ import annotations

from collections import Counter
from typing import Any

from flask import url_for

from greenstalk_server.web.features.conditions.measures import Condition, Measure
from greenstalk_server.web.features.conditions.monitor import ConditionMonitor, KindCount
from greenstalk_server.web.framework.access import principal


def visible_conditions(attention: ConditionMonitor) -> tuple[tuple[Condition, ...], Counter[KindCount]]:
    """Return the conditions that the principal may see, the worst first, and their number by kind. May switch."""
    who = principal()
    return (attention.conditions, attention.counts) if who.sees_all else attention.visible_to(who.sees)


def sentence_of(measure: Measure) -> str:
    """Return the sentence of *measure*, without the name of a dead-letter tube that the principal may not see."""
    target = str(measure.link.args.get("tube", "")).encode()
    if not target or target == measure.tube or principal().sees(target):
        return measure.sentence
    return measure.sentence.replace(f"“{target.decode()}”", "another tube")


def href_of(measure: Measure) -> str:
    """Return the path of the page about the jobs or workers of *measure*, which the principal may see."""
    target = str(measure.link.args.get("tube", "")).encode()
    is_visible = not target or principal().sees(target)
    args: dict[str, Any] = measure.link.args if is_visible else {"tube": measure.tube.decode()}
    return url_for(measure.link.endpoint, **args)
