"""Links over TCP: TLS with certificates on both sides, and the peers that are refused. Real sockets."""

from __future__ import annotations

import logging
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import gevent
import psutil
import pytest
from gevent import socket as gsocket

from greenstalk_server.config.command_line import parse
from greenstalk_server.config.options import Options
from greenstalk_server.net import links
from greenstalk_server.net.listeners import open_link_listener
from greenstalk_server.net.tls import OF_LINKS, Certificates
from tests.net.in_process import is_readable, read_to_end, wait_until
from tests.net.link_peer import Process
from tests.support.daemon import TIMEOUT
from tests.support.shards import tube_on
from tests.support.tls import InMemory

MAKE = """
set -eu
ec="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc"
openssl req -x509 $ec -days 9 -subj /CN=$1 -addext keyUsage=critical,keyCertSign,cRLSign -keyout $1.key -out $1.pem
for name in app server; do
  usage=serverAuth; test $name = server || usage=serverAuth,clientAuth
  openssl req $ec -subj /CN=$name -addext extendedKeyUsage=$usage -keyout $1-$name.key -out request
  openssl x509 -req -in request -CA $1.pem -CAkey $1.key -days 9 -copy_extensions copy -out $1-$name.pem
done
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The authorities `own` and `other`, each with the certificates `app`, for links, and `server`, for servers."""
    directory = tmp_path_factory.mktemp("certificates")
    for authority in ("own", "other"):
        command = ["sh", "-c", MAKE, "sh", authority]
        subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=TIMEOUT)
    return directory


def read(files: Path, name: str = "own-app", authority: str = "own") -> Certificates:
    flags = ["--link-cert", f"{files}/{name}.pem", "--link-key", f"{files}/{name}.key", "--link", "127.0.0.1:0"]
    options = parse([*flags, "--link-ca", f"{files}/{authority}.pem", "--journal", "postgresql://db"], {})
    assert isinstance(options, Options)
    return Certificates(options, OF_LINKS)


def link(stack: ExitStack, first: Certificates | None, second: Certificates | None) -> tuple[Process, Process]:
    """Start the process b0, which is to connect with *first*, and the process b1, with *second*."""
    both = Process(None, 0, "b0", first), Process(None, 1, "b1", second)
    for process in both:
        stack.callback(process.stop)
        process.membership.owners = {0: "b0", 1: "b1"}
        process.membership.processes = {"b0": both[0].address, "b1": both[1].address}
        process.membership.on_change()
    return both


def warnings(caplog: pytest.LogCaptureFixture, start: str) -> list[str]:
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [message for message in messages if message.startswith(start)]


@pytest.fixture
def process(files: Path) -> Iterator[Process]:
    process = Process(None, certificates=read(files))
    yield process
    process.stop()


def trusting(files: Path, name: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files / "own.pem")
    context.check_hostname = False
    if name:
        context.load_cert_chain(files / f"{name}.pem", files / f"{name}.key")
    return context


def test_commands_pass_over_tls_in_both_directions(files: Path) -> None:
    with ExitStack() as stack:
        both = link(stack, read(files), read(files))
        body = bytes(range(256)) * 255
        for shard in (0, 1):
            with gsocket.create_connection(("127.0.0.1", both[1 - shard].port), TIMEOUT) as client:
                tube = tube_on(shard)
                put = b"put-in-tube %b 0 0 60 %d\r\n%b\r\n" % (tube, len(body), body)
                client.sendall(put * 40 + b"watch %b\r\n" % tube + b"reserve\r\n" * 40)
                reader = client.makefile("rb")
                ids = [reader.readline().split()[1] for _ in range(40)]
                assert reader.readline() == b"WATCHING 2\r\n"
                for id in ids:
                    assert reader.readline() == b"RESERVED %b %d\r\n" % (id, len(body))
                    assert reader.read(len(body) + 2) == body + b"\r\n"
                reader.close()
            assert len(both[shard].broker.jobs) == 40


@pytest.mark.parametrize(
    ("first", "second", "refusal", "failure"),
    [
        (("other-app", "own"), ("own-app", "own"), "certificate verify failed", "unknown ca"),
        (("own-app", "other"), ("own-app", "own"), "unknown ca", "certificate verify failed"),
        (("own-server", "own"), ("own-app", "own"), "certificate verify failed", "unsupported certificate"),
        (None, ("own-app", "own"), "the peer does not use TLS", "closed|reset|malformed"),
        (("own-app", "own"), None, "frame of kind", "the peer does not use TLS"),
    ],
)
def test_link_without_a_certificate_of_the_authority_is_refused(
    files: Path,
    caplog: pytest.LogCaptureFixture,
    first: tuple[str, str] | None,
    second: tuple[str, str] | None,
    refusal: str,
    failure: str,
) -> None:
    """Each of both sides says why, once, however often the first one tries."""
    with ExitStack() as stack:
        link(stack, read(files, *first) if first else None, read(files, *second) if second else None)
        wait_until(lambda: len(warnings(caplog, "refused a link from 127.0.0.1 port ")) > 1)
    (line,) = warnings(caplog, "cannot link to process b1: ")
    assert any(each in line for each in failure.split("|")), line
    for line in warnings(caplog, "refused"):
        assert any(each in line for each in refusal.split("|")), line


