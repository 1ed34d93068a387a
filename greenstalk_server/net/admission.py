"""Quotas of open connections, in total and per client address. Pure."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network

from greenstalk_server.core.limits import Limits


class Admission:
    """Counts of open connections, compared with `Limits.connections` and `Limits.connections_per_address`."""

    def __init__(self, limits: Limits) -> None:
        self._limits: Limits = limits
        self._count: int = 0
        self._by_address: dict[str, int] = {}

    def enter(self, host: str) -> str | None:
        """Count a connection from *host*, or return the name of the limit that forbids it.

        *host* is empty for a Unix socket, to which no limit per address applies.
        """
        key = quota_key(host)
        limits, count = self._limits, self._by_address.get(key, 0)
        if limits.connections and self._count >= limits.connections:
            return "connections"
        if limits.connections_per_address and key and count >= limits.connections_per_address:
            return "connections_per_address"
        self._count += 1
        self._by_address[key] = count + 1
        return None

    def leave(self, host: str) -> None:
        """Subtract one connection from the counts. `enter` must have admitted it from the same *host*."""
        key = quota_key(host)
        self._count -= 1
        self._by_address[key] -= 1
        if not self._by_address[key]:
            del self._by_address[key]


def quota_key(address: str) -> str:
    """Return the key under which *address* is counted.

    An IPv6 address counts as its /64 network, since one host can use every address in it. An IPv4-mapped address counts
    as the IPv4 address.
    """
    if ":" not in address:
        return address
    try:
        parsed = ip_address(address)
    except ValueError:  # not an IP address: a proxy may forward other text
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    return str(parsed.ipv4_mapped or ip_network((parsed, 64), strict=False))
