"""What docs/security.md says of certificates, done; and clients that use them."""

from __future__ import annotations

import ctypes
import ctypes.util
import re
import socket
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.support.daemon import PATIENCE, REPOSITORY

PAGE = REPOSITORY / "docs" / "security.md"

KEY_UPDATE_SIZE = 27
"""Bytes of its record, with the usual ciphers."""


def make_certificates(directory: Path) -> None:
    """Run the commands of the page in *directory*: an authority, a server, and the clients mail-1 and monitoring."""
    commands = re.search(r"<!-- run by tests/net/test_tls.py -->\n\n```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
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


class InMemory:
    """A client's side of TLS on *sock* that leaves it to the caller when what it has to say is sent."""

    def __init__(self, sock: socket.socket, secured: ssl.SSLContext) -> None:
        self.sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = secured.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    def shake(self) -> bytes:
        """Go through the handshake, all but sending the last bytes of it, which are returned."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.sock.sendall(self._outgoing.read())
                self._incoming.write(self.sock.recv(65536))
            else:
                return self._outgoing.read()

    def hello(self) -> bytes:
        """What begins the handshake."""
        with suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self._outgoing.read()

    def encrypt(self, data: bytes, ends: bool = False) -> bytes:
        """What is to be sent for *data*, and for the end of TLS behind it."""
        self.tls.write(data)
        if ends:
            with suppress(ssl.SSLWantReadError):  # the server has not ended its side
                self.tls.unwrap()
        return self._outgoing.read()

    def read_to_end(self) -> bytes:
        """All data until the server ends TLS; raise SSLEOFError if it closes without a word."""
        data = b""
        while True:
            try:
                part = self.tls.read()
            except ssl.SSLZeroReturnError:
                return data
            except ssl.SSLWantReadError:
                came = self.sock.recv(65536)
                if came:
                    self._incoming.write(came)
                else:
                    self._incoming.write_eof()
            else:
                if not part:
                    return data
                data += part


class KeyUpdater:
    """A client by OpenSSL's own interface, which has what Python's has not: to update keys. Checks no certificate."""

    def __init__(self, sock: socket.socket) -> None:
        """Agree on TLS on *sock*, which must be blocking; may run in a thread."""
        name = ctypes.util.find_library("ssl")
        assert name is not None
        library = ctypes.CDLL(name)
        for function in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
            getattr(library, function).restype = ctypes.c_void_p
        self._library = library
        self._context = ctypes.c_void_p(library.SSL_CTX_new(ctypes.c_void_p(library.TLS_client_method())))
        self._tls = ctypes.c_void_p(library.SSL_new(self._context))
        assert library.SSL_set_fd(self._tls, sock.fileno()) == 1
        assert library.SSL_connect(self._tls) == 1

    def update(self, asks_for_one: bool = False) -> bool:
        """Send a KeyUpdate, which may ask the server for one; say if the socket has taken it."""
        self._library.SSL_key_update(self._tls, int(asks_for_one))
        return bool(self._library.SSL_do_handshake(self._tls) == 1)

    def write(self, data: bytes) -> bool:
        """Send *data*; say if the socket has taken it."""
        return bool(self._library.SSL_write(self._tls, data, len(data)) == len(data))

    def read(self) -> bytes:
        """What one record holds."""
        buffer = ctypes.create_string_buffer(16384)
        size = self._library.SSL_read(self._tls, buffer, len(buffer))
        return buffer.raw[: max(size, 0)]

    def close(self) -> None:
        """Free what OpenSSL has; the socket stays."""
        self._library.SSL_free(self._tls)
        self._library.SSL_CTX_free(self._context)
