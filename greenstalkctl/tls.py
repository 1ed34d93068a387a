"""TLS to a server or its API: which certificates to trust and to show, and what a failed handshake means."""

from __future__ import annotations

import ssl
from typing import Final

from greenstalkctl.exits import Misuse

_AUTHORITY: Final = "name a file with its authority by --cafile, or by the variable SSL_CERT_FILE"
_NAME: Final = "connect by a name that the certificate has, or have one made with this name"
_ADVICE: Final = {
    9: "wait until it is valid, and check the clock of this machine",
    10: "renew it, and check the clock of this machine",
    62: _NAME,
    64: _NAME,
}
"""Advice by the number of a verification error of OpenSSL (X509_V_ERR_...)."""

_WANTS_CERTIFICATE: Final = "CERTIFICATE_REQUIRED"
_REFUSES_CERTIFICATE: Final = ("UNKNOWN_CA", "CERTIFICATE")
_MAKE_SURE: Final = "a server with --tls-client-ca takes only certificates that this authority has signed"


def context(cafile: str, cert: str, key: str) -> ssl.SSLContext:
    """Return the context of a client that checks the server's certificate and its name.

    It trusts the authorities in *cafile*, or the system's if that is empty; and it shows the certificate in *cert*,
    with its key in *key*, or in *cert* too if that is empty. Raise Misuse if a file cannot be used.
    """
    made = _trusting(cafile)
    if not cert:
        return made
    try:
        made.load_cert_chain(cert, key or None, _no_password)
    except ssl.SSLError as error:
        what = f"{cert} and {key}" if key else cert
        why = "the key is not that of the certificate" if "MISMATCH" in (error.reason or "") else "PEM is expected"
        raise Misuse(f"cannot use the certificate and key in {what}: {why}") from error
    except OSError as error:
        raise Misuse(f"cannot read --cert {cert}{f' or --key {key}' if key else ''}: {error.strerror}") from error
    return made


def _trusting(cafile: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=cafile or None)
    except ssl.SSLError as error:
        raise Misuse(f"there is no certificate in --cafile {cafile}; PEM is expected") from error
    except OSError as error:
        raise Misuse(f"cannot read --cafile {cafile}: {error.strerror}") from error


def _no_password() -> str:
    """Refuse a key that is encrypted: OpenSSL would ask for its password on the terminal."""
    raise Misuse("the key of --cert is encrypted; decrypt it, for example with `openssl pkey -in KEY -out NEW`")


def failed_handshake(where: object, error: OSError, timeout: float, plain: str) -> str:
    """Return what the *error* of a handshake with *where* means; *plain* says how to connect without TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = _ADVICE.get(error.verify_code, _AUTHORITY)
        return f"the certificate of {where} is not valid: {error.verify_message.rstrip('.')}; {advice}"
    if (alert := refusal(where, error)) is not None:
        return alert
    if isinstance(error, TimeoutError):
        return f"{where} has not agreed on TLS within {timeout:g} s; if it does not speak TLS, {plain}"
    return f"{where} does not speak TLS; {plain}"


def refusal(where: object, error: OSError) -> str | None:
    """Return what *error* means if it is an alert by which *where* has refused this client; None if it is not."""
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    _, is_alert, alert = reason.partition("ALERT_")
    if not is_alert:
        return None
    if alert == _WANTS_CERTIFICATE:
        return f"{where} takes only clients with a certificate; add --cert and --key"
    if any(word in alert for word in _REFUSES_CERTIFICATE):
        said = alert.replace("_", " ").lower()
        return f"{where} has refused the certificate of --cert ({said}); {_MAKE_SURE}"
    return f"{where} has refused TLS: {alert.replace('_', ' ').lower()}"
