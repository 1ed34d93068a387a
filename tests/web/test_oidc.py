"""Sign-in with a real OpenID Connect provider, which runs beside the server; and with one that misbehaves."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
from flask import Flask
from flask.testing import FlaskClient
from joserfc import jwt
from joserfc.jwk import RSAKey

from greenstalk_server.config.tables.roles import Rights, Role
from greenstalk_server.web.auth import oidc
from greenstalk_server.web.options import Provider
from tests.support.daemon import TIMEOUT, Daemon, environment
from tests.support.ports import free_ports
from tests.support.processes import ending, join

from .browser import Tab
from .conftest import Queue
from .forms import SAME_ORIGIN
from .table import Page
from .visit import FLAGS, press

ROLES = """
[roles.admin]
groups = ["queue-admins"]
[roles.billing]
operate = ["billing.*"]
groups = ["billing-team"]
[oidc]
issuer = "{issuer}"
client_id = "queue"
client_secret = "any"
label = "Example"
"""

USERS = (
    {"sub": "ann", "preferred_username": "Ann Other", "groups": ["queue-admins", "staff"]},
    {"sub": "bea", "groups": ["billing-team"]},
    {"sub": "eve", "groups": ["staff"]},
)


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """The address of a provider with three users."""
    port = free_ports(1)[0]
    users = [word for user in USERS for word in ("--user-claims", json.dumps(user))]
    command = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port), *users]
    process = subprocess.Popen(
        command,
        env={**os.environ, "AUTHLIB_INSECURE_TRANSPORT": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with ending(process):
        assert process.stderr is not None
        line = next(line for line in process.stderr if "running" in line.lower())
        reader = threading.Thread(target=process.stderr.read, daemon=True)
        reader.start()
        assert str(port) in line
        yield f"http://127.0.0.1:{port}"
        process.kill()
        join(reader)


@pytest.fixture(scope="module")
def daemon(issuer: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    file = tmp_path_factory.mktemp("oidc") / "greenstalk.toml"
    file.write_text(ROLES.format(issuer=issuer))
    file.chmod(0o600)
    with Daemon(*FLAGS, "--config", str(file), environ=environment()) as running:
        yield running


def sign_in(daemon: Daemon, sub: str, where: str = "/search") -> tuple[requests.Session, requests.Response]:
    """Sign in at the provider as *sub*; return the browser's session, and the last page."""
    browser = requests.Session()
    page = browser.get(f"{daemon.dashboard}oidc/start", params={"next": where})
    assert "Authorize Client" in page.text
    return browser, browser.post(page.url, data={"sub": sub})


def test_user_signs_in_and_returns_to_the_page(tab: Tab, daemon: Daemon, issuer: str) -> None:
    tab.page.goto(f"{daemon.dashboard}search")
    assert tab.page.locator("#password").count() == 0
    tab.page.get_by_role("link", name="Sign in with Example").click()
    tab.page.wait_for_url(f"{issuer}/**")
    tab.page.get_by_role("button", name="ann", exact=True).click()
    tab.page.wait_for_url(f"{daemon.dashboard}search")
    tab.page.click("#settings > summary")
    assert "Signed in as Ann Other, admin" in tab.page.inner_text("#settings")
    press(tab, "Sign out")
    assert "You are signed out." in tab.page.inner_text("main")
    link = tab.page.get_by_role("link", name="Sign out of Example too").get_attribute("href")
    assert link is not None
    assert link.startswith(f"{issuer}/oauth2/end_session?id_token_hint=")
    tab.console.clear()  # messages of the provider's own pages
    tab.elsewhere.clear()


def test_groups_give_the_role(daemon: Daemon) -> None:
    browser, page = sign_in(daemon, "bea")
    assert (page.status_code, urlsplit(page.url).path) == (200, "/search")
    assert "Signed in as bea, billing" in Page(page.text).text
    assert browser.get(f"{daemon.dashboard}audit").status_code == 403
    put = browser.post(f"{daemon.dashboard}api/v1/jobs", json={"tube": "billing.a"}, headers=SAME_ORIGIN)
    assert put.status_code == 201
    assert browser.post(f"{daemon.dashboard}api/v1/jobs", json={"tube": "a"}, headers=SAME_ORIGIN).status_code == 403


