"""A dashboard of one shard of several. tests/cluster/test_web.py has the dashboard of all of them."""

from __future__ import annotations

import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.id_sequence import IdSequence

from .conftest import Queue


@pytest.mark.parametrize("path", ["/", "/tube?tube=mail", "/job?id=4", "/api/v1/tubes", "/api/v1/server", "/metrics"])
def test_dashboard_without_links_is_about_its_own_shard(path: str) -> None:
    """So is that of a server of a cluster."""
    queue = Queue()
    queue.broker = Broker(queue.broker.facts, ids=IdSequence(0, 3, 1))
    assert queue.put("mail", count=2) == [1, 4]
    client = queue.app().test_client()
    response = client.get(path)
    assert response.status_code == 200
    assert "mail" in response.text or path == "/api/v1/server"
    assert 'href="/servers"' not in response.text
    client.post("/tube/pause", data={"tube": "mail", "seconds": 60}, headers={"Origin": "http://localhost"})
    assert "tube/pause" in client.get("/api/v1/audit").text
