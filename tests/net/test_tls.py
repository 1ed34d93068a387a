"""TLS on the beanstalk port: clients by ssl, stunnel and socat; certificates read anew; bad handshakes, floods."""

from __future__ import annotations

import fcntl
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import gevent
import greenstalk
import pytest

from greenstalk_server.config.command_line import parse
from greenstalk_server.config.options import Options, UsageError
from greenstalk_server.net import tls
from greenstalk_server.net.tls import PORTION, Certificates, TlsSocket, shake_hands
from greenstalk_server.runtime.exit_codes import StartError
from tests.support.daemon import COMMAND, MINDING_SIGNALS, PATIENCE, Daemon, ask, run
from tests.support.peer import Peer, eventually
from tests.support.tls import KEY_UPDATE_SIZE, PAGE, InMemory, KeyUpdater, connect, context, make_certificates

BODY = bytes(range(256)) * 240
"""60 KiB: four records of TLS."""

LARGE = BODY * 18
"""More than a MiB."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory)
    return directory


def flags(certificates: Path, client_ca: bool = True) -> tuple[str, ...]:
    own = ("--no-web", "--tls-cert", f"{certificates}/server.pem", "--tls-key", f"{certificates}/server.key")
    return (*own, "--tls-client-ca", f"{certificates}/authority.pem") if client_ca else own


@pytest.fixture(scope="module")
def mutual(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A server with TLS for clients with certificates, and beside it a plain port and a Unix socket."""
    path = tmp_path_factory.mktemp("unix") / "queue"
    where = ("-l", "127.0.0.1", "-l", "plain:127.0.0.1:0", "-l", f"unix:{path}", "-p", "0")
    with Daemon(*flags(certificates), *where, "-z", str(len(LARGE)), "--log-level", "debug") as daemon:
        yield daemon
        code, said = daemon.stop()
        assert code == 0
        assert "Traceback" not in said and "ERROR" not in said, said
        assert "WARNING handshake: connections closed because TLS was not agreed on" in said


@pytest.fixture(scope="module")
def silent(mutual: Daemon) -> Iterator[list[socket.socket]]:
    """Connections from the first moment on that never say a word."""
    with ExitStack() as stack:
        port = secured_port(mutual)
        yield [stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE)) for _ in range(20)]


def secured_port(daemon: Daemon) -> int:
    found = re.search(r"^beanstalk protocol: .*?127\.0\.0\.1:(\d+) \(TLS\)", daemon.first_lines, re.MULTILINE)
    assert found is not None, daemon.first_lines
    return int(found[1])


def plain_port(daemon: Daemon) -> int:
    found = re.search(r", 127\.0\.0\.1:(\d+), unix:", daemon.first_lines)
    assert found is not None, daemon.first_lines
    return int(found[1])


def unix_path(daemon: Daemon) -> str:
    found = re.search(r"unix:(\S+)$", daemon.first_lines, re.MULTILINE)
    assert found is not None, daemon.first_lines
    return found[1]


def test_a_client_library_by_tls_beside_a_plain_one_and_a_unix_one(
    mutual: Daemon, silent: list[socket.socket], certificates: Path
) -> None:
    secured = connect(secured_port(mutual), context(certificates, "mail-1"))
    assert secured.version() == "TLSv1.3"
    with (
        greenstalk.Client(secured, encoding=None, watch="mail") as worker,
        greenstalk.Client(("127.0.0.1", plain_port(mutual)), encoding=None, use="mail") as producer,
        greenstalk.Client(unix_path(mutual), encoding=None, watch="mail") as other,
    ):
        for number in range(20):
            producer.put(b"%d:%b" % (number, BODY))
        for number in range(20):
            job = worker.reserve()
            assert job.body == b"%d:%b" % (number, BODY)
            worker.delete(job)
        producer.put(b"one more")
        other.delete(other.reserve())
        assert worker.stats_tube("mail")["current-jobs-ready"] == 0


