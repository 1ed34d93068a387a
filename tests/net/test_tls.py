"""TLS on the beanstalk port: clients with ssl, stunnel and socat; reloaded certificates; bad handshakes; floods."""

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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import gevent
import greenstalk
import pytest

from greenstalk_server.config.command_line import parse
from greenstalk_server.config.options import Options
from greenstalk_server.net.tls import (
    RECV_SIZE,
    Certificates,
    TlsSocket,
    load_authority,
    load_certificate,
    shake_hands,
)
from greenstalk_server.runtime.exit_codes import StartError
from tests.support.daemon import COMMAND, MINDING_SIGNALS, TIMEOUT, Daemon, ask, run
from tests.support.pages import block
from tests.support.peer import Peer, eventually
from tests.support.ports import free_ports
from tests.support.processes import ending
from tests.support.tls import KEY_UPDATE_SIZE, InMemory, KeyUpdater, connect, context, make_certificates

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
    """A server with a TLS port that requires client certificates, a plain port, and a Unix socket."""
    path = tmp_path_factory.mktemp("unix") / "queue"
    where = ("-l", "127.0.0.1", "-l", "plain:127.0.0.1:0", "-l", f"unix:{path}", "-p", "0")
    with Daemon(*flags(certificates), *where, "-z", str(len(LARGE)), "--log-level", "debug") as daemon:
        yield daemon
        code, stderr = daemon.stop()
        assert code == 0
        assert "Traceback" not in stderr and "ERROR" not in stderr, stderr
        assert "WARNING handshake: connections closed because the TLS handshake failed" in stderr


@pytest.fixture(scope="module")
def silent(mutual: Daemon) -> Iterator[list[socket.socket]]:
    """Connections that are opened first and never send anything."""
    with ExitStack() as stack:
        port = secured_port(mutual)
        yield [stack.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT)) for _ in range(20)]


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


