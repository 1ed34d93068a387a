"""Recognize the hosts that are this machine, and the URLs that may receive secrets."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Return whether *host* is a loopback address or localhost; any other name may resolve to other addresses."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_safe_url(url: str) -> bool:
    """Return whether *url* is encrypted, or on a loopback address. It has no spaces and no line ends."""
    if not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:  # such as a bracket that is not closed
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))