def test_large_bodies_go_both_ways(mutual: Daemon, certificates: Path) -> None:
    secured = connect(secured_port(mutual), context(certificates, "mail-1"))
    with greenstalk.Client(secured, encoding=None, use="large", watch="large") as queue:
        for number in range(5):
            queue.put(b"%d" % number + LARGE[1:])
        for number in range(5):
            job = queue.reserve(timeout=0)
            assert job.body == b"%d" % number + LARGE[1:]
            queue.delete(job)


def test_replies_wait_for_a_reader_that_is_slow_and_come_whole(mutual: Daemon, certificates: Path) -> None:
    """More than any buffer on the way holds, in the server, in OpenSSL, and in the system."""
    count = 300
    with closing(connect(secured_port(mutual), context(certificates, "mail-1"))) as slow:
        slow.sendall(b"use big\r\nput 0 0 600 %d\r\n%b\r\n" % (len(BODY), BODY))
        reader = slow.makefile("rb")
        assert reader.readline() == b"USING big\r\n"
        id = int(reader.readline().split()[1])
        slow.sendall(b"peek %d\r\n" % id * count)
        time.sleep(0.2)  # the server has filled what there is, and waits
        for _ in range(count):
            assert reader.readline() == b"FOUND %d %d\r\n" % (id, len(BODY))
            assert reader.read(len(BODY) + 2) == BODY + b"\r\n"
        slow.sendall(b"delete %d\r\n" % id)
        assert reader.readline() == b"DELETED\r\n"
        reader.close()


def test_a_command_may_come_byte_by_byte(mutual: Daemon, certificates: Path) -> None:
    with closing(connect(secured_port(mutual), context(certificates, "mail-1"))) as sock:
        for byte in b"use slow\r\nput 0 0 60 2\r\nhi\r\npeek-ready\r\n":
            sock.sendall(bytes((byte,)))
        reader = sock.makefile("rb")
        assert [reader.readline() for _ in range(4)][2].startswith(b"FOUND")
        reader.close()


def test_a_waiting_worker_is_woken_and_told_that_its_connection_ends(certificates: Path) -> None:
    """What ends a connection by TLS is said by TLS, so that a client can tell it from somebody who cuts it off."""
    with Daemon(*flags(certificates), "-l", "127.0.0.1", "-p", "0") as daemon:
        secured = context(certificates, "mail-1")
        with closing(connect(secured_port(daemon), secured)) as worker, worker.makefile("rb") as reader:
            worker.sendall(b"reserve\r\n")
            with closing(connect(secured_port(daemon), secured)) as producer:
                ask(producer, b"put 0 0 60 2\r\nhi\r\n")
            assert [reader.readline(), reader.readline()] == [b"RESERVED 1 2\r\n", b"hi\r\n"]
            worker.suppress_ragged_eofs = False
            daemon.stop()
            assert worker.recv(1) == b""


@pytest.mark.parametrize("ending", ["close", "close_notify"])
def test_a_worker_that_leaves_gives_its_job_back(mutual: Daemon, certificates: Path, ending: str) -> None:
    with closing(connect(secured_port(mutual), context(certificates, "mail-1"))) as sock:
        assert ask(sock, b"use back\r\n") == b"USING back"
        assert ask(sock, b"watch back\r\n") == b"WATCHING 2"
        id = ask(sock, b"put 0 0 600 1\r\nx\r\n").split()[1]
        assert ask(sock, b"reserve\r\n").split()[:2] == [b"RESERVED", id]
        if ending == "close_notify":
            sock.unwrap()
    with socket.create_connection(("127.0.0.1", plain_port(mutual)), PATIENCE) as plain:
        eventually(lambda: ask(plain, b"delete %b\r\n" % id) == b"DELETED", "it is nobody's")


# Where records and what the system tells of do not go together


@contextmanager
def in_memory(daemon: Daemon, certificates: Path) -> Iterator[InMemory]:
    with socket.create_connection(("127.0.0.1", secured_port(daemon)), PATIENCE) as sock:
        yield InMemory(sock, context(certificates, "mail-1"))


