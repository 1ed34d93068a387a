"""Behind a proxy: which headers are trusted, and a prefix of all paths."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from flask import request
from flask.testing import FlaskClient

from .conftest import Queue
from .table import Page
from .test_guard import basic

PROXY = "10.0.0.1"
TRUSTED = (ip_network("10.0.0.0/24"), ip_network("fd00::/8"))


def view(queue: Queue, peer: str = PROXY, **forwarded: str) -> tuple[str, str, str, str]:
    """Return what a view sees of a request with X-Forwarded- headers: address, scheme, host and prefix."""
    app = queue.app(trusted_proxies=TRUSTED, password="x")  # noqa: S106
    app.add_url_rule("/view", "view", lambda: [request.remote_addr, request.scheme, request.host, request.root_path])
    headers = {f"X-Forwarded-{name}": text for name, text in forwarded.items()} | basic("", "x")
    answer = app.test_client().get("/view", headers=headers, environ_overrides={"REMOTE_ADDR": peer})
    address, scheme, host, prefix = answer.json
    return address, scheme, host, prefix


def test_headers_of_a_trusted_proxy_are_used(queue: Queue) -> None:
    message = view(queue, For="192.0.2.7", Proto="https", Host="jobs.example:444", Prefix="/queue")
    assert message == ("192.0.2.7", "https", "jobs.example:444", "/queue")


@pytest.mark.parametrize("peer", ["10.0.1.1", "127.0.0.1", "fe80::1", "", "unix"])
def test_headers_of_other_clients_are_ignored(queue: Queue, peer: str) -> None:
    message = view(queue, peer, For="192.0.2.7", Proto="https", Host="jobs.example", Prefix="/queue")
    assert message == (peer, "http", "localhost", "")


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("198.51.100.1, 192.0.2.7", "192.0.2.7"),
        ("192.0.2.7, 10.0.0.2", "192.0.2.7"),
        ("198.51.100.1, 192.0.2.7, 10.0.0.2, 10.0.0.3", "192.0.2.7"),
        ("10.0.0.2", "10.0.0.2"),
        ("10.0.0.4,10.0.0.2", "10.0.0.4"),
        ('"198.51.100.1, 192.0.2.7', "192.0.2.7"),
        ("", PROXY),
    ],
)
def test_last_address_that_is_not_a_proxy_is_the_client(queue: Queue, forwarded: str, address: str) -> None:
    """The client may have made up the addresses before it."""
    assert view(queue, For=forwarded)[0] == address


@pytest.mark.parametrize(
    "prefix",
    ["//evil.example", "/\\evil", "queue", "https://evil.example", "/a/",
     "/a b", "/", "/..", "/../..", "/.", "/a/../b"],
)  # fmt: skip
def test_prefix_that_could_lead_elsewhere_is_ignored(queue: Queue, prefix: str) -> None:
    assert view(queue, Prefix=prefix)[3] == ""


@pytest.mark.parametrize("prefix", ["/queue", "/a/b", "/.a", "/..a", "/a..", "/..."])
def test_plain_prefix_is_used(queue: Queue, prefix: str) -> None:
    assert view(queue, Prefix=prefix)[3] == prefix


def test_client_is_locked_out_and_audited_instead_of_the_proxy(queue: Queue) -> None:
    app = queue.app(trusted_proxies=TRUSTED, password="right")  # noqa: S106
    client = app.test_client()

    def visit(sender: str, password: str) -> int:
        headers = {"X-Forwarded-For": sender} | basic("", password)
        return client.get("/", headers=headers, environ_overrides={"REMOTE_ADDR": PROXY}).status_code

    assert [visit(f"198.51.100.{at}, 192.0.2.7", "wrong") for at in range(10)] == [401] * 10
    assert visit("192.0.2.7", "right") == 429
    assert visit("192.0.2.8", "right") == 200
    assert {entry.address for entry in app.extensions["dashboard"].audit.entries} == {"192.0.2.7"}


def test_change_through_a_proxy_that_forwards_the_host(queue: Queue) -> None:
    """The proxy sends another Host than the browser."""
    queue.put("mail")
    client = queue.app(trusted_proxies=TRUSTED, password="x").test_client()  # noqa: S106
    headers = {"Host": "backend:8080", "Origin": "https://jobs.example", "X-Forwarded-Host": "jobs.example"}
    form = {"tube": "mail", "seconds": "5"}
    for peer, status in ((PROXY, 303), ("192.0.2.1", 403)):
        overrides = {"REMOTE_ADDR": peer}
        response = client.post("/tube/pause", data=form, headers=headers | basic("", "x"), environ_overrides=overrides)
        assert response.status_code == status


def test_forwarded_host_is_checked_like_any_host(queue: Queue) -> None:
    client = queue.app(trusted_proxies=TRUSTED).test_client()
    for host, status in (("evil.example", 421), ("a..b", 421), ("localhost", 200)):
        headers = {"X-Forwarded-Host": host, "Host": "localhost"}
        response = client.get("/", headers=headers, environ_overrides={"REMOTE_ADDR": PROXY})
        assert response.status_code == status


# The server's own prefix


@pytest.fixture
def client(queue: Queue) -> FlaskClient:
    queue.put("mail")
    return queue.app(url_prefix="/queue").test_client()


def test_all_links_are_under_the_prefix(client: FlaskClient) -> None:
    for path in ("/queue", "/queue/", "/queue/tube?tube=mail", "/queue/job?id=1", "/queue/audit", "/queue/healthz"):
        response = client.get(path)
        assert response.status_code == 200, path
        for _, attributes in Page(response.text).elements:
            for name in ("href", "src", "action", "formaction", "data-live-at", "data-events-at"):
                link = attributes.get(name)
                assert link is None or link.startswith(("/queue/", "#", "?")), (path, link)


@pytest.mark.parametrize("path", ["/", "/tube?tube=mail", "/queuex", "/queuex/tube?tube=mail", "/Queue/", "/nowhere"])
def test_other_paths_show_only_a_hint(client: FlaskClient, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 404
    page = Page(response.text)
    assert "This dashboard is at /queue/. There is nothing outside that path." in page.text
    assert "/queue/" in [attributes.get("href") for _, attributes in page.elements]
    assert "mail" not in page.text


def test_health_checks_work_outside_the_prefix_too(client: FlaskClient) -> None:
    for path in ("/healthz", "/readyz", "/queue/healthz", "/queue/readyz"):
        assert client.get(path, headers={"Host": "any.example"}).status_code == 200
