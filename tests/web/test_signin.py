"""The sign-in page, and sessions: cookies, expiry, sign-out, and what a session does not allow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import gevent
import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.security import generate_password_hash
from werkzeug.test import TestResponse

from greenstalk_server.config.tables.roles import Rights, Role, User
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.app import Dashboard
from greenstalk_server.web.auth.sessions import MAX_PER_USER

from .conftest import Queue
from .forms import SAME_ORIGIN
from .table import Page
from .test_guard import basic

ADMIN, VIEWER = "change-it", "look-on"
FAST = "scrypt:1024:8:1"
"""A hash method that is faster than the default: each process of pytest computes the hashes when it starts."""
BROWSER = {"User-Agent": "Mozilla/5.0 (X11)", "Accept": "text/html,*/*", "Sec-Fetch-Mode": "navigate"}
HOUR = 3600 * SECOND

HASH = generate_password_hash("tea-time", FAST)


def sign_in(client: FlaskClient, password: str = ADMIN, name: str = "ann", **more: Any) -> TestResponse:
    where = more.pop("where", "")
    form = {"name": name, "password": password, "next": where}
    return client.post("/login", data=form, headers=SAME_ORIGIN | BROWSER, **more)


def status(client: FlaskClient, path: str = "/live?page=overview") -> int:
    return client.get(path, buffered=True).status_code


def cookie_of(response: TestResponse) -> tuple[str, str, set[str]]:
    """Return the name, the value and the attributes of the only cookie that *response* sets."""
    (header,) = response.headers.getlist("Set-Cookie")
    pair, *attributes = header.split("; ")
    name, _, value = pair.partition("=")
    return name, value, set(attributes)


@pytest.fixture
def app(queue: Queue) -> Flask:
    return queue.app(password=ADMIN, viewer_password=VIEWER)


# Redirects and challenges


def test_browser_without_a_session_is_redirected_to_the_sign_in_page_and_back(app: Flask) -> None:
    client = app.test_client()
    response = client.get("/tube?tube=a/b&state=buried", headers=BROWSER)
    assert response.status_code == 303
    assert "WWW-Authenticate" not in response.headers
    where = urlsplit(response.headers["Location"])
    assert (where.path, parse_qs(where.query)) == ("/login", {"next": ["/tube?tube=a/b&state=buried"]})
    page = client.get(response.headers["Location"], headers=BROWSER)
    assert page.status_code == 200
    assert ("input", {"type": "hidden", "name": "next", "value": "/tube?tube=a/b&state=buried"}) in Page(
        page.text
    ).elements
    back = sign_in(client, where="/tube?tube=a/b&state=buried")
    assert (back.status_code, back.headers["Location"]) == (303, "/tube?tube=a/b&state=buried")


def test_programs_get_a_challenge_but_browsers_do_not(app: Flask) -> None:
    client = app.test_client()
    program = client.get("/")
    assert (program.status_code, program.headers["WWW-Authenticate"].split()[0]) == (401, "Basic")
    for headers in (
        {"Sec-Fetch-Mode": "cors"},
        {"User-Agent": "Mozilla/5.0", "Accept": "text/event-stream"},
        BROWSER | {"Sec-Fetch-Mode": "cors"},
    ):
        for path in ("/live?page=overview", "/api/v1/server"):
            response = client.get(path, headers=headers)
            assert response.status_code == 401
            assert "WWW-Authenticate" not in response.headers


def test_expired_form_returns_to_its_page(app: Flask) -> None:
    client = app.test_client()
    client.set_cookie("greenstalk", "gone")
    headers = SAME_ORIGIN | BROWSER | {"Referer": "http://localhost/tube?tube=mail"}
    response = client.post("/tube/pause", data={"tube": "mail", "seconds": "9"}, headers=headers)
    assert response.status_code == 303
    query = parse_qs(urlsplit(response.headers["Location"]).query)
    assert query == {"next": ["/tube?tube=mail"], "ended": ["1"]}
    assert "Your session has ended" in client.get(response.headers["Location"]).text


@pytest.mark.parametrize(
    "where",
    ["", "//evil.example", "https://evil.example/", "/\\evil.example", "/\t/evil.example", "javascript:alert(1)", "x",
     "/login", "/login?next=/", "/logout", "/a b", "\\\\evil.example"],
)  # fmt: skip
def test_next_cannot_redirect_to_another_site(app: Flask, where: str) -> None:
    assert sign_in(app.test_client(), where=where).headers["Location"] == "/"


# The cookie


def test_cookie_over_http(app: Flask) -> None:
    name, value, attributes = cookie_of(sign_in(app.test_client()))
    assert name == "greenstalk"
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", value)
    assert {"HttpOnly", "SameSite=Lax", "Path=/", "Max-Age=604800"} <= attributes
    assert "Secure" not in attributes


@pytest.mark.parametrize(("prefix", "name"), [("", "__Host-greenstalk"), ("/queue", "__Secure-greenstalk")])
def test_cookie_over_https_behind_a_trusted_proxy(queue: Queue, prefix: str, name: str) -> None:
    from ipaddress import ip_network  # noqa: PLC0415

    client = queue.app(password=ADMIN, url_prefix=prefix, trusted_proxies=(ip_network("127.0.0.1/32"),)).test_client()
    form = {"name": "ann", "password": ADMIN}
    secure = SAME_ORIGIN | {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "queue.example.com"}
    response = client.post(f"{prefix}/login", data=form, headers=secure)
    found, token, attributes = cookie_of(response)
    assert (found, response.headers["Location"]) == (name, f"{prefix}/")
    assert {"Secure", "HttpOnly", "SameSite=Lax", f"Path={prefix or '/'}"} <= attributes
    assert not any(attribute.startswith("Domain") for attribute in attributes)
    sent = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "queue.example.com", "Cookie": f"{name}={token}"}
    fresh = client.application.test_client(use_cookies=False)
    assert fresh.get(f"{prefix}/live?page=overview", headers=sent).status_code == 200
    insecure = sent | {"Cookie": f"greenstalk={token}"}
    assert fresh.get(f"{prefix}/live?page=overview", headers=insecure).status_code == 401


def test_servers_on_different_ports_have_different_cookies(app: Flask) -> None:
    headers = SAME_ORIGIN | {"Host": "localhost:8080"}
    response = app.test_client().post("/login", data={"password": ADMIN}, headers=headers)
    assert cookie_of(response)[0] == "greenstalk-8080"


def test_sign_in_replaces_the_session(app: Flask) -> None:
    client = app.test_client()
    _, first, _ = cookie_of(sign_in(client))
    _, second, _ = cookie_of(sign_in(client))
    assert first != second
    assert len(app.extensions["dashboard"].sessions.all()) == 1
    client.set_cookie("greenstalk", first)
    assert status(client) == 401


# Rights and CSRF


def test_session_works_in_the_api_but_not_from_other_sites(app: Flask, queue: Queue) -> None:
    client = app.test_client()
    sign_in(client)
    assert status(client, "/api/v1/server") == 200
    put = {"json": {"tube": "mail", "body": "x"}}
    assert client.post("/api/v1/jobs", headers={"Sec-Fetch-Site": "cross-site"}, **put).status_code == 403
    assert client.post("/tube/put", data={"tube": "mail"}, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert b"mail" not in queue.broker.tubes
    assert client.post("/api/v1/jobs", headers=SAME_ORIGIN, **put).status_code == 201


def test_authorization_header_takes_precedence_over_the_session(app: Flask) -> None:
    client = app.test_client()
    sign_in(client)
    assert client.get("/audit", headers=basic("vic", VIEWER)).status_code == 403
    assert client.get("/", headers=basic("vic", "wrong")).status_code == 401


# Failures


def test_wrong_password_shows_the_error_and_keeps_the_name(app: Flask) -> None:
    response = sign_in(app.test_client(), "wrong", "ada <x>", where="/search")
    assert response.status_code == 401
    assert "WWW-Authenticate" not in response.headers
    assert "Set-Cookie" not in response.headers
    page = Page(response.text)
    assert page.attribute("name", "value") == "ada <x>"
    assert page.attribute("password", "aria-describedby") == "signin-error"
    assert page.attribute("password", "value") is None
    assert "The password is wrong." in page.text
    assert "/search" in response.text


def test_ten_failures_lock_the_sign_in_page_and_basic_auth(app: Flask, queue: Queue) -> None:
    client = app.test_client()
    for _ in range(10):
        assert sign_in(client, "wrong").status_code == 401
    locked = sign_in(client)
    assert (locked.status_code, locked.headers["Retry-After"]) == (429, "60")
    assert "Try again in 60 s" in Page(locked.text).text
    assert client.get("/", headers=basic("", ADMIN)).status_code == 429
    queue.now += 61 * SECOND
    assert sign_in(client).status_code == 303


def test_sign_ins_are_in_the_audit_log(app: Flask) -> None:
    client = app.test_client()
    sign_in(client, "wrong")
    sign_in(client)
    client.post("/logout", headers=SAME_ORIGIN)
    entries = [(one.who, one.what, one.details) for one in app.extensions["dashboard"].audit.entries]
    assert entries == [
        ("ann", "login/failed", {}),
        ("ann", "session/sign-in", {"role": "admin", "method": "admin password"}),
        ("ann", "session/sign-out", {}),
    ]


# The end of a session


def test_sign_out_ends_the_session(app: Flask) -> None:
    client = app.test_client()
    _, token, _ = cookie_of(sign_in(client))
    response = client.post("/logout", headers=SAME_ORIGIN)
    assert response.headers["Location"] == "/login?out=1"
    name, value, attributes = cookie_of(response)
    assert (name, value, "Max-Age=0" in attributes) == ("greenstalk", "", True)
    assert "You are signed out" in client.get("/login?out=1").text
    client.set_cookie("greenstalk", token)
    assert status(client) == 401


def test_session_ends_after_its_idle_time(app: Flask, queue: Queue) -> None:
    client = app.test_client()
    sign_in(client)
    for _ in range(3):
        queue.now += 11 * HOUR
        assert status(client, "/search") == 200
    queue.now += 12 * HOUR
    assert status(client, "/search") == 401


def test_live_updates_do_not_count_as_use(app: Flask, queue: Queue) -> None:
    client = app.test_client()
    sign_in(client)
    queue.now += 11 * HOUR
    assert status(client, "/live?page=overview") == 200
    queue.now += HOUR
    assert status(client, "/live?page=overview") == 401


def test_session_ends_after_its_lifetime(queue: Queue) -> None:
    app = queue.app(password=ADMIN, session_idle_time=2 * HOUR, session_lifetime=5 * HOUR)
    client = app.test_client()
    assert "Max-Age=18000" in cookie_of(sign_in(client))[2]
    for _ in range(4):
        queue.now += HOUR
        assert status(client, "/search") == 200
    queue.now += HOUR
    assert status(client, "/search") == 401
    assert app.extensions["dashboard"].sessions.all() == []


def test_sessions_of_a_user_are_bounded(app: Flask, queue: Queue) -> None:
    clients = []
    for _ in range(MAX_PER_USER + 3):
        queue.now += SECOND
        clients.append(app.test_client())
        sign_in(clients[-1])
    assert [status(client) for client in clients] == [401] * 3 + [200] * MAX_PER_USER


def test_stream_and_task_end_with_the_session(app: Flask, queue: Queue) -> None:
    client = app.test_client()
    sign_in(client)
    stream = client.get("/events?page=overview")
    events = stream.iter_encoded()
    assert next(events).startswith(b"retry")
    assert next(events).startswith(b"data")
    dashboard: Dashboard = app.extensions["dashboard"]
    (session,) = dashboard.sessions.all()
    dashboard.sessions.end(session)
    with gevent.Timeout(30):
        assert [event for event in events if not event.startswith(b"data")] == []
    stream.close()


# Admins end sessions


def test_admin_sees_and_ends_sessions(app: Flask) -> None:
    admin, other = app.test_client(), app.test_client()
    sign_in(admin)
    sign_in(other, VIEWER, "vic")
    page = admin.get("/sessions")
    assert "vic" in Page(page.text).text
    assert "(this browser)" in page.text
    listed = admin.get("/api/v1/sessions?q=vic").json
    assert (listed["total"], listed["sessions"][0]["roles"]) == (1, ["viewer"])
    number = listed["sessions"][0]["number"]
    assert admin.post("/sessions/end", data={"number": number}, headers=SAME_ORIGIN).status_code == 303
    assert [status(admin), status(other)] == [200, 401]
    assert admin.post("/sessions/end", data={"number": number}, headers=SAME_ORIGIN).status_code == 404


def test_admin_signs_out_everyone_else(app: Flask) -> None:
    admin, *others = (app.test_client() for _ in range(4))
    for client in (admin, *others):
        sign_in(client)
    assert admin.delete("/api/v1/sessions", headers=SAME_ORIGIN).json == {"sessions": 3}
    assert [status(client) for client in (admin, *others)] == [200, 401, 401, 401]


# Users of the configuration file


@pytest.fixture
def with_users(queue: Queue) -> Flask:
    roles = {"viewer": Role("viewer", Rights(view=frozenset({"*"}))),
             "billing": Role("billing", Rights(operate=frozenset({"billing.*"})))}  # fmt: skip
    return queue.app(viewer_password=VIEWER, users=[User("bea", HASH, "billing")], roles=roles)


def test_user_signs_in_with_their_own_password(with_users: Flask, queue: Queue) -> None:
    queue.put("billing.invoice")
    queue.put("mail")
    client = with_users.test_client()
    assert sign_in(client, "tea-time", "bea").status_code == 303
    tubes = [row[0] for row in Page(client.get("/").text).tubes]
    assert tubes == ["billing.invoice"]
    assert client.get("/api/v1/tubes", headers=basic("bea", "tea-time")).status_code == 200


# Restarts


def restarted(queue: Queue, directory: Path, **options: Any) -> tuple[FlaskClient, Dashboard]:
    app = queue.app(directory=str(directory), **({"password": ADMIN, "viewer_password": VIEWER} | options))
    return app.test_client(), app.extensions["dashboard"]


def test_sessions_survive_a_restart(queue: Queue, tmp_path: Path) -> None:
    client, dashboard = restarted(queue, tmp_path)
    name, token, _ = cookie_of(sign_in(client))
    dashboard.flush()
    assert not [path for path in tmp_path.iterdir() if token.encode() in path.read_bytes()]
    again, _ = restarted(queue, tmp_path)
    again.set_cookie(name, token)
    assert status(again, "/audit") == 200


@pytest.mark.parametrize("options", [{"password": "another"}, {"password": None}])
def test_session_ends_when_the_password_changes(queue: Queue, tmp_path: Path, options: dict[str, Any]) -> None:
    client, dashboard = restarted(queue, tmp_path)
    name, token, _ = cookie_of(sign_in(client))
    dashboard.flush()
    again, dashboard = restarted(queue, tmp_path, **options)
    again.set_cookie(name, token)
    assert status(again) == 401
    assert dashboard.sessions.all() == []


@pytest.mark.parametrize(
    "user", [User("bea", generate_password_hash("new", FAST), "viewer"), User("bea", HASH, "operator"), None]
)
def test_session_ends_when_the_user_changes(queue: Queue, tmp_path: Path, user: User | None) -> None:
    client, dashboard = restarted(queue, tmp_path, users=[User("bea", HASH, "viewer")])
    name, token, _ = cookie_of(sign_in(client, "tea-time", "bea"))
    dashboard.flush()
    again, _ = restarted(queue, tmp_path, users=[User("bea", HASH, "viewer")])
    again.set_cookie(name, token)
    assert status(again) == 200
    again, _ = restarted(queue, tmp_path, users=[] if user is None else [user])
    again.set_cookie(name, token)
    assert status(again) == 401


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"{}", b"\xff"])
def test_damaged_session_has_ended(queue: Queue, tmp_path: Path, damage: bytes) -> None:
    client, dashboard = restarted(queue, tmp_path)
    name, token, _ = cookie_of(sign_in(client))
    (row,) = dashboard.store.read("session")
    dashboard.store.put("session", row.number, row.name, damage)
    dashboard.flush()
    again, dashboard = restarted(queue, tmp_path)
    again.set_cookie(name, token)
    assert status(again, "/audit") == 401
    assert sign_in(again).status_code == 303
