"""greenstalkctl over TLS: to the beanstalk port, to the API, and between servers; and its failures."""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ctl.world import Terminal, WithApi, address, front, replying, run
from tests.support.daemon import TIMEOUT, Daemon
from tests.support.servers import Server
from tests.support.tls import make_certificates


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates made as in docs/security.md, and invalid ones."""
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory)
    (directory / "stranger").mkdir()
    make_certificates(directory / "stranger")
    sign = "openssl x509 -req -in server.csr -CA authority.pem -CAkey authority.key -days 1 -copy_extensions copy"
    commands = (
        f"faketime -f -3d {sign} -out expired.pem",
        f"faketime -f +3d {sign} -out early.pem",
        "openssl ec -in mail-1.key -aes256 -passout pass:sesame -out encrypted.key",
        "cat mail-1.pem mail-1.key > both.pem",
    )
    for command in commands:
        subprocess.run(["sh", "-c", command], cwd=directory, check=True, capture_output=True, timeout=TIMEOUT)
    return directory


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TLS", "CAFILE", "CERT", "KEY"):
        monkeypatch.delenv(f"GREENSTALKCTL_{name}", raising=False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)


@contextmanager
def serving(directory: Path, *flags: str, cert: str = "server.pem") -> Iterator[Daemon]:
    files = ("--tls-cert", str(directory / cert), "--tls-key", str(directory / "server.key"))
    with Daemon(*files, *flags, "-l", "127.0.0.1", "-p", "0", "--no-web") as daemon:
        yield daemon


def port(daemon: Daemon) -> int:
    """Return the TLS port."""
    found = re.search(r"127\.0\.0\.1:(\d+) \(TLS\)", daemon.first_lines)
    assert found is not None, daemon.first_lines
    return int(found[1])


@pytest.fixture(scope="module")
def plain_client(directory: Path) -> Iterator[str]:
    """The address of a TLS server that requires no client certificate."""
    with serving(directory) as daemon:
        yield f"localhost:{port(daemon)}"


@pytest.fixture(scope="module")
def mutual(directory: Path) -> Iterator[str]:
    """The address of a TLS server that requires client certificates."""
    with serving(directory, "--tls-client-ca", str(directory / "authority.pem")) as daemon:
        yield f"localhost:{port(daemon)}"


def files(directory: Path, client: str = "mail-1") -> list[str]:
    """Return the options of a client with a certificate."""
    own = ["--cert", str(directory / f"{client}.pem"), "--key", str(directory / f"{client}.key")]
    return ["--cafile", str(directory / "authority.pem"), *own]


def test_every_option_and_variable_that_enables_tls(
    mutual: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = files(directory)
    for command in (
        ["--tls", "-s", mutual, *given, "put", "hello"],
        ["put", "hello", "--tls", "-s", mutual, *given],
        ["--server", f"tls:{mutual}", *given, "put", "hello"],
    ):
        assert run(*command).code == 0
    monkeypatch.setenv("GREENSTALKCTL_TLS", "1")
    for name, value in zip(given[::2], given[1::2], strict=True):
        monkeypatch.setenv(f"GREENSTALKCTL_{name.removeprefix('--').upper()}", value)
    monkeypatch.setenv("GREENSTALKCTL_SERVER", mutual)
    assert run("peek", "--tube", "default", "--raw").out == b"hello"
    assert run("clear", "default", "--yes", "--json").json == {"deleted": 3}


def test_every_kind_of_command_by_tls(plain_client: str, directory: Path) -> None:
    given = ["-s", f"tls:{plain_client}", "--cafile", str(directory / "authority.pem")]
    body = bytes(range(256)) * 250
    job_id = run(*given, "put", "--tube", "mail", stdin=body).text.strip()
    assert run(*given, "peek", job_id, "--raw").out == body
    assert run(*given, "move", "mail", "post").code == 0
    assert run(*given, "bury", "--tube", "post", "--all").code == 0
    assert run(*given, "put", "hello", "--tube", "jobs").code == 0
    assert run(*given, "work", "jobs", "--count", "1", "--", "true").code == 0
    assert run(*given, "tail", "post").code == 0
    assert run(*given, "ping", "--json").json["server"] == f"tls:{plain_client}"
    assert run(*given, "clear", "post", "--yes").code == 0
    assert "certificate" in {finding["check"] for finding in run(*given, "doctor", "--json").json}
    with Terminal(*given, "top") as terminal:
        terminal.wait_for("default")
        terminal.press("q")
        assert terminal.end()[0] == 0


def test_certificate_and_key_may_be_in_one_file(mutual: str, directory: Path) -> None:
    given = ["--cafile", str(directory / "authority.pem"), "--cert", str(directory / "both.pem")]
    assert run("--tls", "-s", mutual, *given, "stats").code == 0


def test_certificate_and_key_come_from_one_source(
    mutual: str, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of the environment is never used with a certificate of an entry or of the command line."""
    both = directory / "both.pem"
    server = f'address = "tls:{mutual}"\ncafile = "{directory / "authority.pem"}"\n'
    entries = {
        "both": f'cert = "{both}"\n',
        "pair": f'cert = "{directory / "mail-1.pem"}"\nkey = "{directory / "mail-1.key"}"\n',
        "key": f'key = "{directory / "mail-1.key"}"\n',
        "none": "",
    }
    path = tmp_path / "ctl.toml"
    path.write_text("".join(f"[servers.{name}]\n{server}{files}" for name, files in entries.items()))
    monkeypatch.setenv("GREENSTALKCTL_CONFIG", str(path))
    monkeypatch.setenv("GREENSTALKCTL_CERT", str(directory / "stranger" / "mail-1.pem"))
    monkeypatch.setenv("GREENSTALKCTL_KEY", str(directory / "stranger" / "mail-1.key"))
    for given in (
        ["-s", "both"],
        ["-s", "pair"],
        ["-s", "none", "--cert", str(both)],
        ["-s", "pair", "--cert", str(both)],
    ):
        done = run(*given, "stats")
        assert done.code == 0, (given, done.err)
    assert "--key needs --cert" in error_line(2, "-s", "key", "stats")
    assert "--cert" in error_line(3, "-s", "none", "stats")  # the pair of the environment


