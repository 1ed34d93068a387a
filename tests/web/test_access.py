"""Roles: admins may change things, viewers may look; a read-only dashboard allows no changes; bodies can be hidden.

The tests go through all rules of the app, so that a new page or action is checked too.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import connecting, finishing, putting, reserving
from greenstalk_server.web.auth.guard import SAFE_METHODS
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.rights import least_role
from tests.support import invariants

from .conftest import Queue
from .forms import SAME_ORIGIN
from .table import Page
from .test_guard import basic

ADMIN = "change-it"
VIEWER = "look-on"

MARKER = b'{"marker":"tHe-mArKeR"}'
TRACES = ("tHe-mArKeR", MARKER.hex(), MARKER.hex(" "), base64.b64encode(MARKER).decode(), "bWFya2Vy")
"""The body as it could appear: as text, in hexadecimal, in base64."""

OPEN_TO_VIEWERS = ("/theme", "/zone", "/login", "/logout")


def posts(app: Flask) -> list[str]:
    """Return the paths of pages with the method POST; tests/web/api does the same for the API."""
    return sorted(rules(app, "POST"))


def gets(app: Flask) -> set[str]:
    return rules(app, "GET")


def rules(app: Flask, method: str) -> set[str]:
    found = {rule.rule for rule in app.url_map.iter_rules() if method in (rule.methods or ())}
    return {rule for rule in found if not rule.startswith("/api/")}


@pytest.fixture
def ids(queue: Queue) -> dict[str, int]:
    """A job in each state, with the marker as its body."""
    client, now = queue.connect(), queue.now
    connecting.use(queue.broker, client, b"mail")
    ids = {state: queue.broker.allocate_id() for state in ("ready", "reserved", "buried", "delayed")}
    for state, id in ids.items():
        delay = 60 * SECOND if state == "delayed" else 0
        assert putting.put(queue.broker, client, id, 10, delay, 60 * SECOND, MARKER, now) > 0
    reserving.reserve_job(queue.broker, queue.connect(), ids["reserved"], now)
    finishing.bury_job(queue.broker, ids["buried"], now)
    return ids


def states(queue: Queue) -> dict[int, tuple[int, bytes, int]]:
    invariants.check(queue.broker)
    return {job.id: (job.state, job.body, job.pri) for job in queue.broker.jobs.values()}


# Roles


def status(client: FlaskClient, name: str, password: str, path: str = "/audit") -> int:
    """Return 200 for an admin and 403 for a viewer, since only admins see the audit log."""
    return client.get(path, headers=basic(name, password)).status_code


def test_password_determines_the_role(queue: Queue) -> None:
    client = queue.app(password=ADMIN, viewer_password=VIEWER).test_client()
    assert [status(client, name, ADMIN) for name in ("", "ada", "wörker")] == [200] * 3
    assert [status(client, name, VIEWER) for name in ("", "ada", "wörker")] == [403] * 3
    assert status(client, "ada", VIEWER, "/") == 200
    assert status(client, "ada", "else") == 401
    assert client.get("/").status_code == 401


def test_user_name_is_required_with_the_admin_password_only(queue: Queue) -> None:
    client = queue.app(user="ada", password=ADMIN, viewer_password=VIEWER).test_client()
    assert status(client, "ada", ADMIN) == 200
    assert [status(client, name, ADMIN) for name in ("", "Ada", "ada ", "bob")] == [401] * 4
    assert [status(client, name, VIEWER) for name in ("ada", "bob")] == [403] * 2
    assert "asks for a name and a password" in client.get("/").text
    assert "The name or the password is wrong" not in client.get("/").text


def test_wrong_name_and_wrong_password_look_the_same(queue: Queue) -> None:
    client = queue.app(user="ada", password=ADMIN).test_client()
    wrong = [client.get("/", headers=basic(*message)).text for message in (("bob", ADMIN), ("ada", "x"), ("bob", "x"))]
    assert len(set(wrong)) == 1
    assert "The name or the password is wrong" in wrong[0]


# Viewers and read-only dashboards


def test_every_endpoint_that_changes_something_declares_a_role(queue: Queue) -> None:
    app = queue.app()
    changes = [rule for rule in app.url_map.iter_rules() if (rule.methods or set()) - SAFE_METHODS]
    assert [rule.rule for rule in changes if least_role(app.view_functions[rule.endpoint]) is None] == []


def test_endpoint_of_the_api_that_declares_no_role_is_an_error() -> None:
    with pytest.raises(TypeError, match="POST /things declares no role"):
        endpoint("POST", "/things")


NOT_ADMINS: dict[str, tuple[dict[str, Any], str, str]] = {
    "viewer": ({"password": ADMIN, "viewer_password": VIEWER}, VIEWER, "You are signed in as a viewer"),
    "viewers alone": ({"viewer_password": VIEWER}, VIEWER, "No admin password is set"),
    "read-only": ({"is_read_only": True}, "", "This dashboard is read-only"),
    "read-only, admin": ({"is_read_only": True, "password": ADMIN}, ADMIN, "This dashboard is read-only"),
    "read-only, viewer": ({"is_read_only": True, "viewer_password": VIEWER}, VIEWER, "This dashboard is read-only"),
}


@pytest.fixture(params=NOT_ADMINS)
def not_admin(request: pytest.FixtureRequest, queue: Queue) -> tuple[Flask, dict[str, str], str]:
    """An app, headers of a principal who may not change anything, and the reason."""
    options, password, why = NOT_ADMINS[request.param]
    return queue.app(**options), basic("eve", password) if password else {}, why


def test_only_an_admin_changes_anything(
    queue: Queue, ids: dict[str, int], not_admin: tuple[Flask, dict[str, str], str]
) -> None:
    app, headers, why = not_admin
    was = states(queue)
    form = {"tube": "mail", "id": str(ids["ready"]), "seconds": "9", "state": "ready", "confirm": "mail", "all": "1",
            "pri": "1", "ttr": "1", "delay": "0", "body": "x", "name": "n", "count": "1", "number": "1"}  # fmt: skip
    for rule in [*posts(app), "/nowhere"]:
        if rule in OPEN_TO_VIEWERS:
            continue
        response = app.test_client().post(rule, data=form, headers=SAME_ORIGIN | headers)
        assert response.status_code == 403, rule
        assert why in Page(response.text).text
        assert "Nothing was changed." in response.text
    assert states(queue) == was
    assert not queue.broker.tubes[b"mail"].paused_until


@pytest.mark.parametrize("not_admin", ["viewer", "read-only"], indirect=True)
def test_principal_who_may_not_change_anything_sees_no_forms(
    queue: Queue, ids: dict[str, int], not_admin: tuple[Flask, dict[str, str], str]
) -> None:
    app, headers, _ = not_admin
    seen = {}
    for path, response in pages(app.test_client(), ids, headers):
        for tag, attributes in Page(response).elements:
            if tag == "form":
                seen[attributes["action"], attributes.get("method")] = path
            assert "formaction" not in attributes, path
    assert {action for action, method in seen if method == "post"} <= {"/theme", "/zone", "/login"}


def test_admin_sees_forms(queue: Queue, ids: dict[str, int]) -> None:
    """Shows that the test above can fail."""
    actions = set()
    for _, page in pages(queue.app().test_client(), ids, {}):
        actions |= {attributes["action"] for tag, attributes in Page(page).elements if tag == "form"}
    assert actions >= {"/tube/pause", "/tube/kick", "/tube/put", "/tube/clear", "/job/delete", "/connection/close"}


def test_admin_of_a_read_only_dashboard_sees_the_audit_log(queue: Queue) -> None:
    client = queue.app(is_read_only=True, password=ADMIN, viewer_password=VIEWER).test_client()
    assert [status(client, "", password) for password in (ADMIN, VIEWER)] == [200, 403]
    assert [status(client, "", password, "/audit/export?format=csv") for password in (ADMIN, VIEWER)] == [200, 403]
    assert '"/audit"' not in client.get("/", headers=basic("", VIEWER)).text
    assert '"/audit"' in client.get("/", headers=basic("", ADMIN)).text


# Hidden bodies


def addresses(client: FlaskClient, ids: dict[str, int], headers: dict[str, str]) -> dict[str, list[str]]:
    """Return the rules with GET, and addresses to request for each."""
    found = client.get("/search?q=pri:10&tube=mail", headers=headers)
    assert found.status_code in (200, 302, 303), found.text
    tasks = re.findall(r"task\?id=(\w+)", client.get("/task", headers=headers).text)
    assert tasks
    each, by_state = ids.values(), [f"tube=mail&state={state}" for state in ids]
    live = [f"page={page}" for page in ("overview", "connections", "attention")]
    live += [f"page=tube&{query}" for query in by_state]
    live += [f"page=job&id={id}" for id in each] + [f"page=tube&{by_state[0]}&q=pri:10", "page=connection&number=2"]
    return {
        "/": ["/"],
        "/alerts": ["/alerts"],
        "/attention": ["/attention", "/attention?tubes=mail&kind=buried"],
        "/servers": ["/servers"],
        "/audit": ["/audit"],
        "/audit/export": ["/audit/export?format=jsonl", "/audit/export?format=csv"],
        "/bulk": [f"/bulk?task={id}" for id in tasks],
        "/connection": ["/connection?number=1", "/connection?number=2"],
        "/connections": ["/connections"],
        "/events": [f"/events?{query}" for query in live],
        "/export": [f"/export?{query}&format={form}" for query in by_state for form in ("jsonl", "csv", "json")],
        "/find": ["/find?q=1", "/find?q=the-marker"],
        "/healthz": ["/healthz"],
        "/job": [f"/job?id={id}" for id in each],
        "/job/body": [f"/job/body?id={id}" for id in each],
        "/job/form": [f"/job/form?id={id}&encoding={encoding}" for id in each for encoding in ("", "utf-8", "base64")],
        "/suggest": ["/suggest?q=", "/suggest?q=body.", "/suggest?q=error:", "/suggest?q=body.a:&tube=mail"],
        "/tube/oldest": ["/tube/oldest?tube=mail"],
        "/job/holder": [f"/job/holder?id={id}" for id in each],
        "/live": [f"/live?{query}" for query in live],
        "/login": ["/login"],
        "/metrics": ["/metrics"],
        "/policies": ["/policies"],
        "/policy": ["/policy", "/policy?name=none"],
        "/readyz": ["/readyz"],
        "/changes": ["/changes"],
        "/search": ["/search", "/search?q=pri:10", f"/search?task={tasks[0]}", "/search?q=tHe-mArKeR&tube=mail"],
        "/server/history.json": ["/server/history.json"],
        "/sessions": ["/sessions"],
        "/static/<path:filename>": [],
        "/task": ["/task", *[f"/task?id={id}" for id in tasks]],
        "/tube": [f"/tube?{query}{more}" for query in by_state for more in ("", "&q=pri:10", "&sample=mine")],
        "/errors": ["/errors", "/errors?jobs=dead-letters"],
        "/tube/errors": ["/tube/errors?tube=mail", "/tube/errors?tube=mail&state=ready&field=marker"],
        "/tube/history": ["/tube/history?tube=mail"],
        "/tube/history.json": ["/tube/history.json?tube=mail"],
        "/tubes/find": ["/tubes/find?q=m", "/tubes/find?pattern=*"],
        "/tubes/change": [f"/tubes/change?task={id}" for id in tasks],
    }


def pages(client: FlaskClient, ids: dict[str, int], headers: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield address and text of every page."""
    for path in [path for paths in addresses(client, ids, headers).values() for path in paths]:
        response = client.get(path, headers=headers)
        if response.mimetype == "text/html" and response.status_code == 200:
            yield path, response.text
        response.close()


