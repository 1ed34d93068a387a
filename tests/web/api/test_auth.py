"""Access to the API: by token, by password, or open on loopback; never for a page of another site."""

from __future__ import annotations

import re
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from greenstalk_server.core.operations import editing
from greenstalk_server.web.auth.logins import LOCK_TIME, MAX_FAILURES
from greenstalk_server.web.framework.api.router import ROOT
from tests.support import invariants

from ..conftest import Queue
from ..forms import SAME_ORIGIN
from ..test_guard import basic
from .conftest import bearer, problem

ADMIN = "change-it"
VIEWER = "look-on"
TOKENS: dict[str, Any] = {"api_token": ADMIN, "api_viewer_token": VIEWER}
PASSWORDS: dict[str, Any] = {"password": "pass-admin", "viewer_password": "pass-viewer"}

JSON = {"Content-Type": "application/json"}
PAUSE = f"{ROOT}/tube/pause?tube=default"
BODY = b'{"seconds": 5}'


def change(app: Flask, headers: dict[str, str], method: str = "POST", path: str = PAUSE) -> TestResponse:
    return app.test_client().open(path, method=method, headers={"Host": "localhost:8080", **headers}, data=BODY)


def look(app: Flask, headers: dict[str, str], path: str = "/server") -> TestResponse:
    return app.test_client().get(f"{ROOT}{path}", headers=headers)


def rules(app: Flask) -> list[tuple[str, str]]:
    """Return method and address of every endpoint of the API except the stream."""
    return [
        (method, re.sub(r"<\w+>", "1", rule.rule))
        for rule in app.url_map.iter_rules()
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"})
        if rule.rule.startswith(ROOT) and not rule.rule.endswith("/events")
    ]


# Tokens


def test_token_opens_the_api_and_is_named_in_the_audit_log(queue: Queue) -> None:
    app = queue.app(**TOKENS)
    assert change(app, bearer(ADMIN) | JSON).status_code == 200
    assert look(app, bearer(VIEWER)).status_code == 200
    assert "This is a viewer's token" in problem(change(app, bearer(VIEWER) | JSON), 403)["detail"]
    entries = look(app, bearer(ADMIN), "/audit").get_json()["entries"]
    assert [(one["who"], one["what"]) for one in entries] == [
        ("api-viewer-token", "refused/change"),
        ("api-token", "tube/pause"),
    ]
    problem(look(app, bearer(VIEWER), "/audit"), 403)


@pytest.mark.parametrize("options", [TOKENS, PASSWORDS, TOKENS | PASSWORDS, {"viewer_password": "v"}])
def test_wrong_token_and_missing_token_look_the_same(queue: Queue, options: dict[str, Any]) -> None:
    """Same status, body and headers at every endpoint. Only the audit log differs."""
    wrong = [{}, bearer("x"), bearer(""), bearer(ADMIN + "x"), bearer("ä" * 300)]
    wrong += [basic("ada", "x"), {"Authorization": "Basic !"}, {"Authorization": "Digest x=y"}, {"Authorization": ""}]
    app = queue.app(**options)
    for at, (method, path) in enumerate(rules(app)):
        if path.endswith("/openapi.json") and not set(options) & set(PASSWORDS):
            continue  # open to principals of the dashboard
        answers = set()
        address = {"REMOTE_ADDR": f"192.0.2.{at}"}  # not locked out yet
        for headers in wrong:
            response = app.test_client().open(path, method=method, headers=headers, environ_overrides=address)
            problem(response, 401)
            answers.add((response.status, response.data, tuple(response.headers)))
        assert len(answers) == 1, (method, path)


def test_error_names_the_accepted_credentials(queue: Queue) -> None:
    both = look(queue.app(**TOKENS, **PASSWORDS), {})
    assert [one.split()[0] for one in both.headers.getlist("WWW-Authenticate")] == ["Bearer", "Basic"]
    assert [one.split()[0] for one in look(queue.app(**TOKENS), {}).headers.getlist("WWW-Authenticate")] == ["Bearer"]
    assert [one.split()[0] for one in look(queue.app(**PASSWORDS), {}).headers.getlist("WWW-Authenticate")] == ["Basic"]


def test_failed_tokens_lock_out_their_address(queue: Queue) -> None:
    app = queue.app(**TOKENS, **PASSWORDS)
    for _ in range(MAX_FAILURES):
        problem(look(app, bearer("x")), 401)
    locked = look(app, bearer(ADMIN))
    problem(locked, 429)
    assert locked.headers["Retry-After"] == "60"
    assert look(app, basic("ada", "pass-admin")).status_code == 200  # failed tokens do not lock out logins
    assert app.test_client().get("/", headers=basic("ada", "pass-admin")).status_code == 200
    other = app.test_client().get(
        f"{ROOT}/server", headers=bearer(ADMIN), environ_overrides={"REMOTE_ADDR": "192.0.2.7"}
    )
    assert other.status_code == 200
    queue.now += LOCK_TIME
    assert look(app, bearer(ADMIN)).status_code == 200
    what = [one["what"] for one in look(app, bearer(ADMIN), "/audit").get_json()["entries"]]
    assert what == ["token/locked"] + ["token/failed"] * (MAX_FAILURES - 1)


