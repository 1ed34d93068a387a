"""The Procfile, run by honcho: HTTP on PORT, durable jobs, and a graceful stop on SIGTERM."""

from __future__ import annotations

import http.client
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.cli.test_command import PUT
from tests.support.cluster import Cluster
from tests.support.daemon import REPOSITORY, TIMEOUT, Daemon, ask, environment
from tests.support.nodes import wait_until
from tests.support.pages import path_with_commands
from tests.support.ports import free_ports

BIN = Path(sys.executable).parent
PASSWORD = {"GREENSTALK_WEB_PASSWORD": "secret"}


def platform(app: Path, port: int, **variables: str) -> Daemon:
    """Run the Procfile in the directory *app*, as on a platform that assigns *port* for HTTP.

    The protocol is on a Unix socket, since another server may have port 11300.
    """
    start = ("honcho", "--no-prefix", "--no-colour", "--procfile", str(REPOSITORY / "Procfile"), "start")
    environ = environment(
        GREENSTALK_LISTEN=f"unix:{app}/queue",
        PATH=f"{path_with_commands(app / 'bin')}:{BIN}",
        **variables,
    )
    return Daemon("--port", str(port), command=start, environ=environ, cwd=app)


def ask_queue(app: Path, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(TIMEOUT)
        sock.connect(str(app / "queue"))
        return ask(sock, request)


def status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_procfile_serves_on_port_keeps_jobs_and_stops_gracefully(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with platform(tmp_path, port, **PASSWORD) as first:
        assert (status(port, "/healthz"), status(port, "/")) == (200, 401)
        assert ask_queue(tmp_path, PUT) == b"INSERTED 1"
        first.process.send_signal(signal.SIGTERM)
        said, _ = first.process.communicate(timeout=TIMEOUT)
        assert b"stopped (rc=0)" in said
    assert (tmp_path / "data" / "journal.1").exists()
    with platform(tmp_path, port, **PASSWORD):
        assert ask_queue(tmp_path, b"reserve-with-timeout 0\r\n") == b"RESERVED 1 2"


def test_database_url_keeps_jobs_in_the_database(tmp_path: Path, cluster: Cluster) -> None:
    (port,) = free_ports(1)
    with platform(tmp_path, port, DATABASE_URL=cluster.url, GREENSTALK_JOURNAL_NAME="procfile", **PASSWORD):
        wait_until(lambda: status(port, "/readyz") == 200, lambda: "it does not lead")
        assert ask_queue(tmp_path, PUT) == b"INSERTED 1"
        journal = "journal = (SELECT id FROM greenstalk_journal WHERE name = 'procfile')"
        assert len(cluster.ask(f"SELECT FROM greenstalk_batch WHERE {journal}")) == 1
    assert list((tmp_path / "data").iterdir()) == []


def test_missing_password_prevents_the_start(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="set GREENSTALK_WEB_PASSWORD"):
        platform(tmp_path, free_ports(1)[0])
