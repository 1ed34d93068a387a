"""TLS for the beanstalk protocol and for links: non-blocking sockets, and a certificate that can be reloaded.

A `TlsSocket` is non-blocking, and behaves like a plain socket. OpenSSL does not access the socket. If it did, it would
read for as long as the peer sends records without data, such as KeyUpdate, and hold the event loop for seconds. Instead
each `recv` reads up to `RECV_SIZE` bytes and passes them to OpenSSL.

Only the kernel announces input to the event loop. Invariant: a TlsSocket buffers no input except an incomplete record.
A `recv` returns the data of every record that is then complete. The handshake leaves the input that follows it in the
kernel. The end of TLS is announced like the end of a plain socket.

The versions are TLS 1.2 and 1.3, without renegotiation and compression, with OpenSSL's default ciphers.
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
from typing import Any, Final, NamedTuple

from gevent.socket import wait_read, wait_write

from greenstalk_server.config.options import Options
from greenstalk_server.runtime.exit_codes import EXIT_USAGE, StartError
from greenstalk_server.runtime.scheduling import FairQueue

log = logging.getLogger(__name__)

_NAMES: Final = ("DNS", "URI", "email")
"""Kinds of alternative names in a certificate that identify a client."""

_SOURCE_LINE: Final = re.compile(r" \([\w.]+:\d+\)$")
"""Pattern of the file and line of Python's source at the end of an error message."""

RECORD: Final = 16384
"""Maximum bytes of data in one record."""

RECV_SIZE: Final = RECORD + 5 + 256
"""Maximum bytes passed to OpenSSL per recv: one record of the maximum length in TLS 1.3. As many bytes can be about 600
records without data, which take 10 ms."""

ENCRYPTION_BATCH: Final = 65536
"""Bytes encrypted per send."""

MAX_UNREAD: Final = 2 * ENCRYPTION_BATCH
"""Maximum encrypted bytes that wait until the peer reads. A batch of data and some responses fit; a peer that keeps
triggering TLS responses without reading them exceeds it, and is disconnected."""


