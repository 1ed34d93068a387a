"""The counts in the navigation of every page, for users who see only some tubes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from flask import Flask, g

from greenstalk_server.config.tables.roles import Rights
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.web.features.conditions import badges
from greenstalk_server.web.features.conditions.badges import Badges
from greenstalk_server.web.features.conditions.measures import ActiveCondition
from greenstalk_server.web.features.conditions.monitor import ConditionMonitor
from greenstalk_server.web.framework import per_rights
from greenstalk_server.web.framework.per_rights import PerRights
from greenstalk_server.web.reads.tubes import each_tube

from .conftest import ADMIN, Queue, visiting
from .test_tube_errors import failing, put


def counts(app: Flask, *tubes: str, is_known: bool = True) -> Badges:
    """Return the counts for a user who sees *tubes*."""
    count = app.jinja_env.globals["badges"]
    assert callable(count)
    with visiting(app):
        g.principal = replace(ADMIN, rights=Rights(frozenset(tubes)), is_admin=False, is_known=is_known)
        found: Badges = count()
        return found


def test_counts_are_made_once_per_round_and_set_of_rights(
    queue: Queue, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks, groupings = 0, 0
    each_of_tubes = ConditionMonitor.each_of_tubes

    def walk(broker: Broker, batch_size: int) -> Iterator[Tube]:
        nonlocal walks
        walks += 1
        return each_tube(broker, batch_size)

    def group(monitor: ConditionMonitor, sees: Callable[[bytes], bool]) -> Iterator[ActiveCondition]:
        nonlocal groupings
        groupings += 1
        return each_of_tubes(monitor, sees)

    monkeypatch.setattr(badges, "each_tube", walk)
    monkeypatch.setattr(ConditionMonitor, "each_of_tubes", group)
    put(queue, failing("late"), tube="billing.a")
    put(queue, failing("late"), failing("late"), tube="covert")
    queue.now += SECOND
    monitor = app.extensions["dashboard"].attention
    monitor.tick()
    for _ in range(3):
        assert counts(app, "billing.*") == ("1", "failure", "1")
        assert counts(app, "covert") == ("1", "failure", "2")
        assert counts(app, "*") == ("2", "failure", "3")
        assert counts(app, "*", is_known=False) == ("", "", "")
    assert (walks, groupings) == (2, 3), "the server counts the buried jobs of all tubes by itself"
    put(queue, failing("late"), tube="billing.b")
    assert counts(app, "billing.*") == ("1", "failure", "1")
    queue.now += 10 * SECOND
    monitor.tick()
    assert counts(app, "billing.*") == ("2", "failure", "2")
    assert (walks, groupings) == (3, 4)


def test_values_of_few_sets_of_rights_are_kept(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_rights, "MAX_KEPT", 2)
    values, computed = PerRights[str](), list[str]()

    def compute() -> str:
        computed.append(name)
        return name

    with visiting(app):
        for name in ("a", "b", "b", "c", "b", "a"):
            g.principal = replace(ADMIN, rights=Rights(frozenset({name})), is_admin=False)
            assert values.get(0, compute) == name
    assert computed == ["a", "b", "c", "a"]


def test_unknown_users_do_not_share_values(app: Flask) -> None:
    values = PerRights[bool]()
    with visiting(app):
        for is_known in (True, False):
            g.principal = replace(ADMIN, is_known=is_known)
            assert values.get(0, lambda: g.principal.is_known) == is_known