def test_token_opens_only_the_api(queue: Queue) -> None:
    app = queue.app(**TOKENS, **PASSWORDS, metrics_token="m")  # noqa: S106
    for path in ("/", "/audit", "/metrics", "/job?id=1", "/api"):
        assert app.test_client().get(path, headers=bearer(ADMIN)).status_code == 401, path
    problem(look(app, bearer("m")), 401)
    assert app.test_client().post("/tube/pause", headers=bearer(ADMIN)).status_code == 403


def test_every_host_is_accepted_with_a_token(queue: Queue) -> None:
    app = queue.app(**TOKENS)
    assert look(app, bearer(ADMIN) | {"Host": "queue.example"}).status_code == 200
    problem(look(queue.app(), {"Host": "queue.example"}), 421)


def test_token_is_refused_by_a_server_without_tokens(queue: Queue) -> None:
    refused = problem(look(queue.app(), bearer("x")), 401)
    assert refused["detail"] == "This server has no API token. Send the request without the Authorization header."
    assert look(queue.app(), {}).status_code == 200


def test_api_with_a_token_is_closed_to_others(queue: Queue) -> None:
    for name, token in TOKENS.items():
        app = queue.app(**{name: token})
        problem(look(app, {}), 401)
        problem(look(app, SAME_ORIGIN), 401)
        assert app.test_client().get("/").status_code == 200  # the dashboard stays open


# Passwords


def test_passwords_open_the_api_too(queue: Queue) -> None:
    app = queue.app(**PASSWORDS, user="ada")
    assert look(app, basic("ada", "pass-admin"), "/audit").status_code == 200
    assert look(app, basic("eve", "pass-viewer")).status_code == 200
    problem(look(app, basic("eve", "pass-admin")), 401)
    assert change(app, basic("ada", "pass-admin") | JSON).status_code == 200
    problem(change(app, basic("eve", "pass-viewer") | JSON), 403)


# Pages of other sites

KINDS = (None, "application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data")


@pytest.mark.parametrize("options", [{}, PASSWORDS], ids=["open", "password"])
@pytest.mark.parametrize(
    ("site", "origin"),
    [("same-origin", None), (None, "http://localhost:8080"), (None, None), ("cross-site", None),
     (None, "http://evil.example")],
)  # fmt: skip
def test_no_page_of_another_site_changes_anything(
    queue: Queue, options: dict[str, Any], site: str | None, origin: str | None
) -> None:
    """A browser adds the password to every request, so only the headers that name the origin tell the pages apart."""
    app = queue.app(**options)
    headers = basic("ada", "pass-admin") if options else {}
    headers |= {} if site is None else {"Sec-Fetch-Site": site}
    headers |= {} if origin is None else {"Origin": origin}
    is_ours = site == "same-origin" or (site is None and origin == "http://localhost:8080")
    is_program = site is None and origin is None
    for kind in KINDS:
        sent = headers | ({} if kind is None else {"Content-Type": kind})
        response = change(app, sent)
        is_let_in = is_ours or (is_program and kind == "application/json")
        if is_let_in and kind != "application/json":
            problem(response, 415)
        elif is_let_in:
            assert response.status_code == 200
        else:
            assert "came from elsewhere" in problem(response, 403)["detail"]
            assert not queue.broker.tubes[b"default"].paused_until
        editing.pause_tube(queue.broker, b"default", 0, queue.now)


def test_request_that_no_form_can_send_needs_no_json(queue: Queue) -> None:
    app = queue.app()
    (id,) = queue.put("mail", delay=60)
    assert change(app, {"X-Requested-With": "curl"}, path=f"{ROOT}/jobs/{id}/kick").status_code == 200
    problem(change(app, {}, path=f"{ROOT}/jobs/{id}/bury"), 403)
    assert change(app, {}, method="DELETE", path=f"{ROOT}/jobs/{id}").status_code == 204


def test_bearer_token_needs_no_origin(queue: Queue) -> None:
    app = queue.app(**TOKENS)
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {}):
        assert change(app, bearer(ADMIN) | JSON | headers).status_code == 200


def test_no_response_allows_other_origins(queue: Queue) -> None:
    for path in (f"{ROOT}/server", f"{ROOT}/jobs"):
        response = queue.app().test_client().options(path, headers={"Origin": "http://evil.example"})
        assert not [name for name in response.headers.keys() if name.startswith("Access-Control")]  # noqa: SIM118


# Roles


@pytest.mark.parametrize(
    ("options", "headers"),
    [
        (TOKENS, bearer(VIEWER)),
        (PASSWORDS, basic("eve", "pass-viewer")),
        ({"is_read_only": True}, {}),
        (TOKENS | {"is_read_only": True}, bearer(ADMIN)),
        (PASSWORDS | {"is_read_only": True}, basic("ada", "pass-admin")),
    ],
)
def test_only_admins_change_anything(queue: Queue, options: dict[str, Any], headers: dict[str, str]) -> None:
    """Goes through all endpoints, so that a new one is checked too."""
    app = queue.app(**options)
    queue.put("default")
    allowed = set()
    for rule in app.url_map.iter_rules():
        if not rule.rule.startswith(ROOT):
            continue
        for method in (rule.methods or set()) - {"GET", "HEAD", "OPTIONS"}:
            path = re.sub(r"<\w+>", "1", rule.rule)
            sent = headers | JSON | {"Origin": "http://localhost"}
            response = app.test_client().open(path, method=method, headers=sent, data=b"{}")
            if response.status_code != 403:
                allowed.add(rule.endpoint)
    assert allowed == {"api_search_jobs", "api_dry_run_policy"}
    assert look(app, headers).status_code == 200
    invariants.check(queue.broker)
