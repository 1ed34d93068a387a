"""Server.stop closes idle connections immediately, and waits for those that are sending a reply."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path

import gevent
import pytest
from gevent import get_hub

from greenstalk_server.config.command_line import parse
from greenstalk_server.config.options import Options
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.operations import connecting, putting
from greenstalk_server.net.server import STOP_GRACE
from greenstalk_server.net.tls import Certificates
from tests.net.in_process import is_readable, listen, read_to_end, start_server, wait_until
from tests.net.test_hang_up import FACTS
from tests.support.daemon import TIMEOUT
from tests.support.tls import context, make_certificates

LARGE = 20_000_000


@pytest.mark.linux_form
def test_tls_connection_accepted_just_before_a_stop_does_not_delay_it(tmp_path: Path) -> None:
    """Another connection's reply keeps the server running for long enough to complete the handshake."""
    make_certificates(tmp_path)
    options = parse(["--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key")], {})
    assert isinstance(options, Options)
    broker = Broker(FACTS, max_job_size=LARGE)
    assert (
        putting.put(broker, connecting.connect(broker, lambda: None), broker.allocate_id(), 0, 0, 1, bytes(LARGE), 0)
        > 0
    )
    plain, secured = listen(), listen(is_tls=True)
    server = start_server(broker, [plain, secured], Certificates(options))
    with plain, secured, socket.create_connection(plain.sock.getsockname(), TIMEOUT) as slow:
        slow.sendall(b"peek 1\r\n")
        wait_until(lambda: is_readable(slow))  # the reply has begun
        with socket.create_connection(secured.sock.getsockname(), TIMEOUT) as late:

            def shake_hands() -> None:
                with suppress(OSError), context(tmp_path).wrap_socket(late, server_hostname="localhost") as sock:
                    sock.recv(1)

            server._poller._poll()  # the connection is accepted, but its greenlet has not started
            client = get_hub().threadpool.spawn(shake_hands)
            reading = gevent.spawn_later(0.5, read_to_end, slow)
            stopped_at = time.monotonic()
            server.stop()
            took = time.monotonic() - stopped_at
            assert len(reading.get(timeout=TIMEOUT)) == len(b"FOUND 1 %d\r\n" % LARGE) + LARGE + 2
            assert took < STOP_GRACE / 2
            client.get(timeout=TIMEOUT)