def test_a_command_may_come_with_the_end_of_the_handshake(mutual: Daemon, certificates: Path) -> None:
    """All of it in one segment, that of which the system tells once; and nothing is sent after it."""
    with in_memory(mutual, certificates) as client:
        last = client.shake()
        client.sock.sendall(last + client.encrypt(b"list-tube-used\r\nquit\r\n"))
        assert client.read_to_end() == b"USING default\r\n"


def test_who_ends_tls_alone_is_answered_and_told_of_the_end(mutual: Daemon, certificates: Path) -> None:
    """Its end comes in one segment with the last command, and the socket stays open."""
    with in_memory(mutual, certificates) as client:
        client.sock.sendall(client.shake())
        client.sock.sendall(client.encrypt(b"list-tube-used\r\n", ends=True))
        assert client.read_to_end() == b"USING default\r\n"
        assert client.sock.recv(1) == b""


def test_what_came_before_a_broken_record_is_answered(mutual: Daemon, certificates: Path) -> None:
    with in_memory(mutual, certificates) as client:
        client.sock.sendall(client.shake())
        broken = b"\x17\3\3\0\x20" + bytes(32)
        client.sock.sendall(client.encrypt(b"list-tube-used\r\n") + broken)
        with pytest.raises(ssl.SSLError, match="ALERT_BAD_RECORD_MAC"):
            client.read_to_end()
        assert client.tls.pending() == 0


def test_a_half_closed_connection_is_answered(mutual: Daemon, certificates: Path) -> None:
    with in_memory(mutual, certificates) as client:
        client.sock.sendall(client.shake())
        client.sock.sendall(client.encrypt(b"list-tube-used\r\n"))
        client.sock.shutdown(socket.SHUT_WR)
        assert client.read_to_end() == b"USING default\r\n"


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        theirs = socket.create_connection(listener.getsockname(), PATIENCE)
        return listener.accept()[0], theirs


@contextmanager
def updating(
    certificates: Path, pair: tuple[socket.socket, socket.socket]
) -> Iterator[tuple[KeyUpdater, socket.socket, TlsSocket]]:
    """A client that updates keys, its socket, and the server's."""
    ours, theirs = pair
    ours.setblocking(False)
    theirs.settimeout(None)
    with theirs, ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(KeyUpdater, theirs)
        options = parsed(*flags(certificates, client_ca=False))
        with closing(shake_hands(Certificates(options), ours, PATIENCE)) as served:
            client = connecting.result(PATIENCE)
            theirs.setblocking(False)
            yield client, theirs, served
            client.close()


def waiting(sock: socket.socket) -> int:
    """Bytes that the system has for *sock*."""
    return int(struct.unpack("i", fcntl.ioctl(sock, termios.FIONREAD, bytes(4)))[0])


def test_one_read_takes_a_bounded_portion_of_a_flood_of_key_updates(certificates: Path) -> None:
    """They hold no data, and OpenSSL would go on for as long as they come."""
    count = 2000
    with updating(certificates, tcp_pair()) as (client, _, served):
        assert all(client.update() for _ in range(count))
        left = count * KEY_UPDATE_SIZE
        eventually(lambda: waiting(served) == left, "the flood has come")
        while left:
            with pytest.raises(BlockingIOError):
                served.recv()
            assert max(left - PORTION, 0) <= waiting(served) < left
            left = waiting(served)
        assert client.write(b"list-tube-used\r\n")
        assert received(served) == b"list-tube-used\r\n"
        assert served.send(b"USING default\r\n") == 15
        assert client.read() == b"USING default\r\n"


def test_updates_of_keys_that_are_asked_for_are_answered(certificates: Path) -> None:
    with updating(certificates, tcp_pair()) as (client, theirs, served):
        eventually(lambda: waiting(theirs), "the server's tickets have come")
        before = waiting(theirs)
        assert client.update(asks_for_one=True) and client.write(b"list-tube-used\r\n")
        assert received(served) == b"list-tube-used\r\n"
        assert served.send(b"USING default\r\n") == 15
        eventually(lambda: waiting(theirs) == before + KEY_UPDATE_SIZE + 22 + 15, "the answer, and the reply")
        assert client.read() == b"USING default\r\n"