def test_client_libraries_over_tls_plain_tcp_and_unix_sockets(
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


def test_slow_reader_over_tls_gets_whole_replies(mutual: Daemon, certificates: Path) -> None:
    """The replies exceed all buffers on the way: in the server, in OpenSSL, and in the kernel."""
    count = 300
    with closing(connect(secured_port(mutual), context(certificates, "mail-1"))) as slow:
        slow.sendall(b"use big\r\nput 0 0 600 %d\r\n%b\r\n" % (len(BODY), BODY))
        reader = slow.makefile("rb")
        assert reader.readline() == b"USING big\r\n"
        id = int(reader.readline().split()[1])
        slow.sendall(b"peek %d\r\n" % id * count)
        eventually(lambda: waiting(slow) > 65536, "the receive buffer is full")
        for _ in range(count):
            assert reader.readline() == b"FOUND %d %d\r\n" % (id, len(BODY))
            assert reader.read(len(BODY) + 2) == BODY + b"\r\n"
        slow.sendall(b"delete %d\r\n" % id)
        assert reader.readline() == b"DELETED\r\n"
        reader.close()


def test_waiting_worker_is_woken_and_gets_a_tls_close(certificates: Path) -> None:
    """The server sends close_notify, so that a client can tell a normal end from a truncated connection."""
    with Daemon(*flags(certificates), "-l", "127.0.0.1", "-p", "0") as daemon:
        secured = context(certificates, "mail-1")
        with closing(connect(secured_port(daemon), secured)) as worker, worker.makefile("rb") as reader:
            worker.sendall(b"reserve\r\n")
            with closing(connect(secured_port(daemon), secured)) as producer:
                ask(producer, b"put 0 0 60 2\r\nhi\r\n")
            assert [reader.readline(), reader.readline()] == [b"RESERVED 1 2\r\n", b"hi\r\n"]
            worker.suppress_ragged_eofs = False  # type: ignore[attr-defined]
            daemon.stop()
            assert worker.recv(1) == b""


@pytest.mark.parametrize("ending", ["close", "close_notify"])
def test_job_of_a_disconnected_tls_worker_is_ready_again(mutual: Daemon, certificates: Path, ending: str) -> None:
    with closing(connect(secured_port(mutual), context(certificates, "mail-1"))) as sock:
        assert ask(sock, b"use back\r\n") == b"USING back"
        assert ask(sock, b"watch back\r\n") == b"WATCHING 2"
        id = ask(sock, b"put 0 0 600 1\r\nx\r\n").split()[1]
        assert ask(sock, b"reserve\r\n").split()[:2] == [b"RESERVED", id]
        if ending == "close_notify":
            sock.unwrap()
    with socket.create_connection(("127.0.0.1", plain_port(mutual)), TIMEOUT) as plain:
        eventually(lambda: ask(plain, b"delete %b\r\n" % id) == b"DELETED", "the job is no longer reserved")


# TLS records that do not coincide with events of the kernel


@contextmanager
def in_memory(daemon: Daemon, certificates: Path) -> Iterator[InMemory]:
    with socket.create_connection(("127.0.0.1", secured_port(daemon)), TIMEOUT) as sock:
        yield InMemory(sock, context(certificates, "mail-1"))


def test_command_may_arrive_with_the_end_of_the_handshake(mutual: Daemon, certificates: Path) -> None:
    """Both are in one TCP segment, which the kernel reports once, and the client sends nothing after it."""
    with in_memory(mutual, certificates) as client:
        last = client.shake()
        client.sock.sendall(last + client.encrypt(b"list-tube-used\r\nquit\r\n"))
        assert client.read_to_end() == b"USING default\r\n"


def test_tls_close_is_answered_by_replies_and_a_tls_close(mutual: Daemon, certificates: Path) -> None:
    """The close_notify is in one TCP segment with the last command, and the socket stays open."""
    with in_memory(mutual, certificates) as client:
        client.sock.sendall(client.shake())
        client.sock.sendall(client.encrypt(b"list-tube-used\r\n", ends=True))
        assert client.read_to_end() == b"USING default\r\n"
        assert client.sock.recv(1) == b""


def test_commands_before_a_broken_record_are_answered(mutual: Daemon, certificates: Path) -> None:
    with in_memory(mutual, certificates) as client:
        client.sock.sendall(client.shake())
        broken = b"\x17\3\3\0\x20" + bytes(32)
        client.sock.sendall(client.encrypt(b"list-tube-used\r\n") + broken)
        with pytest.raises(ssl.SSLError, match="ALERT_BAD_RECORD_MAC"):
            client.read_to_end()
        assert client.tls.pending() == 0


def test_half_closed_connection_is_answered(mutual: Daemon, certificates: Path) -> None:
    with in_memory(mutual, certificates) as client:
        client.sock.sendall(client.shake())
        client.sock.sendall(client.encrypt(b"list-tube-used\r\n"))
        client.sock.shutdown(socket.SHUT_WR)
        assert client.read_to_end() == b"USING default\r\n"


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        theirs = socket.create_connection(listener.getsockname(), TIMEOUT)
        return listener.accept()[0], theirs


@contextmanager
def updating(
    certificates: Path, pair: tuple[socket.socket, socket.socket]
) -> Iterator[tuple[KeyUpdater, socket.socket, TlsSocket]]:
    """A client that updates keys, its socket, and the server's socket."""
    ours, theirs = pair
    ours.setblocking(False)
    theirs.settimeout(None)
    with theirs, ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(KeyUpdater, theirs)
        options = parsed(*flags(certificates, client_ca=False))
        with closing(shake_hands(Certificates(options), ours)) as served:
            client = connecting.result(TIMEOUT)
            theirs.setblocking(False)
            yield client, theirs, served
            client.close()


def waiting(sock: socket.socket) -> int:
    """Return the bytes in the receive queue of *sock*."""
    return int(struct.unpack("i", fcntl.ioctl(sock, termios.FIONREAD, bytes(4)))[0])


def test_each_recv_reads_a_bounded_part_of_a_flood_of_key_updates(certificates: Path) -> None:
    """Key updates hold no data, and OpenSSL would read them for as long as they arrive."""
    count = 2000
    with updating(certificates, tcp_pair()) as (client, _, served):
        assert all(client.update() for _ in range(count))
        left = count * KEY_UPDATE_SIZE
        eventually(lambda: waiting(served) == left, "the flood has arrived")
        while left:
            with pytest.raises(BlockingIOError):
                served.recv()
            assert max(left - RECV_SIZE, 0) <= waiting(served) < left
            left = waiting(served)
        assert client.write(b"list-tube-used\r\n")
        assert received(served) == b"list-tube-used\r\n"
        assert served.send(b"USING default\r\n") == 15
        assert client.read() == b"USING default\r\n"


def test_requested_key_updates_are_answered(certificates: Path) -> None:
    with updating(certificates, tcp_pair()) as (client, theirs, served):
        eventually(lambda: bool(waiting(theirs)), "the server's tickets have arrived")
        before = waiting(theirs)
        assert client.update(asks_for_one=True) and client.write(b"list-tube-used\r\n")
        assert received(served) == b"list-tube-used\r\n"
        assert served.send(b"USING default\r\n") == 15
        eventually(lambda: waiting(theirs) == before + KEY_UPDATE_SIZE + 22 + 15, "answer and reply have arrived")
        assert client.read() == b"USING default\r\n"


def test_client_that_does_not_read_its_key_updates_is_closed(certificates: Path) -> None:
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


def test_send_reports_bytes_once_the_kernel_has_them(certificates: Path) -> None:
    """The caller repeats unsent data with more data after it. Each byte arrives exactly once."""
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
    """Wait for the next bytes on *served*; return them."""
    with gevent.Timeout(TIMEOUT):
        while True:
            try:
                return served.recv()
            except BlockingIOError:
                gevent.sleep(0.001)


# Accepted and refused clients


def refused(port: int, secured: ssl.SSLContext) -> bool:
    """Return whether the server refuses a client with *secured*; with TLS 1.3 it does so after the handshake."""
    try:
        with closing(connect(port, secured)) as sock:
            sock.sendall(b"list-tube-used\r\n")
            return not sock.recv(100)
    except (ssl.SSLError, ConnectionError):
        return True


def test_client_without_a_trusted_certificate_is_refused(mutual: Daemon, certificates: Path, tmp_path: Path) -> None:
    make_certificates(tmp_path)  # another authority and the same names
    stranger = context(certificates)
    stranger.load_cert_chain(tmp_path / "mail-1.pem", tmp_path / "mail-1.key")
    port = secured_port(mutual)
    assert refused(port, context(certificates))
    assert refused(port, stranger)
    assert not refused(port, context(certificates, "mail-1"))


def test_expired_certificate_is_refused_in_a_resumed_session(mutual: Daemon, certificates: Path) -> None:
    """OpenSSL does not check the certificate of a resumed session."""
    lifetime = 4
    signed_at = time.monotonic()
    sign = "x509 -req -in mail-1.csr -CA authority.pem -CAkey authority.key -days 1 -out short.pem"
    faked = ("faketime", "-f", f"-{24 * 3600 - lifetime}s", "openssl", *sign.split())
    subprocess.run(faked, cwd=certificates, check=True, capture_output=True, timeout=TIMEOUT)

    def connect_with(
        secured: ssl.SSLContext, session: ssl.SSLSession | None
    ) -> tuple[ssl.SSLSession | None, bool | None]:
        sock = socket.create_connection(("127.0.0.1", secured_port(mutual)), TIMEOUT)
        with closing(secured.wrap_socket(sock, server_hostname="localhost", session=session)) as client:
            client.sendall(b"list-tube-used\r\n")
            assert client.recv(100) == b"USING default\r\n"
            return client.session, client.session_reused

    resumed = []
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        secured = context(certificates)
        secured.load_cert_chain(certificates / "short.pem", certificates / "mail-1.key")
        secured.maximum_version = version
        session, is_reused = connect_with(secured, None)
        assert not is_reused
        session, is_reused = connect_with(secured, session)
        assert is_reused
        resumed.append((secured, session))
    time.sleep(max(0, signed_at + lifetime + 1.5 - time.monotonic()))
    for secured, session in resumed:
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            connect_with(secured, session)
    eventually(lambda: refused(secured_port(mutual), secured), "a client without a session is refused")


def test_clients_need_no_certificate_without_a_client_authority(certificates: Path) -> None:
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


@pytest.mark.parametrize("sent", [b"list-tube-used\r\n", b"GET / HTTP/1.0\r\n\r\n", b"\x16\3\1\x40\0" + bytes(9)])
def test_plain_client_on_a_tls_port_is_closed(mutual: Daemon, sent: bytes) -> None:
    peer = Peer(mutual, secured_port(mutual))
    with peer:
        peer.send(sent)
        with suppress(OSError):  # the server may have closed already
            peer.sock.shutdown(socket.SHUT_WR)
        assert b"USING" not in peer.read_to_end()


def test_log_states_why_a_handshake_failed(certificates: Path) -> None:
    """The log has one line a second at most. Here the failures are ten seconds apart."""
    with Daemon(*flags(certificates), "-l", "127.0.0.1", "-p", "0") as daemon:
        port = secured_port(daemon)
        with socket.create_connection(("127.0.0.1", port), TIMEOUT) as silent:
            assert refused(port, context(certificates))
            assert silent.recv(1) == b""
        code, stderr = daemon.stop()
    assert code == 0
    assert "peer did not return a certificate" in stderr and "the handshake took too long" in stderr


def test_reset_before_the_handshake_is_logged_once(certificates: Path) -> None:
    """Connections are reset in the accept queue, some after sending bytes."""
    with Daemon(*flags(certificates), "-l", "127.0.0.1", "-p", "0") as daemon:
        port = secured_port(daemon)
        daemon.process.send_signal(signal.SIGSTOP)
        for number in range(20):
            with socket.create_connection(("127.0.0.1", port), TIMEOUT) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.sendall(bytes(number))
        daemon.process.send_signal(signal.SIGCONT)
        assert not refused(port, context(certificates, "mail-1"))
        code, stderr = daemon.stop()
    assert code == 0 and "Traceback" not in stderr and "limit=handshake" in stderr


# Reloading the certificate


def served_serial(port: int, secured: ssl.SSLContext) -> object:
    with closing(connect(port, secured)) as sock:
        found = sock.getpeercert()
        assert found is not None
        return found["serialNumber"]


def test_sighup_reloads_the_certificate_and_keeps_connections(certificates: Path, tmp_path: Path) -> None:
    """The new certificates are of another authority, on both sides. A bad file keeps the present certificate."""
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
        (tmp_path / "monitoring.key").unlink()  # the server does not read this file
        assert daemon.process.stderr is not None
        stderr = b""
        while b"keeping the present certificate" not in stderr:
            line = daemon.process.stderr.readline()
            assert line
            stderr += line
        assert f"--tls-cert {tmp_path}/server.pem, --tls-key {tmp_path}/server.key: [SSL] PEM lib; ".encode() in stderr
        assert served_serial(port, new) == second
        assert {ask(sock, b"watch c\r\n") for sock in held} == {b"WATCHING 4"}


def test_start_with_a_bad_certificate_names_the_reason(certificates: Path, tmp_path: Path) -> None:
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
        (("--tls-cert", cert, "--tls-key", str(encrypted)), "and a server cannot ask for its password"),
        (("--tls-cert", cert, "--tls-key", key, "--tls-client-ca", key), "it must be certificates in PEM"),
    ):
        with pytest.raises(StartError) as caught:
            Certificates(parsed(*arguments))
        assert caught.value.exit_code == 5 and message in str(caught.value)
    done = run("-l", "127.0.0.1", "-p", "0", "--no-web", "--tls-cert", cert)
    assert done.returncode == 5 and f"greenstalk-server: --tls-cert {cert}: " in done.stderr