class TlsSocket(socket.socket):
    """A TLS connection. After the handshake (`shake`) it behaves like a plain non-blocking socket.

    overhead   bytes that the last `recv` read in addition to those that it returned.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, is_client: bool = False) -> None:
        """Take over *sock*, a connected non-blocking socket, before its handshake."""
        super().__init__(sock.family, sock.type, sock.proto, sock.detach())
        self.setblocking(False)
        self._incoming: ssl.MemoryBIO = ssl.MemoryBIO()
        self._outgoing: ssl.MemoryBIO = ssl.MemoryBIO()
        self._tls: ssl.SSLObject = context.wrap_bio(self._incoming, self._outgoing, server_side=not is_client)
        self._leaving: bytes = b""  # encrypted; sent before the content of _outgoing
        self._encrypted: int = 0  # bytes of the last `send` that are encrypted but not yet reported as sent
        self._has_unread: bool = False
        self.overhead: int = 0
        self._is_over: bool = False
        self._failure: OSError | None = None  # the error that has ended the input, if any

    def begin(self) -> None:
        """Prepare the first message of the handshake, which a client then sends with `answer`."""
        with suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()

    def shake(self) -> bool:
        """Continue the handshake with up to `RECV_SIZE` bytes; return whether it is complete, or raise OSError.

        Call `answer` afterwards to send the handshake's output, even when the handshake is complete.
        """
        try:
            received = super().recv(RECV_SIZE, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        if not received:
            raise ConnectionAbortedError("the peer closed the connection")
        self._incoming.write(received)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            is_complete = False
        else:
            is_complete = True
            self._refuse_expired()
        not_taken = len(self._incoming.read())  # OpenSSL reads whole records, and none after the last of the handshake
        super().recv(len(received) - not_taken)
        return is_complete

    def recv(self, buflen: int = 0, flags: int = 0) -> bytes:
        """Return all data decrypted from up to `RECV_SIZE` bytes of input; *buflen* is ignored.

        The data is shorter than 2 * RECV_SIZE.
        """
        self.overhead = 0
        if not self._is_over:
            self._has_unread = False
            received = super().recv(RECV_SIZE)
            self._has_unread = len(received) == RECV_SIZE
            if not received:
                return received  # the kernel reports the end again
            data = self._decrypt(received)
            self.overhead = max(0, len(received) - len(data))
            self.answer()
            if len(self._leaving) + self._outgoing.pending > MAX_UNREAD:
                self._end(ConnectionAbortedError("the peer triggers TLS responses but does not read them"))
            if data:
                return data
            if not self._is_over:
                self._has_unread = True
                raise BlockingIOError
        if self._failure is not None:
            raise self._failure
        return b""

    def has_unread(self) -> bool:
        """Return whether the last `recv` may have left input unread."""
        return self._has_unread

    def send(self, data: Any, flags: int = 0) -> int:
        """Send *data*; return the size sent.

        After BlockingIOError, call again with the same data. More data may be appended to it.
        """
        if not self._flush():
            raise BlockingIOError
        if not self._encrypted:
            self._encrypted = self._encrypt(data)
            if not self._flush():
                raise BlockingIOError
        sent, self._encrypted = self._encrypted, 0
        return sent

    def answer(self) -> bool:
        """Send TLS's own messages, such as alerts; return whether all were sent. The next recv reports a lost peer."""
        try:
            return self._flush()
        except OSError:
            return True

    def close(self) -> None:
        with suppress(OSError, ValueError):  # the peer may be gone
            self._tls.unwrap()
        self.answer()
        super().close()

    def peer_names(self) -> list[str]:
        """Return the names in the peer's certificate, the common name first; none without a certificate.

        Of several common names only the last is used, which is the most specific (RFC 2818, 3.1): an authority may let
        the client choose the others.
        """
        found: Any = self._tls.getpeercert() or {}
        common = [value for part in found.get("subject", ()) for key, value in part if key == "commonName"]
        return common[-1:] + [value for kind, value in found.get("subjectAltName", ()) if kind in _NAMES]

    def _refuse_expired(self) -> None:
        """Raise OSError if the peer's certificate has expired.

        OpenSSL does not check the expiry when a session is resumed.
        """
        found: Any = self._tls.getpeercert()
        if found and ssl.cert_time_to_seconds(found["notAfter"]) < time.time():
            raise ConnectionAbortedError("the peer's certificate has expired")

    def _decrypt(self, received: bytes) -> bytes:
        parts: list[bytes] = []
        self._incoming.write(received)
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
        """Encrypt up to ENCRYPTION_BATCH bytes of *data* into `_leaving`, which is empty; return their number."""
        view = memoryview(data)[:ENCRYPTION_BATCH]
        records: list[bytes] = []
        size = 0
        while size < len(view):
            size += self._tls.write(view[size : size + RECORD])
            records.append(self._outgoing.read())  # per record, since the buffer of OpenSSL never shrinks
        self._leaving = b"".join(records)
        return size

    def _flush(self) -> bool:
        """Send the encrypted bytes; return whether all were sent, or raise OSError."""
        while self._leaving or self._outgoing.pending:
            self._leaving = self._leaving or self._outgoing.read()
            try:
                sent = super().send(self._leaving)
            except BlockingIOError:
                return False
            self._leaving = self._leaving[sent:]
        return True

    def _end(self, failure: OSError | None) -> None:
        """End the input with *failure*, if any, and make the kernel announce the end.

        Without the announcement, nothing would wake the connection if the peer sends nothing more.
        """
        self._is_over, self._failure = True, failure
        with suppress(OSError):  # the peer is gone, which the kernel announces too
            self.shutdown(socket.SHUT_RD)


def shake_hands(certificates: Certificates, sock: socket.socket, is_client: bool = False) -> TlsSocket:
    """Take over the non-blocking *sock*, and complete the TLS handshake. Switches.

    Raise OSError if the handshake fails. The caller ends a handshake that takes too long.
    """
    secured = certificates.wrap(sock, is_client)
    try:
        if is_client:
            certificates.turns.take()
            secured.begin()
            secured.answer()
        is_complete = False
        while not is_complete:
            wait_read(secured.fileno())
            certificates.turns.take()
            is_complete = secured.shake()
            while not secured.answer():
                wait_write(secured.fileno())
    except BaseException:
        secured.close()
        raise
    return secured


class Files(NamedTuple):
    """The options that name the files for TLS.

    cert, key, authority    fields of Options.
    of                      which connections use them.
    is_mutual               the certificate is used to connect too.
    """

    cert: str
    key: str
    authority: str
    of: str = "connections"
    is_mutual: bool = False