def test_user_without_a_role_is_refused(daemon: Daemon) -> None:
    browser, page = sign_in(daemon, "eve")
    assert page.status_code == 403
    assert "You are signed in as eve, but none of your groups has a role here." in Page(page.text).text
    assert "Sign out of Example" in Page(page.text).text
    assert "/oauth2/end_session?id_token_hint=" in page.text
    assert browser.get(f"{daemon.dashboard}api/v1/server").status_code == 401


def test_refusal_at_the_provider_is_shown(app: Flask) -> None:
    client = app.test_client()
    sent = begin(client)
    back = client.get("/oidc/callback", query_string={"error": "access_denied", "state": sent["state"]})
    assert back.status_code == 403
    assert "The provider refused the sign-in: access_denied" in Page(back.text).text


def test_response_is_accepted_only_in_the_browser_that_began_the_sign_in(daemon: Daemon) -> None:
    victim, attacker = requests.Session(), requests.Session()
    page = attacker.get(f"{daemon.dashboard}oidc/start")
    answer = attacker.post(page.url, data={"sub": "ann"}, allow_redirects=False)
    for browser in (victim, requests.Session()):
        stolen = browser.get(answer.headers["Location"])
        assert stolen.status_code == 403
        assert "started in another browser" in stolen.text
        assert browser.get(f"{daemon.dashboard}api/v1/server").status_code == 401
    victim.get(f"{daemon.dashboard}oidc/start")
    stolen = victim.get(answer.headers["Location"])
    assert "does not belong to the last sign-in" in stolen.text


def test_code_works_once(daemon: Daemon) -> None:
    browser = requests.Session()
    page = browser.get(f"{daemon.dashboard}oidc/start")
    cookie = dict(browser.cookies)
    answer = browser.post(page.url, data={"sub": "ann"}, allow_redirects=False).headers["Location"]
    assert browser.get(answer, allow_redirects=False).status_code == 303
    again = requests.get(answer, cookies=cookie, timeout=TIMEOUT)
    assert again.status_code == 403
    assert "The provider refused the sign-in" in again.text