@pytest.mark.parametrize(("flag", "load"), [("--tls-key", load_certificate), ("--tls-client-ca", load_authority)])
def test_certificate_file_that_disappears_is_a_start_error(
    certificates: Path, tmp_path: Path, flag: str, load: Callable[[ssl.SSLContext, Options], None]
) -> None:
    """A renewal may remove a file after the server has checked it and before it reads it."""
    names = {"--tls-cert": "server.pem", "--tls-key": "server.key", "--tls-client-ca": "authority.pem"}
    files = {name: certificates / file for name, file in names.items()}
    gone = tmp_path / "gone.pem"
    gone.write_bytes(files[flag].read_bytes())
    files[flag] = gone

    class Removing(ssl.SSLContext):
        def load_cert_chain(self, *arguments: Any) -> None:
            gone.unlink()
            super().load_cert_chain(*arguments)

        def load_verify_locations(self, *arguments: Any) -> None:
            gone.unlink()
            super().load_verify_locations(*arguments)

    with pytest.raises(StartError, match="No such file or directory"):
        load(Removing(ssl.PROTOCOL_TLS_SERVER), parsed(*(str(part) for item in files.items() for part in item)))
    assert not gone.exists()


def parsed(*arguments: str) -> Options:
    options = parse(arguments, {})
    assert isinstance(options, Options)
    return options


