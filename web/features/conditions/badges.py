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
from greenstalk_server.web.framework.shards import ALONE, Shards
from greenstalk_server.web.live.hub import LiveHub
from greenstalk_server.web.reads.tubes import each_tube

QUESTION: Final = "buried"
"""Question to the other shards: the number of buried jobs that the principal may see."""

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
    app: Flask, live: LiveHub, attention: AttentionModel, broker: Broker, shards: Shards = ALONE
) -> Callable[[], Mapping[str, str]]:
    """Add the function `badges` to the templates of *app*, and the counts to the state of every page of *live*.

    Return a function that returns the counts, for a page that another process of the queue renders.
    """
    buried, elsewhere = PerRights[int](), PerRights[int]()

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
            _count(count()),
        )

    def count() -> int:
        version = attention.monitor.version
        own = broker.totals.buried if principal().sees_all else buried.get(version, count_here)
        return own + (elsewhere.get(version, count_elsewhere) if shards.others else 0)

    def count_here() -> int:
        """Return the number of buried jobs of this shard that the principal may see. May switch."""
        who = principal()
        if who.sees_all:
            return broker.totals.buried
        return sum([len(tube.buried) for tube in each_tube(broker, TUBE_BATCH) if who.sees(tube.name)])

    def count_elsewhere() -> int:
        return sum(shards.ask_others(QUESTION).values())

    shards.answer(QUESTION, count_here)

    app.jinja_env.globals["badges"] = badges
    live.add_to_all("badges", lambda: badges()._asdict())
    return lambda: badges()._asdict()


def _count(value: int) -> str:
    return text.rough_number(value) if value else ""
