"""Limits on connections, in total and per address."""

from __future__ import annotations

import pytest

from greenstalk_server.core.limits import Limits
from greenstalk_server.net.admission import Admission


@pytest.mark.parametrize(
    ("one", "other", "share_quota"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "", False),
    ],
)
def test_limit_per_address_counts_ipv6_by_network(one: str, other: str, share_quota: bool) -> None:
    admission = Admission(Limits(connections_per_address=1))
    assert admission.enter(one) is None
    assert admission.enter(other) == ("connections_per_address" if share_quota else None)
    admission.leave(one)
    if not share_quota:
        admission.leave(other)
    assert admission.enter(other) is None


def test_total_limit_counts_connections_of_every_address() -> None:
    admission = Admission(Limits(connections=2))
    assert [admission.enter(f"192.0.2.{number}") for number in range(3)] == [None, None, "connections"]
    admission.leave("192.0.2.0")
    assert [admission.enter("") for _ in range(2)] == [None, "connections"]
