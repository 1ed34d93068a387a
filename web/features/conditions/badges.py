"""The counts that every page shows in its navigation, in its title and by its icon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from flask import Flask, g

from greenstalk_server.core.broker import Broker
from greenstalk_server.web.features.conditions.measures import FAILURE, WARNING
from greenstalk_server.web.features.conditions.rows import AttentionModel
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.per_rights import PerRights
from greenstalk_server.web.live.hub import LiveHub
from greenstalk_server.web.reads.tubes import each_tube

TUBE_BATCH: Final = 256
"""Tubes counted between two checks of the time slice."""


class Badges(NamedTuple):
    """Counts for the principal, as text; empty for zero.

    alerts          number of lines of “Needs attention”.
    severity        `failure` if one of them is critical or a failure, else `warning`; empty without lines.
    errors          number of buried jobs. If the principal sees only some tubes, this is the count of the monitor's
                    last round.
    """

    alerts: str = ""
    severity: str = ""
    errors: str = ""


def register_badges(
    app: Flask, live: LiveHub, attention: AttentionModel, broker: Broker
) -> Callable[[], Mapping[str, str]]:
    """Add the function `badges` to the templates of *app*, and the counts to the state of every page of *live*.

    Return a function that returns the counts, for a page that another process of the queue renders.
    """
    buried = PerRights[int]()

    def badges() -> Badges:
        """Return the counts. May switch."""
        who = principal()
        if not who.is_known:
            return Badges()
        if (given := g.get("badges")) is not None:
            return Badges(**given)
        active = attention.visible().active
        return Badges(
            _count(active.severities.total()),
            FAILURE if active.failures else WARNING if active.warnings else "",
            _count(broker.totals.buried if who.sees_all else buried.get(attention.monitor.evaluated_at, count_visible)),
        )

    def count_visible() -> int:
        sees = principal().sees
        return sum([len(tube.buried) for tube in each_tube(broker, TUBE_BATCH) if sees(tube.name)])

    app.jinja_env.globals["badges"] = badges
    live.add_to_all("badges", lambda: badges()._asdict())
    return lambda: badges()._asdict()


def _count(value: int) -> str:
    return text.rough_number(value) if value else ""
