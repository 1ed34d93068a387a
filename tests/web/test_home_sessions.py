"""Work at the process of another shard ends with the session at the home process. Two processes and a real link."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from flask.testing import FlaskClient

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import putting
from greenstalk_server.web.auth import home_sessions
from greenstalk_server.web.changes.tasks import DONE, FAILED, Task
from tests.net.in_process import wait_until
from tests.net.link_peer import Process, linked_pair
from tests.support.daemon import TIMEOUT
from tests.support.shards import tube_on

from .forms import SAME_ORIGIN
from .linked import dashboard_of
from .test_signin import ADMIN, sign_in

TUBE: Final = tube_on(1).decode()
JOBS: Final = 6_000


class Site:
    """The dashboards of the home process and of the process that owns TUBE, and a user of the first one."""

    def __init__(self, processes: list[Process]) -> None:
        self.processes = processes
        self.home, self.owner = [dashboard_of(process, password=ADMIN) for process in processes]
        self.user: FlaskClient = self.home.app.test_client()
        for _ in range(JOBS):
            assert putting.put_into(processes[1].broker, TUBE.encode(), 0, 0, 60 * SECOND, b"x", 0) > 0

    def post(self, path: str, **form: str) -> str:
        """Submit a form; return the task in the address to which the response redirects."""
        response = self.user.post(path, data=form, headers=SAME_ORIGIN)
        assert response.status_code == 303, response.text
        return response.headers["Location"].rpartition("=")[2]

    def begin(self) -> Task:
        """Sign in, and begin to bury all jobs of TUBE; return the task, which has buried some."""
        assert sign_in(self.user).status_code == 303
        preview = self.owner.tasks._kept[self.post("/bulk/preview", scope="all", tube=TUBE, action="bury")]
        preview.wait(TIMEOUT)
        assert preview.state == DONE, preview.message
        change = self.owner.tasks._kept[self.post("/bulk/run", task=preview.id)]
        wait_until(lambda: change.done > 0)
        return change


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(home_sessions, "ASK_INTERVAL", 0.01)
    with linked_pair(tmp_path) as processes:
        yield Site(processes)


def end_session(site: Site) -> None:
    [session] = site.home.sessions.all()
    site.home.sessions.end(session)


def remove_role(site: Site) -> None:
    """As after a restart of the home process with another configuration: sessions survive it."""
    [session] = site.home.sessions.all()
    session.roles = ("viewer",)


def lose_home(site: Site) -> None:
    [link] = site.processes[1].links._links.values()
    site.processes[0].membership.processes = {}
    site.processes[0].membership.on_change()
    site.processes[1].membership.owners = {}
    site.processes[1].links.drop(link)


@pytest.mark.parametrize("end", [end_session, remove_role, lose_home])
def test_change_at_another_process_ends_with_the_session(
    site: Site, monkeypatch: pytest.MonkeyPatch, end: Callable[[Site], None]
) -> None:
    change = site.begin()
    if end is lose_home:
        monkeypatch.setattr(home_sessions, "ANSWER_TIMEOUT", 0.05)
    end(site)
    change.wait(TIMEOUT)
    assert (change.state, change.message) == (FAILED, "The session of the user who started the task has ended.")
    assert 0 < change.done == len(site.processes[1].broker.tubes[TUBE.encode()].buried) < JOBS


def test_change_at_another_process_goes_on_while_the_session_lasts(site: Site) -> None:
    change = site.begin()
    before = change.done
    wait_until(lambda: change.done > before or not change.is_running)
    assert change.is_running
    change.cancel()
    change.wait(TIMEOUT)
