"""Reserves over HTTP from a tube of another process. Two processes and a real link."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from flask.testing import FlaskClient

from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.jobs.job import READY, RESERVED, SECOND, Job
from greenstalk_server.core.operations import connecting, putting
from greenstalk_server.net.link_calls import Message
from greenstalk_server.web.features.leases import leases
from greenstalk_server.web.features.leases.api import CONFIRM, RESERVE
from tests.net import link_peer
from tests.net.in_process import wait_until
from tests.net.link_peer import Process, linked_pair
from tests.support import invariants
from tests.support.shards import tube_on

from .linked import dashboard_of

TUBE: Final = tube_on(1)


class Site:
    """A client of the home process, and the owner of TUBE, which has one job."""

    def __init__(self, processes: list[Process]) -> None:
        self.owner: Process = processes[1]
        self.dashboards = [dashboard_of(process) for process in processes]
        self.client: FlaskClient = self.dashboards[0].app.test_client()
        id = putting.put_into(self.owner.broker, TUBE, 0, 0, 60 * SECOND, b"x", self.owner.links.clock())
        self.job: Job = self.owner.broker.jobs[id]

    def reserve(self) -> tuple[int, list[int]]:
        """Return the status of a reserve, and the ids of the jobs."""
        response = self.client.post("/api/v1/reserve", json={"tubes": [TUBE.decode()]})
        return response.status_code, [job["id"] for job in response.get_json().get("jobs", [])]

    def lose_link_after(self, question: str) -> None:
        """Lose the link when the owner has answered *question*, before the answer is sent."""
        handlers, [link] = self.owner.links.handlers, self.owner.links._links.values()
        handler = handlers[f"web.{question}"]

        def answer(shard: int, message: Message) -> Message:
            answer = handler(shard, message)
            self.owner.links.drop(link)
            return answer

        handlers[f"web.{question}"] = answer


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(leases, "CONFIRM_TIMEOUT", 0.1)
    with linked_pair(tmp_path) as processes:
        yield Site(processes)


def test_reserve_whose_answer_is_lost_is_undone_and_not_counted(site: Site) -> None:
    site.lose_link_after(RESERVE)
    assert site.reserve() == (503, [])
    assert (site.job.state, site.job.reserves) == (RESERVED, 1)
    wait_until(lambda: site.job.state == READY)
    assert site.job.reserves == 0
    assert not site.owner.broker.clients
    invariants.check(site.owner.broker)


def test_lease_of_a_job_without_a_home_is_deleted_in_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_peer, "IDS", IdSequence(100, 2, 0))
    with linked_pair(tmp_path) as processes:
        client, broker = dashboard_of(processes[0]).app.test_client(), processes[1].broker
        dashboard_of(processes[1])
        tube = next(name for name in (b"a", b"b", b"c", b"d") if processes[0].links.shard_of(name) == 1)
        producer = connecting.connect(broker, lambda: None)
        connecting.use(broker, producer, tube)
        assert putting.put(broker, producer, 7, 0, 0, 60 * SECOND, b"x", 0) == 7
        [job] = client.post("/api/v1/reserve", json={"tubes": [tube.decode()]}).get_json()["jobs"]
        tokens = ["unknown", job["token"]]
        answer = client.post("/api/v1/leases/delete-batch", json={"tokens": tokens}).get_json()
        assert answer == {"deleted": 1, "lost": ["unknown"]}
        assert not broker.jobs


def test_confirmed_reserve_lasts(site: Site) -> None:
    began_at = site.owner.links.clock()
    assert site.reserve() == (200, [site.job.id])
    wait_until(lambda: site.owner.links.clock() > began_at + SECOND // 5)
    assert (site.job.state, site.job.reserves) == (RESERVED, 1)


def test_reserve_that_is_confirmed_too_late_has_no_jobs(site: Site) -> None:
    handlers = site.owner.links.handlers
    confirm = handlers[f"web.{CONFIRM}"]

    def confirm_late(shard: int, message: Message) -> Message:
        wait_until(lambda: site.job.state == READY)
        return confirm(shard, message)

    handlers[f"web.{CONFIRM}"] = confirm_late
    assert site.reserve() == (200, [])
    assert site.job.reserves == 0