@pytest.mark.parametrize("is_source", [False, True], ids=["plain to TLS", "TLS to plain"])
def test_drain_to_over_tls(one: Server, plain_client: str, directory: Path, is_source: bool) -> None:
    authority = ["--cafile", str(directory / "authority.pem")]
    secured, plain = f"tls:{plain_client}", f"plain:{address(one)}"
    source, target = (secured, plain) if is_source else (plain, secured)
    assert run("-s", source, *(authority if is_source else ()), "put", "hello", "--tube", "mail").code == 0
    done = run("-s", source, *authority, "drain-to", target, "--yes")
    assert done.code == 0, done.err
    where = ["-s", target, *(() if is_source else authority)]
    assert run(*where, "peek", "--tube", "mail", "--raw").out == b"hello"
    assert run(*where, "clear", "mail", "--yes").code == 0


def test_api_over_https_uses_the_same_files(with_api: WithApi, directory: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=directory / "authority.pem")
    context.load_cert_chain(directory / "server.pem", directory / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    with front(with_api.dashboard, tls=context) as proxy:
        url = f"https://localhost:{proxy.partition(':')[2]}"
        assert run("--api", url, *files(directory), "stats", "--json").json["pid"] == with_api.pid
        done = run("--api", url, "--cafile", str(directory / "authority.pem"), "stats")
        assert (done.code, "--cert" in done.err, len(done.err.splitlines())) == (3, True, 1), done.err
        done = run("--api", url, *files(directory / "stranger", "mail-1")[2:], *files(directory)[:2], "stats")
        assert (done.code, "--cert" in done.err, len(done.err.splitlines())) == (3, True, 1), done.err
        done = run("--api", url.replace("https:", "http:"), "stats")
        assert (done.code, "write https://" in done.err) == (3, True)
    done = run("--api", with_api.dashboard.replace("http:", "https:"), "stats")
    assert (done.code, "should be http://" in done.err) == (3, True)


# Failures


def error_line(code: int, *args: str) -> str:
    """Run a command that must fail with *code*; return its one-line message."""
    done = run(*args)
    assert (done.code, done.out) == (code, b"")
    (line,) = done.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("cert", "message", "advice"),
    [
        ("expired.pem", "certificate has expired", "renew it"),
        ("early.pem", "certificate is not yet valid", "the clock"),
        ("stranger/server.pem", "unable to get local issuer certificate", "--cafile"),
    ],
)
def test_invalid_certificate_is_refused(directory: Path, cert: str, message: str, advice: str) -> None:
    where = directory / cert
    key = where.parent / "server.key"
    flags = ("--tls-cert", str(where), "--tls-key", str(key), "-l", "127.0.0.1", "-p", "0", "--no-web")
    with Daemon(*flags) as daemon:
        authority = ["--cafile", str(directory / "authority.pem")]
        line = error_line(3, "--tls", "-s", f"localhost:{port(daemon)}", *authority, "stats")
    assert f"the certificate of tls:localhost:{port(daemon)} is not valid: {message}; " in line
    assert advice in line


