"""Requests from the server: which addresses are allowed, and the effects of a hostile or broken receiver."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import gevent
import pytest

from greenstalk_server.config.tables.targets import ENVIRONMENT, Secret, Target, parse_target
from greenstalk_server.web.framework import outbound
from greenstalk_server.web.framework.outbound import (
    MAX_RESPONSE,
    MAX_SECRET,
    NO_RESPONSE,
    Request,
    RequestFailed,
    Response,
    refusal,
    send,
)
from tests.support.receiver import Receiver, answer
from tests.support.tls import make_certificates


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory)
    return directory


def target(url: str, **changes: Any) -> Target:
    return parse_target("ops", {"url": url, "allow_plain": True, "allow_private": True, "timeout": 5, **changes})


def post(to: Target, body: bytes = b"{}", **headers: str) -> Response:
    return send(to, lambda _: Request(body=body, headers=headers))


def failure(to: Target) -> str:
    with pytest.raises(RequestFailed) as caught:
        post(to)
    return str(caught.value)


# Responses


def test_request_and_response(receiver: Receiver) -> None:
    receiver.answer = answer(202, b"accepted", X_Id="7")
    response = post(target(f"{receiver.url}/hook?key=1"), b'{"a": 1}', **{"X-Team": "mail"})
    assert (response.status, response.body, response.is_cut, response.headers["x-id"]) == (202, b"accepted", False, "7")
    (request,) = receiver.requests
    assert (request.method, request.path, request.body) == ("POST", "/hook?key=1", b'{"a": 1}')
    assert request.headers["host"] == f"localhost:{receiver.port}"
    assert request.headers["x-team"] == "mail"
    assert request.headers["user-agent"] == "greenstalk-server"


def test_redirect_is_returned_and_not_followed(receiver: Receiver) -> None:
    receiver.answer = answer(302, Location=f"{receiver.url}/elsewhere")
    assert post(target(receiver.url)).status == 302
    assert [request.path for request in receiver.requests] == ["/"]


def test_huge_response_is_cut(receiver: Receiver) -> None:
    receiver.answer = answer(200, b"x" * (MAX_RESPONSE * 20))
    response = post(target(receiver.url))
    assert (len(response.body), response.is_cut) == (MAX_RESPONSE, True)


def test_proxy_of_the_environment_is_ignored(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert post(target(receiver.url)).status == 200


# Broken receivers


@pytest.mark.parametrize("kind", ["hang", "drip"])
def test_deadline_ends_the_request_and_its_thread(receiver: Receiver, kind: str) -> None:
    receiver.answer = getattr(receiver, kind)
    assert failure(target(receiver.url, timeout=1)) == "no complete response within 1 s"
    with gevent.Timeout(10):
        while outbound._pool().task_queue.unfinished_tasks:
            gevent.sleep(0.01)
    receiver.answer = answer(200)
    assert post(target(receiver.url)).status == 200


def test_deadline_that_ends_in_the_thread_first_has_the_same_message(receiver: Receiver) -> None:
    receiver.answer = receiver.hang
    waiting = gevent.spawn(failure, target(receiver.url, timeout=1))
    gevent.sleep(0)
    while outbound._pool().task_queue.unfinished_tasks:
        time.sleep(0.01)  # the event loop stands still
    assert waiting.get() == "no complete response within 1 s"


def test_refused_connection() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    assert failure(target(f"http://127.0.0.1:{port}/secret")) == (
        "cannot connect to 127.0.0.1 at 127.0.0.1: Connection refused"
    )


def test_name_that_does_not_exist() -> None:
    assert failure(target("https://no-such-host.invalid/")).startswith("cannot resolve no-such-host.invalid: ")


@pytest.mark.parametrize(
    "lines", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 999999 x\r\n\r\n", b"HTTP/1.1 200\r\nX: " + b"y" * 70000]
)
def test_response_that_is_not_http(receiver: Receiver, lines: bytes) -> None:
    def broken(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(lines)
        handler.close_connection = True

    receiver.answer = broken
    assert failure(target(receiver.url)) == NO_RESPONSE


# TLS


def serving(certificates: Path) -> ssl.SSLContext:
    secured = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secured.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    return secured


def test_certificate_of_a_known_authority(certificates: Path) -> None:
    with Receiver(serving(certificates)) as receiver:
        to = target(f"{receiver.url}/hook", ca_file=str(certificates / "authority.pem"))
        assert post(to).status == 200
        assert receiver.requests[0].headers["host"] == f"localhost:{receiver.port}"


def test_certificate_of_an_unknown_authority(certificates: Path) -> None:
    with Receiver(serving(certificates)) as receiver:
        assert failure(target(receiver.url)).startswith("the certificate is not valid: ")
        assert receiver.requests == []


def test_certificate_of_another_name(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = socket.getaddrinfo("127.0.0.1", 0, type=socket.SOCK_STREAM)
    with Receiver(serving(certificates)) as receiver:
        here = [(*each[:4], ("127.0.0.1", receiver.port)) for each in found]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: here)
        to = target(f"https://other.example:{receiver.port}/", ca_file=str(certificates / "authority.pem"))
        assert "the certificate is not valid: " in failure(to)
        assert receiver.requests == []


# Addresses


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.0.1", "100.64.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "240.0.0.1", "198.18.0.1", "::1", "::", "fe80::1", "fd00::1", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "2002:7f00:1::", "fd00:ec2::254",
        "100.100.100.200", "2001:db8::1", "fec0::1", "::7f00:1", "::ffff:0:127.0.0.1", "64:ff9b:1::a00:1", "5f00::1",
    ],
)  # fmt: skip
def test_address_that_is_not_public_is_refused(address: str) -> None:
    assert refusal(ip_address(address), parse_target("ops", {"url": "https://a.example"}))


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "64:ff9b::5db8:d70e"])
def test_public_address_is_allowed(address: str) -> None:
    assert refusal(ip_address(address), parse_target("ops", {"url": "https://a.example"})) == ""


@pytest.mark.parametrize(
    ("address", "is_allowed"),
    [
        ("127.0.0.1", True), ("10.1.2.3", True), ("fd00::1", True), ("::ffff:10.0.0.1", True),
        ("169.254.169.254", False), ("fe80::1", False), ("fd00:ec2::254", False), ("100.100.100.200", False),
        ("224.0.0.1", False), ("0.0.0.0", False), ("::169.254.169.254", False), ("::10.1.2.3", True),
        ("64:ff9b:1::a9fe:a9fe", False), ("64:ff9b:1:a9fe:a9:fe00::", False),
        ("2001:0:4136:e378:8000:63bf:5601:5601", False),
    ],
)  # fmt: skip
def test_allow_private_excludes_metadata(address: str, is_allowed: bool) -> None:
    to = parse_target("ops", {"url": "https://a.example", "allow_private": True})
    assert (refusal(ip_address(address), to) == "") is is_allowed


def test_listed_networks_are_allowed_and_no_others() -> None:
    to = parse_target("ops", {"url": "https://a.example", "allow_private": ["10.2.0.0/16", "169.254.169.254"]})
    assert refusal(ip_address("10.2.3.4"), to) == ""
    assert refusal(ip_address("169.254.169.254"), to) == ""
    assert refusal(ip_address("10.3.0.1"), to)
    assert refusal(ip_address("127.0.0.1"), to)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"])
def test_loopback_is_refused_in_every_spelling(receiver: Receiver, host: str) -> None:
    to = target(f"http://{host}:{receiver.port}/", allow_private=False)
    assert "to which no connection is allowed: it is a private or reserved address" in failure(to)
    assert receiver.requests == []


def test_name_is_resolved_once(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second answer of the DNS server cannot lead the connection to another address than the one checked."""
    asked: list[str] = []

    def answers(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, ("169.254.169.254", 80)), (*kind, ("127.0.0.1", receiver.port))]

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    assert post(target("http://rebind.example/")).status == 200
    assert asked == ["rebind.example"]
    assert receiver.requests[0].headers["host"] == "rebind.example"


