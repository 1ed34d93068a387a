"""TLS on the port of the beanstalk protocol: the certificate, read anew on demand, and sockets that speak it.

A `TlsSocket` is non-blocking, and behaves as a plain one does. OpenSSL never sees the socket: left to itself it would
read on for as long as the peer sends records that hold no data, such as KeyUpdate, and hold the loop for seconds. It
gets what has come in portions, and one `recv` takes one portion.

The loop is told by the system alone that there is something to read, so nothing may wait within: a `recv` gives out
all that its portion holds, whatever follows the handshake is left with the system, and the end is announced as that of
a plain socket is, also if it came by TLS alone.

TLS 1.2 and 1.3, without renegotiation and compression, with OpenSSL's own choice of ciphers.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import ssl
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from gevent.socket import wait_read, wait_write
from gevent.timeout import Timeout

from greenstalk_server.config.options import Options
from greenstalk_server.runtime.exit_codes import EXIT_USAGE, StartError
from greenstalk_server.runtime.scheduling import FairQueue

log = logging.getLogger(__name__)

_NAMES: Final = ("DNS", "URI", "email")
"""Kinds of alternative names in a certificate that name a client."""

_PLACE: Final = re.compile(r" \([\w.]+:\d+\)$")
"""In Python's source, behind what went wrong."""

RECORD: Final = 16384
"""Bytes of data in one record, at most."""

PORTION: Final = RECORD + 5 + 256
"""Bytes given to OpenSSL at once: the longest record of TLS 1.3, or some 600 that hold no data, which take 10 ms."""

SENT_AT_ONCE: Final = 65536
"""Bytes encrypted at once."""

UNREAD_AT_MOST: Final = 2 * SENT_AT_ONCE
"""Bytes, encrypted, that a peer who has TLS answer may leave unread: what is sent at once, and the answers."""


class TlsSocket(socket.socket):
    """One connection; as a plain non-blocking socket, once `shake` is through.

    overhead   bytes that the last `recv` took from the system, beyond those that it returned.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        """Take over *sock*, which is non-blocking and was accepted; the handshake is still to come."""
        super().__init__(sock.family, sock.type, sock.proto, sock.detach())
        self.setblocking(False)
        self._incoming: ssl.MemoryBIO = ssl.MemoryBIO()
        self._outgoing: ssl.MemoryBIO = ssl.MemoryBIO()
        self._tls: ssl.SSLObject = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._leaving: bytes = b""  # encrypted; goes before what is in _outgoing
        self._encrypted: int = 0  # bytes given to `send` that it has encrypted, and not yet told of
        self._has_unread: bool = False
        self.overhead: int = 0
        self._is_over: bool = False
        self._failure: OSError | None = None  # how it is over, if badly

    def shake(self) -> bool:
        """Go on with the handshake as far as one portion of what has come goes; say if it is through, or raise OSError.

        What it has to say, also at its end, is for `answer` to send.
        """
        try:
            came = super().recv(PORTION, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        if not came:
            raise ConnectionAbortedError("the client has left")
        self._incoming.write(came)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            is_through = False
        else:
            is_through = True
            self._refuse_expired()
        not_taken = len(self._incoming.read())  # OpenSSL takes whole records, and none after the handshake's last
        super().recv(len(came) - not_taken)
        return is_through

    def recv(self, buflen: int = 0, flags: int = 0) -> bytes:
        """Return all that a portion of what has come holds, whatever *buflen* is: less than two portions."""
        self.overhead = 0
        if not self._is_over:
            self._has_unread = False
            came = super().recv(PORTION)
            self._has_unread = len(came) == PORTION
            if not came:
                return came  # and the system will say so again
            data = self._decrypt(came)
            self.overhead = max(0, len(came) - len(data))
            self.answer()
            if len(self._leaving) + self._outgoing.pending > UNREAD_AT_MOST:
                self._end(ConnectionAbortedError("the client has TLS answer, and does not read it"))
            if data:
                return data
            if not self._is_over:
                self._has_unread = True
                raise BlockingIOError
        if self._failure is not None:
            raise self._failure
        return b""

    def has_unread(self) -> bool:
        """Whether the last `recv` may have left something unread that had arrived."""
        return self._has_unread

    def send(self, data: Any, flags: int = 0) -> int:
        """Send *data*; if BlockingIOError is raised it has to be sent again, with or without more behind it."""
        if not self._flush():
            raise BlockingIOError
        if not self._encrypted:
            self._encrypted = self._encrypt(data)
            if not self._flush():
                raise BlockingIOError
        sent, self._encrypted = self._encrypted, 0
        return sent

    def answer(self) -> bool:
        """Send what TLS has to say by itself; say if it has left. If the peer is gone the next recv will say so."""
        try:
            return self._flush()
        except OSError:
            return True

    def close(self) -> None:
        with suppress(OSError, ValueError):  # the peer need not be there any more to be told
            self._tls.unwrap()
        self.answer()
        super().close()

    def peer_names(self) -> list[str]:
        """The names in the client's certificate, the common one first; none without a certificate.

        Of several common names the last counts, which is the most specific one (RFC 2818, 3.1): an authority may let
        its client choose others before it.
        """
        found: Any = self._tls.getpeercert() or {}
        common = [value for part in found.get("subject", ()) for key, value in part if key == "commonName"]
        return common[-1:] + [value for kind, value in found.get("subjectAltName", ()) if kind in _NAMES]

    def _refuse_expired(self) -> None:
        """Raise OSError if the client's certificate has expired: OpenSSL looks at none of a session that goes on."""
        found: Any = self._tls.getpeercert()
        if found and ssl.cert_time_to_seconds(found["notAfter"]) < time.time():
            raise ConnectionAbortedError("the client's certificate has expired")

    def _decrypt(self, came: bytes) -> bytes:
        parts: list[bytes] = []
        self._incoming.write(came)
        try:
            while self._incoming.pending:
                part = self._tls.read(RECORD)
                if not part:
                    self._end(None)
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._end(error)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _encrypt(self, data: bytes) -> int:
        """Have as much of *data* leave as may at once, and return how much. Nothing else is leaving."""
        view = memoryview(data)[:SENT_AT_ONCE]
        records: list[bytes] = []
        size = 0
        while size < len(view):
            size += self._tls.write(view[size : size + RECORD])
            records.append(self._outgoing.read())  # one at a time: OpenSSL keeps a buffer as large as ever was needed
        self._leaving = b"".join(records)
        return size

    def _flush(self) -> bool:
        """Send what is encrypted; say if all has left, or raise OSError."""
        while self._leaving or self._outgoing.pending:
            self._leaving = self._leaving or self._outgoing.read()
            try:
                sent = super().send(self._leaving)
            except BlockingIOError:
                return False
            self._leaving = self._leaving[sent:]
        return True

    def _end(self, failure: OSError | None) -> None:
        """Give out no more, and have the system announce it: there need not come anything that it would tell of."""
        self._is_over, self._failure = True, failure
        with suppress(OSError):  # it is gone already, and that is announced too
            self.shutdown(socket.SHUT_RD)


