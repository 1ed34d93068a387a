"""TLS on the port of the beanstalk protocol: the certificate, read anew on demand, and sockets that speak it.

A `TlsSocket` is non-blocking, and behaves as a plain one does: it sends what it is given or raises BlockingIOError, and
what it has received it gives out whole, up to 16 KiB, the most that one record holds. OpenSSL reads one record at a
time, so nothing waits within it that the system would not announce: the watcher of a plain socket does for it.

TLS 1.2 and 1.3, without renegotiation and compression, with OpenSSL's own choice of ciphers.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from gevent.socket import wait_read, wait_write
from gevent.timeout import Timeout

from greenstalk_server.exits import EXIT_USAGE, StartError
from greenstalk_server.options import Options

log = logging.getLogger(__name__)

_NAMES: Final = ("DNS", "URI", "email")
"""Kinds of alternative names in a certificate that name a client."""


class TlsSocket(ssl.SSLSocket):
    """One connection; as a plain non-blocking socket, once `do_handshake` is through."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def send(self, data: Any, flags: int = 0) -> int:
        """Send *data*; if BlockingIOError is raised it has to be sent again, with or without more behind it."""
        try:
            return self.write(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def close(self) -> None:
        with suppress(OSError, ValueError):  # the peer need not be there any more to be told
            self.unwrap()
        super().close()

    def peer_names(self) -> list[str]:
        """The names in the client's certificate, the common one first; none without a certificate."""
        found: Any = self.getpeercert() or {}
        common = [value for part in found.get("subject", ()) for key, value in part if key == "commonName"]
        return common + [value for kind, value in found.get("subjectAltName", ()) if kind in _NAMES]


def shake_hands(certificates: Certificates, sock: socket.socket, timeout: float) -> TlsSocket:
    """Take over the non-blocking *sock*, and agree on TLS within *timeout* seconds; else raise OSError. Switches."""
    secured = certificates.wrap(sock)
    try:
        with Timeout(timeout, TimeoutError("the handshake took too long")):
            while True:
                try:
                    secured.do_handshake()
                except ssl.SSLWantReadError:
                    wait_read(secured.fileno())
                except ssl.SSLWantWriteError:
                    wait_write(secured.fileno())
                else:
                    return secured
    except BaseException:
        secured.close()
        raise


class Certificates:
    """The server's certificate and key, and the authorities of its clients'; files that may be read anew."""

    def __init__(self, options: Options) -> None:
        """Read what *options*, which name a certificate, name; raise StartError."""
        assert options.tls_cert is not None
        self._options: Options = options
        self._cert: str = options.tls_cert
        self._key: str = options.tls_key or options.tls_cert
        self._client_ca: str | None = options.tls_client_ca
        self._context: ssl.SSLContext = self._read()

    def wrap(self, sock: Any) -> TlsSocket:
        """Take over *sock*, which was accepted; the handshake is still to come."""
        wrapped = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        assert isinstance(wrapped, TlsSocket)
        return wrapped

    def reload(self) -> None:
        """Read the files anew, for connections from now on; if one is not sound, say so and go on as before."""
        try:
            self._context = self._read()
        except StartError as error:
            log.error("the certificate stays as it is: %s", error)  # noqa: TRY400  the message has it all
        else:
            log.info("the certificate was read anew, for new connections (SIGHUP)")

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sslsocket_class = TlsSocket
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        key_field = "tls_key" if self._options.tls_key is not None else "tls_cert"
        self._look(self._cert, "tls_cert")
        _warn_of_others(self._key, self._look(self._key, key_field))
        try:
            context.load_cert_chain(self._cert, self._key, _no_password)
        except (OSError, ValueError) as error:
            where = f"{self._options.named('tls_cert')} {self._cert}"
            message = f"{where}: {reason_of(error)}; it must be a certificate, with its key"
            raise StartError(message, EXIT_USAGE) from error
        if self._client_ca is not None:
            self._look(self._client_ca, "tls_client_ca")
            try:
                context.load_verify_locations(self._client_ca)
            except OSError as error:
                where = f"{self._options.named('tls_client_ca')} {self._client_ca}"
                raise StartError(f"{where}: {reason_of(error)}; it must be certificates in PEM", EXIT_USAGE) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _look(self, path: str, field: str) -> int:
        """Return the mode of *path*, which can be read; raise StartError. OpenSSL would not say which file it is."""
        try:
            with Path(path).open("rb") as file:
                return os.fstat(file.fileno()).st_mode
        except OSError as error:
            raise StartError(f"{self._options.named(field)} {path}: {error.strerror}", EXIT_USAGE) from error


def _warn_of_others(key: str, mode: int) -> None:
    if mode & stat.S_IROTH:
        log.warning("everybody on this machine can read the key %s; take the right from them: chmod o-r", key)


def _no_password() -> str:
    """Stand in for a prompt at the terminal, which OpenSSL would wait for."""
    raise ValueError("the key is encrypted, and nobody is there to be asked for its password")


def reason_of(error: Exception) -> str:
    """What is wrong, in words, without the place in OpenSSL's source."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, str):
        return reason.replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)