def test_server_name_must_be_in_the_certificate(plain_client: str, directory: Path) -> None:
    authority = ["--cafile", str(directory / "authority.pem")]
    line = error_line(3, "--tls", "-s", plain_client.replace("localhost", "127.0.0.2"), *authority, "stats")
    assert "cannot connect" in line  # the server listens on 127.0.0.1 only
    with serving(directory, "-l", "127.0.0.2") as daemon:
        found = re.search(r"127\.0\.0\.2:(\d+) \(TLS\)", daemon.first_lines)
        assert found is not None, daemon.first_lines
        line = error_line(3, "--tls", "-s", f"127.0.0.2:{found[1]}", *authority, "stats")
    assert "IP address mismatch" in line and "connect with a name that the certificate contains" in line


def test_certificate_is_refused_without_its_authority(plain_client: str) -> None:
    assert "--cafile" in error_line(3, "--tls", "-s", plain_client, "stats")


def test_missing_client_certificate_names_the_options(mutual: str, directory: Path) -> None:
    authority = ["--cafile", str(directory / "authority.pem")]
    for _ in range(5):  # the server's alert may arrive before or after the end of the connection
        assert "--cert" in error_line(3, "--tls", "-s", mutual, *authority, "stats")


def test_client_certificate_of_another_authority_is_refused(mutual: str, directory: Path) -> None:
    given = [*files(directory)[:2], *files(directory / "stranger")[2:]]
    for _ in range(5):
        assert "certificate" in error_line(3, "--tls", "-s", mutual, *given, "stats")


def test_plain_client_on_a_tls_port_is_advised_to_add_tls(plain_client: str) -> None:
    assert "if it expects TLS, add --tls" in error_line(3, "-s", plain_client, "stats")


@pytest.mark.parametrize("reply", [b"UNKNOWN_COMMAND\r\n", b"BAD_FORMAT\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_tls_to_a_plain_port_that_replies(reply: bytes) -> None:
    with replying(reply) as where:
        line = error_line(3, "--tls", "-s", where, "stats")
    assert f"tls:{where} does not speak TLS; remove --tls, or write plain:HOST:PORT" in line


def test_tls_to_a_plain_server_that_waits_for_a_line(server: Server) -> None:
    """In one of some hundred runs, the random bytes of the handshake contain a line end, and the server replies."""
    line = error_line(3, "--tls", "-s", address(server), "--timeout", "500ms", "stats")
    no_reply = "did not complete the TLS handshake within 0.5 s; if it does not speak TLS, remove --tls"
    assert no_reply in line or "does not speak TLS; remove --tls, or write plain:HOST:PORT" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tls", "--cafile", "{}/missing"], "cannot read --cafile"),
        (["--tls", "--cafile", "{}/server.key"], "there is no certificate in --cafile"),
        (["--tls", "--cert", "{}/missing", "--key", "{}/mail-1.key"], "cannot read --cert"),
        (["--tls", "--cert", "{}/mail-1.pem", "--key", "{}/monitoring.key"], "does not belong to the certificate"),
        (["--tls", "--cert", "{}/mail-1.pem"], "cannot use the certificate and key"),
        (["--tls", "--cert", "{}/mail-1.pem", "--key", "{}/encrypted.key"], "decrypt it"),
        (["--tls", "--key", "{}/mail-1.key"], "--key needs --cert"),
        (["--cafile", "{}/authority.pem"], "add --tls"),
        (["--tls", "--cafile", ""], "it is empty"),
        (["--api", "http://127.0.0.1:1", "--cafile", "{}/authority.pem"], "write https://"),
    ],
)
def test_unusable_tls_file_is_exit_code_2(
    directory: Path, plain_client: str, arguments: list[str], message: str
) -> None:
    where = [] if "--api" in arguments else ["-s", plain_client]
    assert message in error_line(2, *where, *(word.format(directory) for word in arguments), "stats")


def test_encrypted_key_is_refused_without_a_prompt(directory: Path, plain_client: str) -> None:
    own = ["--cert", str(directory / "mail-1.pem"), "--key", str(directory / "encrypted.key")]
    with Terminal("--tls", "-s", plain_client, *own, "stats") as terminal:
        code, view = terminal.end()
    assert (code, "decrypt it" in view) == (2, True)


def test_unix_socket_does_not_use_tls(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with Daemon("-l", f"unix:{path}", "--no-web"):
        assert run("--tls", "-s", f"unix:{path}", "stats").code == 0