def test_plain_http_needs_permission(receiver: Receiver, tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(f"{receiver.url}/hook\n")
    to = parse_target("ops", {"url_file": str(file), "allow_private": True})
    assert failure(to) == "the address begins with http://: set allow_plain"
    assert receiver.requests == []


# Secrets


def test_address_and_token_from_files(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"{receiver.url}/services/T0/B0\n")
    (tmp_path / "token").write_text("swordfish\nsecond line\n")
    to = parse_target(
        "ops",
        {
            "url_file": str(tmp_path / "url"), "token_file": str(tmp_path / "token"),
            "allow_plain": True, "allow_private": True,
        },
    )  # fmt: skip
    assert post(to).status == 200
    (request,) = receiver.requests
    assert (request.path, request.headers["authorization"]) == ("/services/T0/B0", "Bearer swordfish")


def test_secrets_are_given_to_the_builder(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPS_KEY", "key")
    send(
        target(receiver.url),
        lambda secrets: Request(body=secrets["secret"].encode()),
        {"secret": Secret(ENVIRONMENT, "OPS_KEY")},
    )
    assert receiver.requests[0].body == b"key"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read {}: No such file or directory"),
        (b"\nsecond", "the first line of {} is empty"),
        (b"a\x00b", "the secret in {} must have printable ASCII characters only"),
        (b"\xff" * (MAX_SECRET + 1), "the secret in {} must have printable ASCII characters only"),
    ],
)
def test_unusable_secret_file(receiver: Receiver, tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    assert failure(target(receiver.url, token_file=str(file))) == message.format(file)
    assert receiver.requests == []