def shown(client: FlaskClient, ids: dict[str, int]) -> dict[str, int]:
    """Request every address; return per rule how many responses contain the marker."""
    found = {}
    for rule, paths in addresses(client, ids, {}).items():
        found[rule] = 0
        for path in paths:
            response = client.get(path)
            first = response.iter_encoded()
            parts = [next(first), next(first)] if rule == "/events" and response.status_code == 200 else list(first)
            text = b"".join(parts).decode()
            response.close()
            sought = text.replace("q=tHe-mArKeR", "").replace('value="tHe-mArKeR"', "")
            found[rule] += any(trace in sought for trace in TRACES)
    return found


def save_sample(client: FlaskClient) -> None:
    form = {"tube": "mail", "name": "mine", "pri": "1", "delay": "0", "ttr": "9", "body": MARKER.decode()}
    assert client.post("/sample/save", data=form, headers=SAME_ORIGIN).status_code == 303


def test_addresses_cover_every_rule(queue: Queue, ids: dict[str, int]) -> None:
    app = queue.app()
    assert set(addresses(app.test_client(), ids, {})) == gets(app)


def test_hidden_bodies_appear_nowhere(queue: Queue, ids: dict[str, int]) -> None:
    client = queue.app(hides_bodies=True).test_client()
    save_sample(client)
    assert {rule for rule, times in shown(client, ids).items() if times} == set()


def test_bodies_appear_where_they_are_not_hidden(queue: Queue, ids: dict[str, int]) -> None:
    """Shows that the test above can fail."""
    client = queue.app().test_client()
    save_sample(client)
    places = {rule for rule, times in shown(client, ids).items() if times}
    assert places >= {"/job", "/job/body", "/job/form", "/export", "/tube", "/tube/errors", "/errors"}


def test_refused_change_does_not_show_a_hidden_body(queue: Queue, ids: dict[str, int]) -> None:
    client = queue.app(hides_bodies=True).test_client()
    for rule in posts(client.application):
        for state, id in ids.items():
            form = {"id": str(id), "tube": "mail", "state": state, "version": "0", "pri": "1", "ttr": "0"}
            response = client.post(rule, data=form, headers=SAME_ORIGIN)
            assert not any(trace in response.text for trace in TRACES), rule
