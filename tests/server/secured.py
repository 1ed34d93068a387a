"""What docs/security.md says of certificates, done; and clients that use them."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
from pathlib import Path

from tests.daemon import PATIENCE, REPOSITORY

PAGE = REPOSITORY / "docs" / "security.md"


def make_certificates(directory: Path) -> None:
    """Run the commands of the page in *directory*: an authority, a server, and the clients mail-1 and monitoring."""
    commands = re.search(r"<!-- run by tests/server/test_tls.py -->\n\n```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert commands is not None
    script = f"set -eu\n{commands[1]}"
    subprocess.run(["sh", "-c", script], cwd=directory, check=True, capture_output=True, timeout=PATIENCE)


def context(directory: Path, client: str = "") -> ssl.SSLContext:
    """What a client that trusts the authority in *directory* connects with, and shows the certificate of *client*."""
    made = ssl.create_default_context(cafile=directory / "authority.pem")
    if client:
        made.load_cert_chain(directory / f"{client}.pem", directory / f"{client}.key")
    return made


def connect(port: int, secured: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection by TLS to a server on this machine."""
    sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
    return secured.wrap_socket(sock, server_hostname="localhost")