def test_public_key_file_logs_a_warning(certificates: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = tmp_path / "server.key"
    key.write_bytes((certificates / "server.key").read_bytes())
    key.chmod(0o644)
    Certificates(parsed("--tls-cert", f"{certificates}/server.pem", "--tls-key", str(key)))
    assert f"the key {key} is readable by every user of this machine; run: chmod o-r {key}" in caplog.text


def test_documented_client_runs_as_written(certificates: Path) -> None:
    source = block("security.md", "python", "import socket")
    with Daemon(*flags(certificates), "-l", "127.0.0.1", "-p", "0") as daemon:
        port = secured_port(daemon)
        code = source.replace('"localhost", 11300', f'"localhost", {port}')
        subprocess.run([sys.executable, "-c", code], cwd=certificates, check=True, timeout=TIMEOUT)
        with closing(connect(port, context(certificates, "mail-1"))) as sock:
            assert ask(sock, b"peek 1\r\n") == b"FOUND 1 5"


@pytest.mark.parametrize("addresses", [("127.0.0.1", "plain:127.0.0.1"), ("plain:127.0.0.1", "0.0.0.0")])
def test_same_address_for_tls_and_plain_connections_is_refused(certificates: Path, addresses: tuple[str, str]) -> None:
    (port,) = free_ports(1)
    flags = [word for address in addresses for word in ("-l", f"{address}:{port}")]
    files = ("--tls-cert", str(certificates / "server.pem"), "--tls-key", str(certificates / "server.key"))
    done = run(*flags, *files, "--no-web")
    assert re.fullmatch(
        rf"greenstalk-server: cannot listen on 127.0.0.1:{port} for plain connections: "
        rf"[0-9.]+:{port} \(TLS\) covers it; use another port for one of them\n",
        done.stderr,
    )
    assert done.returncode == 111


def test_inherited_sockets_use_tls_unless_named_plain(certificates: Path, tmp_path: Path) -> None:
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
            listed = f"127.0.0.1:{ports[0]} (TLS), 127.0.0.1:{ports[1]}, unix:{path}\n"
            assert f"beanstalk protocol: {listed}" in daemon.first_lines
            assert not refused(ports[0], context(certificates, "mail-1"))
            with socket.create_connection(("127.0.0.1", ports[1]), TIMEOUT) as plain:
                assert ask(plain, b"list-tube-used\r\n") == b"USING default"


# Through stunnel and socat


@contextmanager
def tunnel(*command: str) -> Iterator[None]:
    with ending(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)):
        yield


