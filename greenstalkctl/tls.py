"""TLS contexts for a server or its API, and messages for failed handshakes."""

from __future__ import annotations

import ssl
from typing import Final

from greenstalkctl.errors import InvalidUsage

_AUTHORITY: Final = "name a file with its certificate authority in --cafile or the variable SSL_CERT_FILE"
_NAME: Final = "connect with a name that the certificate contains, or issue a certificate with this name"
_ADVICE: Final = {
    9: "wait until it is valid, and check the clock of this machine",
    10: "renew it, and check the clock of this machine",
    62: _NAME,
    64: _NAME,
}
"""Advice by OpenSSL's number of a verification error (X509_V_ERR_...)."""

_WANTS_CERTIFICATE: Final = "CERTIFICATE_REQUIRED"
_REFUSES_CERTIFICATE: Final = ("UNKNOWN_CA", "CERTIFICATE")
_REQUIREMENT: Final = "a server with --tls-client-ca accepts only certificates that this authority has signed"


def context(cafile: str, cert: str, key: str) -> ssl.SSLContext:
    """Return a client context that verifies the server's certificate and name.

    It trusts the authorities in *cafile*, or the system's if that is empty. It presents the certificate in *cert*, with
    the key in *key*, or in *cert* if that is empty. Raise InvalidUsage if a file cannot be used.
    """
    client = _trusting(cafile)
    if not cert:
        return client
    try:
        client.load_cert_chain(cert, key or None, _no_password)
    except ssl.SSLError as error:
        what = f"{cert} and {key}" if key else cert
        why = "the key does not belong to the certificate" if "MISMATCH" in (error.reason or "") else "PEM is expected"
        raise InvalidUsage(f"cannot use the certificate and key in {what}: {why}") from error
    except OSError as error:
        raise InvalidUsage(f"cannot read --cert {cert}{f' or --key {key}' if key else ''}: {error.strerror}") from error
    return client


def _trusting(cafile: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=cafile or None)
    except ssl.SSLError as error:
        raise InvalidUsage(f"there is no certificate in --cafile {cafile}; PEM is expected") from error
    except OSError as error:
        raise InvalidUsage(f"cannot read --cafile {cafile}: {error.strerror}") from error


def _no_password() -> str:
    """Refuse an encrypted key, for whose password OpenSSL would ask on the terminal."""
    raise InvalidUsage("the key of --cert is encrypted; decrypt it, for example with `openssl pkey -in KEY -out NEW`")


def failed_handshake(where: object, error: OSError, timeout: float, plain: str) -> str:
    """Return the message for a failed handshake with *where*; *plain* says how to connect without TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = _ADVICE.get(error.verify_code, _AUTHORITY)
        return f"the certificate of {where} is not valid: {error.verify_message.rstrip('.')}; {advice}"
    if (alert := refusal(where, error)) is not None:
        return alert
    if isinstance(error, TimeoutError):
        return f"{where} did not complete the TLS handshake within {timeout:g} s; if it does not speak TLS, {plain}"
    return f"{where} does not speak TLS; {plain}"


def refusal(where: object, error: Exception) -> str | None:
    """Return the message if *error* is a TLS alert by which *where* refused this client; None if it is not."""
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    _, is_alert, alert = reason.partition("ALERT_")
    if not is_alert:
        return None
    if alert == _WANTS_CERTIFICATE:
        return f"{where} requires a client certificate; add --cert and --key"
    reason = alert.replace("_", " ").lower()
    if any(word in alert for word in _REFUSES_CERTIFICATE):
        return f"{where} refused the certificate of --cert ({reason}); {_REQUIREMENT}"
    return f"{where} refused the TLS handshake: {reason}"