def test_who_asks_for_updates_of_keys_and_does_not_read_them_is_turned_out(certificates: Path) -> None:
    with updating(certificates, socket.socketpair()) as (client, _, served):

        def read_flood() -> None:
            while True:
                client.update(asks_for_one=True)
                with suppress(BlockingIOError):
                    served.recv()

        with pytest.raises(ConnectionAbortedError, match="does not read"):
            read_flood()
        with pytest.raises(ConnectionAbortedError):
            served.recv()


def test_what_is_sent_is_told_once_the_system_has_it(certificates: Path) -> None:
    """What does not fit is sent again by the caller, with more behind it: each byte arrives once, and none is lost."""
    with updating(certificates, tcp_pair()) as (client, _, served):
        served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        unsent, sent, refused = LARGE, 0, 0
        got = b""
        while unsent:
            try:
                count = served.send(unsent)
            except BlockingIOError:
                refused += 1
                if refused == 1:
                    unsent += b"and more"
                got += client.read()
            else:
                unsent = unsent[count:]
                sent += count
        while len(got) < sent:
            got += client.read()
        assert refused and got == LARGE + b"and more"


def received(served: TlsSocket) -> bytes:
    """What comes next; wait for it."""
    with gevent.Timeout(PATIENCE):
        while True:
            try:
                return served.recv()
            except BlockingIOError:
                gevent.sleep(0.001)


# Who is let in


def refused(port: int, secured: ssl.SSLContext) -> bool:
    """Whether the server does not serve who comes with *secured*; TLS 1.3 says so after the client's handshake."""
    try:
        with closing(connect(port, secured)) as sock:
            sock.sendall(b"list-tube-used\r\n")
            return not sock.recv(100)
    except (ssl.SSLError, ConnectionError):
        return True


def test_without_a_certificate_of_the_authority_nobody_is_let_in(
    mutual: Daemon, certificates: Path, tmp_path: Path
) -> None:
    make_certificates(tmp_path)  # of another authority, with the same names
    stranger = context(certificates)
    stranger.load_cert_chain(tmp_path / "mail-1.pem", tmp_path / "mail-1.key")
    port = secured_port(mutual)
    assert refused(port, context(certificates))
    assert refused(port, stranger)
    assert not refused(port, context(certificates, "mail-1"))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_an_expired_certificate_is_not_let_in_by_the_session_of_before(
    mutual: Daemon, certificates: Path, version: ssl.TLSVersion
) -> None:
    """OpenSSL looks at no certificate again where a session goes on."""
    lasts = 4
    begun = time.monotonic()
    sign = "x509 -req -in mail-1.csr -CA authority.pem -CAkey authority.key -days 1 -out short.pem"
    faked = ("faketime", "-f", f"-{24 * 3600 - lasts}s", "openssl", *sign.split())
    subprocess.run(faked, cwd=certificates, check=True, capture_output=True, timeout=PATIENCE)
    secured = context(certificates)
    secured.load_cert_chain(certificates / "short.pem", certificates / "mail-1.key")
    secured.maximum_version = version

    def come(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool | None]:
        sock = socket.create_connection(("127.0.0.1", secured_port(mutual)), PATIENCE)
        with closing(secured.wrap_socket(sock, server_hostname="localhost", session=session)) as client:
            client.sendall(b"list-tube-used\r\n")
            assert client.recv(100) == b"USING default\r\n"
            return client.session, client.session_reused

    session, is_reused = come(None)
    assert not is_reused
    session, is_reused = come(session)
    assert is_reused
    time.sleep(max(0, begun + lasts + 1.5 - time.monotonic()))
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        come(session)
    eventually(lambda: refused(secured_port(mutual), secured), "nor without a session")


def test_with_a_server_certificate_alone_every_client_is_let_in(certificates: Path) -> None:
    with Daemon(*flags(certificates, client_ca=False), "-l", "127.0.0.1", "-p", "0") as daemon:
        assert not refused(secured_port(daemon), context(certificates))