def put_and_reserve(port: int) -> bool:
    """Return whether a plain client can connect through *port*; if it can, its commands must work."""
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
    (port,) = free_ports(1)
    command = block("security.md", "sh", "socat ").replace("\\\n", "")
    for written, local in {
        "LISTEN:11300": f"LISTEN:{port}",
        "queue.example.com:11300,": f"localhost:{secured_port(mutual)},pf=ip4,",
        "authority.pem": f"{certificates}/authority.pem",
        "mail-1.": f"{certificates}/mail-1.",
    }.items():
        assert written in command
        command = command.replace(written, local)
    with tunnel(*command.split()):
        eventually(lambda: put_and_reserve(port), "socat forwards commands")


def test_through_stunnel(mutual: Daemon, certificates: Path, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    configuration = block("security.md", "ini", "; stunnel.conf")
    for written, local in {
        "127.0.0.1:11300": f"127.0.0.1:{port}",
        "queue.example.com:11300": f"127.0.0.1:{secured_port(mutual)}",
        "authority.pem": f"{certificates}/authority.pem",
        "mail-1.": f"{certificates}/mail-1.",
    }.items():
        assert written in configuration
        configuration = configuration.replace(written, local)
    (tmp_path / "stunnel.conf").write_text(f"foreground = yes\npid =\n{configuration}")
    with tunnel("stunnel", str(tmp_path / "stunnel.conf")):
        eventually(lambda: put_and_reserve(port), "stunnel forwards commands")


def test_silent_client_is_closed_after_the_handshake_timeout(mutual: Daemon, silent: list[socket.socket]) -> None:
    for sock in silent:
        assert sock.recv(1) == b""
