"""Certificates made by the commands in docs/security.md, and TLS clients that use them."""

from __future__ import annotations

import ctypes
import ctypes.util
import socket
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.support.daemon import TIMEOUT
from tests.support.pages import block

KEY_UPDATE_SIZE = 27
"""Bytes of the record of a KeyUpdate with the default ciphers."""


def make_certificates(directory: Path) -> None:
    """Run the commands of the page in *directory*: an authority, a server, and the clients mail-1 and monitoring."""
    script = "set -eu\n" + block("security.md", "sh", "umask 077")
    subprocess.run(["sh", "-c", script], cwd=directory, check=True, capture_output=True, timeout=TIMEOUT)


def context(directory: Path, client: str = "") -> ssl.SSLContext:
    """Return a context that trusts the authority in *directory*, and has the certificate of *client*, if any."""
    secured = ssl.create_default_context(cafile=directory / "authority.pem")
    if client:
        secured.load_cert_chain(directory / f"{client}.pem", directory / f"{client}.key")
    return secured


def connect(port: int, secured: ssl.SSLContext) -> ssl.SSLSocket:
    """Return a TLS connection to a server on this machine."""
    sock = socket.create_connection(("127.0.0.1", port), TIMEOUT)
    return secured.wrap_socket(sock, server_hostname="localhost")


class InMemory:
    """A TLS client on *sock* whose output the caller sends."""

    def __init__(self, sock: socket.socket, secured: ssl.SSLContext) -> None:
        self.sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = secured.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    def shake(self) -> bytes:
        """Do the handshake except for sending its last bytes, which are returned."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.sock.sendall(self._outgoing.read())
                self._incoming.write(self.sock.recv(65536))
            else:
                return self._outgoing.read()

    def hello(self) -> bytes:
        """Return the first bytes of the handshake."""
        with suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self._outgoing.read()

    def encrypt(self, data: bytes, ends: bool = False) -> bytes:
        """Return the records for *data*, with a close_notify after them if *ends*."""
        self.tls.write(data)
        if ends:
            with suppress(ssl.SSLWantReadError):  # the server has not ended its side
                self.tls.unwrap()
        return self._outgoing.read()

    def read_to_end(self) -> bytes:
        """Return all data until the server ends TLS; raise SSLEOFError if it closes without a close_notify."""
        data = b""
        while True:
            try:
                part = self.tls.read()
            except ssl.SSLZeroReturnError:
                return data
            except ssl.SSLWantReadError:
                received = self.sock.recv(65536)
                if received:
                    self._incoming.write(received)
                else:
                    self._incoming.write_eof()
            else:
                if not part:
                    return data
                data += part


class KeyUpdater:
    """A client with OpenSSL's C interface, which can update keys; Python's cannot. It verifies no certificate."""

    def __init__(self, sock: socket.socket) -> None:
        """Do the handshake on *sock*, which must be blocking; may run in a thread."""
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
        """Send a KeyUpdate, which may request one from the server; return whether the socket accepted it."""
        self._library.SSL_key_update(self._tls, int(asks_for_one))
        return bool(self._library.SSL_do_handshake(self._tls) == 1)

    def write(self, data: bytes) -> bool:
        """Send *data*; return whether the socket accepted it."""
        return bool(self._library.SSL_write(self._tls, data, len(data)) == len(data))

    def read(self) -> bytes:
        """Return the data of one record."""
        buffer = ctypes.create_string_buffer(16384)
        size = self._library.SSL_read(self._tls, buffer, len(buffer))
        return buffer.raw[: max(size, 0)]

    def close(self) -> None:
        """Free the memory of OpenSSL; the socket stays open."""
        self._library.SSL_free(self._tls)
        self._library.SSL_CTX_free(self._context)
