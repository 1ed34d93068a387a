"""The counts that every page shows in its navigation, in its title and by its icon."""

from __future__ import annotations

from typing import Final, NamedTuple

from flask import Flask

from greenstalk_server.core.broker import Broker
from greenstalk_server.web.features.conditions.measures import FAILURE, WARNING
from greenstalk_server.web.features.conditions.rows import AttentionModel
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.live.hub import LiveHub
from greenstalk_server.web.reads.tubes import each_tube

TUBE_BATCH: Final = 256
"""Tubes counted between two checks of the time slice."""


class Badges(NamedTuple):
    """Counts for the principal, as text; empty for zero.

    alerts          number of lines of “Needs attention”.
    severity        `failure` if one of them is critical or a failure, else `warning`; empty without lines.
    errors          number of buried jobs.
    """

    alerts: str
    severity: str
    errors: str


def register_badges(app: Flask, live: LiveHub, attention: AttentionModel, broker: Broker) -> None:
    """Add the function `badges` to the templates of *app*, and the counts to the state of every page of *live*."""

    def badges() -> Badges:
        """Return the counts. May switch."""
        if not principal().is_known:
            return Badges("", "", "")
        active = attention.visible().active
        return Badges(
            _count(active.severities.total()),
            FAILURE if active.failures else WARNING if active.warnings else "",
            _count(_buried(broker)),
        )

    app.jinja_env.globals["badges"] = badges
    live.add_to_all("badges", lambda: badges()._asdict())


def _buried(broker: Broker) -> int:
    who = principal()
    if who.sees_all:
        return broker.totals.buried
    return sum([len(tube.buried) for tube in each_tube(broker, TUBE_BATCH) if who.sees(tube.name)])


def _count(value: int) -> str:
    return text.rough_number(value) if value else ""
