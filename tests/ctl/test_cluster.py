"""The commands `cluster` at a server that is not in a cluster; tests/cluster/test_cluster_web.py has those in one."""

from __future__ import annotations

import pytest

from tests.ctl.world import WithApi, run


@pytest.mark.parametrize("words", [("cluster",), ("cluster", "move", "0", "app2:11300")])
def test_single_server_has_no_cluster(with_api: WithApi, words: tuple[str, ...]) -> None:
    done = run("--api", with_api.dashboard, *words)
    assert done.code == 4
    assert "409: The server is not one of a cluster: its shards have no followers, and cannot be moved" in done.err


def test_cluster_needs_the_api() -> None:
    done = run("cluster")
    assert done.code == 2 and "--api" in done.err