def test_old_protocols_are_refused(mutual: Daemon, certificates: Path) -> None:
    old = context(certificates, "mail-1")
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1 is deprecated"):
        old.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match=r"TLSv1_1 is deprecated"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    assert refused(secured_port(mutual), old)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert not refused(secured_port(mutual), old)


@pytest.mark.parametrize("said", [b"list-tube-used\r\n", b"GET / HTTP/1.0\r\n\r\n", b"\x16\3\1\x40\0" + bytes(9)])
def test_who_speaks_no_tls_is_turned_out(mutual: Daemon, said: bytes) -> None:
    peer = Peer(mutual, secured_port(mutual))
    with peer:
        peer.send(said)
        with suppress(OSError):  # it has been turned out already
            peer.sock.shutdown(socket.SHUT_WR)
        assert b"USING" not in peer.read_to_end()


def test_the_log_says_why_a_handshake_failed(certificates: Path) -> None:
    """The log has one line a second: here the failures are the only ones, and ten seconds apart."""
    with Daemon(*flags(certificates), "-l", "127.0.0.1", "-p", "0") as daemon:
        port = secured_port(daemon)
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as silent:
            assert refused(port, context(certificates))
            assert silent.recv(1) == b""
        code, said = daemon.stop()
    assert code == 0
    assert "peer did not return a certificate" in said and "the handshake took too long" in said


def test_who_breaks_off_before_the_handshake_costs_a_line(certificates: Path) -> None:
    """Connections are reset while they wait to be accepted, some with bytes sent: for Python they never were."""
    with Daemon(*flags(certificates), "-l", "127.0.0.1", "-p", "0") as daemon:
        port = secured_port(daemon)
        daemon.process.send_signal(signal.SIGSTOP)
        for number in range(20):
            with socket.create_connection(("127.0.0.1", port), PATIENCE) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.sendall(bytes(number))
        daemon.process.send_signal(signal.SIGCONT)
        assert not refused(port, context(certificates, "mail-1"))
        code, said = daemon.stop()
    assert code == 0 and "Traceback" not in said and "limit=handshake" in said


# The certificate, read anew


def served_serial(port: int, secured: ssl.SSLContext) -> object:
    with closing(connect(port, secured)) as sock:
        found = sock.getpeercert()
        assert found is not None
        return found["serialNumber"]


def test_sighup_reads_the_certificate_anew_and_drops_nobody(certificates: Path, tmp_path: Path) -> None:
    """The new one is of another authority, for both sides; a bad one is refused, and all stays as it is."""
    for file in certificates.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    old = context(certificates, "mail-1")
    server = Daemon(*flags(tmp_path), "-l", "127.0.0.1", "-p", "0", command=(*MINDING_SIGNALS, *COMMAND))
    with server as daemon, ExitStack() as stack:
        port = secured_port(daemon)
        first = served_serial(port, old)
        held = [stack.enter_context(closing(connect(port, old))) for _ in range(5)]
        assert {ask(sock, b"watch a\r\n") for sock in held} == {b"WATCHING 2"}
        make_certificates(tmp_path)
        daemon.process.send_signal(signal.SIGHUP)
        new = context(tmp_path, "mail-1")
        eventually(lambda: not refused(port, new), "the new certificate is served")
        assert served_serial(port, new) != first
        assert refused(port, old)
        assert {ask(sock, b"watch b\r\n") for sock in held} == {b"WATCHING 3"}
        second = served_serial(port, new)
        (tmp_path / "server.pem").write_text("no certificate")
        daemon.process.send_signal(signal.SIGHUP)
        (tmp_path / "monitoring.key").unlink()  # not one that the server has to do with
        assert daemon.process.stderr is not None
        said = b""
        while b"stays as it is" not in said:
            line = daemon.process.stderr.readline()
            assert line
            said += line
        assert f"--tls-cert {tmp_path}/server.pem, --tls-key {tmp_path}/server.key: [SSL] PEM lib; ".encode() in said
        assert served_serial(port, new) == second
        assert {ask(sock, b"watch c\r\n") for sock in held} == {b"WATCHING 4"}