def shake_hands(certificates: Certificates, sock: socket.socket, timeout: float) -> TlsSocket:
    """Take over the non-blocking *sock*, and agree on TLS within *timeout* seconds; else raise OSError. Switches."""
    secured = certificates.wrap(sock)
    try:
        with Timeout(timeout, TimeoutError("the handshake took too long")):
            is_through = False
            while not is_through:
                wait_read(secured.fileno())
                certificates.turns.take()
                is_through = secured.shake()
                while not secured.answer():
                    wait_write(secured.fileno())
    except BaseException:
        secured.close()
        raise
    return secured


class Certificates:
    """The server's certificate and key, and the authorities of its clients'; files that may be read anew.

    turns   of those who shake hands: a step takes some milliseconds.
    """

    def __init__(self, options: Options) -> None:
        """Read what *options*, which name a certificate, name; raise StartError."""
        assert options.tls_cert is not None
        self.turns: FairQueue = FairQueue()
        self._options: Options = options
        self._context: ssl.SSLContext = self._read()

    def wrap(self, sock: socket.socket) -> TlsSocket:
        """Take over *sock*, which was accepted; the handshake is still to come."""
        return TlsSocket(sock, self._context)

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
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        load_certificate(context, self._options)
        load_client_ca(context, self._options)
        return context


def load_certificate(context: ssl.SSLContext, options: Options) -> None:
    """Load the certificate and its key into *context*; raise StartError."""
    assert options.tls_cert is not None
    cert, key = options.tls_cert, options.tls_key or options.tls_cert
    key_field = "tls_key" if options.tls_key is not None else "tls_cert"
    _look(options, "tls_cert", cert)
    _warn_of_others(key, _look(options, key_field, key))
    try:
        context.load_cert_chain(cert, key, _no_password)
    except (OSError, ValueError) as error:
        where = f"{options.label_of('tls_cert')} {cert}"
        if key != cert:
            where += f", {options.label_of(key_field)} {key}"
        message = f"{where}: {reason_of(error)}; it must be a certificate, with its key"
        raise StartError(message, EXIT_USAGE) from error


def load_client_ca(context: ssl.SSLContext, options: Options) -> None:
    """Have *context* require certificates of clients, if *options* name an authority; raise StartError."""
    if (path := options.tls_client_ca) is None:
        return
    _look(options, "tls_client_ca", path)
    try:
        context.load_verify_locations(path)
    except OSError as error:
        where = f"{options.label_of('tls_client_ca')} {path}"
        raise StartError(f"{where}: {reason_of(error)}; it must be certificates in PEM", EXIT_USAGE) from error
    context.verify_mode = ssl.CERT_REQUIRED


def _look(options: Options, field: str, path: str) -> int:
    """Return the mode of *path*, which can be read; raise StartError. OpenSSL would not say which file it is."""
    try:
        with Path(path).open("rb") as file:
            return os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise StartError(f"{options.label_of(field)} {path}: {error.strerror}", EXIT_USAGE) from error


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
    return _PLACE.sub("", getattr(error, "strerror", None) or str(error))