def test_peer_without_a_certificate_is_refused(process: Process, files: Path, caplog: pytest.LogCaptureFixture) -> None:
    with process.peer().sock as sock:
        sock.setblocking(True)
        client = InMemory(sock, trusting(files))
        gevent.get_hub().threadpool.spawn(lambda: sock.sendall(client.shake())).get()
        wait_until(lambda: bool(warnings(caplog, "refused")))
    (line,) = warnings(caplog, "refused")
    assert "peer did not return a certificate" in line


def test_link_without_tls_is_for_loopback_addresses(caplog: pytest.LogCaptureFixture) -> None:
    addresses = [each.address for found in psutil.net_if_addrs().values() for each in found]
    host = next((each for each in addresses if "." in each and not each.startswith("127.")), None)
    if host is None:
        pytest.skip("this machine has no other address")
    process = Process(None, host=host)
    try:
        read_to_end(process.peer().sock)
    finally:
        process.stop()
    (line,) = warnings(caplog, "refused a link")
    assert line.endswith(": a link between machines needs TLS: set --link-cert, --link-key and --link-ca")


def test_servers_may_reach_another_address_than_the_one_that_listens() -> None:
    def opened(*flags: str) -> tuple[str, str, int]:
        options = parse(["--journal", "postgresql://db", *flags], {})
        assert isinstance(options, Options)
        sock, address = open_link_listener(options)
        with sock:
            return address, *sock.getsockname()

    address, host, port = opened("--link", "localhost:7", "--link-listen", "127.0.0.1:0")
    assert (address, host) == ("localhost:7", "127.0.0.1")
    address, host, port = opened("--link", "127.0.0.1:0")
    assert (address, host) == (f"127.0.0.1:{port}", "127.0.0.1")


def test_handshake_has_a_timeout(
    process: Process, files: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One peer sends nothing, one a part of the first message of TLS, and one completes TLS and sends no HELLO."""
    monkeypatch.setattr(links, "HANDSHAKE_TIMEOUT", 0.3)
    silent, partial, secured = [process.peer().sock for _ in range(3)]
    partial.sendall(InMemory(partial, trusting(files, "own-app")).hello()[:50])
    client = InMemory(secured, trusting(files, "own-app"))
    gevent.get_hub().threadpool.spawn(lambda: secured.sendall(client.shake())).get()
    for sock in (silent, partial, secured):
        read_to_end(sock)
    lines = warnings(caplog, "refused a link from 127.0.0.1")
    assert len(lines) == 3
    assert all(line.endswith(": the handshake takes more than 0.3 s") for line in lines)


def test_silent_connections_of_one_address_do_not_use_up_the_handshakes(
    process: Process, files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those above the limit are closed at once. The log has ten lines, and then how many more there were."""
    count = links.HANDSHAKES.connections_per_address
    silent = [process.peer().sock for _ in range(count + 20)]
    for sock in silent[count:]:
        read_to_end(sock)
    assert not any(is_readable(sock) for sock in silent[:count])
    lines = warnings(caplog, "refused a link from 127.0.0.1")
    assert len(lines) == links.MAX_REFUSALS
    assert all(line.endswith("too many connections of that address shake hands") for line in lines)
    wait_until(lambda: warnings(caplog, "refused 1") == ["refused 10 more links"])
    silent[0].close()
    other = Process(None, 1, "a1", read(files))
    other.membership.processes = {"m0": process.address}
    other.membership.on_change()
    wait_until(lambda: "a1" in process.links._links)
    other.stop()


def test_reloaded_files_are_used_for_new_links(files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("own.pem", "own-app.pem", "own-app.key"):
        shutil.copy(files / name, tmp_path / name)
    certificates = read(tmp_path)
    with ExitStack() as stack:
        both = link(stack, read(files), certificates)
        wait_until(lambda: both[0].links.is_linked(1))
        shutil.copy(files / "other.pem", tmp_path / "own.pem")
        certificates.reload()
        assert both[0].links.is_linked(1)
        both[0].links.drop(both[0].links._links["b1"])
        wait_until(lambda: bool(warnings(caplog, "refused")))
    assert "certificate verify failed" in warnings(caplog, "refused")[0]