def test_a_start_with_a_bad_certificate_says_what_is_wrong(certificates: Path, tmp_path: Path) -> None:
    key, cert = f"{certificates}/server.key", f"{certificates}/server.pem"
    encrypted = tmp_path / "encrypted.key"
    subprocess.run(
        ["openssl", "ec", "-in", key, "-aes256", "-passout", "pass:sesame", "-out", str(encrypted)],
        check=True,
        capture_output=True,
    )
    for arguments, message in (
        (("--tls-cert", f"{tmp_path}/none.pem"), f"--tls-cert {tmp_path}/none.pem: No such file or directory"),
        (("--tls-cert", cert, "--tls-key", f"{tmp_path}/none.key"), "none.key: No such file or directory"),
        (("--tls-cert", cert), "it must be a certificate, with its key"),
        (("--tls-cert", cert, "--tls-key", f"{certificates}/mail-1.key"), "key values mismatch; it must be a cert"),
        (("--tls-cert", cert, "--tls-key", str(encrypted)), "the key is encrypted, and nobody is there to be asked"),
        (("--tls-cert", cert, "--tls-key", key, "--tls-client-ca", key), "it must be certificates in PEM"),
    ):
        with pytest.raises(StartError) as caught:
            Certificates(parsed(*arguments))
        assert caught.value.exit_code == 5 and message in str(caught.value)
    done = run("-l", "127.0.0.1", "-p", "0", "--no-web", "--tls-cert", cert)
    assert done.returncode == 5 and f"greenstalk-server: --tls-cert {cert}: " in done.stderr


@pytest.mark.parametrize("gone", ["--tls-key", "--tls-client-ca"])
def test_a_file_that_goes_while_it_is_read_is_told_as_any_other(
    certificates: Path, tmp_path: Path, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal may remove a file between the look at it and its reading."""
    names = {"--tls-cert": "server.pem", "--tls-key": "server.key", "--tls-client-ca": "authority.pem"}
    files = {flag: certificates / name for flag, name in names.items()}
    content = files[gone].read_bytes()
    files[gone] = tmp_path / "gone.pem"
    files[gone].write_bytes(content)
    look = tls._look

    def look_and_remove(options: Options, field: str, path: str) -> int:
        mode = look(options, field, path)
        if path == str(files[gone]):
            files[gone].unlink()
        return mode

    monkeypatch.setattr(tls, "_look", look_and_remove)
    with pytest.raises(StartError, match="No such file or directory"):
        Certificates(parsed(*(str(part) for item in files.items() for part in item)))


def parsed(*arguments: str) -> Options:
    options = parse(arguments, {})
    assert isinstance(options, Options)
    return options


def test_a_key_without_a_certificate_is_refused() -> None:
    with pytest.raises(UsageError, match="--tls-key: must not be set without --tls-cert"):
        parsed("--tls-key", "server.key")


def test_a_key_that_everybody_can_read_is_warned_of(
    certificates: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = tmp_path / "server.key"
    key.write_bytes((certificates / "server.key").read_bytes())
    key.chmod(0o644)
    Certificates(parsed("--tls-cert", f"{certificates}/server.pem", "--tls-key", str(key)))
    assert f"everybody on this machine can read the key {key}" in caplog.text


def test_the_client_of_the_page_runs_as_written(certificates: Path) -> None:
    source = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert source is not None
    with Daemon(*flags(certificates), "-l", "127.0.0.1", "-p", "0") as daemon:
        port = secured_port(daemon)
        code = source[1].replace('"localhost", 11300', f'"localhost", {port}')
        subprocess.run([sys.executable, "-c", code], cwd=certificates, check=True, timeout=PATIENCE)
        with closing(connect(port, context(certificates, "mail-1"))) as sock:
            assert ask(sock, b"peek 1\r\n") == b"FOUND 1 5"


@pytest.mark.parametrize("addresses", [("127.0.0.1", "plain:127.0.0.1"), ("plain:127.0.0.1", "0.0.0.0")])
def test_one_address_for_tls_and_for_plain_connections_is_refused(
    certificates: Path, addresses: tuple[str, str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    flags = [word for address in addresses for word in ("-l", f"{address}:{port}")]
    files = ("--tls-cert", str(certificates / "server.pem"), "--tls-key", str(certificates / "server.key"))
    done = run(*flags, *files, "--no-web")
    assert re.fullmatch(
        rf"greenstalk-server: cannot listen on 127.0.0.1:{port} for plain connections: "
        rf"[0-9.]+:{port} \(TLS\) covers it; give one of them another port\n",
        done.stderr,
    )
    assert done.returncode == 111


def test_sockets_that_are_handed_over_speak_tls_but_for_plain_ones(certificates: Path, tmp_path: Path) -> None:
    hand_over = """\
import os, sys
for place, fd in enumerate(map(int, sys.argv[1].split(",")), 3):
    os.dup2(fd, place)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="3", LISTEN_FDNAMES="queue:plain:local")