def test_missing_packages_are_named(tmp_path: Path) -> None:
    file = tmp_path / "greenstalk.toml"
    file.write_text(ROLES.format(issuer="http://127.0.0.1:1"))
    file.chmod(0o600)
    code = (
        "import sys; sys.modules['authlib'] = None\n"
        "import importlib.util as util; real = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'authlib' else real(name, *rest)\n"
        "from greenstalk_server.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *FLAGS, "--config", str(file)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 5
    assert "pip install 'greenstalk-server[oidc]'" in done.stderr


# A provider that the test controls


@cache
def _key() -> RSAKey:
    """Return the key of all providers: a new one takes half a second of CPU."""
    return RSAKey.generate_key(2048, {"kid": "k1"})


class ScriptedProvider:
    """A provider with a valid configuration, whose tokens the test chooses.

    token_requests      the forms that the server sent to the token endpoint.
    bodies              bodies to send instead of the usual ones, by path.
    """

    def __init__(self) -> None:
        self.key = _key()
        self.token_requests: list[dict[str, str]] = []
        self.claims: dict[str, Any] = {}
        self.signing_key = self.key
        self.header: dict[str, Any] = {"alg": "RS256", "kid": "k1"}
        self.metadata: dict[str, Any] = {}
        self.bodies: dict[str, Iterable[bytes]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path in provider.bodies:
                    self.stream(provider.bodies[self.path])
                elif self.path == "/keys":
                    self.reply({"keys": [provider.key.as_dict(private=False)]})
                elif self.path == "/.well-known/openid-configuration":
                    self.reply(provider.document())
                else:
                    self.reply({"sub": "other"})

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"])).decode()
                provider.token_requests.append({name: values[0] for name, values in parse_qs(raw).items()})
                if self.path in provider.bodies:
                    self.stream(provider.bodies[self.path])
                    return
                token = jwt.encode(provider.header, provider.claims, provider.signing_key)
                self.reply({"access_token": "a", "token_type": "Bearer", "id_token": token})

            def reply(self, document: object) -> None:
                body = json.dumps(document).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def stream(self, parts: Iterable[bytes]) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                with suppress(OSError):  # the server closes the connection
                    for part in parts:
                        self.wfile.write(part)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def document(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
        } | self.metadata


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    found = ScriptedProvider()
    yield found
    found.server.shutdown()
    found.server.server_close()


ROLE = {"staff": Role("staff", Rights(view=frozenset({"*"})), ("staff",))}


@pytest.fixture
def app(queue: Queue, provider: ScriptedProvider) -> Flask:
    return queue.app(oidc=Provider(provider.issuer, "queue", "s3cret"), roles=ROLE)


def begin(client: FlaskClient) -> dict[str, str]:
    """Begin a sign-in; return the parameters that the server sent to the provider."""
    response = client.get("/oidc/start?next=/search")
    assert response.status_code == 303, response.text
    return {name: values[0] for name, values in parse_qs(urlsplit(response.headers["Location"]).query).items()}


def good_claims(provider: ScriptedProvider, sent: dict[str, str]) -> dict[str, Any]:
    now = int(time.time())
    return {
        "iss": provider.issuer, "aud": "queue", "sub": "u1", "nonce": sent["nonce"], "iat": now, "exp": now + 60,
        "preferred_username": "Bob", "groups": ["staff"],
    }  # fmt: skip


def finish(client: FlaskClient, sent: dict[str, str], **more: str) -> Any:
    return client.get("/oidc/callback", query_string={"code": "c0de", "state": sent["state"], **more})


def test_flow_uses_pkce_and_the_secret(app: Flask, provider: ScriptedProvider) -> None:
    client = app.test_client()
    sent = begin(client)
    assert (sent["response_type"], sent["code_challenge_method"], sent["client_id"]) == ("code", "S256", "queue")
    assert sent["redirect_uri"] == "http://localhost/oidc/callback"
    provider.claims = good_claims(provider, sent)
    response = finish(client, sent)
    assert (response.status_code, response.headers["Location"]) == (303, "/search")
    (form,) = provider.token_requests
    digest = hashlib.sha256(form["code_verifier"].encode()).digest()
    assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == sent["code_challenge"]
    assert (form["code"], form["client_secret"], form["redirect_uri"]) == ("c0de", "s3cret", sent["redirect_uri"])
    assert "Signed in as Bob, staff" in Page(client.get("/").text).text


BAD_CLAIMS: dict[str, dict[str, Any]] = {
    "nonce": {"nonce": "other"},
    "no nonce": {"nonce": None},
    "issuer": {"iss": "http://127.0.0.1:1"},
    "audience": {"aud": "another-client"},
    "expired": {"exp": 1},
    "from the future": {"iat": 4_000_000_000, "nbf": 4_000_000_000},
    "no subject": {"sub": None},
}


@pytest.mark.parametrize("case", BAD_CLAIMS)
def test_token_for_another_use_is_refused(app: Flask, provider: ScriptedProvider, case: str) -> None:
    client = app.test_client()
    sent = begin(client)
    claims = good_claims(provider, sent) | BAD_CLAIMS[case]
    provider.claims = {name: value for name, value in claims.items() if value is not None}
    response = finish(client, sent)
    assert response.status_code == 403
    assert "token is not valid" in response.text
    assert client.get("/live?page=overview").status_code == 401


@pytest.mark.parametrize("kid", ["k1", "unknown"])
def test_token_with_another_key_is_refused(app: Flask, provider: ScriptedProvider, kid: str) -> None:
    client = app.test_client()
    sent = begin(client)
    provider.claims = good_claims(provider, sent)
    provider.signing_key = RSAKey.generate_key(2048, {"kid": kid})
    provider.header["kid"] = kid
    response = finish(client, sent)
    assert response.status_code == 403
    assert "token is not valid" in response.text


def test_unsigned_token_is_refused(app: Flask, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    client = app.test_client()
    sent = begin(client)
    parts = [{"alg": "none"}, good_claims(provider, sent)]
    token = ".".join(
        [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts] + [""]
    )
    monkeypatch.setattr(jwt, "encode", lambda *_: token)
    response = finish(client, sent)
    assert response.status_code == 403
    assert "token is not valid" in response.text


def test_response_of_another_issuer_is_refused(app: Flask, provider: ScriptedProvider) -> None:
    client = app.test_client()
    sent = begin(client)
    assert "came from another provider" in finish(client, sent, iss="https://evil.example").text
    assert provider.token_requests == []


@pytest.mark.parametrize(
    "metadata",
    [{"issuer": "http://127.0.0.1:1"}, {"token_endpoint": "http://10.0.0.1/token"},
     {"token_endpoint": "http://127.example.com/token"}, {"jwks_uri": "file:///etc/passwd"},
     {"authorization_endpoint": None}],
)  # fmt: skip
def test_provider_with_an_unsafe_configuration_is_refused(
    app: Flask, provider: ScriptedProvider, metadata: dict[str, Any]
) -> None:
    provider.metadata = metadata
    response = app.test_client().get("/oidc/start")
    assert response.status_code == 502
    assert "The identity provider failed" in response.text


def test_users_share_a_failure(app: Flask, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    requested = []

    def recorded() -> Iterator[bytes]:
        requested.append(1)
        yield b"no JSON"

    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    place = "/.well-known/openid-configuration"
    provider.bodies[place] = recorded()
    for _ in range(3):
        assert app.test_client().get("/oidc/start").status_code == 502
    assert len(requested) == 1
    del provider.bodies[place]
    now += oidc.FAILED_FOR
    assert app.test_client().get("/oidc/start").status_code == 303


@pytest.mark.parametrize("error", sorted(oidc.REFUSED_CLIENT))
def test_wrong_secret_is_a_fault_of_the_configuration(app: Flask, provider: ScriptedProvider, error: str) -> None:
    client = app.test_client()
    sent = begin(client)
    provider.bodies["/token"] = [json.dumps({"error": error}).encode()]
    response = finish(client, sent)
    assert response.status_code == 502
    assert "refused the client id or secret of this dashboard" in Page(response.text).text


def test_flow_ends_after_ten_minutes(app: Flask, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    client = app.test_client()
    sent = begin(client)
    provider.claims = good_claims(provider, sent)
    late = time.time() + oidc.FLOW_TIME + 1
    monkeypatch.setattr(time, "time", lambda: late)
    assert "took more than 10 minutes" in finish(client, sent).text
    assert provider.token_requests == []


DEEP = b"[" * 100_000
PLACES = ("/.well-known/openid-configuration", "/keys", "/token")


MALFORMED = (b"", b"no JSON", b"[]", b"null", b"{}", DEEP, b"\xff")
MALFORMED_KEYS = (b'{"keys": 5}', b'{"keys": [5]}', b'{"keys": [{"kty": "RSA", "n": "!", "e": "!", "kid": "k1"}]}')
MALFORMED_TOKENS = (
    b'{"id_token": 5}', b'{"id_token": "a.b.c"}', b'{"id_token": "a.b.c.d.e", "token_type": 5}', b'{"error": 5}',
    b'{"id_token": "' + b"9" * 100_000 + b'"}',
)  # fmt: skip


@pytest.mark.parametrize(
    ("place", "body"),
    [
        *product(PLACES, MALFORMED),
        *product(["/keys"], MALFORMED_KEYS),
        *product(["/token"], MALFORMED_TOKENS),
    ],
)
def test_malformed_document_is_reported(app: Flask, provider: ScriptedProvider, place: str, body: bytes) -> None:
    client = app.test_client()
    if place != "/token":
        provider.bodies[place] = [body]
    start = client.get("/oidc/start")
    assert start.status_code == (502 if place == PLACES[0] else 303)
    if start.status_code == 303:
        sent = {name: values[0] for name, values in parse_qs(urlsplit(start.headers["Location"]).query).items()}
        provider.claims = good_claims(provider, sent)
        provider.bodies[place] = [body]
        response = finish(client, sent)
        assert response.status_code in (403, 502)
        assert "provider" in Page(response.text).text
    assert client.get("/live?page=overview").status_code == 401


@pytest.mark.parametrize(
    "metadata",
    [
        {"authorization_endpoint": "https://["},
        {"authorization_endpoint": "https://login.example.com/\r\nSet-Cookie: a=b"},
        {"authorization_endpoint": "https://login.example.com/a b"},
        {"token_endpoint": 5},
        {"jwks_uri": ["https://x"]},
    ],
)
def test_malformed_address_is_reported(app: Flask, provider: ScriptedProvider, metadata: dict[str, Any]) -> None:
    provider.metadata = metadata
    response = app.test_client().get("/oidc/start")
    assert response.status_code == 502
    assert f"its {next(iter(metadata))} is not an address that begins with https://" in Page(response.text).text


@pytest.mark.parametrize("place", PLACES)
def test_endless_response_is_cut(app: Flask, provider: ScriptedProvider, place: str) -> None:
    sent_parts = []

    def endless() -> Iterator[bytes]:
        while True:
            sent_parts.append(1)
            yield b" " * 65536

    client = app.test_client()
    if place == PLACES[0]:
        provider.bodies[place] = endless()
        response = client.get("/oidc/start")
    else:
        sent = begin(client)
        provider.claims = good_claims(provider, sent)
        provider.bodies[place] = endless()
        response = finish(client, sent)
    assert response.status_code == 502
    assert "returned more than 1048576 bytes" in Page(response.text).text
    assert len(sent_parts) < 1000


@pytest.mark.parametrize("place", PLACES)
def test_slow_response_is_given_up(
    app: Flask, provider: ScriptedProvider, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "EXCHANGE_TIMEOUT", 0.5)
    is_over = threading.Event()

    def slow() -> Iterator[bytes]:
        while not is_over.wait(0.05):
            yield b" "

    client = app.test_client()
    if place == PLACES[0]:
        provider.bodies[place] = slow()
        response = client.get("/oidc/start")
    else:
        sent = begin(client)
        provider.claims = good_claims(provider, sent)
        provider.bodies[place] = slow()
        response = finish(client, sent)
    is_over.set()
    assert response.status_code == 502
    assert "no complete response in 0.5 s" in Page(response.text).text


@pytest.mark.parametrize("address", ["javascript:alert(1)", "http://192.0.2.1/out", "https://["])
def test_unsafe_sign_out_address_is_not_linked(app: Flask, provider: ScriptedProvider, address: str) -> None:
    provider.metadata = {"end_session_endpoint": address}
    client = app.test_client()
    sent = begin(client)
    provider.claims = good_claims(provider, sent)
    assert finish(client, sent).status_code == 303
    out = client.post("/logout", headers=SAME_ORIGIN)
    assert out.status_code == 303
    assert out.headers["Location"] == "/login?out=1"


@pytest.mark.parametrize("cookie", ["", "x", ".", "e30=.x", "a" * 3000])
def test_forged_cookie_is_refused(app: Flask, cookie: str) -> None:
    client = app.test_client()
    sent = begin(client)
    client.set_cookie("greenstalk-sign-in", cookie, path="/")
    assert "started in another browser" in finish(client, sent).text


@pytest.mark.parametrize(
    ("claim", "groups", "role"),
    [("realm_access.roles", {"realm_access": {"roles": ["staff", 5]}}, "staff"), ("a.b", {"a.b": ["staff"]}, "staff"),
     ("nothing.there", {}, ""), ("one", {"one": "staff"}, "staff")],
)  # fmt: skip
def test_claim_with_the_groups_may_be_nested(
    queue: Queue, provider: ScriptedProvider, claim: str, groups: dict[str, Any], role: str
) -> None:
    client = queue.app(oidc=Provider(provider.issuer, "queue", groups_claim=claim), roles=ROLE).test_client()
    sent = begin(client)
    provider.claims = {name: value for name, value in good_claims(provider, sent).items() if name != "groups"} | groups
    assert finish(client, sent).status_code == (303 if role else 403)
