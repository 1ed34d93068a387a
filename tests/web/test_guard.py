"""The guard: access checks, the headers of every response, and the error pages of refused requests."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from greenstalk_server.web.auth.guard import SECURITY_HEADERS
from greenstalk_server.web.features.tubes.pages.overview import OverviewBuilder
from greenstalk_server.web.framework.assets import static_folder
from greenstalk_server.web.framework.bounded_request import MAX_SIGN_IN_FORM

from .conftest import Queue
from .forms import SAME_ORIGIN
from .table import Page

PASSWORD = "pa:ss wörd"  # noqa: S105

STYLE = "/static/style.css"


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def responses(client: FlaskClient) -> Iterator[TestResponse]:
    """Return one response of every kind."""
    paths = ("/", "/live?page=overview", "/healthz", "/readyz", STYLE, "/nowhere", "/static/nowhere", "/static/../web")
    for path in paths:
        yield client.get(path, buffered=True)
        yield client.head(path, buffered=True)
    yield client.options("/")
    yield client.post("/", headers=SAME_ORIGIN)
    yield client.post("/", headers={"Sec-Fetch-Site": "cross-site"})
    yield client.get("/", headers={"Host": "evil.example"})
    yield client.post("/", data=b"x" * 100_000, headers=SAME_ORIGIN)


@pytest.mark.parametrize("password", [None, PASSWORD])
def test_every_response_has_the_security_headers(visit: Callable[..., FlaskClient], password: str | None) -> None:
    seen = set()
    for response in responses(visit(password=password)):
        seen.add(response.status_code)
        for key, value in SECURITY_HEADERS.items():
            assert response.headers.getlist(key) == [value], response.request.path
        kept = "no-cache" if response.request.path == STYLE and response.status_code == 200 else "no-store"
        assert response.headers.getlist("Cache-Control") == [kept]
        assert "Set-Cookie" not in response.headers
    assert seen == ({200, 401, 403, 404} if password else {200, 403, 404, 405, 421})


def test_content_security_policy_is_strict(client: FlaskClient) -> None:
    policy = client.get("/").headers["Content-Security-Policy"]
    assert policy == (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


@pytest.mark.parametrize("path", ["/", "/nowhere"])
def test_page_has_no_inline_code_and_nothing_from_other_sites(client: FlaskClient, path: str) -> None:
    for tag, attributes in Page(client.get(path).text).elements:
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        for name in ("href", "src", "action"):
            assert re.match(r"/(?!/)|[#?]", attributes.get(name) or "/"), (tag, attributes)
        assert tag not in ("style", "iframe", "object", "base")
        assert tag != "script" or attributes["src"]


def test_static_files_load_nothing_from_other_sites(client: FlaskClient) -> None:
    for name in sorted(path.name for path in Path(static_folder()).iterdir() if path.is_file()):
        response = client.get(f"/static/{name}", buffered=True)
        assert response.status_code == 200
        assert not re.search(r"@import|url\(|[\"']https?://(?!www\.w3\.org/2000/svg)", response.text)
        again = client.get(f"/static/{name}", headers={"If-None-Match": response.headers["ETag"]}, buffered=True)
        assert again.status_code == 304


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8080", "LOCALHOST", "localhost.", "127.0.0.1:80", "10.1.2.3", "[::1]", "[::1]:8080",
     "[fe80::1]:8080", "queue-host:8080", "jobs.lan", "Jobs.LAN:1"],
)  # fmt: skip
def test_own_host_is_accepted(visit: Callable[..., FlaskClient], host: str) -> None:
    assert visit(hosts=["jobs.lan"]).get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "evil-localhost", "",
     "localhost:8080:8080", "localhost/", "localhost@evil.example", "[::1", "::1", "[localhost]", "[]", "127.0.0.1\t",
     "0x7f.1", "jobs.lan,evil.example"],
)  # fmt: skip
def test_other_host_is_refused(visit: Callable[..., FlaskClient], host: str) -> None:
    client = visit(hosts=["jobs.lan"])
    for path in ("/", "/live?page=overview", "/static/style.css", "/nowhere"):
        response = client.get(path, environ_overrides={"HTTP_HOST": host}, buffered=True)
        assert response.status_code == 421
        assert "Uptime" not in response.text
    for path in ("/healthz", "/readyz"):
        assert client.get(path, environ_overrides={"HTTP_HOST": host}).status_code == 200


INVALID_NAMES = ["a..b", ".", ".a", "localhost..", "..localhost", "a" * 64, f"{'a' * 64}.example:8080", "127.0.0.1.."]


@pytest.mark.parametrize("host", INVALID_NAMES)
def test_invalid_host_name_is_refused(
    visit: Callable[..., FlaskClient], host: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = visit(hosts=["jobs.lan"])
    for path in ("/", "/live?page=overview", "/metrics", STYLE, "/nowhere", "/api/v1/server", "/api/v1/nowhere"):
        response = client.get(path, headers={"Host": host}, buffered=True)
        assert response.status_code == 421, path
        assert response.mimetype == "application/problem+json" or not path.startswith("/api/")
        assert "Uptime" not in response.text
    assert client.post("/tube/pause", headers={"Host": host}).status_code == 421
    for path in ("/healthz", "/readyz"):
        assert client.get(path, headers={"Host": host}).status_code == 200
    assert not [entry for entry in caplog.records if entry.levelno >= logging.ERROR]


def test_every_host_is_accepted_with_a_password(visit: Callable[..., FlaskClient]) -> None:
    client = visit(password=PASSWORD)
    assert client.get("/", headers={"Host": "jobs.example", **basic("me", PASSWORD)}).status_code == 200
    assert client.get("/", headers={"Host": "jobs.example"}).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {},
        basic("", ""),
        basic("admin", PASSWORD + " "),
        basic("admin", PASSWORD[:-1]),
        basic("admin", PASSWORD.upper()),
        basic(PASSWORD, ""),
        {"Authorization": PASSWORD},
        {"Authorization": f"Bearer {PASSWORD.replace(' ', '').encode().hex()}"},
        {"Authorization": "Basic"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic \xff\xfe"},
        {"Authorization": "Basic " + base64.b64encode(b"admin").decode()},
        {"Authorization": "Basic " + base64.b64encode(b"admin:\xff\xfe").decode()},
        {"Authorization": 'Digest username="admin"'},
    ],
)
def test_response_without_the_password_shows_nothing(
    visit: Callable[..., FlaskClient], headers: dict[str, str]
) -> None:
    client = visit(password=PASSWORD)
    for path in ("/", "/live?page=overview", "/nowhere"):
        response = client.get(path, headers=headers)
        assert response.status_code == 401
        assert response.headers["WWW-Authenticate"] == 'Basic realm="Greenstalk Server", charset=UTF-8'
        assert "password" in Page(response.text).text
        for secret in ("queue-host", "9.8.7", "Uptime"):
            assert secret not in response.text


def test_health_checks_and_static_files_need_no_password(visit: Callable[..., FlaskClient]) -> None:
    client = visit(password=PASSWORD)
    health = client.get("/healthz")
    assert (health.status_code, health.text, health.mimetype) == (200, "ok\n", "text/plain")
    ready = client.get("/readyz")
    assert (ready.status_code, ready.text, ready.mimetype) == (200, "ready\n", "text/plain")
    assert client.get("/static/style.css", buffered=True).status_code == 200


def test_not_ready_while_the_journal_cannot_be_written(queue: Queue, visit: Callable[..., FlaskClient]) -> None:
    """The server stays alive, and is ready again once the journal can be written."""
    client = visit(password=PASSWORD)
    queue.broker.journal.write_error = "[Errno 5] Input/output error"
    response = client.get("/readyz")
    assert (response.status_code, response.mimetype) == (503, "text/plain")
    assert response.text == "journal: [Errno 5] Input/output error\n"
    assert client.get("/healthz").status_code == 200
    queue.broker.journal.write_error = None
    assert client.get("/readyz").status_code == 200


IMAGE = {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
FRAME = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
LINK = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
PAGES = ("/", "/search?q=pri:>1", "/export?format=csv", "/api/v1/server", "/metrics", "/nowhere")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("how", [IMAGE, FRAME, {}])
def test_page_of_another_site_cannot_embed_anything(
    visit: Callable[..., FlaskClient], site: str, how: dict[str, str]
) -> None:
    headers = {"Sec-Fetch-Site": site, **how}
    for client, login in ((visit(), {}), (visit(password=PASSWORD), basic("me", PASSWORD))):
        for path in PAGES:
            response = client.get(path, headers=headers | login)
            assert response.status_code == 403, path
            assert "may not load anything from it" in response.text
        for path in ("/healthz", "/readyz", STYLE):
            assert client.get(path, headers=headers, buffered=True).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", **LINK},
        {"Sec-Fetch-Site": "same-site", **LINK},
        {"Sec-Fetch-Site": "none", **LINK},
        {"Sec-Fetch-Site": "same-origin", **IMAGE},
        IMAGE,
        {},
    ],
)
def test_link_from_another_site_works(client: FlaskClient, headers: dict[str, str]) -> None:
    for path in PAGES[:-1]:
        assert client.get(path, headers=headers, buffered=True).status_code == 200, path


SITES = (None, "", "same-origin", "same-site", "cross-site", "none", "same-origin, cross-site")
ORIGINS = (None, "", "null", "http://localhost:8080", "https://localhost:8080", "http://evil.example")


def is_refused(client: FlaskClient, path: str, site: str | None, origin: str | None) -> bool:
    """Whether a POST with these headers is refused because it comes from another site."""
    headers = {"Host": "localhost:8080"} | ({} if site is None else {"Sec-Fetch-Site": site})
    headers |= {} if origin is None else {"Origin": origin}
    response = client.post(path, headers=headers)
    return response.status_code == 403 and "came from elsewhere" in response.text


def test_change_must_come_from_our_own_pages(client: FlaskClient) -> None:
    for site, origin in product(SITES, ORIGINS):
        is_ours = site == "same-origin" or (site is None and (origin or "").endswith("://localhost:8080"))
        assert is_refused(client, "/tube/pause", site, origin) != is_ours, (site, origin)


def test_every_change_of_another_site_is_refused(app: Flask) -> None:
    """Goes through all rules, so that a new action is checked too."""
    rules = [rule.rule for rule in app.url_map.iter_rules() if "POST" in (rule.methods or ())]
    assert len(rules) > 10
    for rule in rules:
        assert not is_refused(app.test_client(), rule, "same-origin", None), rule
        for site, origin in (("cross-site", None), (None, "http://evil.example"), (None, None)):
            assert is_refused(app.test_client(), rule, site, origin), rule


def test_failing_view_shows_an_error_page_and_is_logged(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the secret inside")

    monkeypatch.setattr(OverviewBuilder, "build", fail)
    for path in ("/", "/live?page=overview"):
        response = queue.app().test_client().get(path)
        assert response.status_code == 500
        assert "See the server's log" in Page(response.text).text
        assert "secret" not in response.text
        assert response.headers["Content-Security-Policy"] == SECURITY_HEADERS["Content-Security-Policy"]
    assert "the secret inside" in caplog.text


# Large forms

FORM = "application/x-www-form-urlencoded"
ADMIN = "change-it"


@pytest.mark.parametrize("path", ["/login", "/theme", "/zone", "/tube/pause", "/nothing"])
@pytest.mark.parametrize("is_known", [False, True])
def test_form_with_too_many_fields_is_not_parsed(
    queue: Queue, path: str, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    parse = parse_qsl
    monkeypatch.setattr(
        "werkzeug.formparser.parse_qsl", lambda text, **more: parsed.append(len(text)) or parse(text, **more)
    )
    client = queue.app(password=ADMIN).test_client()
    headers = SAME_ORIGIN | (basic("", ADMIN) if is_known else {})
    response = client.post(path, data=b"a&" * 15_000, content_type=FORM, headers=headers)
    assert response.status_code in (401, 404, 413)
    assert parsed == []
    assert client.post(path, data={"a": "b"}, headers=headers).status_code in (303, 400, 401, 404)
    assert parsed == [] or parsed == [3]


@pytest.mark.parametrize("path", ["/login", "/theme", "/zone"])
def test_form_without_credentials_is_small(queue: Queue, path: str) -> None:
    client = queue.app(password=ADMIN).test_client()
    form = {"name": "x" * MAX_SIGN_IN_FORM}
    assert client.post(path, data=form, headers=SAME_ORIGIN).status_code == 413