os.execv(sys.argv[2], sys.argv[2:])
"""
    path = tmp_path / "queue"
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
        socket.socket(socket.AF_UNIX) as third,
    ):
        third.bind(str(path))
        third.listen()
        fds = [sock.fileno() for sock in (first, second, third)]
        command = (sys.executable, "-c", hand_over, ",".join(map(str, fds)), *COMMAND)
        with Daemon(*flags(certificates), command=command, pass_fds=fds) as daemon:
            ports = [sock.getsockname()[1] for sock in (first, second)]
            told = f"127.0.0.1:{ports[0]} (TLS), 127.0.0.1:{ports[1]}, unix:{path}\n"
            assert f"beanstalk protocol: {told}" in daemon.first_lines
            assert not refused(ports[0], context(certificates, "mail-1"))
            with socket.create_connection(("127.0.0.1", ports[1]), PATIENCE) as plain:
                assert ask(plain, b"list-tube-used\r\n") == b"USING default"


# Through the usual tunnels


@contextmanager
def tunnel(*command: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def put_and_take(port: int) -> bool:
    """Whether a plain client gets through at *port*; then what it does has to come out right."""
    try:
        with greenstalk.Client(("127.0.0.1", port), encoding=None, use="tunnel", watch="tunnel") as queue:
            ids = [queue.put(BODY) for _ in range(10)]
            jobs = [queue.reserve(timeout=0) for _ in ids]
            for job in jobs:
                queue.delete(job)
    except (OSError, ConnectionError):
        return False
    assert [(job.id, job.body) for job in jobs] == [(id, BODY) for id in ids]
    return True


def test_through_socat(mutual: Daemon, certificates: Path) -> None:
    port = free_port()
    target = f"OPENSSL:localhost:{secured_port(mutual)},pf=ip4,cafile={certificates}/authority.pem"
    own = f"cert={certificates}/mail-1.pem,key={certificates}/mail-1.key"
    with tunnel("socat", f"TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr", f"{target},{own}"):
        eventually(lambda: put_and_take(port), "socat gets through")


def test_through_stunnel(mutual: Daemon, certificates: Path, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "stunnel.conf").write_text(
        f"foreground = yes\npid =\nclient = yes\n[queue]\naccept = 127.0.0.1:{port}\n"
        f"connect = 127.0.0.1:{secured_port(mutual)}\nCAfile = {certificates}/authority.pem\nverifyChain = yes\n"
        f"checkHost = queue.example.com\ncert = {certificates}/mail-1.pem\nkey = {certificates}/mail-1.key\n"
    )
    with tunnel("stunnel", str(tmp_path / "stunnel.conf")):
        eventually(lambda: put_and_take(port), "stunnel gets through")


def test_who_says_nothing_is_turned_out(mutual: Daemon, silent: list[socket.socket]) -> None:
    for sock in silent:
        assert sock.recv(1) == b""