OF_CLIENTS: Final = Files("tls_cert", "tls_key", "tls_client_ca")
OF_LINKS: Final = Files("link_cert", "link_key", "link_ca", of="links", is_mutual=True)


class Certificates:
    """The server's certificate and key, and the authorities of its peers; `reload` reads the files again.

    turns   shared by all handshakes: each step takes some milliseconds.
    """

    def __init__(self, options: Options, files: Files = OF_CLIENTS) -> None:
        """Read the *files* that *options* name, which must include a certificate; raise StartError."""
        self.turns: FairQueue = FairQueue()
        self._options: Options = options
        self._files: Files = files
        self._contexts: list[ssl.SSLContext] = self._read()

    def wrap(self, sock: socket.socket, is_client: bool = False) -> TlsSocket:
        """Take over the connected *sock*, before its handshake."""
        return TlsSocket(sock, self._contexts[is_client], is_client)

    def reload(self) -> None:
        """Read the files again, for new connections; if one is invalid, log that and keep the present ones."""
        try:
            self._contexts = self._read()
        except StartError as error:
            log.error("keeping the present certificate for %s: %s", self._files.of, error)  # noqa: TRY400  the message is complete
        else:
            log.info("reloaded the certificate for new %s (SIGHUP)", self._files.of)

    def _read(self) -> list[ssl.SSLContext]:
        """Return the contexts of the server's and, if there is one, of the client's side."""
        protocols = [ssl.PROTOCOL_TLS_SERVER, *([ssl.PROTOCOL_TLS_CLIENT] if self._files.is_mutual else [])]
        return [self._read_for(protocol) for protocol in protocols]

    def _read_for(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.check_hostname = False  # every peer with a certificate of the authority is one of the queue
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        load_certificate(context, self._options, self._files)
        load_authority(context, self._options, self._files)
        return context


def load_certificate(context: ssl.SSLContext, options: Options, files: Files = OF_CLIENTS) -> None:
    """Load the certificate and its key into *context*; raise StartError."""
    cert, key = options.value_of(files.cert), options.value_of(files.key) or options.value_of(files.cert)
    key_field = files.key if options.value_of(files.key) is not None else files.cert
    _check_readable(options, files.cert, cert)
    _warn_if_public(key, _check_readable(options, key_field, key))
    try:
        context.load_cert_chain(cert, key, _no_password)
    except (OSError, ValueError) as error:
        where = f"{options.label_of(files.cert)} {cert}"
        if key != cert:
            where += f", {options.label_of(key_field)} {key}"
        message = f"{where}: {reason_of(error)}; it must be a certificate, with its key"
        raise StartError(message, EXIT_USAGE) from error


def load_authority(context: ssl.SSLContext, options: Options, files: Files = OF_CLIENTS) -> None:
    """Make *context* require certificates of peers, if *options* name an authority; raise StartError."""
    if (path := options.value_of(files.authority)) is None:
        return
    _check_readable(options, files.authority, path)
    try:
        context.load_verify_locations(path)
    except OSError as error:
        where = f"{options.label_of(files.authority)} {path}"
        raise StartError(f"{where}: {reason_of(error)}; it must be certificates in PEM", EXIT_USAGE) from error
    context.verify_mode = ssl.CERT_REQUIRED


def _check_readable(options: Options, field: str, path: str) -> int:
    """Return the mode of *path*; raise StartError if it is unreadable. OpenSSL's error would not name the file."""
    try:
        with Path(path).open("rb") as file:
            return os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise StartError(f"{options.label_of(field)} {path}: {error.strerror}", EXIT_USAGE) from error


def _warn_if_public(key: str, mode: int) -> None:
    if mode & stat.S_IROTH:
        log.warning("the key %s is readable by every user of this machine; run: chmod o-r %s", key, key)


def _no_password() -> str:
    """Raise ValueError; without this callback OpenSSL would prompt on the terminal and wait."""
    raise ValueError("the key is encrypted, and a server cannot ask for its password; decrypt the key file")


def reason_of(error: Exception) -> str:
    """Return the reason for *error* in words, without the line in the source of OpenSSL or Python."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, str):
        return reason.replace("_", " ").lower()
    return _SOURCE_LINE.sub("", getattr(error, "strerror", None) or str(error))
